"""BERT's and GPT's forward pass equal a NumPy reference; initial values and parameter counts are the papers'."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models import transformer
from bertlab.models.attention import Sight
from bertlab.models.base import Norm
from bertlab.models.presets import FAMILIES
from bertlab.models.transformer import by_distance, distance_buckets, log_buckets
from bertlab.objectives import Vocabulary
from tests.references import (
    gelu,
    hidden_states,
    initial,
    layer_norm,
    metrics_of,
    quick_jit,
    random_params,
    tiny_program,
    views_of,
)


def allowed(row, direction):
    """[L, L] Whether query (row) may see key (column)."""
    documents = row["documents"]
    t = np.arange(len(documents))
    reach = {"left-to-right": t[None] <= t[:, None], "right-to-left": t[None] >= t[:, None], "bidirectional": True}[direction]
    if "order" in row:
        reach = reach & ((row.get("shown_at", row["order"])[None] <= row["order"][:, None]) | (t[None] == t[:, None]))
    return (documents[:, None] == documents[None]) & reach


ERF = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu_tanh": gelu,
    "gelu_erf": lambda x: x * (1 + ERF(x / np.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def turned(x, positions, base):
    """[L, K] Each pair (i, i + K/2) as a complex number, turned by position · base^(−2i/K)."""
    half = x.shape[1] // 2
    rates = base ** (-2 * np.arange(half) / x.shape[1])
    number = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * positions[:, None] * rates)
    return np.concatenate([number.real, number.imag], 1)


def bucket(ahead, both_sides):
    """T5's bucket of a distance: the first ones by themselves, longer ones by their logarithm, up to 128."""
    buckets, distance = 16 if both_sides else 32, abs(ahead)
    own = buckets // 2
    far = own + int(math.log(max(distance, 1) / own) / math.log(128 / own) * (buckets - own))
    return (distance if distance < own else min(far, buckets - 1)) + (16 if both_sides and ahead > 0 else 0)


def row_of(behind, k):
    """DeBERTa-v2's row of a table of 2k distances: the near ones by themselves, others by their logarithm, up to 511."""
    own, distance = k // 2, abs(behind)
    far = math.ceil(math.log(max(distance, own) / own) / math.log(511 / own) * (own - 1)) + own
    signed = math.copysign(distance if distance <= own else far, behind)
    return min(max(int(signed) + k, 0), 2 * k - 1)


