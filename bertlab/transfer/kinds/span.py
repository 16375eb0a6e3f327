"""Spans: the answer to a question is a slice of its context (SQuAD)."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, cross_entropy
from bertlab.transfer.cut import total_cut
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import TaskHead, penalised
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line, TaskRows
from bertlab.transfer.scorers import answer_scores, best_threshold
from bertlab.transfer.windows import best_answers, question_windows

# run_squad.py
SCRIPT = {
    "data.seq_len": 384,
    "data.batch_size": 12,
    "optimizer.learning_rate": 3e-5,
    "transfer.epochs": 2.0,
}
# Devlin et al. 2018, section 4.2 (SQuAD 1.1); the rows are the script's.
PAPER = {"data.batch_size": 32, "optimizer.learning_rate": 5e-5, "transfer.epochs": 3.0}
# google-research/electra, configure_finetuning.py
ELECTRA = {"data.seq_len": 512, "transfer.epochs": 2.0}


@dataclasses.dataclass(frozen=True)
class SpanHead(TaskHead):
    """(−log p(start) − log p(end)) / 2 over a window (Devlin et al. 2018, section 4.2).

    `start` and `end` [B] are 0 ([CLS]) if the window lacks the answer. This softmax is not over
    padding; run_squad.py's is, although its states are arbitrary.
    """

    classes: ClassVar[int] = 2
    dropout: float = 0.0

    def logits(self, model: Model, view: View) -> tuple[Float[Array, "B 2 L"], Float[Array, ""]]:
        """Logits of start and end, and the penalty on the mix."""
        _, layers = model.encode().widest()
        x, penalty = model.head.states(layers, view["documents"])
        filled = (view["documents"] > 0)[..., None]
        logits = jnp.where(filled, model.head.scores(x), jnp.finfo(jnp.float32).min)
        return logits.swapaxes(1, 2), penalty

    def loss(self, model: Model, view: View) -> Metrics:
        """The mean of both cross-entropies; accuracy: both positions are right."""
        logits, penalty = self.logits(model, view)
        labels = jnp.stack([view["start"], view["end"]], axis=1)
        weights = (labels >= 0) & self.is_own(view)[:, None]
        loss, count = cross_entropy(logits, jnp.maximum(labels, 0), weights)["loss"]
        right = ((jnp.argmax(logits, -1) == labels) & weights).all(axis=1)
        accuracy = right.sum().astype(jnp.float32), count / 2
        return penalised({"loss": (loss / 2, count / 2), "accuracy": accuracy}, penalty)

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        """`start` and `end` logits, [B, L] each."""
        logits, _ = self.logits(model, view)
        return {"start": logits[:, 0], "end": logits[:, 1]}


class Span(Kind):
    """A slice of a context; a question has a row for each window."""

    name = "span"
    head = SpanHead
    recipes: ClassVar = {"bert": SCRIPT, "bert_paper": SCRIPT | PAPER, "electra_paper": ELECTRA}

    def rows(
        self, inputs: Inputs, examples: Sequence[Example], symmetric: bool = False
    ) -> TaskRows:
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

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """The best slice of each context, the log-probabilities of the n best, and of no answer."""
        logits = [(output["start"], output["end"]) for output in outputs]
        found = best_answers(about, logits, settings.n_best, settings.max_answer_length)
        return [
            {"id": example.id, "gold": [answer.text for answer in example.answers]}
            | found[example.id]
            for example in examples
        ]

    def finish(self, lines, valid) -> tuple[list[Line], dict[str, float]]:
        """No answer above the threshold of the best F1 on `valid`.

        If all questions of `valid` have an answer (SQuAD 1.1), all are answered.
        """
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

    def average(self, lines, labels) -> Line:
        """The slice with the highest mean of p(start) · p(end), 0 in runs that lack it.

        Devlin et al. 2019 do not print how their ensembles combine runs.
        """
        runs = [line["n_best"] for line in lines]
        # Sums instead of means: all have as many terms.
        scores = {
            text: float(np.logaddexp.reduce([run.get(text, -math.inf) for run in runs]))
            for text in itertools.chain.from_iterable(runs)
        }
        best = max(scores, key=scores.get, default="")
        null = float(np.logaddexp.reduce([line["null"] for line in lines]))
        odds = null - scores.get(best, -math.inf)
        answer = {"predicted": best, "best_answer": best, "null_odds": odds}
        return {"id": lines[0]["id"], "gold": lines[0]["gold"], **answer}
