"""Writers for Weights & Biases, MLflow and Aim, offline: what is read back with each client is what metrics.jsonl has."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertlab.config import base_config, load_config
from bertlab.errors import RunFailed, UserError
from bertlab.train import dashboards
from bertlab.train.metrics import open_writers
from tests.conftest import ROOT

LINES = [
    {"step": 0, "split": "valid", "loss": 6.5, "tokens": 0, "data_hash": "a"},
    {"step": 10, "split": "train", "loss": 5.25, "tokens": 100, "data_hash": "b"},
    {"step": 20, "split": "train", "loss": 4.5, "tokens": 200, "data_hash": "c"},
    {"step": 30, "split": "train", "loss": 4.0, "tokens": 300, "data_hash": "d"},
]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Each client writes below the test's folder and asks no server."""
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DATA_DIR": str(tmp_path / "data"),
        "WANDB_CACHE_DIR": str(tmp_path / "cache"),
        "WANDB_CONFIG_DIR": str(tmp_path / "settings"),
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def write(name: str, workdir: Path) -> None:
    """A run that is killed after its third line, goes on from the checkpoint of step 10, and writes two lines."""
    config = load_config(f"{ROOT}/experiments/pretrain/bert.py", {"writers": name, "train.steps": 100})
    workdir.mkdir()
    for resumed, lines in ((None, LINES[:3]), (10, LINES[2:])):
        writers = open_writers(config, workdir, resumed)
        for line in lines:
            for writer in writers:
                writer.write(line)
        for writer in writers:
            writer.close()
    assert [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()] == LINES


def points(metric: str) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of a metric of LINES, by split."""
    return {split: [(line["step"], line[metric]) for line in LINES if line["split"] == split] for split in ("train", "valid")}


def test_mlflow_has_every_line_once_and_the_config(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    write("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("bertlab").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["optimizer.name"] == "adam" and run.data.params["train.steps"] == "100"
    for metric in ("loss", "tokens"):
        for split, expected in points(metric).items():
            assert [(of.step, of.value) for of in client.get_metric_history(run.info.run_id, f"{split}/{metric}")] == expected


def test_aim_has_every_line_once_and_the_config(tmp_path):
    aim = pytest.importorskip("aim")
    from aim.storage.context import Context

    aim.Repo.from_path(str(tmp_path), init=True)
    write("aim", tmp_path / "run")
    run = aim.Run((tmp_path / "run/dashboards/aim.txt").read_text().strip(), repo=str(tmp_path), system_tracking_interval=None)
    assert run.name == "run" and run["config"]["optimizer.name"] == "adam" and run["config"]["train.steps"] == 100
    for metric in ("loss", "tokens"):
        for split, expected in points(metric).items():
            frame = run.get_metric(metric, Context({"split": split})).dataframe()
            assert sorted(zip(frame["step"], frame["value"])) == expected
    run.close()


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: seven bytes, then LevelDB's log format (blocks of 32 KiB; checksum, length, type)."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


def records_until_exit(file: Path) -> list:
    """All records of a .wandb file; its own process writes the last ones some time after `finish` has returned."""
    from wandb.proto import wandb_internal_pb2

    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = [wandb_internal_pb2.Record.FromString(record) for record in records_of(file.read_bytes())]
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{file} has no record of its run's end")


def test_wandb_has_every_line_once_and_the_config(tmp_path):
    pytest.importorskip("wandb")
    write("wandb", tmp_path / "run")
    files = sorted((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.parent.name)
    assert len(files) == 2, "one for each process; `wandb sync` joins them, as their run has one name"
    names, configs, rows = set(), [], []
    for file in files:
        for record in records_until_exit(file):
            if record.HasField("run"):
                names.add(record.run.run_id)
                configs.append({of.key: json.loads(of.value_json) for of in record.run.config.update})
            if record.HasField("history"):
                rows.append({of.key or of.nested_key[0]: json.loads(of.value_json) for of in record.history.item})
    assert names == {(tmp_path / "run/dashboards/wandb.txt").read_text().strip()}
    assert configs[0]["optimizer"]["name"] == "adam" and configs[0]["train"]["steps"] == 100
    for metric in ("loss", "tokens"):
        for split, expected in points(metric).items():
            assert [(row["step"], row[key]) for row in rows if (key := f"{split}/{metric}") in row] == expected


class Failing(dashboards.Dashboard):
    """A client that is always there."""

    name = "json"
    fails_at = -1
    ended = 0

    def _begin(self, directory, config, begun):
        if self.fails_at == 0:
            raise ValueError("no\nlogin")
        return "x"

    def _send(self, step, split, numbers):
        if step == self.fails_at:
            raise OSError("no network")

    def _end(self):
        type(self).ended += 1


def test_a_resumed_run_sends_no_line_twice(tmp_path, monkeypatch):
    """Of any client: the tests above are run only where theirs is installed."""
    sent = []
    monkeypatch.setattr(Failing, "ended", 0)
    monkeypatch.setattr(
        Failing, "_send", lambda _, step, split, numbers: sent.append({"step": step, "split": split, **numbers})
    )
    monkeypatch.setitem(dashboards.DASHBOARDS, "wandb", Failing)
    write("wandb", tmp_path / "run")
    assert sent == [{name: value for name, value in line.items() if name != "data_hash"} for line in LINES]


def test_a_dashboard_that_fails_does_not_end_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Failing, "fails_at", 10)
    monkeypatch.setattr(Failing, "ended", 0)
    monkeypatch.setitem(dashboards.DASHBOARDS, "wandb", Failing)
    write("wandb", tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "no network" in lines[0] and "metrics.jsonl goes on" in lines[0]
    assert Failing.ended == 1, "of the second process; the first one's had failed"


def test_a_dashboard_that_cannot_begin_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(Failing, "fails_at", 0)
    with pytest.raises(RunFailed, match=r"config\.writers=json: no login; set it up") as error:
        Failing(tmp_path, base_config().to_dict(), ())
    assert "\n" not in str(error.value) and not [*tmp_path.rglob("*.txt")]


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_a_client_that_is_not_installed_is_named_with_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"config\.writers={name} needs the package {name}; .*-e '\.\[{name}\]'"):
        dashboards.DASHBOARDS[name](tmp_path, base_config().to_dict(), ())
