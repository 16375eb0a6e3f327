"""Edge probing: the head against NumPy, rows, predictions, jiant's files, a planted signal."""

import numpy as np
import pytest

from bertlab.contrib.edges.span_pair import SPAN_PAIR
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks import find_task, load_task
from tests.references import dense, layer_norm
from tests.transfer.letters import LetterTokenizer
from tests.transfer.planted import WORDS, finetune, pretrained
from tests.transfer.tasks.test_published import lines, publish
from tests.transfer.test_heads import LAST, asked

pytestmark = pytest.mark.nightly

SPANS = np.int32(
    [
        [[[0, 2], [3, 4]], [[1, 1], [0, 4]]],
        [[[0, 1], [1, 1]], [[-1, -1], [-1, -1]]],
        *[[[[0, 0], [1, 3]]] * 2] * 2,
    ]
)
TARGETS = {
    "target_spans": SPANS,
    "target_labels": np.int32([[[2, -1], [0, 1]], [[-1, -1], [1, -1]], *[[[0, -1]] * 2] * 2]),
    # The first target of the second row has no class, which is known.
    "target_weights": np.int32([[1, 1], [1, 0], [0, 0], [0, 0]]),
}


def test_span_pairs_are_pooled_by_attention_and_have_a_sigmoid_a_class():
    p, metrics, outputs = asked(SPAN_PAIR.head(projection=4, classes=3), **TARGETS)

    def attended(row, span, number):
        projected = dense(LAST[row], p[f"projections_{number}"])[span[0] : span[1] + 1]
        scores = (projected @ np.float64(p[f"attentions_{number}"]["kernel"]))[:, 0]
        shares = np.exp(scores - scores.max())
        return (shares / shares.sum()) @ projected

    total = 0.0
    for row, target in ((0, 0), (0, 1), (1, 0)):
        x = [attended(row, SPANS[row, target, n], n) for n in (0, 1)]
        hidden = np.tanh(dense(np.concatenate(x), p["between"]))
        logits = dense(layer_norm(hidden, p["norm"], 1e-5), p["dense"])
        found = outputs["target_logits"][row, target]
        np.testing.assert_allclose(found, logits, rtol=1e-3, atol=1e-4)
        gold = np.isin(np.arange(3), TARGETS["target_labels"][row, target])
        total += np.log1p(np.exp(np.where(gold, -logits, logits))).mean()
    np.testing.assert_allclose(metrics["task/loss"], [total, 3], rtol=1e-4)
    assert (outputs["target_logits"][1, 1] < -1e38).all(), "its spans were cut off"


def made(*examples, seq_len):
    return SPAN_PAIR.rows(Inputs(LetterTokenizer(), "pair", seq_len), examples)


@pytest.mark.parametrize(
    ("seq_len", "positions"),
    [
        (10, [[[1, 2], [3, 6]], [[3, 3], [1, 3]]]),
        # Cut after d: what remains of a span stands for it.
        (6, [[[1, 2], [3, 4]], [[3, 3], [1, 3]]]),
        (4, [[[-1, -1], [-1, -1]], [[-1, -1], [-1, -1]]]),
    ],
)
def test_spans_of_words_are_those_of_their_pieces(seq_len, positions):
    spans, words = (((0, 1), (1, 3)), ((1, 2), (0, 2))), ("ab", "c", "def")
    labelled = Example("0", "f:1", words=words, spans=spans, label=((2,), (0, 1)))
    (row,) = made(labelled, seq_len=seq_len).rows
    assert row["target_spans"].tolist() == positions
    assert row["target_labels"].tolist() == [[2, -1], [0, 1]]
    assert row["target_weights"].tolist() == ([0, 0] if seq_len == 4 else [1, 1])
    (hidden,) = made(Example("0", "f:1", words=words, spans=spans), seq_len=seq_len).rows
    assert (hidden["target_labels"] == -1).all() and not hidden["target_weights"].any()


