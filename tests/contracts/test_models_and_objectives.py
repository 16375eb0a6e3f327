"""What every family and every objective promises; a new one is tested here as soon as it is registered."""

import functools
import itertools

import jax
import numpy as np
import pytest

from bertlab import objectives
from bertlab.config import add_objectives, base_config
from bertlab.data.formats import FORMATS
from bertlab.errors import UserError
from bertlab.models.base import SIDES, sides_of
from bertlab.models.presets import DIRECTIONS, FAMILIES
from bertlab.objectives import REGISTRY
from bertlab.train.checks import check_config
from tests.references import quick_jit, tiny_program


def config_of(family, direction, name, data_format="segment_pair"):
    config = base_config()
    config.model.update(family=family, size=next(iter(FAMILIES[family].sizes)), direction=direction)
    config.data.format = data_format
    if "order_label" in REGISTRY[name].needs and FORMATS[data_format].has_pairs:
        config.data[data_format].negatives = "swapped"
    add_objectives(config, name)
    return config


def with_its_view(name) -> str:
    """An objective that shares another's view goes beside that one."""
    return f"{REGISTRY[name].sees}+{name}" if REGISTRY[name].sees in REGISTRY else name


def is_allowed(family, direction, name) -> bool:
    if direction not in FAMILIES[family].directions or family not in (REGISTRY[name].families or FAMILIES):
        return False
    return REGISTRY[name].reads in ("any", *sides_of(family, direction))


def format_for(name) -> str:
    return "cooccurrence" if "counts" in REGISTRY[name].needs else "segment_pair"


COMBINATIONS = list(itertools.product(FAMILIES, DIRECTIONS, REGISTRY))
ALLOWED = [combination for combination in COMBINATIONS if is_allowed(*combination)]
# gpt and modern are bert's body with other values: one direction of them is enough to run.
RUN = [c for c in ALLOWED if c[0] not in ("gpt", "modern") or c[1] == FAMILIES[c[0]].directions[0]]
NOT_ALLOWED = [combination for combination in COMBINATIONS if not is_allowed(*combination)]


def test_every_objective_and_every_body_is_of_use():
    assert {name for *_, name in ALLOWED} == set(REGISTRY)
    bodies = {(family, direction) for family, kind in FAMILIES.items() for direction in kind.directions}
    assert {(family, direction) for family, direction, _ in ALLOWED} == bodies


@pytest.mark.parametrize(("family", "direction", "name"), NOT_ALLOWED)
def test_combination_that_cannot_be_is_refused(family, direction, name):
    reason = f"objective ({with_its_view(name).replace('+', '|')}) reads .*config.model.direction"
    if direction not in FAMILIES[family].directions:
        reason = rf"config.model.direction='{direction}': {family} reads"
    elif family not in (REGISTRY[name].families or FAMILIES):
        reason = f"objective {name} .* set config.model.family"
    with pytest.raises(UserError, match=reason):
        check_config(config_of(family, direction, name, format_for(name)))


@functools.cache
def program_of(family, direction, beside_sbo=False):
    """(program, its initial values, its gradient) of one body with all its objectives, compiled once for all their tests.

    The gradient is a function (params, batch, weights [n]) -> gradients of the weighted sum of losses, and all metrics.
    sbo needs another setting of mlm's, so these two have a program of their own.
    """
    names = [name for *body, name in ALLOWED if body == [family, direction] and name != "sbo"]
    program = tiny_program(family, "mlm+sbo" if beside_sbo else "+".join(names), direction=direction)
    if beside_sbo:
        program.objectives["mlm"] = REGISTRY["mlm"](unit="span")

    def weighted(params, batch, weights):
        metrics = program.metrics(params, program.views(batch, jax.random.key(0)))
        return sum(weight * metrics[f"{name}/loss"][0] for weight, name in zip(weights, program.objectives)), metrics

    return program, quick_jit(program.init), quick_jit(jax.grad(weighted, has_aux=True))


@pytest.mark.parametrize(("family", "direction", "name"), ALLOWED)
def test_combination_that_can_be_is_accepted(family, direction, name):
    assert name in check_config(config_of(family, direction, name, format_for(name)))


