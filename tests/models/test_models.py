"""Facts of the bodies known from elsewhere: papers, definitions, XLA's count of its own work."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.models import attention, flops, lora, width
from bertlab.models.layers import Dropout
from bertlab.models.presets import (
    FAMILIES,
    body_shapes,
    build_body,
    model_direction,
    model_shape,
)

UNSET = {"direction": None, "dtype": "float32", "scan_layers": None}
TINY = {"width": 8, "layers": 2, "heads": 2, "hidden": 12}


def shape_of(family, size=None, vocab_size=30, **settings):
    sizes = FAMILIES[family].sizes
    tiny = (
        {key: value for key, value in TINY.items() if key in sizes["tiny"]} if size is None else {}
    )
    config = {"family": family, "size": size or "tiny", **UNSET, **tiny, **settings}
    return model_shape(ConfigDict(config), vocab_size)


def random_params(shape, scale=0.5, **parts):
    rng = np.random.default_rng(0)
    shapes = body_shapes(shape, **parts)
    return jax.tree.map(lambda s: rng.normal(scale=scale, size=s.shape).astype(np.float32), shapes)


def view_of(tokens, documents=None):
    tokens = np.asarray(tokens, np.int32)
    documents = np.ones_like(tokens) if documents is None else np.asarray(documents, np.int32)
    starts = [[np.flatnonzero(row == number)[0] for number in row] for row in documents]
    positions = (np.arange(tokens.shape[1]) - np.array(starts)).astype(np.int32)
    fields = {"tokens": tokens, "documents": documents, "positions": positions}
    return fields | {"segments": np.zeros_like(tokens)}


@functools.partial(jax.jit, static_argnums=0)
def encode(shape, params, view, carry=None, key=None):
    rngs = None if key is None else {"dropout": jax.random.key(key)}
    return build_body(shape).apply({"params": params}, view, carry, rngs=rngs, method="encode")


def count(shapes):
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


# The papers' numbers, or their arithmetic: Devlin et al. 2018, Turc et al. 2019 with pooler; GPT-1;
# GPT-2's corrected sizes; ELMo without softmax (93.6 million; the small one has one more character,
# 13.6); AWD-LSTM on PTB (24 million) with a bias for 10,000 tokens.
SIZES = [
    ("bert", "tiny", 30_522, {}, {"pools": True, "predicts": False}, 4_385_920),
    ("bert", "mini", 30_522, {}, {"pools": True, "predicts": False}, 11_170_560),
    ("bert", "base", 30_522, {}, {"pools": True, "predicts": False}, 109_482_240),
    ("bert", "large", 30_522, {}, {"pools": True, "predicts": False}, 335_141_888),
    ("gpt", "gpt1", 40_478, {}, {}, 116_534_784),
    ("gpt", "gpt2", 50_257, {}, {}, 124_439_808),
    ("gpt", "gpt2-medium", 50_257, {}, {}, 354_823_168),
    ("gpt", "gpt2-xl", 50_257, {}, {}, 1_557_611_200),
    ("elmo", "small", 9, {"token_encoder": "characters"}, {"predicts": False}, 13_593_312 - 16),
    ("elmo", "original", 9, {"token_encoder": "characters"}, {"predicts": False}, 93_600_848),
    ("awd_lstm", "original", 10_000, {}, {}, 24_221_600),
]


@pytest.mark.parametrize("family, size, vocabulary, settings, parts, expected", SIZES)
def test_parameter_counts_are_the_papers(family, size, vocabulary, settings, parts, expected):
    assert count(body_shapes(shape_of(family, size, vocabulary, **settings), **parts)) == expected


DOCUMENTS = [[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 2, 2, 2, 2, 2, 2]]
BODIES = [
    (family, direction, settings)
    for family, settings in (
        ("bert", {}),
        ("gpt", {"position_encoding": "relative"}),
        ("modern", {"local_window": 4, "global_every": 2}),
        ("elmo", {}),
        ("awd_lstm", {}),
    )
    for direction in FAMILIES[family].directions
]


@pytest.mark.parametrize("family, direction, settings", BODIES)
def test_a_state_depends_on_what_its_side_may_see_and_on_nothing_else(family, direction, settings):
    """Which states after two layers change with which embedding; documents are apart."""
    shape = shape_of(family, direction=direction, scan_layers=True, **settings)
    view = view_of(np.arange(16).reshape(2, 8), DOCUMENTS)
    params = random_params(shape)
    noise = np.random.default_rng(1).normal(size=(16, shape.width)).astype(np.float32)

    def states(change):
        table = params["token_embedding"] + change
        encoded, _ = encode(shape, {**params, "token_embedding": table}, view)
        sides = {side: getattr(encoded, side) for side in ("forward", "backward", "both")}
        return {side: layers[-1] for side, layers in sides.items() if layers is not None}

    changes = np.zeros((17, *params["token_embedding"].shape), np.float32)
    for token in range(16):
        changes[token, token] = noise[token]
    after = jax.jit(lambda changes: jax.lax.map(states, changes))(changes)
    documents, index = np.array(DOCUMENTS), np.arange(8)
    same = documents[:, :, None] == documents[:, None, :]
    reach = {"forward": index[None] <= index[:, None], "backward": index[None] >= index[:, None]}
    for side, values in after.items():
        seen = (np.asarray(values[:16]) != np.asarray(values[16])).any(-1)  # [token, row, position]
        for row in range(2):
            assert not seen[8 * (1 - row) : 8 * (2 - row), row].any(), "rows are apart"
            real = documents[row] > 0
            expected = (same[row] & reach.get(side, True))[real]
            np.testing.assert_array_equal(seen[8 * row : 8 * row + 8, row].T[real], expected)


def layers_of(encoded):
    return [
        layers for layers in (encoded.forward, encoded.backward, encoded.both) if layers is not None
    ]


@pytest.mark.parametrize(
    "family, settings", [("bert", {}), ("modern", {}), ("elmo", {}), ("awd_lstm", {})]
)
def test_flops_are_xlas_count_of_one_layer(family, settings):
    """XLA counts a loop's body once, so an LSTM reads one position."""
    length = 256 if "heads" in FAMILIES[family].sizes["tiny"] else 1
    sizes = {"width": 256, "layers": 1, "hidden": 1024 if family != "awd_lstm" else 256}
    sizes |= {"heads": 4, "scan_layers": False} if length > 1 else {}
    shape = shape_of(family, **sizes, dropout=0.0)
    view = view_of(np.zeros((256 // length * 2, length)))
    params = body_shapes(shape, predicts=False)

    view["continues"] = np.ones(len(view["tokens"]), np.int32)
    carry = {}
    if (
        length == 1
    ):  # so that gradients flow to the state before the first position, as in a longer row
        carry = shape.initial_carry(len(view["tokens"]), getattr(shape, "sides", ("forward",)))

    def loss(params, carry):
        encoded, _ = encode(shape, params, view, carry)
        return sum(jnp.sum(layers[-1] ** 2) for layers in layers_of(encoded))

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, carry).compile()
    counted = compiled.cost_analysis()["flops"] / view["tokens"].size
    assert flops.flops_per_token(shape, length) == pytest.approx(counted, rel=0.1)


def test_flops_of_bert_base_are_six_a_weight_and_attention():
    """Its layers have 85.05 million weights, of which biases and norms do not multiply."""
    shape = shape_of("bert", "base", 30_522)
    layers = 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert flops.flops_per_token(shape, 512) == 6 * layers + 12 * 12 * 768 * 512
    assert flops.flops_per_prediction(shape) == 6 * (768 * 30_522 + 768**2)


def doubled_values(query, key, value, mask, bias, dropout):
    return 2 * attention.attend_xla(query, key, value, mask, bias, dropout)


class Slopes(nn.Module):
    """ALiBi with one learned slope for all heads, an encoding from outside."""

    shape: object

    @nn.compact
    def __call__(self, length):
        slope = self.param("slope", nn.initializers.ones, ())
        distance = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length))
        return -slope * distance[None, None]

    @staticmethod
    def score(shape, bias, query, key, project):
        assert project(jnp.zeros((3, shape.width))).shape == (3, 2, shape.heads, shape.head_width)
        return query, key, bias


