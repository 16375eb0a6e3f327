"""The contract of every objective of the registry, found by itself, and of one from outside."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives import REGISTRY, Vocabulary, build, default_settings, flops, members
from bertlab.objectives.program import Program, group_by_view
from bertlab.objectives.word_vectors import NegativeSampling
from tests.references import quick_jit, random_params

SIZE, LENGTH = 50, 10
VOCABULARY = Vocabulary(SIZE, 0, 1, 2, 3, 4, counts=(1,) * SIZE)
DIRECTIONS = {"forward": "left-to-right", "backward": "right-to-left"}
# Every chosen token becomes [MASK]: one that stays, or a random one, may be seen.
HIDE = {"mask_share": 1.0, "random_share": 0.0}
SETTINGS = {
    "mlm": {"rate": 0.4, **HIDE},
    "masked_next_token": {"rate": 0.4, **HIDE},
    "sbo": {"place_width": 4},
    "electra": {"rate": 0.4, "generator_size": 1.0},
    "permutation": {"predict_one_in": 2},
    "skip_gram": {"subsample": 0.0},
    "cbow": {"subsample": 0.0},
}


def program_of(entries, **model):
    config = {"family": "bert", "size": "tiny", "direction": None, "dtype": "float32"}
    config |= {"width": 8, "layers": 1, "hidden": 12, "heads": 2, **model}
    if config["family"] == "static":
        config = {key: config[key] for key in config if key not in ("layers", "hidden", "heads")}
    body = build_body(model_shape(ConfigDict(config), SIZE))
    return Program(body, build(ConfigDict(entries)), VOCABULARY)


def batch_of(rows=4):
    """One document a row, with [CLS], [SEP] and padding; no token occurs twice in a row."""
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(np.arange(5, SIZE - 1))[:LENGTH] for _ in range(rows)])
    tokens[:, 0], tokens[:, LENGTH - 3], tokens[:, LENGTH - 2 :] = 2, 3, 0
    documents = (tokens > 0).astype(np.int32)
    positions = np.arange(LENGTH) * documents
    fields = {
        "tokens": tokens,
        "segments": 0 * documents,
        "documents": documents,
        "positions": positions,
    }
    fields |= {
        "contexts": np.roll(tokens, 1, axis=1),
        "pair_label": np.ones(rows),
        "order_label": np.ones(rows),
    }
    batch = {name: value.astype(np.int32) for name, value in fields.items()}
    return batch | {"counts": np.ones((rows, LENGTH), np.float32)}


@pytest.fixture
def predictions(monkeypatch):
    """What every loss compares, in order: logits or states [B, n, ...], labels, weights [B, n]."""
    made = []
    base = sys.modules["bertlab.objectives.base"]

    def record(*arrays):
        made.append(jax.tree.map(np.asarray, arrays))

    def cross_entropy(logits, labels, weights):
        jax.debug.callback(record, logits, labels, weights)
        return base_cross_entropy(logits, labels, weights)

    def compare(self, model, hidden, right, drawn, weights):
        jax.debug.callback(record, hidden, right, weights)
        return base_compare(self, model, hidden, right, drawn, weights)

    base_cross_entropy, base_compare = base.cross_entropy, NegativeSampling.compare
    for kind in REGISTRY.values():
        for parent in kind.__mro__[:-1]:
            module = sys.modules[parent.__module__]
            monkeypatch.setattr(module, "cross_entropy", cross_entropy, raising=False)
    monkeypatch.setattr(NegativeSampling, "compare", compare)
    return made


@pytest.mark.parametrize("name", REGISTRY)
def test_what_predicts_a_token_does_not_change_with_it(name, predictions):
    kind = REGISTRY[name]
    entries = {name: SETTINGS.get(name, {})}
    predicts_tokens = flops.supervised(kind()) or issubclass(kind, NegativeSampling)
    if predicts_tokens and kind.shares in REGISTRY:
        entries = {kind.shares: {**SETTINGS[kind.shares], "unit": "span"}, **entries}
    model = {"direction": DIRECTIONS.get(kind.reads)}
    if "word_vectors" in kind.__module__:
        model = {"family": "static"}
    program, batch = program_of(entries, **model), batch_of()
    params = random_params(program, batch)

    @quick_jit
    def metrics(params, batch):
        return program.metrics(params, program.views(batch, jax.random.key(5)))[0]

    def run(tokens):
        predictions.clear()
        jax.block_until_ready(metrics(params, {**batch, "tokens": tokens}))
        jax.effects_barrier()
        return list(predictions)

    before, hidden_tokens, other_changes = run(batch["tokens"]), 0, 0
    for position in range(1, LENGTH - 3):
        changed = batch["tokens"].copy()
        changed[:, position] = SIZE - 1  # occurs nowhere
        for (logits, labels, weights), (new_logits, new_labels, new_weights) in zip(
            before, run(changed), strict=True
        ):
            np.testing.assert_array_equal(weights, new_weights)
            is_different = (logits != new_logits).any(-1) & (weights > 0)
            predicts = (labels != new_labels) & (weights > 0)
            assert not (predicts & is_different).any(), "it sees what it must predict"
            hidden_tokens += predicts.sum()
            other_changes += is_different.sum()
    assert (hidden_tokens > 0) == predicts_tokens
    assert other_changes > 0 or name in ("ar", "tar", "glove"), "else the test could not see a leak"


def test_an_objective_from_outside_trains():
    file = Path(__file__).with_name("own_diffusion.py")
    assert len(file.read_text().splitlines()) <= 40
    key, settings = default_settings("tests.objectives.own_diffusion:OwnDiffusion")
    assert (key, settings["least"]) == ("OwnDiffusion", 0.1)
    program, batch = (
        program_of({key: {**settings, "weight": 1.0, "least": 0.5}, "nsp": {}}),
        batch_of(8),
    )
    assert group_by_view(program.objectives) == {key: (key,), "batch": ("nsp",)}

    @quick_jit
    def step(params, number):
        def loss(params):
            views = program.views(batch, jax.random.fold_in(jax.random.key(0), number))
            total, weight = program.metrics(params, views)[0][f"{key}/loss"]
            return total / weight

        value, gradient = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda x, g: x - 0.5 * g, params, gradient)

    params, losses = quick_jit(program.init)(jax.random.key(1), batch), []
    for number in range(60):
        value, params = step(params, number)
        losses.append(float(value))
    assert np.mean(losses[:5]) > np.log(SIZE) - 0.3 and np.mean(losses[-5:]) < 0.9 * np.mean(
        losses[:5]
    )


def test_views_are_shared_by_contract():
    def groups(names, stream=False):
        return group_by_view({name: REGISTRY[name]() for name in members(names)}, stream)

    assert groups("nsp+mlm+sbo") == {"mlm": ("nsp", "mlm", "sbo")}
    assert groups("electra+nsp+ltr") == {"electra": ("electra",), "batch": ("nsp", "ltr")}
    assert groups("ltr+ar") == {"batch": ("ltr", "ar")}
    assert groups("ar+bilm+tar", stream=True) == {
        "forward": ("ltr", "ar", "tar"),
        "backward": ("rtl",),
    }


def test_a_steps_costs_are_its_passes_and_its_logits():
    """By hand: 6 FLOPs a weight and token, 12 L D a layer for attention, and rows of logits."""
    program = program_of({"mlm": {}, "nsp": {}, "prefix": {}})
    sums = {"mlm/loss": (0.0, 7.0), "nsp/loss": (0.0, 4.0), "prefix/loss": (0.0, 9.0)}
    weights = dict.fromkeys(sums, (1.0, 1.0)) | {
        "mlm": (1.0, 1.0),
        "nsp": (1.0, 1.0),
        "prefix": (0.0, 0.0),
    }
    row_of_logits = 6 * (8 * SIZE + 8 * 8)
    body = 4 * LENGTH * (6 * (4 * 8 * 8 + 2 * 8 * 12) + 12 * LENGTH * 8)
    supervised, total = flops.step_costs(program, weights, sums, rows=4, length=LENGTH)
    assert supervised == 7  # nsp has labels, and prefix is only measured
    assert total == 2 * body + 7 * row_of_logits + 4 * LENGTH * row_of_logits


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("mlm", {"unit": "word"}, "config.objectives.mlm: unit='word' must be one of token"),
        ("mlm", {"rates": 0.1}, "config.objectives.mlm: .* unexpected keyword argument 'rates'"),
        ("electra", {"task": "mlm"}, "config.objectives.electra: task='mlm' must be one of"),
        ("prefix", {"min_share": 0.5, "max_share": 0.2}, "min_share=0.5 is above max_share=0.2"),
        ("glow", {}, "objective 'glow': No module named 'glow'; choose from mlm, "),
    ],
)
def test_what_would_train_something_else_is_refused(name, settings, message):
    with pytest.raises(UserError, match=message):
        build(ConfigDict({name: settings}))
