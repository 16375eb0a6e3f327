"""The recurrent bodies once more in NumPy (float64), one position after the other, written from the published sources."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bertlab.models.awd_lstm import AwdLstmConfig
from bertlab.models.base import OutputConfig, unbox
from bertlab.models.bilstm import BilstmConfig
from bertlab.models.presets import build_body
from tests.references import quick_jit, sigmoid

ELMO = BilstmConfig(
    layers=2,
    width=5,
    hidden=7,
    vocab_size=30,
    direction="bidirectional",
    clip=3.0,
    epsilon=1e-12,
    output=OutputConfig(transform=False, tied=False, bias=True),
    dropout=0.0,
    dtype=jnp.float32,
)
AWD_LSTM = AwdLstmConfig(
    layers=3,
    width=5,
    hidden=7,
    vocab_size=30,
    direction="left-to-right",
    embedding_dropout=0.0,
    input_dropout=0.0,
    hidden_dropout=0.0,
    dropout=0.0,
    weight_dropout=0.0,
    output=OutputConfig(transform=False, tied=True, bias=True),
    dtype=jnp.float32,
)


def sides_of(config) -> tuple[str, ...]:
    """The sides that this body encodes."""
    return config.sides if isinstance(config, BilstmConfig) else (config.side,)


def body_params(config, seed=0):
    """Random parameters of a body and its output layer."""
    row = np.ones((1, 2), np.int32)

    def use(body):
        encoded, _ = body.encode({"tokens": row, "documents": row}, True, {})
        body.predict_tokens(encoded.output(sides_of(config)[0]), sides_of(config)[0])

    shapes = unbox(jax.eval_shape(lambda: build_body(config).init(jax.random.key(0), method=use)))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes)


@functools.cache
def _encoder(config, deterministic):
    apply = functools.partial(build_body(config).apply, method="encode")
    return quick_jit(lambda p, v, c, key: apply({"params": p}, v, deterministic, c, rngs={"dropout": key}))


def encode(config, params, view, carry=None, key=None):
    """Hidden states and the carry; with a key, dropout."""
    return _encoder(config, key is None)(params, view, carry or {}, jax.random.key(key or 0))


def one_document(tokens):
    """A view of rows that are one document each."""
    return {"tokens": np.asarray(tokens, np.int32), "documents": np.ones(np.shape(tokens), np.int32)}


def walk(documents, reverse, begin, zeros, step):
    """The state after each position [L], and the last in reading order.

    Args:
        documents: of one row; 0 is padding.
        begin: the state before the row if it is stateful, else None: then each run of one document starts from zeros.
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
    """bilm-tf's cell: TensorFlow's LSTMCell with a projection. Outputs [L, D] and the last state."""
    p = {name: np.float64(value) for name, value in p.items()}

    def step(t, before):
        gate = lambda g: x[t] @ p["input_kernel"][:, g] + before["state"] @ p["recurrent_kernel"][:, g] + p["bias"][g]
        i, j, f, o = map(gate, range(4))
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
    """All layers [L, D] of one direction, embeddings first, and each layer's last state. `begins`: a state per layer."""
    layers, ends = [x], []
    for n in range(len(p["bias"])):
        own = {name: value[n] for name, value in p.items()}
        outputs, end = projected_lstm(
            layers[-1], own, documents, reverse, None if begins is None else begins[n], clipped=clipped
        )
        layers.append(outputs + (layers[-1] if n and residual else 0))
        ends.append(end)
    return layers, ends


def encode_characters(p, characters, activation="relu"):
    """Word vectors [..., D] from character ids [..., C]; without a projection, D = M."""
    act = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[activation]
    p = jax.tree.map(np.float64, p)
    x = p["embedding"][characters]
    found = []
    for i in range(sum(name.startswith("filter") for name in p)):
        kernel, bias = p[f"filter_{i}"]["kernel"], p[f"filter_{i}"]["bias"]
        width = len(kernel)
        places = range(x.shape[-2] - width + 1)
        values = [np.einsum("...we,wen->...n", x[..., t : t + width, :], kernel) + bias for t in places]
        found.append(act(np.max(values, axis=0)))
    y = np.concatenate(found, -1)
    for i in range(sum(name.startswith("highway") for name in p)):
        h = p[f"highway_{i}"]
        gate = sigmoid(y @ h["carry_kernel"] + h["carry_bias"])
        y = gate * np.maximum(y @ h["transform_kernel"] + h["transform_bias"], 0) + (1 - gate) * y
    return y @ p["projection"]["kernel"] + p["projection"]["bias"] if "projection" in p else y


def layers_and_ends(config, params, view, row, side, begins=None, clipped=None):
    """All layers of a row, embeddings first, and each layer's last state, for either body."""
    tokens, documents = view["tokens"][row], view["documents"][row]
    if isinstance(config, AwdLstmConfig):
        return awd_layers(params, tokens, documents, side == "backward", begins)
    x = np.float64(params["token_embedding"])[tokens]
    return bilm_side(x, params[side], documents, side == "backward", begins, clipped=clipped)


def awd_layers(body, tokens, documents, reverse, begins=None):
    """All layers of an AWD-LSTM without dropout for one row, embeddings first, and each layer's last state."""
    body = jax.tree.map(np.float64, body)
    layers, ends = [body["token_embedding"][tokens]], []
    for n in range(sum(name.startswith("layer_") for name in body)):
        p, x = body[f"layer_{n}"], layers[-1]

        def step(t, before, p=p, x=x):
            bias = p["input_bias"] + p["recurrent_bias"]
            gate = lambda g: x[t] @ p["input_kernel"][:, g] + before["state"] @ p["recurrent_kernel"][:, g] + bias[g]
            i, f, g, o = map(gate, range(4))
            cell = sigmoid(f) * before["cell"] + sigmoid(i) * np.tanh(g)
            return {"cell": cell, "state": sigmoid(o) * np.tanh(cell)}

        zeros = {name: np.zeros(p["input_bias"].shape[1]) for name in ("cell", "state")}
        states, end = walk(documents, reverse, None if begins is None else begins[n], zeros, step)
        layers.append(np.stack([state["state"] for state in states]))
        ends.append(end)
    return layers, ends


def stream_batches(rows=3, length=9, batches=3, vocab_size=30, seed=0):
    """Batches of a stream as views: rows that go on or do not, borders of documents, padding at the ends and inside."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(batches):
        documents = np.ones((rows, length), np.int32)
        documents[0, 4:] = 2
        documents[1, -2:] = 0
        documents[1, :1] = 0
        documents[2, 3:5], documents[2, 5:] = 0, 1 + number % 2
        made.append(
            {
                "tokens": rng.integers(0, vocab_size, (rows, length)).astype(np.int32),
                "documents": documents,
                "continues": np.array([1, number != 1, number != 2], np.int32),
            }
        )
    return made
