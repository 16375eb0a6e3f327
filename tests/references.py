"""What several tests share: tiny programs with random parameters, and NumPy layers (float64)."""

import functools

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
    return quick_jit(program.metrics)(params, views)


def initial(program: Program, batch, seed: int = 0) -> dict:
    """Fresh parameters as NumPy arrays."""
    return jax.tree.map(np.asarray, quick_jit(program.init)(jax.random.key(seed), batch))


def hidden_states(program: Program, params, view):
    """The body's `Encoded` as float64 NumPy arrays."""
    fields = ("tokens", "segments", "documents", "positions", "order", "shown_at")
    encoded = quick_jit(program.encode)(
        params, {name: view[name] for name in fields if name in view}
    )
    return jax.tree.map(lambda x: np.asarray(x, np.float64), encoded)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def dense(x, p):
    return x @ np.float64(p["kernel"]) + p["bias"]


def layer_norm(x, p, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]
    )


def log_softmax(logits):
    return (
        logits
        - logits.max(-1, keepdims=True)
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    )


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
    """−Σ p(token, shown) log p(token | shown) in nats: the best loss with frequencies [V] alone."""
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
