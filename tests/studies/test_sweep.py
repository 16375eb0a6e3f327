import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict
from rich.console import Console

import bertlab
from bertlab.errors import UserError
from bertlab.studies.launchers import Local
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.sweep import sweep
from bertlab.studies.views import last_step, progress
from tests.conftest import ROOT

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def workers_find_the_fake_runner(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(Path(bertlab.__file__).parent.parent)]))


def study(modes, seeds=(1,), **options):
    axes = {"mode": {name: {"mode": mode, "which": name} for name, mode in modes.items()}, "seed": list(seeds)}
    return Study(
        name="s",
        title="S",
        question="?",
        config="base.py",
        axes=axes,
        overrides={"train.steps": 10} | options.pop("overrides", {}),
        **options,
    )


def load_config(spec, overrides):
    data = {"corpus": overrides.get("data.corpus", "pydocs"), "batch_size": 4, "seq_len": 8}
    return ConfigDict({"train": {"steps": overrides["train.steps"]}, "data": data})


def run_sweep(study, workdir, terminal=False, **options):
    """(exit status, what was printed, corpora prepared)."""
    out, prepared = io.StringIO(), []
    console = Console(file=out, width=200, force_terminal=terminal)
    status = sweep(
        study,
        workdir,
        runner="fake_runner:run",
        load_config=load_config,
        prepare=lambda data: prepared.append(data.corpus),
        console=console,
        **options,
    )
    return status, out.getvalue(), prepared


def calls(workdir, name):
    path = workdir / name / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_finished_runs_are_skipped_and_unfinished_ones_run_again(tmp_path):
    spec = study({"A": "finish", "B": "finish"}, downstream=("package",))
    assert run_sweep(spec, tmp_path)[0] == 0
    (tmp_path / "b-seed=1" / "finetune" / "package" / "result.json").unlink()
    status, printed, _ = run_sweep(spec, tmp_path)
    assert status == 0
    assert len(calls(tmp_path, "a-seed=1")) == 1
    assert len(calls(tmp_path, "b-seed=1")) == 2
    assert "1 finished before, 1 to do" in printed
    status, _, prepared = run_sweep(spec, tmp_path)
    assert (status, prepared, len(calls(tmp_path, "b-seed=1"))) == (0, [], 2)


def test_goes_on_after_failures_and_says_which_and_why(tmp_path):
    spec = study({"A": "fail", "B": "die", "C": "leave", "D": "finish"})
    status, printed, _ = run_sweep(spec, tmp_path)
    assert status == 1
    assert (tmp_path / "d-seed=1" / "result.json").exists()
    log = tmp_path / "a-seed=1" / "log.txt"
    assert f"failed: a-seed=1: RuntimeError: the step went wrong (log: {log})" in printed
    assert "Traceback" in log.read_text()
    assert "failed: b-seed=1: killed by SIGKILL" in printed
    assert "failed: c-seed=1: stopped before it was finished" in printed
    assert "3 of 4 runs failed" in printed
    assert (tmp_path / "a-seed=1" / "failed.txt").read_text() == "RuntimeError: the step went wrong\n"


def test_a_mended_run_is_no_longer_failed(tmp_path):
    spec = study({"A": "fail"})
    assert run_sweep(spec, tmp_path)[0] == 1
    (tmp_path / "mended").touch()
    assert run_sweep(spec, tmp_path)[0] == 0
    assert not (tmp_path / "a-seed=1" / "failed.txt").exists()


def test_two_jobs_run_at_a_time(tmp_path):
    status, printed, _ = run_sweep(study({"A": "finish", "B": "finish", "C": "finish"}), tmp_path, launcher=Local(2))
    assert status == 0
    lines = [line for line in printed.splitlines() if ": " in line and "seed=1" in line]
    assert [line.endswith("started") for line in lines[:2]] == [True, True] and not lines[2].endswith("started")


def test_each_distinct_data_config_is_prepared_once_before_any_run(tmp_path):
    axes = {"corpus": {"p": {"data.corpus": "pydocs"}, "t": {"data.corpus": "text:*.txt"}}, "seed": [1, 2]}
    spec = Study(name="s", title="", question="", config="base.py", axes=axes, overrides={"train.steps": 1})
    assert run_sweep(spec, tmp_path)[2] == ["pydocs", "text:*.txt"]


