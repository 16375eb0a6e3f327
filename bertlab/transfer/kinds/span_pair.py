"""Span pairs: the labels of one or two spans of a sentence (edge probing, Tenney et al. 2019)."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.data.rows import Row
from bertlab.data.text_rows import TextRow
from bertlab.keys import setting
from bertlab.models.base import Dense, Norm, View
from bertlab.objectives.base import Bound, Metrics
from bertlab.transfer.cut import counted
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import NO_LABEL, TaskHead, TaskModel, penalised
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line

MOST_TARGETS = 32
"""Targets of a row; a sentence with more has several rows."""

_fan_in = nn.initializers.lecun_normal()


def attention_pooled(
    x: Float[Array, "B L P"], scores: Float[Array, "B L"], spans: Int[Array, "B T 2"]
) -> Float[Array, "B T P"]:
    """Σ_i a_i x_i over the positions of each span, with a the softmax of their scores (Lee et al. 2017).

    Args:
        x: states.
        scores: one per position.
        spans: the first and last position of each span; an empty one, with −1, gives zeros.
    """
    place = jnp.arange(x.shape[1])
    inside = (spans[..., :1] >= 0) & (spans[..., :1] <= place) & (place <= spans[..., 1:])
    shares = jax.nn.softmax(jnp.where(inside, scores[:, None], jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("btl,blp->btp", jnp.where(inside, shares, 0), x)


class SpanPairModel(TaskModel):
    """Per span of a target a projection and an attention; then tanh, layer norm, dropout and the classifier.

    Source: Tenney et al. 2019; jiant's modules/edge_probing.py and the "mlp" of its simple_modules.py; the width is
    config/defaults.conf's.
    """

    def setup(self):
        super().setup()
        width = self.head.projection
        self.projections = [Dense(width, ("embed", None), _fan_in) for _ in range(2)]
        # The softmax does not depend on a bias.
        self.attentions = [Dense(1, ("embed", None), _fan_in, use_bias=False) for _ in range(2)]
        self.between = Dense(width, ("embed", None), _fan_in)
        self.norm = Norm(1e-5)

    def logits(self, x: Float[Array, "B L D"], spans: Int[Array, "B T n 2"], deterministic: bool) -> Float[Array, "B T C"]:
        """One per target and class, in float32; `spans` as in `SpanPair.encode`."""
        pooled = []
        for number, (project, attend) in enumerate(zip(self.projections[: spans.shape[2]], self.attentions)):
            projected = project(x)
            pooled.append(attention_pooled(projected, attend(projected)[..., 0], spans[:, :, number]))
        hidden = self.norm(jnp.tanh(self.between(jnp.concatenate(pooled, -1))))
        return self.scores(hidden, deterministic)


@dataclasses.dataclass(frozen=True)
class SpanPairHead(TaskHead):
    """Binary cross-entropy of each class of a target, the mean over classes (Tenney et al. 2019).

    A row has `target_spans` [B, T, n, 2], `target_labels` [B, T, K] and `target_known` [B, T] (`SpanPair.encode`).

    Attributes:
        projection: width to which states are projected before they are pooled, and of the layer before the classifier.
        classes: C.
    """

    projection: int = setting(256, least=1)
    classes: int = 2

    def head(self, body: nn.Module) -> nn.Module:
        """The module beside the body."""
        return SpanPairModel(self)

    def _logits(self, model: Bound, view: View) -> tuple[Float[Array, "B T C"], Float[Array, ""]]:
        x, penalty = model.head.states(self.layers_of(model, view), view["documents"], model.deterministic, view)
        return model.head.logits(x, view["target_spans"], model.deterministic), penalty

    def _gold(self, view: View) -> Bool[Array, "B T C"]:
        return (view["target_labels"][..., None] == jnp.arange(self.classes)).any(axis=2)

    def loss(self, model: Bound, view: View) -> Metrics:
        """The loss per target; accuracy: all of a target's classes are right."""
        logits, penalty = self._logits(model, view)
        gold = self._gold(view)
        known = (view["target_known"] > 0) & self.asked(view)[:, None]
        nats = (jnp.logaddexp(0, logits) - jnp.where(gold, logits, 0)).mean(axis=-1)
        right = ((logits > 0) == gold).all(axis=-1) & known
        count = known.sum().astype(jnp.float32)
        total = jnp.where(known, nats, 0).sum()
        return penalised({"loss": (total, count), "accuracy": (right.sum().astype(jnp.float32), count)}, penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`target_logits` [B, T, C]; the lowest float for a target whose spans are not in the row."""
        there = view["target_spans"][:, :, 0, :1] >= 0
        return {"target_logits": jnp.where(there, self._logits(model, view)[0], jnp.finfo(jnp.float32).min)}


class SpanPair(Kind):
    """Any number of classes for each target of a sentence; a target is one span of words, or two."""

    name = "span_pair"
    head = SpanPairHead
    metrics = ("micro_f1", "micro_precision", "micro_recall", "core_role_f1", "relation_f1", "positive_f1")
    default_metrics = ("micro_f1",)
    unknown: ClassVar = {"target_spans": NO_LABEL, "target_labels": NO_LABEL, "target_known": 0}
    has_classes = True
    one_row = False
    # As the paper's probes: frozen states, mixed with weights that the task learns.
    recipes: ClassVar = {"probe": {"head.layers": "scalar_mix"}}

    def encode(self, inputs: Inputs, examples: Sequence[Example]) -> tuple[list[Row], Any, dict[str, int]]:
        """The rows of a split, at most `MOST_TARGETS` targets each, and how much was cut.

        A row has `target_spans` [T, n, 2], the first and last position of each target's n spans; `target_labels` [T, K], its
        classes; and `target_known` [T], 1 if its classes are known, possibly none. What is not there is −1. A target of which
        one span was cut off whole has no spans and is not known.
        """
        sizes = [len(example.spans) for example in examples]
        most = min(MOST_TARGETS, max(sizes, default=1))
        spans = max((len(of) for example in examples for of in example.spans), default=1)
        labels = max((len(of) for example in examples for of in example.label or ()), default=1)
        rows, lost = [], []
        for number, example in enumerate(examples):
            text, there = inputs.words(example), 0
            end = len(text.tokens) - len(inputs.tokenizer.suffix_ids) - 1
            for part, first in enumerate(range(0, len(example.spans), most)):
                row = text.padded(inputs.layout.seq_len, inputs.tokenizer.pad_id, (number, part))
                chosen = slice(first, first + most)
                places = np.full((most, spans, 2), NO_LABEL, np.int32)
                classes = np.full((most, max(labels, 1)), NO_LABEL, np.int32)
                known = np.zeros(most, np.int32)
                for i, of_target in enumerate(example.spans[chosen]):
                    found = np.array([_positions(text, span, end) for span in of_target])
                    if (found >= 0).all():
                        there += 1
                        places[i, : len(found)] = found
                        known[i] = example.label is not None
                for i, of_target in enumerate(() if example.label is None else example.label[chosen]):
                    classes[i, : len(of_target)] = of_target
                rows.append(row | {"target_spans": places, "target_labels": classes, "target_known": known})
            of_words = len(example.words) - len(text.first), len(example.words)
            lost.append({"words": of_words, "targets": (len(example.spans) - there, len(example.spans))})
        return rows, None, counted(lost)

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """For each target of a sentence the classes with a probability above one half, by name, in order."""
        found, lines = outputs["target_logits"], []
        rows = iter(found)
        for example in examples:
            parts = itertools.islice(rows, -(-len(example.spans) // found.shape[1]))
            logits = np.concatenate(list(parts))[: len(example.spans)]
            predicted = [[labels[c] for c in np.flatnonzero(of_target > 0)] for of_target in logits]
            gold = None if example.label is None else [[labels[c] for c in sorted(of)] for of in example.label]
            lines.append({"id": example.id, "gold": gold, "predicted": predicted})
        return lines

    def most_frequent(self, train, labels, lines) -> list[Line]:
        """The most frequent class of `train` for every target."""
        counts = Counter(c for example in train for of_target in example.label for c in of_target)
        answer = [labels[counts.most_common(1)[0][0]]]
        return [line | {"predicted": [answer] * len(line["predicted"])} for line in lines]


def _positions(text: TextRow, span: tuple[int, int], end: int) -> tuple[int, int]:
    """The first and last position of a span of words, up to the row's last piece at `end`; −1 if none of it is in the row."""
    begin, stop = span
    if begin >= len(text.first):
        return NO_LABEL, NO_LABEL
    first, last = text.first[begin], text.last[stop - 1] if stop <= len(text.last) else end
    return (first, last) if first <= last else (NO_LABEL, NO_LABEL)