@pytest.mark.parametrize(("family", "direction", "name"), RUN)
def test_combination_that_can_be(family, direction, name, packed_batch):
    (program, init, gradient), batch = program_of(family, direction, name == "sbo"), packed_batch(rows=4, length=14)
    # Only this objective is trained.
    weights = np.float32([other == name for other in program.objectives])
    params = jax.tree.map(np.asarray, init(jax.random.key(0), batch))
    if "output" in params["body"] and family == "static":  # its output matrix begins with zeros, which let no gradient through
        params["body"]["output"]["kernel"] = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32) * 0.3
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    assert jax.tree.structure(program.logical_axes(batch), is_leaf=lambda x: not isinstance(x, dict)) == jax.tree.structure(
        params
    )

    views = jax.eval_shape(program.views, batch, jax.random.key(0))
    assert program.objectives[name].has_order == ("order" in views.get(name, {}))

    grads, metrics = gradient(params, batch, weights)
    own = [metric for metric in metrics if metric.startswith(f"{name}/")]
    assert f"{name}/loss" in own
    assert f"{name}/accuracy" in own or REGISTRY[name].asks != "tokens"
    for metric in own:
        pair = metrics[metric]
        assert [(x.shape, x.dtype) for x in pair] == [((), np.dtype("float32"))] * 2, metric
        assert np.isfinite(pair).all() and float(pair[1]) > 0, metric
    loss_sum, weight = map(float, metrics[f"{name}/loss"])
    if REGISTRY[name].asks in ("tokens", "pairs"):
        assert 0.3 < loss_sum / weight < 2 * np.log(program.vocabulary.size), (
            "fresh parameters know nothing, and are not far off"
        )
    if f"{name}/accuracy" in own:
        assert 0 <= float(metrics[f"{name}/accuracy"][0]) <= weight
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert np.any(grads["body"]["token_embedding"])
    layers = [layer for part, layer in grads["body"].items() if part.startswith(("blocks", "forward", "backward", "layer_"))]
    assert family == "static" or any(np.any(leaf) for leaf in jax.tree.leaves(layers)), "gradients reach the layers"

    # Whatever lies in padding, and a row that is all padding, changes nothing.
    padding, rng = batch["documents"] == 0, np.random.default_rng(1)
    other = dict(batch)
    for field, most in (("tokens", 50), ("segments", 2), ("positions", 14), ("contexts", 50)):
        other[field] = np.where(padding, rng.integers(0, most, padding.shape), batch[field]).astype(np.int32)
    assert (other["tokens"] != batch["tokens"]).any()
    grads_other, metrics_other = gradient(params, other, weights)
    for metric in own:
        np.testing.assert_allclose(metrics[metric], metrics_other[metric], rtol=1e-6, err_msg=metric)
    for one, another in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_other), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-5, atol=1e-6)

    empty = {field: np.zeros_like(value) for field, value in batch.items()} | dict.fromkeys(
        ("pair_label", "order_label"), np.full(4, -1, np.int32)
    )
    of_empty = gradient(params, empty, weights)[1]
    for metric in own:
        assert [float(x) for x in of_empty[metric]] == [0.0, 0.0], metric


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", REGISTRY)
def test_objectives_that_need_pairs_need_a_format_that_makes_them(name, data_format):
    family, direction, _ = next(combination for combination in ALLOWED if combination[2] == name)
    config = config_of(family, direction, name, data_format)
    if ("counts" in REGISTRY[name].needs) != (data_format == "cooccurrence"):
        with pytest.raises(UserError, match=rf"objective .*.*format='{data_format}' .*set config.data.format="):
            check_config(config)
    elif {"pair_label", "order_label"} & set(REGISTRY[name].needs) and not FORMATS[data_format].has_pairs:
        with pytest.raises(UserError, match=r"set config.data.format='segment_pair'"):
            check_config(config)
    else:
        assert name in check_config(config)


@pytest.mark.parametrize("name", REGISTRY)
def test_objectives_are_hashable_values_with_settings(name):
    kind = REGISTRY[name]
    assert kind() == kind() and hash(kind()) == hash(kind())
    assert objectives.find(name) is kind and kind.__doc__
    assert kind.reads in ("any", *SIDES) and kind.sees in ("clean", "own", "shared", "any", *REGISTRY)
