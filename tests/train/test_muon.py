"""Muon: orthogonal updates of the layers' matrices, and Adam of all else."""

import jax
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.train import loop
from bertlab.train.optimizers import build_optimizer, decay_mask, matrix_axes, muon_labels, parameter_names
from bertlab.train.sharding import MESH_AXES, build_mesh
from bertlab.train.state import state_shardings
from tests.references import tiny_program
from tests.train import test_sharding
from tests.train.test_loop import MODELS
from tests.train.test_optimizers import flat, settings
from tests.train.test_resume import break_at, lines_of, state_of
from tests.train.test_sharding import MESHES

RNG = np.random.default_rng(0)
normal = lambda *shape: RNG.normal(size=shape).astype(np.float32)
PARAMS = {
    "body": {
        "token_embedding": normal(9, 4),
        "blocks": {
            "attention": {
                "qkv_kernel": normal(2, 4, 3, 2, 3),
                "qkv_bias": normal(2, 3, 2, 3),
                "out_kernel": normal(2, 2, 3, 4),
            },
            "attention_norm": {"scale": normal(2, 4)},
            "up": {"kernel": normal(2, 4, 7), "bias": normal(2, 7)},
        },
        "forward": {"input_kernel": normal(2, 4, 4, 5), "projection": normal(2, 5, 4), "bias": normal(2, 4, 5)},
        "layer_0": {"recurrent_kernel": normal(5, 4, 5)},
        "output": {"transform": {"kernel": normal(4, 4)}},
    },
    "heads_nsp": {"kernel": normal(4, 2)},
}
# Each kernel's matrices, inputs by outputs, written out by hand: a loop over what is apart.
MATRICES = {
    "body/blocks/attention/qkv_kernel": lambda k: [k[n, :, t].reshape(4, 6) for n in range(2) for t in range(3)],
    "body/blocks/attention/out_kernel": lambda k: [k[n].reshape(6, 4) for n in range(2)],
    "body/blocks/up/kernel": lambda k: [k[n] for n in range(2)],
    "body/forward/input_kernel": lambda k: [k[n, :, gate] for n in range(2) for gate in range(4)],
    "body/forward/projection": lambda k: [k[n] for n in range(2)],
    "body/layer_0/recurrent_kernel": lambda k: [k[:, gate] for gate in range(4)],
}


def own_gradients(steps):
    rng = np.random.default_rng(1)
    return [jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), PARAMS) for _ in range(steps)]


def followed(optimizer, grads):
    """Parameters after each update."""
    built = build_optimizer(optimizer, 40)
    update, state, params, history = jax.jit(built.update), built.init(PARAMS), PARAMS, [flat(PARAMS)]
    for grad in grads:
        updates, state = update(grad, state, params)
        params = jax.tree.map(np.add, params, updates)
        history.append(flat(params))
    return history


def orthogonalised(matrix):
    """Five Newton-Schulz iterations act on singular values alone; the vectors stay."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left * values @ right


@pytest.mark.parametrize("scale", ["rms", "spectral"])
def test_equals_numpy(scale):
    optimizer = settings(name="muon", muon_scale=scale, muon_rate=3.0, clip_norm=5.0)
    grads = own_gradients(5)
    history = followed(optimizer, grads)
    weights = {name: MATRICES[name](history[0][name]) for name in MATRICES}
    momentum = {name: [np.zeros_like(w) for w in weights[name]] for name in MATRICES}
    for step, grad in enumerate(map(flat, grads)):
        clip = min(1, 5 / np.sqrt(sum((g**2).sum() for g in grad.values())))
        rate = 3 * 0.01 * (step / 2 if step < 2 else 1 - step / 40)
        for name in MATRICES:
            for i, g in enumerate(MATRICES[name](grad[name] * clip)):
                momentum[name][i] = 0.95 * momentum[name][i] + 0.05 * g
                inputs, outputs = g.shape
                size = 0.2 * max(inputs, outputs) ** 0.5 if scale == "rms" else max(1, outputs / inputs) ** 0.5
                update = size * orthogonalised(0.95 * momentum[name][i] + 0.05 * g)
                weights[name][i] = weights[name][i] - rate * (update + 0.1 * weights[name][i])
            # Newton-Schulz multiplies float32's rounding of small singular values by up to 3.4445^5 = 485.
            np.testing.assert_allclose(
                MATRICES[name](history[step + 1][name]), weights[name], rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_updates_are_nearly_orthogonal_along_the_gradients_singular_vectors():
    grads = own_gradients(1)
    optimizer = settings(name="muon", weight_decay=0.0, warmup_steps=0, decay="constant", muon_scale="spectral", clip_norm=0.0)
    before, after = followed(optimizer, grads)
    for name, matrices in MATRICES.items():
        for change, grad in zip(matrices((before[name] - after[name]) / 0.01), matrices(flat(grads[0])[name]), strict=True):
            left, values, right = np.linalg.svd(grad, full_matrices=False)
            inputs, outputs = grad.shape
            along = left.T @ change @ right.T / max(1, outputs / inputs) ** 0.5
            assert np.abs(along - np.diag(np.diag(along))).max() < 1e-3, "the same vectors"
            large = values / np.linalg.norm(values) > 0.02
            assert large.sum() >= len(values) - 1
            assert (np.diag(along)[large] > 0.67).all() and (np.diag(along)[large] < 1.21).all(), "the iteration's band"


@pytest.mark.parametrize("correction", ["none", "moments"])
def test_all_else_is_trained_by_adam_bit_for_bit(correction):
    adam, muon = (
        followed(settings(name=name, bias_correction=correction, muon_rate=3.0), own_gradients(4))[-1]
        for name in ("adam", "muon")
    )
    same = {name for name in adam if np.array_equal(adam[name], muon[name])}
    assert same == adam.keys() - MATRICES.keys()


def test_an_update_is_of_the_size_of_adams():
    """Liu et al. 2025, section 2.2: a root mean square of 0.2 to 0.4; so Adam's rates fit."""
    optimizer = settings(name="muon", weight_decay=0.0, warmup_steps=0, decay="constant")
    before, after = followed(optimizer, own_gradients(1))
    for name in MATRICES:
        assert 0.1 < np.sqrt(((after[name] - before[name]) ** 2).mean()) / 0.01 < 0.25


