import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import ml_collections
import numpy as np
import pytest
import tensorflow_datasets as tfds

from bertlab import cli
from bertlab.data import corpora, duplicates
from bertlab.data import prepare as prepare_module
from bertlab.data.corpora import open_corpus
from bertlab.data.prepare import cache_directory, describe, prepare, split_of
from bertlab.data.prepared import PreparedSource, load_prepared
from bertlab.data.text_corpus import TextCorpus
from bertlab.data.tokenizers import load_tokenizer, train_tokenizer
from bertlab.errors import UserError
from bertlab.files import temporary_folder


@pytest.fixture
def text(tmp_path):
    """300 documents; each has a word of its own, and some have a sentence without any token for WordPiece."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 6))) for _ in range(200)]
    path = tmp_path / "text.jsonl"
    with path.open("w") as file:
        for i in range(300):
            lines = [" ".join(generator.choices(words, k=8)).capitalize() + "." for _ in range(generator.randint(1, 9))]
            file.write(json.dumps({"text": "\n".join([*lines, "\x01\x02", f"Own{i} é."])}) + "\n")
    return path


@pytest.fixture
def config(tmp_path, text):
    return {
        "corpus": f"text:{text}",
        "directory": str(tmp_path / "cache"),
        "workers": 1,
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300},
    }


def changed(config, **changes):
    tokenizer = {**config["tokenizer"], **changes.pop("tokenizer", {})}
    return {**config, **changes, "tokenizer": tokenizer}


def records(prepared, split):
    source = prepared.source(split)
    return [source[i] for i in range(len(source))]


def finished(config):
    return sorted(path.name for path in Path(config["directory"]).iterdir() if not path.name.startswith("."))


def test_records_are_the_tokenised_documents(config):
    prepared = prepare(config)
    documents = list(open_corpus(config["corpus"]).documents())
    found = {}
    for split in ("train", "valid", "test"):
        for record in records(prepared, split):
            assert sorted(record) == ["bytes", "document", "id", "sentence_lengths", "tokens"]
            assert record["tokens"].dtype == record["sentence_lengths"].dtype == np.int32
            assert type(record["bytes"]) is type(record["document"]) is int
            document = documents[record["document"]]
            assert record["id"] == document.id
            assert split == split_of(document.id, 0.05, 0.05)
            encoded = [prepared.tokenizer.encode(sentence) for sentence in document.sentences]
            assert [] in encoded
            np.testing.assert_array_equal(record["sentence_lengths"], [len(ids) for ids in encoded if ids])
            np.testing.assert_array_equal(record["tokens"], [index for ids in encoded for index in ids])
            assert record["bytes"] == len("".join(document.sentences).encode())
            found[record["document"]] = split
    assert sorted(found) == list(range(300))
    assert prepared.fingerprint == prepare(config).fingerprint


def test_statistics(config):
    prepared = prepare(config)
    for split, counts in prepared.statistics.items():
        found = records(prepared, split)
        assert {name: count for name, count in counts.items() if "duplicate" not in name and "in_train" not in name} == {
            "documents": len(found),
            "sentences": sum(len(record["sentence_lengths"]) for record in found),
            "tokens": sum(len(record["tokens"]) for record in found),
            "bytes": sum(record["bytes"] for record in found),
            "unknown": sum(int((record["tokens"] == prepared.tokenizer.unk_id).sum()) for record in found),
        }
        assert f"{counts['tokens']:,}" in describe(prepared)
    assert set(prepared.statistics) == {"train", "valid", "test"}
    assert str(prepared.directory) in describe(prepared) and "wordpiece, 300 pieces, cased" in describe(prepared)


def test_repeated_text_is_counted(config, text, monkeypatch):
    with text.open("a") as file:
        for i in range(40):
            twice = "Twice here. Twice here. \x01" if i % 4 else "Case counts."
            file.write(json.dumps({"text": f"{twice}\nOwn {i}."}) + "\n")
            file.write(json.dumps({"text": "The same document.\n\x01\n\x01"}) + "\n")
            file.write(json.dumps({"text": "the same document." if i % 3 else "The same. document."}) + "\n")
    config = changed(config, valid_fraction=0.2)
    documents = {split: [] for split in ("train", "valid", "test")}
    encode = prepare(config).tokenizer.encode
    for document in open_corpus(config["corpus"]).documents():
        # What has no token is not there, so it cannot make texts differ.
        sentences = tuple(sentence for sentence in document.sentences if encode(sentence))
        documents[split_of(document.id, 0.2, 0.05)].append(sentences)
    expected = {}
    for split, found in documents.items():
        units = {"documents": found, "sentences": [sentence for sentences in found for sentence in sentences]}
        of_train = {
            "documents": set(documents["train"]),
            "sentences": {s for sentences in documents["train"] for s in sentences},
        }
        expected[split] = {f"duplicate_{unit}": len(texts) - len(set(texts)) for unit, texts in units.items()}
        if split != "train":
            counts = {f"{unit}_in_train": sum(text in of_train[unit] for text in texts) for unit, texts in units.items()}
            expected[split] |= counts
    assert min(expected["train"].values()) > 30 and min(expected["valid"].values()) > 5
    monkeypatch.setattr(prepare_module, "_CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(prepare_module, "_DOCUMENTS_PER_SHARD", 50)
    monkeypatch.setattr(duplicates, "_HASHES_AT_ONCE", 100)
    for number, workers in enumerate((1, 2)):
        prepared = prepare(changed(config, workers=workers, directory=f"{config['directory']}-{number}"))
        assert {s: {name: counts[name] for name in expected[s]} for s, counts in prepared.statistics.items()} == expected
        assert sorted(path.name for path in prepared.directory.iterdir()) == [
            "counts.npy",
            "dataset",
            "prepared.json",
            "tokenizer",
        ]
    share = expected["train"]["duplicate_sentences"] / prepared.statistics["train"]["sentences"]
    assert f"{share:.2%}" in describe(prepared)


def test_counts_are_of_the_train_split(config, monkeypatch):
    monkeypatch.setattr(prepare_module, "_CHUNK_CHARACTERS", 2000)
    prepared = prepare(config)
    expected = np.zeros(prepared.tokenizer.vocab_size, np.int64)
    for record in records(prepared, "train"):
        np.add.at(expected, record["tokens"], 1)
    np.testing.assert_array_equal(prepared.counts, expected, strict=True)
    assert (expected == 0).any() and expected.sum() == prepared.statistics["train"]["tokens"]
    np.testing.assert_array_equal(load_prepared(prepared.directory).counts, expected)


@pytest.mark.parametrize("lowercase", [False, True])
def test_unknown_words_are_kept(config, lowercase):
    prepared = prepare(changed(config, tokenizer={"kind": "words", "vocab_size": 100, "lowercase": lowercase}))
    documents = list(open_corpus(config["corpus"]).documents())
    size, pieces = prepared.tokenizer.vocab_size, prepared.tokenizer.pieces()
    for split in ("train", "valid"):
        plain, source = prepared.source(split), prepared.source(split, keep_unknown=True)
        assert repr(plain) == repr(source)
        for index in range(len(source)):
            record = source[index]
            text = " ".join(documents[record["document"]].sentences)
            words = re.findall(r"\w+|[^\w\s]", text.lower() if lowercase else text)
            assert [
                pieces[token] if token < size else source.unknown.words([token])[0] for token in record["tokens"].tolist()
            ] == words
            assert not record["tokens"].flags.writeable
            record["tokens"] = np.where(record["tokens"] < size, record["tokens"], prepared.tokenizer.unk_id)
            np.testing.assert_equal(record, plain[index])
    assert len(source.unknown.ids(["new", "newer", "new"])) == 3
    assert source.unknown.ids(["new"]) == source.unknown.ids(["new"]) != source.unknown.ids(["newer"])


def test_it_is_a_tfds_dataset_of_array_records(config):
    prepared = prepare(config)
    builder = tfds.builder_from_directory(prepared.directory / "dataset")
    assert {split: info.num_examples for split, info in builder.info.splits.items()} == {
        split: counts["documents"] for split, counts in prepared.statistics.items()
    }
    example = builder.as_data_source("valid")[3]
    np.testing.assert_array_equal(example["tokens"], prepared.source("valid")[3]["tokens"])
    assert list((prepared.directory / "dataset").glob("*.array_record-*"))
    assert "tensorflow" not in sys.modules


def test_shards(config, monkeypatch):
    whole = prepare(config)
    monkeypatch.setattr(prepare_module, "_DOCUMENTS_PER_SHARD", 50)
    sharded = prepare(changed(config, directory=config["directory"] + "2"))
    assert len(list((sharded.directory / "dataset").glob("*-train.*"))) == -(-whole.statistics["train"]["documents"] // 50)
    np.testing.assert_equal(records(sharded, "train"), records(whole, "train"))


def test_result_does_not_depend_on_processes(config, monkeypatch):
    alone = prepare(config)
    monkeypatch.setattr(prepare_module, "_CHUNK_CHARACTERS", 2000)
    together = prepare(changed(config, workers=2, directory=config["directory"] + "2"))
    assert together.directory.name == alone.directory.name
    for split in ("train", "valid", "test"):
        np.testing.assert_equal(records(together, split), records(alone, split))


def test_second_time_does_nothing(config, monkeypatch):
    first = prepare(config)

    def state():
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.directory.parent.rglob("*")}

    def documents(self):
        raise AssertionError("the corpus was read again")

    before = state()
    monkeypatch.setattr(TextCorpus, "documents", documents)
    second = prepare(ml_collections.ConfigDict(changed(config, workers=2)))
    assert state() == before
    assert (second.directory, second.statistics) == (first.directory, first.statistics)
    assert load_prepared(first.directory).fingerprint == first.fingerprint


def test_fingerprint_covers_text_and_options(config, text):
    names = {prepare(config).directory.name}
    for change in (
        {"tokenizer": {"vocab_size": 301}},
        {"tokenizer": {"kind": "words"}},
        {"tokenizer": {"lowercase": True}},
        {"tokenizer": {"seed": 1}},
        {"tokenizer": {"sample_sentences": 900}},
        {"valid_fraction": 0.1},
        {"test_fraction": 0.1},
    ):
        names.add(prepare(changed(config, **change)).directory.name)
    with text.open("a") as file:
        file.write('{"text": "One more."}\n')
    names.add(prepare(config).directory.name)
    assert len(names) == 9
    assert all(re.fullmatch(r"text-text-jsonl-[0-9a-f]{16}", name) for name in names)


def test_split_is_by_hash_of_the_id():
    splits = [split_of(f"document {i}", 0.1, 0.2) for i in range(10_000)]
    # Five standard deviations of the binomial counts.
    assert abs(splits.count("valid") - 1000) < 150 and abs(splits.count("test") - 2000) < 200
    # These may not change: they decide what every run so far was trained and tested on.
    assert [split_of(name, 0.05, 0.05) for name in ("json", "abc", "numpy.linalg")] == ["valid", "train", "train"]
    assert {split_of(f"document {i}", 0, 0) for i in range(1000)} == {"train"}
    # A larger validation part keeps the documents of the smaller one.
    assert all(split_of(f"document {i}", 0.2, 0) == "valid" for i in range(10_000) if splits[i] == "valid")


def test_tokenizer_learns_from_training_documents_only(config):
    config = changed(config, tokenizer={"kind": "words", "vocab_size": 450}, valid_fraction=0.2)
    prepared = prepare(config)
    own = {piece for piece in prepared.tokenizer.pieces() if piece.startswith("Own")}
    in_training = {f"Own{record['document']}" for record in records(prepared, "train")}
    assert own and own < in_training
    expected = train_tokenizer(
        "words",
        (s for d in open_corpus(config["corpus"]).documents() if split_of(d.id, 0.2, 0.05) == "train" for s in d.sentences),
        450,
        seed=0,
    )
    assert prepared.tokenizer.pieces() == expected.pieces()


def test_given_tokenizers(config, tmp_path):
    trained = prepare(config)
    given = prepare(changed(config, tokenizer={"path": str(trained.directory / "tokenizer"), "kind": "bpe"}))
    assert given.directory != trained.directory
    np.testing.assert_equal(records(given, "test"), records(trained, "test"))

    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", *"[UNK] [CLS] [SEP] [MASK] a ##b c".split(), *"abcdefghij"]))
    bert = prepare(changed(config, tokenizer={"path": str(vocabulary)}))
    assert bert.tokenizer.lowercase and bert.tokenizer.pieces() == load_tokenizer(vocabulary).pieces()
    (tmp_path / "moved").mkdir()
    vocabulary.rename(tmp_path / "moved" / "vocab.txt")
    assert prepare(changed(config, tokenizer={"path": str(tmp_path / "moved" / "vocab.txt")})).directory == bert.directory
    with pytest.raises(UserError, match=r"config.data.tokenizer.path"):
        prepare(changed(config, tokenizer={"path": str(vocabulary)}))


def test_source_for_grain(config):
    prepared = prepare(config)
    source = prepared.source("valid")
    assert repr(source) == f"PreparedSource(fingerprint={prepared.fingerprint}, split=valid)"
    first = source[0]
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000  # without open files
    other = pickle.loads(pickled)
    assert isinstance(other, PreparedSource) and repr(other) == repr(source) and len(other) == len(source)
    np.testing.assert_equal(other[0], first)
    np.testing.assert_equal(source[np.int64(len(source) - 1)], source[len(source) - 1])
    assert not first["tokens"].flags.writeable


def test_splits_may_be_left_out(config):
    prepared = prepare(changed(config, valid_fraction=0, test_fraction=0.0))
    assert list(prepared.statistics) == ["train"] and len(prepared.source("train")) == 300
    with pytest.raises(UserError, match=r'no split "valid" in .*, only train; set config.data.valid_fraction above 0'):
        prepared.source("valid")


def test_documents_without_tokens_are_left_out(config, text):
    with text.open("a") as file:
        file.write('{"text": "\\u0001"}\n{"text": "Abc."}\n')
    prepared = prepare(changed(config, valid_fraction=0, test_fraction=0))
    assert prepared.statistics["train"]["documents"] == 301
    assert records(prepared, "train")[-1]["document"] == 301


def test_errors(config, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "few.txt").write_text("One document.\n\nAnother document.\n")
    (tmp_path / "control.txt").write_text("\x01\n")
    given = {"kind": "words", "vocab_size": 8}
    few = changed(config, corpus=f"text:{tmp_path}/few.txt", tokenizer=given)
    cases = [
        (changed(config, corpus=f"text:{tmp_path}/empty.txt"), "holds no text"),
        (changed(config, corpus=f"text:{tmp_path}/none*"), "matches no file"),
        (few, r"has 2 document\(s\), and none of them fell into the valid split: use a corpus of more documents"),
        (changed(few, valid_fraction=0.5, test_fraction=0.4999999), "none of them fell into|no text to train on"),
        (changed(config, valid_fraction=0.5, test_fraction=0.5), r"^config.data.valid_fraction=0.5 and config.data.test.* sum"),
        (changed(config, valid_fraction=-0.1), "must not be negative"),
        (changed(config, tokenizer={"vocab_size": 100_000}), "more than the text supports"),
        (changed(config, tokenizer={"kind": "letters"}), r"kind=.letters. \(config.data.* or --kind\) is unknown"),
    ]
    for wrong, message in cases:
        with pytest.raises(UserError, match=message):
            prepare(wrong)
    vocabulary = prepare(config).directory / "tokenizer"
    with pytest.raises(UserError, match="is empty: it has no document with a token"):
        prepare(changed(config, corpus=f"text:{tmp_path}/control.txt", tokenizer={"path": str(vocabulary)}))
    with pytest.raises(UserError, match="is not a prepared corpus"):
        load_prepared(tmp_path)
    # Nothing but the one that worked is left.
    assert os.listdir(config["directory"]) == [vocabulary.parent.name]


def test_progress_ends_where_it_should(config):
    calls = []
    prepare(config, progress=lambda *call: calls.append(call))
    labels = list(dict.fromkeys(label for label, _, _ in calls))
    assert labels == ["reading for the tokenizer", "training the tokenizer", "tokenising"]
    last = {label: (done, total) for label, done, total in calls}
    assert last == {labels[0]: (300, 300), labels[1]: (1, 1), labels[2]: (300, 300)}


def test_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTLAB_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path and cache_directory("/a") == Path("/a")
    monkeypatch.delenv("BERTLAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("") == tmp_path / ".cache" / "bertlab"


def test_interruption_by_an_error_leaves_nothing(config):
    def interrupt(label, done, total):
        if label == "tokenising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, progress=interrupt)
    assert os.listdir(config["directory"]) == []
    assert prepare(config).statistics["train"]["documents"] > 200


def prepare_and_wait(config, chunk, event):
    """Run by a process that will be killed: prepares, and waits for ever when it has come to `event`."""
    prepare_module._CHUNK_CHARACTERS = chunk

    def wait(label, done, total):
        if label == event and (done or label != "tokenising"):
            print("ready", flush=True)
            signal.pause()

    prepare(config, progress=wait)


@pytest.mark.parametrize("event", ["training the tokenizer", "tokenising"])
def test_killed_preparation(config, event):
    config = changed(config, workers=2)
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
import test_prepare
test_prepare.prepare_and_wait(*json.loads(sys.argv[2]))
"""
    arguments = [str(Path(__file__).parent), json.dumps([config, 2000, event])]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    # Its worker processes hold the same output: it ends when they have ended too.
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert finished(config) == []
    [abandoned] = os.listdir(config["directory"])
    assert f"-{process.pid}-" in abandoned

    prepared = prepare(config)
    assert os.listdir(config["directory"]) == [prepared.directory.name]
    assert sum(counts["documents"] for counts in prepared.statistics.values()) == 300


