"""Muon: orthogonal updates of the layers' matrices, and Adam of all else."""

import jax
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.train.optimizers import build_optimizer, decay_mask, matrix_axes, muon_labels, parameter_names
from bertlab.train.sharding import MESH_AXES, build_mesh
from bertlab.train.state import state_shardings
from tests.references import tiny_program
from tests.train import test_sharding
from tests.train.test_optimizers import flat, settings

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


def test_all_else_is_trained_by_adam_bit_for_bit():
    adam, muon = (
        followed(settings(bias_correction="moments", **rule), own_gradients(4))[-1]
        for rule in ({"name": "adam"}, {"name": "muon", "muon_rate": 3.0})
    )
    assert {name for name in adam if np.array_equal(adam[name], muon[name])} == adam.keys() - MATRICES.keys()


# By the last name of a parameter: every name of every family is in one of the two.
DECAYED = {f"{name}_embedding" for name in ("token", "position", "relative", "segment")} | {"embedding", "kernel", "projection"}
DECAYED |= {f"{name}_kernel" for name in ("qkv", "out", "input", "recurrent", "carry", "transform")}
KEPT = {"scale", "bias", "qkv_bias", "out_bias", "input_bias", "recurrent_bias", "carry_bias", "transform_bias"}
MUONS = {
    "bert": {"attention/qkv_kernel", "attention/out_kernel", "up/kernel", "down/kernel"},
    "elmo": {"input_kernel", "recurrent_kernel", "projection"},
    "awd_lstm": {"input_kernel", "recurrent_kernel"},
    "static": set(),
}
MUONS |= {"gpt": MUONS["bert"], "modern": MUONS["bert"] | {"gate/kernel"}}


@pytest.mark.parametrize(
    ("family", "names", "changes"),
    [
        ("bert", "mlm+nsp", {}),
        ("bert", "mlm", {"position_encoding": "disentangled"}),
        ("gpt", "ltr", {}),
        ("gpt", "ltr", {"size": "gpt2"}),
        ("modern", "mlm", {}),
        ("elmo", "ltr+rtl+mlm", {}),
        ("elmo", "ltr+rtl", {"token_encoder": "characters"}),
        ("awd_lstm", "ltr+ar+tar", {}),
        ("static", "skip_gram", {}),
    ],
)
def test_kernels_and_embeddings_are_decayed_and_the_matrices_of_layers_are_muons(family, names, changes, packed_batch):
    """Norms and biases are neither; of a new family MUONS has no entry."""
    batch = packed_batch() | {"characters": np.zeros((4, 12, 50), np.int32)}
    params = jax.eval_shape(tiny_program(family, names, **changes).init, jax.random.key(0), batch)
    paths = parameter_names(params)
    assert {path.rpartition("/")[2] for path in paths} <= DECAYED | KEPT and MUONS.keys() == FAMILIES.keys()
    by_default = jax.tree.leaves(decay_mask(params, base_config().optimizer.decay_exclude))
    assert by_default == [path.rpartition("/")[2] in DECAYED for path in paths]
    assert all(jax.tree.leaves(decay_mask(params, "")))
    assert {path.split("/", 2)[2] for path in paths if matrix_axes(path)} == MUONS[family]
    if family == "static":
        with pytest.raises(UserError, match="name='adam'"):
            muon_labels(params)


MUON = dict(name="muon", learning_rate=0.01)


@pytest.mark.nightly
def test_eight_devices_are_one_device(packed_batch):
    batch = test_sharding.batch_of("bert", packed_batch)
    (state, _), (other, _) = (test_sharding.one_step("bert", batch, sizes, **MUON) for sizes in ((1, 1, 1), (2, 2, 2)))
    for name, one, divided in zip(parameter_names(state.params), *map(jax.tree.leaves, (state.params, other.params))):
        # As above: the gradients' rounding, 485 times, of updates of 0.01.
        np.testing.assert_allclose(one, divided, rtol=1e-5, atol=1e-5, err_msg=name)


def test_momentum_lies_beside_its_parameter_and_only_muons_have_it(packed_batch):
    batch, optimizer = test_sharding.batch_of("bert", packed_batch), test_sharding.adamw(**MUON)
    mesh, shapes = build_mesh(dict(zip(MESH_AXES, (2, 2, 2)))), test_sharding.shapes_of("bert", batch, optimizer)
    placed = state_shardings(test_sharding.tiny_program("bert"), optimizer, mesh, batch, shapes)
    rules = placed.opt_state[1][1].inner_states
    where = dict(zip(parameter_names(placed.params), jax.tree.leaves(placed.params), strict=True))
    for label, moments in (("muon", ["momentum"]), ("adam", ["mu", "nu"])):
        mine = {name: place for name, place in where.items() if bool(matrix_axes(name)) == (label == "muon")}
        for moment in moments:
            of_moment = getattr(rules[label].inner_state, moment)
            assert dict(zip(parameter_names(of_moment), jax.tree.leaves(of_moment), strict=True)) == mine
    assert any(place.spec[1] == "fsdp" for name, place in where.items() if matrix_axes(name))
