"""Span pairs: labels of one or two spans of a sentence (edge probing, Tenney et al. 2019)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.base import View
from bertlab.models.layers import Dense, Norm
from bertlab.objectives.base import Metrics, Model
from bertlab.transfer.batches import NO_LABEL, Row
from bertlab.transfer.examples import Example, total_cut
from bertlab.transfer.heads import TaskHead, TaskModel, derived
from bertlab.transfer.inputs import Inputs, Words
from bertlab.transfer.kinds.base import Kind, Line, TaskRows

MOST_TARGETS = 32
"""Targets per row; a sentence with more has several rows."""


def attention_pooled(
    x: Float[Array, "B L P"], scores: Float[Array, "B L"], spans: Int[Array, "B T 2"]
) -> Float[Array, "B T P"]:
    """Σ_i a_i x_i over each span's positions, a being a softmax of scores (Lee et al. 2017).

    Args:
        x: States.
        scores: A score for each position.
        spans: First and last position; one that is not there, -1, gives zeros.
    """
    position = jnp.arange(x.shape[1])
    inside = (spans[..., :1] >= 0) & (spans[..., :1] <= position) & (position <= spans[..., 1:])
    lowest = jnp.finfo(scores.dtype).min
    shares = jax.nn.softmax(jnp.where(inside, scores[:, None], lowest), axis=-1)
    return jnp.einsum("btl,blp->btp", jnp.where(inside, shares, 0), x)


class SpanPairModel(TaskModel):
    """A projection and an attention for each span of a target; tanh, layer norm, classifier.

    Source: Tenney et al. 2019; jiant's modules/edge_probing.py and the "mlp" of simple_modules.py.
    """

    def setup(self):
        super().setup()
        init, width = nn.initializers.lecun_normal(), self.head.projection
        axes = ("embed", None)
        self.projections = [Dense(width, axes, init) for _ in range(2)]
        # The softmax does not depend on a bias.
        self.attentions = [Dense(1, axes, init, use_bias=False) for _ in range(2)]
        self.between = Dense(width, axes, init)
        self.norm = Norm(1e-5)

    def logits(
        self, x: Float[Array, "B L D"], spans: Int[Array, "B T n 2"]
    ) -> Float[Array, "B T C"]:
        """For each target and class, in float32."""
        vectors = []
        for number in range(spans.shape[2]):
            projected = self.projections[number](x)
            scores = self.attentions[number](projected)[..., 0]
            vectors.append(attention_pooled(projected, scores, spans[:, :, number]))
        hidden = self.norm(jnp.tanh(self.between(jnp.concatenate(vectors, -1))))
        return self.scores(hidden)


@dataclasses.dataclass(frozen=True)
class SpanPairHead(TaskHead):
    """Binary cross-entropy of each class of a target, the mean over classes.

    A row has `target_spans` [B, T, n, 2], the first and last position of each target's n spans;
    `target_labels` [B, T, K], its classes; and `target_weights` [B, T], 1 if it has a label,
    possibly of no class. -1: not there. A target with a span that was cut off has no spans.

    Attributes:
        projection: Width to which states are projected before they are pooled (jiant's defaults).
    """

    projection: int = 256
    classes: int = derived(2)

    def head(self, body: nn.Module) -> nn.Module:
        return SpanPairModel(self)

    def logits(self, model: Model, view: View) -> Float[Array, "B T C"]:
        """Of each target and class."""
        _, layers = model.encode().widest()
        x = model.head.states(layers, view["documents"])
        return model.head.logits(x, view["target_spans"])

    def loss(self, model: Model, view: View) -> Metrics:
        """The loss per target; accuracy: all of its classes are right."""
        logits = self.logits(model, view)
        gold = (view["target_labels"][..., None] == jnp.arange(self.classes)).any(axis=2)
        weights = (view["target_weights"] > 0) & self.is_own(view)[:, None]
        nats = (jnp.logaddexp(0, logits) - jnp.where(gold, logits, 0)).mean(axis=-1)
        right = ((logits > 0) == gold).all(axis=-1) & weights
        count = weights.sum().astype(jnp.float32)
        metrics = {
            "loss": (jnp.where(weights, nats, 0).sum(), count),
            "accuracy": (right.sum().astype(jnp.float32), count),
        }
        return model.head.penalised(metrics)

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        """`target_logits` [B, T, C]; the lowest float for a target whose spans are not there."""
        there = view["target_spans"][:, :, 0, :1] >= 0
        logits = self.logits(model, view)
        return {"target_logits": jnp.where(there, logits, jnp.finfo(jnp.float32).min)}


class SpanPair(Kind):
    """Any number of classes for each target of a sentence, which is a span of words or two."""

    name = "bertlab.contrib.edges.span_pair:SPAN_PAIR"
    head = SpanPairHead
    # As in the paper's probes: frozen states, mixed with weights that the task learns.
    recipes: ClassVar = {"probe": {"head.layers": "scalar_mix"}}

    def rows(self, inputs: Inputs, examples: Sequence[Example], symmetric=False) -> TaskRows:
        """Rows of at most `MOST_TARGETS` targets each."""
        spans = max((len(target) for example in examples for target in example.spans), default=1)
        rows, cuts = [], []
        for example in examples:
            words, there = inputs.words(example.words), 0
            for first in range(0, len(example.spans), MOST_TARGETS):
                chosen = slice(first, first + MOST_TARGETS)
                fields = _target_fields(example, chosen, words, spans)
                there += int((fields["target_spans"][:, 0, 0] >= 0).sum())
                rows.append(inputs.row([words.document]) | fields)
            size, targets = len(example.words), len(example.spans)
            lost_words = size - len(words.first)
            cuts.append({"words": (lost_words, size), "targets": (targets - there, targets)})
        return TaskRows(rows, total_cut(cuts))

    def predict(self, examples, labels, outputs, about) -> list[Line]:
        """For each target the classes with a probability above one half, by name, in order."""
        lines, remaining = [], iter(outputs)
        for example in examples:
            logits = []
            while len(logits) < len(example.spans):
                logits += list(next(remaining)["target_logits"][:MOST_TARGETS])
            predicted = [
                [labels[c] for c in np.flatnonzero(target > 0)]
                for target in logits[: len(example.spans)]
            ]
            gold = None
            if example.label is not None:
                gold = [[labels[c] for c in sorted(target)] for target in example.label]
            lines.append({"id": example.id, "gold": gold, "predicted": predicted})
        return lines


def _target_fields(example: Example, chosen: slice, words: Words, spans: int) -> Row:
    """The fields of some of an example's targets."""
    targets = example.spans[chosen]
    labels = [()] * len(targets) if example.label is None else example.label[chosen]
    most = max([1, *map(len, labels)])
    positions = np.full((len(targets), spans, 2), NO_LABEL, np.int32)
    classes = np.full((len(targets), most), NO_LABEL, np.int32)
    for number, (target, target_labels) in enumerate(zip(targets, labels, strict=True)):
        found = np.array([_positions(words, span) for span in target], np.int32)
        if (found >= 0).all():
            positions[number, : len(found)] = found
        classes[number, : len(target_labels)] = target_labels
    has_label = (positions[:, 0, 0] >= 0) & (example.label is not None)
    return {
        "target_spans": positions,
        "target_labels": classes,
        "target_weights": has_label.astype(np.int32),
    }


def _positions(words: Words, span: tuple[int, int]) -> tuple[int, int]:
    """First and last position of a span of words, up to the row's last piece; -1: none of it."""
    begin, stop = span
    if begin >= len(words.first):
        return NO_LABEL, NO_LABEL
    last = words.last[stop - 1] if stop <= len(words.last) else words.document.ends[0]
    first = words.first[begin]
    return (first, last) if first <= last else (NO_LABEL, NO_LABEL)


SPAN_PAIR = SpanPair()