def test_apache_beam_is_asked_for_by_name_and_not_needed_otherwise(config, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    command = ["prepare", f"--corpus={config['corpus']}", f"--config.data.directory={config['directory']}"]
    command += ["--config.data.tokenizer.vocab_size=400", "--config.data.workers=1"]
    assert cli.main([*command, "--beam_runner=DirectRunner"]) == 2
    assert "pip install 'bertlab[beam]'" in capsys.readouterr().err
    assert not Path(config["directory"]).exists()
    assert cli.main(command) in (None, 0) and len(finished(config)) == 1


def test_preparations_that_still_run_are_left_alone(config):
    root = Path(config["directory"])
    root.mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    with temporary_folder(root, prepare_module.TEMPORARY) as own:
        elsewhere, left = (root / own.name.replace(f"-{os.getpid()}-", end) for end in ("-elsewhere-1-", f"-{ended.pid}-"))
        elsewhere.mkdir()
        left.mkdir()
        prepare(config)
        assert own.exists() and elsewhere.exists() and not left.exists()
    assert not own.exists()


def test_two_preparations_at_once(config):
    inner = []

    def prepare_inside(label, done, total):
        # When the outer one has nearly finished, another one does everything.
        if label == "tokenising" and done == total and not inner:
            inner.append(None)
            inner[0] = prepare(config)

    outer = prepare(config, progress=prepare_inside)
    assert inner[0].directory == outer.directory
    assert os.listdir(config["directory"]) == [outer.directory.name]
    np.testing.assert_equal(records(outer, "test"), records(inner[0], "test"))


def test_options_reach_their_corpora(config, monkeypatch):
    seen = []

    class Fake(TextCorpus):
        def __init__(self, spec, **options):
            seen.append((spec, options))
            super().__init__(config["corpus"])

    monkeypatch.setattr(corpora, "open_corpus", Fake)
    for corpus in ("pydocs", "synthetic", "tfds:x"):
        options = {"corpus": corpus, "synthetic": {"states": 3}, "tfds": {"split": "a", "field": "b"}, "workers": 1}
        assert prepare({**config, **options}).directory.name.startswith(corpus.replace(":", "-") + "-")
    assert seen == [
        ("pydocs", {"workers": 1}),
        ("synthetic", {"states": 3}),
        ("tfds:x", {"split": "a", "field": "b"}),
    ]
