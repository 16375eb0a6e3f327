"""Sentences in their documents: who is around a sentence, that it is whole, and that each word is scored once."""

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.transfer.finetune import finetune
from bertlab.transfer.inputs import Inputs, Layout
from bertlab.transfer.kinds import KINDS
from bertlab.transfer.tasks import conll, load_task
from tests.transfer.test_inputs import LetterTokenizer

# Two documents of three and two sentences: every letter is one piece, and no letter is in both.
DOCUMENTS = (("a bc d", "efg h", "i"), ("s tu", "v wxyz"))


def text_of(documents, first="-DOCSTART- -X- O O\n\n"):
    sentence = lambda words: "".join(f"{word} X X {'I-PER' if len(word) > 1 else 'O'}\n" for word in words.split())
    return "".join(first + "".join(sentence(words) + "\n" for words in sentences) for sentences in documents)


@pytest.fixture
def examples(tmp_path):
    """The sentences of DOCUMENTS, from a file in CoNLL 2003's columns."""
    for name in ("train", "valid", "test"):
        (tmp_path / name).write_text(text_of(DOCUMENTS))
    task = conll("names", train="train", valid="valid", test="test")
    return load_task(task, {"directory": str(tmp_path)}).examples["test"]


def encoded(examples, **settings):
    """[CLS] letters [SEP] of each sentence's row as text, and the row."""
    inputs = Inputs(LetterTokenizer(), Layout("pair", **{"document_context": True, **settings}))
    rows, *_ = KINDS["tagging"]().encode(inputs, examples)
    names = LetterTokenizer().pieces()
    return ["".join(names[i] for i in row["tokens"][row["documents"] > 0][1:-1]) for row in rows], rows


def test_sentences_know_their_document(examples):
    assert [(example.document_at, " ".join(example.words)) for example in examples] == [
        (0, "a bc d"), (3, "efg h"), (5, "i"), (0, "s tu"), (2, "v wxyz")
    ]  # fmt: skip
    assert [" ".join(example.document) for example in examples] == ["a bc d efg h i"] * 3 + ["s tu v wxyz"] * 2


def test_a_row_has_as_much_of_the_document_as_it_holds_on_both_sides(examples):
    # [CLS] and [SEP] take two places.
    assert encoded(examples, seq_len=11)[0] == ["abcdefghi"] * 3 + ["stuvwxyz"] * 2
    # Six letters: "efgh" has one more on each side; "abcd" and "i" have nothing on one side, so all is on the other.
    assert encoded(examples, seq_len=8)[0] == ["abcdef", "defghi", "defghi", "stuvwx", "uvwxyz"]
    # Five: the odd one is on the right, if there is any.
    assert encoded(examples, seq_len=7)[0] == ["abcde", "efghi", "efghi", "stuvw", "vwxyz"]
    # Four hold the longest sentence alone; a sentence that does not fit is cut as without a document.
    assert encoded(examples, seq_len=6)[0] == ["abcd", "efgh", "fghi", "stuv", "vwxy"]
    assert encoded(examples, seq_len=6, document_context=False)[0] == ["abcd", "efgh", "i", "stu", "vwxy"]


@pytest.mark.parametrize("seq_len", range(8, 14))
@pytest.mark.parametrize("first_piece", [True, False])
def test_every_word_is_predicted_once_and_in_its_own_row(examples, seq_len, first_piece):
    shown, rows = encoded(examples, seq_len=seq_len, first_piece=first_piece)
    names = LetterTokenizer().pieces()
    for text, row, example in zip(shown, rows, examples, strict=True):
        assert "".join(example.words) in text, "the sentence is whole"
        assert set(text) <= set("".join(example.document)), "nothing is from another document"
        assert len(text) == min(seq_len - 2, len("".join(example.document))), "the row is full, or it shows the whole document"
        places = row["word_at"][row["word_at"] >= 0]
        letters = [word[0 if first_piece else -1] for word in example.words]
        assert [names[i] for i in row["tokens"][places]] == letters
        assert row["labels"][: len(letters)].tolist() == list(example.label) and (row["labels"][len(letters) :] == -1).all()
        assert not row["segments"].any() and (row["documents"][: len(text) + 2] == 1).all()
    tags = np.where(np.stack([row["labels"] for row in rows]) >= 0, np.stack([row["labels"] for row in rows]), -1)
    probabilities = np.eye(2)[np.maximum(tags, 0)]
    lines = KINDS["tagging"]().predict(examples, ("I-PER", "O"), {"tags": tags, "probabilities": probabilities}, None, None)
    assert sum(len(line["predicted"]) for line in lines) == 10 and all(line["predicted"] == line["gold"] for line in lines)


def test_words_before_the_first_document_have_none(tmp_path):
    (tmp_path / "a").write_text("x X X O\n\n" + text_of(DOCUMENTS[1:]) + text_of(DOCUMENTS[1:], first="-DOCSTART- -X- O O\n"))
    options = {"directory": str(tmp_path), "valid_fraction": 0.2, "test_fraction": 0.2}
    found = load_task(conll("names", train="a", valid="a", test="a"), options).examples["train"]
    assert [len(example.document) for example in found] == [0, 4, 4, 4, 4], "a document may begin without an empty line"


def test_a_task_without_documents_is_refused_before_anything_is_trained(tmp_path, bert_run):
    (tmp_path / "tags.conll").write_text("".join(f"the O\nword{i} B-X\n\n" for i in range(40)))
    (tmp_path / "tags.py").write_text('from bertlab.transfer.tasks import conll\n\nTASK = conll("tags", train="tags.conll")\n')
    task, asked = str(tmp_path / "tags.py"), {"transfer.document_context": True}
    with pytest.raises(UserError, match="document_context=True, but the examples of task 'tags' have no documents"):
        finetune(bert_run, task, tmp_path / "x", asked)
    (tmp_path / "tags.conll").write_text("".join(f"-DOCSTART- O\n\nthe O\nword{i} B-X\n\n" for i in range(40)))
    with pytest.raises(UserError, match=r"stores states of sentences without the document around them"):
        finetune(bert_run, task, tmp_path / "x", asked | {"transfer.features": True})
