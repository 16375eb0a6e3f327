"""What several tests share: tiny programs with random parameters, and NumPy layers (float64)."""

import functools
import math

import jax
import numpy as np

from bertlab import objectives
from bertlab.config.defaults import base_config
from bertlab.models.presets import FAMILIES, build_body, model_shape
from bertlab.objectives.program import Program

VOCABULARY = objectives.Vocabulary(
    size=50, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4, counts=tuple(range(50))
)

# Compilation is most of what these tests cost; programs this small need no optimisation.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


def packed_batch(rows: int = 4, length: int = 12, vocab_size: int = 50, seed: int = 0) -> dict:
    """Random rows, each of two documents (3 tokens or more) and some padding."""
    rng = np.random.default_rng(seed)
    documents = np.zeros((rows, length), np.int32)
    positions = np.zeros((rows, length), np.int32)
    for row in range(rows):
        first, second = rng.integers(3, length // 2, size=2)
        documents[row, : first + second] = np.repeat([1, 2], [first, second])
        positions[row, : first + second] = [*range(first), *range(second)]

    def words():
        drawn = rng.integers(5, vocab_size, size=(rows, length))
        return np.where(documents > 0, drawn, 0).astype(np.int32)

    return {
        "tokens": words(),
        "contexts": words(),
        "counts": np.where(documents > 0, rng.gamma(2.0, 5.0, (rows, length)), 1).astype("float32"),
        "segments": (documents == 2).astype(np.int32),
        "documents": documents,
        "positions": positions,
        "pair_label": rng.integers(-1, 2, size=rows).astype(np.int32),
        "order_label": rng.integers(-1, 2, size=rows).astype(np.int32),
    }


def tiny_program(family: str, names: str, vocabulary=VOCABULARY, **model) -> Program:
    """A program of one small body (width 8, two heads) and the objectives of "mlm+nsp"."""
    config = base_config()
    config.model.update({"family": family, "size": next(iter(FAMILIES[family].sizes)), "width": 8})
    numbers = {"layers": 1, "hidden": 12, "heads": 2}
    config.model.update(
        {k: v for k, v in numbers.items() if k in FAMILIES[family].sizes[config.model.size]}
    )
    config.model.update(model)
    body = build_body(model_shape(config.model, vocabulary.size))
    return Program(
        body, {name: objectives.find(name)() for name in filter(None, names.split("+"))}, vocabulary
    )


def random_params(program: Program, batch, seed: int = 0, scale: float = 0.5) -> dict:
    """All parameters random: unlike in fresh ones, no bias is 0 and no scale 1."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(program.init, jax.random.key(0), batch)
    return jax.tree.map(lambda s: rng.normal(scale=scale, size=s.shape).astype(s.dtype), shapes)


def views_of(program: Program, batch, seed: int = 0) -> dict:
    """The program's views as NumPy arrays."""
    return jax.tree.map(np.asarray, quick_jit(program.views)(batch, jax.random.key(seed)))


@functools.cache
def compiled_view(objective, vocabulary):
    return quick_jit(lambda batch, key, progress: objective.view(batch, key, vocabulary, progress))


def view_of(
    objective, batch, seed: int = 0, progress: float = 1.0, vocabulary=VOCABULARY, key=None
) -> dict:
    """One objective's view as NumPy arrays, compiled once for each objective."""
    key = jax.random.key(seed) if key is None else key
    return jax.tree.map(
        np.asarray, compiled_view(objective, vocabulary)(batch, key, np.float32(progress))
    )


def program_with(
    objective, family: str = "gpt", direction: str = "bidirectional", **model
) -> Program:
    """A program of one objective, named "it", or of none."""
    body = tiny_program(family, "", direction=direction, layers=2, **model).body
    return Program(body, {"it": objective} if objective else {}, VOCABULARY)


def metrics_of(program: Program, params, views):
    """The program's metrics without dropout."""
    return quick_jit(program.metrics)(params, views)[0]


def initial(program: Program, batch, seed: int = 0) -> dict:
    """Fresh parameters as NumPy arrays."""
    return jax.tree.map(np.asarray, quick_jit(program.init)(jax.random.key(seed), batch))


def hidden_states(program: Program, params, view):
    """The body's `Encoded` as float64 NumPy arrays."""
    fields = ("tokens", "segments", "documents", "positions", "order", "shown_at")
    view = {name: view[name] for name in fields if name in view}
    encoded = quick_jit(program.encode)(params, view)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), encoded)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def dense(x, p):
    return x @ np.float64(p["kernel"]) + p["bias"]


