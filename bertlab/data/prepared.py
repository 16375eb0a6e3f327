"""A prepared corpus on disk and random access to its documents."""

import contextlib
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from bertlab import checksums
from bertlab.data.arrays import read_array
from bertlab.data.features import require_own_classes
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError, reason_of
from bertlab.files import parse_json

FORMAT_VERSION = 4
"""Raise it when a change of the code changes the output. It is part of the fingerprint, so `prepare` meets no other version."""

TEMPORARY = ".preparing"
"""Prefix of temporary folders in the cache directory."""

_SUMMARY = "prepared.json"
_AGAIN = "delete {} and run the same command again: it prepares the corpus anew"


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk.

    Attributes:
      directory: the folder that holds it.
      tokenizer: the tokenizer that made the ids.
      fingerprint: hexadecimal digest of everything that the contents depend on.
      statistics: by split, `documents`, `sentences`, `tokens`, `bytes` (of UTF-8 text), `unknown` (tokens that are [UNK]),
        `duplicate_sentences` and `duplicate_documents` (that repeat one before them in the split), and for held-out splits
        `sentences_in_train` and `documents_in_train`.
    """

    directory: Path
    tokenizer: Tokenizer
    fingerprint: str
    statistics: dict[str, dict[str, int]]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """[V] int64: how often each id occurs in the train split; 0 for specials other than [UNK]."""
        return read_array(self.directory / "counts.npy", _AGAIN.format(self.directory))

    def source(self, split: str, keep_unknown: bool = False) -> "PreparedSource":
        """Random access to the documents of "train", "valid" or "test".

        Args:
          split: its name.
          keep_unknown: unknown words get their own ids, and `source.unknown` maps them back; only for words.

        Raises:
          UserError: if the split was prepared without documents (its fraction is 0).
        """
        if split not in self.statistics:
            raise UserError(
                f'{self.directory} has no split "{split}", only {", ".join(self.statistics)}; set '
                f"config.data.{split}_fraction above 0."
            )
        unknown = UnknownWords(self.tokenizer.vocab_size, self.tokenizer.unk_id) if keep_unknown else None
        return PreparedSource(str(self.directory), split, self.fingerprint, unknown)


class UnknownWords:
    """Ids for words outside the vocabulary, in order of appearance: V, V + 1, ...

    They are names within one process: nothing that is saved or trained on may depend on them. Threads may share it.
    """

    def __init__(self, first_id: int, unk_id: int):
        """Args: first_id: the size of the vocabulary; unk_id: the id of all these words in a prepared corpus."""
        self.first_id = first_id
        self.unk_id = unk_id
        self._ids: dict[str, int] = {}
        self._words: list[str] = []
        self._lock = threading.Lock()

    def ids(self, words: Iterable[str]) -> list[int]:
        """The id of each word."""
        with self._lock:
            return [self._id(word) for word in words]

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = self.first_id + len(self._words)
            self._words.append(word)
        return self._ids[word]

    def words(self, ids: Sequence[int]) -> list[str]:
        """The word of each id."""
        return [self._words[index - self.first_id] for index in ids]


class PreparedSource:
    """Documents of one split by index, for Grain: `len(source)`, `source[i]`.

    A record is a dict: `tokens` int32 [N], `sentence_lengths` int32 [S] (they sum to N), `bytes` int (of the UTF-8 text),
    `document` int (its number in the whole corpus) and `id` str. The arrays are read-only.

    Attributes:
      unknown: the ids of unknown words that replace [UNK] in `tokens`; None where [UNK] stays.
    """

    def __init__(self, directory: str, split: str, fingerprint: str, unknown: UnknownWords | None = None):
        """Args: directory, fingerprint: of the prepared corpus; split: its name; unknown: see above."""
        self._directory = directory
        self._split = split
        self._fingerprint = fingerprint
        self.unknown = unknown

    @functools.cached_property
    def _source(self):
        folder = os.path.join(self._directory, "dataset")
        require_own_classes(Path(folder))
        return tfds.builder_from_directory(folder).as_data_source(self._split)

    @contextlib.contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        """Names documents that cannot be read."""
        try:
            yield
        except IndexError:  # ends a loop over the documents
            raise
        except Exception as error:  # the readers of TFDS and ArrayRecord raise many kinds
            directory, found = Path(self._directory), " ".join(f"{what}: {error}".split())
            raise _damaged(directory, directory / "dataset", found) from error

    def __len__(self) -> int:
        with self._whole("the number of documents"):
            return len(self._source)

    def __getitem__(self, index) -> dict[str, Any]:
        with self._whole(f"document {index} of {self._split}"):
            record = dict(self._source[index])
        record["id"] = record["id"].decode()
        unknown_words = record.pop("unknown_words", b"").decode()
        if self.unknown is not None and unknown_words:
            record["tokens"] = record["tokens"].copy()
            record["tokens"][record["tokens"] == self.unknown.unk_id] = self.unknown.ids(unknown_words.split("\n"))
            record["tokens"].flags.writeable = False
        return record

    def __repr__(self) -> str:
        # Grain compares this when it restores an iterator: equal text, wherever the files lie.
        return f"PreparedSource(fingerprint={self._fingerprint}, split={self._split})"

    def __getstate__(self) -> dict[str, str]:
        return {name: value for name, value in vars(self).items() if name != "_source"}


def check_part(tokens: int, of: int) -> None:
    """Refuses a part (`config.data.unique_tokens`) that is larger than the train split, which has `of` tokens."""
    if tokens > of:
        raise UserError(
            f"config.data.unique_tokens={tokens}: the train split has only {of:,} tokens; lower it, or set it to 0 to read all"
        )


class PartOfSource:
    """So many tokens of a source, in whole documents, as a source of its own: for studies of how often text may be repeated.

    The documents come in a random order that is the same for all runs on a corpus, until there are enough tokens. So a smaller
    part is in every larger one.
    """

    def __init__(self, source: PreparedSource, tokens: int):
        """Args: source: of a split; tokens: at least so many. Raises: UserError: the source has fewer."""
        self._source, self.unknown, self.tokens, chosen = source, source.unknown, 0, []
        for number in np.random.default_rng(0).permutation(len(source)):
            if self.tokens >= tokens:
                break
            chosen.append(number)
            self.tokens += len(source[number]["tokens"])
        check_part(tokens, self.tokens)
        self._numbers = np.sort(chosen)  # in the order of the corpus, so that the whole of it is the source itself

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index) -> dict[str, Any]:
        return self._source[int(self._numbers[index])]

    def __repr__(self) -> str:
        return f"PartOfSource({self._source!r}, {self.tokens} tokens)"


def write_list(directory: Path) -> None:
    """Writes the list of a finished folder's files, so that `load_prepared` notices damage.

    Files of documents are large and have checksums of their own, so only their sizes are in it.
    """
    files = [path for path in directory.rglob("*") if path.is_file()]
    documents = [path for path in files if "array_record" in path.name]
    checksums.write_list(directory, set(files) - set(documents), documents)


def load_prepared(directory: str | Path) -> Prepared:
    """Opens a prepared corpus.

    Raises:
      UserError: if `directory` is not one, or a file of it is missing or damaged. Documents are read later; of their files
        only the sizes are compared here. Folders of earlier versions have no list of their files.
    """
    directory = Path(directory)
    if damage := checksums.find_damage(directory):
        raise _damaged(directory, *damage)
    if not (directory / _SUMMARY).is_file():
        raise UserError(f"{directory} is not a prepared corpus (no {_SUMMARY}); delete it and prepare again.")
    try:
        summary = parse_json((directory / _SUMMARY).read_text(encoding="utf-8"))
        fingerprint, statistics = summary["fingerprint"], summary["statistics"]
        found = summary.get("format", FORMAT_VERSION)  # the first versions with this format did not write it
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, directory / _SUMMARY, reason_of(error)) from error
    if found != FORMAT_VERSION:
        raise UserError(
            f"{directory / _SUMMARY} has format {found}, and this version of bertlab reads format {FORMAT_VERSION};"
            f" {_AGAIN.format(directory)}"
        )
    return Prepared(directory, load_tokenizer(directory / "tokenizer"), fingerprint, statistics)


def _damaged(directory: Path, file: Path, what: str) -> UserError:
    return UserError(f"{file} is damaged ({what}); {_AGAIN.format(directory)}")