def encode_row(body, row, c):
    """Hidden states [L, D] of every layer of one row, in float64, written from the papers; `c` has the switches."""

    def norm(x, p):
        if c.norm == "layer_norm":
            return layer_norm(x, {"bias": 0.0, **p}, c.epsilon)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c.epsilon) * p["scale"]

    linear = lambda x, p: x @ np.float64(p["kernel"]) + p.get("bias", 0.0)

    def attend(x, p, layer):
        local = c.local_window and layer % c.global_every
        mask, base = allowed(row, c.direction), c.rotary_base_local if local else c.rotary_base
        if local:
            place = row["positions"]
            mask = mask & (abs(place[:, None] - place[None]) <= c.local_window / 2)
        mixed = np.zeros_like(x)
        for head in range(c.heads):
            q, k, v = (x @ p["qkv_kernel"][:, i, head] + (p["qkv_bias"][i, head] if c.use_bias else 0) for i in range(3))
            if c.position_encoding == "rotary":
                q, k = turned(q, row["positions"], base), turned(k, row["positions"], base)
            scores = q @ k.T / np.sqrt(q.shape[1])
            if c.position_encoding == "relative":
                both_sides, place = c.direction == "bidirectional", row["positions"]
                buckets = [[bucket(int(there - here), both_sides) for there in place] for here in place]
                scores = scores + body["relative_bias"][buckets, head]
            if c.position_encoding == "disentangled":
                table, place = norm(np.float64(body["relative_embedding"]), body["relative_norm"]), row["positions"]
                at_q, at_k = (
                    table @ p["qkv_kernel"][:, i, head] + (p["qkv_bias"][i, head] if c.use_bias else 0) for i in (0, 1)
                )
                rows = np.array([[row_of(int(here - there), c.position_buckets) for there in place] for here in place])
                to_position, to_content = np.einsum("ik,ijk->ij", q, at_k[rows]), np.einsum("jk,ijk->ij", k, at_q[rows])
                scores = (q @ k.T + to_position + to_content) / np.sqrt(3 * q.shape[1])
            scores = np.where(mask, scores, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            mixed += weights / weights.sum(1, keepdims=True) @ v @ p["out_kernel"][head]
        return mixed + p.get("out_bias", 0.0)

    def feed_forward(x, p):
        hidden = ACTIVATIONS[c.activation](linear(x, p["up"]))
        return linear(hidden * linear(x, p["gate"]) if c.gated else hidden, p["down"])

    x = np.float64(body["token_embedding"])[row["tokens"]]
    if c.position_encoding == "learned":
        x = x + body["position_embedding"][row["positions"] + c.position_offset]
    if c.position_encoding == "sinusoidal":
        for i in range(c.width):
            angle = row["positions"] / 10_000 ** (i // 2 * 2 / c.width)
            x[:, i] += np.cos(angle) if i % 2 else np.sin(angle)
    if c.segments:
        x = x + body["segment_embedding"][row["segments"] if c.segments > 1 else 0 * row["segments"]]
    if c.embedding_norm:
        x = norm(x, body["embedding_norm"])
    layers = [x]
    for layer in range(c.layers):
        p = jax.tree.map(lambda stacked, layer=layer: stacked[layer], body["blocks"])
        if c.norm_placement == "pre":
            x = x + attend(norm(x, p["attention_norm"]), p["attention"], layer)
            x = x + feed_forward(norm(x, p["feed_forward_norm"]), p)
        else:
            x = norm(x + attend(x, p["attention"], layer), p["attention_norm"])
            x = norm(x + feed_forward(x, p), p["feed_forward_norm"])
        layers.append(x)
    return [*layers[:-1], norm(x, body["final_norm"])] if c.final_norm else layers


ROBERTA = dict(activation="gelu_erf", epsilon=1e-5, position_offset=2, segments=1)
SHAPES = {
    "bert": ("bert", "bidirectional", {}),
    "gpt1": ("gpt", "left-to-right", {}),
    "gpt2": ("gpt", "left-to-right", dict(norm_placement="pre", final_norm=True)),
    "bert right to left": ("bert", "right-to-left", {}),
    "roberta": ("bert", "bidirectional", ROBERTA),
    "modern": ("modern", "bidirectional", dict(local_window=4, global_every=3, heads=2)),
    "modern left to right": ("modern", "left-to-right", dict(local_window=2, global_every=2, activation="silu")),
    "sinusoidal": ("bert", "bidirectional", dict(position_encoding="sinusoidal")),
    "relative": ("bert", "bidirectional", dict(position_encoding="relative")),
    "relative, left to right": ("gpt", "left-to-right", dict(position_encoding="relative")),
    "relative, right to left": ("bert", "right-to-left", dict(position_encoding="relative", segments=0)),
    "relative, modern": ("modern", "bidirectional", dict(position_encoding="relative", local_window=4, global_every=2)),
    "disentangled": ("bert", "bidirectional", dict(position_encoding="disentangled")),
    "disentangled, few buckets, left to right": (
        "gpt",
        "left-to-right",
        dict(position_encoding="disentangled", position_buckets=3),
    ),
    "disentangled, right to left": ("bert", "right-to-left", dict(position_encoding="disentangled", position_buckets=4)),
    "disentangled, modern": (
        "modern",
        "bidirectional",
        dict(position_encoding="disentangled", position_buckets=4, local_window=4, global_every=2),
    ),
    "no positions, gated, biases, post": (
        "gpt",
        "left-to-right",
        dict(position_encoding="none", gated=True, activation="relu", embedding_norm=True),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_forward_pass_equals_numpy(name, packed_batch):
    family, direction, switches = SHAPES[name]
    names = {"bidirectional": "mlm", "left-to-right": "ltr", "right-to-left": "rtl"}[direction]
    program = tiny_program(family, names, direction=direction, layers=4, **switches)
    batch = packed_batch(rows=2, length=12)
    params = random_params(program, batch)
    body, config = params["body"], program.body.config
    # Sums as small as this are where a norm's epsilon shows.
    shrink = [body[f"{kind}_embedding"] for kind in ("token", "position", "segment") if f"{kind}_embedding" in body]
    if config.norm_placement == "post" and not config.embedding_norm:
        shrink += [body["blocks"]["attention"][name] for name in ("out_kernel", "out_bias")]
    for array in shrink:
        array *= 0.002 if config.epsilon < 1e-6 or config.norm_placement == "post" else 0.1
    encoded = hidden_states(program, params, batch)
    given = [side for side in (encoded.forward, encoded.backward, encoded.both) if side is not None]
    assert given == [
        {"bidirectional": encoded.both, "left-to-right": encoded.forward, "right-to-left": encoded.backward}[direction]
    ]
    for row in range(2):
        expected = encode_row(body, {k: v[row] for k, v in batch.items()}, config)
        for layer, (ours, theirs) in enumerate(zip(given[0], expected, strict=True)):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5, err_msg=f"layer {layer}")


ORDERED = {
    "bert": ("bert", "bidirectional", ("order",), {}),
    "two streams": ("bert", "bidirectional", ("order", "shown_at"), {}),
    "local windows on top": ("modern", "bidirectional", ("order", "shown_at"), dict(local_window=4, global_every=2)),
    "with the direction": ("gpt", "left-to-right", ("order", "shown_at"), {}),
    "disentangled": ("bert", "bidirectional", ("order", "shown_at"), dict(position_encoding="disentangled")),
}


@pytest.mark.parametrize("name", ORDERED)
def test_a_views_own_order_equals_numpy(name, packed_batch):
    """Orders that differ from row to row, with ties, and none of them a position's; padding stays finite."""
    family, direction, fields, switches = ORDERED[name]
    program = tiny_program(family, "", direction=direction, layers=3, **switches)
    batch, rng = packed_batch(rows=3, length=12), np.random.default_rng(4)
    params = random_params(program, batch)
    view = {**batch, **{field: rng.integers(-1, 6, size=(3, 12)).astype(np.int32) for field in fields}}
    _, layers = quick_jit(program.encode)(params, view).widest()
    for row in range(3):
        expected = encode_row(params["body"], {k: v[row] for k, v in view.items()}, program.body.config)
        for ours, theirs in zip(layers, expected, strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)


def test_far_relative_positions_share_buckets():
    for both_sides in (True, False):
        found = distance_buckets(300, both_sides)
        expected = [[bucket(there - here, both_sides) for there in range(300)] for here in (0, 150, 299)]
        np.testing.assert_array_equal(found[[0, 150, 299]], expected)
        assert len(np.unique(found[150])) == (31 if both_sides else 32)


def test_far_distances_share_rows_of_the_table():
    for k in (2, 5, 32, 256):
        expected = [row_of(behind, k) for behind in range(-599, 600)]
        np.testing.assert_array_equal(log_buckets(600, k), expected)
    assert {*expected} == {*range(512)}
    np.testing.assert_array_equal(log_buckets(129, 256), 256 + np.arange(-128, 129))


def test_products_with_distances_are_put_where_they_belong():
    for length in (1, 2, 7):
        x = np.random.default_rng(0).normal(size=(2, 3, length, 2 * length - 1)).astype(np.float32)
        found = np.asarray(by_distance(x))
        for a, b in np.ndindex(length, length):
            np.testing.assert_array_equal(found[..., a, b], x[..., a, b - a + length - 1])


def test_numbers_of_the_table_are_dropped(monkeypatch):
    """Each by itself, with projections that change nothing."""
    config = tiny_program("bert", "", position_encoding="disentangled", dropout=0.25).body.config
    found, same = [], np.tile(np.eye(8).reshape(8, 1, 2, 4), (1, 3, 1, 1))
    params = {
        "qkv_kernel": same,
        "out_kernel": np.eye(8).reshape(2, 4, 8),
        "qkv_bias": np.zeros((3, 2, 4)),
        "out_bias": np.zeros(8),
    }
    monkeypatch.setattr(
        transformer, "position_scores", lambda qkv, places, _: found.append(places) or jnp.zeros((1, 2, 99, 99))
    )
    sight, table = Sight(jnp.ones((1, 1, 99, 99), bool), None, "bidirectional"), np.arange(1.0, 4097).reshape(512, 8)
    given = {"params": params}, jnp.zeros((99, 8)), sight, None, jnp.asarray(table)

    def places(deterministic):
        transformer.Attention(config, deterministic).apply(*given, rngs={"dropout": jax.random.key(0)})
        return found.pop()[:, 1].reshape(197, 8)

    shown, dropped = (np.asarray(quick_jit(places, static_argnums=0)(chosen)) for chosen in (True, False))
    np.testing.assert_array_equal(shown, table[256 - 98 : 256 + 99])
    np.testing.assert_allclose(dropped[dropped != 0], (shown / 0.75)[dropped != 0], rtol=1e-5)
    assert 0.2 < (dropped == 0).mean() < 0.3 and not (dropped == 0).all(axis=1).any()


SWITCHES = {
    "bert": [dict(scan_layers=False), dict(remat="dots"), dict(remat="full", scan_layers=False)],
    "modern": [dict(remat="full")],
    "disentangled": [dict(remat="full", scan_layers=True)],
}


@pytest.mark.parametrize("name", SWITCHES)
def test_loops_and_recomputation_change_nothing(name, packed_batch):
    """Same parameters, and the same loss and gradients to within rounding, with dropout at work."""
    batch = packed_batch(rows=2, length=12)
    family, more = ("bert", {"position_encoding": name}) if name == "disentangled" else (name, {})

    def loss_and_gradients(**switches):
        program = tiny_program(family, "mlm", layers=2, dropout=0.2, **more, **switches)
        params, views = random_params(program, batch), views_of(program, batch)
        loss = lambda p: program.metrics(p, views, jax.random.key(5))["mlm/loss"][0]
        traced = quick_jit(jax.value_and_grad(loss)).trace(params)
        assert ("remat" in str(traced.jaxpr)) == ("remat" in switches)
        return traced.lower().compile()(params)

    expected_loss, expected = loss_and_gradients()
    for switches in SWITCHES[name]:
        loss, gradients = loss_and_gradients(**switches)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), gradients, expected)


def test_with_dots_a_layer_keeps_its_products_and_attention_and_nothing_between_them():
    """Bytes for the backward pass, by hand: of each layer the results of its products, and what attention in a kernel needs."""
    batch, length, layers, width, heads, hidden = 2, 256, 3, 128, 2, 512
    zeros = jnp.zeros((batch, length), jnp.int32)
    view = {name: zeros for name in ("tokens", "segments", "documents", "positions")}

    def kept(remat):
        shape = dict(layers=layers, width=width, heads=heads, hidden=hidden, max_positions=length, attention="pallas")
        body = tiny_program("bert", "mlm", remat=remat, dropout=0.1, scan_layers=True, **shape).body
        rngs = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
        encode = lambda params: body.apply(params, view, False, {}, method="encode", rngs=rngs)[0].both[-1]
        params = jax.eval_shape(lambda: body.init(rngs, view, True, {}, method="encode"))
        found = jax.eval_shape(lambda params: jax.vjp(encode, params)[1], params)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(found))

    products = 3 * width + width + hidden + width  # queries, keys and values; attention's output; up and down
    attention = width + heads  # its mean values and the log-sums of its scores
    assert kept("dots") - kept("full") == 4 * layers * batch * length * (products + attention)
    assert kept("none") > 2 * kept("dots")


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_initial_values(family, packed_batch):
    vocabulary = Vocabulary(2000, 0, 1, 2, 3, 4)
    names = "mlm+nsp" if family == "bert" else "ltr"
    program = tiny_program(family, names, vocabulary, width=64, hidden=256)
    params = initial(program, packed_batch())
    block = params["body"]["blocks"]
    drawn = {
        "token": params["body"]["token_embedding"],
        "position": params["body"]["position_embedding"],
        "qkv": block["attention"]["qkv_kernel"],
        "out": block["attention"]["out_kernel"],
        "up": block["up"]["kernel"],
        "down": block["down"]["kernel"],
    }
    if family == "bert":
        drawn["pooler"] = params["body"]["pooler"]["kernel"]
        drawn["transform"] = params["body"]["output"]["transform"]["kernel"]
    for name, values in drawn.items():
        # Cut at two deviations and not rescaled, BERT's 0.02 becomes 0.8796 · 0.02.
        expected = 0.0176 if family == "bert" else 0.02
        assert float(values.std()) == pytest.approx(expected, rel=0.05), name
        assert abs(float(values.mean())) < 0.001, name
        assert (float(np.abs(values).max()) <= 0.04) == (family == "bert"), name
    for name, values in {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree.leaves_with_path(params)
    }.items():
        if name.endswith("bias"):
            assert not np.any(values), name
        if name.endswith("scale"):
            assert np.all(np.asarray(values) == 1), name


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norms_of_bfloat16_are_computed_in_float32(kind):
    """Without a mesh, as on an accelerator: beside a mean of 100 bfloat16 would lose what is normalised."""
    x = jnp.asarray(np.random.default_rng(0).normal(100, 4, size=(16, 64)), jnp.bfloat16)
    norm = Norm(1e-6, kind)
    found = norm.apply(norm.init(jax.random.key(0), x), x)
    assert found.dtype == jnp.bfloat16
    exact = np.float64(x)
    centred = exact - exact.mean(-1, keepdims=True) if kind == "layer_norm" else exact
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(np.float64(found), expected, rtol=2**-8)  # the rounding of the result


def test_bfloat16_computes_in_bfloat16_on_float32_parameters(packed_batch):
    batch, losses = packed_batch(), {}
    for dtype in ("float32", "bfloat16"):
        program = tiny_program("bert", "mlm+nsp", dtype=dtype)
        params = random_params(program, batch, scale=0.3)
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
        view = {k: batch[k] for k in ("tokens", "segments", "documents", "positions")}
        assert str(jax.eval_shape(program.encode, params, view).both[-1].dtype) == dtype
        metrics = metrics_of(program, params, views_of(program, batch))
        assert {str(x.dtype) for pair in metrics.values() for x in pair} == {"float32"}
        losses[dtype] = float(metrics["mlm/loss"][0])
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.03)
    assert losses["bfloat16"] != losses["float32"]


def test_head_width_is_64_in_every_published_size():
    for family in ("bert", "gpt", "modern"):
        assert {numbers["width"] / numbers["heads"] for numbers in FAMILIES[family].sizes.values()} == {64}
