"""No objective sees what it must predict: Jacobians of every objective's logits on every body."""

import sys

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models import layers
from bertlab.models.base import sides_of
from bertlab.models.presets import FAMILIES, build_body, model_shape
from bertlab.models.transformer import Transformer
from bertlab.objectives import REGISTRY, Vocabulary, build, word_vectors
from bertlab.objectives.program import Program
from tests.references import quick_jit, random_params

ROWS, LENGTH, FIRST, WIDTH = 2, 10, 5, 8
SIZE = FIRST + ROWS * LENGTH
VOCABULARY = Vocabulary(SIZE, 0, 1, 2, 3, 4, counts=(1,) * SIZE)
# Every chosen token becomes [MASK]: one that stays may be seen.
HIDE = {"mask_share": 1.0, "random_share": 0.0}
SETTINGS = {
    "mlm": {"rate": 0.4, "unit": "span", **HIDE},
    "masked_next_token": {"rate": 0.4, **HIDE},
    "sbo": {"place_width": 4},
    "electra": {"rate": 0.4, "generator_size": 1.0},
    "permutation": {"predict_one_in": 2},
}
BODIES = [(family, side) for family, kind in FAMILIES.items() for side in kind.directions]
# `gpt` and `modern` are the body of `bert` with other values.
QUICK = [("bert", "bidirectional"), ("elmo", "left-to-right"), ("awd_lstm", "right-to-left")]


def objectives_for(family, direction):
    """All of the registry that compare logits of tokens with labels and read a side of a body.

    Word vectors sum their losses in a loop, so tests/objectives changes one token at a time.
    """
    sides = sides_of(family, direction)
    fits = [
        name
        for name, kind in REGISTRY.items()
        if kind.reads in sides and kind.__module__ != word_vectors.__name__
    ]
    return [name for name in fits if name != "electra" or FAMILIES[family].body is Transformer]


def program_of(family, direction, names):
    model = base_config().model
    model.update({"family": family, "direction": direction, "width": WIDTH})
    model.size = next(iter(FAMILIES[family].sizes))
    sizes = {"layers": 2, "hidden": 12, "heads": 2, "local_window": 0}
    shape = FAMILIES[family].shape.__dataclass_fields__
    model.update({key: value for key, value in sizes.items() if key in shape})
    entries = {name: SETTINGS.get(name, {}) for name in names}
    body = build_body(model_shape(model, SIZE))
    return Program(body, build(ConfigDict(entries)), VOCABULARY)


def batch_of():
    """One document a row; no token but the special ones occurs twice."""
    tokens = np.arange(FIRST, SIZE, dtype=np.int32).reshape(ROWS, LENGTH)
    tokens[:, 0], tokens[:, -2], tokens[:, -1] = 2, 3, 0
    documents = (tokens > 0).astype(np.int32)
    batch = {"tokens": tokens, "documents": documents, "segments": 0 * documents}
    batch["positions"] = np.arange(LENGTH, dtype=np.int32) * documents
    return batch | {name: np.ones(ROWS, np.int32) for name in ("pair_label", "order_label")}


@pytest.fixture
def traced(monkeypatch):
    """`probe` is added to the vectors of tokens that any body looks up; `made` are the arguments of
    `cross_entropy`."""
    base, lookup = sys.modules["bertlab.objectives.base"], layers.lookup
    recorded, cross_entropy = {"probe": None, "made": []}, base.cross_entropy

    def lookup_with_probe(table, tokens):
        vectors = lookup(table, tokens)
        if table.shape != (SIZE, WIDTH) or recorded["probe"] is None:
            return vectors
        return vectors + recorded["probe"][tokens]

    def cross_entropy_recorded(logits, labels, weights):
        recorded["made"].append((logits, labels, weights))
        return cross_entropy(logits, labels, weights)

    for name, module in list(sys.modules.items()):
        if name.startswith("bertlab.models"):
            monkeypatch.setattr(module, "lookup", lookup_with_probe, raising=False)
        if name.startswith("bertlab.objectives"):
            monkeypatch.setattr(module, "cross_entropy", cross_entropy_recorded, raising=False)
    return recorded


@pytest.mark.parametrize(
    "family, direction",
    [pytest.param(*body, marks=[pytest.mark.nightly] * (body not in QUICK)) for body in BODIES],
)
def test_no_logit_changes_with_the_vector_of_the_token_that_it_predicts(family, direction, traced):
    batch, names = batch_of(), []
    for name in objectives_for(family, direction):
        others = ["mlm"] if name == "sbo" else []
        try:
            program_of(family, direction, [*others, name]).views(batch, jax.random.key(0))
        except UserError as error:
            assert "order" in str(error) and FAMILIES[family].body is not Transformer
        else:
            names.append(name)
    program = program_of(family, direction, names)
    params = jax.tree.map(jax.numpy.asarray, random_params(program, batch))
    direction_of_logits = jax.random.normal(jax.random.key(1), [SIZE])

    def predictions(probe):
        traced["probe"] = probe
        traced["made"].clear()
        views = program.views(batch, jax.random.key(5))
        program.metrics(params, views)
        made = [each for each in traced["made"] if each[0].shape[-1] == SIZE]
        return [logits @ direction_of_logits for logits, *_ in made], [each[1:] for each in made]

    probe = jax.numpy.zeros((SIZE, WIDTH))
    jacobians, answers = quick_jit(jax.jacrev(predictions, has_aux=True))(probe)
    assert len(jacobians) >= len(program.objectives) // 2
    for jacobian, (labels, weights) in zip(jacobians, answers, strict=True):
        strength = np.abs(jacobian).max(-1)  # [B, n, V]
        predicted = (np.asarray(weights) > 0) & (np.asarray(labels) >= FIRST)
        own = np.take_along_axis(strength, np.asarray(labels)[..., None], axis=-1)[..., 0]
        assert predicted.any() and (own[predicted] == 0).all(), "it sees what it must predict"
        assert (strength.sum(-1)[predicted] > 0).any(), "else the test could not see a leak"
