"""Sweeps: which runs begin, wait, share, fail and resume; what is refused; what is shown. Most runs are of a fake runner."""

import contextlib
import dataclasses
import errno
import fcntl
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import InThisProcess, fake_config, objectives_study, run_sweep, write_study
from rich.console import Console

from bertlab import interrupts, locks
from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies import study as study_module
from bertlab.studies import sweep as sweep_module
from bertlab.studies import views
from bertlab.studies.launchers import Local
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.sweep import check_configs, sweep
from bertlab.studies.views import Job, LineView, TerminalView, progress
from bertlab.studies.worker import execute_job, write_job
from bertlab.train.code import code_of
from tests.conftest import ROOT
from tests.objectives.test_own_objective import SOURCE

pytestmark = pytest.mark.usefixtures("fake_runs")

HERE = Path(__file__).parent
RUNNING = SimpleNamespace(state=lambda: "running")  # a worker that never ends


def study_of(axes, **options):
    options = {"overrides": {"train.steps": 10}} | options
    return Study(name="s", title="", question="?", config="base.py", axes=axes, **options)


def study(modes, seeds=(1,), overrides=None, **options):
    """Runs of the fake runner in these modes."""
    axes = {"mode": {name: {"mode": mode, "which": name} for name, mode in modes.items()}, "seed": list(seeds)}
    return study_of(axes, overrides={"train.steps": 10} | (overrides or {}), **options)


def uses(settings, overrides=None):
    """A study whose runs differ in fine-tuning alone, so that one of them pretrains for all."""
    axes = {"use": {name: {"finetune.head.layers": layers} for name, layers in settings.items()}}
    return study_of(axes, overrides={"train.steps": 10} | (overrides or {}), downstream=["x"])


def calls(workdir, name):
    path = workdir / name / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_finished_runs_are_skipped_and_unfinished_ones_run_again(fake_runs, tmp_path):
    spec = study({"A": "finish", "B": "finish"}, downstream=("package",))
    assert run_sweep(spec, tmp_path)[0] == 0
    (tmp_path / "b-seed=1" / "finetune" / "package" / "result.json").unlink()
    status, printed = run_sweep(spec, tmp_path)
    assert status == 0 and "1 already finished, 1 to do" in printed
    assert (len(calls(tmp_path, "a-seed=1")), len(calls(tmp_path, "b-seed=1"))) == (1, 2)
    fake_runs.clear()
    (tmp_path / "a-seed=1" / "alive.txt").write_text("1 on a machine\n")  # its worker was killed when all was done
    assert run_sweep(spec, tmp_path)[0] == 0
    assert (fake_runs, len(calls(tmp_path, "b-seed=1"))) == ([], 2)
    assert not (tmp_path / "a-seed=1" / "alive.txt").exists()


def test_goes_on_after_failures_and_says_which_and_why(tmp_path):
    status, printed = run_sweep(study({"A": "fail", "[C]": "leave", "D": "finish"}), tmp_path, terminal=True)
    assert status == 1
    assert (tmp_path / "d-seed=1" / "result.json").exists()
    log = tmp_path / "a-seed=1" / "log.txt"
    assert f"failed: a-seed=1: RuntimeError: the step went wrong (log: {log})" in printed
    assert "Traceback" in log.read_text()
    assert "failed: c-seed=1: stopped before" in printed
    assert "2 of 3 runs failed" in printed
    assert (tmp_path / "a-seed=1" / "failed.txt").read_text() == "RuntimeError: the step went wrong\n"
    assert "all runs" in printed and "3/3" in printed, "the bar of the sweep"


def test_each_distinct_data_config_is_prepared_once_before_any_run(fake_runs, tmp_path):
    axes = {"corpus": {"p": {"data.corpus": "pydocs"}, "t": {"data.corpus": "text:*.txt"}}, "seed": [1, 2]}
    run_sweep(study_of(axes), tmp_path)
    assert fake_runs == ["pydocs", "text:*.txt"]


def test_no_run_starts_if_one_wants_more_text_than_there_is(fake_runs, tmp_path):
    axes = {"text": {"all": {}, "part": {"data.unique_tokens": 1000}, "more": {"data.unique_tokens": 1001}}}
    with pytest.raises(UserError, match=r"unique_tokens=1001: the train split has only 1,000 tokens; lower it, or"):
        run_sweep(study_of(axes), tmp_path)
    assert not list(tmp_path.glob("*/result.json"))


