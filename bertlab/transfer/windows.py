"""Questions on a context: windows that overlap, and answers from logits, by BERT's run_squad.py.

    prefix question separator context suffix        [CLS] question [SEP] context [SEP]
    segments 0 up to the separator, then 1

An answer is a slice of the context, from the characters that its first piece stands for to those of
its last. Position 0 means that the window does not hold all of the answer.

Letters: T pieces of a window, P pieces of a context, L positions of a row.

Source: google-research/bert, run_squad.py; Devlin et al. 2019, sections 4.2 and 4.3.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.inputs import Document, Inputs


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A question and a part of its context.

    Attributes:
        id: Of the question.
        context: All of it.
        document: The row's tokens.
        offsets: Characters of `context` that a position stands for, [first, end); (-1, -1): none.
        max_context: Whether no other window has more context around the piece.
        start, end: Positions of the first answer's first and last piece, or (0, 0).
    """

    id: str
    context: str
    document: Document
    offsets: Int[np.ndarray, "T 2"]
    max_context: Bool[np.ndarray, "T"]
    start: int
    end: int


def question_windows(example: Example, inputs: Inputs) -> tuple[list[Window], tuple[int, int]]:
    """The windows of a question, at least one, and how many of its pieces are in none, of how many.

    An answer that begins or ends inside a piece includes the whole piece. run_squad instead
    searches for the pieces in the words that the answer touches (`_improve_answer_span`).
    """
    layout, (question, context) = inputs.layout, example.texts
    question_ids = inputs.tokenizer.encode(question)
    asked = question_ids[: layout.max_query]
    room = layout.seq_len - len(asked) - sum(map(len, inputs.frame))
    if room < 1 or layout.doc_stride < 1:
        raise UserError(
            f"{example.where}: config.data.seq_len={layout.seq_len} with config.transfer.max_query="
            f"{layout.max_query} leaves {room} positions for the context, and"
            f" config.transfer.doc_stride={layout.doc_stride}: both must be 1 or more"
        )
    pieces, offsets = inputs.located(context)
    bounds = window_bounds(len(pieces), room, layout.doc_stride)
    best_window = most_context(bounds, len(pieces))
    touched = np.zeros(0, np.int64)
    if example.answers:
        answer = example.answers[0]
        inside = offsets[:, 0] < answer.start + len(answer.text)
        touched = np.flatnonzero(inside & (offsets[:, 1] > answer.start))
    windows = []
    for number, (first, end) in enumerate(bounds):
        document = inputs.framed([inputs.pieces(asked), pieces[first:end]], inputs.frame)
        begin = document.begins[1]
        positions = slice(begin, begin + end - first)
        window_offsets = np.full((len(document.tokens), 2), -1, np.int32)
        window_offsets[positions] = offsets[first:end]
        max_context = np.zeros(len(document.tokens), bool)
        max_context[positions] = best_window[first:end] == number
        answer_at = 0, 0
        if len(touched) and first <= touched[0] and touched[-1] < end:
            answer_at = (int(touched[0]) + begin - first, int(touched[-1]) + begin - first)
        windows.append(
            Window(example.id, context, document, window_offsets, max_context, *answer_at)
        )
    return windows, (len(question_ids) - len(asked), len(question_ids) + len(pieces))


def window_bounds(size: int, room: int, stride: int) -> list[tuple[int, int]]:
    """[first, end) of the windows on a context of `size` pieces; one, even if there are none."""
    step = min(room, stride)
    count = 1 + math.ceil(max(size - room, 0) / step)
    return [(i * step, min(i * step + room, size)) for i in range(count)]


def most_context(bounds: Sequence[tuple[int, int]], size: int) -> Int[np.ndarray, "P"]:
    """Number of the first window with the most context around each piece."""
    piece, scores = np.arange(size), []
    for first, end in bounds:
        context = np.minimum(piece - first, end - 1 - piece)
        scores.append(np.where(context >= 0, context + 0.01 * (end - first), -1))
    return np.argmax(scores, axis=0)


def best_answers(
    windows: Sequence[Window],
    logits: Sequence[tuple[Float[np.ndarray, "L"], Float[np.ndarray, "L"]]],
    n_best: int = 20,
    max_answer_length: int = 30,
) -> dict[str, dict[str, Any]]:
    """By the id of each question:

        predicted, best_answer: The best answer, a slice of the context; "" if none was allowed.
        n_best: log p(start) + log p(end) of the n best answers by their texts, the best first, p
            being softmaxes over all positions of all windows. The best of equal texts counts.
        null: The same of position 0, in the window where its logits are lowest.
        null_odds: Its logits there minus those of the best answer.

    An answer starts at one of a window's `n_best` highest start logits and ends at one of its
    highest end logits, in the context, at a start with `max_context`. Of equal sums the first wins.

    The text is the slice of the context. run_squad instead projects the text of the pieces onto the
    words of the context (`get_final_text`), which yields the same up to white space.
    """
    pairs, predictions = zip(windows, logits, strict=True), {}
    for number, of_question in itertools.groupby(pairs, key=lambda pair: pair[0].id):
        answers, null, totals = [], math.inf, []
        for window, both in of_question:
            start, end = (np.asarray(x[: len(window.offsets)], np.float64) for x in both)
            answers += window_answers(window, start, end, n_best, max_answer_length)
            null = min(null, start[0] + end[0])
            totals.append((logsumexp(start), logsumexp(end)))
        total = logsumexp(totals, axis=0).sum()
        answers = sorted(answers, key=lambda answer: -answer[0])[:n_best]
        score, text = answers[0] if answers else (-math.inf, "")
        by_text: dict[str, float] = {}
        for answer_score, answer in answers:
            by_text.setdefault(answer, answer_score - total)
        predictions[number] = {
            "predicted": text,
            "best_answer": text,
            "n_best": by_text,
            "null_odds": null - score,
            "null": null - total,
        }
    return predictions


def window_answers(
    window: Window,
    start: Float[np.ndarray, "T"],
    end: Float[np.ndarray, "T"],
    n_best: int,
    max_answer_length: int,
) -> list[tuple[float, str]]:
    """The `n_best` best (score, text) of one window."""
    starts, ends = (np.argsort(-x, kind="stable")[:n_best] for x in (start, end))
    length = ends - starts[:, None] + 1
    allowed = window.max_context[starts][:, None] & (window.offsets[ends, 0] >= 0)
    allowed &= (length >= 1) & (length <= max_answer_length)
    scores = np.where(allowed, start[starts][:, None] + end[ends], -np.inf).ravel()
    found = []
    for number in np.argsort(-scores, kind="stable")[:n_best]:
        if scores[number] > -np.inf:
            first, last = starts[number // len(ends)], ends[number % len(ends)]
            text = window.context[window.offsets[first, 0] : window.offsets[last, 1]]
            found.append((float(scores[number]), text))
    return found
