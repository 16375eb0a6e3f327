"""Features on disk are `encode`'s states; extraction holds a shard at a time, goes on after a kill, refuses what differs."""

import dataclasses
import json
import shutil
import tracemalloc

import jax
import numpy as np
import pytest

import bertlab
from bertlab.errors import UserError
from bertlab.transfer import features
from bertlab.transfer.features import Features, extract, model_digest
from bertlab.transfer.load import Embedding
from tests.transfer.runs import fresh_run

# None to six words, in no order: places in a batch and in the file differ.
TEXTS = [" ".join(["with", "the", "yield", "is", "a", "in"][: 5 * i % 7]) for i in range(40)]
PER_TOKEN = 3 * 16 * 2  # layers, width, bytes of float16


@pytest.fixture(scope="module")
def model(small_config, tmp_path_factory):
    """A BERT of two layers with fresh parameters."""
    return bertlab.load(fresh_run(small_config("bert", model__layers=2), tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch):
    """Small batches: programs of few shapes are compiled."""
    monkeypatch.setattr(features, "ROWS", 4)


def files(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_features_are_what_encode_gives_in_the_order_of_the_texts(model, tmp_path):
    before = jax.tree.map(np.copy, model.params)
    texts = [*TEXTS, "with " * 30, *TEXTS]
    found = extract(model, iter(texts), tmp_path / "f", dtype="float32", shard_bytes=100 * 2 * PER_TOKEN)
    assert len(found) == len(texts) and len(found.manifest["shards"]) > 4
    for index, embedding in enumerate(model.encode([text])[0] for text in texts):
        # Rows in other company: float32 sums in another order.
        np.testing.assert_allclose(found[index], embedding.states.swapaxes(0, 1), atol=1e-5)
        assert found.lengths[index] == len(embedding.tokens) == len(found[index])
    np.testing.assert_array_equal(found[-1], found[len(texts) - 1])
    assert min(found.lengths) == 0 and found[0].shape == (0, 3, 16)
    with pytest.raises(IndexError):
        found[len(texts)]
    assert sum(shard["tokens"] for shard in found.manifest["shards"]) == sum(found.lengths)
    jax.tree.map(np.testing.assert_array_equal, before, model.params)


def test_chosen_layers_of_words_in_half_precision(model, tmp_path):
    words = [text.split() for text in TEXTS[:6]] + [["unbelievably", "qqqzzz"]]
    found = extract(model, words, tmp_path / "words", layers=[-1, 0], pretokenized=True)
    assert found.manifest["layers"] == [2, 0] and found[1].dtype == np.float16 and list(found.lengths[-2:]) == [4, 2]
    alone = [model.encode([of], [-1, 0], pretokenized=True)[0] for of in words]
    for states, embedding in zip(found, alone, strict=True):
        np.testing.assert_allclose(states, embedding.states.swapaxes(0, 1), rtol=1e-3, atol=1e-4)
    special = extract(model, TEXTS[:3], tmp_path / "special", layers=[1], special_tokens=True)
    assert list(special.lengths) == model.lengths(TEXTS[:3])


@pytest.fixture
def encoded(model, monkeypatch):
    """The numbers of texts of each call of `encode`."""
    calls, encode = [], type(model).encode

    def counted(self, texts, *rest, **settings):
        calls.append(len(texts))
        return encode(self, texts, *rest, **settings)

    monkeypatch.setattr(type(model), "encode", counted)
    return calls


def test_extraction_goes_on_after_its_last_whole_shard_with_the_same_bytes(model, encoded, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "READ_AHEAD", 7)  # fewer than a shard has, so that some are read ahead for the next
    parts, arguments = tmp_path / "parts", {"shard_bytes": 100 * PER_TOKEN}
    extract(model, TEXTS, tmp_path / "whole", **arguments)
    whole, calls = files(tmp_path / "whole"), len(encoded)
    write, moves = features.os.replace, []

    def killed_in_the_third_shard(source, target):
        moves.append(target)
        if target.name == "shard-00002.safetensors":
            raise KeyboardInterrupt
        write(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(features.os, "replace", killed_in_the_third_shard)
        with pytest.raises(KeyboardInterrupt):
            extract(model, TEXTS, parts, **arguments)
    assert sorted(path.name for path in parts.glob("*.safetensors")) == ["shard-00000.safetensors", "shard-00001.safetensors"]
    with pytest.raises(UserError, match="is not finished"):
        Features(parts)

    shutil.copytree(parts, tmp_path / "gap")
    (tmp_path / "gap" / "shard-00000.safetensors").unlink()
    for directory in (parts, tmp_path / "gap"):
        encoded.clear()
        extract(model, iter(TEXTS), directory, **arguments)
        assert files(directory) == whole and 1 < len(encoded) < calls

    # A shard that is gone is made alone, and then there is nothing to do but to ask for the layers' widths.
    (parts / "shard-00001.safetensors").unlink()
    for expected in (json.loads(whole["manifest.json"])["shards"][1]["texts"], 0):
        encoded.clear()
        extract(model, TEXTS, parts, **arguments)
        assert files(parts) == whole and sum(encoded) == 1 + expected


@pytest.fixture
def imagined(model, monkeypatch):
    """`encode` computes nothing: states [2, T, 512] of ones. What it was asked for: texts, and the longest one's positions."""
    monkeypatch.setattr(features, "ROWS", 32)
    calls = []

    def encode(self, texts, layers, **settings):
        lengths = self.lengths(texts)
        calls.append((len(texts), max(lengths)))
        return [Embedding((), np.ones((2, length - 2, 512), np.float32), (512, 512), (0, 1)) for length in lengths]

    monkeypatch.setattr(type(model), "encode", encode)
    return calls


def test_memory_is_that_of_a_shard_however_many_texts_there_are(model, imagined, tmp_path):
    """500 texts of 28 words: 28 MB on disk. A shard of 1 MB is held in float16, and in float32 the batch of it."""
    directory, text, shard, per_text = tmp_path / "f", " ".join(["with"] * 28), 1 << 20, 28 * 2 * 512 * 2
    assert model.lengths([text]) == [30]

    def stream():
        for number in range(500):
            written = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
            assert number * per_text - written < shard + features.READ_AHEAD * per_text, "read much sooner than written"
            yield text

    tracemalloc.start()
    try:
        found = extract(model, stream(), directory, shard_bytes=shard)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    total = 500 * per_text
    assert len(found) == 500 and total > 25 * shard
    assert max(path.stat().st_size for path in directory.glob("*.safetensors")) < shard + 2000
    # A shard three times (its texts, joined, as bytes), a batch of up to 2 MB in float32 twice, and the model's rows.
    assert peak < 8 * shard < total / 3, peak


def test_batches_are_of_texts_of_about_one_length_and_bounded_with_their_padding(model, imagined, tmp_path):
    texts = [" ".join(["with"] * (i * 7 % 150)) for i in range(150)]
    found = extract(model, texts, tmp_path / "f", shard_bytes=1 << 30)
    assert len(found.manifest["shards"]) == 1 and list(found.lengths) == [i * 7 % 150 for i in range(150)]
    sizes = [features.power_of_two(count) * features.padded_length(longest, 512) for count, longest in imagined[1:]]
    assert sum(count for count, _ in imagined[1:]) == 150 and max(sizes) <= 1024
    # 150 texts of 75 tokens on average: as few batches as padding to powers of two allows.
    assert len(sizes) < 25


def test_a_directory_of_another_extraction_is_refused(model, tmp_path):
    other = dataclasses.replace(model, params=jax.tree.map(lambda p: p * np.float32(1.01), model.params))
    directory = tmp_path / "f"
    arguments = {"layers": [0, 1], "shard_bytes": 100 * PER_TOKEN}
    extract(model, TEXTS, directory, **arguments)
    before = files(directory)
    changes = [
        (r"layers=\[0, 1\], not layers=\[1\]", {"layers": [1]}),
        ("dtype=float16, not dtype=float32", {"dtype": "float32"}),
        ("special_tokens=False, not special_tokens=True", {"special_tokens": True}),
        ("with model=.* give another directory", {"model": other}),
        (r"shard-00000\..* texts 0 to ", {"texts": [*TEXTS[:2], "with", *TEXTS[3:]]}),
        ("does not match texts", {"texts": TEXTS[:-1]}),
        ("does not match texts", {"texts": TEXTS[: json.loads(before["manifest.json"])["shards"][0]["texts"]]}),
        ("texts 40 to 40", {"texts": [*TEXTS, "with"]}),
    ]
    for message, change in changes:
        asked = {"model": model, "texts": TEXTS, "directory": directory, **arguments, **change}
        with pytest.raises(UserError, match=message):
            extract(**asked)
    assert files(directory) == before
    (directory / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"has shards but no manifest.json; delete it"):
        extract(model, TEXTS, directory, **arguments)


def test_a_digest_sees_every_parameter(model):
    digest = model_digest(model)
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        before = leaf.flat[-1]
        leaf.flat[-1] = np.nextafter(before, np.float32(9))
        assert model_digest(model) != digest, path
        leaf.flat[-1] = before
    assert model_digest(model) == digest
    assert features.texts_digest(["ab", "c"]) != features.texts_digest(["a", "bc"])
    assert features.texts_digest([["a b"]]) != features.texts_digest([["a", "b"]])


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {}, "no texts"),
        (["a", ["b"]], {}, "text 1 is of type list and pretokenized=False"),
        ([["a"], "b"], {"pretokenized": True}, "text 1 is of type str and pretokenized=True"),
        (["a"] * 300 + ["with " * 600], {}, "text 300 has 602 tokens including special ones, but the model has 512 positions"),
        (["a"], {"dtype": "bfloat16"}, "dtype=bfloat16: expected one of float16, float32"),
        (["a"], {"layers": [3]}, "layer 3 does not exist"),
    ],
)
def test_what_cannot_be_extracted_is_refused(texts, settings, message, model, tmp_path):
    with pytest.raises(UserError, match=message):
        extract(model, texts, tmp_path / "f", **settings)


