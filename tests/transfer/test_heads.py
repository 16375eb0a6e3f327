"""Heads equal NumPy (float64) on states that are in the batch; what has no label weighs nothing."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertlab.errors import UserError
from bertlab.models.base import Encoded, summary
from bertlab.objectives.program import Program
from bertlab.transfer import crf
from bertlab.transfer.heads import POOLINGS, AuxiliaryLanguageModel
from bertlab.transfer.kinds import KINDS
from tests.references import (
    VOCABULARY,
    dense,
    layer_norm,
    log_softmax,
    quick_jit,
    random_params,
    tiny_program,
)


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


class StatesBody(nn.Module):
    """Its states are the view's `states` [B, n, L, D]; its pooler doubles; logits are states."""

    side: str = "both"

    @property
    def shape(self):
        directions = {"backward": "right-to-left", "forward": "left-to-right"}
        return SimpleNamespace(direction=directions.get(self.side, "bidirectional"))

    @nn.compact
    def encode(self, view, carry=None):
        self.param("unused", nn.initializers.zeros, ())
        return Encoded(**{self.side: tuple(jnp.moveaxis(view["states"], 1, 0))}), {}

    def pool(self, encoded, view, documents=None):
        side, layers = encoded.widest()
        return 2 * summary(layers[-1], side, view, documents)

    def predict_tokens(self, hidden, side, among=None):
        return hidden


# Two documents and padding; a short one; two, of which one is a single token; nothing.
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 2], [0] * 6])
ROWS, LENGTH, WIDTH = 4, 6, 5
STATES = np.random.default_rng(0).normal(size=(ROWS, 3, LENGTH, WIDTH))
# What padding has, nothing may see.
STATES = np.where(DOCUMENTS[:, None, :, None] > 0, STATES, 100).astype(np.float32)
LAST = np.float64(STATES[:, -1])
LABEL = {"label": np.int32([2, 0, -1, -1])}


def view_of(**fields):
    zeros = np.zeros(DOCUMENTS.shape, np.int32)
    basic = {"tokens": zeros + 7, "segments": zeros, "positions": zeros, "states": STATES}
    return basic | {"documents": DOCUMENTS.astype(np.int32)} | fields


def head_of(kind, **settings):
    return KINDS[kind].head(**settings)


def all_asked(heads, side="both", **fields):
    """Random parameters of heads, their metrics without dropout, and their outputs, by name."""
    program = Program(StatesBody(side), heads, VOCABULARY)
    view = view_of(**fields)
    params = random_params(program, view)

    def run(params, view):
        outputs = {
            name: program.call(params, name, view, head.outputs)
            for name, head in heads.items()
            if hasattr(head, "outputs")
        }
        return program.metrics(params, {"batch": view})[0], outputs

    metrics, outputs = jax.tree.map(np.asarray, quick_jit(run)(params, view))
    return params, metrics, outputs


def asked(head, side="both", **fields):
    """The same of one head."""
    params, metrics, outputs = all_asked({"task": head}, side, **fields)
    return params.get("heads_task"), metrics, outputs.get("task")


def document_vector(pooling, row, document, side="both", states=LAST):
    x = states[row][DOCUMENTS[row] == document]
    last = x[0] if side == "backward" else x[-1]
    return {
        "mean": x.mean(0),
        "first": x[0],
        "last": last,
        "max": x.max(0),
        "pooler": 2 * (x[-1] if side == "forward" else x[0]),
        "concat": np.concatenate([last, x.max(0), x.mean(0)]),
    }[pooling]


@pytest.mark.parametrize(
    ("side", "poolings"),
    [("both", POOLINGS), ("forward", ("pooler", "concat")), ("backward", ("last",))],
)
def test_classification_is_a_dense_layer_on_the_sum_of_the_text_vectors(side, poolings):
    heads = {
        f"{pooling}{texts}": head_of("classification", pooling=pooling, classes=3, texts=texts)
        for pooling in poolings
        for texts in (1, 2)
    }
    params, metrics, outputs = all_asked(heads, side, **LABEL)
    for pooling in poolings:
        first, second = (document_vector(pooling, 0, n, side) for n in (1, 2))
        p = params[f"heads_{pooling}2"]["dense"]
        found = outputs[f"{pooling}2"]["logits"][0]
        np.testing.assert_allclose(found, dense(first + second, p), rtol=1e-4, atol=1e-5)
        vectors = np.stack([first, document_vector(pooling, 1, 1, side)])
        logits = dense(vectors, params[f"heads_{pooling}1"]["dense"])
        found = outputs[f"{pooling}1"]["logits"]
        np.testing.assert_allclose(found[:2], logits, rtol=1e-4, atol=1e-5)
        nats = -log_softmax(logits)[[0, 1], [2, 0]].sum()
        np.testing.assert_allclose(metrics[f"{pooling}1/loss"], [nats, 2], rtol=1e-4)


