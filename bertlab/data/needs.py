"""What a preparation will need of disk and memory, estimated before it starts from the corpus's first documents.

The factors were measured (`tests/bench/large_corpus.py`, docs/reference/text.md): records take 0.4 to 0.5 bytes for each byte
of text, and up to 500 for each document, since documents are compressed one by one. Training a unigram vocabulary takes about
20 bytes for each byte of its sample.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertlab.data.documents import Corpus
from bertlab.data.encode import CHUNK_CHARACTERS, FEW_CHUNKS, HASH
from bertlab.data.parallel import available_cores
from bertlab.errors import UserError

READ = 4_000_000  # bytes of text that are read for an estimate
PER_BYTE, PER_DOCUMENT = 0.5, 500  # bytes of disk
PROCESS = 250e6  # bytes of memory of this process and of each worker
PER_SAMPLED_BYTE = {"unigram": 20, "bpe": 20}  # bytes of memory, beside the sample itself
PER_SENTENCE = 60  # bytes that Python adds to a text


@dataclass(frozen=True)
class Needs:
    """Bytes of the corpus's text, and of the disk and memory that its preparation needs."""

    text: float
    disk: float
    memory: float

    def __str__(self) -> str:
        needs = f"{size(self.disk)} of disk and up to {size(self.memory)} of memory"
        return f"preparing about {size(self.text)} of text needs about {needs}"

    def check_disk(self, root: Path) -> None:
        """Refuses a disk that has too little room. Raises: UserError: names the directory and both numbers."""
        place = next(path for path in (root, *root.parents) if path.exists())
        if (free := shutil.disk_usage(place).free) < self.disk:
            raise UserError(
                f"config.data.directory={root} has {size(free)} of free disk, and preparing about {size(self.text)} of text"
                f" needs about {size(self.disk)} there; make room, or choose a directory on another disk"
            )


def needs_of(corpus: Corpus, options: Mapping[str, Any]) -> Needs | None:
    """The needs of a preparation on this machine; None for a corpus that does not know what share of it was read.

    Args:
        corpus: Its first `READ` bytes of text are read.
        options: `config.data`, with all keys.
    """
    if corpus.share_read is None:
        return None
    text = sentences = documents = 0
    share = 1.0
    for document in corpus.documents():
        documents += 1
        sentences += len(document.sentences)
        text += sum(len(sentence.encode()) for sentence in document.sentences)
        if text >= READ:
            share = corpus.share_read or 1.0
            break
    text, sentences, documents = (number / share for number in (text, sentences, documents))
    tokenizer, workers = options["tokenizer"], options["workers"] or available_cores()
    if text <= FEW_CHUNKS * CHUNK_CHARACTERS:
        workers = 1  # no process is started for so little text
    sampled = 0.0 if tokenizer["path"] else min(1.0, tokenizer["sample_sentences"] / max(sentences, 1))
    sample = sampled * (text * (1 + PER_SAMPLED_BYTE.get(tokenizer["kind"], 0)) + PER_SENTENCE * sentences)
    return Needs(
        text,
        disk=PER_BYTE * text + PER_DOCUMENT * documents + HASH.itemsize * (sentences + documents),
        memory=PROCESS * (1 + (workers if workers > 1 else 0)) + sample,
    )


def size(number: float) -> str:
    """Bytes in words: "1.4 GB", "95 MB", "3 kB"."""
    for unit, of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= of:
            return f"{number / of:.{1 if number < 10 * of else 0}f} {unit}"
    return f"{number / 1e3:.0f} kB"
