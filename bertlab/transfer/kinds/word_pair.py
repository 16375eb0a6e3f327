"""Words in context: a class for two sentences that share a word."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Model
from bertlab.transfer.batches import Row
from bertlab.transfer.cut import Cut
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import pooled
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import OneClass
from bertlab.transfer.kinds.classification import ClassificationHead


@dataclasses.dataclass(frozen=True)
class WordPairHead(ClassificationHead):
    """Classifies [text vector; states of the two words], which are at `pair_at` [B, 2]."""

    def logits(self, model: Model, view: View) -> tuple[Float[Array, "B C"], Float[Array, ""]]:
        side, layers = self.encoded(model, view)
        x, penalty = model.head.states(layers, view["documents"])
        words = jnp.take_along_axis(x, view["pair_at"][..., None], axis=1).reshape(len(x), -1)
        if self.pooling == "pooler":
            text = model.pool(1)
        else:
            text = pooled(x, view, self.pooling, 1, side == "backward")
        x = jnp.concatenate([text[:, 0], words], -1)
        return model.head.scores(x, self.is_own(view)), penalty


class WordPair(OneClass):
    """A class for a word in two sentences."""

    name = "word_pair"
    head = WordPairHead

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """The pair, with `pair_at` [2]; a word that did not fit is read at the last piece."""
        pair, asked = [], []
        for text, (start, end) in zip(example.texts, example.targets):
            pieces, offsets = inputs.located(text)
            inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
            if not len(inside):
                raise UserError(f"{example.where}: no piece covers the word {text[start:end]!r}")
            asked.append(int(inside[0 if inputs.layout.first_piece else -1]))
            pair.append(pieces)
        document = inputs.framed(pair)
        asked = np.add(document.begins, asked)
        at = np.minimum(asked, document.ends).astype(np.int32)
        cut = {"pieces": document.cut, "targets": (int((at != asked).sum()), 2)}
        return inputs.row([document]) | {"pair_at": at} | self.label_fields(example), cut
