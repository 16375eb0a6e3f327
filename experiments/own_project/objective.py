"""An objective of your own. Its fields are settings: --config.objectives.Swapped.rate=0.3."""

import dataclasses

import jax
import jax.numpy as jnp

from bertlab.models.layers import Dense
from bertlab.objectives import Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class Swapped(Objective):
    """−log p(moved | text in which some neighbours (t, t + 1), t even, are swapped), a position."""

    reads = "both"  # states that have seen both sides; others: "forward", "backward"

    rate: float = 0.15  # of the pairs

    def view(self, batch, key, vocabulary, progress):
        """What the model is shown; all randomness comes from the key."""
        tokens, documents = batch["tokens"], batch["documents"]
        length = tokens.shape[1]
        real = (documents > 0) & ~vocabulary.is_special(tokens)

        def following(x):
            return jnp.roll(x, -1, axis=1)

        pair = real & following(real) & (documents == following(documents))
        pair &= tokens != following(tokens)
        pair &= (jnp.arange(length) % 2 == 0) & (jnp.arange(length) + 1 < length)
        left = pair & jax.random.bernoulli(key, self.rate, tokens.shape)
        right = jnp.roll(left, 1, axis=1)
        swapped = jnp.where(right, jnp.roll(tokens, 1, axis=1), tokens)
        swapped = jnp.where(left, following(tokens), swapped)
        return {**batch, "tokens": swapped, "moved": left | right, "asked": real}

    def head(self, body):
        """The layer that only this objective needs."""
        return Dense(2, axes=("embed", None))

    def loss(self, model, view):
        """{"loss": (weighted sum, weight), ...} of the last layer's states."""
        logits = model.head(model.encode().both[-1]).astype(jnp.float32)
        return cross_entropy(logits, view["moved"].astype(jnp.int32), view["asked"])
