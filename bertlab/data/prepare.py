"""Preparation: a corpus becomes token ids on disk, once.

The result is a folder `CORPUS-FINGERPRINT` of the cache directory (`prepared.py`). The fingerprint
covers the text and the settings of the tokenizer and the splits, so a second preparation finds the
folder and does nothing. It is built under another name and renamed when it is complete.

The text is read twice: for the splits and a sample to train the tokenizer on, and for the ids,
which are made in several processes if the text is long. Memory does not grow with its size.
"""

import array
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from bertlab.data.characters import character_ids, character_table
from bertlab.data.corpora import open_corpus
from bertlab.data.corpora.text import digest_files
from bertlab.data.documents import SPLITS, Bounds, find_bounds, position
from bertlab.data.prepared import Prepared, load_prepared
from bertlab.data.tokenizers import Tokenizer, load_tokenizer, sample_texts, train_tokenizer
from bertlab.errors import UserError
from bertlab.files import cache_directory, write_json

# Part of the fingerprint: raise it with every change that alters the output.
_VERSION = 2
# Characters per chunk, and the most chunks that are encoded without starting processes, which
# takes seconds.
CHUNK_CHARACTERS, FEW_CHUNKS = 1 << 18, 8

_tokenizer_in = functools.lru_cache(maxsize=1)(load_tokenizer)  # loaded once in each process

Chunk = tuple[str, list[tuple[str, ...]]]
"""A split's name, and the parts of some of its documents."""


def prepare(data) -> Prepared:
    """Tokenises the corpus of `config.data`, unless that has been done."""
    corpus = open_corpus(data)
    fingerprint = _fingerprint(corpus, data)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.corpus.replace(":", "/")).name).strip("-")[:40]
    directory = cache_directory(data.directory) / f"{name}-{fingerprint[:16]}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f".{directory.name}.lock")):
            if not directory.exists():  # another process may have prepared it in the meantime
                _build(corpus, data, fingerprint, directory)
    return load_prepared(directory)


def _fingerprint(corpus, data) -> str:
    tokenizer = data.tokenizer.to_dict()
    if tokenizer["path"]:  # nothing is trained
        path = Path(tokenizer["path"]).expanduser()
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        files = [file for file in files if file.is_file()]
        digest = digest_files("", [file.name for file in files], files)
        tokenizer = {"files": digest, "lowercase": tokenizer["lowercase"]}
    content = {
        "version": _VERSION,
        "corpus": corpus.fingerprint(),
        "tokenizer": tokenizer,
        "fractions": [data.valid_fraction, data.test_fraction],
    }
    content = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _build(corpus, data, fingerprint: str, directory: Path) -> None:
    print(f"preparing {data.corpus} in {directory}", flush=True)
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process; the lock is ours
    temporary.mkdir()
    try:
        settings = data.tokenizer
        if settings.path:
            tokenizer = load_tokenizer(settings.path, settings.lowercase or None)
        held_out = [split for split in SPLITS[1:] if data[f"{split}_fraction"] > 0]
        splits = SPLITS if data.corpus.startswith("splits:") else ["train", *held_out]
        sample, bounds = _read(corpus, data, splits)
        if not settings.path:
            tokenizer = train_tokenizer(
                settings.kind, sample, settings.vocab_size, settings.lowercase, settings.split
            )
        tokenizer.save(temporary / "tokenizer")
        found = encode_all(_chunks(corpus, bounds), temporary / "tokenizer", data.workers)
        statistics = _write(temporary, splits, tokenizer, found)
        meta = {"fingerprint": fingerprint, "data": data.to_dict(), "statistics": statistics}
        write_json(temporary / "meta.json", meta)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(corpus, data, splits) -> tuple[list[str], Bounds]:
    """A sample of the train split's sentences, and the bounds of the splits. If these turn out to
    differ from those of the fractions, as in a small corpus, the text is read again."""
    settings, bounds, needed = data.tokenizer, None, find_bounds(data, [])
    while bounds != needed:
        bounds, positions, numbers = needed, array.array("d"), Counter()
        texts = _train_sentences(corpus, bounds, positions, numbers, not settings.path)
        sample = sample_texts(texts, settings.sample_sentences, settings.seed, settings.lowercase)
        needed = find_bounds(data, positions)
    if empty := [split for split in splits if not numbers[split]]:
        raise UserError(
            f'config.data.corpus="{data.corpus}" has {numbers.total()} documents, and'
            f" none is in the {empty[0]} split; use more text, or another"
            " config.data.valid_fraction or test_fraction (0 leaves a split out)"
        )
    return sample, bounds


def _train_sentences(corpus, bounds, positions, numbers, wanted) -> Iterator[str]:
    """Train's sentences, if they are wanted; adds all documents to `positions` and `numbers`."""
    for document in corpus.documents():
        if not document.split:
            positions.append(position(document.id))
        split = bounds.split(document)
        numbers[split] += 1
        if wanted and split == "train":
            yield from document.parts


def _chunks(corpus, bounds: Bounds) -> Iterator[Chunk]:
    """Groups the documents by split, in their order."""
    texts, sizes = {split: [] for split in SPLITS}, dict.fromkeys(SPLITS, 0)
    for document in corpus.documents():
        split = bounds.split(document)
        texts[split].append(document.parts)
        sizes[split] += sum(map(len, document.parts))
        if sizes[split] >= CHUNK_CHARACTERS:
            yield split, texts[split]
            texts[split], sizes[split] = [], 0
    yield from ((split, texts[split]) for split in SPLITS if texts[split])


