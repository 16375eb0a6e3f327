"""Kinds of SuperGLUE's tasks: rows, logits and predictions that one can check."""

import numpy as np
import pytest

from bertlab.contrib.superglue import CANDIDATE, WORD_PAIR
from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.scoring import most_frequent
from bertlab.transfer.tasks import Task, TaskData
from tests.transfer.letters import LetterTokenizer
from tests.transfer.test_heads import LABEL, LAST, all_asked, dense, document_vector

pytestmark = pytest.mark.nightly


def test_a_question_has_its_likeliest_candidate():
    answers = (Answer("b", 0),)
    examples = [
        Example(f"{n}", "f:1", label=0, choices=(text,), answers=answers, group="q")
        for n, text in enumerate("ab")
    ]
    outputs = [[{"logits": np.float32([0, x])} for x in pair] for pair in ((2, 1), (-4, 1))]
    runs = [CANDIDATE.predict(examples, (), pair, None)[0] for pair in outputs]
    assert [run["predicted"] for run in runs] == ["a", "b"]
    assert (runs[0]["id"], runs[0]["gold"]) == ("q", ["b"])
    assert CANDIDATE.average(runs, ())["predicted"] == "b"
    # No class is an answer to a question.
    task = Task("own", "bertlab.contrib.superglue:CANDIDATE", ("span_f1",), None)
    data = TaskData(("x", "y"), {"train": examples})
    assert most_frequent({"own": (task, data)}, "train") == {}


def word_pair(texts, targets, **layout):
    example = Example("0", "f:1", texts=texts, targets=targets, label=1)
    return WORD_PAIR.row(Inputs(LetterTokenizer(), "pair", **layout), example, False)


@pytest.mark.parametrize(
    ("first_piece", "seq_len", "pair_at"),
    [
        # [ a b c d ] x y z ]: words bc and yz.
        (True, 12, [2, 7]),
        (False, 12, [3, 8]),
        # [ a b c ] x y z ] and [ a b ] x ]: a word that is cut off is read at the last piece.
        (False, 9, [3, 7]),
        (True, 6, [2, 4]),
    ],
)
def test_words_in_context_are_where_they_are_after_truncation(first_piece, seq_len, pair_at):
    places = ((2, 4), (2, 4))
    row, _ = word_pair(("a bc d", "x yz"), places, first_piece=first_piece, seq_len=seq_len)
    assert row["pair_at"].tolist() == pair_at and row["label"] == 1


def test_words_that_did_not_fit_are_counted_and_others_need_a_piece():
    _, cut = word_pair(("a" * 10, "a" * 10), ((9, 10), (0, 1)), seq_len=16)
    assert cut == {"pieces": (7, 20), "targets": (1, 2)}
    with pytest.raises(UserError, match="no piece covers"):
        word_pair(("ab c", "d"), ((2, 3), (0, 1)), seq_len=16)


def test_words_in_context_are_classified_with_the_text():
    at = np.int32([[1, 4], [0, 1], [3, 5], [0, 0]])
    heads = {
        pooling: WORD_PAIR.build_head(WORD_PAIR.settings() | {"pooling": pooling}, classes=2)
        for pooling in ("pooler", "mean")
    }
    params, _, outputs = all_asked(heads, pair_at=at, **LABEL)
    for pooling in heads:
        for row in (0, 1):
            text = document_vector(pooling, row, 1)
            vector = np.concatenate([text, *LAST[row, at[row]]])
            expected = dense(vector, params[f"heads_{pooling}"]["dense"])
            found = outputs[pooling]["logits"][row]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
