"""μP: a few steps change as much in a wide transformer as in a narrow one (Yang et al. 2022, appendix D.1)."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params
from bertlab.train.lora import Lora
from bertlab.train.optimizers import build_optimizer, parameter_names
from bertlab.train.width import heads_note, initial_values, update_factors
from tests.references import VOCABULARY, initial, quick_jit, tiny_program

WIDTHS = (64, 512)
HEAD, STEPS = 16, 4
PRE = {"norm_placement": "pre", "final_norm": True, "direction": "left-to-right"}
# Name -> (family, objectives, settings of the model).
SHAPES = {
    "gpt": ("gpt", "ltr", PRE),
    "bert": ("bert", "ltr", {"direction": "left-to-right"}),
    "untied": ("gpt", "ltr", {**PRE, "tied": False, "use_bias": False, "norm": "rms_norm"}),
}


BY_TIER = ["gpt", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("bert", "untied"))]


@pytest.fixture(scope="module")
def batch():
    tokens = np.random.default_rng(0).integers(5, VOCABULARY.size, (8, 16)).astype(np.int32)
    fields = {"segments": 0, "documents": 1, "example_id": 0, "visit": 0}
    filled = {name: np.full_like(tokens, value) for name, value in fields.items()}
    pairs = {"pair_label": np.arange(8, dtype=np.int32) % 2}
    return {**filled, "tokens": tokens, "positions": np.tile(np.arange(16, dtype=np.int32), (8, 1)), **pairs}


def program_of(width, base_width, shape):
    family, objectives, given = SHAPES[shape]
    sizes = {"width": width, "heads": width // HEAD, "hidden": 4 * width, "layers": 2, "base_width": base_width}
    return tiny_program(family, objectives, **{"dropout": 0.0, "init_stddev": 0.1, **sizes, **given})


def fresh(program, batch):
    return initial_values(program, batch, initial(program, batch))


def changes(width, base_width, shape, batch):
    """Name -> the mean size of what training changed in the states of each layer and in the right tokens' logits."""
    program = program_of(width, base_width, shape)
    settings = base_config().optimizer
    settings.update(
        learning_rate=5e-3, warmup_steps=0, decay="constant", clip_norm=0.0, bias_correction="moments", epsilon=1e-12
    )
    optimizer = build_optimizer(settings, STEPS, update_factors(program, batch))
    [view] = program.views(batch, jax.random.key(0)).values()
    labels = np.roll(batch["tokens"], -1, 1)[:, :-1, None]

    def loss(params):
        total, weight = program.metrics(params, {"clean": view})["ltr/loss"]
        return total / weight

    @quick_jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    @quick_jit
    def outputs(params):
        states = {f"layer {n}": x for n, x in enumerate(program.encode(params, view).forward)}
        logits = program.token_logits(params, view, "ltr", "forward")
        return states | {"logits": jax.numpy.take_along_axis(logits[:, :-1], labels, -1)}

    params = before = fresh(program, batch)
    state = optimizer.init(params)
    for _ in range(STEPS):
        params, state = step(params, state)
    return jax.tree.map(lambda a, b: float(np.abs(a - b).mean()), outputs(params), outputs(before))


def slopes(base_width, shape, batch):
    """Name -> the power of the width with which it grows."""
    found = [changes(width, base_width, shape, batch) for width in WIDTHS]
    return {name: np.polyfit(np.log(WIDTHS), np.log([each[name] for each in found]), 1)[0] for name in found[0]}


@pytest.mark.parametrize("shape", BY_TIER)
def test_a_few_steps_change_states_and_right_logits_alike_at_every_width(shape, batch):
    assert {name: slope for name, slope in slopes(64, shape, batch).items() if abs(slope) > 0.2} == {}


@pytest.mark.parametrize("shape", BY_TIER)
def test_without_it_they_change_more_the_wider_the_model(shape, batch):
    found = slopes(0, shape, batch)
    assert found["layer 1"] > 0.3 and found["logits"] > 0.3


MATRICES = ["body/blocks/attention/out_kernel", "body/blocks/attention/qkv_kernel", "body/blocks/down/kernel"]
MATRICES += ["body/blocks/up/kernel"]


