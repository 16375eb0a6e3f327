"""Prepared corpora of every source and kind of tokenizer."""

import itertools
import json
import os
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from bertlab.config.defaults import base_config
from bertlab.data import prepare as prepare_module
from bertlab.data.batches import Batches
from bertlab.data.characters import character_ids, character_table
from bertlab.data.corpora import open_corpus
from bertlab.data.documents import Document
from bertlab.data.prepare import prepare
from bertlab.data.prepared import load_prepared
from bertlab.errors import UserError
from tests.data.test_tokenizers import write_byte_level

WORDS = ["".join(random.Random(n).choices("abcdefghij", k=2 + n % 5)) for n in range(200)]


def text_of(number):
    """Sentences with two spaces, line ends, paragraphs, no space between them, and no token."""
    rng = random.Random(number)
    lines = [" ".join(rng.choices(WORDS, k=8)).capitalize() + "." for _ in range(rng.randint(1, 9))]
    return f"{'  '.join(lines)}\n\nOwn{number} é. Twice here.\n犬。猫。\x01\x02\n{lines[0]} [MASK]"


def config(folder, corpus, **changes):
    data = base_config().data
    data.update(corpus=corpus, directory=str(folder / "new"), workers=1)
    data.tokenizer.update(kind="wordpiece", vocab_size=300)
    data.update_from_flattened_dict({key.replace("__", "."): changes[key] for key in changes})
    return data


def write_jsonl(path, numbers=range(120)):
    records = [json.dumps({"text": text_of(n)}) for n in numbers]
    path.write_text("\n".join([*records, records[0], '{"text": " "}']) + "\n")


def without_space(tokenizer, ids):
    return "".join(tokenizer.decode(ids).split())


def assert_is_the_text(data):
    """The arrays are the ids, sentences, sizes and words of the documents as a whole."""
    prepared = prepare(data)
    tokenizer = prepared.tokenizer
    found = {name: [] for name in prepared.statistics}
    for name in found:
        split = prepared.split(name)
        assert split.tokens.dtype == np.uint16
        bounds = split.token_bounds()
        documents = zip(bounds[:-1], bounds[1:], split.bytes, strict=True)
        found[name] = [(split.tokens[begin:end].tolist(), size) for begin, end, size in documents]
    everything = sorted(document for documents in found.values() for document in documents)
    documents = [document.parts for document in open_corpus(data).documents()]
    texts = ["".join(parts) for parts in documents]
    if tokenizer.has_whole_words:  # no word goes beyond its sentence
        ids = [list(itertools.chain(*map(tokenizer.encode, parts))) for parts in documents]
    else:
        ids = [tokenizer.encode(text) for text in texts]
    expected = [(text_ids, len(text.encode())) for text_ids, text in zip(ids, texts, strict=True)]
    assert everything == sorted(document for document in expected if document[0])
    train = prepared.split("train")
    np.testing.assert_array_equal(
        prepared.counts, np.bincount(train.tokens, minlength=tokenizer.vocab_size)
    )
    # Sentences end where the text's do. Their ids depend on the white space before them.
    sentences = {
        without_space(tokenizer, tokenizer.encode(part)) for parts in documents for part in parts
    }
    spans = itertools.pairwise(train.sentences)
    found = {without_space(tokenizer, train.tokens[begin:end]) for begin, end in spans}
    if tokenizer.kind != "json":  # whose pieces are bytes, perhaps of two sentences
        assert found <= sentences
    if train.words is not None:
        words = {word for text in texts for word in tokenizer.words(text)}
        is_unknown = train.tokens == tokenizer.unk_id
        np.testing.assert_array_equal(train.words[~is_unknown], train.tokens[~is_unknown])
        spelled = {bytes(row) for row in prepared.characters[train.words[is_unknown]]}
        assert spelled <= set(map(bytes, character_ids(sorted(words))))
    return prepared


def write_gpt2(folder):
    write_byte_level(folder, [text_of(n) for n in range(40)], ["<|endoftext|>"], 500)


TOKENIZERS = {
    "unigram": {"kind": "unigram", "vocab_size": 400},
    "bpe": {"kind": "bpe", "vocab_size": 400},
    "cased wordpiece": {"kind": "wordpiece", "vocab_size": 200},
    "uncased wordpiece": {"kind": "wordpiece", "vocab_size": 200, "lowercase": True},
    "words": {"kind": "words", "vocab_size": 150, "lowercase": True},
    "words by space": {"kind": "words", "vocab_size": 150, "split": "whitespace"},
    "sampled": {"kind": "words", "vocab_size": 150, "sample_sentences": 100, "seed": 3},
    "gpt2": {"path": "gpt2"},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_of_every_tokenizer_are_the_texts(tmp_path, name):
    write_jsonl(tmp_path / "a.jsonl")
    data = config(tmp_path, f"text:{tmp_path}/a.jsonl")
    data.tokenizer.update(TOKENIZERS[name])
    if data.tokenizer.path:
        (tmp_path / "gpt2").mkdir()
        write_gpt2(tmp_path / "gpt2")
        data.tokenizer.path = str(tmp_path / "gpt2")
    assert_is_the_text(data)


class FewReviews(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"review": tfds.features.Text(), "stars": np.int32})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        return ((n, {"review": text_of(n), "stars": n}) for n in range(30))


