"""Rows in the papers' layouts, what they cut, and where labels are."""

import itertools

import numpy as np
import pytest

from bertlab.data.characters import character_ids, character_table
from bertlab.data.tokenizers import SPECIALS, WordsTokenizer
from bertlab.errors import UserError
from bertlab.transfer.batches import most_texts
from bertlab.transfer.examples import Answer, Example, cut_lines
from bertlab.transfer.inputs import shortened
from bertlab.transfer.kinds import KINDS
from tests.transfer.letters import NAMES, made, spelled


def example(*texts, **fields):
    return Example(id="0", where="stub.tsv:2", texts=texts, **fields)


def row_of(kind, given, **settings):
    (row,) = made(kind, given, **settings).rows
    return row


def test_texts_and_pairs_are_framed_as_in_the_papers():
    row = row_of("classification", example("ab", "cde", label=1))
    assert spelled(row) == "[ab]cde]" and row["label"] == 1
    assert row["segments"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert row["positions"].tolist() == list(range(8)) and row["documents"].tolist() == [1] * 8
    row = row_of("classification", example("ab", "cd"), double_separator=True)
    assert spelled(row) == "[ab]]cd]" and row["label"] == -1
    row = row_of("regression", example("ab", "cd", label=2.5), layout="delimited", symmetric=True)
    assert [spelled(row, 1), spelled(row, 2)] == ["(ab/cd)", "(cd/ab)"] and row["target"] == 2.5
    assert row["positions"].tolist() == [*range(7), *range(7)] and not row["segments"].any()
    assert row_of("regression", example("ab", "c"), symmetric=True)["documents"].max() == 1
    row = row_of("choice", example("ab", choices=("c", "de", "f"), label=2))
    assert [spelled(row, n) for n in (1, 2, 3)] == ["[ab]c]", "[ab]de]", "[ab]f]"]


def test_the_longer_text_loses_its_end_and_of_equal_ones_the_second():
    for first, second, room in itertools.product(range(9), repeat=3):
        a, b = list(range(first)), list(range(second))
        while len(a) + len(b) > room:  # _truncate_seq_pair
            (a if len(a) > len(b) else b).pop()
        assert shortened([first, second], room) == [len(a), len(b)]
    given = example("abcdef", "uvwxyz")
    assert spelled(row_of("classification", given)) == "[abcd]uvw]"
    # GPT's code clips each at half a row.
    delimited = row_of("classification", example("abcdef", "x"), layout="delimited")
    assert spelled(delimited) == "(abc/x)"


@pytest.mark.parametrize(
    ("first_piece", "seq_len", "word_at"),
    [
        # [ a b c d e f ]: words ab, c, def.
        (True, 10, [1, 3, 4]),
        (False, 10, [2, 3, 6]),
        # Cut after e: the first piece of def is there, its last is not.
        (True, 7, [1, 3, 4]),
        (False, 7, [2, 3]),
        (False, 3, []),
    ],
)
def test_words_are_read_at_their_first_or_last_piece(first_piece, seq_len, word_at):
    given = Example("0", "f:1", words=("ab", "c", "def"), label=(5, 6, 7))
    settings = {"spelling": True, "word_ids": {"ab": 1, "def": 2}, "vector_ids": {"c": 9}}
    result = made("tagging", given, seq_len=seq_len, first_piece=first_piece, **settings)
    (row,), size = result.rows, len(word_at)
    assert row["word_at"].tolist() == word_at and row["labels"].tolist() == [5, 6, 7][:size]
    np.testing.assert_array_equal(row["spelling"], character_ids(given.words[:size]))
    assert row["word_ids"].tolist() == [1, 0, 2][:size]
    assert row["vector_ids"].tolist() == [0, 9, 0][:size]
    assert result.cut == counts(examples=(size < 3, 1), words=(3 - size, 3))
    outputs = [{"tags": np.zeros(9, int), "probabilities": np.ones((9, 1))}]
    outputs[0]["tags"][size:] = -1
    (line,) = KINDS["tagging"].predict([given], ["x"] * 8, outputs, None)
    assert line["predicted"] == ["x"] * size + [""] * (3 - size)
    assert len(line["probabilities"]) == size


def counts(**units):
    return {
        f"{prefix}{unit}": count
        for unit, both in units.items()
        for prefix, count in zip(("", "of_"), both)
    }


A20, A10, A3 = "a" * 20, "a" * 10, "a" * 3


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("classification", {"texts": ("a" * 14,)}, {"examples": (0, 1), "pieces": (0, 14)}),
        ("classification", {"texts": (A20,)}, {"examples": (1, 1), "pieces": (6, 20)}),
        ("regression", {"texts": (A10, A20)}, {"examples": (1, 1), "pieces": (17, 30)}),
        (
            "choice",
            {"texts": (A10,), "choices": (A20, A3)},
            {"examples": (1, 1), "pieces": (17, 43)},
        ),
        # Windows of 9 pieces do not overlap here: from 0, 9 and 18.
        (
            "span",
            {"texts": ("a" * 6, A20), "answers": (Answer("aaa", 8),)},
            {"examples": (1, 1), "pieces": (2, 26), "answers": (1, 1)},
        ),
    ],
)
def test_every_kind_counts_what_did_not_fit(kind, given, expected):
    """16 positions: 14 pieces of a text, 13 of a pair."""
    result = made(kind, Example("0", "f:1", **given), seq_len=16, max_query=4)
    assert result.cut == counts(**expected)


