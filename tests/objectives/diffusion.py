"""A masked diffusion language model (Sahoo et al. 2024, equation 10) in a file of its own, on bertlab's public names only.

−Σ log p(x_t | x̃) / s at the masked positions t of a row. Each row draws its share s of masked tokens, from `least` to 1.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertlab.objectives import Corruption, Objective, Scoring


@dataclasses.dataclass(frozen=True)
class Diffusion(Objective):
    """Masks a share of each row that is drawn for it, and weighs what is predicted by its inverse."""

    reads = "both"
    sees = "shared"

    least: float = 0.1

    def view(self, batch, key, vocabulary, progress):
        tokens, (of_row, of_token) = batch["tokens"], jax.random.split(key)
        share = jax.random.uniform(of_row, tokens.shape[:1], minval=self.least, maxval=1.0)
        words = (batch["documents"] > 0) & ~vocabulary.is_special(tokens)
        chosen = words & jax.random.bernoulli(of_token, share[:, None], tokens.shape)
        shown = jnp.where(chosen, vocabulary.mask_id, tokens)
        return {**batch, "tokens": shown, "chosen": chosen, "share": share, "original": tokens}

    def loss(self, model, view):
        weights = view["chosen"] / view["share"][:, None]
        return model.token_loss(model.encoded.output("both"), "both", view["original"], weights)

    def flops_per_prediction(self, shape):
        return (1 + self.least) / 2 * super().flops_per_prediction(shape)  # a row of logits for each masked position

    def scoring(self):
        return Scoring(("at the mask",))

    def corruption(self, view, vocabulary):
        return Corruption(draws=np.eye(vocabulary.size)[vocabulary.mask_id], rate=view["share"])

    def floor(self, oracle, view, batch):
        nats = oracle.corrupted(view["tokens"], self.corruption(view, oracle.vocabulary))
        return nats, view["chosen"] / view["share"][:, None]