def test_attention_and_positions_can_come_from_outside():
    view = view_of(np.arange(16).reshape(2, 8))
    plain = shape_of("bert", position_encoding="none", layers=1)
    params = random_params(plain)
    half = jax.tree.map(np.copy, params)
    half["blocks"]["attention"]["out_kernel"] /= 2
    outside = dataclasses.replace(plain, attention=f"{__name__}:doubled_values")
    expected = encode(plain, params, view)[0].both[-1]
    np.testing.assert_allclose(
        encode(outside, half, view)[0].both[-1], expected, rtol=1e-4, atol=1e-5
    )
    slopes = dataclasses.replace(plain, position_encoding=f"{__name__}:Slopes")
    assert body_shapes(slopes)["positions"]["slope"].shape == ()
    params["positions"] = {"slope": np.float32(0)}
    np.testing.assert_allclose(encode(slopes, params, view)[0].both[-1], expected, rtol=1e-5)
    params["positions"]["slope"] = np.float32(
        40
    )  # each position sees itself only, as in rows of one token
    apart = view_of(view["tokens"].reshape(16, 1))
    found = encode(slopes, params, view)[0].both[-1].reshape(16, 1, 8)
    del params["positions"]
    np.testing.assert_allclose(
        found, encode(plain, params, apart)[0].both[-1], rtol=1e-4, atol=1e-5
    )


