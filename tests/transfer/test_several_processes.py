"""Several real processes on this machine work on one command; what one process with as many devices does is the truth."""

import json
import signal

import numpy as np
import pytest

from bertlab import cli
from bertlab.run import Run
from bertlab.transfer.rows import Inference
from tests.several import assert_ended_well, assert_it_says_why_it_ended, starting
from tests.transfer.runs import fresh_run

NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)


@pytest.fixture
def start(tmp_path):
    """`tests.several.starting` in the test's folder."""
    with starting(tmp_path) as begin:
        yield begin


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("count", "rounding", "more"),
    [
        # A sum over two devices has one order; over more, processes add in another order than one process does.
        pytest.param(2, 0.0, (), marks=NIGHTLY),
        pytest.param(4, 1e-4, ("--config.data.buckets=16,32", "--config.data.seq_len=32"), marks=NIGHTLY),
    ],
)
def test_processes_fine_tune_as_one(count, rounding, more, bert_run, words_task, start, tmp_path):
    settings = ["--config.train.steps=12", "--config.train.log_every=3", "--config.data.batch_size=8", *more]
    command = lambda name: ["finetune", f"--run={bert_run}", f"--task={words_task}", f"--workdir={tmp_path / name}", *settings]
    assert_ended_well(start(command("one"), 1, count))
    assert_ended_well(start(command("several"), count))
    one, several = tmp_path / "one", tmp_path / "several"
    expected, found = (lines_of(directory / "metrics.jsonl") for directory in (one, several))
    what = lambda lines: [(line["step"], line["split"], line["tokens"], line.get("data_hash")) for line in lines]
    assert what(found) == what(expected), "the same batches, each line once"
    losses = [[line["words/loss"] for line in lines] for lines in (found, expected)]
    np.testing.assert_allclose(*losses, rtol=rounding)
    for split in ("valid", "test"):
        expected, found = (lines_of(directory / "predictions" / f"{split}.jsonl") for directory in (one, several))
        assert len(found) > 8
        probabilities = [[line.pop("probabilities") for line in lines] for lines in (found, expected)]
        np.testing.assert_allclose(*probabilities, rtol=rounding)
        assert found == expected, "order, gold and predicted answers"
    assert sorted(path.name for path in several.iterdir()) == sorted(path.name for path in one.iterdir())


