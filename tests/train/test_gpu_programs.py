"""Programs lower for GPUs that are not here: JAX's rules and Pallas' Triton take every operation of every family."""

import functools
import importlib.util
import re

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config import base_config
from bertlab.models import attention
from bertlab.models.presets import DIRECTIONS, FAMILIES
from bertlab.objectives import REGISTRY
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import build_mesh, put_batch
from bertlab.train.state import build_eval_step, build_train_step, fresh_state, state_shardings
from bertlab.transfer.composition import build_finetuning
from bertlab.transfer.finetune import finetune_config, overridden, resolved
from bertlab.transfer.load import _widest
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


def lowered(family: str, names: str, batch, platforms=("cuda", "rocm"), mesh=None, **model) -> str:
    """The text of a training step, AdamW's update included, for these platforms at once; on a mesh of {axis: devices}."""
    program = references.tiny_program(family, names, **{"width": 32} | model)
    return step_of(program, {name: (1.0, 1.0) for name in program.objectives}, batch, platforms, mesh)


def step_of(program, weights, batch, platforms, mesh=None) -> str:
    optimizer = build_optimizer(base_config().optimizer, 10)
    state = state_of(program, batch)
    step = build_train_step(program, optimizer, weights, 1, 10)
    if mesh is None:
        return text_of(step, state, batch, np.int32(0), platforms=platforms)
    mesh = build_mesh(ConfigDict(mesh))
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    state = jax.tree.map(placed, state, state_shardings(program, optimizer, mesh, batch, state))
    with jax.set_mesh(mesh):
        return text_of(step, state, put_batch(mesh, batch), np.int32(0), platforms=platforms)


def state_of(program, batch):
    """Shapes of a fresh state."""
    optimizer = build_optimizer(base_config().optimizer, 10)
    return jax.eval_shape(lambda batch: fresh_state(program, optimizer, 0, batch), batch)


def text_of(function, *given, platforms=("cuda",)) -> str:
    return jax.jit(function).trace(*given).lower(lowering_platforms=platforms).as_text()


def kernels_of(text: str) -> list[str]:
    """The first operand, queries, keys and values, of each call of our own kernel."""
    return [re.search(r" : \(tensor<(\w+)>", line)[1] for line in text.splitlines() if "@__gpu$xla.gpu.triton" in line]


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(attention, "_platform", lambda: "gpu")


@pytest.fixture
def rows(packed_batch):
    """Two rows of 128."""
    return packed_batch(rows=2, length=128)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "direction"), BODIES)
def test_a_training_step_of_all_objectives_lowers(family, direction, dtype, rows):
    text = lowered(family, names_of(family, direction), rows, direction=direction, dtype=dtype)
    assert "triton" not in text
    assert (dtype == "bfloat16") == bool(re.search(r"dot_general.*bf16", text)) or family == "static"


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.nightly), "bfloat16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_attention_in_one_kernel_lowers(direction, dtype, rows, on_a_gpu):
    names = "mlm" if direction == "bidirectional" else "ltr" if direction == "left-to-right" else "rtl"
    for dropout in (0.0, 0.1):
        text = lowered("bert", names, rows, direction=direction, dtype=dtype, dropout=dropout, **ONE_KERNEL)
        assert len(kernels_of(text)) == 2 * 3, "forward, and two backward, for both platforms"


def test_local_layers_in_one_kernel_lower(rows, on_a_gpu):
    window = {"layers": 2, "local_window": 20, "global_every": 2, "dropout": 0.1}
    assert kernels_of(lowered("modern", "mlm", rows, **window, **ONE_KERNEL))


@pytest.mark.parametrize(
    ("mesh", "of_one"),
    [
        ({"data": 2, "fsdp": 2}, "1x128x3x4x16xf32"),
        pytest.param({"data": 2, "tensor": 2}, "2x128x3x2x16xf32", marks=pytest.mark.nightly),
        pytest.param({"data": 2, "sequence": 2}, "2x128x3x2x16xf32", marks=pytest.mark.nightly),
    ],
)
def test_each_device_of_a_mesh_has_the_kernel_for_its_rows_and_heads(mesh, of_one, packed_batch, on_a_gpu):
    text = lowered("bert", "mlm", packed_batch(rows=4, length=128), mesh=mesh, width=64, heads=4, dropout=0.1, **ONE_KERNEL)
    assert kernels_of(text) == [of_one] * 6


