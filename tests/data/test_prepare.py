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
from bertlab.data.prepare import describe, prepare
from bertlab.data.prepared import load_prepared
from bertlab.data.splits import Splits
from bertlab.data.text_corpus import TextCorpus
from bertlab.data.tokenizers import load_tokenizer, train_tokenizer
from bertlab.errors import UserError
from bertlab.files import cache_directory, temporary_folder


def write_text(folder):
    """300 documents; each has a word of its own, and a sentence without any token for WordPiece."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 6))) for _ in range(200)]
    path = folder / "text.jsonl"
    with path.open("w") as file:
        for i in range(300):
            lines = [" ".join(generator.choices(words, k=8)).capitalize() + "." for _ in range(generator.randint(1, 9))]
            file.write(json.dumps({"text": "\n".join([*lines, "\x01\x02", f"Own{i} é."])}) + "\n")
    return path


def config_of(folder, text):
    tokenizer = {"kind": "wordpiece", "vocab_size": 300}
    return {"corpus": f"text:{text}", "directory": str(folder / "cache"), "workers": 1, "tokenizer": tokenizer}


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path)


@pytest.fixture
def config(tmp_path, text):
    return config_of(tmp_path, text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A corpus that is prepared once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("whole")
    return prepare(config_of(folder, write_text(folder)))


@pytest.fixture(scope="module")
def documents(whole):
    return list(open_corpus(f"text:{whole.directory.parent.parent / 'text.jsonl'}").documents())


def changed(config, **changes):
    tokenizer = {**config["tokenizer"], **changes.pop("tokenizer", {})}
    return {**config, **changes, "tokenizer": tokenizer}


def records(prepared, split):
    source = prepared.source(split)
    return [source[i] for i in range(len(source))]


def finished(config):
    return sorted(path.name for path in Path(config["directory"]).iterdir() if not path.name.startswith("."))


def test_records_are_the_tokenised_documents(whole, documents):
    found = []
    for split in ("train", "valid", "test"):
        for record in records(whole, split):
            assert sorted(record) == ["bytes", "document", "id", "sentence_lengths", "tokens"]
            assert record["tokens"].dtype == record["sentence_lengths"].dtype == np.int32
            assert type(record["bytes"]) is type(record["document"]) is int
            document = documents[record["document"]]
            assert record["id"] == document.id
            assert split == Splits(0.05, 0.1).of(document.id)
            encoded = [whole.tokenizer.encode(sentence) for sentence in document.sentences]
            assert [] in encoded
            np.testing.assert_array_equal(record["sentence_lengths"], [len(ids) for ids in encoded if ids])
            np.testing.assert_array_equal(record["tokens"], [index for ids in encoded for index in ids])
            assert record["bytes"] == len(" ".join(document.sentences).encode())
            found.append(record["document"])
    assert sorted(found) == list(range(300))


def test_statistics_and_counts(whole):
    assert set(whole.statistics) == {"train", "valid", "test"}
    for split, counts in whole.statistics.items():
        found = records(whole, split)
        assert {name: count for name, count in counts.items() if "duplicate" not in name and "in_train" not in name} == {
            "documents": len(found),
            "sentences": sum(len(record["sentence_lengths"]) for record in found),
            "tokens": sum(len(record["tokens"]) for record in found),
            "bytes": sum(record["bytes"] for record in found),
            "unknown": sum(int((record["tokens"] == whole.tokenizer.unk_id).sum()) for record in found),
        }
        assert f"{counts['tokens']:,}" in describe(whole)
    assert all(part in describe(whole) for part in (str(whole.directory), "wordpiece", "300", "cased"))
    tokens = np.concatenate([record["tokens"] for record in records(whole, "train")])
    expected = np.bincount(tokens, minlength=whole.tokenizer.vocab_size)
    np.testing.assert_array_equal(load_prepared(whole.directory).counts, expected, strict=True)
    assert (expected == 0).any()


def test_repeated_text_is_counted_and_nothing_depends_on_processes_and_chunks(config, text, monkeypatch):
    with text.open("a") as file:
        for i in range(40):
            twice = "Twice here. Twice here. \x01" if i % 4 else "Case counts."
            file.write(json.dumps({"text": f"{twice}\nOwn {i}."}) + "\n")
            file.write(json.dumps({"text": "The same document.\n\x01\n\x01"}) + "\n")
            file.write(json.dumps({"text": "the same document." if i % 3 else "The same. document."}) + "\n")
    config = changed(config, valid_fraction=0.2)
    documents = {split: [] for split in ("train", "valid", "test")}
    alone = prepare(config)
    encode = alone.tokenizer.encode
    for document in open_corpus(config["corpus"]).documents():
        # What has no token is not there, so it cannot make texts differ.
        sentences = tuple(sentence for sentence in document.sentences if encode(sentence))
        documents[Splits(0.2, 0.25).of(document.id)].append(sentences)
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
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(prepare_module, "_DOCUMENTS_PER_SHARD", 50)
    monkeypatch.setattr(duplicates, "_HASHES_AT_ONCE", 100)
    prepared = prepare(changed(config, workers=2, directory=f"{config['directory']}-2"))
    assert prepared.directory.name == alone.directory.name
    for statistics in (alone.statistics, prepared.statistics):
        assert {split: {name: counts[name] for name in expected[split]} for split, counts in statistics.items()} == expected
    for split in expected:
        np.testing.assert_equal(records(prepared, split), records(alone, split))
    np.testing.assert_array_equal(prepared.counts, alone.counts)
    shards = list((prepared.directory / "dataset").glob("*-train.*"))
    assert len(shards) == -(-alone.statistics["train"]["documents"] // 50)
    names = ["counts.npy", "dataset", "files.json", "prepared.json", "tokenizer"]
    assert sorted(path.name for path in prepared.directory.iterdir()) == names
    share = expected["train"]["duplicate_sentences"] / prepared.statistics["train"]["sentences"]
    assert f"{share:.2%}" in describe(prepared)


def test_unknown_words_are_kept(config, documents):
    prepared = prepare(changed(config, tokenizer={"kind": "words", "vocab_size": 100, "lowercase": True}))
    size, pieces = prepared.tokenizer.vocab_size, prepared.tokenizer.pieces()
    for split in ("train", "valid"):
        plain, source = prepared.source(split), prepared.source(split, keep_unknown=True)
        assert repr(plain) == repr(source)
        for index in range(len(source)):
            record = source[index]
            text = " ".join(documents[record["document"]].sentences)
            words = re.findall(r"\w+|[^\w\s]", text.lower())
            assert [
                pieces[token] if token < size else source.unknown.words([token])[0] for token in record["tokens"].tolist()
            ] == words
            assert not record["tokens"].flags.writeable
            record["tokens"] = np.where(record["tokens"] < size, record["tokens"], prepared.tokenizer.unk_id)
            np.testing.assert_equal(record, plain[index])
    assert len(source.unknown.ids(["new", "newer", "new"])) == 3
    assert source.unknown.ids(["new"]) == source.unknown.ids(["new"]) != source.unknown.ids(["newer"])


def test_it_is_a_tfds_dataset_of_array_records_and_a_source_for_grain(whole):
    builder = tfds.builder_from_directory(whole.directory / "dataset")
    assert {split: info.num_examples for split, info in builder.info.splits.items()} == {
        split: counts["documents"] for split, counts in whole.statistics.items()
    }
    source = whole.source("valid")
    np.testing.assert_array_equal(builder.as_data_source("valid")[3]["tokens"], source[3]["tokens"])
    assert list((whole.directory / "dataset").glob("*.array_record-*"))
    assert "tensorflow" not in sys.modules
    assert repr(source) == f"PreparedSource(fingerprint={whole.fingerprint}, split=valid)"
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000  # without open files
    other = pickle.loads(pickled)
    assert repr(other) == repr(source) and len(other) == len(source)
    np.testing.assert_equal(other[0], source[0])
    np.testing.assert_equal(source[np.int64(len(source) - 1)], source[len(source) - 1])
    assert not source[0]["tokens"].flags.writeable


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


@pytest.fixture
def unbuilt(monkeypatch):
    """`prepare` finds the directory but builds nothing in it."""
    monkeypatch.setattr(prepare_module, "_build", lambda *arguments: None)
    monkeypatch.setattr(prepare_module, "load_prepared", lambda directory: directory)


def test_fingerprint_covers_text_and_options(config, text, unbuilt):
    names = {prepare(config).name}
    for change in (
        {"tokenizer": {"vocab_size": 301}},
        {"tokenizer": {"kind": "words"}},
        {"tokenizer": {"lowercase": True}},
        {"tokenizer": {"seed": 1}},
        {"tokenizer": {"sample_sentences": 900}},
        {"valid_fraction": 0.1},
        {"test_fraction": 0.1},
    ):
        names.add(prepare(changed(config, **change)).name)
    with text.open("a") as file:
        file.write('{"text": "One more."}\n')
    names.add(prepare(config).name)
    assert len(names) == 9
    assert all(re.fullmatch(r"text-text-jsonl-[0-9a-f]{16}", name) for name in names)


def test_tokenizer_learns_from_training_documents_only(config):
    config = changed(config, tokenizer={"kind": "words", "vocab_size": 450}, valid_fraction=0.2)
    prepared = prepare(config)
    own = {piece for piece in prepared.tokenizer.pieces() if piece.startswith("Own")}
    in_training = {f"Own{record['document']}" for record in records(prepared, "train")}
    assert own and own < in_training
    expected = train_tokenizer(
        "words",
        (s for d in open_corpus(config["corpus"]).documents() if Splits(0.2, 0.25).of(d.id) == "train" for s in d.sentences),
        450,
        seed=0,
    )
    assert prepared.tokenizer.pieces() == expected.pieces()


def test_given_tokenizers(config, tmp_path, whole):
    given = prepare(changed(config, tokenizer={"path": str(whole.directory / "tokenizer"), "kind": "bpe"}))
    assert given.directory.name != whole.directory.name
    np.testing.assert_equal(records(given, "test"), records(whole, "test"))

    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", *"[UNK] [CLS] [SEP] [MASK] a ##b c".split(), *"abcdefghij"]))
    bert = prepare(changed(config, tokenizer={"path": str(vocabulary)}))
    assert bert.tokenizer.lowercase and bert.tokenizer.pieces() == load_tokenizer(vocabulary).pieces()
    (tmp_path / "moved").mkdir()
    vocabulary.rename(tmp_path / "moved" / "vocab.txt")
    assert prepare(changed(config, tokenizer={"path": str(tmp_path / "moved" / "vocab.txt")})).directory == bert.directory
    with pytest.raises(UserError, match=r"config.data.tokenizer.path"):
        prepare(changed(config, tokenizer={"path": str(vocabulary)}))


def test_splits_may_be_left_out_and_so_are_documents_without_tokens(config, text):
    with text.open("a") as file:
        file.write('{"text": "\\u0001"}\n{"text": "Abc."}\n')
    prepared = prepare(changed(config, valid_fraction=0, test_fraction=0.0))
    assert list(prepared.statistics) == ["train"] and prepared.statistics["train"]["documents"] == 301
    assert records(prepared, "train")[-1]["document"] == 301
    with pytest.raises(UserError, match=r'"valid".*config\.data\.valid_fraction'):
        prepared.source("valid")


def test_errors(config, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "few.txt").write_text("One document.\n\nAnother document.\n")
    (tmp_path / "control.txt").write_text("\x01\n\n\x01\n\n\x01\n")
    given = {"kind": "words", "vocab_size": 8}
    few = changed(config, corpus=f"text:{tmp_path}/few.txt", tokenizer=given)
    cases = [
        (changed(config, corpus=f"text:{tmp_path}/empty.txt"), "has no text"),
        (changed(config, corpus=f"text:{tmp_path}/none*"), "matches no file"),
        (few, r"2 document\(s\).* valid split"),
        (changed(few, valid_fraction=0.5, test_fraction=0.4999999), r"config\.data\.valid_fraction"),
        (changed(config, valid_fraction=0.5, test_fraction=0.5), r"config\.data\.valid_fraction=0\.5 .*test_fraction=0\.5"),
        (changed(config, valid_fraction=-0.1), r"config\.data\.valid_fraction=-0\.1"),
        (changed(config, tokenizer={"vocab_size": 100_000}), "vocab_size=100000"),
        (changed(config, tokenizer={"kind": "letters"}), r"config\.data\.tokenizer\.kind='letters'"),
    ]
    for wrong, message in cases:
        with pytest.raises(UserError, match=message):
            prepare(wrong)
    vocabulary = prepare(config).directory / "tokenizer"
    with pytest.raises(UserError, match="is empty: no document has a token"):
        prepare(changed(config, corpus=f"text:{tmp_path}/control.txt", tokenizer={"path": str(vocabulary)}))
    with pytest.raises(UserError, match="is not a prepared corpus"):
        load_prepared(tmp_path)
    # Nothing but the one that worked is left.
    assert os.listdir(config["directory"]) == [vocabulary.parent.name]


def test_progress_ends_where_it_should(config):
    calls = []
    prepare(config, progress=lambda *call: calls.append(call))
    labels = list(dict.fromkeys(label for label, _, _ in calls))
    assert labels == ["reading the text", "training the tokenizer", "tokenising"]
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
    assert not os.path.exists(config["directory"])
    assert prepare(config).statistics["train"]["documents"] > 200


def prepare_and_wait(config):
    """Run by a process that will be killed: prepares, and waits for ever when some chunks are tokenised."""
    prepare_module.CHUNK_CHARACTERS = 2000

    def wait(label, done, total):
        if label == "tokenising" and done:
            print("ready", flush=True)
            signal.pause()

    prepare(config, progress=wait)


def test_killed_preparation(config):
    config = changed(config, workers=2)
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
import test_prepare
test_prepare.prepare_and_wait(*json.loads(sys.argv[2]))
"""
    arguments = [str(Path(__file__).parent), json.dumps([config])]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"preparing about ")
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    # Its worker processes hold the same output: it ends when they have ended too.
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert finished(config) == []
    [abandoned] = [name for name in os.listdir(config["directory"]) if not name.endswith(".lock")]  # the lock is free
    assert f"-{process.pid}-" in abandoned

    prepared = prepare(config)
    assert os.listdir(config["directory"]) == [prepared.directory.name]
    assert sum(counts["documents"] for counts in prepared.statistics.values()) == 300


