"""Training steps lower for GPUs that are not here: JAX's rules and Pallas' Triton take every operation of every family."""

import importlib.util
import re

import jax
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.models import attention
from bertlab.models.presets import DIRECTIONS, FAMILIES
from bertlab.objectives import REGISTRY
from bertlab.train.optimizers import build_optimizer
from bertlab.train.state import build_train_step, fresh_state
from tests import references
from tests.contracts.test_models_and_objectives import is_allowed

pytestmark = pytest.mark.slow
# gpt and modern are bert's body with other values.
BODIES = [(family, way) for family in FAMILIES if family not in ("gpt", "modern") for way in FAMILIES[family].directions]
# The least that Triton's tiles take: rows of 128 positions, heads of 16 numbers.
ONE_KERNEL = {"attention": "pallas"}


def names_of(family: str, direction: str) -> str:
    """All objectives of a body; sbo needs another setting of mlm's."""
    return "+".join(name for name in REGISTRY if is_allowed(family, direction, name) and name != "sbo")


def lowered(family: str, names: str, make_batch, platforms=("cuda", "rocm"), **model) -> str:
    """The text of a training step, AdamW's update included, for these platforms at once."""
    program = references.tiny_program(family, names, width=32, **model)
    optimizer = build_optimizer(base_config().optimizer, 10)
    batch = make_batch(rows=2, length=128)
    state = jax.eval_shape(lambda batch: fresh_state(program, optimizer, 0, batch), batch)
    step = build_train_step(program, optimizer, {name: (1.0, 1.0) for name in program.objectives}, 1, 10)
    return jax.jit(step).trace(state, batch, np.int32(0)).lower(lowering_platforms=platforms).as_text()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "direction"), BODIES)
def test_a_training_step_of_all_objectives_lowers(family, direction, dtype, packed_batch):
    text = lowered(family, names_of(family, direction), packed_batch, direction=direction, dtype=dtype)
    assert "triton" not in text
    assert (dtype == "bfloat16") == bool(re.search(r"dot_general.*bf16", text)) or family == "static"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_attention_in_one_kernel_lowers(direction, dtype, packed_batch, monkeypatch):
    monkeypatch.setattr(attention, "_platform", lambda: "gpu")
    names = "mlm" if direction == "bidirectional" else "ltr" if direction == "left-to-right" else "rtl"
    for dropout in (0.0, 0.1):
        text = lowered("bert", names, packed_batch, direction=direction, dtype=dtype, dropout=dropout, **ONE_KERNEL)
        assert text.count("triton") >= 2 * 3, "forward, and two backward, for both platforms"


def test_local_layers_in_one_kernel_lower(packed_batch, monkeypatch):
    monkeypatch.setattr(attention, "_platform", lambda: "gpu")
    window = {"layers": 2, "local_window": 20, "global_every": 2, "dropout": 0.1}
    assert "triton" in lowered("modern", "mlm", packed_batch, **window, **ONE_KERNEL)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["bert", "modern"])
def test_products_of_float8_lower_for_nvidia(family, dtype, packed_batch):
    text = lowered(family, "mlm", packed_batch, ("cuda",), dtype=dtype, products="float8")
    dots = [line for line in text.splitlines() if "dot_general" in line]
    assert any("f8E4M3FN" in line and "f8E5M2" not in line for line in dots) and any("f8E5M2" in line for line in dots)


# JAX looks for cuDNN's version when it lowers; a GPU is not needed.
WITH_CUDNN = pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs jax[cuda12]: make cuda")


@WITH_CUDNN
@pytest.mark.parametrize("position_encoding", ["learned", "rotary", "relative"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_attention_by_cudnn_lowers(direction, position_encoding, packed_batch):
    names = "mlm" if direction == "bidirectional" else "ltr" if direction == "left-to-right" else "rtl"
    model = {"attention": "cudnn", "dropout": 0.0, "dtype": "bfloat16", "position_encoding": position_encoding}
    text = lowered("bert", names, packed_batch, ("cuda",), direction=direction, **model)
    assert {"__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"} <= {*re.findall(r"@(__cudnn\$\w+)", text)}


@WITH_CUDNN
def test_cudnn_s_own_layers_of_a_window_lower(packed_batch):
    model = {"attention": "cudnn", "dropout": 0.0, "dtype": "bfloat16", "layers": 2, "local_window": 20, "global_every": 2}
    assert "__cudnn$fmha" in lowered("modern", "mlm", packed_batch, ("cuda",), **model)
