"""What several tests need: tiny programs with random parameters, and NumPy versions (float64) of the layers they share."""

import functools
import json
from pathlib import Path

import jax
import numpy as np

from bertlab import objectives
from bertlab.config import base_config
from bertlab.models.presets import FAMILIES, build_body, model_shape
from bertlab.objectives.program import Program

VOCABULARY = objectives.Vocabulary(size=50, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4, counts=tuple(range(50)))

# Compilation is most of what these tests cost; programs this small need no optimisation.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


def tiny_program(family: str, names: str, vocabulary=VOCABULARY, **model) -> Program:
    """A program of one small body (width 8, two heads) and the objectives of "mlm+nsp"."""
    config = base_config()
    config.model.update({"family": family, "size": next(iter(FAMILIES[family].sizes)), "width": 8})
    numbers = {"layers": 1, "hidden": 12, "heads": 2}
    config.model.update({k: v for k, v in numbers.items() if k in FAMILIES[family].sizes[config.model.size]})
    config.model.update(model)
    body = build_body(model_shape(config.model, vocabulary.size))
    return Program(body, {name: objectives.find(name)() for name in filter(None, names.split("+"))}, vocabulary)


def random_params(program: Program, batch, seed: int = 0, scale: float = 0.5) -> dict:
    """Parameters of the right shapes, all of them random: unlike fresh ones, no bias is 0 and no scale 1."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(program.init, jax.random.key(0), batch)
    return jax.tree.map(lambda s: rng.normal(scale=scale, size=s.shape).astype(s.dtype), shapes)


def views_of(program: Program, batch, seed: int = 0) -> dict:
    """The program's views as NumPy arrays."""
    return jax.tree.map(np.asarray, quick_jit(program.views)(batch, jax.random.key(seed)))


def metrics_of(program: Program, params, views):
    """The program's metrics without dropout."""
    return quick_jit(program.metrics)(params, views)


def initial(program: Program, batch, seed: int = 0) -> dict:
    """Fresh parameters as NumPy arrays."""
    return jax.tree.map(np.asarray, quick_jit(program.init)(jax.random.key(seed), batch))


def hidden_states(program: Program, params, view):
    """The body's `Encoded` as float64 NumPy arrays."""
    encoded = quick_jit(program.encode)(params, {k: view[k] for k in ("tokens", "segments", "documents", "positions")})
    return jax.tree.map(lambda x: np.asarray(x, np.float64), encoded)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def dense(x, p):
    return x @ np.float64(p["kernel"]) + p["bias"]


def layer_norm(x, p, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def log_softmax(logits):
    return (
        logits - logits.max(-1, keepdims=True) - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    )


def summed(logits, label) -> np.ndarray:
    """[negative log-likelihood, 1 if guessed right, 1] of one position: what the objectives add up."""
    return np.array([-log_softmax(logits)[label], float(np.argmax(logits) == label), 1.0])


def assert_metrics(metrics, name: str, expected) -> None:
    """The objective's loss and accuracy are the sums [loss, right, weight]."""
    loss, weight = map(float, metrics[f"{name}/loss"])
    right, right_weight = map(float, metrics[f"{name}/accuracy"])
    np.testing.assert_allclose([loss, right, weight, right_weight], [*expected, expected[2]], rtol=2e-5)


def write_config(config, file: Path) -> Path:
    """A config's file, for a process of its own to read; gives it back."""
    file.write_text(
        "import json\nfrom ml_collections import ConfigDict\n\n\ndef get_config():\n"
        f"    return ConfigDict(json.loads({json.dumps(config.to_dict())!r}))\n"
    )
    return file
