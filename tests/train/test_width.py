"""μP: a few steps change as much in a wide transformer as in a narrow one (Yang et al. 2022, appendix D.1)."""

import jax
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models.presets import model_shape
from bertlab.train.build import build_pretraining
from bertlab.train.optimizers import build_optimizer, parameter_names
from tests.references import VOCABULARY, initial, quick_jit, tiny_program

WIDTHS = (32, 64, 128, 256, 512)
HEAD, STEPS = 16, 4
SHAPES = {
    "gpt": {"norm_placement": "pre", "final_norm": True},
    "bert": {"norm_placement": "post"},
    "untied": {"norm_placement": "pre", "final_norm": True, "tied": False, "use_bias": False, "norm": "rms_norm"},
}


@pytest.fixture(scope="module")
def batch():
    tokens = np.random.default_rng(0).integers(5, VOCABULARY.size, (8, 16)).astype(np.int32)
    fields = {"segments": 0, "documents": 1, "example_id": 0, "visit": 0}
    filled = {name: np.full_like(tokens, value) for name, value in fields.items()}
    return {**filled, "tokens": tokens, "positions": np.tile(np.arange(16, dtype=np.int32), (8, 1))}


def program_of(width, base_width, shape):
    family = "bert" if shape == "bert" else "gpt"
    sizes = {"width": width, "heads": width // HEAD, "hidden": 4 * width, "layers": 2, "base_width": base_width}
    given = {"direction": "left-to-right", "dropout": 0.0, "init_stddev": 0.1, **sizes, **SHAPES[shape]}
    return tiny_program(family, "ltr", **given)


def changes(width, base_width, shape, batch):
    """Name -> the mean size of what training changed in the states of each layer and in the logits."""
    program = program_of(width, base_width, shape)
    settings = base_config().optimizer
    settings.update(
        learning_rate=5e-3, warmup_steps=0, decay="constant", clip_norm=0.0, bias_correction="moments", epsilon=1e-12
    )
    optimizer = build_optimizer(settings, STEPS, program.body.config.times_base)
    params = before = initial(program, batch)
    [view] = program.views(batch, jax.random.key(0)).values()

    def loss(params):
        total, weight = program.metrics(params, {name: view for name in program.views(batch, jax.random.key(0))})["ltr/loss"]
        return total / weight

    @quick_jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    labels = np.roll(batch["tokens"], -1, 1)[..., None]
    right = lambda logits: jax.numpy.take_along_axis(logits[:, :-1], labels[:, :-1], -1)

    @quick_jit
    def outputs(params):
        states = program.encode(params, view).forward
        return {f"layer {n}": x for n, x in enumerate(states)} | {
            "logits": right(program.token_logits(params, view, "ltr", "forward"))
        }

    state = optimizer.init(params)
    for _ in range(STEPS):
        params, state = step(params, state)
    return jax.tree.map(lambda a, b: float(np.abs(a - b).mean()), outputs(params), outputs(before))


def slopes(base_width, shape, batch):
    """Name -> the power of the width with which it grows."""
    found = [changes(width, base_width, shape, batch) for width in WIDTHS]
    return {name: np.polyfit(np.log(WIDTHS), np.log([each[name] for each in found]), 1)[0] for name in found[0]}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_few_steps_change_states_and_right_logits_alike_at_every_width(shape, batch):
    assert {name: slope for name, slope in slopes(64, shape, batch).items() if abs(slope) > 0.2} == {}


@pytest.mark.parametrize("shape", SHAPES)
def test_without_it_they_change_more_the_wider_the_model(shape, batch):
    found = slopes(0, shape, batch)
    assert found["layer 1"] > 0.4 and found["logits"] > 0.4


@pytest.mark.parametrize("shape", SHAPES)
def test_at_the_base_width_nothing_is_different(shape, batch):
    assert changes(64, 64, shape, batch) == changes(64, 0, shape, batch)


def test_initial_values_and_logits_follow_the_width(batch):
    wide, usual = (initial(program_of(256, base, "untied"), batch) for base in (64, 0))
    names = parameter_names(wide)
    scales = [np.unique(np.round(a / b, 4)) for a, b in zip(jax.tree.leaves(wide), jax.tree.leaves(usual)) if b.std()]
    kernels = [name for name in names if name.endswith("kernel") and name != "body/output/kernel"]
    assert len(kernels) == 4 and [scale.tolist() for scale in scales].count([0.5]) == 4
    view = program_of(256, 0, "untied").views(batch, jax.random.key(0)).popitem()[1]
    logits = [program_of(256, base, "untied").token_logits(usual, view, "ltr", "forward") for base in (64, 0)]
    np.testing.assert_allclose(logits[0] * 4, logits[1], rtol=1e-6)


def test_only_adam_s_rates_are_carried_over(small_config):
    config = small_config("gpt", model__base_width=64, optimizer__name="sgd", optimizer__bias_correction="none")
    with pytest.raises(UserError, match=r"config\.model\.base_width=64.*optimizer\.name='sgd'"):
        build_pretraining(config)
    assert model_shape(config.model, 50).times_base == config.model.width / 64
