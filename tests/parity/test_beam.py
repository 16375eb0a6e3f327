"""Preparation with Apache Beam's local runner beside preparation on one machine. Needs apache-beam."""

import functools
import gzip
import json
import os
import random

import pytest
import tensorflow_datasets as tfds
import zstandard

from bertlab import cli
from bertlab.config import base_config
from bertlab.data import beam, duplicates, tfds_datasets
from bertlab.data import prepare as prepare_module
from bertlab.data.batches import combined_hash, train_batches
from bertlab.data.beam import beam_backend
from bertlab.data.prepare import describe, prepare
from bertlab.data.prepared import load_prepared
from bertlab.errors import UserError


@pytest.fixture
def text(tmp_path):
    """The spec of 360 documents in five files of each kind and a file without text; some sentences occur several times."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 6))) for _ in range(200)]

    def documents(number):
        for i in range(number):
            lines = [" ".join(generator.choices(words, k=8)).capitalize() + "." for _ in range(generator.randint(1, 9))]
            yield "\n".join([*lines, "The same here.", "\x01\x02", f"Own{i} İé."])

    folder = tmp_path / "text"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("\n\n".join(documents(100)))
    (folder / "c.txt").write_text("\n \n")
    (folder / "d.txt.gz").write_bytes(gzip.compress("\n\n".join([*documents(50), "\x01"]).encode()))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ["", *documents(100), "The same document."])
    (folder / "a.jsonl").write_text(lines)
    (folder / "sub" / "e.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    (folder / "f.txt").write_text("\n\n".join(documents(8)))
    return f"text:{folder}/**/*.*"


def config_for(corpus, directory, **tokenizer):
    config = base_config().data
    config.corpus, config.directory, config.workers = corpus, str(directory), 1
    config.seq_len, config.batch_size, config.valid_fraction = 32, 8, 0.1
    config.tokenizer.update({"kind": "wordpiece", "vocab_size": 300, **tokenizer})
    return config


def stored(prepared, split):
    """The bytes of each record."""
    source = tfds.builder_from_directory(prepared.directory / "dataset").as_data_source(split).data_source
    return [source[i] for i in range(len(source))]


def assert_same(ours, theirs):
    assert ours.directory.name == theirs.directory.name
    files = [sorted(path.name for path in prepared.directory.iterdir()) for prepared in (ours, theirs)]
    assert files[0] == files[1] == ["counts.npy", "dataset", "files.json", "prepared.json", "tokenizer"]
    for split in theirs.statistics:
        assert stored(ours, split) == stored(theirs, split)
    for name in ("prepared.json", "counts.npy", *(f"tokenizer/{p.name}" for p in (theirs.directory / "tokenizer").iterdir())):
        assert (ours.directory / name).read_bytes() == (theirs.directory / name).read_bytes()


def batch_hash(prepared, data):
    batches = train_batches(prepared, data)
    iterator = iter(batches)
    for _ in range(20):
        next(iterator)
    iterator.close()
    return combined_hash({number: chain.value for number, chain in iterator.hashes.items()})


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "words", "vocab_size": 100, "lowercase": True, "sample_sentences": 700, "seed": 3},
        pytest.param({"kind": "unigram", "vocab_size": 400}, marks=pytest.mark.nightly),
    ],
    ids=lambda tokenizer: tokenizer["kind"],
)
def test_same_as_on_one_machine(text, tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(duplicates, "_HASHES_AT_ONCE", 100)
    monkeypatch.setattr(tfds.download, "DownloadConfig", functools.partial(tfds.download.DownloadConfig, num_shards=3))
    data = config_for(text, tmp_path / "one", **tokenizer)
    one = prepare(data)
    calls = []
    backend = beam_backend("DirectRunner", "")
    many = prepare(config_for(text, tmp_path / "many", **tokenizer), backend=backend, progress=lambda *call: calls.append(call))
    assert_same(many, one)
    assert len(list((many.directory / "dataset").glob("*-train.*"))) == 3
    assert batch_hash(many, data) == batch_hash(one, data)
    assert one.statistics["train"]["duplicate_sentences"] > 100 < one.statistics["train"]["documents"]
    assert one.statistics["valid"]["sentences_in_train"] > 20
    assert os.listdir(tmp_path / "many") == [one.directory.name]
    last = {label: (done, total) for label, done, total in calls}
    assert all(done == total for done, total in last.values()) and last["tokenising"] == (361, 361)


@pytest.mark.nightly
def test_tfds_corpus_with_a_given_tokenizer_from_the_command_line(text, tmp_path, monkeypatch, capsys):
    first = prepare(config_for(text, tmp_path / "first"))
    monkeypatch.setattr(tfds_datasets, "_EXAMPLES_PER_PART", 50)
    given = {"path": str(first.directory / "tokenizer"), "kind": "unigram", "vocab_size": 4096}
    one_config = config_for(f"tfds:{first.directory / 'dataset'}", tmp_path / "one", **given)
    one_config.tfds.field = "id"
    one = prepare(one_config)
    command = ["prepare", f"--corpus={one_config.corpus}", f"--config.data.directory={tmp_path / 'many'}"]
    command += ["--config.data.tfds.field=id", "--config.data.valid_fraction=0.1"]
    command += [f"--config.data.tokenizer.path={given['path']}"]
    capsys.readouterr()  # what was said before, of other preparations
    assert cli.main(
        [*command, "--beam_pipeline_options=runner=DirectRunner,direct_running_mode=multi_threading,direct_num_workers=2"]
    ) in (None, 0)
    text = capsys.readouterr().out
    assert text == describe(one).replace(str(tmp_path / "one"), str(tmp_path / "many")) + "\n"
    assert_same(load_prepared(tmp_path / "many" / one.directory.name), one)


@pytest.mark.nightly
def test_few_documents_have_all_splits(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(f"Document {number}{i} has words." for i in range(2)))
    tokenizer = {"kind": "words", "vocab_size": 10}
    one = prepare(config_for(f"text:{tmp_path}/*.txt", tmp_path / "one", **tokenizer))
    many = config_for(f"text:{tmp_path}/*.txt", tmp_path / "many", **tokenizer)
    assert_same(prepare(many, backend=beam_backend("DirectRunner", "")), one)
    assert all(counts["documents"] for counts in one.statistics.values())


def test_second_time_does_nothing(text, tmp_path, monkeypatch):
    one = prepare(config_for(text, tmp_path))

    def write_dataset(self, folder, tokenizer):
        raise AssertionError("it was prepared again")

    monkeypatch.setattr(beam.BeamBackend, "write_dataset", write_dataset)
    assert prepare(config_for(text, tmp_path), backend=beam_backend("DirectRunner", "")).directory == one.directory


def test_a_failure_leaves_nothing(text, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 2000)
    encode = beam.encode_documents

    def fail(tokenizer, documents):
        if "f.txt:1" in dict(documents):
            raise RuntimeError("the worker failed")
        return encode(tokenizer, documents)

    monkeypatch.setattr(beam, "encode_documents", fail)
    with pytest.raises(RuntimeError, match="the worker failed"):
        prepare(config_for(text, tmp_path / "cache"), backend=beam_backend("DirectRunner", ""))
    assert os.listdir(tmp_path / "cache") == []


def test_errors(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "few.txt").write_text("One document.\n\nAnother document.\n")
    (tmp_path / "latin.txt").write_bytes("Good.\n\nStraße.".encode("latin-1"))
    cases = [
        (f"text:{tmp_path}/empty.txt", {}, r"has no text in its 1 file\(s\)"),
        (f"text:{tmp_path}/few.txt", {}, r"has 2 document\(s\), and none is in the valid split"),
        (f"text:{tmp_path}/*.txt", {}, r"^\S*latin.txt: byte 11 \(line 3\) is not UTF-8 text"),
        ("pydocs", {}, r'corpus="pydocs" is read on one machine; prepare it without --beam_runner'),
        (f"text:{tmp_path}/few.txt", {"path": f"{tmp_path}/none"}, "none"),
    ]
    for corpus, tokenizer, message in cases:
        with pytest.raises(UserError, match=message):
            prepare(config_for(corpus, tmp_path / "cache", **tokenizer), backend=beam_backend("DirectRunner", ""))
    assert os.listdir(tmp_path / "cache") == []
    for runner, options, message in (
        ("NoRunner", "", "from --beam_runner=NoRunner and .*Unexpected pipeline runner"),
        ("DataflowRunner", "region=x", "from --beam_runner=DataflowRunner and --beam_pipeline_options=.region=x.: "),
    ):
        with pytest.raises(UserError, match=message):
            beam_backend(runner, options)
