"""A suite for a rented device ends in time, goes on with its file, says why a number is missing, and is rehearsed on a CPU."""

import contextlib
import dataclasses
import json
import operator
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from bertlab.bench import measure, ours
from bertlab.bench.table import device_tables
from bertlab.bench.workloads import REPLICAS, WORKLOADS, chosen
from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.models import attention
from bertlab.train.chips import CHIPS
from bertlab.train.optimizers import build_optimizer
from bertlab.train.state import build_train_step, fresh_state
from bertlab.train.width import update_factors
from tests.conftest import ROOT

HERE = {"platform": "gpu", "kind": "NVIDIA H200", "number": 1, "jax": "0"}
CHOICES = {
    "xla": {"error": 0.004, "compile_seconds": 1.0},
    "cudnn": {"failed": "no cuDNN"},
    "pallas": {"error": 0.002, "compile_seconds": 2.0},
    "xla, dropout": {"error": None, "compile_seconds": 1.0},
}


def small(name: str):
    """A workload as a rehearsal has it."""
    [workload] = chosen("", name)
    return dataclasses.replace(workload, settings={**workload.settings, **workload.rehearsal()})


class Instant:
    """A side that answers at once: 4 ms for each step of 100 tokens and 2 GFLOP."""

    began: list

    def __init__(self, workload, side, given, environment, settings, until):
        self.began.append((workload.name, side, settings.get("model.layers")))
        if workload.name == "elmo-128" and side == "ours":
            raise UserError("RESOURCE_EXHAUSTED: Out of memory")
        self.kind, self.facts = workload.kind, {"start_seconds": 1.0, "compile_seconds": 0.5, "ceiling": 1e12, "peak": 5e12}
        self.facts |= {"choices": CHOICES} if workload.kind == "attention" else {}

    def round(self, steps):
        if self.kind == "attention":
            return {"seconds": 1.0, "choices": {"xla": 0.004, "pallas": 0.001, "xla, dropout": 0.008}}
        return {"seconds": 0.004 * steps, "steps": steps, "tokens": 100 * steps, "positions": 100 * steps, "flops": 2e9 * steps}

    def end(self):
        return {"peak_bytes": 3e9}

    def close(self):
        pass


@pytest.fixture
def began(monkeypatch):
    monkeypatch.setattr(Instant, "began", [], raising=False)
    monkeypatch.setattr(measure, "Side", Instant)
    monkeypatch.setattr(measure, "device", lambda: HERE)
    return Instant.began


def bench(out, suite="gpu", against="none", **more):
    return measure.bench(suite, against, out, **{"minutes": 10.0, **more})


@pytest.mark.parametrize("suite", ["gpu", "tpu"])
def test_a_rehearsal_makes_the_file_and_the_tables_of_every_workload(suite, began, tmp_path, capsys):
    bench(tmp_path / "found.json", suite, rehearse=True)
    file = read_json(tmp_path / "found.json")
    assert [of["name"] for of in file["workloads"]] == [workload.name for workload in chosen(suite)]
    assert all(layers == 2 for *_, layers in began)
    table = subprocess.run(
        [sys.executable, ROOT / "experiments/speed/table.py", tmp_path / "found.json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert table.strip() == device_tables(file).strip() and table.strip() in capsys.readouterr().out
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in table.splitlines()
        if "|" in line
    }
    first = rows[chosen(suite)[0].name]
    assert first[:3] == ["4", "25 (25 to 25)", "0.5"] and first[3:5] == ["10.0 %", "50.0 %"]
    assert rows["awd-lstm"][3] == "–", "the peak is that of bfloat16"
    lines = [line for line in table.splitlines() if line.startswith("| attention-512")]
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["xla", "4", "1"], ["cudnn", "failed: no cuDNN", "–"], ["pallas", "1", "4"], ["xla, dropout", "8", "0.5"],
    ]  # fmt: skip
    assert "A rehearsal" in table and "- elmo-128: RESOURCE_EXHAUSTED: Out of memory" in table