def layer_norm(x, p, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return centred / deviation * p["scale"] + p["bias"]


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def output_logits(body, states):
    """GPT's tied product, BERT's head, ELMo's softmax; a transform where widths fit."""
    output = body.get("output", {})
    for name in ("transform", "transform_both"):
        if name in output and output[name]["kernel"].shape[0] == states.shape[-1]:
            states = layer_norm(gelu(dense(states, output[name])), output[f"{name}_norm"], 1e-12)
    return states @ np.float64(output.get("kernel", body["token_embedding"])).T + output.get(
        "bias", 0.0
    )


def without_context(frequency: np.ndarray, mask_share: float, random_share: float) -> float:
    """−Σ p(token, input) log p(token | input) in nats: the best loss from frequencies [V] only."""
    size = len(frequency)
    joint = np.zeros((size, size + 1))  # the last column is [MASK]
    joint[:, -1] = mask_share * frequency
    joint[:, :-1] = (
        np.diag((1 - mask_share - random_share) * frequency)
        + random_share * frequency[:, None] / size
    )
    likely = joint > 1e-15
    return float(
        -(
            joint
            * np.log(joint / joint.sum(axis=0).clip(1e-300), where=likely, out=np.zeros_like(joint))
        )[likely].sum()
    )


ERF = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu_tanh": gelu,
    "gelu_erf": lambda x: x * (1 + ERF(x / np.sqrt(2))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
}


def norm(x, p, shape):
    """The layer or RMS norm of a transformer's shape."""
    if shape.norm == "layer_norm":
        return layer_norm(x, {"bias": 0.0, **p}, shape.epsilon)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + shape.epsilon) * p["scale"]


def linear(x, p):
    """Like `dense`, with or without a bias."""
    return x @ np.float64(p["kernel"]) + p.get("bias", 0.0)


def visible(row, direction):
    """[L, L] whether the query of each row may see the key of each column."""
    documents, t = row["documents"], np.arange(len(row["documents"]))
    reach = {"left-to-right": t <= t[:, None], "right-to-left": t >= t[:, None]}
    seen = (documents[:, None] == documents) & reach.get(direction, True)
    if "order" in row:
        shown_at = row.get("shown_at", row["order"])
        seen &= (shown_at <= row["order"][:, None]) | (t == t[:, None])
    return seen


def turned(x, positions, base):
    """[L, K] each pair (i, i + K/2) as a complex number, turned by position · base^(−2i/K)."""
    half = x.shape[1] // 2
    rates = base ** (-2 * np.arange(half) / x.shape[1])
    number = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * positions[:, None] * rates)
    return np.concatenate([number.real, number.imag], 1)


def distance_bucket(ahead: int, both_sides: bool) -> int:
    """T5's: near distances have buckets of their own, others share by their logarithm, to 128."""
    buckets, distance = 16 if both_sides else 32, abs(ahead)
    own = buckets // 2
    far = own + int(math.log(max(distance, 1) / own) / math.log(128 / own) * (buckets - own))
    upper_half = 16 if both_sides and ahead > 0 else 0
    return (distance if distance < own else min(far, buckets - 1)) + upper_half