class Encoded(NamedTuple):
    """The documents of a chunk that have at least one token."""

    split: str
    tokens: np.ndarray  # uint32 [T], all documents end to end
    sentences: list[int]  # the number of tokens in each sentence that has one
    documents: list[int]  # the number of such sentences in each document
    bytes: list[int]  # the size of each document's text in UTF-8
    unknown_words: list[str]  # with a words tokenizer, the word of each [UNK]


def encode_all(chunks: Iterator[Chunk], tokenizer: Path, workers: int) -> Iterator[Encoded]:
    """Encodes chunks in their order, a few ahead, in `workers` processes (0: one per core)."""
    if not workers:  # macOS only reports the number of all cores
        affinity = getattr(os, "sched_getaffinity", None)
        workers = len(affinity(0)) if affinity else os.cpu_count()
    program = getattr(sys.modules["__main__"], "__file__", __file__)
    if not Path(program).exists():  # `python - < FILE`, which other processes cannot import
        print("preparing in one process, because the program is not a file", flush=True)
        workers = 1
    first = list(itertools.islice(chunks, FEW_CHUNKS + 1))
    chunks = itertools.chain(first, chunks)
    if workers == 1 or len(first) <= FEW_CHUNKS:
        yield from (encode_chunk(tokenizer, chunk) for chunk in chunks)
        return
    # Not forked: JAX may be running threads.
    context, pending = multiprocessing.get_context("spawn"), deque()
    one_thread = ("TOKENIZERS_PARALLELISM", "false")
    with ProcessPoolExecutor(workers, context, os.putenv, one_thread) as pool:
        for chunk in chunks:
            pending.append(pool.submit(encode_chunk, tokenizer, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        yield from (future.result() for future in pending)


def encode_chunk(tokenizer_folder: Path, chunk: Chunk) -> Encoded:
    """Tokenises a chunk; sentences and documents without a token are left out."""
    tokenizer, (split, texts) = _tokenizer_in(tokenizer_folder), chunk
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


def _write(folder: Path, splits, tokenizer: Tokenizer, found: Iterable[Encoded]) -> dict:
    """Writes the arrays; returns the statistics by split."""
    types = {} if tokenizer.has_whole_words else None
    writers = {split: SplitWriter(folder / split, tokenizer, types) for split in splits}
    for encoded in found:
        writers[encoded.split].add(encoded)
    np.save(folder / "counts.npy", writers["train"].counts)
    if types is not None:
        table = np.concatenate([character_table(tokenizer), character_ids(list(types))])
        np.save(folder / "characters.npy", table)
    return {split: writer.close() for split, writer in writers.items()}


class SplitWriter:
    """Writes the arrays of a `Split`. All add to `types`, the row of `Prepared.characters` of each
    word outside the vocabulary; it is None without a words tokenizer."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, types: dict[str, int] | None):
        folder.mkdir()
        self._unk_id, self._vocab_size, self._types = tokenizer.unk_id, tokenizer.vocab_size, types
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)
        self._bytes = 0
        ids = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        dtypes = {"tokens": ids, "sentences": np.int64, "documents": np.int64, "bytes": np.int64}
        if types is not None:
            dtypes["words"] = np.uint32
        self._dtypes, self._lengths = dtypes, dict.fromkeys(dtypes, 0)
        self._files = {name: (folder / f"{name}.npy").open("wb") for name in dtypes}
        self._write_headers()
        self._append("sentences", [0])
        self._append("documents", [0])

    def _write_headers(self) -> None:
        """Writes the lengths so far; NumPy leaves room for others."""
        for name, file in self._files.items():
            header = {"descr": np.dtype(self._dtypes[name]).str, "fortran_order": False}
            header["shape"] = (self._lengths[name],)
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header)

    def _append(self, name: str, values) -> None:
        np.asarray(values, self._dtypes[name]).tofile(self._files[name])
        self._lengths[name] += len(values)

    def add(self, encoded: Encoded) -> None:
        """Appends documents."""
        tokens, lengths = encoded.tokens, self._lengths
        self._append("documents", lengths["sentences"] - 1 + np.cumsum(encoded.documents))
        self._append("sentences", lengths["tokens"] + np.cumsum(encoded.sentences))
        self._append("tokens", tokens)
        self._append("bytes", encoded.bytes)
        self._bytes += sum(encoded.bytes)
        self.counts += np.bincount(tokens, minlength=self._vocab_size)
        if self._types is not None:
            words = tokens.copy()
            words[tokens == self._unk_id] = [
                self._types.setdefault(word, self._vocab_size + len(self._types))
                for word in encoded.unknown_words
            ]
            self._append("words", words)

    def close(self) -> dict[str, int]:
        """Completes the files; returns the split's statistics."""
        self._write_headers()
        for file in self._files.values():
            file.close()
        lengths = self._lengths
        return {
            "documents": lengths["bytes"],
            "sentences": lengths["sentences"] - 1,
            "tokens": lengths["tokens"],
            "bytes": self._bytes,
            "unknown": int(self.counts[self._unk_id]),
        }