def test_dry_run_lists_everything_with_its_cost_and_starts_nothing(tmp_path):
    bert = "experiments/pretrain/bert.py:corpus=pydocs,objectives="
    spec = Study(
        name="s",
        title="",
        question="",
        config=f"{ROOT}/{bert}ltr",
        axes={"head": {"A": {}, "B": {"finetune.head.bilstm": 2}}, "seed": [1]},
        overrides={
            "train.steps": 10,
            "optimizer.warmup_steps": 2,
            "data.batch_size": 4,
            "data.seq_len": 8,
            "model.direction": "left-to-right",
            "mesh.data": 1,
        },
        downstream={"package": {"train.steps": 5, "data.seq_len": 32}},
    )
    out, workdir = io.StringIO(), tmp_path / "new"
    assert sweep(spec, workdir, dry_run=True, console=Console(file=out, width=200)) == 0
    printed = out.getvalue().splitlines()
    assert not workdir.exists()
    of_tasks = 5 * 16 * 32
    assert printed[0].startswith("in all runs: train.steps=10 optimizer.warmup_steps=2")
    assert printed[1].startswith(f"a-seed=1  (to do)  10 steps, {10 * 4 * 8 + of_tasks:,} tokens, ")
    assert printed[2].endswith("bert.py:corpus=pydocs,objectives=ltr") and printed[3] == "    then fine-tuned on package"
    assert printed[4].startswith(f"b-seed=1  (to do)  pretrained by a-seed=1, {of_tasks:,} tokens, ")
    assert printed[-1].startswith(f"s: 2 runs, 2 to do: {10 * 4 * 8 + 2 * of_tasks:,} tokens")
    assert "1 at a time, roughly, at 15 % of this machine" in printed[-1]


def test_a_run_waits_for_the_one_whose_pretraining_it_shares(tmp_path):
    axes = {"head": {"A": {}, "B": {"finetune.head.bilstm": 2}}, "seed": [1, 2]}
    spec = Study(name="s", title="", question="", config="base.py", axes=axes, overrides={"train.steps": 1}, downstream=["x"])
    status, printed, _ = run_sweep(spec, tmp_path, launcher=Local(2))
    assert status == 0
    started = [line.partition(":")[0] for line in printed.splitlines() if line.endswith(": started")]
    assert set(started[:2]) == {"a-seed=1", "a-seed=2"}, "what others stand on comes first"
    assert not (tmp_path / "b-seed=1" / "result.json").exists(), "it pretrains nothing itself"
    assert (tmp_path / "b-seed=1" / "finetune" / "x" / "result.json").exists()


def test_what_stands_on_a_failed_run_is_failed_too_and_mends_with_it(tmp_path):
    axes = {"head": {"A": {}, "B": {"finetune.head.bilstm": 2}}, "seed": [1]}
    given = {"overrides": {"train.steps": 1, "mode": "fail"}, "downstream": ["x"]}
    spec = Study(name="s", title="", question="", config="base.py", axes=axes, **given)
    status, printed, _ = run_sweep(spec, tmp_path)
    assert status == 1
    assert "failed: b-seed=1: it waits for a-seed=1" in printed and "2 of 2 runs failed" in printed
    (tmp_path / "mended").touch()
    assert run_sweep(spec, tmp_path)[0] == 0
    assert not list(tmp_path.glob("*/failed.txt"))


