"""The contract of a kind of task: whatever is registered says all about itself (`test_seam.py`: nothing elsewhere asks)."""

import inspect
import pkgutil
from types import SimpleNamespace

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.transfer import kinds
from bertlab.transfer.entities import Scheme
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.inputs import Inputs, Layout
from bertlab.transfer.kinds import KINDS, Kind
from bertlab.transfer.recipes import RECIPES
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.scoring import scores_of
from bertlab.transfer.tasks.base import Task
from tests.transfer.test_inputs import LetterTokenizer

TRANSFER = SimpleNamespace(n_best=20, max_answer_length=30, null_threshold=0.0)
# An example of whatever kind: its texts are a pair, a question with its context, or two sentences.
FULL = {
    "texts": ("ab", "cd ef"),
    "words": ("ab", "cd"),
    "choices": ("cd", "ef"),
    "answers": (Answer("cd", 0),),
    "targets": ((0, 2), (3, 5)),
    "spans": (((0, 1), (1, 2)), ((1, 2), (0, 1))),
}
# A label of each kind that has other ones than a class.
LABELS = {"tagging": (1, 0), "span_pair": ((1,), (1,)), "sense": ("cd",)}


def outputs_of(kind, rows):
    """Random outputs of each of a head's names, as many rows."""
    rng = np.random.default_rng(0)
    length = len(rows[0]["tokens"])
    return {
        "logits": rng.normal(size=(len(rows), 2)).astype(np.float32),
        "value": rng.normal(size=len(rows)).astype(np.float32),
        "tags": (tags := rng.integers(0, 2, (len(rows), length))),
        "probabilities": np.eye(2)[tags],
        "start": rng.normal(size=(len(rows), length)),
        "end": rng.normal(size=(len(rows), length)),
        "target_logits": rng.normal(size=(len(rows), 2, 2)),
        "state": rng.normal(size=(len(rows), 3)),
    }


def test_every_file_of_kinds_registers_one():
    files = {module.name for module in pkgutil.iter_modules(kinds.__path__)} - {"base"}
    assert files == set(KINDS) == {inspect.getmodule(kind).__name__.rpartition(".")[2] for kind in KINDS.values()}
    assert set().union(*(kind.metrics for kind in KINDS.values())) == set(METRICS), "every metric goes with a kind"


@pytest.mark.parametrize("name", KINDS)
class TestKind:
    def test_its_metrics_settings_and_recipes_exist(self, name):
        kind = KINDS[name]
        assert kind.name == name and set(kind.default_metrics) <= set(kind.metrics) <= set(METRICS)
        assert kind.head(**kind.settings()) and set(kind.recipes) <= set(RECIPES)
        assert "number" not in kind.settings()

    def test_labels_that_are_known_differ_from_unknown_ones_in_its_rows_only_there(self, name):
        kind, label = KINDS[name](), LABELS.get(name, 1)
        fields = FULL | ({"texts": ("ab",)} if name == "choice" else {})
        known, unknown = Example("a", "f:1", **fields, label=label), Example("b", "f:2", **{**fields, "answers": ()})
        rows, about, _ = kind.encode(Inputs(LetterTokenizer(), Layout("pair", 16)), [known, unknown])
        assert kind.unknown.items() and all(set(kind.unknown) <= set(row) for row in rows)
        assert not kind.one_row or len(rows) == 2
        differ = {key for key in rows[0] if not np.array_equal(rows[0][key], rows[1][key], equal_nan=True)} - {"example_id"}
        assert differ and differ <= set(kind.unknown)
        wanted = {key: np.full_like(rows[1][key], kind.unknown[key]) for key in differ}
        assert name == "span" or all(np.array_equal(rows[1][key], wanted[key], equal_nan=True) for key in differ)
        # Predictions are one line an example, and can be scored by every metric.
        labels = ("x", "y") if kind.has_classes else ()
        lines = kind.predict([known, unknown], labels, outputs_of(kind, rows), about, TRANSFER)
        assert [line["id"] for line in lines] == ["a", "b"] and not lines[1]["gold"]
        assert name == "span" or scores_of(Task("stub", kind, kind.metrics, None), labels, lines[1:]) == {}, "not known"
        task = Task("stub", kind, kind.metrics, None)
        assert set(scores_of(task, labels, [lines[0], lines[0]], Scheme("IOB1", "PER"))) == set(kind.metrics)
        perfect = [
            line | {"predicted": line["gold"][0] if name in ("span", "sense", "candidate") else line["gold"]}
            for line in lines[:1] * 2
        ]
        assert scores_of(task, labels, perfect, Scheme("IOB1", "PER"))[kind.default_metrics[0]] in (0, 1)
        most_frequent = kind.most_frequent([known], labels, lines[:1])
        assert [line["predicted"] for line in most_frequent] in ([], [lines[0]["gold"]], [["y", "y"]], ["cd"])

    def test_the_average_of_a_run_with_itself_is_the_run(self, name):
        kind = KINDS[name]()
        if type(kind).average is Kind.average:
            return  # the next test
        label = LABELS.get(name, 1)
        example = Example("a", "f:1", **FULL | ({"texts": ("ab",)} if name == "choice" else {}), label=label)
        rows, about, _ = kind.encode(Inputs(LetterTokenizer(), Layout("pair", 16)), [example])
        labels = ("x", "y") if kind.has_classes else ()
        (line,) = kind.predict([example], labels, outputs_of(kind, rows), about, TRANSFER)
        found = kind.average([line, line], labels)
        assert {key: found[key] for key in ("id", "gold", "predicted")} == {
            key: line[key] for key in ("id", "gold", "predicted")
        }

    def test_a_kind_without_an_average_says_so(self, name):
        with pytest.raises(UserError, match=f"predictions of a {name} task have no probabilities to average"):
            Kind.average(KINDS[name](), [], ())

    def test_a_plain_kind_reads_its_label_from_a_table(self, name):
        kind = KINDS[name]
        if not kind.is_plain:
            with pytest.raises(NotImplementedError):
                kind.read_label("1", "f:1", ())
            return
        words = ("w",) if kind.of_words else ()
        assert kind.read_label(" 1 ", "f:1", words) in ("1", 1.0, ("1",))
        with pytest.raises(UserError, match="f:1"):
            kind.read_label(" ", "f:1", words)
