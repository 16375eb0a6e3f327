"""Splits questions on a context into windows and reads answers from logits, by the rules of BERT's run_squad.py.

    prefix question separator context suffix        [CLS] question [SEP] context [SEP]
    segments 0 up to the separator, then 1

A context that does not fit is split into overlapping windows. Each piece keeps the characters of the context that it stands
for, so an answer is always a slice of the original context. Answers are pieces `start` to `end`, both included, counted in the
window. Position 0 means that the window does not hold the whole answer.

Letters: T pieces of a window, P pieces of a context, N windows, L positions of a row (L >= T).

Source: google-research/bert, run_squad.py; Devlin et al. 2019, sections 4.2 and 4.3.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp

from bertlab.data.rows import Row, make_row
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.offsets import piece_offsets

# So many windows' logits are processed together, to bound memory.
_WINDOWS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A question and a part of its context.

    Attributes:
        id, example: the question's id and the example's number.
        number: the window's number among the question's windows.
        context: the whole context.
        tokens, segments: see the module.
        offsets: characters of `context` that a piece stands for, [first, end); (-1, -1) outside the context.
        max_context: whether this window shows the most context around the piece.
        start, end: positions of the first answer's first and last piece; (0, 0) if the window does not hold all of it.
        lost: how many pieces of the question are in no window, and how many the question and its context have.
    """

    id: str
    example: int
    number: int
    context: str
    tokens: Int[np.ndarray, "T"]
    segments: Int[np.ndarray, "T"]
    offsets: Int[np.ndarray, "T 2"]
    max_context: Bool[np.ndarray, "T"]
    start: int
    end: int
    lost: tuple[int, int]

    def row(self, length: int, pad_id: int) -> Row:
        """Row fields of `length` positions, with `start`, `end` and `context` [L]: 1 at positions where an answer may be."""
        row = make_row(length, pad_id, self.tokens, self.segments, 1, -1, (self.example, self.number))
        context = np.zeros(length, np.int32)
        context[: len(self.tokens)] = self.offsets[:, 0] >= 0
        return {**row, "start": np.int32(self.start), "end": np.int32(self.end), "context": context}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A question's best answer.

    Attributes:
        text: the best slice of the context; "" if none was allowed.
        score: its start plus end logit; minus infinity without an answer.
        null_score: the lowest start plus end logit of position 0 over the question's windows.
        answers: log p(start) + log p(end) of the `n_best` best answers by their texts, the best first. Both are softmaxes over
            all positions of all windows of the question, so they order answers as scores do. Of answers with the same text
            the best counts, as in the n-best list of run_squad.py.
        null: the same of `null_score`.
    """

    text: str
    score: float
    null_score: float
    answers: Mapping[str, float] = dataclasses.field(default_factory=dict, compare=False)
    null: float = dataclasses.field(default=-math.inf, compare=False)

    @property
    def null_odds(self) -> float:
        """Logits of no answer minus those of this answer; run_squad compares it with a threshold, minus the paper's tau."""
        return self.null_score - self.score


def _window_bounds(size: int, room: int, stride: int) -> list[tuple[int, int]]:
    """[first, end) of the windows over a context of `size` pieces; a single empty one if the context has no pieces."""
    bounds, first = [], 0
    while True:
        end = min(first + room, size)
        bounds.append((first, end))
        if end == size:
            return bounds
        first += min(end - first, stride)


def _max_context(bounds: Sequence[tuple[int, int]], size: int) -> Int[np.ndarray, "P"]:
    """Number of the window that shows the most context around each piece; the first if several show the same."""
    best, score = np.zeros(size, np.int64), np.full(size, -np.inf)
    for number, (first, end) in enumerate(bounds):
        left = np.arange(end - first)
        here = np.minimum(left, left[::-1]) + 0.01 * (end - first)
        better = here > score[first:end]
        best[first:end][better], score[first:end][better] = number, here[better]
    return best


def encode_question(
    example: Example,
    tokenizer: Tokenizer,
    *,
    index: int = 0,
    max_seq: int = 384,
    doc_stride: int = 128,
    max_query: int = 64,
    frame: tuple[Sequence[int], Sequence[int], Sequence[int]] | None = None,
) -> list[Window]:
    """The windows of a question, at least one.

    An answer that begins or ends inside a piece includes the whole piece. run_squad instead looks for the pieces in the words
    that the answer touches (`_improve_answer_span`).

    Args:
        example: of kind "span": texts (question, context), and answers; the first answer is the label.
        tokenizer: of any kind.
        index: number of the example, for its rows.
        max_seq: the most positions of a window.
        doc_stride: pieces from the start of one window's context to the start of the next.
        max_query: the most pieces of the question; the rest is cut off.
        frame: ids of prefix, separator and suffix; None: the tokenizer's.

    Raises:
        UserError: the sizes leave no room for the context.
    """
    question, context = example.texts
    whole = tokenizer.encode(question)
    asked = whole[:max_query]
    prefix, separator, suffix = frame or (tokenizer.prefix_ids, (tokenizer.sep_id,), tokenizer.suffix_ids)
    before = [*prefix, *asked, *separator]
    room = max_seq - len(before) - len(suffix)
    if room < 1 or doc_stride < 1:
        raise UserError(
            f"{example.where}: max_seq={max_seq} with max_query={max_query} leaves {room} positions for the context, and "
            f"doc_stride={doc_stride}: both must be 1 or more; raise them or lower max_query"
        )
    ids, offsets = piece_offsets(context, tokenizer)
    bounds = _window_bounds(len(ids), room, doc_stride)
    most = _max_context(bounds, len(ids))
    touched = np.zeros(0, np.int64)
    if example.answers:
        answer = example.answers[0]
        touched = np.flatnonzero((offsets[:, 0] < answer.start + len(answer.text)) & (offsets[:, 1] > answer.start))
    windows = []
    for number, (first, end) in enumerate(bounds):
        size = len(before) + end - first + len(suffix)
        inside = slice(len(before), len(before) + end - first)
        window_offsets, max_context = np.full((size, 2), -1, np.int32), np.zeros(size, bool)
        window_offsets[inside], max_context[inside] = offsets[first:end], most[first:end] == number
        learnt = len(touched) and first <= touched[0] and touched[-1] < end
        shift = len(before) - first
        windows.append(
            Window(
                id=example.id,
                example=index,
                number=number,
                context=context,
                tokens=np.array([*before, *ids[first:end], *suffix], np.int32),
                segments=(np.arange(size) >= len(before)).astype(np.int32),
                offsets=window_offsets,
                max_context=max_context,
                start=int(touched[0]) + shift if learnt else 0,
                end=int(touched[-1]) + shift if learnt else 0,
                lost=(len(whole) - len(asked), len(whole) + len(ids)),
            )
        )
    return windows


