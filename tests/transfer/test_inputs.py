"""Rows of examples: what is shown of each task in the papers' layouts, and where its labels lie; with ids that are letters."""

import itertools

import numpy as np
import pytest

from bertlab.data.characters import SENTENCE_BEGIN, SENTENCE_END, character_ids
from bertlab.data.characters import boundary_ids as boundary
from bertlab.data.tokenizers import WordsTokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.inputs import Inputs, Layout, shortened, vocabulary_size
from bertlab.transfer.kinds import KINDS, Span

NAMES = "." * 10 + "abcdefghijklmnopqrstuvwxyz"


class LetterTokenizer:
    """One id a letter, from 10 for a; white space has none."""

    vocab_size = len(NAMES)
    pad_id, unk_id, cls_id, sep_id = 0, 1, 2, 3
    prefix_ids, suffix_ids = (2,), (3,)
    lowercase = False

    def pieces(self):
        return list(NAMES)

    def encode(self, text):
        return [NAMES.index(letter) for letter in "".join(text.split())]

    def encode_words(self, words):
        ends = np.cumsum([len(word) for word in words])
        return self.encode("".join(words)), [0, *ends[:-1].tolist()]

    def decode(self, ids):
        return "".join(NAMES[i] for i in ids)


class Unframed(LetterTokenizer):
    """As GPT-2's: nothing around a text, and one special id for everything."""

    pad_id = unk_id = cls_id = sep_id = 9
    prefix_ids, suffix_ids = (), ()


def example(*texts, **fields):
    return Example(id="0", where="stub.tsv:2", texts=texts, **fields)


def rows_of(kind, *examples, tokenizer=None, layout="pair", seq_len=10, symmetric=False, **settings):
    inputs = Inputs(tokenizer or LetterTokenizer(), Layout(layout, seq_len, **settings))
    return KINDS[kind](symmetric=symmetric).encode(inputs, examples)[0]


def row_of(kind, given, **settings):
    (row,) = rows_of(kind, given, **settings)
    return row


NEW = {len(NAMES): "(", len(NAMES) + 1: "/", len(NAMES) + 2: ")"}


def spelled(row, document=1):
    """The pieces of a document: [ for cls, ] for sep, ( / ) for start, delimiter and extract."""
    shown = {2: "[", 3: "]"} | NEW
    return "".join(shown.get(token) or NAMES[token] for token in row["tokens"][row["documents"] == document].tolist())