def test_what_was_cut_in_words():
    cut = {"train": {"x": counts(examples=(0, 9), words=(0, 5))}}
    cut["test"] = {"x": counts(examples=(12, 18), words=(1920, 4440))}
    (line,) = cut_lines(cut)
    assert line.endswith("test: 12 of 18 examples (67 %), 1,920 of 4,440 words (43 %)")


# Two documents: each letter is a piece.
DOCUMENTS = (("a bc d", "efg h", "i"), ("s tu", "v wxyz"))


def sentences():
    for document in DOCUMENTS:
        words, at = tuple(" ".join(document).split()), 0
        for sentence in document:
            own = tuple(sentence.split())
            label = tuple(range(len(own)))
            yield Example(sentence, "f:1", words=own, label=label, document=words, document_at=at)
            at += len(own)


@pytest.mark.parametrize(
    ("seq_len", "rows"),
    [
        (11, ["abcdefghi"] * 3 + ["stuvwxyz"] * 2),
        # "efgh" has one more on each side; "abcd" and "i" have all on one.
        (8, ["abcdef", "defghi", "defghi", "stuvwx", "uvwxyz"]),
        # The odd one is on the right, if there is any.
        (7, ["abcde", "efghi", "efghi", "stuvw", "vwxyz"]),
        # A sentence that does not fit is cut as without a document.
        (6, ["abcd", "efgh", "fghi", "stuv", "vwxy"]),
    ],
)
@pytest.mark.parametrize("first_piece", [True, False])
def test_a_row_has_as_much_of_the_document_as_fits(seq_len, rows, first_piece):
    examples = list(sentences())
    settings = {"seq_len": seq_len, "first_piece": first_piece, "document_context": True}
    result = made("tagging", *examples, **settings)
    assert [spelled(row)[1:-1] for row in result.rows] == rows
    for row, given in zip(result.rows, examples):
        size = len(row["word_at"])
        letters = [word[0 if first_piece else -1] for word in given.words[:size]]
        assert [NAMES[i] for i in row["tokens"][row["word_at"]]] == letters
        assert size == len(given.words) or seq_len == 6


WORDS = WordsTokenizer([*SPECIALS, "the", "cat", "sat"], lowercase=False)


def test_models_of_characters_read_words_and_special_ids_as_their_own():
    settings = {"tokenizer": WORDS, "characters": True}
    begin, end = character_table(WORDS)[[WORDS.cls_id, WORDS.sep_id]]
    the, cat, dog, sat = character_ids(("the", "cat", "dog", "sat"))
    row = row_of("classification", example("the dog", "sat"), **settings)
    assert row["tokens"].tolist() == [2, 5, 1, 3, 7, 3]
    np.testing.assert_array_equal(row["characters"], [begin, the, dog, end, sat, end])
    row = row_of("classification", example("the cat sat", "dog"), seq_len=6, **settings)
    np.testing.assert_array_equal(row["characters"], [begin, the, cat, end, dog, end])
    given = Example("0", "f:1", words=("the", "dog"), label=(0, 1))
    row = row_of("tagging", given, **settings)
    np.testing.assert_array_equal(row["characters"], [begin, the, dog, end])
    assert row["word_at"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("kind", "given", "settings", "message"),
    [
        ("span", {"texts": ("who", "the")}, {"characters": True, "tokenizer": WORDS}, "characters"),
        ("span", {"texts": ("abcdefgh", "the")}, {}, "fills config.data.seq_len=10"),
    ],
)
def test_what_has_no_row_is_refused(kind, given, settings, message):
    with pytest.raises(UserError, match=message):
        made(kind, Example("0", "f:1", **given), **settings)


def test_choices_may_differ_in_number():
    odd = Example("1", "stub.tsv:3", texts=("a",), choices=("b",), label=0)
    result = made("choice", example("a", choices=("b", "c"), label=0), odd)
    assert most_texts(result.rows) == 2 and [row["documents"].max() for row in result.rows] == [
        2,
        1,
    ]
