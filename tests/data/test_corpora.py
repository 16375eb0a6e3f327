import gzip
import lzma

import numpy as np
import pytest
import zstandard

from bertlab.config.defaults import base_config
from bertlab.data.corpora import open_corpus
from bertlab.data.corpora.synthetic import SyntheticCorpus
from bertlab.data.documents import Bounds, Document, find_bounds, position, split_sentences
from bertlab.errors import UserError

COMPRESSIONS = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    # Two frames.
    ".zst": lambda content: zstandard.compress(content[:10]) + zstandard.compress(content[10:]),
}


def corpus_of(name):
    data = base_config().data
    data.corpus = name
    return open_corpus(data)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Who met J. R. Spock, e.g. here. So.", ["Dr. Who met J. R. Spock, e.g. here.", "So."]),
        ('He said "Stop." Then. (Far.) Yes.', ['He said "Stop."', "Then.", "(Far.)", "Yes."]),
        ("It costs 3.5 dollars. version 2 is out", ["It costs 3.5 dollars. version 2 is out"]),
        ("Wait... what? Nothing... Go on.", ["Wait... what?", "Nothing...", "Go on."]),
        ("First line\nsecond. Third", ["First line", "second.", "Third"]),
        ("今日は。元気です。", ["今日は。", "元気です。"]),
        ("  \n \t\n", []),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_documents_of_text_files(tmp_path, compression):
    pack = COMPRESSIONS[compression]
    text = "\ufeffFirst one.  Its second.\r\nLast line.\r\n\r\n \t \n\nÜber zwei.\n".encode()
    records = b'{"text": "One.\\nTwo"}\n{"text": " "}\n{"text": "A\\n\\nBody. \\ud83d"}\n'
    (tmp_path / f"b.train{compression}").write_bytes(pack(text))
    (tmp_path / f"a.jsonl{compression}").write_bytes(pack(records))
    found = {
        document.id: document.parts for document in corpus_of(f"text:{tmp_path}/*").documents()
    }
    assert list(found.items()) == [
        (f"a.jsonl{compression}:1", ("One.", "\nTwo")),
        (f"a.jsonl{compression}:3", ("A", "\n\nBody.", " \ufffd")),
        (f"b.train{compression}:1", ("First one.", "  Its second.", " Last line.")),
        (f"b.train{compression}:6", ("Über zwei.",)),
    ]
    whole = corpus_of(f"files:{tmp_path}/b*")
    assert [len(document.parts) for document in whole.documents()] == [4]


def test_only_the_first_of_equal_documents_is_kept(tmp_path):
    (tmp_path / "a.txt").write_text("One. Two.\n\nOne.\n\nOne.  Two.\n\nOne. Two.\n")
    data = base_config().data
    data.corpus = f"text:{tmp_path}/*"
    whole = open_corpus(data)
    data.drop_duplicates = True
    distinct = open_corpus(data)
    numbers = [document.id.partition(":")[2] for document in distinct.documents()]
    assert numbers == ["1", "3", "5"]
    assert distinct.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize("compression", [".gz", ".xz"])
def test_a_file_that_is_cut_off_is_refused(tmp_path, compression):
    noise = np.random.default_rng(0).bytes(20_000).hex()
    content = COMPRESSIONS[compression](noise.encode())
    (tmp_path / f"a.txt{compression}").write_bytes(content[:-2000])
    with pytest.raises(EOFError):
        list(corpus_of(f"text:{tmp_path}/*").documents())


def test_published_splits_keep_their_words_and_line_ends(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"ptb.{split}.txt").write_text(f" n't <unk> \n\n {split} N \n")
    documents = list(corpus_of(f"splits:{tmp_path}").documents())
    assert [document.split for document in documents] == ["train", "valid", "test"]
    assert documents[1].parts == ("n't <unk> <eos>", " <eos>", " valid N <eos>")
    (tmp_path / "ptb.test.txt").unlink()
    with pytest.raises(UserError, match=r"expected one file of test in .*, found 0"):
        corpus_of(f"splits:{tmp_path}")


def splits_of(number, data):
    documents = [Document(f"document {index}", ("A sentence.",)) for index in range(number)]
    positions = [position(document.id) for document in documents]
    bounds = find_bounds(data, positions)
    return [bounds.split(document) for document in documents], bounds, min(positions)


def test_splits_are_by_hash_and_none_is_empty_where_there_are_three_documents():
    data = base_config().data
    # These may not change: they decide what every run so far was trained and tested on.
    names = ("json", "abc", "numpy.linalg")
    assert [Bounds(0.05, 0.1).split(Document(name, ())) for name in names] == [
        "valid",
        "train",
        "train",
    ]
    splits, bounds, _ = splits_of(5000, data)
    assert bounds == Bounds(0.05, 0.1)
    # Five standard deviations of the binomial counts.
    assert all(abs(splits.count(name) - 250) < 5 * 250**0.5 for name in ("valid", "test"))
    for number in (3, 4, 5, 10, 45):
        splits, bounds, first = splits_of(number, data)
        assert set(splits) == {"train", "valid", "test"}
        # Only the nearest document is moved.
        assert splits.count("train") >= number - 2 or first < 0.1
    assert splits_of(2, data)[1] == Bounds(0.05, 0.1), "too few"


def test_the_language_is_stationary_and_its_documents_follow_it():
    corpus = SyntheticCorpus(documents=3, vocab_size=12, topics=3, states=4, seed=5)
    model = corpus.language
    for array in (model.topic_prior, model.initial, model.transition, model.emission):
        np.testing.assert_allclose(array.sum(axis=-1), 1, rtol=1e-12)
    after = np.einsum("ts,tsr->tr", model.initial, model.transition)
    np.testing.assert_allclose(after, model.initial, rtol=1e-10)
    samples = [corpus.sample(index) for index in range(600)]
    pairs, emitted = np.zeros((3, 4, 4)), np.zeros((4, 12))
    for sample in samples:
        np.add.at(pairs[sample.topic], (sample.states[:-1], sample.states[1:]), 1)
        np.add.at(emitted, (sample.states, sample.words), 1)
        assert len(sample.words) == sample.sentence_lengths.sum()
    for counts, probabilities in ((pairs, model.transition), (emitted, model.emission)):
        total = counts.sum(axis=-1, keepdims=True)
        deviation = np.sqrt(total * probabilities * (1 - probabilities))
        assert (np.abs(counts - total * probabilities) < 5 * deviation + 1).all()
    document = next(corpus.documents())
    words = [word for part in document.parts for word in part.split()]
    assert words == [model.words[word] for word in samples[0].words]
