"""A masked language model in a file of its own, on bertlab's public names only.

−Σ log p(x_t | x̃) at positions t that are chosen independently with probability `rate`; every chosen token becomes [MASK].
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertlab.objectives import Corruption, Objective, Scoring


@dataclasses.dataclass(frozen=True)
class Cloze(Objective):
    """Masks tokens independently and predicts them; objectives that see "any" share its view."""

    reads = "both"
    sees = "shared"

    rate: float = 0.3

    def view(self, batch, key, vocabulary, progress):
        tokens = batch["tokens"]
        words = (batch["documents"] > 0) & ~vocabulary.is_special(tokens)
        chosen = words & jax.random.bernoulli(key, self.rate, tokens.shape)
        return {**batch, "tokens": jnp.where(chosen, vocabulary.mask_id, tokens), "chosen": chosen, "original": tokens}

    def loss(self, model, view):
        return model.token_loss(model.encoded.output("both"), "both", view["original"], view["chosen"])

    def scoring(self):
        return Scoring(("at the mask",))

    def corruption(self, view, vocabulary):
        return Corruption(draws=np.eye(vocabulary.size)[vocabulary.mask_id], rate=self.rate)

    def floor(self, oracle, view, batch):
        return oracle.corrupted(view["tokens"], self.corruption(view, oracle.vocabulary)), view["chosen"]
