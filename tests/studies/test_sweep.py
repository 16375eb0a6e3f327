"""Sweeps end to end: rates, shares, resume; what a sweep refuses; the launchers."""

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest

from bertlab.errors import UserError
from bertlab.studies import worker
from bertlab.studies.launchers import Job, build_launcher
from bertlab.studies.launchers.local import Local, split
from bertlab.studies.plan import make_plan
from bertlab.studies.study import Study
from bertlab.studies.sweep import sweep

CONFIG = str(Path(__file__).parent / "small_config.py")
OBJECTIVES = {
    "MLM": {},
    "LTR": {"config": f"{CONFIG}:objectives=ltr", "model.direction": "left-to-right"},
}


class Here:
    """A launcher that executes runs in this process.

    Attributes:
        jobs: 2.
        started: Names of runs.
    """

    jobs = 2

    def __init__(self):
        self.started = []

    def start(self, directory):
        self.started.append(directory.name)
        try:
            worker.execute_directory(directory)
        except Exception:
            assert (directory / "failed.json").exists()
        return Job(lambda: True, lambda: None)


def make(tmp_path, axes=None, **settings):
    axes = axes or {"objective": OBJECTIVES, "seed": [1, 2]}
    overrides = {"data.directory": str(tmp_path / "cache"), **settings.pop("overrides", {})}
    return Study("s", "T", "?", CONFIG, axes, overrides=overrides, **settings)


def swept(study, workdir):
    launcher = Here()
    assert sweep(study, workdir, launcher)
    return launcher.started


def result(directory):
    return json.loads((directory / "result.json").read_text())


def test_a_sweep_resumes_with_what_is_missing(tmp_path):
    study, workdir = make(tmp_path), tmp_path / "study"
    assert swept(study, workdir) == ["mlm-seed=1", "mlm-seed=2", "ltr-seed=1", "ltr-seed=2"]
    before = result(workdir / "ltr-seed=2")["metrics"]
    assert swept(study, workdir) == []
    shutil.rmtree(workdir / "ltr-seed=2")
    assert swept(study, workdir) == ["ltr-seed=2"]
    assert result(workdir / "ltr-seed=2")["metrics"] == before
    with pytest.raises(UserError, match=r"train\.steps is .* 5 here"):
        swept(make(tmp_path, overrides={"train.steps": 5}), workdir)


def test_what_a_config_file_gives_is_one_of_a_runs_settings(tmp_path):
    path, study = tmp_path / "own.py", make(tmp_path, {"seed": [1]})
    path.write_text(Path(CONFIG).read_text())
    study = dataclasses.replace(study, config=str(path))
    assert swept(study, tmp_path / "study") == ["seed=1"]
    changed = "\n\nfirst = get_config\n\n\ndef get_config(arguments=None):\n"
    changed += "    config = first(arguments)\n    config.optimizer.b2 = 0.9\n    return config\n"
    path.write_text(path.read_text() + changed)
    with pytest.raises(UserError, match=r"optimizer\.b2"):
        swept(study, tmp_path / "study")


@pytest.mark.slow
def test_a_rate_is_selected_before_the_seeds_are_run(tmp_path):
    study, workdir = make(tmp_path, rates=(0.5, 1.0)), tmp_path / "study"
    candidates = [f"{name}-seed=1-rate={rate}" for name in ("mlm", "ltr") for rate in (0.005, 0.01)]
    ran = swept(study, workdir)
    described = json.loads((workdir / "study.json").read_text())
    # Of two rates the better one is at an edge, so each search has a third one beyond it.
    tried = [list(search["candidates"]) for search in described["searches"]]
    assert [len(names) for names in tried] == [3, 3]
    beyond = [name for names in tried for name in names if name not in candidates]
    assert ran == [*candidates, *beyond, "mlm-seed=2", "ltr-seed=2"]
    losses = {name: result(workdir / name)["metrics"]["valid"]["loss"] for name in tried[0]}
    first, second, *_ = described["runs"]
    winner = min(tried[0], key=losses.get)
    assert first["shares"] == {"pretrain": winner} and not second["shares"]
    rate = second["overrides"].get("optimizer.learning_rate", 0.01)
    assert rate == described["searches"][0]["candidates"][winner]


