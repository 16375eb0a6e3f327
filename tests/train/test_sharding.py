"""One training step on eight devices, or in micro-batches, is the step on one device."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models import attention
from bertlab.models.base import sequence_parts
from bertlab.models.presets import FAMILIES
from bertlab.objectives.program import Program
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import MESH_AXES, build_mesh, parameter_shardings, put_batch
from bertlab.train.state import TrainState, build_train_step, init_state, state_shardings
from tests import references

# Family, objectives, config.model: every family, and each of its ways of reading.
CASES = {
    "bert": ("bert", "mlm+nsp", dict(layers=2)),
    "gpt": ("gpt", "ltr", {}),
    "diffusion": ("bert", "diffusion", {}),
    "modern": ("modern", "mlm", dict(layers=2, local_window=4, global_every=2)),
    "disentangled": ("bert", "mlm", dict(layers=2, position_encoding="disentangled", position_buckets=4)),
    "elmo": ("elmo", "ltr+rtl", {}),
    "elmo on characters, stateful": ("elmo", "ltr+rtl", dict(layers=2, token_encoder="characters", stateful=True)),
    "awd_lstm, stateful": ("awd_lstm", "ltr+ar+tar", dict(layers=2, stateful=True)),
    "skip-gram": ("static", "skip_gram", {}),
    "cbow": ("static", "cbow", {}),
    "glove": ("static", "glove", {}),
}
# Rows divided along their positions, with dropout: each device draws what one device would.
IN_PARTS = {
    "bert in parts": ("bert", "mlm+nsp", dict(heads=4, dropout=0.1)),
    "gpt in parts": ("gpt", "ltr", dict(heads=4, dropout=0.1)),
    "modern in parts": ("modern", "mlm", dict(heads=4, layers=2, local_window=4, global_every=2, dropout=0.1)),
    "modern in bands": ("modern", "mlm", dict(heads=4, layers=2, local_window=128, global_every=2, dropout=0.1)),
    "diffusion in parts": ("bert", "diffusion", dict(heads=4, dropout=0.1)),
    "disentangled in parts": ("bert", "mlm", dict(heads=4, position_encoding="disentangled", position_buckets=4)),
    "relative in parts": ("bert", "mlm", dict(heads=4, position_encoding="relative", direction="bidirectional")),
    "right to left in parts": ("gpt", "rtl", dict(heads=4, direction="right-to-left", dropout=0.1)),
    "electra in parts": ("bert", "electra", dict(heads=16, width=32)),
    "span corruption in parts": ("bert", "span_corruption", dict(heads=4)),
    "prefix and others in parts": ("bert", "prefix+masked_next_token", dict(heads=4)),
}
# Float32 sums in another order differ in their last bits; a mean of means or a lost shard differs by percents.
TOLERANCE = 1e-5


def tiny_program(case: str) -> Program:
    family, names, model = (CASES | IN_PARTS)[case]
    dropouts = dict.fromkeys((key for key in FAMILIES[family].values if key.endswith("dropout")), 0.0)
    program, stateful = references.tiny_program(family, names, **dropouts | model), model.get("stateful", False)
    return dataclasses.replace(program, stream=stateful, stateful=stateful)


def batch_of(case: str, packed_batch, length: int = 16) -> dict:
    """A batch with what the case reads; rows differ a lot in how much they hold."""
    batch, rng = uneven(packed_batch(rows=16, length=length)), np.random.default_rng(3)
    shape = batch["tokens"].shape
    ids = lambda most, *more: rng.integers(0, most, (*shape, *more)).astype(np.int32)
    if "characters" in case:
        batch |= {"characters": ids(261, 50), "backward_characters": ids(261, 50)}
    if "stateful" in case:
        for prefix in ("", "backward_"):
            batch[f"{prefix}next_tokens"] = np.where(batch["documents"] > 0, ids(50), -1).astype(np.int32)
            batch[f"{prefix}continues"] = np.arange(16, dtype=np.int32) % 2
            batch |= {f"backward_{k}": batch[k] for k in ("tokens", "segments", "documents", "positions")}
        batch["rate_scale"] = np.full(16, 0.7, np.float32)
    if case == "glove":
        batch |= {"contexts": ids(50), "counts": rng.gamma(2.0, 5.0, shape).astype(np.float32)}
    return batch


def adamw(**changes) -> optax.GradientTransformationExtraArgs:
    settings = base_config().optimizer
    settings.update({"warmup_steps": 0, "decay": "constant", "learning_rate": 1e-3, "epsilon": 1e-3, **changes})
    # A trace without decay hands the gradient on and keeps it in its state, where the test reads it.
    return optax.chain(optax.trace(decay=0.0), build_optimizer(settings, 10))


def one_step(case, batch, mesh_sizes=(1, 1, 1), micro_batches=1, **changes):
    """(state after one step, its metrics), arrays still on their devices; always from the same initial state."""
    program, optimizer = tiny_program(case), adamw(**changes)
    state = random_state(case, batch, optimizer)
    mesh = build_mesh(dict(zip(MESH_AXES, mesh_sizes)))
    state = jax.device_put(state, state_shardings(program, optimizer, mesh, batch, state))
    weights = dict.fromkeys(program.objectives, (1.0, 1.0))
    with jax.set_mesh(mesh):
        step = jax.jit(build_train_step(program, optimizer, weights, micro_batches, 1)).lower(state, put_batch(mesh, batch), 0)
    return step.compile(references.QUICK)(state, put_batch(mesh, batch), 0)


def shapes_of(case, batch, optimizer):
    program = tiny_program(case)
    params = jax.eval_shape(program.init, jax.random.key(0), batch)
    carry = program.initial_carry(len(batch["tokens"]))
    return jax.eval_shape(lambda p: TrainState(jax.numpy.zeros([], "int32"), p, optimizer.init(p), carry), params)


def random_state(case, batch, optimizer):
    """A state before its first step whose parameters and carried states are random: unlike fresh ones, none is zero."""
    numbers, shapes = np.random.default_rng(4), shapes_of(case, batch, optimizer)
    filled = lambda tree: jax.tree.map(lambda x: numbers.normal(size=x.shape, scale=0.2).astype(x.dtype), tree)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    return dataclasses.replace(zeros, params=filled(shapes.params), carry=filled(shapes.carry))


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


# Stateless ELMo and CBOW are told apart from those beside them by nothing that a mesh or a micro-batch could see.
DIVIDED = [case for case in CASES if case not in ("elmo", "cbow")]
RARER = {"modern": pytest.mark.slow, "diffusion": pytest.mark.nightly, "disentangled": pytest.mark.nightly}
RARER["elmo on characters, stateful"] = pytest.mark.nightly


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=RARER.get(case, ())) for case in DIVIDED],
)
def test_eight_devices_and_micro_batches_equal_one_device(case, packed_batch):
    batch = batch_of(case, packed_batch)
    variants = [dict(mesh_sizes=(2, 2, 2), micro_batches=2)]
    if case == "bert":  # what can go wrong with one of the two alone does not depend on the family
        variants = [dict(mesh_sizes=(8, 1, 1)), dict(mesh_sizes=(2, 4, 1), micro_batches=2), dict(mesh_sizes=(2, 2, 2))]
    assert_same_step(case, batch, {}, variants)


def assert_same_step(case, batch, usual, variants):
    """The step with the `usual` arguments, and with each of the others."""
    state, metrics = one_step(case, batch, **usual)
    assert bool(jax.tree.leaves(state.carry)) == ("stateful" in case)
    assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in jax.tree.leaves(state.opt_state[0].trace))
    for arguments in variants:
        other, other_metrics = one_step(case, batch, **arguments)
        assert_same(metrics, other_metrics, f"{arguments}: metrics")
        assert_same(state.opt_state[0].trace, other.opt_state[0].trace, f"{arguments}: gradient")
        assert_same(state.params, other.params, f"{arguments}: parameters")
        assert_same(state.carry, other.carry, f"{arguments}: carried states")


SLOWER = {"gpt in parts": (), "bert in parts": pytest.mark.slow}


@pytest.mark.parametrize("case", [pytest.param(case, marks=SLOWER.get(case, pytest.mark.nightly)) for case in IN_PARTS])
def test_rows_in_parts_equal_whole_rows(case, packed_batch, monkeypatch):
    """Positions over two and over four devices, beside the other axes and in micro-batches."""
    bands, parts = attention._in_bands, set()
    monkeypatch.setattr(attention, "_in_bands", lambda *given: (parts.add(sequence_parts()), bands(*given))[1])
    # So long that each part has masked tokens, or that local layers spare half of the scores.
    batch = batch_of(case, packed_batch, length=512 if case == "modern in bands" else 32)
    micro_batches = 1 if case == "gpt in parts" else 2
    meshes = [(1, 2, 2, 2), (2, 1, 1, 4)][:micro_batches]
    variants = [dict(mesh_sizes=sizes, micro_batches=micro_batches) for sizes in meshes]
    assert_same_step(case, batch, variants[0] | dict(mesh_sizes=(1, 1, 1)), variants)
    assert parts == ({1, 2, 4} if case == "modern in bands" else set())


def test_shards_do_hold_unequal_numbers_of_masked_tokens(packed_batch):
    program, batch = tiny_program("bert"), uneven(packed_batch(rows=16, length=16))
    per_row = np.asarray(program.views(batch, jax.random.key(0))["mlm"]["masked_weights"]).sum(1)
    assert len(set(per_row.reshape(8, 2).sum(1))) > 1, "else the test above could not see a mean of means"


@pytest.mark.parametrize("case", ["bert", "disentangled", "elmo", "awd_lstm, stateful"])
def test_parameters_are_divided_as_the_rules_say(case, packed_batch):
    batch = batch_of(case, packed_batch)
    mesh = build_mesh(dict(zip(MESH_AXES, (2, 2, 2))))
    optimizer = adamw()
    placed = state_shardings(tiny_program(case), optimizer, mesh, batch, shapes_of(case, batch, optimizer))
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(sharding.spec)
        for path, sharding in jax.tree.leaves_with_path(placed.params)
    }
    expected = {
        "body/token_embedding": ("tensor", "fsdp"),
        "body/relative_embedding": (None, "fsdp"),
        "body/forward/recurrent_kernel": (None, "fsdp", None, "tensor"),
        "body/layer_0/input_kernel": ("fsdp", None, "tensor"),
        "body/blocks/attention/qkv_kernel": (None, "fsdp", None, "tensor", None),
        "body/blocks/up/kernel": (None, "fsdp", "tensor"),
    }
    known = expected.keys() & specs.keys()
    assert known and {name: specs[name] for name in known} == {name: expected[name] for name in known}
    assert {sharding.spec[0] for sharding in jax.tree.leaves(placed.carry)} <= {("data", "fsdp")}
    adam = placed.opt_state[1][1]
    assert adam.mu == adam.nu == placed.params


def test_values_made_on_eight_devices_are_those_made_on_one(packed_batch):
    batch, states = batch_of("bert", packed_batch), []
    for sizes in ((1, 1, 1), (2, 2, 2)):
        states.append(init_state(tiny_program("bert"), adamw(), build_mesh(dict(zip(MESH_AXES, sizes))), 0, batch))
    assert_same(*states, "fresh state")
    kernels = [leaf for leaf in jax.tree.leaves(states[1].params) if leaf.ndim > 1]
    assert any(not leaf.sharding.is_fully_replicated for leaf in kernels)


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
        (dict(data=4, fsdp=4, tensor=1), "asks for 16 devices, but JAX has 8"),
        (dict(data=-1, fsdp=-1, tensor=1), "only one size may be -1"),
        (dict(data=1, fsdp=0, tensor=1), "config.mesh.fsdp=0"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(UserError, match=message):
        build_mesh(sizes)
