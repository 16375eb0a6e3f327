"""Documents to token ids, in other processes if there are many, and to arrays on disk."""

import itertools
import multiprocessing
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertlab.data.documents import Document
from bertlab.data.splits import SPLITS, Bounds
from bertlab.data.tokenizers import Tokenizer, load_tokenizer

# Characters per chunk, and the most chunks that are encoded without starting processes, which
# takes seconds.
CHUNK_CHARACTERS, FEW_CHUNKS = 1 << 18, 8

_tokenizer: Tokenizer | None = None  # in a worker process

Chunk = tuple[str, list[tuple[str, ...]]]
"""A split's name, and the parts of some of its documents."""


class Encoded(NamedTuple):
    """The documents of a chunk that have at least one token.

    Attributes:
        tokens: uint32 [T], all documents end to end.
        sentences: the number of tokens in each sentence that has one.
        documents: the number of such sentences in each document.
        bytes: the size of each document's text in UTF-8.
        unknown_words: with a words tokenizer, the word of each [UNK].
    """

    split: str
    tokens: np.ndarray
    sentences: list[int]
    documents: list[int]
    bytes: list[int]
    unknown_words: list[str]


def chunks(documents: Iterable[Document], bounds: Bounds) -> Iterator[Chunk]:
    """Groups the documents by split, in their order."""
    texts, sizes = {split: [] for split in SPLITS}, dict.fromkeys(SPLITS, 0)
    for document in documents:
        split = bounds.split(document)
        texts[split].append(document.parts)
        sizes[split] += sum(map(len, document.parts))
        if sizes[split] >= CHUNK_CHARACTERS:
            yield split, texts[split]
            texts[split], sizes[split] = [], 0
    yield from ((split, texts[split]) for split in SPLITS if texts[split])


def encode_chunk(tokenizer: Tokenizer, chunk: Chunk) -> Encoded:
    """Tokenises a chunk; sentences and documents without a token are left out."""
    split, texts = chunk
    ids, documents, sizes, unknown_words = [], [], [], []
    for parts, encoded in zip(texts, tokenizer.encode_parts(texts), strict=True):
        found = [(part, part_ids) for part, part_ids in zip(parts, encoded) if part_ids]
        if not found:
            continue
        documents.append(len(found))
        sizes.append(sum(len(part.encode()) for part in parts))
        for part, part_ids in found:
            ids.append(part_ids)
            if tokenizer.has_whole_words and tokenizer.unk_id in part_ids:
                words = zip(tokenizer.words(part), part_ids, strict=True)
                unknown_words += [word for word, index in words if index == tokenizer.unk_id]
    tokens = np.fromiter(itertools.chain.from_iterable(ids), np.uint32)
    return Encoded(split, tokens, list(map(len, ids)), documents, sizes, unknown_words)


def encode_all(chunks: Iterable[Chunk], tokenizer_folder: Path, workers: int) -> Iterator[Encoded]:
    """Encodes chunks in their order, a few ahead, in `workers` processes (0: one per core)."""
    if not workers:  # macOS only reports the number of all cores
        affinity = getattr(os, "sched_getaffinity", None)
        workers = len(affinity(0)) if affinity else os.cpu_count()
    program = getattr(sys.modules["__main__"], "__file__", __file__)
    if not Path(program).exists():  # `python - < FILE`, which other processes cannot import
        print("preparing in one process, because the program is not a file", flush=True)
        workers = 1
    chunks = iter(chunks)
    first = list(itertools.islice(chunks, FEW_CHUNKS + 1))
    chunks = itertools.chain(first, chunks)
    if workers == 1 or len(first) <= FEW_CHUNKS:
        tokenizer = load_tokenizer(tokenizer_folder)
        yield from (encode_chunk(tokenizer, chunk) for chunk in chunks)
        return
    # Not forked: JAX may be running threads.
    context, pending = multiprocessing.get_context("spawn"), deque()
    with ProcessPoolExecutor(workers, context, _start_worker, (tokenizer_folder,)) as pool:
        for chunk in chunks:
            pending.append(pool.submit(_encode_chunk, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        yield from (future.result() for future in pending)


def _start_worker(tokenizer_folder: Path) -> None:
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = load_tokenizer(tokenizer_folder)


def _encode_chunk(chunk: Chunk) -> Encoded:
    return encode_chunk(_tokenizer, chunk)


class SplitWriter:
    """Writes the arrays of `Split`.

    Args:
        folder: the split's folder.
        tokenizer: the one that made the ids.
        types: row of `Prepared.characters` of each word outside the vocabulary; all splits add to
            it. None without a words tokenizer.
    """

    def __init__(self, folder: Path, tokenizer, types: dict[str, int] | None):
        folder.mkdir()
        self._unk_id, self._vocab_size, self._types = tokenizer.unk_id, tokenizer.vocab_size, types
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)
        ids = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        self._dtypes = {"tokens": ids, "sentences": "i8", "documents": "i8", "bytes": "i8"}
        if types is not None:
            self._dtypes["words"] = np.uint32
        self._files = {name: (folder / f"{name}.raw").open("wb") for name in self._dtypes}
        self._append("sentences", [0])
        self._append("documents", [0])
        self.statistics = dict.fromkeys(("documents", "sentences", "tokens", "bytes", "unknown"), 0)

    def _append(self, name: str, values) -> None:
        np.asarray(values, self._dtypes[name]).tofile(self._files[name])

    def add(self, encoded: Encoded) -> None:
        """Appends documents."""
        statistics = self.statistics
        self._append("sentences", statistics["tokens"] + np.cumsum(encoded.sentences))
        self._append("documents", statistics["sentences"] + np.cumsum(encoded.documents))
        self._append("tokens", encoded.tokens)
        self._append("bytes", encoded.bytes)
        is_unknown = encoded.tokens == self._unk_id
        if self._types is not None:
            words = encoded.tokens.copy()
            words[is_unknown] = [
                self._types.setdefault(word, self._vocab_size + len(self._types))
                for word in encoded.unknown_words
            ]
            self._append("words", words)
        self.counts += np.bincount(encoded.tokens, minlength=self._vocab_size)
        statistics["documents"] += len(encoded.documents)
        statistics["sentences"] += len(encoded.sentences)
        statistics["tokens"] += len(encoded.tokens)
        statistics["bytes"] += sum(encoded.bytes)
        statistics["unknown"] += int(is_unknown.sum())

    def close(self) -> None:
        """Gives the files their headers."""
        for name, file in self._files.items():
            file.close()
            raw, dtype = Path(file.name), np.dtype(self._dtypes[name])
            shape = (raw.stat().st_size // dtype.itemsize,)
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            with raw.open("rb") as source, raw.with_suffix(".npy").open("wb") as target:
                np.lib.format.write_array_header_1_0(target, header)
                shutil.copyfileobj(source, target)
            raw.unlink()