def test_runs_that_read_other_data_are_not_taken_for_finished(tmp_path):
    study, workdir = make(tmp_path, {"seed": [1]}), tmp_path / "study"
    assert swept(study, workdir) == ["seed=1"]
    for name in ("data", "result"):
        path = workdir / "seed=1" / f"{name}.json"
        content = json.loads(path.read_text()) | {"data_hash": ["another"]}
        path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="different data"):
        swept(study, workdir)


def test_a_failed_run_stops_neither_the_others_nor_the_next_sweep(tmp_path):
    study, workdir = make(tmp_path, {"seed": [1, 2]}), tmp_path / "study"
    (workdir / "seed=1").mkdir(parents=True)
    (workdir / "seed=1" / "config.json").mkdir()
    assert not sweep(study, workdir, Here())
    assert (workdir / "seed=2" / "result.json").exists()
    shutil.rmtree(workdir / "seed=1" / "config.json")
    assert swept(study, workdir) == ["seed=1"]


@pytest.mark.slow
def test_fine_tunings_share_a_pretraining_and_average(tmp_path):
    (tmp_path / "task.py").write_text(
        "from bertlab.transfer.tasks import table\n"
        "TASK = table('mine', train='a.tsv', valid='a.tsv', test='a.tsv', text='text',"
        " label='label')\n"
    )
    rows = "".join(f"w{n % 7} w{n % 5}\t{'yes' if n % 2 else 'no'}\n" for n in range(24))
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{rows}")
    settings = {"task": str(tmp_path / "task.py"), "train.steps": 2, "data.batch_size": 8}
    settings |= {"mesh.data": 1}
    rates = {"low": {"finetune.optimizer.learning_rate": 1e-3}, "high": {}}
    rates["both"] = {"config": "average:low,high"}
    study = make(tmp_path, {"rate": rates, "seed": [1]}, downstream={"mine": settings})
    workdir = tmp_path / "study"
    assert swept(study, workdir) == ["low-seed=1", "high-seed=1", "both-seed=1"]
    assert not (workdir / "high-seed=1" / "result.json").exists()
    for name in ("low", "high", "both"):
        assert "test" in result(workdir / f"{name}-seed=1" / "finetune" / "mine")["metrics"]
    data = workdir / "low-seed=1" / "finetune" / "mine" / "data.json"
    before = data.read_text()
    data.write_text(json.dumps(json.loads(before) | {"examples": "of another file"}))
    with pytest.raises(UserError, match="other examples of mine"):
        swept(study, workdir)
    data.write_text(before)
    (workdir / "low-seed=1" / "result.json").unlink()
    with pytest.raises(UserError, match="is gone"):
        swept(study, workdir)


def test_cores_are_shared_out():
    assert split([0, 1, 2, 3, 4], 2) == [[0, 1, 2], [3, 4]]
    assert split(["0"], 2) == [[], []]


def test_more_jobs_than_gpus_share_them(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert Local(3)._gpus == [["0"], ["1"], ["0"]]
    assert Local(1)._gpus == [["0", "1"]]


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called")  # Ray's, in a process with JAX
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("local", {}),
        ("slurm", {"cluster": "local", "timeout_min": 5}),
        ("ray", {"num_cpus": 1}),
    ],
)
def test_launchers_execute_runs_in_processes_of_their_own(name, options, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    launcher = build_launcher(name, 2, options)
    assert sweep(make(tmp_path, {"seed": [1, 2]}), tmp_path / "study", launcher)
    assert result(tmp_path / "study" / "seed=2")["step"] == 4


@pytest.mark.slow
def test_a_sweep_waits_for_the_run_of_a_killed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    study, workdir = make(tmp_path, {"seed": [1]}), tmp_path / "study"
    (run,) = make_plan(study, workdir).runs
    left = Local(1).start(worker.write_run(run, workdir))
    assert sweep(study, workdir, Local(1))
    while not left.done():
        time.sleep(0.1)
    assert not (workdir / "seed=1" / "failed.json").exists()