def write_text(folder):
    (folder / "b").mkdir()
    for name, numbers in {"a.train": range(40), "b/c.txt": range(40, 60)}.items():
        (folder / name).write_text("\n\n".join(text_of(n) for n in numbers))
    write_jsonl(folder / "d.jsonl", range(60, 80))
    return f"{folder}/a.train,{folder}/**/c.txt,{folder}/d.jsonl"


def write_splits(folder):
    line = " mr. <unk> is chairman of <unk> n.v. \n the company does n't own N N of it \n\n"
    for split in ("train", "valid", "test"):
        (folder / f"ptb.{split}.txt").write_text(line * (1500 if split == "train" else 3))
    return folder


def write_tfds(folder):
    FewReviews(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder / "few_reviews" / "1.0.0"


BOOK = "\n".join("  ".join(f"Sentence {m} of {n} many." for n in range(20)) for m in range(300))
SOURCES = {
    "text": (write_text, {}),
    "files": (write_text, {}),
    "splits": (
        write_splits,
        {"tokenizer__kind": "words", "tokenizer__split": "whitespace", "tokenizer__vocab_size": 19},
    ),
    "tfds": (write_tfds, {"tfds__field": "review"}),
    "synthetic": (None, {"synthetic__documents": 60, "synthetic__vocab_size": 30}),
    "pydocs": (None, {}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_ids_of_every_source_are_the_texts(tmp_path, kind, monkeypatch):
    # A part of the standard library, which takes some seconds as a whole.
    packages = {"argparse", "pydoc_data"}
    monkeypatch.setattr(sys, "stdlib_module_names", packages)
    write, changes = SOURCES[kind]
    name = f"{kind}:{write(tmp_path)}" if write else kind
    changes = {"tokenizer__kind": "words", "tokenizer__vocab_size": 30} | changes
    prepared = assert_is_the_text(config(tmp_path, name, **changes))
    assert min(split["documents"] for split in prepared.statistics.values()) >= 1


def test_long_documents_are_sections(tmp_path):
    (tmp_path / "a.txt").write_text(f"{BOOK}\n\n{BOOK}")
    changes = {"tokenizer__kind": "words", "tokenizer__vocab_size": 30}
    prepared = assert_is_the_text(config(tmp_path, f"text:{tmp_path}/a.txt", **changes))
    assert sum(split["documents"] for split in prepared.statistics.values()) == 6


def test_nothing_depends_on_processes_and_blocks(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl")
    corpus = f"text:{tmp_path}/a.jsonl"
    changes = {"tokenizer__kind": "words", "tokenizer__vocab_size": 60, "valid_fraction": 0.2}
    one = prepare(config(tmp_path, corpus, **changes))
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 2000)
    changes |= {"workers": 2, "directory": str(tmp_path / "two")}
    two = prepare(config(tmp_path, corpus, **changes))
    assert (two.fingerprint, two.statistics) == (one.fingerprint, one.statistics)
    for name in one.statistics:
        first, second = one.split(name), two.split(name)
        np.testing.assert_array_equal(first.tokens, second.tokens)
        rows = one.characters[first.words], two.characters[second.words]
        np.testing.assert_array_equal(*rows)


def test_batches_of_a_prepared_corpus_have_its_words_as_characters(tmp_path):
    write_jsonl(tmp_path / "a.jsonl")
    data = config(tmp_path, f"text:{tmp_path}/a.jsonl", format="full_sentences", characters=True)
    data.tokenizer.update(kind="words", vocab_size=60)
    prepared = prepare(data)
    batch = Batches(prepared, data)(0)
    tokens, characters = batch["tokens"], batch["characters"]
    table = character_table(prepared.tokenizer)
    is_unknown = tokens == prepared.tokenizer.unk_id
    np.testing.assert_array_equal(characters[~is_unknown], table[tokens[~is_unknown]])
    words = {word for n in range(120) for word in prepared.tokenizer.words(text_of(n))}
    spelled = set(map(bytes, character_ids(sorted(words))))
    assert is_unknown.sum() > 100
    assert {bytes(row.astype(np.uint16)) for row in characters[is_unknown]} <= spelled


class Generated:
    """A corpus that is nowhere."""

    def __init__(self, size):
        self.size = size

    def fingerprint(self):
        return str(self.size)

    def documents(self):
        rng = random.Random(0)
        for number in range(self.size):
            parts = (f" {' '.join(rng.choices(WORDS, k=10))}." for _ in range(60))
            yield Document(str(number), tuple(parts))


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 1 << 12)
    peaks = []
    for size in (25, 100):
        monkeypatch.setattr(prepare_module, "open_corpus", lambda _, size=size: Generated(size))
        data = config(tmp_path, "text:generated", tokenizer__sample_sentences=300)
        data.tokenizer.update(kind="words", vocab_size=100)
        tracemalloc.start()
        prepared = prepare(data)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(split["bytes"] for split in prepared.statistics.values()) > 2000 * size
    assert peaks[1] < 1.1 * peaks[0]


def test_a_killed_preparation_leaves_nothing_that_looks_whole(tmp_path):
    write_jsonl(tmp_path / "a.jsonl")
    program = f"""
import pathlib, signal
from bertlab.data import prepare
from tests.data.test_prepare import config

def wait(*arguments):
    print("waiting", flush=True)
    signal.pause()

prepare.write_json = wait  # just before the folder gets its name
prepare.prepare(config(pathlib.Path({str(tmp_path)!r}), "text:{tmp_path}/a.jsonl"))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("preparing")
    assert process.stdout.readline() == "waiting\n"
    process.kill()
    process.communicate()
    folders = [path.name for path in (tmp_path / "new").iterdir()]
    assert folders and all(name.startswith(".") for name in folders)
    prepared = prepare(config(tmp_path, f"text:{tmp_path}/a.jsonl"))
    assert sum(split["documents"] for split in prepared.statistics.values()) == 121
    assert not list((tmp_path / "new").glob(".*.tmp"))


@pytest.mark.slow
def test_a_script_without_a_main_guard_ends(tmp_path):
    """Its processes run it again, up to the lock that it holds."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"a b c d {n} " * 50 for n in range(5000)))
    program = f"""
import pathlib
from bertlab.data import prepare
from tests.data.test_prepare import config

data = config(pathlib.Path({str(tmp_path)!r}), "text:{tmp_path}/a.txt")
data.workers = 2
prepare.prepare(data)
"""
    (tmp_path / "script.py").write_text(program)
    command = [sys.executable, tmp_path / "script.py"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode and "put your script's code under" in done.stderr


def test_the_second_time_reads_no_document(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl")
    data = config(tmp_path, f"text:{tmp_path}/a.jsonl")
    first = prepare(data)
    monkeypatch.setattr(prepare_module, "_build", None)
    assert prepare(data).directory == first.directory
    assert load_prepared(first.directory).fingerprint == first.fingerprint


def test_the_fingerprint_covers_text_tokenizer_and_fractions(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "_build", lambda *_: None)
    monkeypatch.setattr(prepare_module, "load_prepared", lambda directory: directory.name)
    write_jsonl(tmp_path / "a.jsonl")
    corpus = f"text:{tmp_path}/a.jsonl"
    changes = (
        {},
        {"tokenizer__vocab_size": 301},
        {"tokenizer__kind": "words"},
        {"tokenizer__lowercase": True},
        {"tokenizer__split": "whitespace"},
        {"tokenizer__seed": 1},
        {"tokenizer__sample_sentences": 900},
        {"valid_fraction": 0.1},
        {"test_fraction": 0.1},
    )
    names = {prepare(config(tmp_path, corpus, **change)) for change in changes}
    same = prepare(config(tmp_path, corpus, seq_len=64, seed=1, directory=str(tmp_path / "b")))
    write_jsonl(tmp_path / "a.jsonl", range(119))
    names.add(prepare(config(tmp_path, corpus)))
    assert len(names) == 1 + len(changes) and same in names
    assert all(name.startswith("a-jsonl-") for name in names)


def test_mistakes_name_the_key_or_the_file_and_line(tmp_path):
    files = {
        "empty.txt": b"\n \n",
        "few.txt": b"One document.\n\nAnother document.\n",
        "latin.txt": b"Fine.\ncaf\xe9\n",
        "bad.jsonl": b'{"text": "Fine."}\n{"body": "a"}\n',
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    write_jsonl(tmp_path / "a.jsonl")
    cases = (
        ("none*", {}, r'config\.data\.corpus: ".*none\*" matches no file'),
        ("empty.txt", {}, "has 0 documents"),
        ("few.txt", {}, r"2 documents, and none is in the valid split.*config\.data\.valid_fracti"),
        ("latin.txt", {}, r"latin\.txt:2: not UTF-8"),
        ("bad.jsonl", {}, r"bad\.jsonl:2: "),
        ("a.jsonl", {"valid_fraction": 0.6, "test_fraction": 0.4}, "config.data.valid_fraction"),
        ("a.jsonl", {"tokenizer__kind": "letters"}, "config.data.tokenizer.kind"),
        ("a.jsonl", {"tokenizer__vocab_size": 10**5}, "config.data.tokenizer.vocab_size=100000"),
        ("a.jsonl", {"tokenizer__vocab_size": 10**5, "tokenizer__kind": "bpe"}, "vocab_size=100"),
        ("a.jsonl", {"tokenizer__path": str(tmp_path / "no")}, "config.data.tokenizer.path"),
    )
    for name, changes, message in cases:
        with pytest.raises(UserError, match=message):
            prepare(config(tmp_path, f"text:{tmp_path}/{name}", **changes))
    assert not [path for path in (tmp_path / "new").iterdir() if path.suffix != ".lock"]
    with pytest.raises(UserError, match="pydocs, text:GLOB"):
        open_corpus(ConfigDict({"corpus": "wiki:x"}))
    with pytest.raises(FileNotFoundError, match="meta"):
        load_prepared(tmp_path)