def attention_of(x, p, body, row, shape, layer):
    """Multi-head attention of one row, [L, D], head by head."""
    local = shape.local_window and layer % shape.global_every
    positions, mask = row["positions"], visible(row, shape.direction)
    base = shape.rotary_base_local if local else shape.rotary_base
    if local:
        mask &= abs(positions[:, None] - positions) <= shape.local_window / 2
    mixed = np.zeros_like(x)
    for head in range(shape.heads):
        q, k, v = (
            x @ p["qkv_kernel"][:, i, head] + (p["qkv_bias"][i, head] if shape.use_bias else 0)
            for i in range(3)
        )
        if shape.position_encoding == "rotary":
            q, k = turned(q, positions, base), turned(k, positions, base)
        scores = q @ k.T / np.sqrt(q.shape[1])
        if shape.position_encoding == "relative":
            ahead = positions - positions[:, None]
            both_sides = shape.direction == "bidirectional"
            buckets = [[distance_bucket(int(n), both_sides) for n in line] for line in ahead]
            scores = scores + body["relative_bias"][buckets, head]
        weights = np.exp(log_softmax(np.where(mask, scores, -np.inf)))
        mixed += weights @ v @ p["out_kernel"][head]
    return mixed + p.get("out_bias", 0.0)


def transformer_row(body, row, shape):
    """Hidden states [L, D] of every layer of one row, written from the papers."""

    def feed_forward(x, p):
        hidden = ACTIVATIONS[shape.activation](linear(x, p["up"]))
        return linear(hidden * linear(x, p["gate"]) if shape.gated else hidden, p["down"])

    x = np.float64(body["token_embedding"])[row["tokens"]]
    if shape.position_encoding == "learned":
        x = x + body["position_embedding"][row["positions"] + shape.position_offset]
    if shape.position_encoding == "sinusoidal":
        for i in range(shape.width):
            angle = row["positions"] / 10_000 ** (i // 2 * 2 / shape.width)
            x[:, i] += np.cos(angle) if i % 2 else np.sin(angle)
    if shape.segments:
        segments = row["segments"] if shape.segments > 1 else 0 * row["segments"]
        x = x + body["segment_embedding"][segments]
    if shape.embedding_norm:
        x = norm(x, body["embedding_norm"], shape)
    layers = [x]
    for layer in range(shape.layers):
        p = jax.tree.map(lambda stacked, layer=layer: stacked[layer], body["blocks"])
        if shape.norm_placement == "pre":
            normed = norm(x, p["attention_norm"], shape)
            normed = normed if layer or shape.first_norm else x
            x = x + attention_of(normed, p["attention"], body, row, shape, layer)
            x = x + feed_forward(norm(x, p["feed_forward_norm"], shape), p)
        else:
            x = x + attention_of(x, p["attention"], body, row, shape, layer)
            x = norm(x, p["attention_norm"], shape)
            x = norm(x + feed_forward(x, p), p["feed_forward_norm"], shape)
        layers.append(x)
    if shape.final_norm:
        layers[-1] = norm(x, body["final_norm"], shape)
    return layers


def sums_of(logits, asked) -> np.ndarray:
    """[loss, right, weight] over (row, position of the logits, token to predict)."""
    return sum((summed(logits[row, t], token) for row, t, token in asked), np.zeros(3))


def summed(logits, label) -> np.ndarray:
    """[negative log-likelihood, 1 if guessed right, 1] of one position."""
    return np.array([-log_softmax(logits)[label], float(np.argmax(logits) == label), 1.0])


def assert_metrics(metrics, name: str, expected) -> None:
    """The objective's loss and accuracy are the sums [loss, right, weight]."""
    loss, weight = map(float, metrics[f"{name}/loss"])
    right, right_weight = map(float, metrics[f"{name}/accuracy"])
    np.testing.assert_allclose(
        [loss, right, weight, right_weight], [*expected, expected[2]], rtol=2e-5
    )
