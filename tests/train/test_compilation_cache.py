"""A run whose programs come from JAX's persistent cache is the run that compiled them."""

import json
import os
import subprocess
import sys

import pytest

from tests.references import write_config


@pytest.mark.nightly
def test_a_run_from_the_cache_has_the_same_numbers(small_config, tmp_path):
    config = small_config("bert", model__layers=1, train__steps=6, train__log_every=1, mesh__data=1)
    file = write_config(config, tmp_path / "config.py")
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    found, programs = [], []
    for name in ("compiled", "read"):
        command = [sys.executable, "-m", "bertlab.cli", "train", f"--config={file}", f"--workdir={tmp_path / name}"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=240)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        found.append([{key: value for key, value in line.items() if "second" not in key} for line in lines])
        programs.append({path.name for path in (tmp_path / "programs").glob("*-cache")})
    assert found[0] == found[1] and len(found[0]) >= 6
    assert programs[0] == programs[1] and len(programs[0]) > 5, "the second run compiled nothing anew"
