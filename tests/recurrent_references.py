"""The recurrent bodies once more in NumPy (float64), position by position, written from the
published sources."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertlab.models.awd_lstm import AwdLstmShape
from bertlab.models.bilstm import BilstmShape
from bertlab.models.presets import body_shapes, build_body
from tests.references import quick_jit, sigmoid

ELMO = BilstmShape(
    layers=2,
    width=5,
    hidden=7,
    vocab_size=30,
    direction="bidirectional",
    dtype=jnp.float32,
    dropout=0.0,
)
AWD_LSTM = AwdLstmShape(
    layers=3,
    width=5,
    hidden=7,
    vocab_size=30,
    direction="left-to-right",
    dtype=jnp.float32,
    embedding_dropout=0.0,
    input_dropout=0.0,
    hidden_dropout=0.0,
    dropout=0.0,
    weight_dropout=0.0,
)


def sides_of(shape) -> tuple[str, ...]:
    """The sides that this body encodes."""
    return shape.sides if isinstance(shape, BilstmShape) else (shape.side,)


def body_params(shape, seed=0):
    """Random parameters of a body and its output layer."""
    rng, shapes = np.random.default_rng(seed), body_shapes(shape)
    return jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes)


@functools.cache
def encoder(shape, drops: bool):
    body = build_body(shape)

    def apply(params, view, carry, key):
        rngs = {"dropout": key} if drops else {}
        return body.apply({"params": params}, view, carry, rngs=rngs, method="encode")

    return quick_jit(apply)


def encode(shape, params, view, carry=None, key=None):
    """Hidden states and the carry; with a key, dropout."""
    return encoder(shape, key is not None)(params, view, carry or {}, jax.random.key(key or 0))


def one_document(tokens):
    """A view of rows that are one document each."""
    tokens = np.asarray(tokens, np.int32)
    return {"tokens": tokens, "documents": np.ones_like(tokens)}


def walk(documents, reverse, begin, zeros, step):
    """The state after each position [L], and the last in reading order.

    Args:
        documents: of one row; 0 is padding.
        reverse: read from the end.
        begin: the state before the row if it is stateful, otherwise None: then each run of one
            document starts from zeros.
        zeros: a state of zeros.
        step: (position, state) -> state.
    """
    state, before, states = begin or zeros, None, [None] * len(documents)
    for t in range(len(documents))[:: -1 if reverse else 1]:
        if begin is None or documents[t] > 0:
            if before != documents[t] and (begin is None or before is not None):
                state = zeros
            before = documents[t]
            state = step(t, state)
        states[t] = state
    return states, state


def projected_lstm(x, p, documents, reverse, begin=None, clip=3.0, clipped=None):
    """bilm-tf's cell, TensorFlow's LSTMCell with a projection: outputs [L, D], the last state."""
    p = {name: np.float64(value) for name, value in p.items()}

    def step(t, before):
        gates = (
            np.einsum("d,dgf->gf", x[t], p["input_kernel"])
            + np.einsum("d,dgf->gf", before["state"], p["recurrent_kernel"])
            + p["bias"]
        )
        i, j, f, o = gates
        raw_cell = sigmoid(f + 1) * before["cell"] + sigmoid(i) * np.tanh(j)
        cell = np.clip(raw_cell, -clip, clip)
        raw_state = (sigmoid(o) * np.tanh(cell)) @ p["projection"]
        if clipped is not None:
            clipped["cell"] += np.sum(np.abs(raw_cell) > clip)
            clipped["state"] += np.sum(np.abs(raw_state) > clip)
        return {"cell": cell, "state": np.clip(raw_state, -clip, clip)}

    zeros = {"cell": np.zeros(p["bias"].shape[1]), "state": np.zeros(x.shape[1])}
    states, end = walk(documents, reverse, begin, zeros, step)
    return np.stack([state["state"] for state in states]), end


def bilm_side(x, p, documents, reverse, begins=None, residual=True, clipped=None):
    """All layers [L, D] of one direction, embeddings first, and each layer's last state."""
    layers, ends = [x], []
    for n in range(len(p["bias"])):
        own = {name: value[n] for name, value in p.items()}
        begin = None if begins is None else begins[n]
        outputs, end = projected_lstm(layers[-1], own, documents, reverse, begin, clipped=clipped)
        layers.append(outputs + (layers[-1] if n and residual else 0))
        ends.append(end)
    return layers, ends


def awd_layers(body, tokens, documents, reverse, begins=None):
    """All layers of an AWD-LSTM for one row, embeddings first, and each layer's last state."""
    body = jax.tree.map(np.float64, body)
    layers, ends = [body["token_embedding"][tokens]], []
    for n in range(sum(name.startswith("layer_") for name in body)):
        p, x = body[f"layer_{n}"], layers[-1]

        def step(t, before, p=p, x=x):
            gates = (
                np.einsum("d,dgf->gf", x[t], p["input_kernel"])
                + np.einsum("d,dgf->gf", before["state"], p["recurrent_kernel"])
                + p["input_bias"]
                + p["recurrent_bias"]
            )
            i, f, g, o = gates
            cell = sigmoid(f) * before["cell"] + sigmoid(i) * np.tanh(g)
            return {"cell": cell, "state": sigmoid(o) * np.tanh(cell)}

        zeros = {name: np.zeros(p["input_bias"].shape[1]) for name in ("cell", "state")}
        begin = None if begins is None else begins[n]
        states, end = walk(documents, reverse, begin, zeros, step)
        layers.append(np.stack([state["state"] for state in states]))
        ends.append(end)
    return layers, ends


def layers_and_ends(shape, params, view, row, side, begins=None, clipped=None):
    """All layers of a row, embeddings first, and each layer's last state, for either body."""
    tokens, documents, reverse = view["tokens"][row], view["documents"][row], side == "backward"
    if isinstance(shape, AwdLstmShape):
        return awd_layers(params, tokens, documents, reverse, begins)
    x = np.float64(params["token_embedding"])[tokens]
    return bilm_side(x, params[side], documents, reverse, begins, clipped=clipped)


def encode_characters(p, characters, activation="relu"):
    """Word vectors [..., D] from character ids [..., C]; without a projection, D = M."""
    function = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[activation]
    p = jax.tree.map(np.float64, p)
    x = p["embedding"][characters]
    found = []
    for i in range(sum(name.startswith("filter") for name in p)):
        kernel, bias = p[f"filter_{i}"]["kernel"], p[f"filter_{i}"]["bias"]
        width = len(kernel)
        values = [
            np.einsum("...we,wen->...n", x[..., t : t + width, :], kernel) + bias
            for t in range(x.shape[-2] - width + 1)
        ]
        found.append(function(np.max(values, axis=0)))
    y = np.concatenate(found, -1)
    for i in range(sum(name.startswith("highway") for name in p)):
        h = p[f"highway_{i}"]
        gate = sigmoid(y @ h["carry_kernel"] + h["carry_bias"])
        y = gate * np.maximum(y @ h["transform_kernel"] + h["transform_bias"], 0) + (1 - gate) * y
    return y @ p["projection"]["kernel"] + p["projection"]["bias"] if "projection" in p else y
