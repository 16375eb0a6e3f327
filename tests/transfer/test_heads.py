"""Task heads equal NumPy (float64) on given states; rows and positions that nothing is known of weigh nothing."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertlab.data.characters import character_ids
from bertlab.data.rows import pad_batch
from bertlab.errors import UserError
from bertlab.models.base import Encoded, summary
from bertlab.objectives.program import Program
from bertlab.train.state import weighted_total
from bertlab.transfer import crf
from bertlab.transfer.heads import POOLINGS, AuxiliaryLanguageModel, pooled
from bertlab.transfer.kinds import KINDS
from bertlab.transfer.kinds.choice import ChoiceHead as Choice
from bertlab.transfer.kinds.classification import ClassificationHead as Classification
from bertlab.transfer.kinds.regression import RegressionHead as Regression
from bertlab.transfer.kinds.span import SpanHead as Span
from bertlab.transfer.kinds.span_pair import SpanPairHead as SpanPair
from bertlab.transfer.kinds.span_pair import attention_pooled
from bertlab.transfer.kinds.tagging import TaggingHead as Tagging
from bertlab.transfer.kinds.word_pair import WordPairHead as WordPair
from tests.references import VOCABULARY, dense, layer_norm, log_softmax, quick_jit, random_params


class Given(nn.Module):
    """A body whose states are in the batch, `states` [B, n, L, D]; its pooler doubles, and its logits are the states."""

    side: str = "both"

    @property
    def config(self):
        return SimpleNamespace(direction={"backward": "right-to-left"}.get(self.side, ""))

    @nn.compact
    def encode(self, view, deterministic, carry):
        self.param("unused", nn.initializers.zeros, ())  # a language model has no head of its own
        return Encoded(**{self.side: tuple(jnp.moveaxis(view["states"], 1, 0))}), {}

    def pool(self, encoded, view, documents=None):
        side, layers = encoded.widest()
        return 2 * summary(layers[-1], side, view, documents)

    def predict_tokens(self, hidden, side, among=None):
        return hidden


# Two documents and padding; one short one; two again, of which the second is a single token; nothing at all.
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 2], [0] * 6], np.int32)
FILLED = DOCUMENTS > 0
ROWS, LENGTH, WIDTH = 4, 6, 5
# Three layers; what padding holds, nothing may see.
STATES = np.random.default_rng(0).normal(size=(ROWS, 3, LENGTH, WIDTH))
STATES = np.where(FILLED[:, None, :, None], STATES, 100).astype(np.float32)
LAST = np.float64(STATES[:, -1])
KEY = jax.random.key(0)


def view_of(**fields):
    zeros = np.zeros_like(DOCUMENTS)
    basic = {"tokens": zeros + 7, "segments": zeros, "positions": zeros, "documents": DOCUMENTS, "states": STATES}
    return basic | {name: np.asarray(value) for name, value in fields.items()}


def program_of(side="both", **objectives):
    return Program(Given(side), objectives, VOCABULARY)


def asked(program, view, seed=1):
    """Random parameters of the heads; metrics without dropout; outputs."""
    params = random_params(program, view, seed)
    metrics, _, outputs = quick_jit(lambda p, v: program.evaluate(p, program.views(v, jax.random.key(0)), {}))(params, view)
    return params, {name: [float(x) for x in pair] for name, pair in metrics.items()}, jax.tree.map(np.asarray, outputs)


def ask(head, side="both", **fields):
    """The same of one head: its parameters, its loss' (sum, weight), all its metrics, and its outputs."""
    params, metrics, outputs = asked(program_of(side, task=head), view_of(**fields))
    return params.get("heads_task"), metrics["task/loss"], metrics, outputs.get("task")


def one_document(pooling, states, side="both"):
    """A document's vector [D] from its states [T, D]."""
    last = states[0] if side == "backward" else states[-1]
    return {
        "mean": states.mean(0),
        "first": states[0],
        "last": last,
        "max": states.max(0),
        "pooler": 2 * (states[-1] if side == "forward" else states[0]),
        "concat": np.concatenate([last, states.max(0), states.mean(0)]),
    }[pooling]