def test_a_head_reads_the_layers_that_its_mix_names():
    head = head_of("classification", layers="concat_last_2", pooling="max")
    p, _, outputs = asked(head, label=np.int32([0, 0, 0, -1]))
    states = np.concatenate([np.float64(STATES[:, 1]), LAST], -1)
    expected = dense(document_vector("max", 1, 1, states=states), p["dense"])
    np.testing.assert_allclose(outputs["logits"][1], expected, rtol=1e-4, atol=1e-5)


def test_penalties_of_both_mixes_are_added_to_the_mean_loss():
    settings = {"layers": "scalar_mix", "bilstm": 1, "hidden": 2, "place": "input_output"}
    head = head_of("classification", mix_penalty=1e6, **settings)
    p, metrics, _ = asked(head, label=np.int32([1, 0, 1, -1]))
    squares = [np.sum(np.float64(p[f"mixes_{i}"]["weights"]) ** 2) for i in (0, 1)]
    total, weight = metrics["task/loss"]
    np.testing.assert_allclose(total / weight, 1e6 * sum(squares), rtol=1e-4)


def test_blocks_are_relu_layers_before_the_classifier():
    head = head_of("classification", pooling="concat", blocks=4)
    p, _, outputs = asked(head, "forward", label=np.int32([0, 0, 0, -1]))
    x, p = document_vector("concat", 1, 1, "forward"), p["classifier"]
    for layer in range(2):
        x = np.maximum(x, 0) if layer else x
        x = layer_norm(x, p[f"norm_{layer}"], 1e-5)
        x = dense(x, p[f"dense_{layer}"])
    np.testing.assert_allclose(outputs["logits"][1], x, rtol=1e-3, atol=1e-4)


def test_choices_share_a_softmax():
    p, metrics, outputs = asked(head_of("choice", texts=2), label=np.int32([1, -1, 0, -1]))
    vectors = [[document_vector("mean", row, n) for n in (1, 2)] for row in (0, 2)]
    logits = dense(np.array(vectors), p["dense"])[..., 0]
    np.testing.assert_allclose(outputs["logits"][[0, 2]], logits, rtol=1e-4, atol=1e-5)
    nats = -log_softmax(logits)[[0, 1], [1, 0]].sum()
    np.testing.assert_allclose(metrics["task/loss"], [nats, 2], rtol=1e-4)
    assert outputs["logits"][1, 1] < -1e38, "a choice that is not there is never the best"


WORD_AT = np.int32([[1, 4, -1, -1], [0, -1, -1, -1], [0, 2, 5, -1], [-1] * 4])
TAGS = np.int32([[2, 0, -1, -1], [1, -1, -1, -1], [0, -1, 3, -1], [-1] * 4])
WORDS = {"word_at": WORD_AT, "labels": TAGS}


