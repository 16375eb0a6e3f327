"""Small files that unpack to many gigabytes."""

import gzip
import lzma
import tracemalloc

import pytest
import zstandard

from bertlab import compressed
from bertlab.data.corpora import open_corpus
from bertlab.errors import UserError
from bertlab.interop import word2vec
from bertlab.transfer.load import read_lines

PACK = {
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": lambda content: zstandard.ZstdCompressor(level=1).compress(content),
}


def endless_frame():
    """512 MB of "a" as one frame of Zstandard: 16 kB."""
    frame = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join([*(frame.compress(b"a" * (1 << 26)) for _ in range(8)), frame.flush()])


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """For each kind a file of at most 12 MB that unpacks to at least 10 GB of one character."""
    folder = tmp_path_factory.mktemp("bombs")
    for ending, pack in PACK.items():
        # Unpacked one after the other, as if they were one.
        content = endless_frame() * 600 if ending == ".zst" else pack(b"a" * (1 << 26)) * 160
        (folder / f"a.txt{ending}").write_bytes(content)
        assert len(content) < 12_000_000
    return folder


def most_memory(read):
    """The most bytes that Python's objects took, and what was said."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as raised:
            read()
        return tracemalloc.get_traced_memory()[1], str(raised.value)
    finally:
        tracemalloc.stop()


@pytest.fixture
def smaller(monkeypatch):
    """Smaller limits, which take less time to reach."""
    assert compressed.LONGEST_LINE > 100_000_000, "text8 is one line"
    monkeypatch.setattr(compressed, "LONGEST_LINE", 1 << 24)
    monkeypatch.setattr(compressed, "MOST_TIMES", 2)
    monkeypatch.setattr(compressed, "SMALL", 1 << 20)


@pytest.mark.parametrize("ending", PACK)
def test_a_corpus_of_one_endless_line_is_refused(bombs, ending, smaller):
    path = bombs / f"a.txt{ending}"
    most, said = most_memory(lambda: [*open_corpus(f"text:{path}").documents()])
    assert said == f"{path}:1: the line has more than 16,777,216 bytes; put line ends between its paragraphs"
    assert most < 6 * compressed.LONGEST_LINE


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("read", [lambda path: read_lines(path, "--text"), word2vec.load], ids=["text", "word2vec"])
def test_what_is_read_whole_may_not_unpack_to_far_more_than_itself(bombs, ending, read, smaller):
    most, said = most_memory(lambda: read(bombs / f"a.txt{ending}"))
    assert "unpacks to more than 2 times its own size" in said and f"a.txt{ending}" in said
    assert most < 6 * compressed.LONGEST_LINE


@pytest.mark.parametrize("ending", PACK)
def test_text_that_repeats_itself_is_read_whole(tmp_path, ending):
    line = "the same words again\n"
    content = (line * 300_000).encode()  # 6 MB, of which few kilobytes remain
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACK[ending](content))
    assert path.stat().st_size * compressed.MOST_TIMES < len(content) < compressed.SMALL
    assert compressed.read_whole(path) == content
