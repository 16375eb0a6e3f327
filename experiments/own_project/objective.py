"""An objective of your own. Its fields are settings: --config.objectives.Swapped.rate=0.3."""

import dataclasses

import jax
import jax.numpy as jnp

from bertlab.models import Dense
from bertlab.objectives import Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class Swapped(Objective):
    """-Σ log p(moved_t | x̃): x̃ is x with some neighbours (t, t + 1), t even, swapped."""

    reads = "both"  # states that have seen both sides; the others are "forward" and "backward"
    sees = "own"  # it shows the model its own view; "clean" is the unchanged text
    asks = "positions"  # the loss counts one answer per position and uses no vocabulary logits

    rate: float = 0.15  # of the pairs

    def view(self, batch, key, vocabulary, progress):
        """What the model is shown; all randomness comes from the key."""
        tokens, documents = batch["tokens"], batch["documents"]
        place, after = jnp.arange(tokens.shape[1]), lambda x: jnp.roll(x, -1, axis=1)
        real = (documents > 0) & ~vocabulary.is_special(tokens)
        pair = real & after(real) & (documents == after(documents)) & (tokens != after(tokens))
        pair &= (place % 2 == 0) & (place + 1 < len(place))
        left = pair & jax.random.bernoulli(key, self.rate, tokens.shape)  # these change places with the token after them
        right = jnp.roll(left, 1, axis=1)
        shown = jnp.where(left, after(tokens), jnp.where(right, jnp.roll(tokens, 1, axis=1), tokens))
        return {**batch, "tokens": shown, "moved": left | right, "asked": real}

    def head(self, body):
        """The layer that only this objective needs."""
        return Dense(2, axes=("embed", None))

    def loss(self, model, view):
        """{"loss": (weighted sum, weight), ...} of the last layer's states."""
        logits = model.head(model.encoded.both[-1]).astype(jnp.float32)
        return cross_entropy(logits, view["moved"].astype(jnp.int32), view["asked"])