@pytest.fixture
def real_configs(monkeypatch):
    """Undoes `fake_runs`."""
    monkeypatch.undo()


def real_study(task, axes=None, **overrides):
    """A study of the real runner; nothing is pretrained yet."""
    return Study(
        name="s",
        title="",
        question="",
        config=f"{ROOT}/experiments/pretrain/bert.py:corpus=pydocs,objectives=ltr",
        axes=axes or {"seed": [1]},
        overrides={
            "train.steps": 10,
            "optimizer.warmup_steps": 2,
            "data.batch_size": 4,
            "data.seq_len": 8,
            "model.direction": "left-to-right",
            "mesh.data": 1,
            "finetune.train.steps": 5,
            "finetune.optimizer.warmup_steps": 1,
            **overrides,
        },
        downstream={"words": {"task": task, "data.seq_len": 32}},
    )


def test_a_sweep_and_its_dry_run_have_numbers_as_json(real_configs, tmp_path, words_task, monkeypatch, capsys):
    spec = real_study(words_task, axes={"head": {"A": {}, "B": {"finetune.head.bilstm": 2}}, "seed": [1]})
    monkeypatch.setattr(study_module, "load_study", lambda _: spec)
    command = ["sweep", "--study=s.py", f"--workdir={tmp_path / 'new'}", "--json"]
    assert main([*command, "--dry_run"]) == 0
    found = json.loads(capsys.readouterr().out)
    of_tasks = 5 * 16 * 32
    assert [found[key] for key in ("to_do", "tokens", "directory")] == [2, 320 + 2 * of_tasks, str(tmp_path / "new")]
    assert [[of["run"], of["status"], of["tokens"]] for of in found["runs"]] == [
        ["a-seed=1", "to do", 320 + of_tasks],
        ["b-seed=1", "to do", of_tasks],
    ]
    assert sum(of["flops"] for of in found["runs"]) == pytest.approx(found["flops"]) and found["seconds"] > 0
    directory = write_study(
        tmp_path / "new", objectives_study((1, 2), ("MLM", "LTR")), per_run={"mlm-seed=2": {"finished": False}}
    )
    Run(directory / "ltr-seed=1").result.delete()
    Run(directory / "ltr-seed=1").failed.write("no memory")
    monkeypatch.setattr(sweep_module, "sweep", lambda *_, **__: 1)
    assert main(command) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {"directory": str(directory), "finished": 2, "failed": 1, "unfinished": 1}


