"""BERT's and GPT's forward pass equal a NumPy reference; initial values and parameter counts are the papers'."""

import jax
import numpy as np
import pytest

from bertlab.models.presets import SIZES
from bertlab.objectives import Vocabulary
from tests.references import dense, gelu, hidden_states, initial, layer_norm, metrics_of, random_params, tiny_program, views_of


def allowed(documents, direction):
    """[L, L] Whether query (row) may see key (column)."""
    t = np.arange(len(documents))
    reach = {"left-to-right": t[None] <= t[:, None], "right-to-left": t[None] >= t[:, None], "bidirectional": True}[direction]
    return (documents[:, None] == documents[None]) & reach


def encode_row(body, row, family, direction, heads=2):
    """Hidden states [L, D] of every layer of one row; post-LN blocks as in google-research/bert modeling.py."""
    bert, epsilon = family == "bert", 1e-12 if family == "bert" else 1e-5
    x = np.float64(body["token_embedding"])[row["tokens"]] + body["position_embedding"][row["positions"]]
    if bert:
        x = layer_norm(x + body["segment_embedding"][row["segments"]], body["embedding_norm"], epsilon)
    layers, mask = [x], allowed(row["documents"], direction)
    for block in (body[f"block_{i}"] for i in range(2)):
        attention, mixed = block["attention"], np.zeros_like(x)
        for head in range(heads):
            q, k, v = (x @ attention["qkv_kernel"][:, i, head] + attention["qkv_bias"][i, head] for i in range(3))
            scores = np.where(mask, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            mixed += weights / weights.sum(1, keepdims=True) @ v @ attention["out_kernel"][head]
        x = layer_norm(x + mixed + attention["out_bias"], block["attention_norm"], epsilon)
        x = layer_norm(x + dense(gelu(dense(x, block["up"])), block["down"]), block["output_norm"], epsilon)
        layers.append(x)
    return layers


@pytest.mark.parametrize(
    ("family", "direction"), [("bert", "bidirectional"), ("gpt", "left-to-right"), ("bert", "right-to-left")]
)
def test_forward_pass_equals_numpy(family, direction, packed_batch):
    names = {"bidirectional": "mlm", "left-to-right": "ltr", "right-to-left": "rtl"}[direction]
    program, batch = tiny_program(family, names, direction=direction, layers=2), packed_batch(rows=2, length=10)
    params = random_params(program, batch)
    body = params["body"]
    # Sums as small as this are where LayerNorm's epsilon shows.
    shrink = [body[f"{kind}_embedding"] for kind in ("token", "position", "segment") if f"{kind}_embedding" in body]
    shrink += [] if family == "bert" else [body["block_0"]["attention"][name] for name in ("out_kernel", "out_bias")]
    for array in shrink:
        array *= 0.002
    encoded = hidden_states(program, params, batch)
    given = [side for side in (encoded.forward, encoded.backward, encoded.both) if side is not None]
    assert given == [
        {"bidirectional": encoded.both, "left-to-right": encoded.forward, "right-to-left": encoded.backward}[direction]
    ]
    for row in range(2):
        expected = encode_row(body, {k: v[row] for k, v in batch.items()}, family, direction)
        for layer, (ours, theirs) in enumerate(zip(given[0], expected, strict=True)):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5, err_msg=f"layer {layer}")


def test_gelu_is_the_tanh_approximation():
    """Specified values that exact GELU misses by 1e-4."""
    np.testing.assert_allclose(gelu(np.array([1.0, -1.0, 2.0])), [0.8411919906, -0.1588080094, 1.9545976941], atol=1e-9)


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_initial_values(family, packed_batch):
    vocabulary = Vocabulary(2000, 0, 1, 2, 3, 4)
    names = "mlm+nsp" if family == "bert" else "ltr"
    program = tiny_program(family, names, vocabulary, width=64, hidden=256)
    params = initial(program, packed_batch())
    block = params["body"]["block_0"]
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


@pytest.mark.parametrize(
    ("family", "size", "vocab_size", "names", "parameters"),
    [
        ("bert", "base", 30522, "mlm+nsp", 110_106_428),
        ("bert", "tiny", 30522, "mlm+nsp", 4_433_468),
        ("bert", "mini", 30522, "mlm+nsp", 11_267_900),
        ("gpt", "gpt1", 40478, "ltr", 116_534_784),
    ],
)
def test_parameter_counts_are_the_published_ones(family, size, vocab_size, names, parameters, packed_batch):
    own = dict.fromkeys(("layers", "width", "hidden", "heads"))
    program = tiny_program(family, names, Vocabulary(vocab_size, 0, 1, 2, 3, 4), size=size, **own)
    shapes = jax.eval_shape(program.init, jax.random.key(0), packed_batch())
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def test_head_width_is_64_in_every_published_size():
    for family in ("bert", "gpt"):
        assert {numbers["width"] / numbers["heads"] for numbers in SIZES[family].values()} == {64}