def test_the_rule_of_attention():
    shape = dataclasses.replace(shape_of("modern", "base"), dtype=jnp.bfloat16)

    def chosen(platform="gpu", length=128, **changes):
        changed = dataclasses.replace(shape, **changes)
        return attention.attention_rule(changed, length, platform)[0]

    assert chosen() == "cudnn"
    assert {chosen("cpu"), chosen("tpu"), chosen(length=127)} == {"xla"}
    others = ({"dtype": jnp.float32}, {"dropout": 0.1}, {"heads": 4}, {"heads": 256})
    for other in (*others, {"position_encoding": "relative"}):
        assert chosen(**other) == "xla", other


def test_dropout_drops_its_share_and_keeps_the_mean_and_one_mask_along_an_axis():
    x, rngs = jnp.ones((64, 33, 101)), {"dropout": jax.random.key(0)}
    np.testing.assert_array_equal(Dropout(0.3).apply({}, x), x)
    for rate in (0.1, 0.5):
        y = np.asarray(Dropout(rate).apply({}, x, rngs=rngs))
        assert abs((y == 0).mean() - rate) < 0.005 and abs(y.mean() - 1) < 0.01
        assert np.abs((y == 0).mean((0, 1)) - rate).max() < 0.06, "both halves of a word"
    zero = y == 0
    for other in (1, 51):  # the neighbour, and the element of the same word
        assert abs((zero[..., :-other] == zero[..., other:]).mean() - 0.5) < 0.01
    y = np.asarray(Dropout(0.5, (0,)).apply({}, x, rngs=rngs))
    assert (y == y[:1]).all() and 0.4 < (y == 0).mean() < 0.6


@pytest.mark.parametrize(
    "kind", ["embedding_dropout", "input_dropout", "hidden_dropout", "dropout", "weight_dropout"]
)
def test_every_dropout_of_awd_lstm_acts_where_it_is_meant_to(kind):
    rates = dict.fromkeys(
        ("embedding_dropout", "input_dropout", "hidden_dropout", "dropout", "weight_dropout"), 0.0
    )
    shape = shape_of("awd_lstm", width=32, hidden=32, **rates | {kind: 0.5})
    view, params = view_of(np.tile(np.arange(6), (2, 2))), random_params(shape)
    plain, dropped = encode(shape, params, view)[0], encode(shape, params, view, key=0)[0]
    same = [bool((a == b).all()) for a, b in zip(plain.forward, dropped.forward)]
    changed_from = {
        "embedding_dropout": 0,
        "input_dropout": 0,
        "weight_dropout": 1,
        "hidden_dropout": 2,
        "dropout": 3,
    }
    assert same == [layer < changed_from[kind] for layer in range(3)]
    zero = np.asarray((dropped.output("forward") if kind == "dropout" else dropped.forward[0]) == 0)
    if kind == "embedding_dropout":
        assert (zero == zero.all(-1, keepdims=True)).all() and 0 < zero.mean() < 1
        np.testing.assert_array_equal(zero[:, :6], zero[:, 6:])
    if kind in ("input_dropout", "dropout"):
        assert (zero == zero[:, :1]).all() and (zero[0] != zero[1]).any(), "a mask a row"
    if kind == "weight_dropout":
        np.testing.assert_array_equal(plain.forward[1][:, 0], dropped.forward[1][:, 0])


LORA = lora.Lora(2, 3.0, "(qkv_kernel/(query|value)|out_kernel|up/kernel)$")


