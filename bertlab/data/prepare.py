"""Preparation: a corpus becomes token ids on disk, once.

The result is a folder `CORPUS-FINGERPRINT` (`prepared.py`), renamed when it is complete; the
fingerprint covers the text and the settings of the tokenizer and the splits. The text is read
twice: for the splits and a sample to train the tokenizer on, and for the ids, made in several
processes if it is long. Memory does not grow with its size.
"""

import array
import functools
import itertools
import json
import multiprocessing
import os
import re
import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from bertlab.data.characters import character_ids, character_table
from bertlab.data.corpora import open_corpus
from bertlab.data.corpora.text import digest, files_of
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

Chunk = tuple[str, list[tuple[str, ...]]]  # a split's name, and the parts of some documents


def prepare(data) -> Prepared:
    """Tokenises the corpus of `config.data`, unless that has been done."""
    corpus = open_corpus(data)
    fingerprint = _fingerprint(corpus, data)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.corpus.replace(":", "/")).name).strip("-")[:40]
    directory = cache_directory(data.directory) / f"{name}-{fingerprint[:16]}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        # A process that `encode_all` started must not wait here for the one that waits for it.
        wait = -1 if multiprocessing.current_process().name == "MainProcess" else 0
        try:
            with FileLock(directory.with_name(f".{directory.name}.lock"), timeout=wait):
                if not directory.exists():  # another process may have prepared it meanwhile
                    _build(corpus, data, fingerprint, directory)
        except Timeout:
            raise UserError("put your script's code under `if __name__ == '__main__':`") from None
    return load_prepared(directory)


def _fingerprint(corpus, data) -> str:
    tokenizer = data.tokenizer.to_dict()
    if tokenizer["path"]:  # nothing is trained
        files = files_of(Path(tokenizer["path"]).expanduser())
        tokenizer = {"files": digest("", files), "lowercase": tokenizer["lowercase"]}
    content = {
        "version": _VERSION,
        "corpus": corpus.fingerprint(),
        "tokenizer": tokenizer,
        "fractions": [data.valid_fraction, data.test_fraction],
    }
    return digest(json.dumps(content, sort_keys=True))


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
        texts = _train_sentences(corpus, bounds, positions, numbers)
        sample = sample_texts(texts, settings.sample_sentences, settings.seed, settings.lowercase)
        needed = find_bounds(data, positions)
    if empty := [split for split in splits if not numbers[split]]:
        raise UserError(
            f'config.data.corpus="{data.corpus}" has {numbers.total()} documents, and'
            f" none is in the {empty[0]} split; use more text, or another"
            " config.data.valid_fraction or test_fraction (0 leaves a split out)"
        )
    return sample, bounds


def _train_sentences(corpus, bounds, positions, numbers) -> Iterator[str]:
    """The train split's sentences; adds all documents to `positions` and `numbers`."""
    for document in corpus.documents():
        if not document.split:
            positions.append(position(document.id))
        split = bounds.split(document)
        numbers[split] += 1
        if split == "train":
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


class ArrayFile:
    """A .npy file of one dimension to append to; its header has the length once it is closed."""

    def __init__(self, path: Path, dtype):
        self._file, self._dtype, self.length = path.open("wb"), np.dtype(dtype), 0
        self._write_header()

    def _write_header(self) -> None:
        self._file.seek(0)  # NumPy leaves room for a longer length
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values) -> None:
        np.asarray(values, self._dtype).tofile(self._file)
        self.length += len(values)

    def close(self) -> None:
        self._write_header()
        self._file.close()


def _write(folder: Path, splits, tokenizer: Tokenizer, found: Iterable[Encoded]) -> dict:
    """Writes the arrays of each `Split`; returns the statistics by split."""
    size, unknown = tokenizer.vocab_size, tokenizer.unk_id
    dtypes = dict.fromkeys(("sentences", "documents", "bytes"), np.int64)
    dtypes["tokens"] = np.uint16 if size <= 1 << 16 else np.uint32
    if tokenizer.has_whole_words:
        dtypes["words"] = np.uint32
    files, counts, sizes = {}, {split: np.zeros(size, np.int64) for split in splits}, Counter()
    for split in splits:
        (folder / split).mkdir()
        paths = {name: folder / split / f"{name}.npy" for name in dtypes}
        files[split] = {name: ArrayFile(path, dtypes[name]) for name, path in paths.items()}
        files[split]["sentences"].append([0])
        files[split]["documents"].append([0])
    types = {}  # the row of `Prepared.characters` of each word outside the vocabulary
    for split, tokens, sentences, documents, byte_sizes, unknown_words in found:
        arrays = files[split]
        arrays["documents"].append(arrays["sentences"].length - 1 + np.cumsum(documents))
        arrays["sentences"].append(arrays["tokens"].length + np.cumsum(sentences))
        arrays["tokens"].append(tokens)
        arrays["bytes"].append(byte_sizes)
        sizes[split] += sum(byte_sizes)
        counts[split] += np.bincount(tokens, minlength=size)
        if tokenizer.has_whole_words:
            rows = [types.setdefault(word, size + len(types)) for word in unknown_words]
            tokens[tokens == unknown] = rows
            arrays["words"].append(tokens)
    np.save(folder / "counts.npy", counts["train"])
    if tokenizer.has_whole_words:
        table = np.concatenate([character_table(tokenizer), character_ids(list(types))])
        np.save(folder / "characters.npy", table)
    for file in itertools.chain.from_iterable(arrays.values() for arrays in files.values()):
        file.close()
    return {
        split: {
            "documents": arrays["bytes"].length,
            "sentences": arrays["sentences"].length - 1,
            "tokens": arrays["tokens"].length,
            "bytes": sizes[split],
            "unknown": int(counts[split][unknown]),
        }
        for split, arrays in files.items()
    }
