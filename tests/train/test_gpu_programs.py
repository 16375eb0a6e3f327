"""Training steps lower for GPUs that are not here: JAX's rules and Pallas' Triton take every operation of every family."""

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
ONE_KERNEL = {"attention": "pallas", "dropout": 0.0}


def names_of(family: str, direction: str) -> str:
    """All objectives of a body; sbo needs another setting of mlm's."""
    return "+".join(name for name in REGISTRY if is_allowed(family, direction, name) and name != "sbo")


def lowered(family: str, names: str, make_batch, **model) -> str:
    """The text of a training step, AdamW's update included, for CUDA and ROCm at once."""
    program = references.tiny_program(family, names, width=32, **model)
    optimizer = build_optimizer(base_config().optimizer, 10)
    batch = make_batch(rows=2, length=128)
    state = jax.eval_shape(lambda batch: fresh_state(program, optimizer, 0, batch), batch)
    step = build_train_step(program, optimizer, {name: (1.0, 1.0) for name in program.objectives}, 1, 10)
    return jax.jit(step).trace(state, batch, np.int32(0)).lower(lowering_platforms=("cuda", "rocm")).as_text()


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
    assert "triton" in lowered("bert", names, packed_batch, direction=direction, dtype=dtype, **ONE_KERNEL)