def test_the_command_has_a_file_and_ten_minutes_of_its_own(began, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    monkeypatch.setattr(measure, "bench", lambda *how: found.append(how) or [])
    for more in ([], ["--minutes=3", "--out=other.json", "--rehearse", "--against=none"]):
        assert main(["bench", "--suite=tpu", *more]) == 0
    assert main(["bench"]) == 0
    files, limits = [str(how[2]) for how in found], [how[8] for how in found]
    assert files == ["bench-tpu.json", "other.json", "None"] and limits == [10.0, 3.0, None]
    assert [how[9] for how in found] == [False, True, False] and [how[1] for how in found] == [None, "none", None]


def test_what_is_measured_is_kept_and_a_second_call_goes_on(began, tmp_path, monkeypatch):
    out, plain = tmp_path / "found.json", measure.measure
    names = [workload.name for workload in chosen("gpu")]

    def stopped_at_the_third(workload, *how):
        if workload.name == names[2]:
            raise KeyboardInterrupt
        return plain(workload, *how)

    monkeypatch.setattr(measure, "measure", stopped_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        bench(out)
    monkeypatch.setattr(measure, "measure", plain)
    assert [of["name"] for of in read_json(out)["workloads"]] == names[:2]
    began.clear()
    bench(out)
    assert [name for name, *_ in began] == names[2:]
    assert [of["name"] for of in read_json(out)["workloads"]] == names
    began.clear()
    bench(out)
    assert began == [], "one that does not fit is not tried again"
    bench(out, only=names[4])
    assert [name for name, *_ in began] == [names[4]]
    assert sorted(of["name"] for of in read_json(out)["workloads"]) == sorted(names)


def test_after_the_minutes_nothing_begins_and_the_next_call_has_it(began, tmp_path, monkeypatch):
    out, now = tmp_path / "found.json", [0.0]
    monkeypatch.setattr(measure.time, "monotonic", lambda: now[0])
    plain = Instant.round

    def slow(self, steps):
        now[0] += 45  # five to warm up, then three rounds
        return plain(self, steps)

    monkeypatch.setattr(Instant, "round", slow)
    found = bench(out)
    assert ["sides" in of for of in found] == [True, True] + [False] * (len(found) - 2)
    assert len(found[0]["sides"]["ours"]["rounds"]) == 3 and found[2]["skipped"] == "no time was left"
    assert len(found[1]["sides"]["ours"]["rounds"]) == 1, "no second one after the end"
    began.clear()
    bench(out)
    assert began[0][0] == found[2]["name"]


def test_a_side_that_is_not_ready_in_time_is_ended(tmp_path, monkeypatch):
    real = subprocess.Popen
    popen = lambda command, **how: real([sys.executable, "-c", "import time; time.sleep(60)"], **how)
    monkeypatch.setattr(measure.subprocess, "Popen", popen)
    began = time.monotonic()
    with pytest.raises(measure.OutOfTime, match="side 'ours' was not ready"):
        measure.Side(WORKLOADS[-1], "ours", tmp_path, {}, {}, began + 0.5)
    assert time.monotonic() - began < 30


def test_a_file_of_another_machine_is_not_gone_on_with(began, tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    bench(out, only="tiny-1")
    monkeypatch.setattr(measure, "device", lambda: HERE | {"kind": "another"})
    with pytest.raises(UserError, match=r"found.json has measurements with device=.*H200.*another.*--out"):
        bench(out)
    with pytest.raises(UserError, match="against"):
        monkeypatch.setattr(measure, "device", lambda: HERE)
        monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: name)
        bench(out, against="transformers")
    out.write_text('{"workloads": 3}')
    with pytest.raises(UserError, match="damaged"):
        bench(out)


@pytest.mark.parametrize(("suite", "installed", "sides"), [("gpu", True, 3), ("gpu", False, 1), ("tpu", True, 1)])
def test_pytorch_is_beside_where_it_is_installed_on_a_gpu(suite, installed, sides, began, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "device", lambda: HERE | {"platform": suite})
    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: name if installed else None)
    first = chosen(suite)[0].name
    [found] = bench(None, suite, None, only=first)
    assert len(found["sides"]) == sides
    assert read_examples(began) == ([first] if sides > 1 else [])


def test_a_jax_that_does_not_start_is_said(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nothing")
    with pytest.raises(UserError, match=r"JAX does not start on this machine: .*nothing"):
        measure.device()


def read_examples(began) -> list[str]:
    return [name for name, side, *_ in began if side == "examples"]


def test_a_known_device_has_a_peak_and_a_tpu_s_program_a_bound():
    step = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((512, 512), "float32")).compile()
    assert ours.limits("TPU v5 lite", step)["bound_seconds"] >= 2 * 512**3 / CHIPS["v5e"].flops
    assert ours.limits("NVIDIA A100-SXM4-80GB", step) == {"peak": 312e12}
    assert ours.limits("cpu", step) == {}


@pytest.mark.nightly
def test_replicas_are_models_of_other_seeds_alone():
    smaller = {"model.layers": 1, "model.width": 16, "model.hidden": 16, "data.seq_len": 32}
    smaller |= {"optimizer.name": "sgd", "optimizer.learning_rate": 1.0, "optimizer.warmup_steps": 0}
    workload = small("tiny-16")
    workload = dataclasses.replace(workload, settings=workload.settings | smaller)
    with contextlib.closing(ours.Replicas(workload)) as runner:
        counted = runner.round(2)
        found = jax.device_get(runner.states.params)
    experiment = ours.built(workload)
    phase, steps = experiment.phases[0], iter(experiment.phases[0].train)
    batches = [next(steps) for _ in range(3)][1:]  # the first was read to compile
    assert counted["tokens"] == REPLICAS * sum(int((batch["documents"] > 0).sum()) for batch in batches)
    optimizer = build_optimizer(experiment.config.optimizer, 1_000_000, update_factors(phase.program, batches[0]))
    step = jax.jit(build_train_step(phase.program, optimizer, phase.weights, 1, 1_000_000))
    for seed in (0, 7):
        state = fresh_state(phase.program, optimizer, seed, batches[0])
        for batch in batches:
            state, _ = step(state, batch, np.int32(seed))
        # Sums in another order.
        one = jax.tree.map(operator.itemgetter(seed), found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one, state.params)
    assert counted["flops"] > 0


@pytest.mark.nightly
def test_each_attention_has_its_error_against_float32_or_the_reason_why_it_has_none(monkeypatch):
    kernel = attention._kernel
    with contextlib.closing(ours.AttentionChoices(small("attention-512"))) as runner:
        right, times = runner.facts["choices"], runner.round(1)["choices"]
    assert set(times) == {"xla", "pallas", "xla, dropout", "pallas, dropout"} == {*right} - {"cudnn"}
    assert "failed" in right["cudnn"] and min(times.values()) > 0
    assert 0 < right["xla"]["error"] < 0.02 and 0 < right["pallas"]["error"] < 0.02, "bfloat16 keeps 8 bits"
    blind = lambda sight: dataclasses.replace(sight, documents=jnp.ones_like(sight.documents))
    monkeypatch.setattr(attention, "_kernel", lambda qkv, sight, drop: kernel(qkv, blind(sight), drop))
    with contextlib.closing(ours.AttentionChoices(small("attention-512"))) as runner:
        assert runner.facts["choices"]["pallas"]["error"] > 0.1


@pytest.mark.slow
def test_a_workload_is_rehearsed_by_the_command_itself(tmp_path):
    """Nothing is stood in for: the side's process trains a small model."""
    command = [sys.executable, "-m", "bertlab", "bench", "--suite=gpu", "--rehearse", "--against=none", "--rounds=1"]
    subprocess.run([*command, "--only=tiny-1", "--out=found.json"], cwd=tmp_path, check=True)
    [found] = read_json(tmp_path / "found.json")["workloads"]
    assert found.get("failed") is None and found["sides"]["ours"]["rounds"][0]["tokens"] > 0


A_LONG_ROUND = """
import sys, time
from bertlab.bench.measure import Side
from bertlab.bench.workloads import chosen

[workload] = chosen("gpu", "tiny-1")
side = Side(workload, "ours", sys.argv[1], {}, workload.rehearsal())
side.process.stdin.write("1000000\\n")
side.process.stdin.flush()
print("pid", side.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_side_ends_in_the_middle_of_a_round_when_the_benchmark_is_killed(tmp_path):
    command = [sys.executable, "-c", A_LONG_ROUND, str(tmp_path / "given")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        pid = next(line.split()[1] for line in benchmark.stdout if line.startswith("pid "))
        side, began = psutil.Process(int(pid)), time.monotonic()
        benchmark.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        while side.status() != psutil.STATUS_ZOMBIE and time.monotonic() - began < 20:
            time.sleep(0.1)
        ended = side.status() == psutil.STATUS_ZOMBIE  # nobody may ask for its status
        side.kill()
        assert ended, "the side works on"


TOO_LARGE = """
import sys
import jax
from bertlab.bench import ours, worker

def compile_training(session):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM, which needs (36.79G) and has (15.75G).")

ours.Session.compile_training = compile_training
worker.main(*sys.argv[1:])
"""


@pytest.mark.slow
def test_what_does_not_fit_is_in_the_file_with_the_reason_and_the_next_workload_goes_on(tmp_path, monkeypatch):
    """In processes of their own; the first one's compiler refuses as a TPU's does."""
    real, names = subprocess.Popen, ["bert-base-kernel", "tiny-1"]
    started = lambda command: [sys.executable, "-c", TOO_LARGE, *command[3:]] if names[0] in command else command
    monkeypatch.setattr(measure.subprocess, "Popen", lambda command, **how: real(started(command), **how))
    bench(tmp_path / "found.json", "tpu", only=",".join(names), rehearse=True, rounds=1)
    refused, trained = read_json(tmp_path / "found.json")["workloads"]
    assert "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM" in refused["failed"]
    assert [refused["name"], trained["name"]] == names and trained["sides"]["ours"]["rounds"]


@pytest.mark.nightly
@pytest.mark.parametrize("suite", ["gpu", "tpu"])
def test_the_whole_suite_is_rehearsed(suite, tmp_path):
    command = [sys.executable, "-m", "bertlab", "bench", f"--suite={suite}", "--rehearse", "--against=none", "--rounds=1"]
    subprocess.run([*command, "--out=found.json"], cwd=tmp_path, check=True)
    file = json.loads((tmp_path / "found.json").read_text())
    assert [of["name"] for of in file["workloads"] if "sides" in of] == [workload.name for workload in chosen(suite)]
    assert "Without numbers" not in device_tables(file)