def test_states_beyond_half_precision_are_refused(model, tmp_path, monkeypatch):
    encode = type(model).encode
    scaled = lambda of: dataclasses.replace(of, states=of.states * np.float32(1e6))
    monkeypatch.setattr(type(model), "encode", lambda *args, **settings: [scaled(of) for of in encode(*args, **settings)])
    with pytest.raises(UserError, match="a state of texts 0 to 1 is not finite in float16"):
        extract(model, TEXTS[1:3], tmp_path / "f")
    assert np.abs(extract(model, TEXTS[1:3], tmp_path / "g", dtype="float32")[0]).max() > 1e5


def test_a_damaged_shard_is_named(model, tmp_path):
    whole = extract(model, TEXTS[:5], tmp_path / "f")[3]
    path = tmp_path / "f" / "shard-00000.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    with pytest.raises(UserError, match=r"shard-00000\.safetensors is damaged; delete it and rerun"):
        Features(tmp_path / "f")[3]
    path.unlink()
    np.testing.assert_array_equal(extract(model, TEXTS[:5], tmp_path / "f")[3], whole)
    path.write_bytes(content[:-10])
    with pytest.raises(UserError, match=r"shard-00000\.safetensors cannot be read"):
        Features(tmp_path / "f")
    with pytest.raises(UserError, match=r"has no manifest.json"):
        Features(tmp_path)