def test_dry_run_lists_everything_with_its_cost_and_starts_nothing(real_configs, tmp_path, words_task):
    spec = real_study(words_task, axes={"head": {"A": {}, "B": {"finetune.head.bilstm": 2}}, "seed": [1]})
    out, workdir = io.StringIO(), tmp_path / "new"
    assert sweep(spec, workdir, dry_run=True, console=Console(file=out, width=200)) == 0
    assert out.getvalue().startswith("checking 2 runs and reading their tasks\n")
    printed = out.getvalue().splitlines()[1:]
    assert not workdir.exists()
    of_tasks = 5 * 16 * 32
    assert printed[0].startswith("in all runs: train.steps=10 optimizer.warmup_steps=2")
    assert printed[1].startswith(f"a-seed=1  (to do)  10 steps, {10 * 4 * 8 + of_tasks:,} tokens, ")
    assert printed[2].endswith("bert.py:corpus=pydocs,objectives=ltr") and printed[3] == "    then fine-tuned on words"
    assert printed[4].startswith(f"b-seed=1  (to do)  pretrained by a-seed=1, {of_tasks:,} tokens, ")
    assert printed[-1].startswith(f"s: 2 runs, 2 to do: {10 * 4 * 8 + 2 * of_tasks:,} tokens")
    assert "1 at a time, roughly, at 30 % of this machine" in printed[-1]
    seeds = dataclasses.replace(spec, axes={**spec.axes, "seed": [1, 2]})
    out = io.StringIO()
    assert sweep(seeds, workdir, dry_run=True, console=Console(file=out, width=200)) == 0
    lines = out.getvalue().splitlines()
    named = [line.split()[0] for line in lines if "(to do)" in line]
    assert named == ["a-seed=1", "a-seed=2", "b-seed=1", "b-seed=2"], "every run is there"
    assert sum("then fine-tuned" in line for line in lines) == 2, "the settings of seeds once"
    selecting = dataclasses.replace(spec, axes={"seed": [1]}, downstream={}, rates=(0.5, 1.0))
    out = io.StringIO()
    assert sweep(selecting, workdir, dry_run=True, console=Console(file=out, width=200)) == 0
    states = [
        line.split("(")[1].split(")")[0] for line in out.getvalue().splitlines() if "steps, " in line or "pretrained" in line
    ]
    assert states == ["to do"] * 3, "two candidates, and the run that will have the better one's pretraining"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"finetune.optimizer.frozn": "x"}, r"'optimizer\.frozn'; did you mean finetune\.optimizer\.frozen"),
        ({"finetune.optimizer.frozen": "bodi/"}, r"config\.optimizer\.frozen='bodi/'"),
        ({"finetune.recipe": "nope"}, "recipe 'nope'"),
        ({"finetune.train.steps": "many"}, r"train\.steps=many: expected a whole number"),
        ({"finetune.train.steps": 2.5}, r"config\.train\.steps=2\.5: expected int, not float$"),
        ({"finetune.optimizer.warmup_steps": 9}, r"warmup_steps=9 .* config\.train\.steps=5"),
        ({"finetune.data.batch_size": 500}, r"batch_size=500 .* 1\d\d "),
        ({"finetune.head.pooling": "nope"}, r"config\.objectives\.words\.pooling='nope'"),
        ({"finetune.head.nope": 1}, r"finetune\.head\.nope"),
        ({"finetune.head.layers": "layer:9"}, "layers=layer:9: .* 0"),
        ({"finetune.transfer.layers": 9}, r"config\.transfer\.layers=9 .* 0 "),
        ({"finetune.optimizer.thaw": "gradual", "finetune.optimizer.thaw_stages": 40}, "thaw_stages=40.* thaw='gradual'"),
        ({"finetune.task_data.directory": "/nowhere"}, r"config\.task_data\.directory=/nowhere"),
        ({"adapt.optimizer.frozn": "x"}, r"'optimizer\.frozn'; did you mean adapt\.optimizer\.frozen"),
        ({"adapt.recipe": "nope"}, "recipe 'nope'.* same"),
        ({"adapt.epochs": "many"}, r"adapt\.epochs='many'"),
        ({"adapt.train.steps": 5, "adapt.optimizer.warmup_steps": 9}, r"warmup_steps=9 .* config\.train\.steps=5"),
        ({"adapt.optimizer.frozen": "bodi/"}, r"config\.optimizer\.frozen='bodi/'"),
        ({"adapt.model.layers": 3}, r"config\.model\.layers=3.* config\.init_from=.* 2"),
        ({"optimizer.frozen": "bodi/"}, r"config\.optimizer\.frozen='bodi/'"),
        ({"data.corpus": "wiki"}, r'config\.data\.corpus="wiki"'),
        ({"finetun.train.steps": 5}, r"'finetun\.train\.steps'"),
        ({"finetune.task": "word"}, "task 'word' is not known"),
    ],
)
def test_a_mistake_in_a_later_stage_is_refused_before_the_first(overrides, named, real_configs, words_task):
    spec = real_study(words_task, {"way": {"right": {}, "wrong": overrides}, "seed": [1]})
    with pytest.raises(UserError, match=f"^run wrong-seed=1: .*{named}"):
        check_configs(spec.runs())


