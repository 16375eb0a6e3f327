"""The contract of an objective: what the model is shown, and what it must predict.

An objective is a frozen dataclass whose fields are its settings (`config.objectives.NAME.FIELD`).
How a text is scored, the exact floor and what guessing costs are functions in `bertlab.evals`.

Letters: B batch, L length, D model width, V vocabulary, P predicted positions per row.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.models.layers import platform

Metrics = Mapping[str, tuple[Array, Array]]
"""Name to (weighted sum, weight), float32 scalars that are divided once, after all were added."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What objectives know about the tokenizer and its corpus."""

    size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int | None  # None if the tokenizer has no [MASK] (GPT's)
    counts: tuple[int, ...] | None = None  # [V] how often each id occurs in the training text
    continues: tuple[bool, ...] | None = None  # [V] whether a piece continues a word (##ing)

    def is_special(self, tokens: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Where a token is padding, [CLS] or [SEP]: never masked."""
        return (tokens == self.pad_id) | (tokens == self.cls_id) | (tokens == self.sep_id)

    def require_mask(self) -> int:
        """The id of [MASK], which is refused where there is none."""
        if self.mask_id is None:
            raise UserError(
                "config.objectives masks tokens, but the tokenizer has no [MASK]; name one in"
                " config.data.tokenizer.path, or train one with config.data.tokenizer.kind"
            )
        return self.mask_id


@dataclasses.dataclass(frozen=True)
class Model:
    """The model as a loss sees it.

    Attributes:
        encode: (view=None) -> `Encoded`, the hidden states. Without an argument those of the loss's
            own view, from one pass for all objectives that share it; another view costs a pass.
        pool: (documents=None) -> [B, D], one vector per row, or [B, n, D], one for each of its
            documents 1 to n.
        predict_tokens: (hidden [..., D], side, among=None) -> float32 logits [..., V] of the
            model's output layer, or only those of the candidates `among` ([n] or [..., k]).
        head: The objective's own Linen module, or None.
        vocabulary: Size and special ids.
    """

    encode: Callable
    pool: Callable[..., Float[Array, "B ... D"]]
    predict_tokens: Callable[..., Float[Array, "... V"]]
    head: nn.Module | None
    vocabulary: Vocabulary


@dataclasses.dataclass(frozen=True)
class Objective:
    """Base of all objectives.

    Attributes:
        reads: The side of the encoder's states that the loss uses: forward, backward, both, or any
            (the widest that the body has).
        needs: Fields of the batch that only some formats have, such as `pair_label`.
        shares: Which view it reads. None: its own, which is the batch unless it overrides `view`.
            "any": that of the run's first objective with its own view. A name: that
            objective's. If there is none, the batch.
    """

    reads: ClassVar[str] = "both"
    needs: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[str | None] = None

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """What the model is shown: the batch with other `tokens` and the fields that the loss
        needs, with leading axis B. Called on the whole batch, so micro-batches share it.

        Args:
            key: A function of seed and step alone.
            progress: float32 scalar, the share of training steps done; 1 in evaluation.
        """
        return batch

    def head(self, body: nn.Module) -> nn.Module | None:
        """A Linen module with the objective's own parameters; `body.shape` is the body's shape."""
        return None

    def loss(self, model: Model, view: View) -> Metrics:
        """{name: (weighted sum, weight)}; "loss", in nats, is trained."""
        raise NotImplementedError

    def token_logits(
        self, model: Model, hidden: Float[Array, "... D"], side: str
    ) -> Float[Array, "... V"]:
        """The logits with which it predicts tokens from gathered states, for scoring. Override it
        if the loss trains a layer other than the model's output layer."""
        return model.predict_tokens(hidden, side)


def restrict(objective: Objective, **choices: str) -> None:
    """Refuses a setting's value that is not one of its names, which are separated by spaces."""
    for setting, names in choices.items():
        if (value := getattr(objective, setting)) not in names.split():
            raise UserError(f"{setting}={value!r} must be one of {', '.join(names.split())}")


def cross_entropy(
    logits: Float[Array, "... V"], labels: Int[Array, "..."], weights: Float[Array, "..."]
) -> Metrics:
    """Weighted sums of −log p(label) in nats, and of right guesses (ties for the highest share),
    from float32 logits; labels are in range even where the weight is zero."""
    weights = weights.astype(jnp.float32)
    # argmax and logsumexp would cost two more passes over [..., V]; one maximum serves both.
    top = jax.lax.stop_gradient(logits.max(axis=-1))
    log_normaliser = top + jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1))
    if platform() == "cpu":
        label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    else:  # the gradient of a gather would be another pass over [..., V]
        is_label = labels[..., None] == jnp.arange(logits.shape[-1])
        label_logit = jnp.where(is_label, logits, 0).sum(axis=-1)
    right = (label_logit == top) / (logits == top[..., None]).sum(axis=-1)
    total = weights.sum()
    loss = ((log_normaliser - label_logit) * weights).sum()
    return {"loss": (loss, total), "accuracy": ((right * weights).sum(), total)}
