"""Word senses by the nearest neighbour in a layer's states: nothing is trained (Peters et al. 2018, section 5.3)."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.data.rows import Row
from bertlab.data.text_rows import TextRow
from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics
from bertlab.transfer.cut import Lost
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import NO_LABEL, TaskHead, penalised
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line


@dataclasses.dataclass(frozen=True)
class SenseHead(TaskHead):
    """The state of each row's word, at `word_at` [B], in the layer or the mix of layers that `layers` names.

    It has no parameters of its own, and its loss is always 0.
    """

    def __post_init__(self):
        """Refuses a biLSTM: with random values it would say nothing of the layers below."""
        super().__post_init__()
        if self.bilstm:
            raise UserError(f"bilstm={self.bilstm} would stay at random values, because sense tasks train nothing; set it to 0")

    def states(self, model: Bound, view: View) -> tuple[Float[Array, "B D"], Float[Array, ""]]:
        """The state of each row's word, and the penalty on the mix."""
        at = jnp.maximum(view["word_at"], 0)[:, None, None]
        layers = tuple(jnp.take_along_axis(layer, at, axis=1) for layer in self.layers_of(model, view))
        x, penalty = model.head.states(layers, jnp.ones(at.shape[:2], jnp.int32), model.deterministic, view)
        return x[:, 0], penalty

    def loss(self, model: Bound, view: View) -> Metrics:
        """0 for each row with a known sense."""
        _, penalty = self.states(model, view)
        known = ((view["label"] >= 0) & self.asked(view)).sum().astype(jnp.float32)
        return penalised({"loss": (jnp.zeros((), jnp.float32), known)}, penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`state` [B, D]."""
        return {"state": self.states(model, view)[0].astype(jnp.float32)}


class Sense(Kind):
    """A sense for one word of a sentence.

    The labelled words of training are the split `valid` too, so the loop computes their states. A test word gets the sense of
    its lemma and part of speech whose mean state in training is nearest by cosine, and without one its first sense
    (`bertlab.transfer.probes.sense_neighbours`). `valid` has no score.
    """

    name = "sense"
    head = SenseHead
    metrics = ("sense_f1",)
    default_metrics = ("sense_f1",)
    unknown: ClassVar = {"label": NO_LABEL}
    is_trained = False

    def recipe(self, name: str) -> dict[str, Any]:
        """No recipe's biLSTM."""
        return super().recipe(name) | {"head.bilstm": 0, "head.place": "input"}

    def label_fields(self, example: Example) -> Row:
        """`label`: 0 if a sense is known. The senses themselves are compared outside the model."""
        return {"label": np.int32(NO_LABEL if example.label is None else 0)}

    def row(self, inputs: Inputs, number: int, example: Example, texts: int) -> tuple[Row, Lost]:
        """The sentence as words, from its beginning or else from where its word still fits, with `word_at`.

        Raises:
            UserError: the word alone does not fit.
        """
        text, at = _around(inputs, example)
        row = text.padded(inputs.layout.seq_len, inputs.tokenizer.pad_id, (number, 0))
        lost = {"words": (len(example.words) - len(text.first) - text.before, len(example.words))}
        return row | {"word_at": np.int32(at)} | self.label_fields(example), lost

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """The state of each word, for `finish`."""
        return [
            {
                "id": example.id,
                "gold": None if example.label is None else list(example.label),
                "predicted": None,
                "word": example.group,
                "first": next(iter(example.choices), None),
                "state": state,
            }
            for example, state in zip(examples, outputs["state"], strict=True)
        ]

    def finish(self, lines, valid, settings) -> tuple[list[Line], dict[str, float]]:
        """The nearest sense of each word, without its state; of `valid` itself no sense."""
        from bertlab.transfer.probes import sense_neighbours  # it imports scikit-learn, which takes a second

        shown = [{key: line[key] for key in line if key != "state"} for line in lines]
        if not valid or lines is valid:
            return [line | {"gold": None} for line in shown], {}
        known = [(line["state"], line["word"], sense) for line in valid for sense in line["gold"] or ()]
        first = {line["word"]: line["first"] for line in lines if line["first"]}
        states = np.stack([line["state"] for line in lines])
        found = sense_neighbours(*map(_listed, zip(*known)), states, [line["word"] for line in lines], first)
        return [line | {"predicted": sense} for line, sense in zip(shown, found, strict=True)], {}

    def most_frequent(self, train, labels, lines) -> list[Line]:
        """The first sense of each word, or without one its most frequent in `train`."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for example in train:
            counts[example.group].update(example.label)
        common = {word: of.most_common(1)[0][0] for word, of in counts.items()}
        return [line | {"predicted": line["first"] or common.get(line["word"])} for line in lines]


def _listed(column: tuple) -> np.ndarray | list[str]:
    return list(column) if isinstance(column[0], str) else np.stack(column)


def _around(inputs: Inputs, example: Example) -> tuple[TextRow, int]:
    """The part of the sentence that is shown, and the position of the piece at which its word is read."""
    begin, end = example.targets[0]
    word, start = begin if inputs.layout.first_piece else end - 1, 0
    while True:
        text = inputs.words(example, start)
        places = text.first if inputs.layout.first_piece else text.last
        if word - start < len(places):
            return text, int(places[word - start])
        if start == word:
            room = inputs.layout.seq_len
            raise UserError(
                f"{example.where}: {example.words[word]!r} does not fit into {room} pieces; raise config.data.seq_len"
            )
        start += max(1, (word - start) // 2)
