"""The training steps of the GPU benchmark, compiled for an H100 on a machine without one.

    make cuda          # jax[cuda13], 6 GB of packages; no GPU

Prints a table. Not covered: what happens on the device alone, which is the choice among
implementations of a product (autotuning) and cuDNN's own compilation of its attention.
"""

import importlib.util
import json
import runpy
from pathlib import Path

import pytest

from bertlab.config import load_config
from bertlab.contrib.plan import plans

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not importlib.util.find_spec("jax_cuda13_plugin"), reason="needs the extra `cuda`"
    ),
]
SPEED = Path(__file__).parents[2] / "experiments/speed"
WORKLOADS = runpy.run_path(SPEED / "workloads.py")["WORKLOADS"]
MEMORY = 80e9
SECONDS = 90


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name.startswith("gpu")])
def test_a_step_compiles_in_time_and_fits_the_device(name, capsys):
    (found,) = plans(load_config(*WORKLOADS[name]), "h100")
    line = {
        "workload": name,
        "compile_seconds": found.compile_seconds,
        "gigabytes": round(found.memory / 1e9, 2),
        "state_and_batch": round(found.arguments / 1e9, 2),
        "teraflop": round(found.model_flops / 1e12, 3),
        "least_ms": round(1000 * found.seconds["products"], 2),
    }
    with capsys.disabled():
        print("\n" + json.dumps(line))
    assert found.compile_seconds < SECONDS
    assert found.arguments < found.memory < MEMORY