def test_low_rank_updates_start_at_zero_and_are_merged_by_alpha_over_rank():
    params = {"body": random_params(shape_of("bert"))}
    updated = LORA.add(params, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, LORA.merge(updated), params)
    rng = np.random.default_rng(1)
    updated["lora"] = jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(np.float32), updated["lora"]
    )
    merged, updates = LORA.merge(updated)["body"]["blocks"], updated["lora"]["body"]["blocks"]
    before = params["body"]["blocks"]
    change = jax.tree.map(lambda a, b: np.asarray(a - b), merged, before)
    for (kernel, a_b), letters in (
        (
            (
                change["attention"]["qkv_kernel"][:, :, 0],
                updates["attention"]["qkv_kernel"]["query"],
            ),
            "ndr,nrhk->ndhk",
        ),
        (
            (
                change["attention"]["qkv_kernel"][:, :, 2],
                updates["attention"]["qkv_kernel"]["value"],
            ),
            "ndr,nrhk->ndhk",
        ),
        ((change["attention"]["out_kernel"], updates["attention"]["out_kernel"]), "nhkr,nrd->nhkd"),
        ((change["up"]["kernel"], updates["up"]["kernel"]), "ndr,nrf->ndf"),
    ):
        np.testing.assert_allclose(
            kernel, 1.5 * np.einsum(letters, a_b["a"], a_b["b"]), rtol=1e-4, atol=1e-5
        )
    assert (
        not change["attention"]["qkv_kernel"][:, :, 1].any() and not change["down"]["kernel"].any()
    )
    for wrong, key in (
        (lora.Lora(2, 1.0, "nothing"), "targets"),
        (lora.Lora(9, 1.0, "up/kernel"), "rank"),
    ):
        with pytest.raises(UserError, match=f"config.lora.{key}"):
            wrong.add(params, jax.random.key(0))


def init_and_axes(shape):
    body = build_body(shape)
    init = jax.eval_shape(lambda: body.init(jax.random.key(0), view_of([[1, 2]]), method="encode"))[
        "params"
    ]
    return {"body": nn.get_partition_spec(init)}, {"body": nn.meta.unbox(init)}


def test_updates_have_axes_like_their_shapes():
    axes, shapes = init_and_axes(shape_of("bert"))
    updates = LORA.logical_axes(axes)["lora"]["body"]["blocks"]
    assert updates["attention"]["qkv_kernel"]["query"]["a"] == PartitionSpec(
        "layers", "embed", None
    )
    assert updates["attention"]["out_kernel"]["a"] == PartitionSpec("layers", "heads", None, None)
    assert updates["up"]["kernel"]["b"] == PartitionSpec("layers", None, "hidden")
    assert jax.tree.structure(
        LORA.add(shapes, jax.random.key(0))["lora"]["body"]["blocks"]
    ) == jax.tree.structure(updates, is_leaf=lambda x: isinstance(x, PartitionSpec))


def test_factors_of_mup_are_the_tables():
    shape = shape_of("bert", base_width=2)
    axes, shapes = init_and_axes(shape)
    _, doubled = init_and_axes(width.doubled(shape))
    head = PartitionSpec("embed", None), *(jax.ShapeDtypeStruct((n, 3), "float32") for n in (8, 16))
    axes["head"], shapes["head"], doubled["head"] = head
    pairs = width.width_factors(shape.times_base, axes, shapes, doubled)
    initial, rate = (
        jax.tree.map(lambda pair, n=n: pair[n], pairs, is_leaf=lambda x: isinstance(x, tuple))
        for n in (0, 1)
    )
    block = initial["body"]["blocks"], rate["body"]["blocks"]
    assert [tree["attention"]["qkv_kernel"] for tree in block] == [1 / 2, 1 / 4]
    assert [tree["down"]["kernel"] for tree in block] == [1 / 2, 1 / 4]
    assert [tree["up"]["bias"] for tree in block] == [1, 1]
    assert [initial["head"], rate["head"]] == [1 / 4, 1 / 4]
    assert [initial["body"]["token_embedding"], rate["body"]["token_embedding"]] == [1, 1]


@pytest.mark.parametrize(
    "family, settings, key",
    [
        ("bert", {"size": "huge"}, "size"),
        ("awd_lstm", {"direction": "bidirectional"}, "direction"),
        ("elmo", {"gated": True}, "gated"),
        ("bert", {"heads": 3}, "heads"),
        ("elmo", {"token_encoder": "characters", "tied": True}, "tied"),
    ],
)
def test_values_that_cannot_be_are_refused_by_key(family, settings, key):
    with pytest.raises(UserError, match=f"config.model.{key}"):
        shape_of(family, **settings)


def test_the_default_direction_is_the_familys():
    assert [
        model_direction(ConfigDict({"family": f, "direction": None}))
        for f in ("bert", "gpt", "awd_lstm")
    ] == [
        "bidirectional",
        "left-to-right",
        "left-to-right",
    ]
