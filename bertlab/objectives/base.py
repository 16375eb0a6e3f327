"""The contract of an objective: what the model is shown, and what it is asked.

An objective is a frozen dataclass; its fields are its settings, which appear with their defaults as
`config.objectives.NAME.FIELD`. It says which side of the hidden states it reads, so that it can never see
what it must predict, and returns every loss and metric as (weighted sum, weight), to be divided once, after
all micro-batches, devices and hosts have been added.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import Encoded, View

Metrics = Mapping[str, tuple[Array, Array]]
"""Metric name to (weighted sum, weight), both float32 scalars; "loss" is the one that is trained, in nats."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What objectives know of the tokenizer and its corpus.

    Attributes:
        size: V.
        mask_id: None where the tokenizer has none (GPT's).
        counts: how often each id stands in the training text, or None where that is not known.
        continues: by id, whether a piece goes on with the word of the piece before it (WordPiece's ##ing); None where that is
            not known.
    """

    size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int | None
    counts: tuple[int, ...] | None = None
    continues: tuple[bool, ...] | None = None

    def is_special(self, tokens: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Where a token is padding, [CLS] or [SEP]: never masked."""
        return (tokens == self.pad_id) | (tokens == self.cls_id) | (tokens == self.sep_id)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The model as an objective's loss sees it: the hidden states of its view, and functions of them.

    Attributes:
        shown: () -> the hidden states of the objective's view, by what they have seen; one pass however often it is asked,
            and by however many objectives. `encoded` is its value.
        encode: (view) -> the hidden states of another view: one more pass of the body.
        encode_chunks: (view, length) -> those of a recurrent body through which gradients flow back to the beginning of their
            chunk of `length` positions only (truncated backpropagation within a row).
        predict_tokens: (hidden [..., D], side, among=None) -> logits [..., V], the family's own output layer; with `among`
            [n] or [..., k] those of candidates alone.
        token_loss: (hidden [B, ..., D], side, labels, weights) -> `cross_entropy` of those logits, which are never held all at
            once.
        pool: (documents=None) -> [B, D], one vector a row, or [B, n, D], one for each of its documents 1 to n.
        head: the objective's own Linen head, or None.
        body_config: the body's shape.
        vocabulary: size and special ids.
        deterministic: no dropout (evaluation).
        key: for an objective that draws at random in training (negative samples); None in evaluation.
    """

    shown: Callable[[], Encoded]
    encode: Callable[[View], Encoded]
    encode_chunks: Callable[[View, int], Encoded]
    predict_tokens: Callable[..., Float[Array, "... V"]]
    token_loss: Callable[[Array, str, Array, Array], Metrics]
    pool: Callable[..., Float[Array, "B ... D"]]
    head: nn.Module | None
    body_config: Any
    vocabulary: Vocabulary
    deterministic: bool
    key: Array | None

    @property
    def encoded(self) -> Encoded:
        """The hidden states of the objective's view."""
        return self.shown()


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
    """Base of all objectives.

    Class attributes:
        reads: the side of `Encoded` that the loss uses: "forward", "backward", "both", or "any" for whichever is widest.
        sees: "clean" (the batch as it is), "own" (its own `view`), "any" (mlm's where there is mlm, else the batch as
            it is), or the name of the objective whose view it shares.
        needs: batch fields without which it cannot be asked (`pair_label`: a format with sentence pairs; `order_label`: one
            with negatives="swapped").
        families: the model families that it makes sense for; () for all.
        predicts_tokens: each unit of its loss's weight is one supervised position and costs one row of logits.
        asks_positions: each unit of its loss's weight is one supervised position, of which something else is asked.
        orders: its own view has an `order`, which hides some of a document (`bertlab.models.base.View`).
    """

    reads: ClassVar[str] = "both"
    sees: ClassVar[str] = "clean"
    needs: ClassVar[tuple[str, ...]] = ()
    families: ClassVar[tuple[str, ...]] = ()
    predicts_tokens: ClassVar[bool] = True
    asks_positions: ClassVar[bool] = False
    orders: ClassVar[bool] = False

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """What the model is shown. Called on the whole batch, so that micro-batches see the same corruption.

        Args:
            batch: int32 [B, L] `tokens`, `segments`, `documents` (0: padding), `positions`; int32 [B] `pair_label`,
                `order_label`, `visit`; int32 [B, 2] `example_id`. See `bertlab.data.formats`. The last four are [B, n] and
                [B, n, 2] where rows are packed: see `bertlab.data.packing`.
            key: a random key that depends on seed and step alone.
            vocabulary: size and special ids.
            progress: float32, the share of the training's steps that are done; 1 in evaluation.

        Returns:
            The batch with `tokens` changed and whatever fields the loss needs, each with leading axis B.
        """
        del key, vocabulary, progress
        return batch

    def check(self, vocabulary: Vocabulary) -> None:  # noqa: B027 (most objectives work with any)
        """Refuses, with a UserError, a vocabulary that the objective cannot work with; its `counts` may be None here."""

    def check_shown(self, shown: "Objective") -> None:  # noqa: B027 (most objectives share any view)
        """Refuses, with a UserError, the objective whose view it shares (`sees`) if that is not set as it needs."""

    def head(self, body: nn.Module) -> nn.Module | None:
        """A Linen module with the objective's own parameters, or None; `body.config` is the body's shape."""
        del body
        return None

    def extra_flops(self, shape, length: int) -> float:
        """Forward and backward FLOPs a row beyond one pass of the body over it and `flops_per_prediction`.

        Args:
            shape: the body's config.
            length: of a row of the batch.
        """
        del shape, length
        return 0.0

    def flops_per_prediction(self, shape) -> float:
        """Forward and backward FLOPs of each unit of its loss's weight: a row of logits where it predicts tokens.

        Args:
            shape: the body's config.
        """
        return shape.flops_per_prediction() if self.predicts_tokens else 0.0

    @abc.abstractmethod
    def loss(self, model: Bound, view: View) -> Metrics:
        """Losses and metrics of one view as {name: (weighted sum, weight)}; "loss" must be there."""

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """What an evaluation keeps of every row, arrays [B, ...] by name: a task head's logits; nothing in pretraining."""
        del model, view
        return {}


def check_share(name: str, value: float) -> None:
    """Refuses a setting that is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise UserError(f"{name}={value} must be between 0 and 1")


def cross_entropy(logits: Float[Array, "... V"], labels: Int[Array, "..."], weights: Float[Array, "..."]) -> Metrics:
    """Weighted sums of −log p(label) in nats and of right guesses (a tie for the highest logit is shared).

    Args:
        logits: float32, any scale.
        labels: the right class; anything in range where the weight is zero.
        weights: non-negative weight of each position.
    """
    weights = weights.astype(jnp.float32)
    # Written out so that the maximum serves both; argmax and logsumexp cost two passes more over [.., V].
    top = jax.lax.stop_gradient(logits.max(axis=-1))
    log_normaliser = top + jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1))
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    right = (label_logit == top) / (logits == top[..., None]).sum(axis=-1)
    total = weights.sum()
    return {"loss": (((log_normaliser - label_logit) * weights).sum(), total), "accuracy": ((right * weights).sum(), total)}