def test_a_sentence_with_many_targets_has_several_rows_and_one_prediction():
    words, number = tuple("ab" * 20), 40
    spans = tuple(((i, i + 1),) for i in range(number))
    labels = tuple((i % 3,) for i in range(number))
    many = Example("m", "f:1", words=words, spans=spans, label=labels)
    few = Example("f", "f:2", words=words[:2], spans=spans[:2], label=((), (1,)))
    rows = made(few, many, seq_len=42).rows
    assert [int(row["target_weights"].sum()) for row in rows] == [2, 32, 8]
    outputs = []
    for row in rows:
        padded = np.full((32, 1), -1)
        padded[: len(row["target_labels"])] = row["target_labels"]
        outputs.append({"target_logits": np.where(padded == np.arange(3), 1.0, -1.0)})
    found = SPAN_PAIR.predict([few, many], ("x", "y", "z"), outputs, None)
    assert found[0] == {"id": "f", "gold": [[], ["y"]], "predicted": [[], ["y"]]}
    assert found[1]["predicted"] == found[1]["gold"] == [["xyz"[i % 3]] for i in range(number)]


def test_jiant_s_lines_have_the_labels_of_all_splits(tmp_path):
    targets = [
        {"span1": [1, 2], "span2": [0, 1], "label": "A0"},
        {"span1": [1, 2], "span2": [2, 4], "label": ["B", "A1"]},
    ]
    record = {"text": "Ian ate ice cream", "targets": targets}
    files = {f"spr2/edges.{split}.json": lines(record) for split in ("train", "dev")}
    files["spr2/edges.test.json"] = lines({"text": "a b", "targets": []}, record).replace("A0", "C")
    task = find_task("bertlab.contrib.edges:SPR2")
    data = load_task(task, publish(tmp_path, files))
    (one,) = data.examples["test"]
    assert data.labels == ("A0", "A1", "B", "C") and one.label == ((3,), (2, 1))
    assert one.spans == (((1, 2), (0, 1)), ((1, 2), (2, 4))) and one.words[2] == "ice"
    publish(tmp_path, {"spr2/edges.dev.json": lines(record).replace("4]", "5]")})
    with pytest.raises(UserError, match=r"dev\.json:1: .*no words \[2, 5\)"):
        load_task(task, publish(tmp_path, {}))


def test_a_planted_label_of_a_span_is_learned(tmp_path):
    """The label is the last letter of the first span, whatever the second is."""
    rng = np.random.default_rng(0)
    for split, size in (("train", 300), ("dev", 40), ("test", 60)):
        records = []
        for _ in range(size):
            words = rng.choice(WORDS, 5).tolist()
            targets = [
                {"span1": [i, i + 1], "span2": [0, 1], "label": word[-1]}
                for i, word in enumerate(words)
            ]
            records.append({"text": " ".join(words), "targets": targets})
        publish(tmp_path, {f"tasks/dpr/edges.{split}.json": lines(*records)})
    settings = {"objectives__edges_dpr__projection": 32, "train__steps": 60}
    settings["optimizer__learning_rate"] = 0.003
    result = finetune(
        pretrained(tmp_path, "bert"),
        "bertlab.contrib.edges:DPR",
        tmp_path / "dpr",
        task_data__directory=tmp_path / "tasks",
        **settings,
    )
    assert result["metrics"]["test"]["edges_dpr/micro_f1"] > 0.8


def test_labels_that_count_in_the_papers_tables():
    gold, predicted = [[["a", "b"]], [["c"]]], [[["a"]], [["d"]]]
    assert METRICS["micro_f1"](gold, predicted) == pytest.approx(2 / 5)
    assert METRICS["micro_f1"]([[[]]], [[[]]]) == 0
    gold, predicted = [[["A0"], ["R-A0", "1"]]], [[["A0", "Other"], ["R-A0"]]]
    assert METRICS["core_role_f1"](gold, predicted) == pytest.approx(2 / 4)
    assert METRICS["relation_f1"](gold, predicted) == pytest.approx(4 / 5)
    assert METRICS["positive_f1"](gold, predicted) == 0
