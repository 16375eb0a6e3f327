"""Zero-shot answers equal what log-probabilities by hand say; a run is answered, and what cannot be is refused."""

import json

import numpy as np
import pytest

import bertlab
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.transfer import zero_shot
from bertlab.transfer.examples import Example
from bertlab.transfer.finetune import finetune
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks import TaskData, find_task
from bertlab.transfer.zero_shot import CHOICES, OF_TASKS, THRESHOLD, heuristic_of, relative, separating, values_of
from tests.transfer.runs import fresh_run
from tests.transfer.test_likelihood import compile_quickly, ids_of, log_probabilities, model_of  # noqa: F401

# A heuristic, two examples, and by hand (text as it is read, number of pieces at its end that are scored) of each reading.
CASES = {
    "a text": (THRESHOLD, [dict(texts=("a bc",)), dict(texts=("d",))], [[("a bc", 3)], [("d", 1)]], True),
    "a pair": (
        THRESHOLD,
        [dict(texts=("a b", "c d e")), dict(texts=("abc", "g"))],
        [[("a b c d e", 3)], [("abc g", 1)]],
        True,
    ),
    "choices": (
        CHOICES,
        [dict(texts=("a b",), choices=("c d e", "c d gh")), dict(texts=("e",), choices=("ab", "ac c"))],
        [[("a b c d e", 1), ("a b c d gh", 2)], [("e ab", 2), ("e ac c", 3)]],
        True,
    ),
    "readings": (
        OF_TASKS["wsc"],
        [dict(texts=("a * b c * d # e # f gh",)), dict(texts=("# a # d e * gh *",))],
        [[("a b c d e f gh", 3), ("a b c d b c f gh", 3)], [("a d e gh", 4), ("gh d e gh", 4)]],
        True,
    ),
    "nouns": (
        OF_TASKS["dprd"],
        [
            dict(texts=("a b",), choices=("c d e", "gh d e"), targets=((0, 1), (0, 2))),
            dict(texts=("e",), choices=("ab c", "a b c"), targets=((0, 2), (0, 3))),
        ],
        [[("a b c d e", 2), ("a b gh d e", 2)], [("e ab c", 1), ("e a b c", 1)]],
        True,
    ),
    "sentiments": (
        OF_TASKS["sst2"],
        [dict(texts=("a b",)), dict(texts=("c",))],
        [[("a b very g", 1), ("a b very ab", 2)], [("c very g", 1), ("c very ab", 2)]],
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_values_equal_those_by_hand(case, monkeypatch):
    monkeypatch.setattr(zero_shot, "SENTIMENTS", ("g", "ab"))
    heuristic, examples, by_hand, mean = CASES[case]
    model = model_of("ltr", direction="left-to-right")
    found, _ = values_of(model, heuristic, [Example(str(i), "x:1", **of) for i, of in enumerate(examples)])
    expected = []
    for text, scored in (reading for of in by_hand for reading in of):
        ids = ids_of(model, text)
        logs = log_probabilities(model, [ids], "forward")[0]
        total = sum(logs[t - 1, ids[t]] for t in range(len(ids) - 1 - scored, len(ids) - 1))
        expected.append(total / scored if mean else total)
    np.testing.assert_allclose(found, np.reshape(expected, (2, -1)), rtol=1e-5)
    assert len({round(value, 3) for value in expected}) == len(expected)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_threshold_is_the_best_on_valid_from_either_side(side):
    values = np.random.default_rng(0).normal(size=300)
    labels = (side * (values - 0.4) > 0).astype(int)
    found, threshold = separating(values, labels.tolist(), METRICS["matthews"])
    right = (found * (values - threshold) > 0).astype(int) == labels
    assert found == side and abs(threshold - 0.4) < 0.05 and right.mean() > 0.98
    noisy = np.where(np.random.default_rng(1).random(300) < 0.2, 1 - labels, labels)
    agreed = lambda of, at: float(((of * (values - at) > 0) == noisy).mean())
    assert agreed(*separating(values, noisy.tolist(), METRICS["accuracy"])) == max(
        agreed(of, at) for of in (1.0, -1.0) for at in np.quantile(values, np.linspace(0, 1, 101))
    )


@pytest.mark.parametrize(
    ("task", "classes", "score", "expected"),
    [
        ("sst2", 2, 0.5, 0.0),
        ("sst2", 2, 0.932, 1.0),
        ("cola", 2, 0.0, 0.0),
        ("cola", 2, 0.227, 0.5),
        ("race", 4, 0.25, 0.0),
        ("race", 4, 0.42, 0.5),
        ("wsc", 2, 0.25, -0.5),
        ("copa", 2, 1.0, 1.0),
    ],
)
def test_relative_scores_lie_between_guesses_and_the_best_model(task, classes, score, expected):
    assert relative(score, find_task(task), classes) == pytest.approx(expected)


def test_a_run_is_answered_without_training(small_config, words_task, tmp_path):
    run, out = fresh_run(small_config("gpt"), tmp_path / "run"), tmp_path / "out"
    result = finetune(run, words_task, out, recipe="zero_shot")
    assert not Run(out).checkpoints.exists() and finetune(run, words_task, out, recipe="zero_shot") == result
    lines = {of: [json.loads(line) for line in Run(out).predictions(of).read().splitlines()] for of in ("valid", "test")}
    data = find_task(words_task).load(None, Run(out).config.read()["task_data"])
    for split, of in lines.items():
        right = np.mean([line["predicted"] == line["gold"] for line in of])
        assert result["metrics"][split]["words/accuracy"] == pytest.approx(right)
        assert result["metrics"][split]["words/relative"] == pytest.approx(2 * right - 1)
        assert 0 < Run(out).most_frequent.read()[split]["words/accuracy"] < 1
        scores = bertlab.load(run).score([example.texts[0] for example in data.examples[split]], "left-to-right", closing=False)
        means = np.array([score.log_probability / score.tokens for score in scores])
        second = np.array([line["predicted"] == data.labels[1] for line in of])
        if split == "valid":
            chosen = separating(means, [example.label for example in data.examples[split]], METRICS["accuracy"])
        np.testing.assert_array_equal(second, chosen[0] * (means - chosen[1]) > 0)
    assert 0 < np.mean([line["predicted"] == data.labels[1] for line in lines["valid"]]) < 1


def test_what_cannot_be_answered_is_refused(small_config, words_task, bert_run, tmp_path):
    lines = [f"object {i}\t{'abc'[i % 3]}" for i in range(30)]
    (tmp_path / "three.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    own = 'from bertlab.transfer.tasks import table\n\nTASK = table("three", train="three.tsv", text="text", label="label")\n'
    (tmp_path / "three.py").write_text(own)
    run = fresh_run(small_config("gpt"), tmp_path / "run")
    for source, task, changes, message in (
        (run, str(tmp_path / "three.py"), {}, "'three' is neither"),
        (run, f"{words_task}+{tmp_path / 'three.py'}", {"task_data.directory": ""}, "one task"),
        (run, words_task, {"transfer.random": True}, "omit other tasks and transfer.random"),
        (bert_run, words_task, {}, "this one was trained with mlm, nsp; pretrain with ltr"),
    ):
        with pytest.raises(UserError, match=message):
            finetune(source, task, tmp_path / "none", changes, recipe="zero_shot")
        assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match=r"wsc.jsonl:1: no \* noun \* and # pronoun # are marked"):
        OF_TASKS["wsc"].asks(Example("0", "wsc.jsonl:1", ("a b c",)))
    choice = lambda *choices: Example("0", "x:1", ("a",), 0, choices=choices)
    assert heuristic_of(find_task("swag"), TaskData((), {"train": [choice("b", "c")]})) is CHOICES
    candidate = TaskData(("false", "true"), {"train": [choice("b")]})
    with pytest.raises(UserError, match="'record' is neither"):
        heuristic_of(find_task("record"), candidate)
    with pytest.raises(UserError, match="3 choices, where others have 2"):
        values_of(model_of("ltr", direction="left-to-right"), CHOICES, [choice("b", "c"), choice("b", "c", "d")])
