"""Preparation: a corpus becomes token ids on disk, once.

The result is a folder `CORPUS-FINGERPRINT` of the cache directory (`prepared.py`). The fingerprint
covers the text and the settings of the tokenizer and the splits, so a second preparation finds the
folder and does nothing. It is built under another name and renamed when it is complete.

The text is read twice: for the splits and a sample to train the tokenizer on, and for the ids.
Memory does not grow with its size.
"""

import array
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock

from bertlab.data.characters import character_ids, character_table
from bertlab.data.corpora import open_corpus
from bertlab.data.corpora.text import digest_files
from bertlab.data.documents import Corpus
from bertlab.data.encode import SplitWriter, chunks, encode_all
from bertlab.data.prepared import Prepared, load_prepared
from bertlab.data.splits import Bounds, find_bounds, position, used_splits
from bertlab.data.tokenizers import Tokenizer, load_tokenizer, sample_texts, train_tokenizer
from bertlab.errors import UserError
from bertlab.files import cache_directory, write_json

# Part of the fingerprint: raise it with every change that alters the output.
_VERSION = 2


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


def _fingerprint(corpus: Corpus, data) -> str:
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


def _build(corpus: Corpus, data, fingerprint: str, directory: Path) -> None:
    print(f"preparing {data.corpus} in {directory}", flush=True)
    temporary = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process; the lock is ours
    temporary.mkdir()
    try:
        settings, tokenizer = data.tokenizer, None
        if settings.path:
            tokenizer = load_tokenizer(settings.path, settings.lowercase or None)
        sample, bounds = _read(corpus, data)
        if tokenizer is None:
            tokenizer = train_tokenizer(
                settings.kind, sample, settings.vocab_size, settings.lowercase, settings.split
            )
        tokenizer.save(temporary / "tokenizer")
        meta = {
            "fingerprint": fingerprint,
            "data": data.to_dict(),
            "statistics": _write(temporary, corpus, data, bounds, tokenizer),
        }
        write_json(temporary / "meta.json", meta)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(corpus: Corpus, data) -> tuple[list[str], Bounds]:
    """A sample of the train split's sentences, and the bounds of the splits.

    These are certain only after the last document. If they turn out to differ from those of the
    fractions, as in a small corpus, the text is read again.
    """
    settings, bounds, needed = data.tokenizer, None, find_bounds(data, [])
    while bounds != needed:
        bounds, positions, numbers = needed, array.array("d"), Counter()
        texts = _train_sentences(corpus, bounds, positions, numbers, not settings.path)
        sample = sample_texts(texts, settings.sample_sentences, settings.seed, settings.lowercase)
        needed = find_bounds(data, positions)
    if empty := [split for split in used_splits(data) if not numbers[split]]:
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


def _write(
    folder: Path, corpus: Corpus, data, bounds: Bounds, tokenizer: Tokenizer
) -> dict[str, dict[str, int]]:
    """Writes the arrays; returns the statistics by split."""
    types = {} if tokenizer.has_whole_words else None
    writers = {split: SplitWriter(folder / split, tokenizer, types) for split in used_splits(data)}
    found = encode_all(chunks(corpus.documents(), bounds), folder / "tokenizer", data.workers)
    for encoded in found:
        writers[encoded.split].add(encoded)
    for writer in writers.values():
        writer.close()
    np.save(folder / "counts.npy", writers["train"].counts)
    if types is not None:
        table = np.concatenate([character_table(tokenizer), character_ids(list(types))])
        np.save(folder / "characters.npy", table)
    return {split: writer.statistics for split, writer in writers.items()}
