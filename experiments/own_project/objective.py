"""An objective of your own. Its fields are settings: --config.objectives.Overwritten.rate=0.3."""

import dataclasses

import jax
import jax.numpy as jnp

from bertlab.models import Dense
from bertlab.objectives import Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class Overwritten(Objective):
    """-Σ log p(overwritten_t | x̃): in x̃ some tokens of x were replaced by the token before them."""

    reads = "both"  # states that have seen both sides; the others are "forward" and "backward"
    sees = "own"  # it shows the model its own view; "clean" is the unchanged text
    asks = "positions"  # each unit of its loss's weight is one supervised position

    rate: float = 0.15

    def view(self, batch, key, vocabulary, progress):
        """What the model is shown; all randomness comes from the key."""
        tokens = batch["tokens"]
        before = jnp.roll(tokens, 1, axis=1)
        real = (batch["documents"] > 0) & ~vocabulary.is_special(tokens) & ~vocabulary.is_special(before)
        overwritten = real & (tokens != before) & jax.random.bernoulli(key, self.rate, tokens.shape)
        return {**batch, "tokens": jnp.where(overwritten, before, tokens), "overwritten": overwritten, "asked": real}

    def head(self, body):
        """The layer that only this objective needs."""
        return Dense(2, axes=("embed", None))

    def loss(self, model, view):
        """{"loss": (weighted sum, weight), ...} of the last layer's states."""
        logits = model.head(model.encoded.both[-1]).astype(jnp.float32)
        return cross_entropy(logits, view["overwritten"].astype(jnp.int32), view["asked"])
