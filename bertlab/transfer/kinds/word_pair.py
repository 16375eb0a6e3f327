"""Words in context: a class for two sentences that share a word."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.data.rows import Row
from bertlab.data.text_rows import TextRow
from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Bound
from bertlab.transfer.cut import Lost
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import NO_LABEL, pooled
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import OneClass
from bertlab.transfer.kinds.classification import Classification, ClassificationHead
from bertlab.transfer.offsets import piece_offsets


@dataclasses.dataclass(frozen=True)
class WordPairHead(ClassificationHead):
    """Classifies [text vector; state of the first word; state of the second]; `word_at` [B, 2] has the words' positions."""

    def logits(self, model: Bound, view: View) -> tuple[Float[Array, "B C"], Float[Array, ""]]:
        """Of the three vectors side by side."""
        layers = self.layers_of(model, view)
        x, penalty = model.head.states(layers, view["documents"], model.deterministic, view)
        words = jnp.take_along_axis(x, jnp.maximum(view["word_at"], 0)[..., None], axis=1).reshape(len(x), -1)
        if self.pooling == "pooler":
            text = model.pool(1)
        else:
            text = pooled(x, view, self.pooling, 1, self.reads_backward(model))
        x = jnp.concatenate([text[:, 0], words], -1)
        return model.head.scores(x, model.deterministic, self.asked(view)), penalty


class WordPair(OneClass):
    """A class for a word in two sentences."""

    name = "word_pair"
    head = WordPairHead
    metrics = Classification.metrics
    default_metrics = ("accuracy",)
    unknown: ClassVar = {**OneClass.unknown, "word_at": NO_LABEL}
    has_classes = True

    def row(self, inputs: Inputs, number: int, example: Example, texts: int) -> tuple[Row, Lost]:
        """The pair, with `word_at` [2].

        Raises:
            UserError: the model reads characters, or no piece of a sentence holds its word.
        """
        if inputs.layout.characters:
            raise UserError("words in context need subword pieces, but this model reads characters; choose a subword model")
        parts, places = [], []
        for text, (start, end) in zip(example.texts, example.targets):
            ids, offsets = piece_offsets(text, inputs.tokenizer)
            inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
            if not inside:
                raise UserError(f"{example.where}: no piece covers its word {text[start:end]!r}; correct its position")
            places.append(inside[0] if inputs.layout.first_piece else inside[-1])
            parts.append(TextRow(np.asarray(ids, np.int32), (), np.arange(len(ids)), np.arange(len(ids)), None))
        document = inputs.joined(parts)
        # If a word was cut off, the last word that remains takes its place.
        asked = [begin + place for begin, place in zip(document.begins, places)]
        at = np.minimum(asked, document.ends).astype(np.int32)
        lost = {"pieces": document.lost, "targets": (int((at != asked).sum()), len(at))}
        return inputs.packed([document], 1, number) | {"word_at": at} | self.label_fields(example), lost
