"""Preparation: a corpus becomes token ids on disk, once.

The result is a folder `CORPUS-FINGERPRINT` of the cache directory (`prepared.py`). The fingerprint
covers the text and the settings of the tokenizer and the splits, so a second preparation finds the
folder and does nothing. It is built under another name and renamed when it is complete.

The text is read twice, for the splits with a sample to train the tokenizer on, and for the ids;
memory does not grow with it.
"""

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock

from bertlab.data.characters import character_ids, character_table
from bertlab.data.corpora import open_corpus
from bertlab.data.corpora.text import digest_files
from bertlab.data.documents import Corpus, Document
from bertlab.data.encode import chunks, encode_all
from bertlab.data.prepared import Prepared, load_prepared
from bertlab.data.splits import Bounds, read_in_splits, used_splits
from bertlab.data.tokenizers import Tokenizer, load_tokenizer, sample_texts, train_tokenizer
from bertlab.data.writing import SplitWriter
from bertlab.errors import UserError
from bertlab.files import cache_directory, write_json

# Part of the fingerprint: raise it with every change that changes the output.
_VERSION = 2


def prepare(data) -> Prepared:
    """Tokenises the corpus of `config.data`, unless that has been done."""
    if data.valid_fraction + data.test_fraction >= 1:
        raise UserError(
            f"config.data.valid_fraction={data.valid_fraction} and test_fraction="
            f"{data.test_fraction} leave no documents for training; make their sum less than 1"
        )
    if data.corpus.startswith("splits:") and not (data.valid_fraction and data.test_fraction):
        raise UserError(
            "config.data.valid_fraction and test_fraction must be above 0 for splits:FOLDER, which"
            " publishes both splits"
        )
    corpus = open_corpus(data)
    fingerprint = _fingerprint(corpus, data)
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.corpus.replace(":", "/")).name).strip("-")[:40]
    directory = cache_directory(data.directory) / f"{name}-{fingerprint[:16]}"
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_name(f".{directory.name}.lock")):
            if not directory.exists():  # another process may have prepared it meanwhile
                _build(corpus, data, fingerprint, directory)
    return load_prepared(directory)


def _fingerprint(corpus: Corpus, data) -> str:
    tokenizer = data.tokenizer.to_dict()
    if tokenizer["path"]:  # nothing is trained
        path = Path(tokenizer["path"]).expanduser()
        if not path.exists():
            raise UserError(f"config.data.tokenizer.path: there is no {path}")
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
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed; the lock is ours
    temporary.mkdir()
    try:
        settings, tokenizer = data.tokenizer, None
        if settings.path:
            tokenizer = load_tokenizer(settings.path, settings.lowercase or None)
        (sample, documents), bounds = read_in_splits(corpus, data, functools.partial(_read, data))
        if empty := [split for split, number in documents.items() if not number]:
            raise UserError(
                f'config.data.corpus="{data.corpus}" has {sum(documents.values())} documents, and'
                f" none is in the {empty[0]} split; use more text, or another"
                " config.data.valid_fraction or test_fraction (0 leaves a split out)"
            )
        if tokenizer is None:
            tokenizer = train_tokenizer(
                settings.kind, sample, settings.vocab_size, settings.lowercase, settings.split
            )
        tokenizer.save(temporary / "tokenizer")
        meta = {
            "fingerprint": fingerprint,
            "corpus": data.corpus,
            "tokenizer": settings.to_dict(),
            "valid_fraction": data.valid_fraction,
            "test_fraction": data.test_fraction,
            "statistics": _write(temporary, corpus, data, bounds, tokenizer),
        }
        write_json(temporary / "meta.json", meta)
        os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(data, documents: Iterator[Document], bounds: Bounds) -> tuple[list[str], dict[str, int]]:
    """A sample of the train split's sentences, and the number of documents of each split."""
    settings = data.tokenizer
    numbers = dict.fromkeys(used_splits(data), 0)

    def sentences() -> Iterator[str]:
        for document in documents:
            split = bounds.split(document)
            numbers[split] += 1
            if split == "train" and not settings.path:
                yield from document.parts

    sample = sample_texts(sentences(), settings.sample_sentences, settings.seed, settings.lowercase)
    return sample, numbers


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
