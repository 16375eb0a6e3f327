"""Spans: the answer to a question is a slice of its context (SQuAD), as in BERT's run_squad.py.

    prefix question separator context suffix        [CLS] question [SEP] context [SEP]
    segments 0 up to the separator, then 1

A long context has several windows, which overlap. Position 0 means that the window does not hold
the whole answer. Letters: T pieces of a window, P pieces of a context, L positions of a row.

Source: google-research/bert, run_squad.py; Devlin et al. 2019, sections 4.2 and 4.3.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, cross_entropy
from bertlab.transfer.examples import Example, total_cut
from bertlab.transfer.heads import TaskHead
from bertlab.transfer.inputs import Document, Inputs
from bertlab.transfer.kinds.base import Kind, Line, TaskRows
from bertlab.transfer.scorers import answer_scores, best_threshold

# run_squad.py
SCRIPT = {
    "data.seq_len": 384,
    "data.batch_size": 12,
    "optimizer.learning_rate": 3e-5,
    "transfer.epochs": 2.0,
}
# Devlin et al. 2018, section 4.2 (SQuAD 1.1); the row settings are the script's.
PAPER = {"data.batch_size": 32, "optimizer.learning_rate": 5e-5, "transfer.epochs": 3.0}
# google-research/electra, configure_finetuning.py
ELECTRA = {"data.seq_len": 512, "transfer.epochs": 2.0}


@dataclasses.dataclass(frozen=True)
class SpanHead(TaskHead):
    """(−log p(start) − log p(end)) / 2 over a window (Devlin et al. 2018, section 4.2). `start` and
    `end` [B] are 0 ([CLS]) if the window lacks the answer. Here the softmax leaves out padding."""

    classes: ClassVar[int] = 2
    dropout: float = 0.0

    def logits(self, model: Model, view: View) -> Float[Array, "B 2 L"]:
        """Of start and end."""
        _, layers = model.encode().widest()
        scores = model.head.scores(model.head.states(layers, view["documents"]))
        filled = (view["documents"] > 0)[..., None]
        return jnp.where(filled, scores, jnp.finfo(jnp.float32).min).swapaxes(1, 2)

    def loss(self, model: Model, view: View) -> Metrics:
        """The mean of both cross-entropies; accuracy: both positions are right."""
        logits = self.logits(model, view)
        labels = jnp.stack([view["start"], view["end"]], axis=1)
        weights = (labels >= 0) & self.is_own(view)[:, None]
        loss, count = cross_entropy(logits, jnp.maximum(labels, 0), weights)["loss"]
        right = ((jnp.argmax(logits, -1) == labels) & weights).all(axis=1)
        accuracy = right.sum().astype(jnp.float32), count / 2
        return model.head.penalised({"loss": (loss / 2, count / 2), "accuracy": accuracy})

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        """`start` and `end` logits, [B, L] each."""
        logits = self.logits(model, view)
        return {"start": logits[:, 0], "end": logits[:, 1]}


class Span(Kind):
    """A slice of a context; a question has one row per window."""

    name = "span"
    head = SpanHead
    recipes: ClassVar = {"bert": SCRIPT, "bert_paper": SCRIPT | PAPER, "electra_paper": ELECTRA}

    def rows(self, inputs, examples, symmetric=False) -> TaskRows:
        """Rows with `start` and `end`, 0 where the window lacks the answer; about: the windows."""
        rows, windows, cuts = [], [], []
        for example in examples:
            found, cut = question_windows(example, inputs)
            windows += found
            for window in found:
                labels = {"start": np.int32(window.start), "end": np.int32(window.end)}
                rows.append(inputs.row([window.document]) | labels)
            lost = bool(example.answers) and not any(window.start for window in found)
            cuts.append({"pieces": cut, "answers": (lost, bool(example.answers))})
        return TaskRows(rows, total_cut(cuts), windows)

    def predict(self, examples, labels, outputs, about) -> list[Line]:
        """The best slice of each context, and the odds of no answer."""
        found = best_answers(about, [(output["start"], output["end"]) for output in outputs])
        gold = {example.id: [answer.text for answer in example.answers] for example in examples}
        return [{"id": name, "gold": answers, **found[name]} for name, answers in gold.items()]

    def finish(self, lines, valid) -> tuple[list[Line], dict[str, float]]:
        """No answer above the threshold of the best F1 on `valid`; if all its questions have an
        answer (SQuAD 1.1), all are answered."""
        if not valid or all(line["gold"] for line in valid):
            return lines, {}
        texts, gold = ([line[key] for line in valid] for key in ("best_answer", "gold"))
        odds = [line["null_odds"] for line in valid]
        scores = answer_scores(gold, texts)
        threshold, _ = best_threshold(scores, texts, odds, [*map(bool, gold)])
        decided = [
            line | {"predicted": ""} if line["null_odds"] > threshold else line for line in lines
        ]
        return decided, {"null_threshold": threshold}


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A question and a part of its context."""

    id: str  # the question's
    context: str  # the whole
    document: Document
    offsets: Int[np.ndarray, "T 2"]  # of characters of `context`, [first, end); (-1, -1): none
    max_context: Bool[np.ndarray, "T"]  # whether no other window has more context around the piece
    start: int  # position of the first answer's first piece, or 0
    end: int  # and of its last


