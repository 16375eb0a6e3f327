"""Texts and given words as rows: which position is whose, under tokenizers that part words differently."""

import numpy as np
import pytest

from bertlab.data.characters import character_ids
from bertlab.data.encode import encode_documents
from bertlab.data.text_rows import RowEncoder
from bertlab.data.tokenizers import WordsTokenizer
from bertlab.data.vocabularies import SPECIALS

PIECES = [*SPECIALS, "new", "new-york", "in", "-", "."]
NEW, NEW_YORK, IN, DASH, STOP = range(5, 10)


@pytest.mark.parametrize("characters", [False, True])
def test_joined_words_are_found_whole_in_texts_and_among_words(characters):
    encoder = RowEncoder(WordsTokenizer(PIECES, lowercase=True, split="whitespace"), characters)
    row = encoder.text("In New-York new-x .")
    assert row.tokens.tolist() == [2, IN, NEW_YORK, NEW, DASH, 1, STOP, 3]
    assert len(row.names) == len(row.first) == 6
    given = encoder.words(["In", "New-York", "new-x"])
    first = given.tokens[given.first].tolist()
    assert first == [IN, NEW_YORK, 1 if characters else NEW] and given.names[1] in ("New-York", "new-york")
    if characters:
        assert row.names == ("in", "new-york", "new", "-", "x", ".")
        np.testing.assert_array_equal(row.characters[1:-1], character_ids(row.names))
        np.testing.assert_array_equal(given.characters[1:-1], character_ids(["in", "new-york", "new-x"]))


def test_words_that_are_unknown_are_counted_by_the_tokenizers_own_parts():
    tokenizer = WordsTokenizer(PIECES, lowercase=True, split="whitespace")
    (record,) = encode_documents(tokenizer, [("d", ("In New-York there", "new-x"))])
    assert record["tokens"].tolist() == [IN, NEW_YORK, 1, NEW, DASH, 1]
    assert record["unknown_words"].split("\n") == ["there", "x"]


def test_a_row_that_is_full_cuts_units_and_keeps_the_special_ids():
    encoder = RowEncoder(WordsTokenizer(PIECES, lowercase=False), room=4)
    row = encoder.words(["in", "new-", "in"])
    assert row.tokens.tolist() == [2, IN, NEW, 3]
    assert (row.first.tolist(), row.last.tolist(), row.names) == ([1, 2], [1], ("in", "new-"))