def document_vectors(pooling, row, texts, side="both", states=LAST):
    return [one_document(pooling, states[row][DOCUMENTS[row] == n], side) for n in range(1, texts + 1)]


# --- pooling


@pytest.mark.parametrize("side", ["both", "backward"])
def test_each_document_of_a_row_is_pooled_by_itself(side):
    names = [name for name in POOLINGS if name != "pooler"]
    every = quick_jit(lambda x, documents: {p: pooled(x, {"documents": documents}, p, 2, side == "backward") for p in names})
    for pooling, found in every(STATES[:, -1], DOCUMENTS).items():
        for row in (0, 2):
            np.testing.assert_allclose(found[row], document_vectors(pooling, row, 2, side), rtol=1e-5)
        np.testing.assert_allclose(found[1, 0], document_vectors(pooling, 1, 1, side)[0], rtol=1e-5)
        assert np.isfinite(found).all()
        if pooling in ("mean", "max"):
            assert not found[1, 1].any() and not found[3].any(), "zeros where there is no document"


@pytest.mark.parametrize(
    ("side", "poolings"), [("both", POOLINGS), ("forward", ("last", "pooler", "concat")), ("backward", ("last", "concat"))]
)
def test_classification_is_a_dense_layer_on_the_text_vector(side, poolings):
    heads = {pooling: Classification(pooling=pooling, classes=3) for pooling in poolings}
    params, metrics, outputs = asked(program_of(side, **heads), view_of(label=np.int32([2, 0, -1, -1])))
    for name in poolings:
        layer = params[f"heads_{name}"]["dense"]
        expected = np.stack([dense(document_vectors(name, row, 1, side)[0], layer) for row in (0, 1)])
        np.testing.assert_allclose(outputs[name]["logits"][:2], expected, rtol=2e-5, atol=1e-5)
        likelihood = log_softmax(expected)[[0, 1], [2, 0]]
        np.testing.assert_allclose(metrics[f"{name}/loss"], [-likelihood.sum(), 2], rtol=2e-5)
        assert metrics[f"{name}/accuracy"] == [(expected.argmax(-1) == [2, 0]).sum(), 2]
        assert outputs[name]["logits"].shape == (ROWS, 3) and np.isfinite(outputs[name]["logits"]).all()


def test_vectors_of_both_orders_of_a_pair_are_added():
    heads = {pooling: Classification(pooling=pooling, classes=3, texts=2) for pooling in ("last", "pooler")}
    target = np.float32([0.5, np.nan, -2, np.nan])
    view = view_of(label=np.int32([1, -1, 2, -1]), target=target)
    params, metrics, outputs = asked(program_of("forward", **heads, value=Regression(pooling="mean", texts=2)), view)
    added = lambda pooling: np.stack([sum(document_vectors(pooling, row, 2, "forward")) for row in (0, 2)])
    for name in heads:
        expected = log_softmax(dense(added(name), params[f"heads_{name}"]["dense"]))[[0, 1], [1, 2]]
        np.testing.assert_allclose(metrics[f"{name}/loss"], [-expected.sum(), 2], rtol=2e-5)
    values = dense(added("mean"), params["heads_value"]["dense"])[:, 0]
    np.testing.assert_allclose(outputs["value"]["value"][[0, 2]], values, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["value/loss"], [((values - target[[0, 2]]) ** 2).sum(), 2], rtol=2e-5)