def question_windows(example: Example, inputs: Inputs) -> tuple[list[Window], tuple[int, int]]:
    """The windows of a question, at least one, and how many of how many pieces are in none. An
    answer includes whole pieces; run_squad searches for pieces in the words that it touches."""
    question, context = example.texts
    question_ids = inputs.tokenizer.encode(question)
    asked = question_ids[: inputs.max_query]
    room = inputs.seq_len - len(asked) - sum(map(len, inputs.frame))
    if room < 1:
        raise UserError(f"{example.where}: the question fills config.data.seq_len={inputs.seq_len}")
    pieces, offsets = inputs.located(context)
    bounds = window_bounds(len(pieces), room, inputs.doc_stride)
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
        around = (begin, len(document.pieces) - begin - (end - first))
        places = np.pad(offsets[first:end], (around, (0, 0)), constant_values=-1)
        is_best = np.pad(best_window[first:end] == number, around)
        answer = 0, 0
        if len(touched) and first <= touched[0] and touched[-1] < end:
            answer = int(touched[0]) + begin - first, int(touched[-1]) + begin - first
        windows.append(Window(example.id, context, document, places, is_best, *answer))
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
    longest: int = 30,
) -> dict[str, dict[str, Any]]:
    """By the id of each question, `predicted` and `best_answer`, a slice of the context or "", and
    `null_odds`, the logits of position 0, in the window where they are lowest, minus the answer's.

    An answer of at most `longest` pieces starts at one of a window's `n_best` highest start logits
    and ends at one of its highest end logits, in the context, at a start with `max_context` (the
    numbers are run_squad.py's). The first wins ties. run_squad projects the text of the pieces onto
    the context's words (`get_final_text`), which yields the same up to white space.
    """
    pairs, predictions = zip(windows, logits, strict=True), {}
    for number, of_question in itertools.groupby(pairs, key=lambda pair: pair[0].id):
        score, text, null = -math.inf, "", math.inf
        for window, both in of_question:
            start, end = (np.asarray(x[: len(window.offsets)], np.float64) for x in both)
            null = min(null, start[0] + end[0])
            found = window_answer(window, start, end, n_best, longest)
            if found[0] > score:
                score, text = found
        predictions[number] = {"predicted": text, "best_answer": text, "null_odds": null - score}
    return predictions


def window_answer(window: Window, start, end, n_best: int, longest: int) -> tuple[float, str]:
    """The best (score, text) of one window by its logits [T]; without any, the score is -inf."""
    starts, ends = (np.argsort(-x, kind="stable")[:n_best] for x in (start, end))
    length = ends - starts[:, None] + 1
    allowed = window.max_context[starts][:, None] & (window.offsets[ends, 0] >= 0)
    allowed &= (length >= 1) & (length <= longest)
    scores = np.where(allowed, start[starts][:, None] + end[ends], -np.inf).ravel()
    best = np.argsort(-scores, kind="stable")[0]
    first, last = starts[best // len(ends)], ends[best % len(ends)]
    text = window.context[window.offsets[first, 0] : window.offsets[last, 1]]
    return float(scores[best]), text