def test_checking_leaves_accelerators_to_the_workers(tmp_path, words_task):
    script = f"""
        import jax
        from test_sweep import real_study
        from bertlab.studies.sweep import check_configs
        axes = {{"way": {{"A": {{}}, "B": {{"adapt.epochs": 1.0}}, "C": {{"finetune.head.bilstm": 1}}}}}}
        runs = real_study({words_task!r}, axes).runs()
        check_configs(runs)
        try:
            jax.devices()
        except RuntimeError:
            print("checked, and devices cannot be asked for here")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]), "JAX_PLATFORMS": "none_such"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert said == "checked, and devices cannot be asked for here\n"


def test_a_run_waits_for_the_one_whose_pretraining_it_shares_and_two_run_at_a_time(tmp_path):
    axes = {"head": {"A": {}, "B": {"finetune.head.bilstm": 2}}, "seed": [1, 2]}
    status, printed = run_sweep(study_of(axes, downstream=["x"]), tmp_path, Local(2))
    assert status == 0
    lines = [line for line in printed.splitlines() if "-seed=" in line]
    assert lines[:2] == ["a-seed=1: started", "a-seed=2: started"] and not lines[2].endswith("started")
    assert not (tmp_path / "b-seed=1" / "result.json").exists(), "it pretrains nothing itself"
    assert (tmp_path / "b-seed=1" / "finetune" / "x" / "result.json").exists()


def test_what_stands_on_a_failed_run_is_failed_too_and_mends_with_it(tmp_path):
    spec = uses({"A": "last", "B": "layer:0"}, {"mode": "fail"})
    status, printed = run_sweep(spec, tmp_path)
    assert status == 1 and "2 of 2 runs failed" in printed
    assert "failed: b: needs a\n" in printed, "it has no log"
    (tmp_path / "mended").touch()
    assert run_sweep(spec, tmp_path)[0] == 0
    assert not list(tmp_path.glob("*/failed.txt"))


def test_two_processes_are_never_at_work_on_one_run(tmp_path):
    """A worker that a killed sweep left behind, here a lock held by this process, is waited for."""
    log = tmp_path / "a-seed=1" / "log.txt"
    log.parent.mkdir()

    def release():
        while not (log.exists() and "waiting for another process" in log.read_text()):
            time.sleep(0.05)
        fcntl.flock(lock, fcntl.LOCK_UN)

    with open(tmp_path / "a-seed=1" / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Thread(target=release, daemon=True).start()
        assert run_sweep(study({"A": "finish"}), tmp_path)[0] == 0
    assert log.read_text().endswith("trained\n")


def test_another_study_in_the_workdir_is_refused(tmp_path):
    run_sweep(study({"A": "finish", "B": "finish"}), tmp_path)
    with pytest.raises(UserError, match=r"train.steps is 10, not 20 \(and 1 more"):
        run_sweep(study({"A": "finish", "B": "finish"}, overrides={"train.steps": 20}), tmp_path)
    other = Study(name="other", title="", question="", config="base.py", axes={}, overrides={"train.steps": 1})
    with pytest.raises(UserError, match='its name is "s", not "other"'):
        run_sweep(other, tmp_path)


def test_a_study_that_has_grown_keeps_its_workdir_and_a_run_that_never_began_may_be_mended(tmp_path):
    assert run_sweep(study({"A": "finish", "C": "fail"}), tmp_path)[0] == 1
    status, printed = run_sweep(study({"A": "finish", "C": "finish"}, seeds=(1, 2)), tmp_path)
    assert status == 0
    assert "4 runs, 1 already finished, 3 to do" in printed
    assert json.loads((tmp_path / "study.json").read_text())["axes"] == {"mode": ["A", "C"], "seed": ["1", "2"]}


def stage_files(workdir, run, stage, *names):
    directory = workdir / run / stage
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}")


def test_a_stage_that_saved_nothing_may_be_given_other_settings_and_begins_anew(tmp_path):
    run_sweep(uses({"A": "last", "B": "layer:0"}), tmp_path)
    (tmp_path / "b" / "finetune" / "x" / "result.json").unlink()
    stage_files(tmp_path, "b", "finetune/x", "config.json", "metrics.jsonl")
    assert run_sweep(uses({"A": "last", "B": "layer:1"}), tmp_path)[0] == 0
    assert (len(calls(tmp_path, "a")), len(calls(tmp_path, "b"))) == (1, 2)
    assert not (tmp_path / "b" / "finetune" / "x" / "config.json").exists(), "what the failed one left was not used"

    stage_files(tmp_path, "b", "finetune/x", "checkpoints/20/state")
    (tmp_path / "b" / "finetune" / "x" / "result.json").unlink()
    place = tmp_path / "b" / "finetune" / "x"
    with pytest.raises(
        UserError, match=rf"in its run b finetune.head.layers of x is 'layer:1', not 'sum_last_2'; .*delete {place} "
    ):
        run_sweep(uses({"A": "last", "B": "sum_last_2"}), tmp_path)
    shutil.rmtree(place)
    assert run_sweep(uses({"A": "last", "B": "sum_last_2"}), tmp_path)[0] == 0


def test_a_pretraining_that_diverged_before_it_saved_may_be_mended(tmp_path):
    assert run_sweep(uses({"A": "last"}, {"mode": "fail", "optimizer.learning_rate": 1e30}), tmp_path)[0] == 1
    stage_files(tmp_path, "a", ".", "config.json", "metrics.jsonl", "tokenizer/x")
    mended = uses({"A": "last"}, {"optimizer.learning_rate": 1e-3})
    assert run_sweep(mended, tmp_path)[0] == 0
    left = {path.name for path in (tmp_path / "a").iterdir()}
    assert left == {"calls.txt", "checkpoints", "finetune", "job.json", "log.txt", "measured.json", "result.json"}
    with pytest.raises(UserError, match=r"optimizer.learning_rate is 0.001, not 0.002; .*delete "):
        run_sweep(uses({"A": "last"}, {"optimizer.learning_rate": 2e-3}), tmp_path)


def test_what_is_noted_of_a_run_that_was_there_before_is_nothing_to_lose(tmp_path):
    of = lambda layers: dataclasses.replace(uses({"A": layers}, {}), config=f"run:{tmp_path}", overrides={})
    workdir = tmp_path / "study"
    assert run_sweep(of("last"), workdir)[0] == 0
    (workdir / "a" / "result.json").write_text(json.dumps({"run": str(tmp_path), "step": 7, "metrics": {}}))
    with pytest.raises(UserError, match=r"finetune\.head\.layers of x is 'last', not 'layer:0'"):
        run_sweep(of("layer:0"), workdir)
    (workdir / "a" / "finetune" / "x" / "result.json").unlink()
    assert run_sweep(of("layer:0"), workdir)[0] == 0
    assert json.loads((workdir / "a" / "result.json").read_text())["step"] == 0, "it is noted anew"


@pytest.mark.parametrize(
    "grown",
    [{"C": "layer:1", "A": "last", "B": "layer:0"}, {"B": "layer:0", "A": "last"}],
)
def test_whose_pretraining_it_is_does_not_depend_on_the_order(tmp_path, grown):
    run_sweep(uses({"A": "last", "B": "layer:0"}), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert run_sweep(uses(grown), tmp_path)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what is finished stays"
    assert sorted(path.parent.name for path in tmp_path.glob("*/result.json")) == ["a"], "one pretraining for all"
    runs = json.loads((tmp_path / "study.json").read_text())["runs"]
    assert [run["name"] for run in runs] == [name.lower() for name in grown]
    assert {owner for run in runs for owner in run["shares"].values()} == {"a"}


def test_a_smaller_study_leaves_the_others_where_they_are(tmp_path):
    both, one = (study({"A": "finish"}, seeds=seeds, downstream=("x", "y")) for seeds in ((1, 2), (1,)))
    run_sweep(both, tmp_path)
    status, printed = run_sweep(one, tmp_path)
    assert status == 0 and ": a-seed=2\n" in printed
    assert [run["name"] for run in json.loads((tmp_path / "study.json").read_text())["runs"]] == ["a-seed=1"]
    assert run_sweep(study({"A": "finish"}, seeds=(1,), downstream=("y",)), tmp_path)[0] == 0
    status, printed = run_sweep(both, tmp_path)
    assert (status, len(calls(tmp_path, "a-seed=1")), len(calls(tmp_path, "a-seed=2"))) == (0, 1, 1)
    run_sweep(one, tmp_path)
    with pytest.raises(UserError, match=r"in its run a-seed=2 train\.steps is 10, not 20"):  # which the study before has not
        run_sweep(study({"A": "finish"}, seeds=(2,), overrides={"train.steps": 20}), tmp_path)


def test_a_run_is_not_taken_from_the_pretraining_that_it_stands_on(tmp_path):
    run_sweep(uses({"A": "last", "B": "layer:0"}), tmp_path)
    with pytest.raises(UserError, match=r"study\.json: run b .* run a"):
        run_sweep(uses({"B": "layer:0"}), tmp_path)


@pytest.mark.parametrize(("name", "message"), [("study.json", "study.json: not valid JSON"), ("x", "x is a file")])
def test_what_is_damaged_in_a_workdir_is_named(tmp_path, name, message):
    (tmp_path / name).write_text("{")
    with pytest.raises(UserError, match=message):
        run_sweep(study({"A": "finish"}), tmp_path if name == "study.json" else tmp_path / name)


def test_a_wrong_config_is_refused_before_any_run(tmp_path, monkeypatch):
    def refuse(spec, overrides):
        raise UserError("no such key")

    monkeypatch.setattr(sweep_module, "load_checked", refuse)
    with pytest.raises(UserError, match="no such key"):
        run_sweep(study({"A": "finish"}), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def start_waiting_sweep(workdir, before=(), mode="wait"):
    """Starts a sweep in which a run, after those before, waits for SIGTERM, and returns once that one is under way."""
    os.mkfifo(workdir / "pipe")
    script = f"""
        import sys
        from pathlib import Path
        from conftest import fake_config, fake_prepare
        from test_sweep import study
        from bertlab.studies import sweep
        sweep.load_checked, sweep.prepare = fake_config, fake_prepare
        spec = study({{**{dict.fromkeys(before, "finish")}, "A": {mode!r}, "B": "finish"}})
        sys.exit(sweep.sweep(spec, Path({str(workdir)!r}), runner="fake_runner:run"))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pipe, said = os.open(workdir / "pipe", os.O_RDONLY | os.O_NONBLOCK), b""  # to open it otherwise would wait for a writer
    while said != b"a-seed=1\n":
        assert process.poll() is None, "the sweep has ended"
        with contextlib.suppress(BlockingIOError):
            said += os.read(pipe, 100)
        time.sleep(0.02)
    os.close(pipe)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(("number", "before"), [(signal.SIGINT, ("X",)), (signal.SIGTERM, ())])
