"""Masked diffusion language modelling (Sahoo et al. 2024, MDLM; Shi et al. 2024; Nie et al. 2025,
LLaDA)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy, restrict


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(Objective):
    """Masked diffusion: w(t) Σ −log p(x_i | x̃) over the masked positions i, at a random time t of
    each row.

    At time t each token of a row except [CLS], [SEP] and padding is [MASK] with probability m(t),
    independently. The weight is w(t) = m′(t) / m(t) (MDLM's −α′ / (1 − α), equation 10):

        linear   m = t                      w = 1 / t
        cosine   m = cos(π/2 · (1 − t))     w = π/2 · tan(π/2 · (1 − t))

    The loss is this sum over the number of the row's tokens, masked or not. Except for the shares
    below `least_share`, its expectation is the same for all schedules: the mean over all orders of
    the chain rule's code length in nats per token, an upper bound of −log p(x).

    [MASK] has probability 0 (MDLM's zero masking probabilities). Times of a batch are
    (u + b / B) mod 1 for row b of B and one uniform u (Kingma et al. 2021, appendix I.1).
    """

    schedule: str = "linear"  # how the masked share grows with t, linear or cosine
    least_share: float = 0.001  # smallest m(t): weights grow without limit towards 0; as in MDLM

    def __post_init__(self):
        restrict(self, schedule="linear cosine")

    def share_and_weight(self, uniform: Float[Array, "B"]) -> tuple[Array, Array]:
        """m(t) and w(t) for t uniform between the time of `least_share` and 1."""
        if self.schedule == "linear":
            t = self.least_share + (1 - self.least_share) * uniform
            return t, 1 / t
        # The angle π/2 · (1 − t) falls from that of `least_share` to 0.
        angle = math.acos(self.least_share) * (1 - uniform)
        return jnp.cos(angle), math.pi / 2 * jnp.tan(angle)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with masked tokens, bool [B, L] `words` (what can be masked) and `masked`,
        int32 [B, L] `original_tokens`, and float32 [B] `masked_share` and `masked_weight`: m(t) and
        w(t)."""
        mask_id, tokens = vocabulary.require_mask(), batch["tokens"]
        time_key, mask_key = jax.random.split(key)
        rows = len(tokens)
        times = (jax.random.uniform(time_key) + jnp.arange(rows) / rows) % 1
        share, weight = self.share_and_weight(times)
        words = (batch["documents"] > 0) & ~vocabulary.is_special(tokens) & (tokens != mask_id)
        masked = words & (jax.random.uniform(mask_key, tokens.shape) < share[:, None])
        return {
            **batch,
            "tokens": jnp.where(masked, mask_id, tokens),
            "words": words,
            "masked": masked,
            "original_tokens": tokens,
            "masked_share": share,
            "masked_weight": weight,
        }

    def loss(self, model: Model, view: View) -> Metrics:
        """Weighted cross-entropy of the masked tokens over the number of all tokens."""
        # Logits at all positions: only the device knows which ones are masked.
        logits = self.token_logits(model, model.encode().output("both"), "both")
        weights = view["masked"] * view["masked_weight"][:, None]
        metrics = cross_entropy(logits, view["original_tokens"], weights)
        total, _ = metrics["loss"]
        return {**metrics, "loss": (total, view["words"].sum(dtype=jnp.float32))}

    def token_logits(self, model: Model, hidden: Array, side: str) -> Array:
        """The output layer's logits, with probability 0 for [MASK]."""
        logits = model.predict_tokens(hidden, side)
        # Finite, so that terms of weight 0 do not become nan.
        return logits.at[..., model.vocabulary.require_mask()].set(-1e9)
