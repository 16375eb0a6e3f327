"""One training step on eight devices, or in micro-batches, is the step on one device."""

import jax
import numpy as np
import optax
import pytest

from bertlab import objectives
from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import MESH_AXES, build_mesh, check_batch, parameter_shardings, put_batch
from bertlab.train.state import build_train_step, init_state, state_shardings

VOCABULARY = objectives.Vocabulary(size=50, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4)
OBJECTIVES = {"bert": ("mlm", "nsp"), "gpt": ("ltr",), "elmo": ("ltr", "rtl")}
MESHES = {"data": (8, 1, 1), "data+fsdp": (2, 4, 1), "data+fsdp+tensor": (2, 2, 2)}
# Float32 sums in another order differ in their last bits; a mean of means or a lost shard differs by percents.
TOLERANCE = 1e-5


def tiny_program(family: str) -> Program:
    config = base_config()
    config.model.update(family=family, width=16, hidden=32, dropout=0.0, layers=2 if family == "elmo" else 1)
    if family != "elmo":
        config.model.heads = 4
    body = build_body(model_shape(config.model, VOCABULARY.size))
    return Program(body, {name: objectives.find(name)() for name in OBJECTIVES[family]}, VOCABULARY)


def adamw() -> optax.GradientTransformation:
    settings = base_config().optimizer
    settings.update(warmup_steps=0, decay="constant", learning_rate=1e-3, epsilon=1e-3)
    # A trace without decay hands the gradient on and keeps it in its state, where the test reads it.
    return optax.chain(optax.trace(decay=0.0), build_optimizer(settings, 10))


def one_step(family, batch, mesh_sizes=(1, 1, 1), micro_batches=1):
    """(state after one step, its metrics), arrays still on their devices; always from the same initial state."""
    program, optimizer = tiny_program(family), adamw()
    state = initial_state(family, batch)
    mesh = build_mesh(dict(zip(MESH_AXES, mesh_sizes)))
    state = jax.device_put(state, state_shardings(program, optimizer, mesh, batch, state))
    weights = dict.fromkeys(program.objectives, 1.0)
    with jax.set_mesh(mesh):
        step = jax.jit(build_train_step(program, optimizer, weights, 0, micro_batches)).lower(state, put_batch(mesh, batch))
    return step.compile()(state, put_batch(mesh, batch))


def initial_state(family, batch, mesh_sizes=(1, 1, 1)):
    return init_state(tiny_program(family), adamw(), build_mesh(dict(zip(MESH_AXES, mesh_sizes))), 0, batch)


def assert_same(one, other, what):
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(one), jax.tree.leaves_with_path(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        scale = max(np.abs(a).max(), 1e-3)
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=f"{what} {jax.tree_util.keystr(path)}")


def uneven(batch):
    """Rows 0 to 3 nearly empty, so that shards and micro-batches hold very different numbers of masked tokens."""
    batch = {k: v.copy() for k, v in batch.items()}
    for field in ("tokens", "segments", "documents", "positions"):
        batch[field][:4, 2:] = 0
    batch["pair_label"][:4] = -1
    return batch


@pytest.mark.parametrize("family", OBJECTIVES)
def test_eight_devices_and_micro_batches_equal_one_device(family, packed_batch):
    batch = uneven(packed_batch(rows=16, length=16))
    variants = {f"mesh {name}": dict(mesh_sizes=sizes) for name, sizes in MESHES.items()}
    variants |= {"4 micro-batches": dict(micro_batches=4), "both": dict(mesh_sizes=(2, 2, 2), micro_batches=2)}
    state, metrics = one_step(family, batch)
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in jax.tree.leaves(state.opt_state[0].trace))
    for label, arguments in variants.items():
        other, other_metrics = one_step(family, batch, **arguments)
        assert_same(metrics, other_metrics, f"{label}: metrics")
        assert_same(state.opt_state[0].trace, other.opt_state[0].trace, f"{label}: gradient")
        assert_same(state.params, other.params, f"{label}: parameters")


def test_shards_do_hold_unequal_numbers_of_masked_tokens(packed_batch):
    program, batch = tiny_program("bert"), uneven(packed_batch(rows=16, length=16))
    per_row = np.asarray(program.views(batch, jax.random.key(0))["mlm"]["masked_weights"]).sum(1)
    assert len(set(per_row.reshape(8, 2).sum(1))) > 1, "else the test above could not see a mean of means"


@pytest.mark.parametrize("family", OBJECTIVES)
def test_parameters_are_divided_as_the_rules_say(family, packed_batch):
    batch = packed_batch(rows=16, length=16)
    state = initial_state(family, batch, mesh_sizes=(2, 2, 2))
    assert_same(initial_state(family, batch), state, "values made on eight devices")
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (*leaf.sharding.spec, None, None, None, None)[: leaf.ndim]
        for path, leaf in jax.tree.leaves_with_path(state.params)
    }
    assert specs["body/token_embedding"] == ("tensor", "fsdp")
    if family == "elmo":
        assert specs["body/forward_0/recurrent_kernel"] == ("fsdp", None, "tensor")
    else:
        assert specs["body/block_0/attention/qkv_kernel"] == ("fsdp", None, "tensor", None)
        assert specs["body/block_0/up/kernel"] == ("fsdp", "tensor")
    adam = state.opt_state[1][1]
    for moment in (adam.mu, adam.nu):
        assert jax.tree.map(lambda x: x.sharding, moment) == jax.tree.map(lambda x: x.sharding, state.params)


def test_every_parameter_needs_a_rule():
    mesh = build_mesh(dict(data=1, fsdp=1, tensor=1))
    spec, shape = jax.sharding.PartitionSpec, jax.ShapeDtypeStruct((4, 4), np.float32)
    with pytest.raises(UserError, match=r"layer/kernel: no sharding rule for logical axis 'colour'"):
        parameter_shardings(mesh, {"layer": {"kernel": spec("embed", "colour")}}, {"layer": {"kernel": shape}})
    with pytest.raises(UserError, match=r"layer/kernel .* names 0 logical axes"):
        parameter_shardings(mesh, {"layer": {"kernel": spec()}}, {"layer": {"kernel": shape}})


def test_a_dimension_that_the_mesh_does_not_divide_stays_whole():
    mesh = build_mesh(dict(data=2, fsdp=2, tensor=2))
    shapes = {"table": jax.ShapeDtypeStruct((7, 4), np.float32)}
    placed = parameter_shardings(mesh, {"table": jax.sharding.PartitionSpec("vocab", "embed")}, shapes)
    assert placed["table"].spec == jax.sharding.PartitionSpec(None, "fsdp")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(data=3, fsdp=-1, tensor=1), "does not divide 8 devices"),
        (dict(data=4, fsdp=4, tensor=1), "asks for 16 devices and there are 8"),
        (dict(data=-1, fsdp=-1, tensor=1), "one of them may be -1"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(UserError, match=message):
        build_mesh(sizes)


def test_a_batch_that_the_mesh_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"batch_size=12 is not a multiple of config.mesh data·fsdp \(8\)"):
        check_batch(8, 12, 1)
    with pytest.raises(UserError, match=r"train.micro_batches \(3\)"):
        check_batch(8, 16, 3)
    check_batch(8, 48, 3)