@pytest.mark.parametrize("head_width", [64, *(pytest.param(width, marks=pytest.mark.nightly) for width in (128, 256))])
def test_heads_of_real_models_lower_in_one_kernel(head_width, packed_batch, on_a_gpu):
    model = {"width": 2 * head_width, "heads": 2, "dtype": "bfloat16", "dropout": 0.1}
    text = lowered("bert", "mlm", packed_batch(rows=2, length=512), **model, **ONE_KERNEL)
    assert kernels_of(text) == [f"2x512x3x2x{head_width}xbf16"] * 6


@pytest.mark.parametrize(
    ("names", "remat", "calls"),
    [
        ("mlm", "dots", 4),
        pytest.param("mlm", "full", 4, marks=pytest.mark.nightly),
        pytest.param("electra", "none", 6, marks=pytest.mark.nightly),
        pytest.param("diffusion", "none", 3, marks=pytest.mark.nightly),
    ],
)
def test_remat_and_other_objectives_lower_in_one_kernel(names, remat, calls, rows, on_a_gpu):
    """The backward pass repeats the forward kernel under remat; ELECTRA has two bodies."""
    text = lowered("bert", names, rows, width=64, remat=remat, dropout=0.1, **ONE_KERNEL)
    assert len(kernels_of(text)) == 2 * calls


def test_products_of_float8_lower_beside_the_kernel_with_divided_parameters(packed_batch, on_a_gpu):
    model = {"width": 64, "products": "float8", "dropout": 0.1}
    text = lowered("modern", "mlm", packed_batch(rows=4, length=128), ("cuda",), {"data": 2, "fsdp": 2}, **model, **ONE_KERNEL)
    assert kernels_of(text) == ["1x128x3x2x32xf32"] * 3 and re.search(r"dot_general.*f8E4M3FN", text)


@pytest.mark.nightly
def test_fine_tuning_lowers_in_one_kernel(bert_run, words_task, on_a_gpu):
    changes = {"model.attention": "pallas", "model.heads": 1, "data.seq_len": 128, "data.batch_size": 2, "mesh.data": 1}
    experiment = build_finetuning(*resolved(overridden(finetune_config(bert_run, words_task), changes)))
    [phase] = experiment.phases
    text = step_of(phase.program, phase.weights, next(iter(phase.train)), ("cuda", "rocm"))
    assert kernels_of(text) == ["2x128x3x1x16xf32"] * 6


def test_evaluation_and_hidden_states_lower_in_one_kernel(rows, on_a_gpu):
    program = references.tiny_program("bert", "mlm+nsp", width=32, **ONE_KERNEL)
    state = state_of(program, rows)
    evaluate = text_of(build_eval_step(program), state.params, rows, np.int32(0), state.carry)
    widest = text_of(functools.partial(_widest, program), state.params, (rows, state.carry))
    assert kernels_of(evaluate) == kernels_of(widest) == ["2x128x3x2x16xf32"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["bert", "modern"])
def test_products_of_float8_lower_for_nvidia(family, dtype, rows):
    text = lowered(family, "mlm", rows, ("cuda",), dtype=dtype, products="float8")
    dots = [line for line in text.splitlines() if "dot_general" in line]
    assert any("f8E4M3FN" in line and "f8E5M2" not in line for line in dots) and any("f8E5M2" in line for line in dots)


# JAX looks for cuDNN's version when it lowers; a GPU is not needed.
WITH_CUDNN = pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs jax[cuda12]: make cuda")


@WITH_CUDNN
@pytest.mark.parametrize("position_encoding", ["learned", "rotary", "relative"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_attention_by_cudnn_lowers(direction, position_encoding, rows):
    names = "mlm" if direction == "bidirectional" else "ltr" if direction == "left-to-right" else "rtl"
    model = {"attention": "cudnn", "dropout": 0.0, "dtype": "bfloat16", "position_encoding": position_encoding}
    text = lowered("bert", names, rows, ("cuda",), direction=direction, **model)
    assert {"__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"} <= {*re.findall(r"@(__cudnn\$\w+)", text)}


@WITH_CUDNN
def test_cudnn_s_own_layers_of_a_window_lower(rows):
    model = {"attention": "cudnn", "dropout": 0.0, "dtype": "bfloat16", "layers": 2, "local_window": 20, "global_every": 2}
    assert "__cudnn$fmha" in lowered("modern", "mlm", rows, ("cuda",), **model)
