"""The benchmark's supervisor with planted workloads, and each real one for two steps."""

import importlib.util
import json
import runpy
import subprocess
import sys

import pytest

from bertlab.config.load import SHIPPED

SPEED = SHIPPED / "experiments/speed"


def load(name, monkeypatch):
    monkeypatch.syspath_prepend(SPEED)
    specification = importlib.util.spec_from_file_location(name, SPEED / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_workload_that_hangs_costs_no_other_its_number(tmp_path, monkeypatch, capsys):
    bench = load("bench", monkeypatch)
    monkeypatch.setattr(bench, "REPORT_EVERY", 0.5)
    monkeypatch.setenv("XLA_FLAGS", "")
    hangs = """if True:
        import time
        print('{"stage": "compiles", "rows": 32}', flush=True)
        time.sleep(600)
    """
    commands = {
        "hangs": [sys.executable, "-c", hangs],
        "fails": [sys.executable, "-c", "raise SystemExit(3)"],
        "works": [sys.executable, "-c", "print('noise'); print('{\"step_tokens\": 300}')"],
        "works, PyTorch": [sys.executable, "-c", "print('{\"step_tokens\": 200}')"],
    }
    bench.supervise(commands, tmp_path / "found.jsonl", seconds=60, limit=3)
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [line.pop("autotuning", True) for line in found] == [True, False, False, False]
    assert found == [
        {"workload": "hangs", "rows": 32, "failure": "stopped after 3 s, in stage: compiles"},
        {"workload": "fails", "failure": "exit status 3"},
        {"workload": "works", "step_tokens": 300},
        {"workload": "works, PyTorch", "step_tokens": 200, "ratio": 1.5},
    ]
    assert "hangs: compiles, 1 s" in capsys.readouterr().out


WORKLOADS = runpy.run_path(SPEED / "workloads.py")["WORKLOADS"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_each_workload_runs_with_few_rows(name, tmp_path):
    arguments = [name, str(tmp_path), "0.01", "1"]
    done = subprocess.run(
        [sys.executable, str(SPEED / "measure.py"), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    assert found["step_tokens"] > 0 and found["compile_seconds"] > 0
    assert found["loop_tokens"] > 0
