"""A masked diffusion model (Sahoo et al. 2024) from outside the package: settings, view, loss."""

import dataclasses

import jax
import jax.numpy as jnp

from bertlab.objectives import Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class OwnDiffusion(Objective):
    """Masks a share of each row that is drawn for it, and divides its loss by this share.

    Attributes:
        least: Smallest share.
    """

    least: float = 0.1

    def view(self, batch, key, vocabulary, progress):
        tokens, (row_key, token_key) = batch["tokens"], jax.random.split(key)
        share = jax.random.uniform(row_key, tokens.shape[:1], minval=self.least)
        words = (batch["documents"] > 0) & ~vocabulary.is_special(tokens)
        masked = words & jax.random.bernoulli(token_key, share[:, None], tokens.shape)
        seen = jnp.where(masked, vocabulary.require_mask(), tokens)
        return {**batch, "tokens": seen, "masked": masked, "share": share, "original": tokens}

    def loss(self, model, view):
        logits = model.predict_tokens(model.encode().output("both"), "both")
        return cross_entropy(logits, view["original"], view["masked"] / view["share"][:, None])
