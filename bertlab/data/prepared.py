"""A prepared corpus on disk: flat arrays of token ids, mapped into memory."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.files import read_json


@dataclass(frozen=True)
class Split:
    """The documents of one split, end to end. No sentence and no document is empty."""

    name: str
    tokens: np.ndarray  # uint16 or uint32 [T], ids, without special ones
    sentences: np.ndarray  # int64 [S + 1], where each sentence begins in `tokens`, and the end
    documents: np.ndarray  # int64 [D + 1], the first sentence of each document, and the end
    bytes: np.ndarray  # int64 [D], UTF-8 bytes of each document's text
    # uint32 [T], with a words tokenizer: each token's row of `Prepared.characters`.
    words: np.ndarray | None = None

    def token_bounds(self) -> np.ndarray:
        """int64 [D + 1]: where each document begins in `tokens`, and the end."""
        return self.sentences[self.documents]


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus."""

    directory: Path
    tokenizer: Tokenizer
    fingerprint: str  # hexadecimal digest of the text and of the settings that made the arrays
    # By split: the numbers of documents, sentences, tokens, bytes and unknown tokens.
    statistics: dict[str, dict[str, int]]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """int64 [V]: how often each id occurs in the train split."""
        return np.load(self.directory / "counts.npy")

    @functools.cached_property
    def characters(self) -> np.ndarray:
        """uint16 [types, 50]: characters of the V pieces, then of words outside the vocabulary."""
        return read_array(self.directory / "characters.npy")

    def split(self, name: str) -> Split:
        """The documents of "train", "valid" or "test"."""
        folder = self.directory / name
        if not folder.is_dir():
            raise UserError(
                f"{self.directory} has no {name} split; set config.data.{name}_fraction above 0"
            )
        return Split(name, **{path.stem: read_array(path) for path in folder.glob("*.npy")})


def read_array(path: Path) -> np.ndarray:
    """A read-only array whose pages are read from disk when they are used."""
    return np.asarray(np.load(path, mmap_mode="r"))


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes an array to a temporary name and renames it: several processes may do so."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)


def load_prepared(directory: str | Path) -> Prepared:
    """Opens a prepared corpus."""
    directory = Path(directory)
    meta, tokenizer = read_json(directory / "meta.json"), load_tokenizer(directory / "tokenizer")
    return Prepared(directory, tokenizer, meta["fingerprint"], meta["statistics"])
