"""What a fine-tuning takes from its run, what it counts and writes, and that it resumes."""

import json

import numpy as np
import pytest

import bertlab
from bertlab.cli.main import main
from bertlab.train import loop
from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.build import build_finetuning
from bertlab.transfer.finetune import configure
from bertlab.transfer.scoring import average
from tests.transfer.planted import (
    FEW,
    HALVES,
    finetune,
    predictions,
    pretrained,
    write_task,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("finetune")


@pytest.fixture(scope="module")
def run(folder):
    return pretrained(folder, "bert")


@pytest.fixture(scope="module")
def tuned(run, folder):
    """Two tasks together: a text's class, and each word's tag."""
    tasks = [write_task(folder / "text"), write_task(folder / "tags", "tags", kind="tags")]
    finetune(run, "+".join(map(str, tasks)), folder / "tuned", train__steps=60)
    return folder / "tuned"


def leaves(run, step=None):
    return {
        f"{group}/{name}": leaf
        for group, tree in load_params(RunDirectory(run), step).items()
        for name, leaf in flat(tree).items()
    }


def flat(tree, prefix=""):
    if not isinstance(tree, dict):
        return {prefix: np.asarray(tree)}
    return {k: v for name in tree for k, v in flat(tree[name], f"{prefix}/{name}").items()}


@pytest.mark.slow
def test_two_tasks_share_a_body(tuned):
    result = json.loads((tuned / "result.json").read_text())
    scores = result["metrics"]["test"]
    assert scores["half/accuracy"] > 0.85 and scores["tags/accuracy"] > 0.85
    lines = predictions(tuned)
    assert [line["task"] for line in lines] == ["half"] * 40 + ["tags"] * 40
    assert result["cut"]["test"]["tags"] == counts(examples=(0, 40), words=(0, 240))
    classes = {name: ["even", "odd"] for name in ("half", "tags")}
    assert json.loads((tuned / "classes.json").read_text()) == classes


def counts(**units):
    pairs = {unit: dict(zip((unit, f"of_{unit}"), both)) for unit, both in units.items()}
    return {name: count for pair in pairs.values() for name, count in pair.items()}


@pytest.mark.slow
def test_lower_layers_alone_are_transferred(run, folder, tmp_path):
    task = write_task(folder / "text")
    settings = FEW | {"transfer.layers": 1, "train.steps": 0, "seed": 1}
    config, tasks = configure(run, str(task), "small", settings)
    loop.run(build_finetuning(config, tasks, tmp_path), tmp_path)
    ours, theirs = leaves(tmp_path), leaves(run)
    kernel = "body//blocks/up/kernel"
    np.testing.assert_array_equal(ours["body//token_embedding"], theirs["body//token_embedding"])
    np.testing.assert_array_equal(ours[kernel][0], theirs[kernel][0])
    assert not np.array_equal(ours[kernel][1], theirs[kernel][1])


@pytest.mark.slow
def test_the_delimited_layout_adds_three_tokens(folder, tmp_path):
    """And a run that was fine-tuned so is opened and fine-tuned again."""
    gpt, task = pretrained(folder, "gpt"), write_task(folder / "text")
    settings = {"transfer.warmup": 0.1, "train.steps": 1}
    finetune(gpt, task, tmp_path / "one", "gpt", **settings)
    before, after = leaves(gpt)["body//token_embedding"], leaves(tmp_path / "one")
    assert len(after["body//token_embedding"]) == len(before) + 3
    assert bertlab.load(tmp_path / "one").embed(["ban"])[0].states.shape == (3, 1, 16)
    finetune(tmp_path / "one", task, tmp_path / "two", "gpt", **settings)


@pytest.mark.slow
def test_a_stopped_fine_tuning_resumes_bit_for_bit(run, folder, tmp_path, monkeypatch):
    """With dropout, gradual unfreezing and buckets."""
    task = write_task(folder / "text")
    settings = {
        "head.dropout": 0.3,
        "optimizer.thaw": "gradual",
        "optimizer.thaw_steps": 2,
        "data.buckets": "(8,)",
        "train.steps": 12,
    }
    finetune(run, task, tmp_path / "whole", **settings)
    stops = iter([False] * 6 + [True])
    with monkeypatch.context() as patch:
        patch.setattr(loop.StopSignal, "requested", lambda self, step: next(stops))
        patch.setattr(loop.StopSignal, "status", 0)
        with pytest.raises(SystemExit):
            finetune(run, task, tmp_path / "stopped", **settings)
    assert not (tmp_path / "stopped" / "result.json").exists()
    finetune(run, task, tmp_path / "stopped", **settings)
    one, two = leaves(tmp_path / "whole"), leaves(tmp_path / "stopped")
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert predictions(tmp_path / "whole") == predictions(tmp_path / "stopped")


@pytest.mark.slow
def test_stored_states_are_those_of_a_frozen_body(run, folder, tmp_path):
    """But for their rounding to float16; the body's dropout is off in both."""
    task = write_task(folder / "tags", "tags", kind="tags")
    dropout = {"model.dropout": 0.5, "head.layers": "scalar_mix", "head.dropout": 0.0}
    frozen = finetune(run, task, tmp_path / "frozen", "probe", **dropout)
    stored = finetune(run, task, tmp_path / "stored", "stored", **dropout)
    for key in ("tags/loss", "tags/accuracy"):
        assert stored["metrics"]["test"][key] == pytest.approx(
            frozen["metrics"]["test"][key], abs=0.01
        )


@pytest.mark.slow
def test_averages_of_runs(run, tmp_path):
    runs = [tmp_path / "run0", tmp_path / "run1"]
    for number, path in enumerate(runs):
        finetune(run, write_task(tmp_path / "task"), path, train__steps=10, seed=number)
    result = average(runs, tmp_path / "average")
    shares = []
    for lines in zip(*map(predictions, runs)):
        shares.append(np.add(lines[0]["probabilities"], lines[1]["probabilities"]))
    right = [
        line["gold"] == ("even", "odd")[int(np.argmax(share))]
        for line, share in zip(predictions(runs[0]), shares)
    ]
    assert result["metrics"]["test"]["half/accuracy"] == pytest.approx(np.mean(right))


def test_unseen_tags_and_constant_labels_and_cuts(run, tmp_path, capsys):
    """A tag that train lacks is wrong and named; JSON has no NaN."""
    (tmp_path / "own.py").write_text(
        "from bertlab.transfer.tasks import conll\n\n"
        "TASK = conll('own', train='a.txt', valid='a.txt', test='b.txt', metrics=('accuracy',))\n"
    )
    (tmp_path / "a.txt").write_text("".join(f"{word} X\n" for word in HALVES[0][:8]) + "\n")
    (tmp_path / "a.txt").write_text((tmp_path / "a.txt").read_text() * 16)
    (tmp_path / "b.txt").write_text("".join(f"{word} Y\n" for word in HALVES[0][:12]) + "\n")
    result = finetune(run, tmp_path / "own.py", tmp_path / "out", train__steps=1)
    assert result["cut"]["test"]["own"] == counts(examples=(1, 1), words=(2, 12))
    assert result["metrics"]["test"]["own/accuracy"] == 0
    output = capsys.readouterr().out
    assert "train lacks tags" in output and "2 of 12 words" in output
    for path in (tmp_path / "out").rglob("*.json*"):
        assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()


REFUSED = [
    ({"transfer.layout": "both"}, "layout='both' must be one of pair"),
    ({"data.seq_len": 4096}, "config.data.seq_len=4096"),
    ({"head.chunk": 4}, "config.head.chunk"),
    ({"head.crf": True}, "config.head.crf"),
    ({"model.norm_placement": "pre"}, "config.model.norm_placement"),
    ({"train.tokens": 9}, "no such key: "),
    ({"transfer.features": True, "head.pooling": "pooler"}, "omit random"),
    ({"transfer.features": True, "transfer.layout": "delimited"}, "layout='delimited' and obj"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_do_not_fit_are_refused(settings, message, run, folder, tmp_path, capsys):
    task = write_task(folder / "text")
    finetune(run, task, tmp_path / "out", status=2, **settings)
    assert message in capsys.readouterr().err


def test_a_bidirectional_body_has_no_auxiliary_language_model(run, folder, tmp_path, capsys):
    finetune(run, write_task(folder / "text"), tmp_path / "out", "gpt", status=2)
    assert "language_model needs a body that reads in one" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_adapting_lowers_the_loss_on_the_task_text(folder, tmp_path):
    """The pretraining's text has few words that end in r, the task's half."""
    run, task = pretrained(folder, "awd_lstm"), write_task(folder / "text")
    out = tmp_path / "adapted"
    command = ["adapt", f"--run={run}", f"--task={task}", f"--workdir={out}", "--recipe=ulmfit"]
    few = ["--config.train.steps=60", "--config.mesh.data=1", "--config.data.batch_size=8"]
    assert main([*command, *few, "--config.optimizer.learning_rate=0.05"]) == 0
    losses = [line["ltr/loss"] for line in RunDirectory(out).metrics() if line["split"] == "valid"]
    assert losses[-1] < losses[0] - 0.2
    pieces = bertlab.load(out).tokenizer.pieces()
    assert pieces == bertlab.load(run).tokenizer.pieces()
    texts = [
        json.loads(line)["text"] for line in (out / "task_text.jsonl").read_text().splitlines()
    ]
    assert len(texts) == 96
    finetune(out, task, tmp_path / "tuned", train__steps=1)
