"""What a preparation needs is said before it starts, about right, and a disk without room for it is refused."""

import collections
import contextlib
import gzip
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertlab.data import needs
from bertlab.data.corpora import open_corpus
from bertlab.data.needs import needs_of, size
from bertlab.data.prepare import prepare
from bertlab.errors import UserError

OPTIONS = {"workers": 1, "tokenizer": {"kind": "words", "path": "", "sample_sentences": 1000}}


def write_files(folder, files, documents, words, pack=False):
    """Files of so many documents of so many words; returns the bytes of text without blanks around sentences."""
    generator, text = random.Random(0), 0
    vocabulary = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyzé", k=6)) for _ in range(5000)]
    for number in range(files):
        found = []
        for _ in range(documents):
            drawn = [generator.choices(vocabulary, k=10) for _ in range(words // 10)]
            sentences = [" ".join(words_of).capitalize() + "." for words_of in drawn]
            text += sum(len(sentence.encode()) for sentence in sentences)
            found.append(json.dumps({"text": "\n".join(sentences)}) + "\n")
        path = folder / (f"{number:03}.jsonl" + ".gz" * pack)
        path.write_bytes(gzip.compress("".join(found).encode()) if pack else "".join(found).encode())
    return text


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("files", "documents", "words"), [(1, 60, 12000), (40, 3, 1500), (4, 500, 50)])
def test_the_text_is_estimated_from_its_beginning(files, documents, words, pack, tmp_path, monkeypatch):
    """Of few long lines, of many files, and of many short lines; compressed, a reader is ahead of what it has given out."""
    text = write_files(tmp_path, files, documents, words, pack)
    monkeypatch.setattr(needs, "READ", text // 4)
    found = needs_of(open_corpus(f"text:{tmp_path}/*"), OPTIONS)
    assert found.text == pytest.approx(text, rel=0.35)
    monkeypatch.setattr(needs, "READ", 10 * text)
    assert needs_of(open_corpus(f"text:{tmp_path}/*"), OPTIONS).text == text, "a small corpus is read whole"


def test_only_the_beginning_is_read_and_each_file_is_asked_for_its_size_once(tmp_path, monkeypatch):
    text = write_files(tmp_path, 30, 20, 100)
    monkeypatch.setattr(needs, "READ", text // 10)
    corpus, opened, asked = open_corpus(f"text:{tmp_path}/*"), [], collections.Counter()
    stat, part = Path.stat, type(corpus).part
    monkeypatch.setattr(Path, "stat", lambda path, **options: (asked.update([path.name]), stat(path, **options))[1])
    monkeypatch.setattr(type(corpus), "part", lambda corpus, index: (opened.append(index), part(corpus, index))[1])
    needs_of(corpus, OPTIONS)
    assert opened == [0, 1, 2]
    assert sum(1 for _ in corpus.documents()) == 600 and max(asked.values()) == 1


def test_it_is_said_before_it_starts_and_is_not_far_from_what_it_took(tmp_path, capsys):
    text = write_files(tmp_path, 2, 300, 200)
    config = {"corpus": f"text:{tmp_path}/*.jsonl", "directory": str(tmp_path / "cache"), **OPTIONS}
    config["tokenizer"] = {"kind": "words", "vocab_size": 4000}
    said = []
    prepared = prepare(config, progress=lambda *_: said.append(capsys.readouterr().out))
    assert said[0] == f"preparing about {size(text)} of text needs about 834 kB of disk and up to 252 MB of memory\n"
    assert text == 867_047 and not any(said[1:])
    took = sum(path.stat().st_size for path in prepared.directory.rglob("*") if path.is_file())
    assert took == pytest.approx(834e3, rel=0.25), "random words: text compresses better"
    prepare(config)
    assert capsys.readouterr().out == "", "it is there"


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    write_files(tmp_path, 1, 300, 200)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    config = {"corpus": f"text:{tmp_path}/*.jsonl", "directory": str(tmp_path / "a" / "cache")}
    with pytest.raises(
        UserError, match=r"a/cache has 100 kB of free disk, and preparing about \d+ kB of text needs about \d+ kB"
    ):
        prepare(config)
    assert not (tmp_path / "a").exists()


def test_who_waited_for_another_preparation_reads_and_says_nothing(tmp_path, monkeypatch, capsys):
    write_files(tmp_path, 1, 300, 200)
    config = {"corpus": f"text:{tmp_path}/*.jsonl", "directory": str(tmp_path / "cache"), **OPTIONS}
    config["tokenizer"] = {"kind": "words", "vocab_size": 4000}
    done = shutil.copytree(prepare(config | {"directory": str(tmp_path / "other")}).directory, tmp_path / "done")

    @contextlib.contextmanager
    def waited(directory, wait):
        shutil.copytree(done, directory)
        yield

    monkeypatch.setattr("bertlab.data.prepare.alone", waited)
    monkeypatch.setattr("bertlab.data.prepare.needs_of", lambda *_: pytest.fail("it read the text"))
    capsys.readouterr()
    assert prepare(config).statistics["train"]["documents"] > 200 and capsys.readouterr().out == ""


def test_a_sample_of_the_tokenizer_takes_its_memory_and_workers_theirs():
    corpus = SimpleNamespace(share_read=0.5, documents=lambda: iter([SimpleNamespace(sentences=("a" * 1000,) * 5000)]))
    of = lambda workers=1, **tokenizer: needs_of(corpus, {"workers": workers, "tokenizer": OPTIONS["tokenizer"] | tokenizer})
    assert of().text == 10_000_000 and of().memory == 250e6 + 0.1 * (10e6 + 60 * 10_000)
    assert of(kind="unigram").memory - of().memory == pytest.approx(20e6), "ten thousand sentences, a tenth of them sampled"
    assert of(path="x").memory == 250e6 and of(path="x", workers=4).memory == 5 * 250e6
    corpus.documents = lambda: iter([SimpleNamespace(sentences=("a" * 100,) * 900)])
    assert of(path="x", workers=4).memory == 250e6, "no worker is started for so little text"
    assert needs_of(SimpleNamespace(share_read=None), OPTIONS) is None
