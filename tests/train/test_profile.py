"""`config.profile` writes a trace of the steps that were asked for, and changes nothing else."""

import gzip
import json

import pytest

from bertlab.train import loop
from bertlab.train.profile import Trace
from tests.train.test_resume import break_at, lines_of

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def config(small_config):
    """A function (steps to trace, **overrides) -> the config of a small run of 12 steps, evaluated after 5 and 10."""
    small = dict(model__layers=1, train__eval_batches=1, train__eval_every=5, train__steps=12)
    return lambda profile, **overrides: small_config("bert", **{**small, **overrides}, profile=profile)


def events_of(workdir) -> list[dict]:
    """The events of a run's last trace, which TensorBoard has too."""
    folder = max((workdir / "profile/plugins/profile").iterdir())
    [for_tensorboard] = folder.glob("*.xplane.pb")
    assert for_tensorboard.stat().st_size
    with gzip.open(folder / "perfetto_trace.json.gz") as file:
        return json.load(file)["traceEvents"]


def steps_traced(workdir) -> list[int]:
    """The steps that the last trace of a run marks; the device has executed as many, each of them wholly."""
    events = events_of(workdir)
    marked = [int(event["args"]["step_num"]) for event in events if event.get("name") == "train"]
    of_step = [event["args"] for event in events if event.get("args", {}).get("hlo_module") == "jit_train_step"]
    executions = {args["run_id"] for args in of_step}
    assert len(executions) == len(marked)
    for operation in {args["hlo_op"] for args in of_step}:
        assert {args["run_id"] for args in of_step if args["hlo_op"] == operation} == executions
    return marked


@pytest.mark.slow
def test_it_traces_steps_after_the_first_ones_and_changes_no_number(config, tmp_path, capsys):
    loop.train(config(0), tmp_path / "without")
    assert not (tmp_path / "without/profile").exists()
    loop.train(config(4), tmp_path / "with")
    assert lines_of(tmp_path / "with") == lines_of(tmp_path / "without")
    assert steps_traced(tmp_path / "with") == [4, 5, 6, 7]
    [said] = [line for line in capsys.readouterr().out.splitlines() if "trace" in line]
    assert f"tensorboard --logdir={tmp_path}/with/profile" in said and "perfetto_trace.json.gz" in said


def test_of_fewer_steps_it_traces_what_there_is(tmp_path):
    edges = lambda begin, steps, count=8: [step for step in range(20) if Trace(count, tmp_path, begin, steps).due(step)]
    assert edges(0, 20) == [3, 11] and edges(4, 20) == [7, 15]
    assert edges(4, 9) == [7, 9], "the end of the run"
    assert edges(4, 6) == [5, 6] and edges(4, 5) == [4, 5], "too few to warm up"
    assert edges(4, 4) == edges(0, 0) == edges(0, 20, count=0) == []


@pytest.mark.nightly
def test_it_goes_on_through_evaluations_and_from_phase_to_phase(config, tmp_path):
    phases = "0.5 data.seq_len=16 data.batch_size=16; 0.5 data.seq_len=32"
    loop.train(config(5, train__phases=phases), tmp_path)
    events = events_of(tmp_path)
    assert [int(event["args"]["step_num"]) for event in events if event.get("name") == "train"] == [4, 5, 6, 7, 8]
    assert "jit_eval_step" in {event.get("args", {}).get("hlo_module") for event in events}


@pytest.mark.nightly
def test_what_was_traced_is_written_when_the_run_fails_and_the_next_may_trace_others(config, tmp_path):
    break_at(config(8), tmp_path, 6)
    assert [event["args"]["step_num"] for event in events_of(tmp_path) if event.get("name") == "train"][:3] == ["4", "5", "6"]
    loop.train(config(2), tmp_path)  # another number is no other run
    assert steps_traced(tmp_path) == [9, 10]


def test_of_several_processes_the_first_traces_and_all_wait_at_the_same_steps(tmp_path, monkeypatch):
    traces = {}
    for first in (True, False):
        monkeypatch.setattr("bertlab.train.profile.is_first", lambda first=first: first)
        traces[first] = trace = Trace(2, tmp_path / str(first), 0, 9)
        trace.begin_at(3)
        trace.end_at(5)
    assert [path.name for path in tmp_path.iterdir()] == ["True"]
    assert [traces[True].due(step) for step in range(10)] == [traces[False].due(step) for step in range(10)]
