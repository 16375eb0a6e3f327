"""Kinds for two of SuperGLUE's tasks (Wang et al. 2019): ReCoRD's candidates, WiC's words.

The tasks are `bertlab.contrib.readers:RECORD` and `:WIC`.
"""

import dataclasses
from collections import defaultdict

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import softmax

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Model
from bertlab.transfer.batches import Row
from bertlab.transfer.examples import Cut, Example
from bertlab.transfer.heads import pooled
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Line
from bertlab.transfer.kinds.texts import ClassificationHead, OneClass, OneLabel


class Candidate(OneLabel):
    """Whether a candidate answers a question, class 1 of two.

    An example has a text and the question with the candidate in it; its `choices` are the
    candidate, its `group` is the question, its `answers` are the right ones. The answer is the
    candidate of highest p(class 1): SuperGLUE's baseline judges each independently of the others
    (Wang et al. 2019, section 4).
    """

    name = "candidate"
    head = ClassificationHead

    def predict(self, examples, labels, outputs, about) -> list[Line]:
        """One line per question: its most likely candidate, and each candidate's p(class 1)."""
        questions = defaultdict(list)
        for example, output in zip(examples, outputs, strict=True):
            share = float(softmax(output["logits"].astype(np.float64))[1])
            questions[example.group or example.id].append((example, share))
        lines = []
        for question, candidates in questions.items():
            first, shares = candidates[0][0], {e.choices[0]: share for e, share in candidates}
            gold = None if first.label is None else [answer.text for answer in first.answers]
            lines.append({"id": question, "gold": gold, **likeliest(shares)})
        return lines

    def average(self, lines, labels) -> Line:
        """The candidate with the highest mean probability."""
        runs = [line["probabilities"] for line in lines]
        shares = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        return lines[0] | likeliest(shares)


def likeliest(shares: dict[str, float]) -> Line:
    """A prediction's fields, from the probability of each candidate."""
    return {"probabilities": shares, "predicted": max(shares, key=shares.get)}


@dataclasses.dataclass(frozen=True)
class WordPairHead(ClassificationHead):
    """Classifies [text vector; states of the two words], which are at `pair_at` [B, 2]."""

    def logits(self, model: Model, view: View) -> Float[Array, "B C"]:
        side, layers = self.encoded(model, view)
        x = model.head.states(layers, view["documents"])
        words = jnp.take_along_axis(x, view["pair_at"][..., None], axis=1).reshape(len(x), -1)
        if self.pooling == "pooler":
            text = model.pool(1)
        else:
            text = pooled(x, view, self.pooling, 1, side == "backward")
        return model.head.scores(jnp.concatenate([text[:, 0], words], -1))


class WordPair(OneClass):
    """A class for a word in two sentences, whose characters are the example's `targets`."""

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
            asked.append(int(inside[0 if inputs.first_piece else -1]))
            pair.append(pieces)
        document = inputs.framed(pair)
        asked = np.add(document.begins, asked)
        at = np.minimum(asked, document.ends).astype(np.int32)
        cut = {"pieces": document.cut, "targets": (int((at != asked).sum()), 2)}
        return inputs.row([document]) | {"pair_at": at} | self.label_fields(example), cut


CANDIDATE, WORD_PAIR = Candidate(), WordPair()
