"""A checkpoint that TensorFlow itself wrote is read back as the same variables."""

import jax
import numpy as np
import tensorflow

from bertlab.interop import import_weights
from bertlab.interop.base import load_run
from bertlab.interop.google import from_variables
from tests.interop.test_google import directory, variables


def test_a_checkpoint_of_tensorflow(tmp_path):
    source = directory(tmp_path / "google")
    given = variables() | {
        "global_step": np.int64(3),
        "bert/pooler/dense/bias/adam_m": np.zeros(16, np.float32),
        "bert/pooler/dense/bias/adam_v": np.zeros(16, np.float32),
    }
    names = sorted(given)
    tensorflow.raw_ops.SaveV2(
        prefix=str(source / "bert_model.ckpt"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensorflow.constant(given[name]) for name in names],
    )
    description = import_weights("google", source, tmp_path / "run")
    assert description["tensors"] == len(variables())
    expected = from_variables(variables(), source, "bert_model.ckpt")
    jax.tree.map(np.testing.assert_array_equal, load_run(tmp_path / "run").params, expected.params)
