import gzip
import json
import lzma
import os
import pickle
import sys
import tracemalloc

import fsspec
import numpy as np
import pytest
import tensorflow_datasets as tfds
import zstandard

from bertlab.data import text_corpus
from bertlab.data.corpora import open_corpus
from bertlab.data.sentences import split_sentences
from bertlab.data.tfds_datasets import read_records
from bertlab.errors import UserError

COMPRESSIONS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.compress(data[:10]) + zstandard.compress(data[10:]),  # two frames
}


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Who met Mr. Spock, e.g. on Earth. He left.", ["Dr. Who met Mr. Spock, e.g. on Earth.", "He left."]),
        ("J. R. R. Tolkien wrote it. I did. So.", ["J. R. R. Tolkien wrote it.", "I did.", "So."]),
        ('He said "Stop." Then he ran. (Far away.) Yes.', ['He said "Stop."', "Then he ran.", "(Far away.)", "Yes."]),
        ("It costs 3.5 dollars. version 2.0 is out", ["It costs 3.5 dollars. version 2.0 is out"]),
        ("Call `f.x`. Then stop.", ["Call `f.x`.", "Then stop."]),
        ("Wait... what? Nothing... Go on.", ["Wait... what?", "Nothing...", "Go on."]),
        ("First line\nsecond line. Third", ["First line", "second line.", "Third"]),
        ("今日は。元気です。", ["今日は。", "元気です。"]),
        ("See the U.S. Army. In Paris, it rains.", ["See the U.S. Army.", "In Paris, it rains."]),
        ("  \n \t\n", []),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_txt_documents_are_separated_by_blank_lines(tmp_path, compression):
    data = "\ufeffFirst one. Its second.\r\nA paragraph.\r\n\r\n \t \n\nÜber zwei.\n".encode()
    (tmp_path / f"a.txt{compression}").write_bytes(COMPRESSIONS[compression](data))
    documents = list(open_corpus(f"text:{tmp_path}/*").documents())
    assert [document.sentences for document in documents] == [
        ("First one.", "Its second.", "A paragraph."),
        ("Über zwei.",),
    ]
    assert [document.id for document in documents] == [f"a.txt{compression}:1", f"a.txt{compression}:6"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_jsonl_records_are_documents(tmp_path, compression):
    records = [{"id": 7, "text": "Line one.\nLine two"}, {"text": " "}, {"text": "Blank\n\nline. \u2028Kept"}]
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    (tmp_path / f"a.jsonl{compression}").write_bytes(COMPRESSIONS[compression](data))
    documents = list(open_corpus(f"text:{tmp_path}/*").documents())
    assert [document.sentences for document in documents] == [("Line one.", "Line two"), ("Blank", "line.", "Kept")]
    assert [document.id.rpartition(":")[2] for document in documents] == ["1", "3"]


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b \\ud83d\\ude00"}\n')
    [document] = open_corpus(f"text:{tmp_path}/a.jsonl").documents()
    assert document.sentences == ("a \ufffd b 😀",)


def test_globs_are_sorted_and_each_file_read_once(tmp_path):
    for name in ("b/1.txt", "a/2.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = open_corpus(f"text:{tmp_path}/c.txt, {tmp_path}/**/*.txt")
    assert [document.id for document in corpus.documents()] == ["a/2.txt:1", "b/1.txt:1", "c.txt:1"]
    assert list(corpus.documents()) == list(corpus.documents())


def test_text_fingerprint_is_of_names_and_bytes(tmp_path):
    (tmp_path / "x").mkdir()
    file = tmp_path / "x" / "a.txt"
    file.write_text("Some text.")
    first = open_corpus(f"text:{tmp_path}/x/*").fingerprint()
    os.utime(file, (1, 1))
    (tmp_path / "x").rename(tmp_path / "y")
    assert open_corpus(f"text:{tmp_path}/y/*").fingerprint() == first
    (tmp_path / "y" / "a.txt").write_text("Some texts")
    changed = open_corpus(f"text:{tmp_path}/y/*").fingerprint()
    (tmp_path / "y" / "a.txt").rename(tmp_path / "y" / "a.jsonl")
    assert len({first, changed, open_corpus(f"text:{tmp_path}/y/*").fingerprint()}) == 3


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_share_that_was_read(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(text_corpus, "_LINES_PER_COUNT", 2)
    for name in "abc":
        text = "\n\n".join(os.urandom(12000).hex() for _ in range(100))
        (tmp_path / f"{name}.txt{compression}").write_bytes(COMPRESSIONS[compression](text.encode()))
    corpus = open_corpus(f"text:{tmp_path}/*")
    shares = [corpus.share_read for _ in corpus.documents()]
    assert len(shares) == 300 and shares == sorted(shares) and shares[0] < 0.2
    # Files are as large as each other. A decompressor reads ahead by blocks of 128 KiB of these 7 MB.
    assert all(abs(share - i / 300) < 0.1 for i, share in enumerate(shares))


def test_files_are_streamed(tmp_path):
    data = gzip.compress("\n\n".join(f"Document {i}." for i in range(30_000)).encode())
    (tmp_path / "a.txt.gz").write_bytes(data[: len(data) // 2])
    documents = open_corpus(f"text:{tmp_path}/a.txt.gz").documents()
    assert next(documents).sentences == ("Document 0.",)
    with pytest.raises(UserError, match=r"a\.txt\.gz is damaged or cut off after \d+ decompressed bytes"):
        list(documents)


def test_large_text_document_is_cut_at_line_ends(tmp_path, monkeypatch):
    lines = ["Aa bb.", "Cc dd.", "Ee ff.", "A line that is longer than all of that.", "Gg.", "", "Hh ii.", "Jj.", "Kk."]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    whole = list(open_corpus(f"text:{tmp_path}/a.txt").documents())
    fingerprint = open_corpus(f"text:{tmp_path}/a.txt").fingerprint()
    assert [document.id for document in whole] == ["a.txt:1", "a.txt:7"]

    # Two lines of six characters and the line end between them fit exactly.
    monkeypatch.setattr(text_corpus, "_LARGEST_DOCUMENT", 13)
    parts = list(open_corpus(f"text:{tmp_path}/a.txt").documents())
    cut = {1: lines[:2], 3: lines[2:3], 4: lines[3:4], 5: lines[4:5], 7: lines[6:8], 9: lines[8:]}
    assert {document.id: list(document.sentences) for document in parts} == {f"a.txt:{i}": s for i, s in cut.items()}
    assert len(parts) == len(cut)
    assert open_corpus(f"text:{tmp_path}/a.txt").fingerprint() != fingerprint


def test_babylm_files_as_published_by_blank_line_or_whole(tmp_path):
    """What a file is called does not matter, nor does compression; the two ways have different fingerprints."""
    text = "*CHI: more milk .\n*MOT: you want more ?\n\n\n= = = Milk = = =\nMilk is white.\n"
    (tmp_path / "childes.train").write_text(text)
    (tmp_path / "switchboard.dev.gz").write_bytes(gzip.compress(b"A:\tYes.\n"))
    blocks, whole = (open_corpus(f"{kind}:{tmp_path}/*") for kind in ("text", "files"))
    ids = [[document.id for document in corpus.documents()] for corpus in (blocks, whole)]
    assert ids == [["childes.train:1", "childes.train:5", "switchboard.dev.gz:1"], ["childes.train:1", "switchboard.dev.gz:1"]]
    sentences = [[s for document in corpus.documents() for s in document.sentences] for corpus in (blocks, whole)]
    assert sentences[0] == sentences[1] and len(sentences[0]) == 5
    assert blocks.fingerprint() != whole.fingerprint()


def test_memory_does_not_grow_with_a_text_file(tmp_path):
    line = "word " * 2000 + "end.\n"
    peaks = []
    for lines in (200, 800):
        (tmp_path / "a.txt").write_text(line * lines)
        corpus = open_corpus(f"text:{tmp_path}/a.txt")
        tracemalloc.start()
        assert sum(len(document.sentences) for document in corpus.documents()) == lines
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst"])
def test_damaged_file(tmp_path, compression):
    data = COMPRESSIONS[compression](os.urandom(20_000).hex().encode())
    for name, damaged in {"cut": data[:-2000], "wrong": b"plain text" + data[10:]}.items():
        (tmp_path / f"{name}.txt{compression}").write_bytes(damaged)
        with pytest.raises(UserError, match=f"{name}.txt{compression} is damaged"):
            list(open_corpus(f"text:{tmp_path}/{name}*").documents())


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_text_that_is_not_utf8_names_the_byte(tmp_path, compression, mark):
    first = mark + b"caf\xc3\xa9, "
    for before in (first, first + b"fine.\nna"):
        (tmp_path / f"a.txt{compression}").write_bytes(COMPRESSIONS[compression](before + b"\xefve or not\n"))
        with pytest.raises(UserError, match=rf"a\.txt.*: byte {len(before)} \(line {1 + before.count(10)}\) is not UTF-8"):
            list(open_corpus(f"text:{tmp_path}/*").documents())


@pytest.mark.parametrize("line", ['{"text": "a"', '{"body": "a"}', '{"text": null}', "[1]"])
def test_bad_jsonl_names_the_line(tmp_path, line):
    (tmp_path / "a.jsonl").write_text('{"text": "Fine."}\n' + line + "\n")
    with pytest.raises(UserError, match=r"a\.jsonl:2: .*JSON"):
        list(open_corpus(f"text:{tmp_path}/a.jsonl").documents())


def test_text_of_an_object_store_is_that_of_files(tmp_path):
    system = fsspec.filesystem("memory")
    texts = {"b/one.txt": b"First.\n\nSecond one.\n", "two.jsonl": b'{"text": "Third."}\n', "b/no.csv": b"x"}
    texts |= {f"c/x.txt{name}": compress(b"Fourth.\r\n") for name, compress in COMPRESSIONS.items()}
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        system.pipe_file(f"/bucket/texts/{name}", content)
    try:
        for kind, names in (("text", ("*/*.txt*", "*.jsonl")), ("files", ("**/*.txt*",)), ("text", ("b/one.txt",))):
            here, there = (
                open_corpus(f"{kind}:{','.join(f'{place}/{name}' for name in names)}")
                for place in (tmp_path, "memory://bucket/texts")
            )
            assert there.fingerprint() == here.fingerprint() and there.parts == here.parts
            assert list(there.documents()) == list(here.documents())
        again = pickle.loads(pickle.dumps(there))
        assert list(again.documents()) == list(here.documents())
        with pytest.raises(UserError, match=r'memory://bucket/none\*" matches no file'):
            open_corpus("text:memory://bucket/none*")
        with pytest.raises(UserError, match="lie in two stores, or here and in one"):
            open_corpus(f"text:{tmp_path}/two.jsonl,memory://bucket/texts/two.jsonl")
        with pytest.raises(UserError, match=r"az:// is not known; use gs://"):
            open_corpus("text:az://bucket/*.txt")
        with pytest.raises(UserError, match=r"no\.csv is neither \.txt nor \.jsonl"):
            open_corpus("text:memory://bucket/texts/b/*")
        system.pipe_file("/bucket/texts/b/one.txt", b"caf\xff")
        with pytest.raises(UserError, match=r"memory:///bucket/texts/b/one\.txt: byte 3 \(line 1\) is not UTF-8"):
            list(there.documents())
        system.rm_file("/bucket/texts/b/one.txt")
        with pytest.raises(UserError, match=r"memory:///bucket/texts/b/one\.txt: there is no such"):
            list(there.documents())
    finally:
        system.store.clear()
        system.pseudo_dirs[:] = [""]


def test_text_errors(tmp_path):
    with pytest.raises(UserError, match=r"missing-\*\.txt\" matches no file"):
        open_corpus(f"text:{tmp_path}/missing-*.txt")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b" \n\n"))
    with pytest.raises(UserError, match="has no text in its 1 file"):
        list(open_corpus(f"text:{tmp_path}/*").documents())
    with pytest.raises(UserError, match="matches no file"):
        open_corpus(f"text:{tmp_path}/*.gz,{tmp_path}/*.jsonl")
    (tmp_path / "a.csv").write_text("a,b")
    with pytest.raises(UserError, match=r"a\.csv is neither \.txt nor \.jsonl"):
        open_corpus(f"text:{tmp_path}/*")


@pytest.mark.parametrize("spec", ["pydoc", "text:", "tfds:", "wiki:x", ""])
def test_unknown_corpus(spec):
    with pytest.raises(UserError, match=f'config.data.corpus="{spec}" .*pydocs, text:GLOB, splits:FOLDER, tfds:NAME'):
        open_corpus(spec)


class TinyReviews(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"review": tfds.features.Text(), "title": tfds.features.Text(), "stars": np.int32}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(10), "test": self._generate_examples(2), "blank": self._generate_examples(1)}

    def _generate_examples(self, number):
        for i in range(number):
            yield i, {"review": f"Täst {i}. Good.\nWell." if i else "", "title": f"Title {i}", "stars": i}


@pytest.fixture(scope="module")
def tiny_reviews(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    TinyReviews(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_tfds(tiny_reviews, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tiny_reviews))
    corpus = open_corpus("tfds:tiny_reviews", split="train", field="review")
    documents = list(corpus.documents())
    assert {document.sentences for document in documents} == {(f"Täst {i}.", "Good.", "Well.") for i in range(1, 10)}
    assert len({document.id for document in documents}) == 9
    assert documents == list(corpus.documents())
    assert "tensorflow" not in sys.modules

    [title] = open_corpus("tfds:tiny_reviews", split="test[:50%]", field="title").documents()
    assert title.sentences[0].startswith("Title")
    by_path = open_corpus(f"tfds:{tiny_reviews}/tiny_reviews/1.0.0", split="train", field="review")
    assert by_path.fingerprint() == corpus.fingerprint()
    assert open_corpus("tfds:tiny_reviews", split="train", field="title").fingerprint() != corpus.fingerprint()
    assert open_corpus("tfds:tiny_reviews", split="test", field="review").fingerprint() != corpus.fingerprint()


def test_tfds_errors(tiny_reviews, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tiny_reviews))
    for name, options, message in (
        ("not_there", {}, r'config\.data\.corpus="tfds:not_there".* no dataset'),
        ("tiny_reviews:9.9.9", {}, r'config\.data\.corpus="tfds:tiny_reviews:9\.9\.9".* no dataset'),
        (str(tmp_path), {}, "no dataset"),
        ("tiny_reviews", {"split": "dev", "field": "title"}, r'config\.data\.tfds\.split="dev" .*blank, test, train'),
        ("tiny_reviews", {"field": "stars"}, r'config\.data\.tfds\.field="stars" .*review, title'),
        ("tiny_reviews", {}, r'config\.data\.tfds\.field=""'),
        ("tiny_reviews", {"split": "blank", "field": "review"}, "blank has no text"),
    ):
        with pytest.raises(UserError, match=message):
            list(open_corpus(f"tfds:{name}", **options).documents())
    for split, feature, missing in (("dev", "title", "split"), ("train", "text", "feature")):
        with pytest.raises(UserError, match=rf'config\.task_data\.directory=tfds.* no {missing} "(dev|text)"'):
            list(read_records("tiny_reviews", split, (feature,)))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"is not prepared on disk in .*download_and_prepare"):
        open_corpus("tfds:tiny_reviews")


def test_tfds_in_a_format_without_random_access(tiny_reviews, tmp_path):
    info = json.loads((tiny_reviews / "tiny_reviews" / "1.0.0" / "dataset_info.json").read_text())
    info["fileFormat"] = "tfrecord"
    (tmp_path / "dataset_info.json").write_text(json.dumps(info).replace("array_record", "tfrecord"))
    features = (tiny_reviews / "tiny_reviews" / "1.0.0" / "features.json").read_text()
    (tmp_path / "features.json").write_text(features)
    with pytest.raises(UserError, match=r"stored as tfrecord, .*TensorFlow"):
        open_corpus(f"tfds:{tmp_path}", field="title")
