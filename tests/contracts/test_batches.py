"""Every objective reads the same batches, at any number of processes and devices."""

import jax
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.data.batches import Batches
from bertlab.data.formats import FORMATS
from bertlab.data.prepare import prepare
from bertlab.objectives import REGISTRY
from bertlab.train.recipes import train_on
from bertlab.train.sharding import build_mesh, put_batch
from tests.train.runs import SETTINGS, write_text


def data_of(names, data_format, folder):
    """`config.data` as a recipe of these objectives sets it."""
    config = base_config()
    train_on(config, write_text(folder), names)
    data = config.data
    for key, value in SETTINGS.items():
        if key.startswith("data.") and key.count(".") == 1:
            data[key.removeprefix("data.")] = value
    data.update({"format": data_format, "directory": str(folder / "cache")})
    data.tokenizer.vocab_size = 400
    data.stream.backward = True
    return data


@pytest.mark.parametrize("data_format", FORMATS)
def test_batches_are_the_same_for_all_objectives_processes_and_devices(data_format, tmp_path):
    prepared = prepare(data_of("mlm", data_format, tmp_path))
    made = [
        Batches(prepared, data_of(name, data_format, tmp_path))
        for name, kind in REGISTRY.items()
        if not kind.needs  # labels of pairs and words need a format that makes them
    ]
    assert len({batches.hash for batches in made}) == 1 and len(made) > 5
    data, mesh = (
        data_of("mlm", data_format, tmp_path),
        build_mesh({"data": 4, "fsdp": 2, "tensor": 1}),
    )
    processes = [Batches(prepared, data, "train", index, 4) for index in range(4)]
    for step in (0, 7):
        whole = made[0](step)
        slices = [batches(step) for batches in processes]
        for name, values in whole.items():
            np.testing.assert_array_equal(values, made[-1](step)[name])
            np.testing.assert_array_equal(values, np.concatenate([one[name] for one in slices]))
        jax.tree.map(np.testing.assert_array_equal, whole, put_batch(mesh, whole))