MUONS = {
    "bert": {"attention/qkv_kernel", "attention/out_kernel", "up/kernel", "down/kernel"},
    "elmo": {"input_kernel", "recurrent_kernel", "projection"},
    "awd_lstm": {"input_kernel", "recurrent_kernel"},
}
MUONS |= {"gpt": MUONS["bert"], "modern": MUONS["bert"] | {"gate/kernel"}, "static": set()}


@pytest.mark.parametrize("model", MODELS)
def test_the_matrices_of_layers_are_muons_and_nothing_else(model, packed_batch):
    family, names, changes = MODELS[model]
    program = tiny_program(family, names, **changes)
    batch = packed_batch() | {"characters": np.zeros((4, 12, 50), np.int32)}
    params = jax.eval_shape(program.init, jax.random.key(0), batch)
    found = {path.split("/", 2)[2] for path in parameter_names(params) if matrix_axes(path)}
    assert found == MUONS[family]
    if not found:
        with pytest.raises(UserError, match="this model has no layer; set name='adam'"):
            muon_labels(params)
        return
    assert all(
        decayed
        for decayed, label in zip(*map(jax.tree.leaves, (decay_mask(params, "bias|norm"), muon_labels(params))))
        if label == "muon"
    )


def test_families_are_all_there():
    assert MUONS.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("case", "meshes"), [("elmo", ["data+fsdp+tensor"]), pytest.param("bert", MESHES, marks=pytest.mark.slow)]
)
def test_eight_devices_are_one_device(case, meshes, packed_batch):
    batch = test_sharding.batch_of(case, packed_batch)
    muon = dict(name="muon", learning_rate=0.01)
    state, _ = test_sharding.one_step(case, batch, **muon)
    for mesh in meshes:
        other, _ = test_sharding.one_step(case, batch, mesh_sizes=MESHES[mesh], **muon)
        for name, one, divided in zip(
            parameter_names(state.params), *map(jax.tree.leaves, (state.params, other.params)), strict=True
        ):
            # As above: the gradients' rounding, 485 times, of updates of 0.01.
            np.testing.assert_allclose(one, divided, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", ["bert", "elmo"])
def test_momentum_lies_beside_its_parameter_and_only_muons_have_it(case, packed_batch):
    batch, optimizer = test_sharding.batch_of(case, packed_batch), test_sharding.adamw(name="muon")
    mesh, shapes = build_mesh(dict(zip(MESH_AXES, (2, 2, 2)))), test_sharding.shapes_of(case, batch, optimizer)
    placed = state_shardings(test_sharding.tiny_program(case), optimizer, mesh, batch, shapes)
    rules = placed.opt_state[1][1].inner_states
    where = dict(zip(parameter_names(placed.params), jax.tree.leaves(placed.params), strict=True))
    for label, moments in (("muon", ["momentum"]), ("adam", ["mu", "nu"])):
        mine = {name: place for name, place in where.items() if bool(matrix_axes(name)) == (label == "muon")}
        for moment in moments:
            of_moment = getattr(rules[label].inner_state, moment)
            assert dict(zip(parameter_names(of_moment), jax.tree.leaves(of_moment), strict=True)) == mine
    assert any(place.spec[1] == "fsdp" for name, place in where.items() if matrix_axes(name))


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(small_config, quick_compilation, tmp_path):
    stages = dict(optimizer__thaw="gradual", optimizer__thaw_steps=3, optimizer__layer_decay=0.5)
    config = small_config("bert", optimizer__name="muon", train__steps=12, train__eval_batches=1, **stages)
    loop.train(config, tmp_path / "straight")
    break_at(config, tmp_path / "killed", 7)
    loop.train(config, tmp_path / "killed")
    assert lines_of(tmp_path / "straight") == lines_of(tmp_path / "killed")
    straight, killed = (state_of(tmp_path / name, 12) for name in ("straight", "killed"))
    assert straight.keys() == killed.keys() and any("momentum" in name for name in straight)
    for name, array in straight.items():
        np.testing.assert_array_equal(array, killed[name], err_msg=name)