def test_blocks_are_a_relu_layer_before_the_classifier():
    params, _, _, outputs = ask(Classification(pooling="concat", blocks=4), "forward", label=np.int32([0, 0, 0, -1]))
    mlp = params["classifier"]
    x = document_vectors("concat", 0, 1, "forward")[0]
    hidden = np.maximum(dense(layer_norm(x, mlp["norm_0"], 1e-5), mlp["dense_0"]), 0)
    expected = dense(layer_norm(hidden, mlp["norm_1"], 1e-5), mlp["dense_1"])
    assert hidden.shape == (4,)
    np.testing.assert_allclose(outputs["logits"][0], expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_counts_the_texts_of_the_task_alone():
    """Not rows that pad a batch, nor another task's, nor choices that are not there."""
    label, task = np.int32([0, 0, 0, -1]), np.int32([1, 0, 1, 0])
    settings = {"pooling": "mean", "blocks": 4, "norm": "batch_norm"}
    program = program_of(text=Classification(**settings), choice=Choice(**settings, texts=2))
    view = view_of(label=label)
    params = random_params(program, view)
    step = quick_jit(lambda view: program.metrics_carry_and_statistics(params, program.views(view, KEY), {}, KEY)[2])
    texts = {  # by objective, of all rows and of rows 1 and 3 alone, which are of task 0
        "text": [np.stack([document_vectors("mean", row, 1)[0] for row in rows]) for rows in ((0, 1, 2), (1,))],
        "choice": [np.stack([v for row in rows for v in there("mean", row)]) for rows in ((0, 1, 2), (1,))],
    }
    everything, half = step(view), step(view | {"task": task})
    assert everything["heads_text"]["classifier"].keys() == {"norm_0", "norm_1"}
    for name, (of_all, of_half) in texts.items():
        before = params[f"heads_{name}"]["classifier"]["norm_0"]
        expected = 0.9 * np.float64(before["running_mean"]) + 0.1 * of_all.mean(0)
        np.testing.assert_allclose(everything[f"heads_{name}"]["classifier"]["norm_0"]["running_mean"], expected, rtol=1e-4)
        assert len(of_half) == 1, "too few: the statistics stay"
        np.testing.assert_array_equal(half[f"heads_{name}"]["classifier"]["norm_0"]["running_mean"], before["running_mean"])


def there(pooling, row):
    """The vectors of the documents that a row has, of two."""
    return [one_document(pooling, LAST[row][DOCUMENTS[row] == n]) for n in (1, 2) if (DOCUMENTS[row] == n).any()]


def test_a_head_reads_the_layers_that_it_is_told_to():
    layers = np.float64(STATES)
    kinds = {
        "layer:0": layers[:, 0],
        "sum_last_2": layers[:, 1] + layers[:, 2],
        "concat_last_2": np.concatenate([layers[:, 1], layers[:, 2]], -1),
    }
    program = program_of(**{kind: Classification(layers=kind, pooling="max") for kind in kinds})
    params, _, outputs = asked(program, view_of(label=np.int32([0, 0, 0, -1])))
    for kind, states in kinds.items():
        expected = dense(document_vectors("max", 1, 1, states=states)[0], params[f"heads_{kind}"]["dense"])
        np.testing.assert_allclose(outputs[kind]["logits"][1], expected, rtol=2e-5, atol=1e-5)


def test_the_mixes_penalties_are_added_to_the_mean_loss():
    label = np.int32([1, 0, 1, -1])
    # At two places there are two mixes, whose penalties here outweigh all else.
    head = Classification(layers="scalar_mix", bilstm=1, hidden=2, place="input_output", mix_penalty=1e6)
    params, loss, _, _ = ask(head, label=label)
    squares = [np.sum(np.float64(params[f"mixes_{i}"]["weights"]) ** 2) for i in (0, 1)]
    np.testing.assert_allclose(loss[0] / loss[1], 1e6 * sum(squares), rtol=1e-4)
    assert loss[1] == 3


# --- choice, words in context


def test_choices_share_one_softmax():
    params, loss, metrics, outputs = ask(Choice(pooling="mean", texts=2), label=np.int32([1, -1, 0, -1]))
    logits = np.stack([dense(np.stack(document_vectors("mean", row, 2)), params["dense"])[:, 0] for row in (0, 2)])
    np.testing.assert_allclose(outputs["logits"][[0, 2]], logits, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(loss, [-log_softmax(logits)[[0, 1], [1, 0]].sum(), 2], rtol=2e-5)
    assert metrics["task/accuracy"] == [(logits.argmax(-1) == [1, 0]).sum(), 2]
    assert outputs["logits"][1, 1] < -1e38, "a choice that is not there is never the best"


def test_words_in_context_are_classified_with_the_text():
    at = np.array([[1, 4], [0, 1], [3, 5], [0, 0]], np.int32)
    program = program_of(pooler=WordPair(pooling="pooler"), mean=WordPair(pooling="mean"))
    params, metrics, outputs = asked(program, view_of(label=np.int32([1, 0, -1, -1]), word_at=at))
    for name in ("pooler", "mean"):
        texts = [document_vectors(name, row, 1)[0] for row in (0, 1)]
        vectors = [np.concatenate([text, *LAST[row, at[row]]]) for row, text in enumerate(texts)]
        expected = dense(np.stack(vectors), params[f"heads_{name}"]["dense"])
        np.testing.assert_allclose(outputs[name]["logits"][:2], expected, rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(metrics[f"{name}/loss"], [-log_softmax(expected)[[0, 1], [1, 0]].sum(), 2], rtol=2e-5)


# --- spans and pairs of them

# Of each row two targets with two spans: first and last position, both included; −1: not in the row.
_TWO = [[[[0, 2], [3, 4]], [[1, 1], [0, 4]]], [[[0, 1], [1, 1]], [[-1, -1], [-1, -1]]]]
SPANS = np.int32([*_TWO, *[[[[0, 0], [1, 3]]] * 2] * 2])


def attended(states, scores, span):
    """A span's vector: Σ softmax(scores) · states over its positions."""
    if span[0] < 0:
        return np.zeros(states.shape[-1])
    inside = slice(span[0], span[1] + 1)
    shares = np.exp(scores[inside] - scores[inside].max())
    return (shares / shares.sum()) @ states[inside]


def test_spans_are_pooled_by_attention_over_their_own_positions():
    scores = np.random.default_rng(1).normal(size=(ROWS, LENGTH)).astype(np.float32) * 3
    found = quick_jit(attention_pooled)(STATES[:, -1], scores, SPANS[:, :, 1])
    expected = [[attended(LAST[row], scores[row], span) for span in SPANS[row, :, 1]] for row in range(ROWS)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not found[1, 1].any()


def test_span_pairs_have_a_sigmoid_per_class():
    labels = np.int32([[[2, -1], [0, 1]], [[-1, -1], [1, -1]], [[0, -1]] * 2, [[0, -1]] * 2])
    known = np.int32([[1, 1], [1, 0], [0, 0], [0, 0]])  # the first target of the second row has no class, which is known
    given = {"target_spans": SPANS, "target_labels": labels, "target_known": known}
    p, loss, metrics, outputs = ask(SpanPair(projection=4, classes=3), **given)
    assert "dense" in p and not {"classifier", "encoder"} & set(p)
    vectors = []
    for number in (0, 1):
        projected = dense(LAST, p[f"projections_{number}"])
        scores = (projected @ np.float64(p[f"attentions_{number}"]["kernel"]))[..., 0]
        every = [[attended(projected[row], scores[row], span) for span in SPANS[row, :, number]] for row in range(ROWS)]
        vectors.append(np.array(every))
    hidden = layer_norm(np.tanh(dense(np.concatenate(vectors, -1), p["between"])), p["norm"], 1e-5)
    logits = dense(hidden, p["dense"])
    there = SPANS[..., 0, 0] >= 0
    np.testing.assert_allclose(outputs["target_logits"][there], logits[there], rtol=1e-4, atol=1e-5)
    assert (outputs["target_logits"][~there] < -1e38).all(), "of spans that were cut off no class is predicted"
    gold = (labels[..., None] == np.arange(3)).any(2)
    nats = np.where(gold, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits))).mean(-1)
    counted = known == 1
    np.testing.assert_allclose(loss, [nats[counted].sum(), 3], rtol=1e-4)
    right = ((logits > 0) == gold).all(-1)
    assert metrics["task/accuracy"] == [right[counted].sum(), 3]
    # With one span the model has one projection.
    alone = {**given, "target_spans": SPANS[:, :, :1]}
    assert not {"projections_1", "attentions_1"} & set(ask(SpanPair(projection=4, classes=3), **alone)[0])


# --- tagging

WORD_AT = np.array([[1, 4, -1, -1], [0, -1, -1, -1], [0, 2, 5, -1], [-1] * 4], np.int32)
TAGS = np.array([[2, 0, -1, -1], [1, -1, -1, -1], [0, -1, 1, -1], [-1] * 4], np.int32)


def test_words_are_tagged_by_their_labelled_pieces():
    params, loss, metrics, outputs = ask(Tagging(classes=3), word_at=WORD_AT, labels=TAGS)
    logits = dense(np.take_along_axis(LAST, np.maximum(WORD_AT, 0)[..., None], 1), params["dense"])
    known = TAGS >= 0
    likelihood = np.take_along_axis(log_softmax(logits), np.maximum(TAGS, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss, [-likelihood[known].sum(), known.sum()], rtol=2e-5)
    assert metrics["task/accuracy"] == [(logits.argmax(-1) == TAGS)[known].sum(), known.sum()]
    np.testing.assert_array_equal(outputs["tags"], np.where(WORD_AT >= 0, logits.argmax(-1), -1))
    np.testing.assert_allclose(outputs["probabilities"], np.exp(log_softmax(logits)), rtol=1e-4, atol=1e-6)
    assert outputs["tags"][2, 1] >= 0, "a word without a label is tagged, and weighs nothing"


def test_a_crf_scores_whole_sentences_per_word():
    params, loss, metrics, outputs = ask(Tagging(classes=3, crf=True), word_at=WORD_AT, labels=TAGS)
    assert "task/accuracy" not in metrics and "dense" not in params, "one dense layer, the CRF's own"
    p, there = params["crf"], WORD_AT >= 0
    logits = dense(np.take_along_axis(LAST, np.maximum(WORD_AT, 0)[..., None], 1), p["dense"])
    scores = crf.Scores(*(np.float32(p[name]) for name in crf.Scores._fields))
    np.testing.assert_allclose(
        loss, [-quick_jit(crf.log_likelihood)(logits, there, TAGS, scores).sum(), (TAGS >= 0).sum()], rtol=2e-5
    )
    np.testing.assert_array_equal(outputs["tags"], quick_jit(crf.viterbi)(logits, there, scores)[0])
    np.testing.assert_allclose(outputs["probabilities"], quick_jit(crf.marginals)(logits, there, scores), rtol=2e-5, atol=1e-6)


def test_a_tagger_with_words_of_its_own_sees_spelling_and_words():
    head = Tagging(bilstm=2, hidden=2, place="after_first", spelling=True, word_width=3, word_types=4, classes=3)
    spelling = np.stack([character_ids(("ab", "c", "def", ""))] * ROWS).astype(np.int32)
    words = np.int32([[1, 2, 0, 0]] * ROWS)
    program = program_of(task=head)
    view = view_of(word_at=WORD_AT, labels=TAGS, spelling=spelling, word_ids=words)
    params = random_params(program, view)
    assert params["heads_task"]["features"]["word_embedding"].shape == (4, 3)
    metrics = quick_jit(lambda params, view: program.metrics(params, program.views(view, jax.random.key(0))))
    score = lambda view: float(metrics(params, view)["task/loss"][0])
    base = score(view)
    respelled = spelling.copy()
    respelled[:, 1] = character_ids(("x",))
    changed = [view | {"spelling": respelled}, view | {"word_ids": words[:, ::-1]}, view | {"states": STATES * 2}]
    assert min(abs(score(other) - base) for other in changed) > 1e-4
    # What is spelled beyond the words is not read.
    beyond = np.where((WORD_AT >= 0)[..., None], spelling, 7)
    np.testing.assert_allclose(score(view | {"spelling": beyond}), base, rtol=1e-6)


# --- span, language model


def test_spans_compete_with_every_position_but_padding():
    start, end = np.int32([3, 0, -1, -1]), np.int32([4, 1, -1, -1])
    params, loss, metrics, outputs = ask(Span(), start=start, end=end)
    logits = np.where(DOCUMENTS[..., None] > 0, dense(LAST, params["dense"]), np.finfo(np.float32).min)
    np.testing.assert_allclose(outputs["start"], logits[..., 0], rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(outputs["end"], logits[..., 1], rtol=2e-5, atol=1e-4)
    first, last = (log_softmax(logits[:2, :, i])[[0, 1], x[:2]] for i, x in enumerate((start, end)))
    np.testing.assert_allclose(loss, [-(first + last).sum() / 2, 2], rtol=2e-5)
    right = (logits[:2, :, 0].argmax(-1) == start[:2]) & (logits[:2, :, 1].argmax(-1) == end[:2])
    assert metrics["task/accuracy"] == [right.sum(), 2]
    best = logits.argmax(1)
    _, _, metrics, _ = ask(Span(), start=best[:, 0], end=np.where(np.arange(ROWS) == 1, (best[:, 1] + 1) % LENGTH, best[:, 1]))
    assert metrics["task/accuracy"] == [2, 3], "both ends must be right, of the rows that are filled"


@pytest.mark.parametrize("side", ["forward", "backward"])
def test_the_auxiliary_language_model_is_the_mean_over_texts_of_each_texts_mean(side):
    tokens = np.random.default_rng(3).integers(0, WIDTH, size=DOCUMENTS.shape).astype(np.int32)
    _, loss, _, _ = ask(AuxiliaryLanguageModel(texts=2), side, tokens=tokens)
    terms = {}
    for row in range(ROWS):
        for here, there in zip(range(LENGTH - 1), range(1, LENGTH)):
            if side == "backward":
                here, there = there, here  # the token before is predicted
            if (document := DOCUMENTS[row, here]) == DOCUMENTS[row, there] > 0:
                terms.setdefault((row, document), []).append(-log_softmax(LAST[row, here])[tokens[row, there]])
    assert len({len(of_text) for of_text in terms.values()}) > 1 and len(terms) > len({row for row, _ in terms})
    np.testing.assert_allclose(loss, [sum(map(np.mean, terms.values())), len(terms)], rtol=2e-5)


def test_a_body_that_reads_both_ways_has_no_language_model():
    with pytest.raises(UserError, match=r"language model needs a body that reads in one direction; omit language_model"):
        ask(AuxiliaryLanguageModel(), "both")


# --- several tasks, and rows without labels

FIELDS = {
    "classification": {"label": np.int32([1, 0, 1, 0])},
    "candidate": {"label": np.int32([1, 0, 1, 0])},
    "regression": {"target": np.float32([1, -1, 2, 0.5])},
    "choice": {"label": np.int32([1, 0, 1, 0])},
    "word_pair": {"label": np.int32([1, 0, 1, 0]), "word_at": np.int32([[0, 1]] * ROWS)},
    "tagging": {"labels": np.maximum(TAGS, 0), "word_at": WORD_AT},
    "span": {"start": np.int32([1, 0, 1, 0]), "end": np.int32([1, 0, 1, 0])},
    "span_pair": {
        "target_spans": np.tile(np.int32([[[0, 1], [1, 2]], [[0, 2], [2, 2]]]), (ROWS, 1, 1, 1)),
        "target_labels": np.tile(np.int32([[0, -1], [0, 1]]), (ROWS, 1, 1)),
        "target_known": np.ones((ROWS, 2), np.int32),
    },
}
HEADS = {name: kind.head(number=1) for name, kind in KINDS.items() if kind.is_trained and name not in ("choice", "tagging")}
HEADS["choice"] = Choice(texts=2, number=1)
HEADS["tagging"] = Tagging(classes=3, number=1)
HEADS["tagging with a CRF"] = Tagging(crf=True, classes=3, number=1)
FIELDS["tagging with a CRF"] = FIELDS["tagging"]


def only(rows, kind):
    """The kind's labels, not known outside these rows."""
    known = lambda x: np.isin(np.arange(ROWS), rows).reshape(-1, *[1] * (x.ndim - 1))
    unknown = lambda x: x.dtype.type(np.nan if x.dtype == np.float32 else -1)
    return {k: x if k == "word_at" else np.where(known(x), x, unknown(x)) for k, x in FIELDS[kind].items()}


@pytest.mark.parametrize("kind", HEADS)
def test_only_labelled_rows_of_the_task_itself_weigh(kind):
    program = program_of(task=HEADS[kind])

    def total(params, states, view):
        view = view | {"states": states}
        metrics = program.metrics(params, program.views(view, jax.random.key(0)))
        return weighted_total(metrics, {"task": 1.0}), metrics

    gradient = quick_jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    everything = view_of(**FIELDS[kind], task=np.ones(ROWS, np.int32))
    params = random_params(program, everything)
    score = lambda view, states=STATES: jax.tree.map(np.asarray, gradient(params, states, everything | view))

    def assert_same(view, other):
        ((_, metrics), (gradients, _)), ((_, expected), (expected_gradients, _)) = score(view), score(other)
        ours, theirs = (metrics, gradients), (expected, expected_gradients)
        for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)

    (value, metrics), found = score({})
    assert value > 0 and all(np.isfinite(g).all() for g in jax.tree.leaves(found))
    assert all(np.any(g) for g in jax.tree.leaves(found[0]["heads_task"])), "every parameter is trained"
    # Nothing known: no loss, no gradient, no division by zero.
    (value, metrics), found = score(only([], kind))
    assert value == 0 and metrics["task/loss"][1] == 0 and not any(np.any(g) for g in jax.tree.leaves(found))
    # One row known: no other row's states matter.
    (value, metrics), (_, of_states) = score(only([0], kind))
    assert value > 0 and np.isfinite(of_states).all() and np.any(of_states[0]) and not np.any(of_states[1:])
    # Rows of another task are as rows without a label.
    assert_same({"task": np.int32([1, 0, 1, 5])}, only([0, 2], kind))
    # So are rows that only fill a batch.
    padded = pad_batch([{name: value[0] for name, value in everything.items() if name != "states"}], ROWS)
    padded["task"][:] = 1
    assert_same(padded, only([0], kind))


def test_dropout_is_of_training_alone():
    program = program_of(task=Classification(dropout=0.5))
    view = view_of(label=np.int32([1, 0, 1, -1]))
    params = random_params(program, view, seed=1)
    loss = lambda key: program.metrics(params, program.views(view, jax.random.key(0)), key)["task/loss"][0]
    first, second, none = quick_jit(lambda: (loss(jax.random.key(1)), loss(jax.random.key(2)), loss(None)))()
    assert len({float(first), float(second), float(none)}) == 3
    assert float(none) == pytest.approx(ask(Classification(dropout=0.0), label=view["label"])[1][0], rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "classification",
            {"pooling": "most"},
            r"pooling='most' is not known; choose one of mean, pooler, first",
        ),
        ("choice", {"pooling": "pooler", "layers": "sum_last_2"}, r"pooling='pooler' reads the body's last layer and nothing"),
        ("regression", {"pooling": "pooler", "chunk": 4}, r"pooling='pooler' reads"),
        ("word_pair", {"pooling": "pooler", "bilstm": 1}, r"pooling='pooler' reads"),
        ("span", {"dropout": 1.5}, r"dropout=1.5 must be at least 0 and at most 1"),
        ("span", {"mix_dropout": -1}, r"mix_dropout=-1 must be at least 0 and at most 1"),
        ("tagging", {"place": "top"}, r"place='top' is not known; choose one of input, after_first"),
        ("tagging", {"place": "output", "bilstm": 2}, r"place='output' gives the biLSTM no input; set spelling=True"),
        ("tagging", {"place": "input_output"}, r"place='input_output' .* set bilstm=1"),
        ("tagging", {"place": "after_first", "bilstm": 1, "spelling": True}, r"place='after_first' .* set bilstm=2"),
        ("tagging", {"bilstm": 1, "cell": "rnn"}, r"cell='rnn' is not known; choose one of lstm, gru"),
        ("classification", {"cell": "gru"}, r"cell='gru' has no effect without bilstm"),
        ("classification", {"norm": "batch_norm"}, r"norm='batch_norm' has no effect without blocks"),
        ("choice", {"blocks": 4, "norm": "batch"}, r"norm='batch' is not known; choose one of layer_norm, batch_norm, none"),
        ("tagging", {"spelling": True}, r"spelling, word_width and word_vectors are inputs of a biLSTM; set bilstm=2"),
        ("tagging", {"speller": "gru"}, r"speller='gru' has no effect without spelling"),
        ("tagging", {"word_width": 4}, r"spelling, word_width and word_vectors are inputs of a biLSTM"),
        ("tagging", {"word_vectors": "runs/x"}, r"spelling, word_width and word_vectors are inputs of a biLSTM"),
        (
            "tagging",
            {"bilstm": 2, "word_vectors_trained": True},
            r"word_vectors_trained=True has no effect without",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind, settings, message):
    with pytest.raises(UserError, match=message):
        KINDS[kind].head(**settings)