def test_a_text_and_a_pair_are_framed_as_berts():
    row = row_of("classification", example("ab c", label=1))
    np.testing.assert_array_equal(row["tokens"], [2, 10, 11, 12, 3, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(row["documents"], [1] * 5 + [0] * 5)
    np.testing.assert_array_equal(row["positions"], [0, 1, 2, 3, 4, 0, 0, 0, 0, 0])
    assert not row["segments"].any() and row["label"] == 1 and row["label"].dtype == np.int32
    first, row = rows_of("classification", example("b"), example("ab", "cde", label=0))
    assert spelled(first) == "[b]" and first["example_id"].tolist() == [0, 0] and first["label"] == -1
    np.testing.assert_array_equal(row["tokens"], [2, 10, 11, 3, 12, 13, 14, 3, 0, 0])
    np.testing.assert_array_equal(row["segments"], [0, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(row["documents"], [1] * 8 + [0] * 2)
    np.testing.assert_array_equal(row["positions"][:8], np.arange(8))
    assert row["example_id"].tolist() == [1, 0]


def test_roberta_has_two_separators_in_a_pair_and_one_at_the_end():
    row = row_of("classification", example("ab", "cd", label=0), double_separator=True)
    assert spelled(row) == "[ab]]cd]"
    np.testing.assert_array_equal(row["segments"], [0, 0, 0, 0, 0, 1, 1, 1, 0, 0])
    # The second separator takes a position from the longer text.
    assert spelled(row_of("classification", example("abcd", "cde", label=0), double_separator=True)) == "[abc]]cde]"


def test_the_longer_text_loses_its_end_and_of_equal_ones_the_second():
    for first, second, room in itertools.product(range(9), repeat=3):
        a, b = list(range(first)), list(range(second))
        while len(a) + len(b) > room:  # _truncate_seq_pair
            (a if len(a) > len(b) else b).pop()
        assert shortened([first, second], room) == [len(a), len(b)]
    assert shortened([9], 4) == [4] and shortened([2], 4) == [2]
    assert spelled(row_of("classification", example("abcdef", "uvwxyz", label=0))) == "[abcd]uvw]"
    assert spelled(row_of("classification", example("abcdefghijkl", label=0))) == "[abcdefgh]"


def test_the_delimited_layout_has_three_new_ids_after_the_last():
    row = row_of("classification", example("ab", label=1), layout="delimited", tokenizer=Unframed())
    v = len(NAMES)
    np.testing.assert_array_equal(row["tokens"], [v, 10, 11, v + 2, 9, 9, 9, 9, 9, 9])
    row = row_of("classification", example("ab", "cd", label=1), layout="delimited", tokenizer=Unframed())
    np.testing.assert_array_equal(row["tokens"], [v, 10, 11, v + 1, 12, 13, v + 2, 9, 9, 9])
    assert not row["segments"].any(), "GPT has no segments"
    config = {"transfer": {"layout": "delimited"}}
    assert vocabulary_size(config, Unframed()) == v + 3 == row["tokens"].max() + 1
    assert vocabulary_size({"transfer": {"layout": "pair"}}, Unframed()) == vocabulary_size({}, Unframed()) == v


@pytest.mark.parametrize("seq_len", [10, 11])
def test_the_delimited_layout_clips_each_of_a_pair_at_half_a_row(seq_len):
    row = lambda *texts: row_of("classification", example(*texts, label=0), layout="delimited", seq_len=seq_len)
    assert seq_len // 2 - 2 == 3
    assert spelled(row("abcdef", "x")) == "(abc/x)", "each by itself, though together they would fit"
    assert spelled(row("abcdef", "uvwxyz")) == "(abc/uvw)"
    assert spelled(row("abcdefghijkl")) == "(abcdefghijkl"[: seq_len - 1] + ")"


def test_a_pair_without_order_is_shown_both_ways_round():
    given = example("ab", "cde", label=1)
    row = row_of("classification", given, layout="delimited", symmetric=True)
    assert [spelled(row, 1), spelled(row, 2), row["tokens"].shape] == ["(ab/cde)", "(cde/ab)", (20,)]
    np.testing.assert_array_equal(row["documents"], [1] * 8 + [2] * 8 + [0] * 4)
    np.testing.assert_array_equal(row["positions"][:16], [*range(8), *range(8)])
    row = row_of("regression", example("ab", "cde", label=2.5), layout="delimited", symmetric=True)
    assert spelled(row, 2) == "(cde/ab)" and row["target"] == 2.5 and row["target"].dtype == np.float32
    # One order where it means something, where BERT reads, and of one text.
    assert row_of("classification", given, layout="delimited")["tokens"].shape == (10,)
    assert row_of("classification", given, symmetric=True)["documents"].max() == 1
    assert row_of("classification", example("ab", label=1), layout="delimited", symmetric=True)["documents"].max() == 1


@pytest.mark.parametrize(
    ("layout", "shown"), [("pair", ["[ab]c]", "[ab]de]", "[ab]f]"]), ("delimited", ["(ab/c)", "(ab/de)", "(ab/f)"])]
)
def test_choices_are_the_documents_of_one_row(layout, shown):
    row = row_of("choice", example("ab", choices=("c", "de", "f"), label=2), layout=layout)
    assert [spelled(row, n) for n in (1, 2, 3)] == shown
    assert row["tokens"].shape == (30,) and row["label"] == 2
    np.testing.assert_array_equal(row["documents"], [1] * 6 + [2] * 7 + [3] * 6 + [0] * 11)
    np.testing.assert_array_equal(row["positions"][:19], [*range(6), *range(7), *range(6)])
    if layout == "pair":
        np.testing.assert_array_equal(row["segments"][:19], [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1])
    # Full choices fill the row to its last position.
    full = row_of("choice", example("a" * 9, choices=("b" * 9, "c" * 9), label=0))
    np.testing.assert_array_equal(full["documents"], [1] * 10 + [2] * 10)


def test_questions_with_unequal_numbers_of_choices_are_refused():
    odd = Example(id="1", where="stub.tsv:3", texts=("a",), choices=("b",), label=0)
    with pytest.raises(UserError, match=r"stub.tsv:3: 1 choices.* stub.tsv:2 has 2"):
        rows_of("choice", example("a", choices=("b", "c"), label=0), odd)


@pytest.mark.parametrize(
    ("first_piece", "seq_len", "word_at"),
    [
        # [CLS] a b c d e f [SEP] and padding: words ab, c, def.
        (True, 10, [1, 3, 4]),
        (False, 10, [2, 3, 6]),
        # Cut after e: the first piece of def is there, its last is not.
        (True, 7, [1, 3, 4]),
        (False, 7, [2, 3]),
        # Cut after a.
        (True, 3, [1]),
        (False, 3, []),
    ],
)
def test_labels_lie_on_the_first_or_last_piece_of_their_word(first_piece, seq_len, word_at):
    given = Example("0", "f:1", words=("ab", "c", "def"), label=(5, 6, 7))
    row = row_of("tagging", given, seq_len=seq_len, first_piece=first_piece)
    rest = [-1] * (seq_len - len(word_at))
    np.testing.assert_array_equal(row["word_at"], word_at + rest)
    np.testing.assert_array_equal(row["labels"], [5, 6, 7][: len(word_at)] + rest)
    assert row["tokens"][np.flatnonzero(row["documents"])[-1]] == 3 and "spelling" not in row and "word_ids" not in row


def test_tagging_rows_spell_their_words_and_number_them():
    given = Example("0", "f:1", words=("ab", "c", "def"), label=(0, 0, 0))
    row = row_of("tagging", given, spelling=True, words={"ab": 1, "def": 2})
    assert row["spelling"].shape == (10, 50) and row["spelling"].dtype == np.int32
    np.testing.assert_array_equal(row["spelling"][:3], character_ids(("ab", "c", "def")))
    assert (row["spelling"][3:] == 260).all()
    np.testing.assert_array_equal(row["word_ids"], [1, 0, 2, 0, 0, 0, 0, 0, 0, 0])
    # Of a word without its labelled piece nothing is there.
    row = row_of("tagging", given, seq_len=7, first_piece=False, spelling=True, words={"ab": 1, "def": 2})
    assert (row["spelling"][2:] == 260).all() and row["word_ids"].tolist() == [1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("first_piece", "seq_len", "word_at"),
    [
        # [ a b c d ] x y z ]: words bc and yz.
        (True, 12, (2, 7)),
        (False, 12, (3, 8)),
        # [ a b c ] x y z ], [ a b ] x y ], [ a b ] x ]: a word that is cut off is the last piece that is left.
        (False, 9, (3, 7)),
        (True, 7, (2, 5)),
        (False, 7, (2, 5)),
        (True, 6, (2, 4)),
    ],
)
def test_word_pairs_say_where_their_words_are_after_truncation(first_piece, seq_len, word_at):
    given = example("a bc d", "x yz", targets=((2, 4), (2, 4)), label=1)
    row = row_of("word_pair", given, seq_len=seq_len, first_piece=first_piece)
    np.testing.assert_array_equal(row["word_at"], word_at)
    assert row["label"] == 1 and row["word_at"].dtype == np.int32
    if seq_len == 12:
        assert spelled(row) == "[abcd]xyz]" and (row["segments"][6:10] == 1).all()


def test_a_word_of_which_no_piece_is_left_is_refused():
    with pytest.raises(UserError, match=r"stub.tsv:2: no piece covers its word ' '"):
        row_of("word_pair", example("ab c", "d", targets=((2, 3), (0, 1)), label=0))


WORDS = WordsTokenizer([*SPECIALS, "the", "cat", "sat"], lowercase=False)


def test_models_of_characters_read_every_word_and_special_ids_as_their_own():
    row = row_of("classification", example("the dog", "sat", label=0), tokenizer=WORDS, characters=True)
    np.testing.assert_array_equal(row["tokens"][:7], [2, 5, 1, 3, 7, 3, 0])
    begin, end = boundary(SENTENCE_BEGIN), boundary(SENTENCE_END)
    the, dog, sat = character_ids(("the", "dog", "sat"))
    np.testing.assert_array_equal(row["characters"][:6], [begin, the, dog, end, sat, end])
    assert row["characters"].shape == (10, 50) and (row["characters"][6:] == 260).all()
    # Cut with the pieces.
    row = row_of("classification", example("the cat sat", "dog", label=0), tokenizer=WORDS, characters=True, seq_len=6)
    np.testing.assert_array_equal(row["characters"], [begin, the, character_ids(("cat",))[0], end, dog, end])
    row = row_of("tagging", Example("0", "f:1", words=("the", "dog"), label=(0, 1)), tokenizer=WORDS, characters=True)
    np.testing.assert_array_equal(row["characters"][:4], [begin, the, dog, end])
    np.testing.assert_array_equal(row["word_at"][:3], [1, 2, -1])
    row = row_of("choice", example("the", choices=("cat", "dog"), label=0), tokenizer=WORDS, characters=True)
    np.testing.assert_array_equal(row["characters"][5:10], [begin, the, end, dog, end])
    spans = example("who", "the cat", answers=(Answer("cat", 4),))
    with pytest.raises(UserError, match="reads characters"):
        row_of("span", spans, tokenizer=WORDS, characters=True)
    with pytest.raises(UserError, match="reads characters"):
        row_of("word_pair", example("the", "cat", targets=((0, 3), (0, 3))), tokenizer=WORDS, characters=True)


def test_a_span_task_has_a_row_for_every_window_of_every_question():
    questions = (
        Example("p", "f:1", texts=("qq", "abcdefgh"), answers=(Answer("ef", 4),)),
        Example("q", "f:2", texts=("r", "xyz"), answers=()),
    )
    layout = Layout("pair", 10, doc_stride=3, max_query=1)
    rows, windows, _ = Span().encode(Inputs(LetterTokenizer(), layout), questions)
    # [ q ] and the last ] leave six positions for the context: from a and from d; one for the second question.
    assert [spelled(row) for row in rows] == ["[q]abcdef]", "[q]defgh]", "[r]xyz]"]
    assert [row["example_id"].tolist() for row in rows] == [[0, 0], [0, 1], [1, 0]]
    assert [(int(row["start"]), int(row["end"])) for row in rows] == [(7, 8), (4, 5), (0, 0)]
    np.testing.assert_array_equal(rows[1]["context"], [0, 0, 0, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(rows[1]["segments"], [0, 0, 0, 1, 1, 1, 1, 1, 1, 0])
    assert [window.id for window in windows] == ["p", "p", "q"]
    delimited, *_ = Span().encode(Inputs(LetterTokenizer(), Layout("delimited", 10, max_query=1)), questions[1:])
    assert spelled(delimited[0]) == "(r/xyz)"


@pytest.mark.parametrize(
    ("seq_len", "places", "known"),
    [
        # [ a b c d e f ] and padding: words ab, c, def.
        (10, [[[1, 2], [3, 6]], [[3, 3], [1, 3]]], [1, 1]),
        # Cut after d: what is left of a span stands for it.
        (6, [[[1, 2], [3, 4]], [[3, 3], [1, 3]]], [1, 1]),
        # Cut after b: of the spans of c nothing is left.
        (4, [[[-1, -1], [-1, -1]], [[-1, -1], [-1, -1]]], [0, 0]),
    ],
)
def test_spans_of_words_are_those_of_their_pieces_after_truncation(seq_len, places, known):
    spans = (((0, 1), (1, 3)), ((1, 2), (0, 2)))
    given = Example("0", "f:1", words=("ab", "c", "def"), spans=spans, label=((2,), (0, 1)))
    row = row_of("span_pair", given, seq_len=seq_len)
    np.testing.assert_array_equal(row["target_spans"], places)
    np.testing.assert_array_equal(row["target_labels"], [[2, -1], [0, 1]])
    np.testing.assert_array_equal(row["target_known"], known)
    hidden = row_of("span_pair", Example("0", "f:1", words=("ab", "c", "def"), spans=spans), seq_len=seq_len)
    np.testing.assert_array_equal(hidden["target_spans"], places)
    assert (hidden["target_labels"] == -1).all() and not hidden["target_known"].any()


def test_a_sentence_with_many_targets_has_several_rows_and_one_prediction():
    # Target i asks for the i-th word of 40, and its class is i % 3.
    words, number = tuple("ab" * 20), 40
    spans = tuple(((i, i + 1),) for i in range(number))
    many = Example("m", "f:1", words=words, spans=spans, label=tuple((i % 3,) for i in range(number)))
    few = Example("f", "f:2", words=words[:2], spans=spans[:2], label=((), (1,)))
    rows = rows_of("span_pair", few, many, seq_len=42)
    assert [row["example_id"].tolist() for row in rows] == [[0, 0], [1, 0], [1, 1]]
    assert [row["target_known"].sum() for row in rows] == [2, 32, 8], "a target without a class is known, too"
    np.testing.assert_array_equal(rows[2]["target_spans"][:8, 0, 0], np.arange(33, 41))
    logits = np.where(np.stack([row["target_labels"] for row in rows]) == np.arange(3), 1.0, -1.0)
    lines = KINDS["span_pair"]().predict([few, many], ("x", "y", "z"), {"target_logits": logits}, None, None)
    assert lines[0] == {"id": "f", "gold": [[], ["y"]], "predicted": [[], ["y"]]}
    assert lines[1]["predicted"] == lines[1]["gold"] == [["xyz"[i % 3]] for i in range(number)]
