"""Questions about the tokens of texts, and one compiled program that answers them.

A question is a text with some tokens hidden, some of which are asked for. Questions share rows as
documents, so all have one shape whatever the texts' lengths.

Letters: T tokens of a text, B rows, L length of a row, P asked positions of a text.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.data.characters import character_ids, character_table
from bertlab.evals.scoring import HIDDEN, Predict
from bertlab.models.base import View
from bertlab.objectives.program import Program

LENGTH, ROWS = 128, 16
"""Shape of a batch; if a text is longer, rows are longer and fewer."""

STEPS = 8
"""Steps that are computed of a random order."""


class Text(NamedTuple):
    """A text between its special tokens.

    Attributes:
        tokens: [T] ids, special ones included.
        pieces: Positions to score; all others but the special ones are given.
        bytes: UTF-8 bytes of the text.
        characters: [T, 50] for a model that reads them.
    """

    tokens: Int[np.ndarray, "T"]
    pieces: Int[np.ndarray, "n"]
    bytes: float
    characters: Int[np.ndarray, "T 50"] | None = None


class Question(NamedTuple):
    """Asks for tokens of a text.

    Attributes:
        text: Its number.
        asked: Positions of the tokens.
        ranks: [T] when each token becomes visible (`scoring`); 0: all are visible.
        weight: Of the answers in the text's score.
    """

    text: int
    asked: Int[np.ndarray, "P"]
    ranks: Int[np.ndarray, "T"] | int = 0
    weight: float = 1.0


def encode(text: str, tokenizer) -> Text:
    """The text as the tokenizer frames it."""
    pieces, first = tokenizer.encode(text), len(tokenizer.prefix_ids)
    tokens = np.array([*tokenizer.prefix_ids, *pieces, *tokenizer.suffix_ids], np.int32)
    return Text(tokens, np.arange(first, first + len(pieces)), len(text.encode()))


def encode_all(model, texts: Sequence[str]) -> list[Text]:
    """Texts as the model (from `bertlab.load`) reads them, with characters if it reads those."""
    tokenizer, encoded = model.tokenizer, [encode(text, model.tokenizer) for text in texts]
    if model.config.model.token_encoder != "characters":
        return encoded
    table = character_table(tokenizer)
    before, after = table[list(tokenizer.prefix_ids)], table[list(tokenizer.suffix_ids)]
    characters = (
        np.concatenate([before, character_ids(tokenizer.words(text)), after]) for text in texts
    )
    return [one._replace(characters=found) for one, found in zip(encoded, characters)]


def by_chain_rule(number: int, text: Text, side: str, tokenizer) -> Iterator[Question]:
    """One question: for all pieces and special tokens but the one without a neighbour before it
    (backward: after it)."""
    length = len(text.tokens)
    position, end = np.arange(length), length - len(tokenizer.suffix_ids)
    special = position[(position < len(tokenizer.prefix_ids)) | (position >= end)]
    asked = np.union1d(special, text.pieces).astype(int)
    yield Question(number, asked[asked != (0 if side == "forward" else length - 1)])


def one_by_one(
    number: int, text: Text, first: int, continues: Sequence[bool] | None
) -> Iterator[Question]:
    """For each piece from position `first` on, hidden alone, or with the later pieces of its word
    (`continues`: by id, whether a piece continues a word)."""
    end = 0
    for index in reversed(range(len(text.pieces))):
        position, following = int(text.pieces[index]), text.pieces[index + 1 : index + 2]
        if continues is None or not any(continues[text.tokens[at]] for at in following):
            end = position + 1
        if position >= first:
            ranks = np.zeros(len(text.tokens), np.int32)
            ranks[position:end] = HIDDEN
            yield Question(number, np.array([position]), ranks)


def in_random_orders(
    number: int, text: Text, first: int, orders: int, in_order: bool
) -> Iterator[Question]:
    """For all hidden pieces, at steps of random orders of those from position `first` on.

    The weighted sum of the answers is the bound. If there are no more sets of visible pieces than
    random steps, there is one question for each.

    Args:
        number: The text's.
        text: Its tokens determine the orders.
        first: 1 if the first token cannot be asked.
        orders: Random orders.
        in_order: The order of what is visible matters.
    """
    pieces = text.pieces[text.pieces >= first]
    total, steps = len(pieces), min(len(pieces), STEPS)
    count = math.perm if in_order else math.comb
    choose = itertools.permutations if in_order else itertools.combinations

    def question(visible, weight):
        visible = list(visible)
        ranks = np.zeros(len(text.tokens), np.int32)
        ranks[pieces] = HIDDEN
        ranks[pieces[visible]] = 1 + np.arange(len(visible))
        hidden = np.delete(pieces, visible)
        return Question(number, hidden, ranks, weight / len(hidden))

    if total <= orders * steps >= sum(count(total, size) for size in range(total)):
        for size in range(total):
            for visible in choose(range(total), size):
                yield question(visible, 1 / count(total, size))
        return
    rng = np.random.default_rng(text.tokens.tolist())
    for _ in range(orders):
        drawn, start = rng.permutation(total), rng.random()
        for step in range(steps):
            visible = drawn[: int((start + step) * total / steps)]
            yield question(visible, total / steps / orders)


class Answerer:
    """Answers questions by the model of the objective `name`; compiled once for all texts."""

    def __init__(self, program: Program, name: str, predict: Predict):
        self.pad_id = program.vocabulary.pad_id

        def log_probabilities(params, view: View) -> Float[Array, "B L"]:
            def ask(model, view):
                every = jnp.broadcast_to(jnp.arange(view["tokens"].shape[1]), view["tokens"].shape)
                log_p = jax.nn.log_softmax(predict(model, view, every))
                return jnp.take_along_axis(log_p, view["tokens"][..., None], axis=-1)[..., 0]

            return program.call(params, name, view, ask)

        self.log_probabilities = jax.jit(log_probabilities)

    def __call__(
        self, params, texts: Sequence[Text], questions: Sequence[Question]
    ) -> list[Float[np.ndarray, "P"]]:
        """log p of each question's tokens, given what it does not hide."""
        lengths = [len(texts[question.text].tokens) for question in questions]
        length = max(LENGTH, 1 << (max(lengths, default=1) - 1).bit_length())
        size, rows = max(1, ROWS * LENGTH // length), packed(lengths, length)
        answers = [None] * len(questions)
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            view = self.view(texts, questions, some, (size, length))
            log_p = np.asarray(self.log_probabilities(params, view), np.float64)
            for row, numbers in enumerate(some):
                for number, begin in numbers.items():
                    answers[number] = log_p[row, begin + questions[number].asked]
        return answers

    def view(self, texts, questions, rows: list[dict[int, int]], shape: tuple[int, int]) -> View:
        """The rows, each question a document."""
        names = ("tokens", "segments", "documents", "positions", "ranks")
        view = {name: np.zeros(shape, np.int32) for name in names}
        view["tokens"][:] = self.pad_id
        if texts[0].characters is not None:
            view["characters"] = np.zeros((*shape, texts[0].characters.shape[1]), np.int32)
        for row, numbers in enumerate(rows):
            for document, (number, begin) in enumerate(numbers.items(), 1):
                text = texts[questions[number].text]
                inside = (row, slice(begin, begin + len(text.tokens)))
                view["tokens"][inside] = text.tokens
                view["documents"][inside] = document
                view["positions"][inside] = np.arange(len(text.tokens))
                view["ranks"][inside] = questions[number].ranks
                if text.characters is not None:
                    view["characters"][inside] = text.characters
        return view


def packed(lengths: Sequence[int], length: int) -> list[dict[int, int]]:
    """Rows of at most `length` tokens, each {question number: where it begins}: next-fit, in the
    order of their lengths."""
    rows, end = [], length
    for number in np.argsort(lengths, kind="stable").tolist():
        if end + lengths[number] > length:
            rows.append({})
            end = 0
        rows[-1][number] = end
        end += lengths[number]
    return rows
