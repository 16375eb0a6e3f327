"""Word senses by the nearest neighbour among a layer's states (Peters et al. 2018, section 5.3)."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model
from bertlab.transfer.batches import NO_LABEL, Row
from bertlab.transfer.examples import Cut, Example
from bertlab.transfer.heads import TaskHead
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line
from bertlab.transfer.recipes import RECIPES


@dataclasses.dataclass(frozen=True)
class SenseHead(TaskHead):
    """The state of each row's word, at `sense_at` [B], in the mix of layers; nothing is trained."""

    def __post_init__(self):
        super().__post_init__()
        if self.bilstm:
            raise UserError(f"bilstm={self.bilstm} would stay random in a sense task; set it to 0")

    def states(self, model: Model, view: View) -> Float[Array, "B D"]:
        """The state of each row's word."""
        at = view["sense_at"][:, None, None]
        _, layers = model.encode().widest()
        layers = tuple(jnp.take_along_axis(layer, at, axis=1) for layer in layers)
        return model.head.states(layers, jnp.ones(at.shape[:2], jnp.int32))[:, 0]

    def loss(self, model: Model, view: View) -> Metrics:
        """0 for each row with a sense."""
        self.states(model, view)  # makes the mix's weights
        count = ((view["label"] >= 0) & self.is_own(view)).sum().astype(jnp.float32)
        return model.head.penalised({"loss": (jnp.zeros((), jnp.float32), count)})

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        """`state` [B, D]."""
        return {"state": self.states(model, view).astype(jnp.float32)}


class Sense(Kind):
    """A sense for one word of a sentence.

    The labelled words of training are the split "valid" too, so the loop computes their states;
    "valid" has no score.
    """

    name = "bertlab.contrib.senses.kind:SENSE"
    head = SenseHead
    is_trained = False
    # Not a recipe's biLSTM.
    recipes: ClassVar = {name: {"head.bilstm": 0, "head.place": "input"} for name in RECIPES}

    def label_fields(self, example: Example) -> Row:
        """`label`: 0 if there is a sense; senses are compared outside the model."""
        return {"label": np.int32(NO_LABEL if example.label is None else 0)}

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """The sentence, or as much of it around the word as fits, with `sense_at`."""
        sentence, (begin, end) = example.words, example.targets[0]
        words = inputs.words(sentence[begin:end], sentence[:begin], sentence[end:])
        at = 0 if inputs.first_piece else end - begin - 1
        if at >= len(words.read_at):
            raise UserError(
                f"{example.where}: {sentence[begin + at]!r} alone does not fit into"
                f" config.data.seq_len={inputs.seq_len}; raise it"
            )
        row = inputs.row([words.document]) | {"sense_at": np.int32(words.read_at[at])}
        cut = len(sentence) - words.whole, len(sentence)
        return row | self.label_fields(example), {"words": cut}

    def line(self, example, labels, output) -> Line:
        """The state of the word, for `finish`."""
        return {
            "gold": None if example.label is None else list(example.label),
            "predicted": None,
            "word": example.group,
            "first": next(iter(example.choices), None),
            "state": output["state"],
        }

    def finish(self, lines, valid) -> tuple[list[Line], dict[str, float]]:
        """The nearest sense of each word, without its state; for "valid" itself no sense."""
        without_state = [{k: v for k, v in line.items() if k != "state"} for line in lines]
        if not valid or lines is valid:
            return [line | {"gold": None} for line in without_state], {}
        senses = nearest_senses(valid, lines)
        return [x | {"predicted": sense} for x, sense in zip(without_state, senses)], {}


def nearest_senses(train: Sequence[Line], lines: Sequence[Line]) -> list[str]:
    """The sense of each line's word whose mean state in `train` is nearest by cosine.

    Words that `train` lacks have their first sense.
    """
    sums: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for line in train:
        for sense in line["gold"] or ():
            senses = sums[line["word"]]
            senses[sense] = senses.get(sense, 0) + np.float64(line["state"])
    found = []
    for line in lines:
        # A sum has the direction of the mean.
        cosine = {
            sense: line["state"] @ total / np.linalg.norm(total)
            for sense, total in sums.get(line["word"], {}).items()
        }
        sense = max(cosine, key=cosine.get) if cosine else line["first"]
        if sense is None:
            raise UserError(
                f"example {line['id']}: the word {line['word']!r} is not in the training data and"
                " has no first sense"
            )
        found.append(sense)
    return found


SENSE = Sense()
