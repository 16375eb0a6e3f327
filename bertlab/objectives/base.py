"""The contract of an objective: what the model sees, what it must predict, and how to judge it.

An objective is a frozen dataclass. Its fields are its settings, with their defaults: `config.objectives.NAME.FIELD`. It
declares which side of the hidden states it reads, so it never sees what it must predict. It returns every loss and metric as
(weighted sum, weight). These are divided once, after all micro-batches, devices and hosts have been added. No code outside
this package asks for an objective's name or type.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.keys import settings_of
from bertlab.models.base import Encoded, View

Metrics = Mapping[str, tuple[Array, Array]]
"""Metric name to (weighted sum, weight), both float32 scalars; "loss", in nats, is trained."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What objectives know about the tokenizer and its corpus.

    Attributes:
        size: V.
        mask_id: None if the tokenizer has no [MASK] (GPT's).
        counts: how often each id occurs in the training text; None if not known.
        continues: by id, whether a piece continues the word of the piece before it (WordPiece's ##ing); None if not known.
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

    def require_mask(self, purpose: str) -> None:
        """Refuses, with a UserError, a tokenizer without [MASK]; `purpose` says what the objective needs it for."""
        if self.mask_id is None:
            raise UserError(
                f"{purpose}, and this tokenizer has no piece for that; name one with [MASK] in config.data.tokenizer.path, or"
                " train one with config.data.tokenizer.kind"
            )


@dataclasses.dataclass(frozen=True)
class Bound:
    """The model as an objective's loss sees it: the hidden states of its view, and functions of them.

    Attributes:
        shown: () -> the hidden states of the objective's view, from one pass for all objectives that share it. `encoded` is
            its value.
        encode: (view) -> the hidden states of another view, from one more pass of the body.
        encode_chunks: (view, length, varied=False) -> the hidden states of a recurrent body. Gradients stop at the beginning of
            each chunk of `length` positions (truncated backpropagation within a row). In training, with `varied`, the lengths
            are drawn anew at each step (`papers.VARIED_LENGTHS`).
        predict_tokens: (hidden [..., D], side, among=None) -> logits [..., V] of the family's output layer, or only those of
            the candidates `among` ([n] or [..., k]).
        token_loss: (hidden [B, ..., D], side, labels, weights, never=None) -> `cross_entropy` of the logits, without holding
            them all; the id `never` has probability 0.
        pool: (documents=None) -> [B, D], one vector per row, or [B, n, D], one for each of its documents 1 to n.
        head: the objective's own Linen head, or None.
        view: what the body is shown.
        body_config: the body's shape.
        vocabulary: size and special ids.
        deterministic: no dropout (evaluation).
        key: for random draws in training (negative samples); None in evaluation.
    """

    shown: Callable[[], Encoded]
    encode: Callable[[View], Encoded]
    encode_chunks: Callable[..., Encoded]
    predict_tokens: Callable[..., Float[Array, "... V"]]
    token_loss: Callable[..., Metrics]
    pool: Callable[..., Float[Array, "B ... D"]]
    head: nn.Module | None
    view: View
    body_config: Any
    vocabulary: Vocabulary
    deterministic: bool
    key: Array | None

    @property
    def encoded(self) -> Encoded:
        """The hidden states of the objective's view."""
        return self.shown()


WAYS = {"forward": "forward", "backward": "backward"} | dict.fromkeys(
    ("in order", "at the mask", "before the mask", "in any order"), "both"
)
"""How a trained model can predict a token of a text: from the states of one side; from states of both sides, with the tokens
shown in order; from the state of the [MASK] in its place; from the state one position before that [MASK]; or by the
objective's own `hidden_logits`. The values are the sides that the ways read."""

HIDDEN = jnp.iinfo(jnp.int32).max
"""The rank of a token that an order has not shown yet."""


class WordDraws(NamedTuple):
    """How words are drawn beside the right one, and how often a word is read at all.

    Attributes:
        number: k, the drawn words for each right one.
        weights: [V] float64; a word is drawn in proportion to its own, which is 0 for special tokens.
        keep: [V] float32 probability that a word of the text is read.
    """

    number: int
    weights: Float[np.ndarray, "V"]
    keep: Float[np.ndarray, "V"]


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How texts can be scored by a model that was trained with an objective.

    Attributes:
        ways: some of WAYS; () if the model predicts no tokens of a text.
        lacks: why the settings rule out a way ("this model cannot be scored: ..."); "" if every way is possible.
        shown_in_order: for the way "in any order": `hidden_logits` depend on the order of the shown tokens too; False: only on
            which ones are shown. Then sets of them are enough, and fewer cases give an exact score.
        never_mask: [MASK] has probability 0, whatever its logit is.
        differs: why the body and its output layer alone, which exports have, predict otherwise; "" if they do not.
    """

    ways: tuple[str, ...] = ()
    lacks: str = ""
    shown_in_order: bool = True
    never_mask: bool = False
    differs: str = ""

    def __post_init__(self):
        if not isinstance(self.ways, tuple) or not set(self.ways) <= set(WAYS):
            raise ValueError(f"ways={self.ways!r} must be a tuple of some of {', '.join(map(repr, WAYS))}")
        if not isinstance(self.lacks, str):
            raise ValueError(f"lacks={self.lacks!r} must be a text that says why a way is ruled out, or ''")


_ROUNDING = 1e-5  # of probabilities in float32


@dataclasses.dataclass(frozen=True, eq=False)
class Corruption:
    """How an objective's view changes the words that it chooses.

    Attributes:
        draws: [V] probability that a chosen word becomes each id.
        keep_share: probability that it stays as it is; with `draws` it sums to 1.
        count: [R] number of words chosen in each row; None: each word is chosen independently with probability `rate`.
        rate: only used if `count` is None; one for all rows, or [R].
    """

    draws: np.ndarray
    keep_share: float = 0.0
    count: np.ndarray | None = None
    rate: float | np.ndarray = 0.0

    def __post_init__(self):
        for name in ("draws", "keep_share", "rate"):
            least, most = np.min(getattr(self, name)), np.max(getattr(self, name))
            if not -_ROUNDING <= least <= most <= 1 + _ROUNDING:
                raise ValueError(f"{name} of a Corruption must be between 0 and 1, not from {least:.6g} to {most:.6g}")
        if abs((total := np.sum(self.draws) + self.keep_share) - 1) > _ROUNDING:
            raise ValueError(f"draws and keep_share of a Corruption must sum to 1, not to {total:.6g}")
        if self.count is not None and np.min(self.count) < 0:
            raise ValueError(f"count of a Corruption must be 0 or more, not {np.min(self.count)}")


class NoFloor(Exception):
    """An objective has no exact floor here; the message says why."""


class Oracle(Protocol):
    """The best possible model of a language with known probabilities, as an objective's floor sees it.

    R rows, L length. Every method returns −log p(right answer | what a model sees) in nats.

    Attributes:
        shared: the corruption of another objective's view that this one shares; None for the clean batch. May raise NoFloor.
        vocabulary: size and special ids.
    """

    shared: Corruption | None
    vocabulary: Vocabulary

    def chain_rule(self, backward: bool = False) -> Float[np.ndarray, "R L"]:
        """Of every word, given all words before it (backward: after it)."""

    def visible(self, target: Int[np.ndarray, "R P"], seen: Bool[np.ndarray, "R P L"]) -> Float[np.ndarray, "R P"]:
        """Of the words at the target positions, given the clean words at the positions that each of them sees."""

    def corrupted(
        self, shown: Int[np.ndarray, "R L"], corruption: Corruption, ask: str = "word", known: bool = True
    ) -> Float[np.ndarray, "R L"]:
        """Of every word of the corrupted rows, or with ask="original" of whether the word shown is the original.

        `known`: only chosen positions are asked, and the model knows it. Values elsewhere have no meaning.
        """

    def relation(self, other: str, labels: Int[np.ndarray, "R"], shown: Int[np.ndarray, "R L"]) -> Float[np.ndarray, "R"]:
        """Of each pair's label: 0 where B follows A, 1 where B is the `other` ("random", "swapped").

        Raises:
            NoFloor: the format makes no such pairs.
        """


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
    """Base of all objectives: what a model sees, what it must predict, and how to judge it.

    Class attributes:
        reads: the side of `Encoded` that the loss uses: "forward", "backward", "both", or "any" for the widest one.
        sees: "clean" (the batch as it is), "own" (its own `view`), "shared" (its own `view`, also for objectives that see
            "any"), "any" (a shared view if the run has one, otherwise the batch), or the name of the objective whose view it
            shares.
        asks: what each unit of the loss's weight is: "tokens" (a supervised position, with a row of logits), "positions" (a
            supervised position without one), "pairs" (a label of two segments, from the pooled vector), or "other".
        needs: batch fields (`pair_label`: a format with sentence pairs; `order_label`: with negatives="swapped"; `counts`:
            pairs of words).
        shows: settings that the objective whose view it shares must have, by name.
        families: the model families it works with; () for all.
    """

    reads: ClassVar[str] = "both"
    sees: ClassVar[str] = "clean"
    asks: ClassVar[str] = "tokens"
    needs: ClassVar[tuple[str, ...]] = ()
    shows: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    families: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        self.check_settings()

    @property
    def has_view(self) -> bool:
        """Whether `view` changes what the model is shown."""
        return self.sees in ("own", "shared")

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """What the model is shown. Called on the whole batch, so micro-batches see the same corruption.

        Args:
            batch: int32 [B, L] `tokens`, `segments`, `documents` (0: padding), `positions`; int32 [B] `pair_label`,
                `order_label`, `visit`; int32 [B, 2] `example_id` (`bertlab.data.formats`). In packed rows the last four are
                [B, n] and [B, n, 2] (`bertlab.data.packing`).
            key: a random key that depends only on seed and step.
            vocabulary: size and special ids.
            progress: float32, the share of training steps done; 1 in evaluation.

        Returns:
            The batch with `tokens` changed and the fields that the loss needs, each with leading axis B.
        """
        del key, vocabulary, progress
        return batch

    def check_settings(self) -> None:
        """Refuses values beyond the limits that `bertlab.keys.setting` gives the fields, and values that have no effect.

        Raises:
            UserError: from `bertlab.keys.Key.check`.
        """
        records = settings_of(type(self))
        values = {key.name: getattr(self, key.name) for key in records}
        for key in records:
            key.check(values[key.name], values, prefix="")

    def check(self, vocabulary: Vocabulary) -> None:  # noqa: B027 (most objectives work with any)
        """Refuses, with a UserError, a vocabulary that the objective cannot work with. Its `counts` may be None here."""

    def head(self, body: nn.Module) -> nn.Module | None:
        """A Linen module with the objective's own parameters, or None; `body.config` is the body's shape."""
        del body
        return None

    def extra_flops(self, shape, length: int) -> float:
        """Forward and backward FLOPs per row beyond one pass of the body and `flops_per_prediction`.

        Args:
            shape: the body's config.
            length: of a row of the batch.
        """
        del shape, length
        return 0.0

    def extra_flops_outside_windows(self, shape, length: int) -> float:
        """Of `extra_flops`, the scores that windows of local layers hide, if the program spares them; arguments as there."""
        del shape, length
        return 0.0

    def flops_per_prediction(self, shape) -> float:
        """Forward and backward FLOPs per unit of the loss's weight: by default a row of logits if it asks for tokens."""
        return shape.flops_per_prediction() if self.asks == "tokens" else 0.0

    @abc.abstractmethod
    def loss(self, model: Bound, view: View) -> Metrics:
        """Losses and metrics of one view as {name: (weighted sum, weight)}; "loss" must be there."""

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """Outputs to keep for every evaluation row, arrays [B, ...] by name: a task head's logits, nothing in pretraining."""
        del model, view
        return {}

    def token_logits(self, model: Bound, hidden: Float[Array, "... D"], side: str) -> Float[Array, "... V"]:
        """The logits with which it predicts tokens; the default is the model's output layer.

        Override it if the loss trains another layer (`head`). `scoring` asks it.

        Args:
            model: without dropout; `model.encoded` are the states of the text that is scored, and `model.view` what is shown.
            hidden: states that predict a token each, [B, L, D] or [B, D].
            side: the side of `Encoded` that they are from.
        """
        return model.predict_tokens(hidden, side)

    def hidden_logits(self, model: Bound, view: View, ranks: Int[Array, "B L"]) -> Float[Array, "B L V"]:
        """The logits of each hidden token, given only the shown ones: for code lengths in any order, and for sampling.

        The default puts [MASK] in place of the hidden tokens and asks `token_logits`, at the mask or before it as `scoring`
        says. Override it, and let `scoring` name the way "in any order", if a model is asked in another manner.

        Args:
            model: without dropout.
            view: clean rows, one document each.
            ranks: when each position is shown, from 0, or HIDDEN. Positions of one rank are shown together.

        Returns:
            Logits at every position; those of shown tokens have no meaning.
        """
        shown = {**view, "tokens": jnp.where(ranks == HIDDEN, model.vocabulary.mask_id, view["tokens"])}
        encoded = model.encode(shown)
        model = dataclasses.replace(model, shown=lambda: encoded, view=shown)
        logits = self.token_logits(model, encoded.output("both"), "both")
        return logits if "at the mask" in self.scoring().ways else jnp.roll(logits, 1, axis=1)

    def scoring(self) -> Scoring:
        """How a trained model can score a text; the default is the chain rule if the loss predicts tokens from one side."""
        one_sided = self.asks == "tokens" and not self.has_view and self.reads in ("forward", "backward")
        return Scoring((self.reads,) if one_sided else ())

    def word_vectors(self, inputs: Float[np.ndarray, "V D"], outputs: Float[np.ndarray, "V D"]) -> Float[np.ndarray, "V D"]:
        """The word vectors of a static model that it trained, from the rows of its input and of its output layer."""
        del outputs
        return inputs

    def on_both_sides(self) -> str:
        """For messages: what trains the same on a body that sees both sides; "" if nothing does."""
        return ""

    def word_draws(self, vocabulary: Vocabulary) -> WordDraws | None:
        """For a loss that tells a word from a few drawn ones by their products with a vector; None for every other."""
        del vocabulary
        return None

    def corruption(self, view: View, vocabulary: Vocabulary) -> Corruption:
        """How the view changes the words that it chooses, for floors; `view` has NumPy arrays.

        If a class has this, its setting `rate` is the share of words that are chosen, and a recipe's `mask_rate` sets it.

        Raises:
            NoFloor: the corruption has no such form.
        """
        raise NoFloor(f"the corruption of {type(self).__name__} is not known")

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """The loss of the best possible model at every position.

        Args:
            oracle: the best possible model on these rows.
            view: what the model is shown, NumPy arrays.
            batch: the clean rows.

        Returns:
            [R, P] nats, and [R, P] how much each position weighs in the loss; 0 or False where nothing is supervised.

        Raises:
            NoFloor: the floor is not known.
        """
        raise NoFloor("not known for this objective")

    def guessing(self, counts: np.ndarray | None, batches: Sequence[View]) -> float | None:
        """The loss in nats of a model that only knows how often each answer occurs; None if that is not known.

        Args:
            counts: [V] how often each id occurs in the training text, or None.
            batches: held-out batches, NumPy arrays.
        """
        if self.asks == "pairs":
            labels = [batch[field].ravel() for batch in batches for field in self.needs if field in batch]
            counts = np.array([sum((of_batch == label).sum() for of_batch in labels) for label in (0, 1)])
            return entropy(counts) if counts.any() else None
        return entropy(counts) if self.asks == "tokens" and counts is not None else None

    def guessing_in_place(self, nats: float, shown: "Objective | None" = None) -> tuple[float, float]:
        """Limits of what guessing costs a model that also sees what its view shows at the place that it predicts.

        A view that leaves some of the predicted tokens as they are tells a part of the answers without any context.
        `bertlab.objectives.guessing_in_place` asks the package's own classes.

        Args:
            nats: what guessing costs without that, as `guessing` says.
            shown: the objective whose view it shares, None if it has its own or the clean one.

        Returns:
            (least, most) nats.
        """
        return nats, nats

    @functools.cached_property
    def has_order(self) -> bool:
        """Whether its own view has the field `order`, which hides part of a document (`bertlab.models.base.View`)."""
        return self.has_view and "order" in self._view_of(8)

    def positions(self, length: int) -> int:
        """How many positions the model reads of a row of so many: some views are longer."""
        return self._view_of(length)["tokens"].shape[1] if self.has_view else length

    def _view_of(self, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of its own view of two rows."""
        shapes = dict.fromkeys(("tokens", "segments", "documents", "positions"), (2, length)) | {"example_id": (2, 2)}
        shapes |= dict.fromkeys(("pair_label", "order_label", "visit"), (2,))
        batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
        vocabulary = Vocabulary(8, 0, 1, 2, 3, 4, counts=(1,) * 8)
        return jax.eval_shape(lambda batch, key: self.view(batch, key, vocabulary, jnp.float32(0)), batch, jax.random.key(0))


def entropy(counts: np.ndarray) -> float:
    """−Σ p log p in nats, with p in proportion to `counts` [n]."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def without(logits: Float[Array, "... V"], never: int) -> Float[Array, "... V"]:
    """The logits (or an output layer's biases) with probability 0 for one id; no gradient flows to it."""
    return logits.at[..., never].set(-1e9)  # finite, so that nothing of weight 0 becomes nan


def cross_entropy(logits: Float[Array, "... V"], labels: Int[Array, "..."], weights: Float[Array, "..."]) -> Metrics:
    """Weighted sums of −log p(label) in nats and of right guesses (a tie for the highest logit is shared).

    Args:
        logits: float32, any scale.
        labels: the right class; anything in range if the weight is zero.
        weights: non-negative weight of each position.
    """
    weights = weights.astype(jnp.float32)
    # argmax and logsumexp would cost two more passes over [..., V]; here one maximum serves both.
    top = jax.lax.stop_gradient(logits.max(axis=-1))
    log_normaliser = top + jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1))
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    right = (label_logit == top) / (logits == top[..., None]).sum(axis=-1)
    total = weights.sum()
    return {"loss": (((log_normaliser - label_logit) * weights).sum(), total), "accuracy": ((right * weights).sum(), total)}
