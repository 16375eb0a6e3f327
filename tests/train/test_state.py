"""A step's randomness, its sums of 16-bit numbers, and gradients of parts of a batch."""

import jax
import numpy as np
import pytest

from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import build_mesh, put_batch
from bertlab.train.state import build_gradients, build_step, init_state
from tests.train.runs import RECIPES, make


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return make("bert", tmp_path_factory.mktemp("state"), model__dropout=0.0)


def sums_of_steps(experiment):
    """(updates done) -> the sums of a first batch's training step, from fresh parameters."""
    config, (phase,) = experiment.config, experiment.phases
    mesh, batch = build_mesh(config.mesh), phase.batches(0)
    optimizer = build_optimizer(config.optimizer, 12, experiment.program, experiment.example)
    fresh = init_state(experiment.program, optimizer, mesh, 0, experiment.example)
    step = build_step(config, phase, optimizer, mesh, fresh)

    def sums(number):
        state = init_state(experiment.program, optimizer, mesh, 0, experiment.example)
        state = state.replace(step=jax.device_put(np.int32(number), state.step.sharding))
        with jax.set_mesh(mesh):
            return jax.device_get(step(state, put_batch(mesh, batch))[1])

    return sums


def test_each_step_draws_other_masks_and_the_same_one_the_same(experiment):
    sums = sums_of_steps(experiment)
    losses = [sums(number)["mlm/loss"][0] for number in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_a_weight_falls_linearly_to_its_final_value(tmp_path):
    def gradient_norm(number, **changes):
        changes = {f"objectives__nsp__{key}": value for key, value in changes.items()}
        experiment = make("bert", tmp_path, model__dropout=0.0, **changes)
        return sums_of_steps(experiment)(number)["gradient_norm"][0]

    halfway = gradient_norm(6, weight=2.0, final_weight=0.0)
    assert halfway == pytest.approx(gradient_norm(6, weight=1.0), rel=1e-5)
    assert halfway != pytest.approx(gradient_norm(6, weight=2.0), rel=1e-2)


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_added_to_the_same_places_in_16_bits(name, tmp_path):
    """GPUs are a hundred times slower at it than in float32."""
    experiment = make(name, tmp_path, model__dtype="bfloat16")
    program, phase = experiment.program, experiment.phases[0]
    batch, weights = phase.batches(0), dict.fromkeys(program.objectives, 1.0)
    params = jax.eval_shape(program.init, jax.random.key(0), batch)
    views = program.views(batch, jax.random.key(1), np.float32(0))
    carry, gradients = program.initial_carry(phase.rows), build_gradients(program, 1, "")
    step = jax.make_jaxpr(gradients)(params, views, carry, jax.random.key(0), weights)
    sums = [line for line in str(step).splitlines() if "scatter-add" in line]
    assert sums
    assert not [line for line in sums if "bf16[" in line.partition("scatter-add")[0]]


def test_parts_with_unequal_numbers_of_masks_add_up_to_the_batch(experiment):
    program, batch = experiment.program, experiment.phases[0].batches(0)
    batch = {name: np.array(value) for name, value in batch.items()}
    batch["documents"][::2, 10:] = 0  # rows of half the text, and of fewer masks
    params = program.init(jax.random.key(0), batch)
    views = program.views(batch, jax.random.key(1), np.float32(0))
    found = []
    for parts in (1, 2):
        gradients = build_gradients(program, parts, "")
        found.append(
            gradients(
                params,
                views,
                {},
                None if parts == 1 else jax.random.key(0),
                {"mlm": 1.0, "nsp": 1.0},
            )[0]
        )
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=2e-6), *found)
