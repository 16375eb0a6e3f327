"""Which documents are train, valid and test, and the sections of long ones."""

import json
import random

import pytest

from bertlab.data import documents, prepare
from bertlab.data.corpora import open_corpus
from bertlab.data.documents import Document, make_document, make_documents
from bertlab.data.prepared import Prepared
from bertlab.data.splits import Positions, Splits, position_of, read_in_splits, splits_of
from bertlab.errors import UserError

FRACTIONS = {"valid_fraction": 0.05, "test_fraction": 0.05}


def names(number):
    return [f"document {i}" for i in range(number)]


def test_split_is_by_hash_of_the_id():
    splits = [Splits(0.1, 0.3).of(name) for name in names(10_000)]
    # Five standard deviations of the binomial counts.
    assert abs(splits.count("valid") - 1000) < 150 and abs(splits.count("test") - 2000) < 200
    # These may not change: they decide what every run so far was trained and tested on.
    assert [Splits(0.05, 0.1).of(name) for name in ("json", "abc", "numpy.linalg")] == ["valid", "train", "train"]
    assert {Splits(0, 0).of(name) for name in names(1000)} == {"train"}
    # A larger validation part keeps the documents of the smaller one.
    assert all(Splits(0.2, 0.2).of(f"document {i}") == "valid" for i in range(10_000) if splits[i] == "valid")


def test_every_split_gets_a_document_where_there_are_three():
    generator = random.Random(0)
    for number in (3, 4, 5, 10, 45):
        for _ in range(50):
            found = [f"{generator.random()}" for _ in range(number)]
            plain = Splits(0.05, 0.1)
            splits = splits_of(found, FRACTIONS)
            assert {splits.of(name) for name in found} == {"train", "valid", "test"}
            if {plain.of(name) for name in found} == {"train", "valid", "test"}:
                assert splits == plain
            # What was held out by the fractions stays held out.
            assert all(splits.of(name) != "train" for name in found if plain.of(name) != "train")
    assert splits_of(names(1000), FRACTIONS) == Splits(0.05, 0.1)
    assert splits_of(names(2), FRACTIONS) == Splits(0.05, 0.1), "too few"


def test_only_the_nearest_document_is_moved_and_a_split_that_is_left_out_gets_none():
    found = sorted((name for name in names(100) if position_of(name) > 0.1), key=position_of)[::-1]
    splits = splits_of(found, FRACTIONS)
    assert [splits.of(name) for name in found[-3:]] == ["train", "test", "valid"]
    assert [splits.of(name) for name in found].count("train") == len(found) - 2
    for left_out, other in (("valid", "test"), ("test", "valid")):
        splits = splits_of(found, {**FRACTIONS, f"{left_out}_fraction": 0})
        assert [splits.of(name) for name in found] == ["train"] * (len(found) - 1) + [other]


def test_positions_of_parts_are_merged():
    found = names(40)
    whole, parts = Positions(FRACTIONS), [Positions(FRACTIONS) for _ in range(3)]
    for i, name in enumerate(found):
        whole.add(name)
        parts[i % 3].add(name)
    merged = Positions(FRACTIONS)
    for part in parts:
        merged.merge(part.valid, part.nearest)
    assert vars(merged) == vars(whole)


class Listed:
    """A corpus of one-sentence documents that counts how often it is read."""

    def __init__(self, ids):
        self.ids, self.passes = ids, 0

    def documents(self):
        self.passes += 1
        return (Document(name, ("A sentence.",)) for name in self.ids)


@pytest.mark.parametrize(("number", "passes"), [(1000, 1), (5, 2), (2, 1)])
def test_a_corpus_is_read_again_only_if_a_split_was_empty(number, passes):
    corpus = Listed(names(number))
    found, splits = read_in_splits(corpus, FRACTIONS, lambda read, splits: [splits.of(document.id) for document in read])
    assert corpus.passes == passes and splits == splits_of(corpus.ids, FRACTIONS)
    assert found == [splits.of(name) for name in corpus.ids]


def test_long_documents_are_cut_into_sections(monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(documents, "SECTION", 500)
    sentences = [f"Sentence {i} has some words." for i in range(100)]
    text = "\n".join(" ".join(sentences[i : i + 5]) for i in range(0, 100, 5))
    found = list(make_documents("a:1", text))
    size = sum(map(len, sentences))
    assert [document.id for document in found] == [f"a:1#{n}" for n in range(1, 1 + round(size / 500))]
    assert [sentence for document in found for sentence in document.sentences] == sentences
    # Each ends with the sentence that reaches its share.
    assert all(abs(sum(map(len, document.sentences)) - size / len(found)) <= 29 for document in found)
    short = " ".join(sentences[:35])
    assert sum(map(len, sentences[:35])) < 1000 and list(make_documents("a:1", short)) == [make_document("a:1", short)]
    assert [document.id for document in make_documents("a:1", "x" * 5000)] == ["a:1"], "one sentence"
    assert list(make_documents("a:1", " \n")) == []


def config_of(folder, **changes):
    tokenizer = {"kind": "words", "vocab_size": 30}
    return {
        "corpus": f"text:{folder}/*.jsonl",
        "directory": str(folder / "cache"),
        "workers": 1,
        "tokenizer": tokenizer,
        **changes,
    }


def write_books(folder, number, sentences):
    lines = [json.dumps({"text": " ".join(f"Book {b} says {s}." for s in range(sentences))}) for b in range(number)]
    (folder / "books.jsonl").write_text("\n".join(lines) + "\n")


def test_a_few_long_books_have_all_splits(tmp_path):
    write_books(tmp_path, 2, 10_000)
    prepared = prepare.prepare(config_of(tmp_path))
    assert isinstance(prepared, Prepared)
    sections = [document.id for document in open_corpus(f"text:{tmp_path}/*.jsonl").documents()]
    assert sections == [f"books.jsonl:{book}#{section}" for book in (1, 2) for section in (1, 2, 3)]
    assert sum(counts["documents"] for counts in prepared.statistics.values()) == 6
    assert all(counts["documents"] for counts in prepared.statistics.values())


def test_too_few_documents_are_refused_before_a_tokenizer_is_trained(tmp_path, monkeypatch):
    write_books(tmp_path, 2, 3)

    def train(*arguments):
        raise AssertionError("a tokenizer was trained")

    monkeypatch.setattr(prepare, "train_on_sample", train)
    with pytest.raises(UserError, match=r"2 document\(s\).* valid split.*config\.data\.valid_fraction"):
        prepare.prepare(config_of(tmp_path))
    write_books(tmp_path, 3, 3)
    with pytest.raises(AssertionError, match="was trained"):
        prepare.prepare(config_of(tmp_path))
    read = []
    monkeypatch.setattr(prepare, "read_in_splits", lambda *_: read.append(1))
    for wrong in (
        {"valid_fraction": 0.7, "test_fraction": 0.3},
        {"tokenizer": {"kind": "letters"}},
        {"tokenizer": {"path": "no"}},
    ):
        with pytest.raises(UserError):
            prepare.prepare(config_of(tmp_path, **wrong))
    assert read == []