def test_apache_beam_is_asked_for_by_name_and_not_needed_otherwise(config, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    command = ["prepare", f"--corpus={config['corpus']}", f"--config.data.directory={config['directory']}"]
    command += ["--config.data.tokenizer.vocab_size=400", "--config.data.workers=1"]
    assert cli.main([*command, "--beam_runner=DirectRunner"]) == 2
    assert "pip install -e '.[beam]' in the clone" in capsys.readouterr().err
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


def test_options_reach_their_corpora(config, monkeypatch, unbuilt):
    seen = []

    class Fake(TextCorpus):
        def __init__(self, spec, **options):
            seen.append((spec, options))
            super().__init__(config["corpus"])

    monkeypatch.setattr(corpora, "open_corpus", Fake)
    own = {"pydocs": {}, "synthetic": {"synthetic": {"states": 3}}, "tfds:x": {"tfds": {"split": "a", "field": "b"}}}
    for corpus, options in own.items():
        made = prepare({**config, "corpus": corpus, "workers": 1, **options})
        assert made.name.startswith(corpus.replace(":", "-") + "-")
    assert seen == [
        ("pydocs", {"directory": config["directory"]}),
        ("synthetic", {"states": 3}),
        ("tfds:x", {"split": "a", "field": "b"}),
    ]
