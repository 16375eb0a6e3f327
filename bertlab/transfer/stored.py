"""Feature-based transfer from stored hidden states: the body runs once over a task's texts, then you train heads on the states.

The states of all layers are stored next to the prepared corpora (`bertlab.transfer.features`). Seeds, learning rates and mixes
of layers share them. Two things differ from training on a frozen body (`optimizer.frozen`): special tokens are left out, and
states are rounded to float16.

Letters: B rows, L positions (a piece of a text, or a word of a tagging task), n layers, D width.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
from flax import linen as nn

from bertlab.data.rows import Row, make_row
from bertlab.data.text_rows import RowEncoder
from bertlab.errors import UserError
from bertlab.files import cache_directory
from bertlab.locks import alone
from bertlab.models.base import Carry, Encoded, Shape, View
from bertlab.models.presets import model_direction
from bertlab.train.processes import is_first, part
from bertlab.transfer.cut import Lost, counted
from bertlab.transfer.examples import Example
from bertlab.transfer.features import Features, extract, model_digest, texts_digest
from bertlab.transfer.inputs import Layout
from bertlab.transfer.load import Pretrained
from bertlab.transfer.offsets import piece_offsets
from bertlab.transfer.parts import folder_of_all
from bertlab.transfer.task_models import split_layers
from bertlab.transfer.tasks import Task


@dataclasses.dataclass(frozen=True)
class StoredShape(Shape):
    """Shape of a body that reads its layers instead of computing them.

    Attributes:
        widths: the layers' widths, embeddings first.
        direction: the direction of the model that computed them.
    """

    widths: tuple[int, ...]
    direction: str

    def flops_per_token(self, seq_len: int, sides: Iterable[str] = ("both",)) -> float:
        """0: nothing is computed."""
        return 0.0


class StoredBody(nn.Module):
    """A body without parameters. Its layers are the view's `features` [B, L, n, D]."""

    config: StoredShape

    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        """The stored layers; their side is always called `both`."""
        return Encoded(both=split_layers(view["features"], self.config.widths)), {}

    def predict_tokens(self, hidden, side: str, among=None):
        """Always fails: the output layer is not stored."""
        raise UserError("config.transfer.features=True stores hidden states without an output layer; set it to False")

    def pool(self, encoded: Encoded, view: View, documents: int | None = None):
        """Always fails: the pooler is not stored."""
        raise UserError(
            "pooling='pooler' needs the body, but config.transfer.features=True stores only its states; choose another"
        )


def store(
    model: Pretrained, task: Task, examples: Sequence[Example], layout: Layout, cache: str
) -> tuple[Features, dict[str, int]]:
    """The hidden states of a task's examples, extracted if they are not stored yet, and how much was cut.

    All processes of a run call it. They share the work if they share the cache.

    Raises:
        UserError: the task's examples are neither single texts nor words.
    """
    if not task.kind.is_plain or any(len(example.texts) > 1 for example in examples):
        raise UserError(
            f"config.transfer.features=True stores states of single texts or words, but task '{task.name}' has pairs,"
            " choices or contexts; set config.optimizer.frozen='^body/' instead"
        )
    made = [shown(model, example, layout) for example in examples]
    texts = [text for text, _ in made]
    key = json.dumps([model_digest(model), texts_digest(texts), task.kind.name])
    name = hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
    directory = cache_directory(cache) / "features" / f"{task.name}-{name}"
    together = False
    if part()[1] > 1:
        with folder_of_all(directory.parent, ".shared") as seen:
            together = seen is not None
    with alone(directory, wait=True) if is_first() or not together else contextlib.nullcontext():
        found = extract(model, texts, directory, pretokenized=task.kind.of_words, together=together)
    return found, counted(lost for _, lost in made)


def shown(model: Pretrained, example: Example, layout: Layout) -> tuple[str | list[str], Lost]:
    """An example's text or words, cut to fit the layout and the model, and how much was cut."""
    room = min(layout.seq_len, model.longest)
    if example.words:
        encoder = RowEncoder(model.tokenizer, layout.characters, room=room)
        row = encoder.words(example.words)
        size = len(row.first if layout.first_piece else row.last)
        return list(example.words[:size]), {"words": (len(example.words) - size, len(example.words))}
    (text,) = example.texts
    _, offsets = piece_offsets(text, model.tokenizer)
    room -= len(model.tokenizer.prefix_ids) + len(model.tokenizer.suffix_ids)
    lost = {"pieces": (max(0, len(offsets) - room), len(offsets))}
    return text if len(offsets) <= room else text[: offsets[room][0]], lost


def stored_rows(features: Features, task: Task, examples: Sequence[Example], layout: Layout) -> list[Row]:
    """The examples' rows without their states; `with_features` adds them when a batch is made."""
    rows = []
    for number, example in enumerate(examples):
        size = min(features.lengths[number], layout.seq_len)
        nothing = np.zeros(size, np.int32)
        row = make_row(layout.seq_len, 0, nothing, nothing, nothing + 1, -1, (number, 0))
        rows.append(row | task.kind.stored_fields(example, size, layout))
    return rows


def with_features(row: Row, features: Features) -> Row:
    """A row with the stored states of its example (`example_id`), zeros at padding."""
    states = features[int(row["example_id"][0])]
    size = min(len(states), len(row["tokens"]))
    padded = np.zeros((len(row["tokens"]), *states.shape[1:]), np.float32)
    padded[:size] = states[:size]
    return {**row, "features": padded}


def stored_body(model: Pretrained, features: Features) -> StoredBody:
    """The body that goes with stored states."""
    return StoredBody(StoredShape(tuple(features.widths), model_direction(model.config.model)))