def best_answers(
    windows: Sequence[Window],
    start_logits: Float[np.ndarray, "N L"],
    end_logits: Float[np.ndarray, "N L"],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> dict[str, Prediction]:
    """The best answer of every question.

    An answer starts at one of the `n_best` highest start logits of a window and ends at one of the highest end logits (padding
    counts; equal logits keep their order). It lies in the context, starts at a piece with `max_context` in this window, does
    not end before it starts, and is not too long. The answer with the highest sum of logits wins; among equals, the first.

    The text is the slice of the context from the first piece to the last. run_squad instead projects the pieces' text onto the
    words of the context (`get_final_text`). If this succeeds, the result is the same up to white space.

    Args:
        windows: of any number of questions.
        start_logits, end_logits: one row per window; L is at least the longest window.
        n_best: how many starts and ends per window to compare.
        max_answer_length: the most pieces of an answer.

    Returns:
        The prediction by id of the question.

    Raises:
        ValueError: the shapes do not agree.
    """
    start_logits, end_logits = np.asarray(start_logits), np.asarray(end_logits)
    longest = max((len(window.tokens) for window in windows), default=0)
    shape = start_logits.shape
    if end_logits.shape != shape or len(shape) != 2 or shape[0] != len(windows) or shape[1] < longest:
        raise ValueError(f"logits are {shape} and {end_logits.shape}, expected [{len(windows)}, {longest} or more] twice")
    answers: dict[str, list[tuple[float, str]]] = {}
    nulls, totals = {}, {}
    for first in range(0, len(windows), _WINDOWS):
        here = windows[first : first + _WINDOWS]
        logits = [x[first : first + _WINDOWS].astype(np.float64) for x in (start_logits, end_logits)]
        spans = _best_spans(here, *logits, n_best, max_answer_length)
        null_scores = (logits[0][:, 0] + logits[1][:, 0]).tolist()
        whole = np.stack([logsumexp(x, axis=1) for x in logits], axis=1)
        for window, starts, ends, scores, null_score, total in zip(here, *(x.tolist() for x in spans), null_scores, whole):
            found = answers.setdefault(window.id, [])
            for start, end, score in zip(starts, ends, scores):
                if score > -math.inf:
                    found.append((score, window.context[window.offsets[start, 0] : window.offsets[end, 1]]))
            nulls[window.id] = min(nulls.get(window.id, math.inf), null_score)
            with np.errstate(invalid="ignore"):  # logits that are not finite
                totals[window.id] = np.logaddexp(totals.get(window.id, -math.inf), total)
    return {id: _prediction(answers[id], nulls[id], float(totals[id].sum()), n_best) for id in answers}


def _prediction(answers: list[tuple[float, str]], null_score: float, total: float, n_best: int) -> Prediction:
    """From a question's (score, text) in order of its windows, and what turns its scores into log-probabilities."""
    answers = sorted(answers, key=lambda answer: -answer[0])[:n_best]
    score, text = answers[0] if answers else (-math.inf, "")
    by_text = {}
    for of, slice_of_context in answers:
        by_text.setdefault(slice_of_context, of - total)
    return Prediction(text, score, null_score, by_text, null_score - total)


def _best_spans(windows, start_logits, end_logits, n_best, max_answer_length) -> tuple[np.ndarray, ...]:
    """For each window the starts, ends and scores [N, n_best or fewer] of its best spans; a score of minus infinity is none."""
    may_start, may_end = np.zeros(start_logits.shape, bool), np.zeros(start_logits.shape, bool)
    for row, window in enumerate(windows):
        may_end[row, : len(window.tokens)] = window.offsets[:, 0] >= 0
        may_start[row, : len(window.tokens)] = window.max_context
    starts, ends = (np.argsort(-logits, axis=1, kind="stable")[:, :n_best] for logits in (start_logits, end_logits))
    take = lambda array, places: np.take_along_axis(array, places, axis=1)
    length = ends[:, None, :] - starts[:, :, None] + 1
    allowed = take(may_start, starts)[:, :, None] & take(may_end, ends)[:, None, :]
    allowed &= (length >= 1) & (length <= max_answer_length)
    scores = take(start_logits, starts)[:, :, None] + take(end_logits, ends)[:, None, :]
    scores = np.where(allowed & ~np.isnan(scores), scores, -np.inf).reshape(len(windows), -1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :n_best]
    count = ends.shape[1]
    return take(starts, best // count), take(ends, best % count), take(scores, best)