@pytest.mark.parametrize("with_crf", [False, True])
def test_words_are_tagged_by_the_states_at_which_they_are_read(with_crf):
    p, metrics, outputs = asked(head_of("tagging", classes=3, crf=with_crf), **WORDS)
    states = np.take_along_axis(LAST, np.maximum(WORD_AT, 0)[..., None], 1)
    logits, there = dense(states, p["dense"]), WORD_AT >= 0
    labels = np.where(TAGS < 3, TAGS, -1)  # 3 is a tag that train lacks
    if with_crf:
        scores = crf.Scores(**p["crf"])
        tags = quick_jit(crf.best_tags)(logits, there, scores)
        shares = quick_jit(crf.marginals)(logits, there, scores)
        nats = -quick_jit(crf.log_likelihood)(logits, there, labels, scores).sum()
    else:
        shares = np.exp(log_softmax(logits))
        tags = np.where(there, logits.argmax(-1), -1)
        picked = np.take_along_axis(log_softmax(logits), np.maximum(labels, 0)[..., None], -1)
        nats = -picked[..., 0][labels >= 0].sum()
    np.testing.assert_array_equal(outputs["tags"], tags)
    found = outputs["probabilities"][there]
    np.testing.assert_allclose(found, np.asarray(shares)[there], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(metrics["task/loss"], [nats, 4], rtol=1e-4)


def test_spans_compete_with_every_position_but_padding():
    start, end = np.int32([3, 0, -1, -1]), np.int32([4, 1, -1, -1])
    p, metrics, outputs = asked(head_of("span"), start=start, end=end)
    lowest = np.finfo(np.float32).min
    logits = np.where(DOCUMENTS[..., None] > 0, dense(LAST, p["dense"]), lowest)
    np.testing.assert_allclose(outputs["start"], logits[..., 0], rtol=1e-4, atol=1e-4)
    nats = [-log_softmax(logits[:2, :, i])[[0, 1], x[:2]] for i, x in enumerate((start, end))]
    np.testing.assert_allclose(metrics["task/loss"], [np.sum(nats) / 2, 2], rtol=1e-4)


@pytest.mark.parametrize("side", ["forward", "backward"])
def test_the_auxiliary_language_model_is_the_mean_over_texts(side):
    tokens = np.random.default_rng(3).integers(0, WIDTH, DOCUMENTS.shape).astype(np.int32)
    _, metrics, _ = asked(AuxiliaryLanguageModel(texts=2), side, tokens=tokens)
    terms = {}
    for row in range(ROWS):
        for here in range(LENGTH - 1):
            read, predicted = (here, here + 1) if side == "forward" else (here + 1, here)
            if (document := DOCUMENTS[row, read]) == DOCUMENTS[row, predicted] > 0:
                nats = -log_softmax(LAST[row, read])[tokens[row, predicted]]
                terms.setdefault((row, document), []).append(nats)
    expected = [sum(map(np.mean, terms.values())), len(terms)]
    np.testing.assert_allclose(metrics["task/loss"], expected, rtol=1e-4)


FIELDS = {
    "regression": {"target": np.float32([1, -1, 2, 0.5])},
    "choice": {"label": np.int32([1, 0, 1, 0])},
    "tagging": {"labels": np.clip(TAGS, 0, 2), "word_at": WORD_AT},
    "span": {"start": np.int32([1, 0, 1, 0]), "end": np.int32([1, 0, 1, 0])},
}


@pytest.mark.parametrize("kind", ["tagging", *map(slow, sorted(FIELDS.keys() - {"tagging"}))])
def test_only_filled_rows_of_the_task_itself_weigh(kind):
    settings = {"classes": 3} if kind == "tagging" else {}
    settings |= {"texts": 2} if kind == "choice" else {}
    head = head_of(kind, number=1, **settings)
    program = Program(StatesBody(), {"task": head}, VOCABULARY)

    def loss(states, params, task):
        view = view_of(**FIELDS[kind], task=task) | {"states": states}
        return program.metrics(params, {"batch": view})[0]["task/loss"]

    params = random_params(program, view_of(**FIELDS[kind]))
    gradient = quick_jit(jax.grad(lambda *x: loss(*x)[0]))
    value = quick_jit(loss)
    assert value(STATES, params, np.int32([0, 0, 0, 0])) == (0, 0)
    found = np.asarray(gradient(STATES, params, np.int32([1, 0, 5, 1])))
    assert np.isfinite(found).all() and found[0].any() and not found[1:].any()


def test_chunks_change_gradients_and_nothing_else():
    tokens = np.random.default_rng(0).integers(5, 50, (2, 24)).astype(np.int32)
    ones = np.ones_like(tokens)
    view = {"tokens": tokens, "segments": 0 * ones, "documents": ones, "label": np.int32([0, 1])}
    view["positions"] = np.arange(24, dtype=np.int32) * ones
    body = tiny_program("awd_lstm", "", embedding_dropout=0.0, input_dropout=0.0).body
    body = body.clone(shape=dataclasses.replace(body.shape, hidden_dropout=0.0, weight_dropout=0.0))
    results = {}
    for chunk in (0, 6):
        head = head_of("classification", pooling="last", dropout=0.0, chunk=chunk)
        program = Program(body, {"task": head}, VOCABULARY)
        params = random_params(program, view, scale=0.3)

        def loss(params, program=program):
            return program.metrics(params, {"batch": view})[0]["task/loss"][0]

        value, gradient = quick_jit(jax.value_and_grad(loss))(params)
        results[chunk] = value, np.asarray(gradient["body"]["token_embedding"])
    values, gradients = zip(*results.values())
    np.testing.assert_allclose(values, values[0], rtol=1e-6)
    early = sorted(set(tokens[:, :18].ravel()) - set(tokens[:, 18:].ravel()))
    assert gradients[0][early].any() and not gradients[1][early].any()
    late = sorted(set(tokens[:, 18:].ravel()))
    assert gradients[1][late].any()


def test_dropout_is_on_exactly_with_a_key():
    head = head_of("classification", dropout=0.5)
    program = Program(StatesBody(), {"task": head}, VOCABULARY)
    view = view_of(label=np.int32([1, 0, 1, -1]))
    params = random_params(program, view)

    def losses():
        keys = None, None, jax.random.key(1), jax.random.key(2)
        metrics = [program.metrics(params, {"batch": view}, key=key)[0] for key in keys]
        return [x["task/loss"][0] for x in metrics]

    found = [float(loss) for loss in quick_jit(losses)()]
    assert len(set(found)) == 3 and found[0] == found[1]


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("classification", {"pooling": "most"}, "pooling='most' must be one of mean, pooler"),
        ("choice", {"pooling": "pooler", "layers": "concat_last_2"}, "pooling='pooler' only reads"),
        ("regression", {"pooling": "pooler", "chunk": 4}, "pooling='pooler' only reads"),
        ("tagging", {"place": "top"}, "place='top' must be one of"),
        ("tagging", {"place": "input_output"}, "are for a biLSTM"),
        ("tagging", {"spelling": True}, "are for a biLSTM"),
        ("classification", {"bilstm": 1, "place": "output"}, "place=output needs head.spelling"),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind, settings, message):
    with pytest.raises(UserError, match=message):
        head_of(kind, **settings)
