"""N devices and several processes train as one device does, up to rounding."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertlab.files import write_json
from bertlab.train import loop
from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory
from tests.train.runs import RECIPES, config_of, make

MESHES = {
    "data": {"data": 8},
    "fsdp and tensor": {"data": 1, "fsdp": 4, "tensor": 2},
    "all": {"data": 2, "fsdp": 2, "tensor": 2},
}
FEW = {"train__steps": 3, "train__eval_every": 0, "train__log_every": 1, "data__batch_size": 16}
EQUAL = dict(rtol=2e-3, atol=2e-5)
LOSS_IN = ("loss", "mlm/loss", "ltr/loss", "nsp/loss", "gradient_norm")


def trained(folder, name, workdir, **changes):
    """The lines and the last parameters of a run in this process."""
    loop.run(make(name, folder, **FEW, **changes), folder / workdir)
    return read(folder / workdir)


def read(workdir):
    run = RunDirectory(workdir)
    return run.metrics(), load_params(run)


def assert_same(run, other):
    for line, other_line in zip(run[0], other[0], strict=True):
        for name in {*LOSS_IN} & line.keys():
            np.testing.assert_allclose(line[name], other_line[name], rtol=1e-4, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **EQUAL), run[1], other[1])


def marked(case, is_quick):
    """A case of the slow tests, or else of the nightly ones."""
    return pytest.param(*case, marks=pytest.mark.slow if is_quick else pytest.mark.nightly)


CASES = [
    marked((mesh, name), (mesh, name) == ("all", "bert")) for mesh in MESHES for name in RECIPES
]


@pytest.mark.parametrize("mesh, name", CASES)
def test_a_mesh_of_eight_devices_trains_as_one_device(mesh, name, tmp_path):
    one = trained(tmp_path, name, "one")
    sizes = {f"mesh__{axis}": size for axis, size in MESHES[mesh].items()}
    assert_same(one, trained(tmp_path, name, "eight", **sizes))


@pytest.mark.slow
def test_micro_batches_add_up_to_the_batch(tmp_path):
    one = trained(tmp_path, "bert", "one", model__dropout=0.0)
    assert_same(one, trained(tmp_path, "bert", "parts", model__dropout=0.0, train__micro_batches=4))


CODE = """
import sys
from ml_collections import ConfigDict
from bertlab.files import read_json
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.processes import join_processes
from bertlab.config import base_config
from pathlib import Path
join_processes()
config = base_config()
config.update(ConfigDict(read_json(Path(sys.argv[1]))))
loop.run(build_pretraining(config), sys.argv[2])
"""


@pytest.mark.parametrize("name", [marked((name,), name == "bert") for name in RECIPES])
def test_two_processes_train_as_one(name, tmp_path):
    one = trained(tmp_path, name, "one")
    config = config_of(name, tmp_path, **FEW, mesh__data=2).to_dict()
    write_json(tmp_path / "config.json", config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, "-c", CODE, str(tmp_path / "config.json"), str(tmp_path / "two")]
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "XLA_FLAGS": ""}
    variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(command, env={**os.environ, **variables, "JAX_PROCESS_ID": str(index)})
        for index in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert_same(one, read(tmp_path / "two"))