def test_two_processes_are_never_at_work_on_one_run(tmp_path):
    """A worker that a killed sweep left behind, here a lock held by this process, is waited for."""
    (tmp_path / "a-seed=1").mkdir()
    with open(tmp_path / "a-seed=1" / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(1.5, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        assert run_sweep(study({"A": "finish"}), tmp_path)[0] == 0
    assert "waiting for another process that is at work on a-seed=1" in (tmp_path / "a-seed=1" / "log.txt").read_text()


def test_terminal_view_shows_a_bar_for_the_sweep(tmp_path):
    status, printed, _ = run_sweep(study({"A": "finish", "[B]": "fail"}), tmp_path, terminal=True)
    assert status == 1
    assert "all runs" in printed
    assert "2/2" in printed


def test_another_study_in_the_workdir_is_refused(tmp_path):
    run_sweep(study({"A": "finish", "B": "finish"}), tmp_path)
    with pytest.raises(UserError, match=r"train.steps is 10, not 20 \(and 1 more"):
        run_sweep(study({"A": "finish", "B": "finish"}, overrides={"train.steps": 20}), tmp_path)
    with pytest.raises(UserError, match="its run b-seed=1 is not in this study"):
        run_sweep(study({"A": "finish"}), tmp_path)
    other = Study(name="other", title="", question="", config="base.py", axes={}, overrides={"train.steps": 1})
    with pytest.raises(UserError, match='its name is "s", not "other"'):
        run_sweep(other, tmp_path)


def test_a_study_that_has_grown_keeps_its_workdir(tmp_path):
    run_sweep(study({"A": "finish"}), tmp_path)
    status, printed, _ = run_sweep(study({"A": "finish", "B": "finish"}, seeds=(1, 2)), tmp_path)
    assert status == 0
    assert "4 runs, 1 finished before, 3 to do" in printed
    assert json.loads((tmp_path / "study.json").read_text())["axes"] == {"mode": ["A", "B"], "seed": ["1", "2"]}


def test_a_run_that_never_began_may_be_mended(tmp_path):
    assert run_sweep(study({"A": "finish", "B": "fail", "C": "fail"}), tmp_path)[0] == 1
    assert run_sweep(study({"A": "finish", "B": "finish"}), tmp_path)[0] == 0


def test_a_wrong_config_is_refused_before_any_run(tmp_path):
    def refuse(spec, overrides):
        raise UserError("no such key")

    with pytest.raises(UserError, match="no such key"):
        sweep(study({"A": "finish"}), tmp_path / "x", runner="fake_runner:run", load_config=refuse)
    assert not (tmp_path / "x").exists()


def start_waiting_sweep(workdir):
    """Starts a sweep whose run waits for SIGTERM, and returns once that run is under way."""
    os.mkfifo(workdir / "pipe")
    script = f"""
        import sys
        from pathlib import Path
        from test_sweep import load_config, study
        from bertlab.studies.sweep import sweep
        spec = study({{"A": "wait", "B": "finish"}})
        sys.exit(sweep(spec, Path({str(workdir)!r}), runner="fake_runner:run", load_config=load_config,
                       prepare=lambda data: None))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with open(workdir / "pipe") as pipe:
        assert pipe.read() == "a-seed=1\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_lets_the_run_save_and_exits_130(tmp_path, number):
    process = start_waiting_sweep(tmp_path)
    with pytest.raises(UserError, match="another sweep is at work here"):
        run_sweep(study({"A": "wait", "B": "finish"}), tmp_path)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends Ctrl-C to all processes of the group
    else:
        process.send_signal(number)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (tmp_path / "a-seed=1" / "saved.txt").exists()
    assert not calls(tmp_path, "b-seed=1")
    assert "interrupted" in printed


def test_workers_save_and_end_when_the_sweep_is_killed(tmp_path):
    process = start_waiting_sweep(tmp_path)
    with open(tmp_path / "sweep.lock") as lock:
        process.kill()
        process.communicate(timeout=30)
        fcntl.flock(lock, fcntl.LOCK_EX)  # the worker holds it until it has ended
    assert (tmp_path / "a-seed=1" / "saved.txt").exists()


def test_progress_reads_the_last_whole_line(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert last_step(metrics) == 0
    metrics.write_text('{"step": 10, "split": "train"}\n{"step": 20, "split": "train"}\n{"step": 3')
    assert last_step(metrics) == 20
    run = RunSpec("a", {}, "base.py", {}, {"package": {}})
    job = SimpleNamespace(directory=tmp_path, run=run)
    assert progress(job) == ("pretrain", 0, 20, None)
    (tmp_path / "config.json").write_text('{"train": {"steps": 100}}')
    assert progress(job) == ("pretrain", 0, 20, 100)
    for file in ("result.json", "measured.json"):
        (tmp_path / file).write_text("{}")
    assert progress(job) == ("package", 1, 0, None)
    task = tmp_path / "finetune" / "package"
    task.mkdir(parents=True)
    (task / "config.json").write_text('{"train": {"steps": 7}}')
    (task / "metrics.jsonl").write_text('{"step": 5, "split": "train"}\n')
    assert progress(job) == ("package", 1, 5, 7)
