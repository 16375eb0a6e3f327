"""Windows on contexts and answers from logits: characters of pieces, and run_squad's rules against
slow loops."""

import itertools
import math
import random
import re

import numpy as np
import pytest

from bertlab.data.tokenizers import SPECIALS, WordsTokenizer, load_tokenizer, train_tokenizer
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.inputs import Inputs, piece_offsets
from bertlab.transfer.kinds.span import best_answers, most_context, question_windows, window_bounds
from tests.data.test_tokenizers import GPT2, write_byte_level
from tests.hostile_text import hostile_texts
from tests.transfer.letters import LetterTokenizer, made, spelled

CONTEXTS = (
    "The cafe\u0301 in Zu\u0308rich, (founded 1895-1943) serves ﬁsh & ¾. İstanbul's ΑΣ. $1,000.50!",
    "ＦＵＬＬ ｗｉｄｔｈ text；它在北京大学（PKU）一九九八年成立，共有３０名学生。说：“好！”",
    "王小明於二〇〇八年出生在臺北市，他的父親是一位醫生。\u3000東京タワー한국어ไทย",
    "👩\u200d👩\u200d👧 met 😀 ❤\ufe0f at 12:30\u00a0pm; nai\u0308ve\t\tre\u0301s\nǅungla ŉ ẞ ắ ǰ",
    "नमस्ते दुनिया؛ مرحبا بِكُم! שָׁלוֹם… e\u0301\u0327x ΐ \ufb03 ℡ № ㍿ ½x x² a\u20dd",
)
KINDS = ("cased", "uncased", "unigram", "bpe", "words", "byte-level")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    generator = random.Random(0)
    words = [
        "".join(generator.choices("abcdefghij", k=generator.randint(1, 7))) for _ in range(300)
    ]
    texts = [" ".join(generator.choices(words, k=10)) + ", (ok)." for _ in range(300)]
    texts += [*CONTEXTS[:2]] * 3  # the others have characters that WordPiece does not know
    folder = tmp_path_factory.mktemp("bytes")
    write_byte_level(folder, texts, GPT2)
    return {
        "cased": train_tokenizer("wordpiece", texts, 350),
        "uncased": train_tokenizer("wordpiece", texts, 320, lowercase=True),
        "unigram": train_tokenizer("unigram", texts, 450),
        "bpe": train_tokenizer("bpe", texts, 450),
        "words": train_tokenizer("words", texts, 200),
        "byte-level": load_tokenizer(folder),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_piece_of_a_hostile_text_has_characters(tokenizers, kind):
    tokenizer = tokenizers[kind]
    for text in [*CONTEXTS, *hostile_texts(60, seed=3)]:
        ids, offsets = piece_offsets(text, tokenizer)
        assert ids.tolist() == tokenizer.encode_words(text.split())[0]
        assert (offsets[:, 0] < offsets[:, 1]).all() and (np.diff(offsets, axis=0) >= 0).all()
        covered = {place for a, b in offsets for place in range(a, b)}
        assert not any(text[place].isspace() for place in covered)
        words = re.finditer(r"\S+", text)
        assert all(covered & set(range(*match.span())) for match in words), "no word is left out"


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte-level"])
def test_lossless_pieces_are_exactly_their_characters(tokenizers, kind):
    tokenizer, exact = tokenizers[kind], 0
    without_spaces = "".join(random.Random(1).choices("abcdefgh東京é", k=400))
    for text in (*CONTEXTS, without_spaces):
        ids, offsets = piece_offsets(text, tokenizer)
        covered = {place for a, b in offsets for place in range(a, b)}
        assert covered == {i for i, c in enumerate(text) if not c.isspace()}
        for index, (a, b) in zip(ids.tolist(), offsets):
            piece = tokenizer.decode([index]).strip()
            if piece and "\ufffd" not in piece:
                exact += 1
                assert piece == text[a:b]
            else:
                assert b - a == 1  # a byte stands for its character
    assert exact > 100


def test_known_offsets():
    pieces = [*SPECIALS, *"ab", "##b", "##c", "ı", "i", "##x", "(", ")", "ss", "fi", "##n"]
    tokenizer = WordPieceTokenizer(pieces, lowercase=True)
    for text, expected in {
        "ÁBC": ["Á", "B", "C"],
        "a\u0301b\u0323c": ["a\u0301", "b\u0323", "c"],
        "İx(b)": ["İ", "x", "(", "b", ")"],
        "a\u200bb\u00adc": ["a", "b", "c"],
        "(漢字)": ["(", "漢", "字", ")"],
        "(qqq)ab": ["(", "qqq", ")", "a", "b"],
        "漢b字字字": ["漢", "b", "字", "字", "字"],
        "qqq-b": ["qqq", "-", "b"],
        "\u200b": ["\u200b"],
        "x" * 201: ["x" * 201],
    }.items():
        _, offsets = piece_offsets(text, tokenizer)
        assert [text[a:b] for a, b in offsets] == expected
        _, shifted = piece_offsets(f"a \n{text}\u3000a", tokenizer)
        np.testing.assert_array_equal(shifted[1:-1], offsets + 3)


# Windows.


@pytest.mark.parametrize(
    ("pieces", "room", "stride"),
    [(50, 20, 7), (50, 20, 30), (20, 20, 5), (21, 20, 5), (40, 7, 1), (0, 5, 5), (255, 250, 120)],
)
def test_windows_cover_all_pieces_and_each_has_its_most_context_in_one(pieces, room, stride):
    bounds = window_bounds(pieces, room, stride)
    assert sorted({i for first, end in bounds for i in range(first, end)}) == list(range(pieces))
    assert all(end - first <= room for first, end in bounds)
    steps = [b - a for (a, _), (b, _) in itertools.pairwise(bounds)]
    assert steps == [min(room, stride)] * len(steps)
    for position, found in enumerate(most_context(bounds, pieces)):
        # run_squad's _check_is_max_context
        scores = [
            min(position - first, end - 1 - position) + 0.01 * (end - first)
            if first <= position < end
            else -1
            for first, end in bounds
        ]
        assert found == scores.index(max(scores))


def question(context, answers=(), text="who is it", name="q"):
    answers = tuple(Answer(context[a:b], a) for a, b in answers)
    return Example(id=name, where="file:1", texts=(text, context), answers=answers)


def windows_of(example, tokenizer, seq_len=384, **settings):
    return question_windows(example, Inputs(tokenizer, "pair", seq_len, **settings))[0]


def test_rows_of_windows():
    first = Example("p", "f:1", texts=("qq", "abcdefgh"), answers=(Answer("ef", 4),))
    second = Example("q", "f:2", texts=("r", "xyz"))
    rows = made("span", first, second, doc_stride=3, max_query=1).rows
    # [ q ] and the last ] leave six positions for the context: from a and from d.
    assert [spelled(row) for row in rows] == ["[q]abcdef]", "[q]defgh]", "[r]xyz]"]
    assert [(int(row["start"]), int(row["end"])) for row in rows] == [(7, 8), (4, 5), (0, 0)]
    assert rows[1]["segments"].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    (row,) = made("span", second, layout="delimited").rows
    assert spelled(row) == "(r/xyz)"


def test_answers_that_a_window_cuts_are_not_in_it():
    tokenizer = WordsTokenizer([*SPECIALS, *(f"w{i}" for i in range(10, 40))], lowercase=False)
    context = " ".join(f"w{i}" for i in range(10, 40))
    for first, last in ((0, 0), (5, 9), (9, 12), (29, 29), (3, 25)):
        asked = question(context, [(4 * first, 4 * last + 3)], text="w11")
        for number, window in enumerate(windows_of(asked, tokenizer, 14, doc_stride=5)):
            shown = range(5 * number, min(5 * number + 10, 30))
            place = first - shown[0] + 3, last - shown[0] + 3
            expected = place if first in shown and last in shown else (0, 0)
            assert (window.start, window.end) == expected


# Answers.


def slow_answers(windows, logits, n_best, longest):
    """run_squad's loops: each question's text, and its odds of no answer."""
    best, null = {}, {}
    for window, both in zip(windows, logits):
        start, end = (x.tolist() for x in both)
        null[window.id] = min(null.get(window.id, math.inf), start[0] + end[0])
        order = [
            sorted(range(len(x)), key=x.__getitem__, reverse=True)[:n_best] for x in (start, end)
        ]
        found = best.setdefault(window.id, [("", -math.inf)])
        for i, j in itertools.product(*order):
            if window.offsets[i, 0] < 0 or window.offsets[j, 0] < 0:
                continue
            if not window.max_context[i] or j < i or j - i + 1 > longest:
                continue
            text = window.context[window.offsets[i, 0] : window.offsets[j, 1]]
            found.append((text, start[i] + end[j]))
    highest = {key: max(best[key], key=lambda item: item[1]) for key in null}
    return {key: (text, null[key] - score) for key, (text, score) in highest.items()}


@pytest.mark.parametrize(
    ("n_best", "longest", "ties"),
    [(20, 30, False), (20, 4, True), (3, 30, False), (1, 5, True), (100, 2, True)],
)
def test_answers_equal_a_search_of_all_spans(tokenizers, n_best, longest, ties):
    rng = np.random.default_rng(n_best)
    windows = []
    for index, context in enumerate([*CONTEXTS, "", " ", "abc", "\u200b"]):
        asked = question(context, name=f"q{index}")
        windows += windows_of(asked, tokenizers["bpe"], 32, doc_stride=8)
    logits = [rng.normal(0, 3, (2, len(window.document.pieces))) for window in windows]
    logits = [np.round(x / 3) if ties else x for x in logits]
    padded = [np.pad(x, ((0, 0), (0, 9)), constant_values=-1e30) for x in logits]
    found = best_answers(windows, padded, n_best, longest)
    expected = slow_answers(windows, logits, n_best, longest)
    assert {key: (x["predicted"], x["null_odds"]) for key, x in found.items()} == expected
    assert found["q5"]["predicted"] == "" and found["q5"]["null_odds"] == math.inf


def test_diverged_logits_have_no_answer():
    window = windows_of(question("abc"), LetterTokenizer())[0]
    logits = np.full((2, len(window.document.pieces)), np.nan)
    assert best_answers([window], [logits])["q"]["predicted"] == ""
