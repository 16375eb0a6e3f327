"""Questions about the tokens of texts, and one compiled program that answers them: they share rows
as documents, so all have one shape regardless of the texts' lengths.

Letters: T tokens per text, L row length, P asked positions per text.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from bertlab.evals.scoring import HIDDEN, Scoring
from bertlab.models.base import View
from bertlab.objectives.program import Program
from bertlab.transfer.inputs import Document

LENGTH, ROWS = 128, 16  # of a batch; if a text is longer, rows are longer and fewer
ORDERS, STEPS = 4, 8  # random orders per text, and how many steps of each are computed


class Text(NamedTuple):
    """A text between its special tokens, with the UTF-8 `bytes` of the text."""

    tokens: Int[np.ndarray, "T"]  # special ones included
    pieces: Int[np.ndarray, "n"]  # positions to score; all others but the special ones are given
    bytes: float
    characters: Int[np.ndarray, "T 50"] | None = None  # for a model that reads them
    document: int | None = None  # the number of the document that it is from


class Question(NamedTuple):
    """Asks for the tokens of text number `text` at the positions `asked`; `ranks` say when each
    token becomes visible (`scoring`), `weight` is that of the answers in the text's score."""

    text: int
    asked: Int[np.ndarray, "P"]
    ranks: Int[np.ndarray, "T"] | int = 0
    weight: float = 1.0


def encode_all(model, texts: Sequence[str]) -> list[Text]:
    """Texts as the model (from `bertlab.load`) reads them."""
    return [framed(model.inputs.document([text]), len(text.encode())) for text in texts]


def framed(document: Document, size: float) -> Text:
    """The text of a document, which is `size` bytes without special tokens."""
    tokens, characters = document.pieces[:, 0], document.pieces[:, 1:]
    pieces = np.arange(document.begins[0], document.ends[0] + 1)
    return Text(tokens, pieces, size, characters if characters.size else None)


def by_chain_rule(number: int, text: Text, side: str, frame: tuple[int, int]) -> Question:
    """Asks for all pieces and the special tokens around them (`frame`: how many before and after),
    except the one without a neighbour before it (backward: after it)."""
    length, (before, after) = len(text.tokens), frame
    asked = np.union1d(text.pieces, [*range(before), *range(length - after, length)]).astype(int)
    return Question(number, asked[asked != (0 if side == "forward" else length - 1)])


def one_by_one(number: int, text: Text, first: int, continues) -> Iterator[Question]:
    """Ask for each piece from position `first` on, hidden alone, or with the later pieces of its
    word (`continues`: by id, whether a piece continues a word)."""
    end = 0
    for index in reversed(range(len(text.pieces))):
        position, following = int(text.pieces[index]), text.pieces[index + 1 : index + 2]
        if continues is None or not any(continues[text.tokens[at]] for at in following):
            end = position + 1
        if position >= first:
            ranks = np.zeros(len(text.tokens), np.int32)
            ranks[position:end] = HIDDEN
            yield Question(number, np.array([position]), ranks)


def in_random_orders(number: int, text: Text, first: int, in_order: bool) -> Iterator[Question]:
    """Ask for all hidden pieces from position `first` on, at steps of random orders; the weighted
    sum of the answers is the bound. If there are no more sets of visible pieces (`in_order`: orders
    of them) than random steps, there is one question for each."""
    pieces = text.pieces[text.pieces >= first]
    total, steps = len(pieces), min(len(pieces), STEPS)
    count = math.perm if in_order else math.comb
    choose = itertools.permutations if in_order else itertools.combinations
    drawn = []  # (indices of the visible pieces in their order, weight)
    if total <= ORDERS * steps >= sum(count(total, size) for size in range(total)):
        for size in range(total):
            drawn += [(list(v), 1 / count(total, size)) for v in choose(range(total), size)]
    else:
        rng = np.random.default_rng(text.tokens.tolist())
        for _ in range(ORDERS):
            order, start = rng.permutation(total), rng.random()
            ends = [int((start + step) * total / steps) for step in range(steps)]
            drawn += [(order[:end], total / steps / ORDERS) for end in ends]
    for visible, weight in drawn:
        ranks = np.zeros(len(text.tokens), np.int32)
        ranks[pieces] = HIDDEN
        ranks[pieces[visible]] = 1 + np.arange(len(visible))
        hidden = np.delete(pieces, visible)
        yield Question(number, hidden, ranks, weight / len(hidden))


class Answerer:
    """Answers questions by one ability (a field of `Scoring`) of the model of the objective `name`;
    compiled once for all texts."""

    def __init__(self, program: Program, name: str, how: Scoring, ability: str):
        self.how, self.pad_id = how, program.vocabulary.pad_id
        predict = functools.partial(getattr(how, ability), program.objectives[name])

        def logits(params, view, at):
            return program.call(params, name, view, lambda model, view: predict(model, view, at))

        def log_probabilities(params, view):
            tokens = view["tokens"]
            every = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
            log_p = jax.nn.log_softmax(logits(params, view, every))
            return jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]

        self.logits, self.log_probabilities = jax.jit(logits), jax.jit(log_probabilities)

    def __call__(self, params, texts, questions: Sequence[Question]) -> list[np.ndarray]:
        """log p [P] of each question's tokens, given what it does not hide."""
        lengths = np.array([len(texts[question.text].tokens) for question in questions], int)
        length = max(LENGTH, 1 << (int(lengths.max(initial=1)) - 1).bit_length())
        size, rows, end = max(1, ROWS * LENGTH // length), [], length
        for number in np.argsort(lengths, kind="stable").tolist():  # next-fit
            if end + lengths[number] > length:
                rows.append([])
                end = 0
            rows[-1].append((questions[number], number, end))
            end += lengths[number]
        answers = [None] * len(questions)
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            view = self.view(texts, some, (size, length))
            log_p = np.asarray(self.log_probabilities(params, view), np.float64)
            for row, placed in zip(log_p, some):
                for question, number, begin in placed:
                    answers[number] = row[begin + question.asked]
        return answers

    def view(self, texts, rows: list[list[tuple[Question, int, int]]], shape) -> View:
        """Rows of (question, its number, where it begins); each question is a document."""
        names = ("tokens", "segments", "documents", "positions", "ranks")
        view = {name: np.zeros(shape, np.int32) for name in names}
        view["tokens"][:] = self.pad_id
        if texts[0].characters is not None:
            view["characters"] = np.zeros((*shape, texts[0].characters.shape[1]), np.int32)
        for row, placed in enumerate(rows):
            for document, (question, _, begin) in enumerate(placed, 1):
                text = texts[question.text]
                at = row, slice(begin, begin + len(text.tokens))
                view["tokens"][at], view["documents"][at] = text.tokens, document
                view["positions"][at], view["ranks"][at] = range(len(text.tokens)), question.ranks
                if text.characters is not None:
                    view["characters"][at] = text.characters
        return view
