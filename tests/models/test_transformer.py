"""The transformer equals a NumPy reference in every family's shape; its initial values are BERT's
and GPT's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models.layers import Norm
from bertlab.models.positions import distance_buckets
from bertlab.objectives import Vocabulary
from tests.references import (
    distance_bucket,
    hidden_states,
    initial,
    metrics_of,
    packed_batch,
    quick_jit,
    random_params,
    tiny_program,
    transformer_row,
    views_of,
)

SIDES = {"bidirectional": "both", "left-to-right": "forward", "right-to-left": "backward"}
SHAPES = {
    "bert": ("bert", "bidirectional", {}),
    "bert, right to left": ("bert", "right-to-left", {}),
    "roberta": (
        "bert",
        "bidirectional",
        dict(activation="gelu_erf", epsilon=1e-5, position_offset=2, segments=1),
    ),
    "gpt1": ("gpt", "left-to-right", {}),
    "gpt2": ("gpt", "left-to-right", dict(norm_placement="pre", final_norm=True)),
    "modern": ("modern", "bidirectional", dict(local_window=4, first_norm=False)),
    "modern, left to right": (
        "modern",
        "left-to-right",
        dict(local_window=2, global_every=2, activation="silu"),
    ),
    "sinusoidal": ("bert", "bidirectional", dict(position_encoding="sinusoidal")),
    "relative, left to right": ("gpt", "left-to-right", dict(position_encoding="relative")),
    "relative, local": (
        "modern",
        "bidirectional",
        dict(position_encoding="relative", local_window=4, global_every=2),
    ),
    "no positions, gated, biases, post": (
        "gpt",
        "left-to-right",
        dict(position_encoding="none", gated=True, activation="relu", embedding_norm=True),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_forward_pass_equals_numpy(name):
    family, direction, settings = SHAPES[name]
    program = tiny_program(family, "", direction=direction, layers=4, **settings)
    batch, shape = packed_batch(rows=2, length=12), program.body.shape
    params = random_params(program, batch)
    body = params["body"]
    # A norm's epsilon shows where sums are small.
    small = [table for table in body if table.endswith("_embedding")]
    small = [body[table] for table in small]
    if shape.norm_placement == "post" and not shape.embedding_norm:
        small += [body["blocks"]["attention"][name] for name in ("out_kernel", "out_bias")]
    for array in small:
        array *= 0.002 if shape.epsilon < 1e-6 or shape.norm_placement == "post" else 0.1
    encoded = hidden_states(program, params, batch)
    side, layers = encoded.widest()
    assert side == SIDES[direction]
    assert (encoded.forward, encoded.backward, encoded.both).count(None) == 2
    for row in range(2):
        expected = transformer_row(body, {k: v[row] for k, v in batch.items()}, shape)
        for ours, theirs in zip(layers, expected, strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)


ORDERED = {
    "order": ("bert", "bidirectional", ("order",), {}),
    "local, two streams": (
        "modern",
        "bidirectional",
        ("order", "shown_at"),
        dict(local_window=4, global_every=2),
    ),
    "with the direction": ("gpt", "left-to-right", ("order", "shown_at"), {}),
}


@pytest.mark.parametrize("name", ORDERED)
def test_a_views_own_order_equals_numpy(name):
    """Orders that differ between rows and have ties; padding stays finite."""
    family, direction, fields, settings = ORDERED[name]
    program = tiny_program(family, "", direction=direction, layers=3, **settings)
    batch, rng = packed_batch(rows=3, length=12), np.random.default_rng(4)
    params = random_params(program, batch)
    orders = {field: rng.integers(-1, 6, size=(3, 12)).astype(np.int32) for field in fields}
    view = {**batch, **orders}
    _, layers = hidden_states(program, params, view).widest()
    for row in range(3):
        fields = {name: field[row] for name, field in view.items()}
        expected = transformer_row(params["body"], fields, program.body.shape)
        for ours, theirs in zip(layers, expected, strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("both_sides, buckets", [(True, 31), (False, 32)])
def test_far_relative_positions_share_buckets(both_sides, buckets):
    found = distance_buckets(300, both_sides)
    for here in (0, 150, 299):
        expected = [distance_bucket(there - here, both_sides) for there in range(300)]
        np.testing.assert_array_equal(found[here], expected)
    assert len(np.unique(found[150])) == buckets


def recomputes_products(jaxpr) -> bool:
    """Whether a jax.checkpoint in it has a matrix product."""
    for equation in jaxpr.eqns:
        inner = [part for part in equation.params.values() if hasattr(part, "eqns")]
        inner += [part.jaxpr for part in equation.params.values() if hasattr(part, "jaxpr")]
        if "remat" in equation.primitive.name and "dot_general" in str(equation):
            return True
        if any(map(recomputes_products, inner)):
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "family, changes",
    [("bert", dict(scan_layers=True, remat="dots")), ("modern", dict(remat="full"))],
)
def test_loops_and_recomputation_change_nothing(family, changes):
    """The same loss and gradients but for rounding, with dropout."""
    batch = packed_batch(rows=2, length=12)

    def loss_and_gradients(**settings):
        program = tiny_program(family, "mlm", layers=2, dropout=0.2, **settings)
        params, views = random_params(program, batch), views_of(program, batch)

        def loss(params):
            return program.metrics(params, views, key=jax.random.key(5))[0]["mlm/loss"][0]

        traced = quick_jit(jax.value_and_grad(loss)).trace(params)
        assert recomputes_products(traced.jaxpr) == ("remat" in settings)
        return traced.lower().compile()(params)

    expected_loss, expected = loss_and_gradients()
    loss, gradients = loss_and_gradients(**changes)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_with_dots_a_layer_keeps_its_products_but_not_its_activations():
    """Bytes for the backward pass, counted by hand."""
    batch, length, layers, width, hidden = 2, 64, 3, 128, 512
    zeros = jnp.zeros((batch, length), jnp.int32)
    view = {name: zeros for name in ("tokens", "segments", "documents", "positions")}

    def kept(remat):
        shape = dict(layers=layers, width=width, hidden=hidden, remat=remat, scan_layers=True)
        program = tiny_program("bert", "", **shape)
        params = jax.eval_shape(program.init, jax.random.key(0), view)

        def states(params):
            rngs = {"dropout": jax.random.key(0)}
            encoded, _ = program.module.apply(
                {"params": params}, view, rngs=rngs, method=lambda module, v: module.body.encode(v)
            )
            return encoded.both[-1]

        saved = jax.eval_shape(lambda params: jax.vjp(states, params)[1], params)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(saved))

    # Queries, keys and values; attention's output; up and down.
    products = 3 * width + width + hidden + width
    assert kept("dots") - kept("full") == 4 * layers * batch * length * products
    # Without, also the inputs of sums, norms and activation, but nothing in float32 between these.
    assert kept("dots") < kept("none") < 2 * kept("dots")


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_initial_values(family):
    names = "mlm+nsp" if family == "bert" else "ltr"
    vocabulary = Vocabulary(2000, 0, 1, 2, 3, 4)
    program = tiny_program(family, names, vocabulary, width=64, hidden=256)
    params = initial(program, packed_batch())
    body, block = params["body"], params["body"]["blocks"]
    drawn = [body["token_embedding"], body["position_embedding"]]
    drawn += [block["attention"][f"{name}_kernel"] for name in ("qkv", "out")]
    drawn += [block[name]["kernel"] for name in ("up", "down")]
    if family == "bert":
        drawn += [body["pooler"]["kernel"], body["output"]["transform"]["kernel"]]
    for values in drawn:
        # Cut at two deviations and not rescaled, BERT's 0.02 becomes 0.8796 · 0.02.
        assert values.std() == pytest.approx(0.0176 if family == "bert" else 0.02, rel=0.05)
        assert abs(values.mean()) < 0.001
        assert (np.abs(values).max() <= 0.04) == (family == "bert")
    for path, values in jax.tree.leaves_with_path(params):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        if name.endswith("bias") or name == "scale":
            assert (values == (name == "scale")).all(), path


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norms_of_bfloat16_are_computed_in_float32(kind):
    """Next to a mean of 100, bfloat16 would lose what is normalised."""
    x = jnp.asarray(np.random.default_rng(0).normal(100, 4, size=(16, 64)), jnp.bfloat16)
    module = Norm(1e-6, kind)
    found = module.apply(module.init(jax.random.key(0), x), x)
    assert found.dtype == jnp.bfloat16
    exact = np.float64(x)
    centred = exact - exact.mean(-1, keepdims=True) if kind == "layer_norm" else exact
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(np.float64(found), expected, rtol=2**-8)  # the result's rounding


@pytest.mark.slow
def test_bfloat16_computes_in_bfloat16_on_float32_parameters():
    batch, losses = packed_batch(), {}
    for dtype in ("float32", "bfloat16"):
        program = tiny_program("bert", "mlm", dtype=dtype)
        params = random_params(program, batch, scale=0.3)
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
        assert jax.eval_shape(program.encode, params, batch).both[-1].dtype == dtype
        metrics = metrics_of(program, params, views_of(program, batch))
        assert {str(x.dtype) for pair in metrics.values() for x in pair} == {"float32"}
        losses[dtype] = float(metrics["mlm/loss"][0])
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.03)
    assert losses["bfloat16"] != losses["float32"]
