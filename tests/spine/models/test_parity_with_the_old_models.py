"""The bodies compute what bertlab/models computes, on the same parameters: states, logits, pooled vectors, gradients, carry."""

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
TINY = {"width": 8, "layers": 3, "heads": 2, "hidden": 12}
CHARACTERS = {
    "token_encoder": "characters",
    "filters": ((1, 4), (3, 5)),
    "highway_layers": 2,
}
MODERN = {"local_window": 4, "global_every": 2}
CASES = {
    "bert": ("bert", {}),
    "bert in bfloat16": ("bert", {"dtype": "bfloat16"}),
    "roberta": ("bert", dict(activation="gelu_erf", epsilon=1e-5, position_offset=2, segments=1)),
    "relative": ("bert", {"position_encoding": "relative", "direction": "right-to-left"}),
    "relative, both": ("bert", {"position_encoding": "relative"}),
    "sinusoidal": ("bert", {"position_encoding": "sinusoidal", "scan_layers": True}),
    "order": ("bert", {"remat": "dots"}),
    "gpt1": ("gpt", {"remat": "full"}),
    "gpt2": ("gpt", {"size": "gpt2"}),
    "muP, untied": ("gpt", {"base_width": 2, "tied": False, "output_transform": True}),
    "no positions, gated, post": (
        "gpt",
        dict(position_encoding="none", gated=True, activation="relu", embedding_norm=True),
    ),
    "modern": ("modern", MODERN | {"first_norm": False}),
    "modern, order": ("modern", MODERN),
    "elmo": ("elmo", {}),
    "elmo, characters": ("elmo", CHARACTERS),
    "elmo, left to right": ("elmo", {"direction": "left-to-right", "skip_connections": False}),
    "elmo, stateful": ("elmo", {"stateful": True, "scan_layers": False}),
    "elmo, cut": ("elmo", {"clip": 0.3}),
    "awd_lstm": ("awd_lstm", {"remat": "full"}),
    "awd_lstm, right to left, stateful, cut": (
        "awd_lstm",
        {"direction": "right-to-left", "stateful": True},
    ),
    "static": ("static", {"output_init": "uniform"}),
}


def config_of(family, settings):
    config = base_config().model
    family_sizes = old.FAMILIES[family].sizes
    config.update({"family": family, "size": settings.get("size", next(iter(family_sizes)))})
    config.update({key: value for key, value in TINY.items() if key in family_sizes[config.size]})
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
    if "order" in name:
        view |= {key: rng.integers(-1, 6, (rows, length)) for key in ("order", "shown_at")}
    if "cut" in name:
        view["cut"] = rng.random((rows, length)) < 0.4
    return {key: np.asarray(x, bool if key == "cut" else np.int32) for key, x in view.items()}


def results(body, params, view, carry, deterministic):
    """(a number, {name: what it is made of}); `deterministic`: arguments of the old bodies' `encode`."""

    def use(body):
        encoded, after = body.encode(view, *deterministic, carry)
        outputs = {"states": (encoded.forward, encoded.backward, encoded.both), "carry": after}
        for side in ("forward", "backward", "both"):
            if getattr(encoded, side) is not None:
                outputs[f"logits {side}"] = body.predict_tokens(encoded.output(side), side)
                among = jnp.arange(20).reshape(10, 2)
                outputs[f"among {side}"] = body.predict_tokens(encoded.output(side), side, among)
        outputs["pooled"] = body.pool(encoded, view)
        outputs["pooled documents"] = body.pool(encoded, view, 2)
        return outputs

    outputs = body.apply({"params": params}, method=use)
    leaves = jax.tree.leaves(outputs)
    weights = [np.random.default_rng(n).normal(size=leaf.shape) for n, leaf in enumerate(leaves)]
    return sum(jnp.sum(leaf * w) for leaf, w in zip(leaves, weights)), outputs


@pytest.mark.parametrize("name", CASES)
def test_states_logits_pooled_vectors_and_gradients(name):
    family, settings = CASES[name]
    config, view = config_of(family, settings), view_of(name)
    old_shape = old.model_shape(config, VOCABULARY)
    plain = ConfigDict({key: config[key] for key in config if key not in OLD_KEYS})
    new_shape = new.model_shape(plain, VOCABULARY)
    old_body, new_body = old.build_body(old_shape), new.build_body(new_shape)
    sides = {"left-to-right": ("forward",), "right-to-left": ("backward",)}
    sides = sides.get(new_shape.direction, ("forward", "backward"))
    carry = {}
    if settings.get("stateful"):
        rng = np.random.default_rng(5)
        carry = jax.tree.map(
            lambda x: rng.normal(size=x.shape).astype(x.dtype), new_shape.initial_carry(3, sides)
        )
    shapes = unbox(
        jax.eval_shape(
            lambda: old_body.init(
                jax.random.key(0),
                method=lambda body: results_of_init(body, view, carry),
            )
        )
    )["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes)

    def compute(body, deterministic):
        return quick_jit(
            jax.value_and_grad(
                lambda params: results(body, params, view, carry, deterministic), has_aux=True
            )
        )(params)

    (_, ours), our_gradients = compute(new_body, ())
    (_, theirs), their_gradients = compute(old_body, (True,))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    tolerance = 3e-2 if config.dtype == "bfloat16" else 2e-5
    for found, expected in ((ours, theirs), (our_gradients, their_gradients)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(
                a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max())
            ),
            jax.tree.map(np.float32, found),
            jax.tree.map(np.float32, expected),
        )


def results_of_init(body, view, carry):
    """Uses every parameter once."""
    encoded, _ = body.encode(view, True, carry)
    for side in ("forward", "backward", "both"):
        if getattr(encoded, side) is not None:
            body.predict_tokens(encoded.output(side), side)
    body.pool(encoded, view)
