"""Masked diffusion language modelling (Sahoo et al. 2024, MDLM; Shi et al. 2024; Nie et al. 2025, LLaDA)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.keys import setting
from bertlab.models.base import Dense, View
from bertlab.objectives.base import Bound, Corruption, Metrics, Objective, Oracle, Scoring, Vocabulary, without

SCHEDULES = ("linear", "cosine")


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(Objective):
    """Masked diffusion: w(t) Σ −log p(x_i | x̃) over the masked positions i, at a random time t of each row.

    At time t each token of a row except [CLS], [SEP] and padding is [MASK] with probability m(t), independently of the others.
    The weight is w(t) = m′(t) / m(t) (MDLM's −α′ / (1 − α), equation 10):

        linear   m = t                      w = 1 / t
        cosine   m = cos(π/2 · (1 − t))     w = π/2 · tan(π/2 · (1 − t))

    The loss is this sum divided by the number of the row's tokens, masked or not. Up to the shares below `least_share`, which
    are not drawn, its expectation over t and the masks is the same for all schedules: the mean over all orders of the
    chain-rule code length in nats per token, an upper bound of −log p(x). `bertlab evaluate` measures the same bound as
    "any-order".

    The model never predicts [MASK], and shown tokens are not predicted: they are what they are (MDLM's zero masking
    probabilities and carry-over unmasking). Times of a batch are (u + b / B) mod 1 for row b of B and one uniform u, so every
    batch has all times evenly and every row any time (Kingma et al. 2021, appendix I.1).

    Only the device knows what is masked, so logits are computed at all positions.

    Attributes:
        schedule: how the masked share grows with t.
        least_share: the smallest masked share that is drawn: weights grow without limit towards 0 (MDLM's code: 0.001).
        time_conditioning: scale and shift the last states by functions of the row's share of [MASK]. The model can count the
            masks without it, and MDLM is as good without it.
    """

    sees = "own"

    schedule: str = setting("linear", choices=SCHEDULES)
    least_share: float = setting(0.001, above=0, below=1)
    time_conditioning: bool = False

    def check(self, vocabulary: Vocabulary) -> None:
        vocabulary.require_mask("it masks tokens")

    def share_and_weight(self, uniform: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """m(t) and w(t) for t uniform between the time of `least_share` and 1."""
        if self.schedule == "linear":
            t = self.least_share + (1 - self.least_share) * uniform
            return t, 1 / t
        # The angle π/2 · (1 − t) falls from that of `least_share` to 0.
        angle = math.acos(self.least_share) * (1 - uniform)
        return jnp.cos(angle), math.pi / 2 * jnp.tan(angle)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The batch with masked tokens.

        Adds bool [B, L] `words` (what can be masked) and `masked`, int32 [B, L] `original_tokens`, and float32 [B]
        `masked_share` and `masked_weight`: m(t) and w(t).
        """
        tokens, (time_key, mask_key) = batch["tokens"], jax.random.split(key)
        rows = len(tokens)
        share, weight = self.share_and_weight((jax.random.uniform(time_key) + jnp.arange(rows) / rows) % 1)
        words = (batch["documents"] > 0) & ~vocabulary.is_special(tokens) & (tokens != vocabulary.mask_id)
        masked = words & (jax.random.uniform(mask_key, tokens.shape) < share[:, None])
        return {
            **batch,
            "tokens": jnp.where(masked, vocabulary.mask_id, tokens),
            "words": words,
            "masked": masked,
            "original_tokens": tokens,
            "masked_share": share,
            "masked_weight": weight,
        }

    def head(self, body: nn.Module) -> nn.Module | None:
        """The layer that knows the time, if there is one."""
        return _Time(body.config.dtype) if self.time_conditioning else None

    def flops_per_prediction(self, shape) -> float:
        return 0.0  # `extra_flops` counts logits

    def extra_flops(self, shape, length: int) -> float:
        """Logits at all positions of a row."""
        return length * shape.flops_per_prediction()

    def loss(self, model: Bound, view: View) -> Metrics:
        """Weighted cross-entropy of the masked tokens over the number of all tokens; accuracy is weighted in the same way."""
        hidden = self._at_time(model, view, model.encoded.output("both"))
        weights = view["masked"] * view["masked_weight"][:, None]
        found = model.token_loss(hidden, "both", view["original_tokens"], weights, never=model.vocabulary.mask_id)
        return {**found, "loss": (found["loss"][0], view["words"].sum(dtype=jnp.float32))}

    def token_logits(self, model: Bound, hidden: Float[Array, "... D"], side: str) -> Float[Array, "... V"]:
        """Those of the output layer at the view's time, without [MASK]."""
        return without(model.predict_tokens(self._at_time(model, model.view, hidden), side), model.vocabulary.mask_id)

    def _at_time(self, model: Bound, view: View, hidden: Float[Array, "B ... D"]) -> Float[Array, "B ... D"]:
        if model.head is None:
            return hidden
        masked = (view["tokens"] == model.vocabulary.mask_id) & (view["documents"] > 0)
        words = (view["documents"] > 0) & ~model.vocabulary.is_special(view["tokens"])
        return model.head(hidden, masked.sum(axis=1) / jnp.maximum(words.sum(axis=1), 1))

    def scoring(self) -> Scoring:
        """By masking."""
        differs = "its head for the share of masked tokens is not in this directory, so numbers differ" * self.time_conditioning
        return Scoring(("at the mask",), never_mask=True, differs=differs)

    def corruption(self, view: View, vocabulary: Vocabulary) -> Corruption:
        """[MASK], with the probability of the row's time."""
        return Corruption(np.eye(vocabulary.size)[vocabulary.mask_id], rate=view["masked_share"])

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """Of each masked word, given the others, times w(t). Its expectation is left-to-right's for a whole text."""
        nats = oracle.corrupted(view["tokens"], self.corruption(view, oracle.vocabulary))
        return np.where(view["masked"], view["masked_weight"][:, None] * nats, 0.0), view["words"]


class _Time(nn.Module):
    """Scale and shift by a row's masked share; neither at first."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: Float[Array, "B ... D"], share: Float[Array, "B"]) -> Float[Array, "B ... D"]:
        width = hidden.shape[-1]
        waves = jnp.pi * share[:, None] * 2.0 ** jnp.arange(6)
        waves = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], axis=-1)
        scale, shift = jnp.split(Dense(2 * width, (None, "embed"), nn.initializers.zeros, dtype=self.dtype)(waves), 2, axis=-1)
        apart = lambda x: x.reshape(len(x), *[1] * (hidden.ndim - 2), width)
        return hidden * (1 + apart(scale)) + apart(shift)