@pytest.mark.parametrize(
    "objectives, given, matrices, outputs",
    [
        ("ltr", {"tied": False, "output_transform": False, **PRE}, [], []),
        ("mlm+nsp", {}, ["body/output/transform/kernel", "body/pooler/kernel"], ["heads_nsp/kernel"]),
        ("diffusion", {"position_encoding": "relative"}, ["body/output/transform/kernel"], []),
        ("diffusion", {"position_encoding": "disentangled"}, ["body/output/transform/kernel"], []),
    ],
)
def test_initial_values_and_rates_follow_the_axes_that_grow(objectives, given, matrices, outputs, batch):
    sizes = {"width": 32, "heads": 4, "hidden": 64, "layers": 2}
    wide, usual = (tiny_program("bert", objectives, base_width=base, **sizes, **given) for base in (8, 0))
    assert update_factors(usual, batch) is None
    values = [jax.tree.leaves(fresh(program, batch)) for program in (wide, usual)]
    names, rates = parameter_names(fresh(wide, batch)), jax.tree.leaves(update_factors(wide, batch))
    ratios = {name: float(np.median(a[b != 0] / b[b != 0])) for name, a, b in zip(names, *values, strict=True) if b.any()}
    scaled = {name: (ratio, rate) for name, ratio, rate in zip(names, map(ratios.get, names), rates) if (ratio, rate) != (1, 1)}
    found = {name: pair for name, pair in scaled.items() if pair[0] is not None or pair[1] != 1}
    assert found == dict.fromkeys(MATRICES + matrices, (0.5, 0.25)) | dict.fromkeys(outputs, (0.25, 0.25))


def test_a_generator_and_low_rank_factors_follow_the_body(batch):
    sizes = {"width": 32, "heads": 4, "hidden": 64, "layers": 2}
    program = tiny_program("bert", "electra", base_width=8, **sizes)
    program = dataclasses.replace(program, adapter=Lora(2, 4.0, "qkv_kernel/(query|value)$"))
    rates = dict(zip(parameter_names(initial(program, batch)), jax.tree.leaves(update_factors(program, batch)), strict=True))
    of = lambda part: {name.rsplit("/", 1)[1]: rate for name, rate in rates.items() if part in name}
    assert set(of("generator/blocks/up").values()) == {0.25, 1.0} and of("generator/projection")["kernel"] == 0.25
    assert of("lora/body/blocks/attention/qkv_kernel/query") == {"a": 0.25, "b": 1.0}


@pytest.mark.parametrize("shape", SHAPES)
def test_at_the_base_width_nothing_is_different(shape, batch):
    at_base, without = (program_of(32, base, shape) for base in (32, 0))
    assert update_factors(at_base, batch) is None
    jax.tree.map(np.testing.assert_array_equal, fresh(at_base, batch), fresh(without, batch))
    assert at_base.body.config.times_base == 1


@pytest.mark.nightly
def test_the_loop_trains_with_it(small_config, tmp_path):
    """One step of Adam moves every trained value by its rate, if decay and ε are small."""
    sizes = {
        "model__width": 32,
        "model__heads": 2,
        "model__hidden": 64,
        "optimizer__epsilon": 1e-30,
        "optimizer__weight_decay": 0.0,
    }
    rest = {"optimizer__bias_correction": "moments", "optimizer__warmup_steps": 0, "optimizer__decay": "constant"}
    config = small_config("gpt", train__steps=1, model__base_width=8, optimizer__learning_rate=1e-3, **sizes, **rest)
    loop.train(config, tmp_path / "run")
    program = (experiment := build_pretraining(config)).program
    example = experiment.evaluations["valid"][0]
    before = initial_values(program, example, program.init(jax.random.key(config.seed), example))
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), load_params(tmp_path / "run"), before)
    found = dict(zip(parameter_names(moved), jax.tree.leaves(moved), strict=True))
    assert found["body/token_embedding"] == pytest.approx(1e-3, rel=1e-3)
    assert found["body/blocks/up/kernel"] == found["body/blocks/attention/qkv_kernel"] == pytest.approx(2.5e-4, rel=1e-3)


def test_only_adam_s_rates_are_carried_over(small_config):
    config = small_config("gpt", model__base_width=64, optimizer__name="sgd", optimizer__bias_correction="none")
    with pytest.raises(UserError, match=r"config\.model\.base_width=64.*optimizer\.name='sgd'"):
        build_pretraining(config)


@pytest.mark.parametrize(
    ("sizes", "heads"),
    [
        ({"width": 256, "base_width": 128}, 4),  # the size's two heads, each twice as wide
        ({"width": 256, "base_width": 128, "heads": 4}, None),
        ({"width": 256}, None),
        ({"base_width": 128}, None),
    ],
)
def test_heads_of_another_width_are_noticed(sizes, heads):
    model = base_config().model
    model.update({"family": "bert", "size": "tiny", **sizes})
    said = heads_note(model)
    assert (f"(here {heads})" in said and "128 wide" in said) if heads else not said
