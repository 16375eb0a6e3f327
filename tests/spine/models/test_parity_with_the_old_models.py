"""The bodies compute what bertlab/models computes on the same parameters, gradients included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config import base_config
from bertlab.models import presets as old
from bertlab.models.base import unbox
from bertlab.spine.models import presets as new
from tests.references import quick_jit

VOCABULARY = 30
OLD_KEYS = ("products", "output_rows")
TINY = {"width": 8, "layers": 2, "heads": 2, "hidden": 12}
CHARACTERS = {"token_encoder": "characters", "filters": ((1, 4), (3, 5)), "highway_layers": 2}
ROBERTA = dict(activation="gelu_erf", epsilon=1e-5, position_offset=2, segments=1)
GATED = dict(position_encoding="none", gated=True, activation="relu", embedding_norm=True)
CASES = {
    "bert, order": ("bert", {"remat": "dots"}),
    "roberta in bfloat16": ("bert", ROBERTA | {"dtype": "bfloat16"}),
    "relative": ("bert", {"position_encoding": "relative", "direction": "right-to-left"}),
    "sinusoidal, gpt1": ("gpt", {"position_encoding": "sinusoidal"}),
    "gpt2, muP, untied": ("gpt", {"size": "gpt2", "base_width": 2, "tied": False}),
    "no positions, gated, post": ("gpt", GATED),
    "modern": ("modern", {"layers": 3, "local_window": 4, "global_every": 2, "first_norm": False}),
    "elmo": ("elmo", {"clip": 0.3}),
    "elmo, characters": ("elmo", CHARACTERS | {"direction": "right-to-left"}),
    "elmo, stateful": ("elmo", {"stateful": True, "skip_connections": False}),
    "awd_lstm": ("awd_lstm", {"remat": "full"}),
    "awd_lstm, stateful, cut": ("awd_lstm", {"direction": "right-to-left", "stateful": True}),
    "static": ("static", {"output_init": "uniform"}),
}


def config_of(family, settings):
    config = base_config().model
    family_sizes = old.FAMILIES[family].sizes
    config.update({"family": family, "size": settings.get("size", next(iter(family_sizes)))})
    config.update({key: value for key, value in TINY.items() if key in family_sizes[config.size]})
    if family not in ("awd_lstm", "static"):
        config.scan_layers = True
    config.update(settings)
    return config


def view_of(name):
    rng = np.random.default_rng(0)
    rows, length = 3, 10
    documents = np.repeat([[1, 1, 1, 2, 2, 2, 2, 2, 0, 0]], rows, axis=0)
    documents[1, 3:6], documents[2] = 0, 1
    starts = np.array([[np.flatnonzero(row == number)[0] for number in row] for row in documents])
    view = {
        "tokens": rng.integers(0, VOCABULARY, (rows, length)),
        "segments": rng.integers(0, 2, (rows, length)),
        "documents": documents,
        "positions": np.arange(length) - starts,
        "characters": rng.integers(0, 261, (rows, length, 50)),
        "continues": np.array([1, 0, 1]),
    }
    if "order" in name or name == "modern":
        view |= {key: rng.integers(-1, 6, (rows, length)) for key in ("order", "shown_at")}
    if "cut" in name:
        view["cut"] = rng.random((rows, length)) < 0.4
    return {key: np.asarray(x, bool if key == "cut" else np.int32) for key, x in view.items()}


def use(body, view, carry, *deterministic):
    """Everything that a body computes; `deterministic` is an argument of the old ones."""
    encoded, after = body.encode(view, *deterministic, carry)
    outputs = {"states": (encoded.forward, encoded.backward, encoded.both), "carry": after}
    for side in ("forward", "backward", "both"):
        if getattr(encoded, side) is not None:
            outputs[f"logits {side}"] = body.predict_tokens(encoded.output(side), side)
    side, layers = encoded.widest()
    among = jnp.arange(20).reshape(10, 2)
    outputs["candidates"] = body.predict_tokens(layers[-1], side, among)
    outputs["pooled"] = body.pool(encoded, view), body.pool(encoded, view, 2)
    return outputs


def outputs_and_gradients(body, params, *arguments):
    """Of a sum of all outputs, with weights of their own."""

    def total(params):
        outputs = body.apply({"params": params}, *arguments, method=use)
        leaves = jax.tree.leaves(outputs)
        rng = np.random.default_rng(3)
        weighted = [leaf * rng.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
        return sum(map(jnp.sum, weighted)), outputs

    (_, outputs), gradients = quick_jit(jax.value_and_grad(total, has_aux=True))(params)
    return jax.tree.map(np.float32, (outputs, gradients))


@pytest.mark.parametrize("name", CASES)
def test_states_logits_pooled_vectors_carries_and_gradients(name):
    family, settings = CASES[name]
    config, view = config_of(family, settings), view_of(name)
    old_body = old.build_body(old.model_shape(config, VOCABULARY))
    plain = ConfigDict({key: config[key] for key in config if key not in OLD_KEYS})
    shape = new.model_shape(plain, VOCABULARY)
    rng, carry = np.random.default_rng(1), {}
    if settings.get("stateful"):
        sides = getattr(shape, "sides", ("backward",))
        zeros = shape.initial_carry(len(view["tokens"]), sides)
        carry = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), zeros)
    init = functools.partial(old_body.init, jax.random.key(0), view, carry, True, method=use)
    shapes = unbox(jax.eval_shape(init))["params"]
    params = jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes)
    ours = outputs_and_gradients(new.build_body(shape), params, view, carry)
    theirs = outputs_and_gradients(old_body, params, view, carry, True)
    tolerance = 4e-2 if config.dtype == "bfloat16" else 2e-5

    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max()))

    jax.tree.map(compare, ours, theirs)