def test_interrupt_lets_the_run_save_and_exits_130(tmp_path, number, before):
    process = start_waiting_sweep(tmp_path, before)
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        run_sweep(study({**dict.fromkeys(before, "finish"), "A": "wait", "B": "finish"}), tmp_path)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal sends Ctrl-C to all processes of the group
    else:
        process.send_signal(number)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (tmp_path / "a-seed=1" / "saved.txt").exists()
    assert not calls(tmp_path, "b-seed=1")
    assert "interrupted" in printed


@pytest.mark.slow
def test_a_second_interrupt_kills_the_run_and_exits_at_once(tmp_path):
    process = start_waiting_sweep(tmp_path, mode="stay")
    [worker] = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    while not (tmp_path / "a-seed=1" / "told.txt").exists():
        time.sleep(0.02)
    time.sleep(interrupts.TOGETHER)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130
    worker.wait(timeout=5)


@pytest.mark.slow
def test_workers_save_and_end_when_the_sweep_is_killed(tmp_path):
    process = start_waiting_sweep(tmp_path, ("X",))
    with open(tmp_path / "sweep.lock") as lock:
        process.kill()
        process.communicate(timeout=30)
        fcntl.flock(lock, fcntl.LOCK_EX)  # the worker holds it until it has ended
    assert (tmp_path / "a-seed=1" / "saved.txt").exists()