SMALL_SHARDS = """
import functools
from bertlab.transfer import stored
stored.extract = functools.partial(stored.extract, shard_bytes=20_000)
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_two_processes_train_on_stored_states_as_one(bert_run, words_task, start, tmp_path):
    settings = ["--config.transfer.features=True", "--config.train.steps=6", "--config.data.batch_size=8"]
    of = lambda name: [f"--workdir={tmp_path / name}", f"--config.task_data.pretraining.directory={tmp_path / name}-cache"]
    command = lambda name: ["finetune", f"--run={bert_run}", f"--task={words_task}", *of(name), *settings]
    assert_ended_well(start(command("one"), 1, 2, each=SMALL_SHARDS))
    assert_ended_well(start(command("several"), 2, each=SMALL_SHARDS))
    features = [{path.relative_to(top): path.read_bytes() for path in top.rglob("*.*")} for top in tmp_path.glob("*-cache")]
    assert features[0] == features[1] and len(features[0]) > 10, "bit for bit"
    expected, found = ((tmp_path / name / "predictions" / "test.jsonl").read_text() for name in ("one", "several"))
    assert found == expected


@pytest.mark.parametrize("count", [pytest.param(2, marks=NIGHTLY), pytest.param(4, marks=NIGHTLY)])
def test_processes_adapt_as_one(count, bert_run, words_task, start, tmp_path):
    settings = ["--config.data.shards=4", "--config.train.steps=8", "--config.train.log_every=2", "--config.mesh.data=-1"]
    command = lambda name: ["adapt", f"--run={bert_run}", f"--task={words_task}", f"--workdir={tmp_path / name}", *settings]
    assert_ended_well(start(command("one"), 1, count))
    assert_ended_well(start(command("several"), count))
    one, several = tmp_path / "one", tmp_path / "several"
    assert (several / "task_text.jsonl").read_text() == (one / "task_text.jsonl").read_text()
    expected, found = (lines_of(directory / "metrics.jsonl") for directory in (one, several))
    what = lambda lines: [(line["step"], line["split"], line["tokens"], line.get("data_hash")) for line in lines]
    assert what(found) == what(expected), "the same batches, each line once"
    # Over more than two devices, processes add in another order than one process does.
    np.testing.assert_allclose(*([line["loss"] for line in lines] for lines in (found, expected)), rtol=1e-4)


@pytest.fixture
def texts(tmp_path):
    """A file of 70 texts of unlike lengths: three batches."""
    words = "the value of an object is a name for the same module".split()
    file = tmp_path / "texts.txt"
    file.write_text("".join(" ".join(words[i % 5 : 2 + i % 11]) + f" {i}\n" for i in range(70)))
    return file


@pytest.fixture
def pairs(tmp_path):
    """A file of 12 minimal pairs of two paradigms."""
    file = tmp_path / "pairs.jsonl"
    of = lambda i: {"sentence_good": f"the object is {i}", "sentence_bad": f"object the {i} is", "UID": f"order {i % 2}"}
    file.write_text("".join(json.dumps(of(i)) + "\n" for i in range(12)))
    return file


def test_each_batch_is_computed_by_one_process():
    batches = [([i, i + 1], {}) for i in range(0, 14, 2)]
    shares = [[*Inference(None, {}, (i, 3)).own(iter(batches), "scoring", 14)] for i in range(3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert sorted(batch[0] for share in shares for batch in share) == [batch[0] for batch in batches]


@pytest.mark.nightly
def test_two_processes_score_texts_as_one(bert_run, texts, pairs, start, tmp_path):
    command = lambda name: ["evaluate", f"--run={bert_run}", f"--text={texts}", f"--minimal_pairs={pairs}", f"--out={name}"]
    assert cli.main(command(tmp_path / "one.json")) == 0
    assert_ended_well(start(command(tmp_path / "several.json"), 2))
    assert (tmp_path / "several.json").read_text() == (tmp_path / "one.json").read_text(), "bit for bit"
    assert {"bits_per_byte", "minimal_pairs"} == json.loads((tmp_path / "one.json").read_text()).keys()


@pytest.mark.slow
@pytest.mark.nightly
def test_four_processes_score_held_out_text_as_one(small_config, start, tmp_path):
    run = fresh_run(small_config("elmo"), tmp_path / "run")
    command = lambda name: ["evaluate", f"--run={run}", "--limit=40", f"--out={tmp_path / name}", "--json"]
    assert_ended_well(start(command("one.json"), 1))
    several = start(command("several.json"), 4)
    assert_ended_well(several)
    assert (tmp_path / "several.json").read_text() == (tmp_path / "one.json").read_text(), "bit for bit"
    assert json.loads(several[0].log.read_text().splitlines()[-1]) == json.loads((tmp_path / "one.json").read_text())


@pytest.mark.slow
@pytest.mark.nightly
def test_two_processes_answer_without_training_as_one(small_config, words_task, start, tmp_path):
    run = fresh_run(small_config("gpt"), tmp_path / "run")
    command = lambda name: ["finetune", f"--run={run}", f"--task={words_task}", "--recipe=zero_shot", f"--workdir={name}"]
    one, several = Run(tmp_path / "one"), Run(tmp_path / "several")
    assert cli.main(command(one)) == 0
    assert_ended_well(start(command(several), 2))
    assert several.result.read() == one.result.read()
    for split in ("valid", "test"):
        assert several.predictions(split).read() == one.predictions(split).read(), "bit for bit"


@pytest.mark.parametrize(
    ("count", "name", "how"),
    [
        pytest.param(2, "states.npz", (), marks=NIGHTLY),
        pytest.param(4, "states.csv", ("--special_tokens", "--layers=0,-1"), marks=NIGHTLY),
        pytest.param(2, "vectors.safetensors", ("--pooling=max",), marks=NIGHTLY),
    ],
)
def test_processes_embed_as_one(count, name, how, bert_run, texts, start, tmp_path):
    files = [tmp_path / "of_one" / name, tmp_path / "of_several" / name]
    command = lambda file: ["embed", f"--run={bert_run}", f"--text={texts}", f"--out={file}", *how]
    assert cli.main(command(files[0])) == 0
    assert_ended_well(start(command(files[1]), count))
    assert files[1].read_bytes() == files[0].read_bytes(), "bit for bit"
    assert [path.name for path in files[1].parent.iterdir()] == [name], "no part is left"


def test_states_that_are_carried_on_are_of_one_process(monkeypatch, capsys):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    assert cli.main(["embed", "--run=x", "--text=x", "--out=x.npz", "--carry"]) == 2
    assert "--carry reads each line after the one before it, so embed runs in one process" in capsys.readouterr().err


SIGNALLED = """
import os, signal
from bertlab.transfer.rows import Inference
Inference.__call__ = lambda *_: os.kill(os.getpid(), {signal})
"""


@pytest.mark.parametrize(
    ("sent", "status"),
    [pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=NIGHTLY), pytest.param(signal.SIGTERM, 130, marks=NIGHTLY)],
)
def test_a_process_that_ends_is_noticed_by_the_others_and_nothing_is_written(sent, status, bert_run, texts, start, tmp_path):
    out = tmp_path / "of_several" / "states.npz"
    out.parent.mkdir()
    two = start(["embed", f"--run={bert_run}", f"--text={texts}", f"--out={out}"], 2, last=SIGNALLED.format(signal=int(sent)))
    assert two[1].wait(timeout=240) == status
    assert_it_says_why_it_ended(two[0], "process 0 of 2")
    assert not out.exists()
