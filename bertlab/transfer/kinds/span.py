"""Spans: the answer to a question, as a slice of its context (SQuAD)."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertlab.data.rows import Row
from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, cross_entropy
from bertlab.transfer.cut import Lost, counted
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import NO_LABEL, TaskHead, penalised
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line, of_each
from bertlab.transfer.scorers import best_threshold, span_f1_scores
from bertlab.transfer.windows import Window, best_answers, encode_question

# run_squad.py
_SCRIPT = {"data.seq_len": 384, "data.batch_size": 12, "optimizer.learning_rate": 3e-5, "transfer.epochs": 2.0}
# Devlin et al. 2018, sections 4.2 (SQuAD 1.1) and 4.3 (2.0); the rows are the script's.
_PAPER = {"data.batch_size": 32, "optimizer.learning_rate": 5e-5, "transfer.epochs": 3.0}
_ELECTRA = {"data.seq_len": 512, "transfer.epochs": 2.0}  # google-research/electra configure_finetuning.py
_PAPER_2 = {"data.batch_size": 48, "transfer.epochs": 2.0}


@dataclasses.dataclass(frozen=True)
class SpanHead(TaskHead):
    """(−log p(start) − log p(end)) / 2 over the positions of a window (Devlin et al. 2018, section 4.2).

    `start`, `end` [B]: 0 ([CLS]) if the window does not hold the answer. This softmax excludes padding; run_squad.py's includes
    it, although its states are arbitrary.
    """

    classes: ClassVar[int] = 2
    dropout: float = setting(0.0, least=0, most=1)

    def _logits(self, model, view):
        x, penalty = model.head.states(self.layers_of(model, view), view["documents"], model.deterministic, view)
        logits = model.head.scores(x, model.deterministic)
        logits = jnp.where((view["documents"] > 0)[..., None], logits, jnp.finfo(jnp.float32).min)
        return logits[..., 0], logits[..., 1], penalty

    def loss(self, model: Bound, view: View) -> Metrics:
        """Mean of the two cross-entropies; accuracy: both positions correct."""
        start, end, penalty = self._logits(model, view)
        known = (view["start"] >= 0) & self.asked(view)
        first = cross_entropy(start, jnp.maximum(view["start"], 0), known)
        last = cross_entropy(end, jnp.maximum(view["end"], 0), known)
        both = (jnp.argmax(start, -1) == view["start"]) & (jnp.argmax(end, -1) == view["end"]) & known
        loss = ((first["loss"][0] + last["loss"][0]) / 2, first["loss"][1])
        return penalised({"loss": loss, "accuracy": (both.sum().astype(jnp.float32), loss[1])}, penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`start` and `end` logits, [B, L] each."""
        start, end, _ = self._logits(model, view)
        return {"start": start, "end": end}


@dataclasses.dataclass(frozen=True)
class Span(Kind):
    """A slice of a context.

    Attributes:
        may_lack_answer: questions may have no answer (SQuAD 2.0).
    """

    may_lack_answer: bool = False

    name = "span"
    head = SpanHead
    metrics = ("exact_match", "span_f1")
    default_metrics = ("span_f1", "exact_match")
    unknown: ClassVar = {"start": NO_LABEL, "end": NO_LABEL}
    one_row = False
    recipes: ClassVar = {"bert": _SCRIPT, "bert_paper": _SCRIPT | _PAPER, "electra_paper": _ELECTRA}

    def recipe(self, name: str) -> dict[str, Any]:
        own = _PAPER_2 if name == "bert_paper" and self.may_lack_answer else {}
        return super().recipe(name) | own

    def encode(self, inputs: Inputs, examples: Sequence[Example]) -> tuple[list[Row], list[Window], dict[str, int]]:
        """The rows of all questions' windows, the windows, and how much was cut.

        A row has `start` and `end`, 0 where the window lacks the answer, and `context` [L].
        """
        layout = inputs.layout
        if layout.characters:
            raise UserError("span tasks need subword pieces, but this model reads characters; choose a subword model")
        of_questions = [
            encode_question(
                example,
                inputs.tokenizer,
                index=number,
                max_seq=layout.seq_len,
                doc_stride=layout.doc_stride,
                max_query=layout.max_query,
                frame=inputs.frame,
            )
            for number, example in enumerate(examples)
        ]
        windows = [*itertools.chain.from_iterable(of_questions)]
        cut = counted(map(_lost, examples, of_questions))
        return [window.row(layout.seq_len, inputs.tokenizer.pad_id) for window in windows], windows, cut

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """The best slice of each context, and the log-probabilities of the `n_best` best (`Prediction.answers`).

        If questions may lack an answer, also the odds of no answer and its log-probability.
        """
        found = best_answers(
            about, outputs["start"], outputs["end"], n_best=settings.n_best, max_answer_length=settings.max_answer_length
        )
        lines = []
        for example in examples:
            best = found[example.id]
            line = {"id": example.id, "gold": [answer.text for answer in example.answers], "predicted": best.text}
            line["n_best"] = best.answers
            if self.may_lack_answer:
                line |= {"best_answer": best.text, "null_odds": best.null_odds, "null": best.null}
            lines.append(line)
        return lines

    def average(self, lines, labels) -> Line:
        """The slice of the context with the highest mean of p(start) · p(end); 0 in runs without it among their `n_best`.

        Devlin et al. 2019 do not print how their ensembles combine runs.
        """
        runs = of_each(lines, "n_best")
        # Sums instead of means: all have as many terms.
        scores = {
            text: float(np.logaddexp.reduce([of_run.get(text, -math.inf) for of_run in runs]))
            for text in dict.fromkeys(itertools.chain.from_iterable(runs))
        }
        best = max(scores, key=scores.get, default="")
        line = {"id": lines[0]["id"], "gold": lines[0]["gold"], "predicted": best}
        if self.may_lack_answer:
            null = float(np.logaddexp.reduce(of_each(lines, "null")))
            line |= {"best_answer": best, "null_odds": null - scores.get(best, -math.inf)}
        return line

    def finish(self, lines, valid, settings) -> tuple[list[Line], dict[str, float]]:
        """Leaves questions above a threshold unanswered: the configured one, or the one with the best F1 on `valid`."""
        if not self.may_lack_answer:
            return lines, {}
        threshold = settings.null_threshold
        if threshold is None:
            threshold = _best_threshold(valid) if valid else 0.0
        decided = [line | {"predicted": ""} if line["null_odds"] > threshold else line for line in lines]
        return decided, {"null_threshold": threshold}


def _lost(example: Example, windows: Sequence[Window]) -> Lost:
    has_answer = bool(example.answers)
    in_none = has_answer and not any(window.start for window in windows)
    return {"pieces": windows[0].lost, "answers": (int(in_none), int(has_answer))}


def _best_threshold(lines: Sequence[Line]) -> float:
    texts, gold = [line["best_answer"] for line in lines], [line["gold"] for line in lines]
    odds, has_answer = [line["null_odds"] for line in lines], [bool(answers) for answers in gold]
    return best_threshold(span_f1_scores(gold, texts), texts, odds, has_answer)[0]