class Listener(io.StringIO):
    """What is printed, which does something once a text is among it."""

    def __init__(self, text, then):
        super().__init__()
        self.text, self.then = text, then

    def write(self, text):
        if self.text in text:
            self.then()
        return super().write(text)


def test_a_sweep_waits_for_the_workers_of_a_killed_one(tmp_path):
    """Here a lock held by this process, with the number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with open(tmp_path / "sweep.lock", "w") as held:
        holder = {"process": ended.pid, "host": socket.gethostname(), "command": "bertlab sweep", "since": "noon"}
        held.write(json.dumps(holder))
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        out = Listener("for what was started by", lambda: fcntl.flock(held, fcntl.LOCK_UN))
        console = Console(file=out, width=200)
        assert sweep(study({"A": "finish"}), tmp_path, InThisProcess(), runner="fake_runner:run", console=console) == 0
    assert "20 s" in out.getvalue() and f"process {ended.pid}" in out.getvalue()


def test_workers_of_a_killed_sweep_that_do_not_end_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "ORPHAN_SECONDS", 0.0)
    with open(tmp_path / "sweep.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=re.escape(str(tmp_path))):
            run_sweep(study({"A": "finish"}), tmp_path)


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=rf"{tmp_path} cannot be locked \(Operation not supported\)"):
        run_sweep(study({"A": "finish"}), tmp_path)
    (tmp_path / "a-seed=1").mkdir()
    job = write_job(study({"A": "finish"}).runs()[0], tmp_path / "a-seed=1", "fake_runner:run")
    assert execute_job(job) == 2 and "a-seed=1 cannot be locked" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 120])
def test_the_view_fits_the_terminal_and_counts_all_runs(width, tmp_path):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    view = TerminalView(console, total=40, finished=3)
    name = "a-variant-with-a-very-long-name-of-several-labels-seed=1"
    stage_files(tmp_path, name, ".", "result.json", "measured.json")
    (tmp_path / name / "finetune" / "code_spans").mkdir(parents=True)
    (tmp_path / name / "finetune" / "code_spans" / "config.json").write_text('{"train": {"steps": 400}}')
    (tmp_path / name / "finetune" / "code_spans" / "metrics.jsonl").write_text('{"step": 120}\n')
    job = Job(RunSpec(name, {}, "c.py", {}, {"code_spans": {}}), tmp_path / name, RUNNING, 0, 0.0)
    view.started(job)
    view.update([job], waiting=36)
    with console.capture() as captured:
        console.print(view.bars)
    first, second = captured.get().rstrip().splitlines()
    assert max(len(first), len(second)) <= width
    assert re.search(r"^all runs +36 waiting .*3/40 \d:\d\d:\d\d -:--:--$", first)
    assert re.search(r"^a-variant.* code_spans .*120/400 \d:\d\d:\d\d -:--:--$", second)


def test_without_a_terminal_a_running_run_is_told_of_once_a_minute(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(views, "time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    view = LineView(Console(file=out, width=200), total=5, finished=2)
    job = Job(RunSpec("a", {}, "c.py", {}, {}), tmp_path, RUNNING, 0, now[0])
    view.started(job)
    (tmp_path / "config.json").write_text('{"train": {"steps": 4000}}')
    for step, seconds in ((0, 59), (1200, 2), (1300, 30), (2400, 31)):
        (tmp_path / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
        now[0] += seconds
        view.update([job], waiting=2)
    view.ended(job, None)
    lines = ["a: started", "a: pretrain, step 1,200 of 4,000", "a: pretrain, step 2,400 of 4,000", "[3/5] a: finished in 122 s"]
    assert out.getvalue().splitlines() == lines


def test_files_are_looked_at_far_less_often_than_workers(tmp_path, monkeypatch):
    """The clock stands still but for what is slept."""
    now, polled, looked = [0.0], [], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(sweep_module, "time", clock)
    monkeypatch.setattr(LineView, "update", lambda *_: looked.append(now[0]))
    asked = []
    monkeypatch.setattr(sweep_module, "ready", lambda *_: asked.append(now[0]) or True)

    class Slow:
        jobs = 1

        def start(self, *_):
            return self

        def poll(self):
            polled.append(now[0])
            return None if now[0] < 9.95 else 1

    (tmp_path / "a-seed=1").mkdir()
    [run] = study({"A": "finish"}).runs()
    console = Console(file=io.StringIO())
    failures, unbegun = sweep_module.run_all([run], [], tmp_path, Slow(), "fake_runner:run", 0, console, 1)
    assert (list(failures), unbegun) == (["a-seed=1"], 0)
    assert len(polled) >= 100 and 10 <= len(looked) <= 12 and len(asked) == 1


def test_progress_reads_the_last_whole_line(tmp_path):
    run = RunSpec("a", {}, "base.py", {}, {"package": {}})
    job = SimpleNamespace(directory=tmp_path, run=run)
    assert progress(job) == ("pretrain", 0, 0, None)
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "split": "train"}\n{"step": 20, "split": "train"}\n{"step": 3')
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


def test_other_code_of_an_objective_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    module = tmp_path / "swept_mine.py"
    module.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    place, spec = tmp_path / "runs", study({"A": "finish", "B": "finish"}, overrides={"objective": "swept_mine:Own"})
    assert run_sweep(spec, place)[0] == 0
    more = dataclasses.replace(spec, axes=spec.axes | {"seed": [1, 2]})
    code = code_of(fake_config("", {"objective": "swept_mine:Own"}))
    Run(place / "a-seed=1").environment.write({"code": code})  # b-seed=1 is of an earlier version, which recorded none
    assert run_sweep(more, place)[0] == 0
    module.write_text(SOURCE.replace("% 2", "% 3"))
    del sys.modules["swept_mine"]
    again = dataclasses.replace(spec, axes=spec.axes | {"seed": [1, 2, 3]})
    with pytest.raises(UserError) as refused:
        run_sweep(again, place)
    assert str(module) in str(refused.value) and "a-seed=1" in str(refused.value) and "b-seed=1" not in str(refused.value)
    assert not (place / "a-seed=3").exists()
    shutil.rmtree(place / "a-seed=1")
    assert run_sweep(again, place)[0] == 0
    del sys.modules["swept_mine"]
