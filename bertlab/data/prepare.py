"""Preparation: a corpus becomes token ids on disk, once.

The result is a folder `CACHE/CORPUS-FINGERPRINT/`: `dataset/`, a TFDS dataset in ArrayRecord shards with a record per document;
`tokenizer/`; `counts.npy`, how often each id occurs in the train split; `prepared.json` with statistics; and `files.json`
with the size and digest of each file. The fingerprint covers the text and the options of the tokenizer and the splits, so a
second preparation finds the folder and does nothing. The folder is built under another name and renamed when it is complete.

Memory stays bounded for corpora of any size: documents stream through a pool of processes in chunks, and records go to disk as
they come (TFDS's `SequentialWriter`; its usual builders shuffle in memory). So do hashes of sentences and documents, to
count those that occur twice.

`LocalBackend` does this. `bertlab.data.beam.BeamBackend` makes the same folder with Apache Beam.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow_datasets as tfds

from bertlab import keys
from bertlab.data.corpora import corpus_of
from bertlab.data.documents import Corpus, Document
from bertlab.data.duplicates import HashFiles
from bertlab.data.encode import CHUNK_CHARACTERS, FEW_CHUNKS, encode_documents
from bertlab.data.needs import needs_of
from bertlab.data.parallel import grouped, ordered_map
from bertlab.data.prepared import FORMAT_VERSION, TEMPORARY, Prepared, load_prepared, write_list
from bertlab.data.splits import Splits, check_fractions, named_splits, read_in_splits, require_documents
from bertlab.data.tokenizers import Tokenizer, load_tokenizer, normalise, train_on_sample
from bertlab.data.vocabularies import sample_texts
from bertlab.errors import UserError
from bertlab.files import TAKEN, cache_directory, move, refuse_unwritable, temporary_folder, write_json
from bertlab.locks import alone
from bertlab.progress import tell

COUNTS = ("documents", "sentences", "tokens", "bytes", "unknown")
"""Totals over the documents of a split; see `Prepared.statistics`."""


_DOCUMENTS_PER_SHARD = 1 << 15

Progress = Callable[[str, float, float | None], None]


class Backend(Protocol):
    """Runs one preparation; made of (corpus, options of `config.data`, cache directory, progress)."""

    def fingerprint(self) -> str:
        """The corpus's fingerprint."""

    def find_splits(self) -> Splits:
        """Reads the corpus. Called first. Raises: UserError: a split has no documents."""

    def train_tokenizer(self, folder: Path) -> Tokenizer:
        """Trains the tokenizer that the options ask for; it may use `folder` but must leave it unchanged."""

    def write_dataset(self, folder: Path, tokenizer: Tokenizer) -> tuple[dict[str, dict[str, int]], np.ndarray]:
        """Writes the TFDS dataset `folder/dataset` with the tokenizer, which is saved as `folder/tokenizer`.

        Returns:
          Statistics by split (`Prepared.statistics`) and how often each id occurs in the train split, int64 [V].
        """


def prepare(
    data_config: Mapping,
    *,
    progress: Progress | None = None,
    backend: Callable[[Corpus, dict[str, Any], Path, Progress], Backend] | None = None,
) -> Prepared:
    """Tokenises a corpus and writes it to disk, unless it is already there.

    Args:
      data_config: `config.data` (a mapping or an ml_collections.ConfigDict); keys that it lacks have their defaults.
      progress: called with (label, done, total or None if unknown); at the end of each part, done equals total. None:
        `bertlab.progress.tell`.
      backend: makes what runs the preparation; default `LocalBackend`. The result does not depend on it.

    Raises:
      UserError: if the corpus cannot be read or is empty, the directory is a URL, the disk has no room for the result, a split
        that should have documents gets none, or the tokenizer cannot be made.
    """
    options = _options(data_config)
    root = cache_directory(options["directory"])
    corpus = corpus_of(options)
    runner = (backend or LocalBackend)(corpus, options, root, progress or tell)
    fingerprint = _fingerprint(runner, options)
    directory = root / f"{_slug(options['corpus'])}-{fingerprint[:16]}"
    if not directory.exists():
        settings = options["tokenizer"]
        given = load_tokenizer(settings["path"], lowercase=settings["lowercase"] or None) if settings["path"] else None
        refuse_unwritable(root, f"config.data.directory={root}")
        with alone(directory, wait=True):
            if not directory.exists():  # another process may have prepared it meanwhile
                if needs := needs_of(corpus, options):
                    needs.check_disk(root)
                    if backend is None:  # Beam's workers have their own memory
                        print(needs, flush=True)
                _build(runner, options, fingerprint, directory, given)
    return load_prepared(directory)


def describe(prepared: Prepared) -> str:
    """A readable summary of a prepared corpus: its location, tokenizer and the size of each split."""
    tokenizer = prepared.tokenizer
    case = "lower-cased" if tokenizer.lowercase else "cased"
    lines = [
        f"prepared corpus  {prepared.directory}",
        f"tokenizer        {tokenizer.kind}, {tokenizer.vocab_size:,} pieces, {case}",
        "sentences        end at a full stop or other closing mark, and at the end of a line",
        f"{'split':<7}{'documents':>12}{'sentences':>13}{'tokens':>15}{'bytes':>15}{'bytes/token':>13}{'[UNK]':>9}"
        f"{'repeated':>10}",
    ]
    for split, counts in prepared.statistics.items():
        lines.append(
            f"{split:<7}{counts['documents']:>12,}{counts['sentences']:>13,}{counts['tokens']:>15,}{counts['bytes']:>15,}"
            f"{counts['bytes'] / counts['tokens']:>13.2f}{counts['unknown'] / counts['tokens']:>9.2%}"
            f"{counts['duplicate_sentences'] / counts['sentences']:>10.2%}"
        )
    return "\n".join(lines)


def _options(data_config: Mapping) -> dict[str, Any]:
    config = data_config.to_dict() if hasattr(data_config, "to_dict") else dict(data_config)
    defaults = lambda group: {key.leaf: key.default for key in keys.KEYS if key.group == group}
    options = {**defaults("data"), **config}
    options["tokenizer"] = {**defaults("data.tokenizer"), **config.get("tokenizer", {})}
    keys.check(options, "data")
    check_fractions(options)
    return options


def check_corpus(data_config) -> None:
    """Refuses a corpus that does not exist before any text is read. TFDS corpora are only checked when they are opened.

    Raises:
        UserError: the corpus is unknown, or no file matches.
    """
    options = _options(data_config)
    if not options["corpus"].startswith("tfds:"):
        corpus_of(options)


def _fingerprint(backend: Backend, options: dict[str, Any]) -> str:
    tokenizer = dict(options["tokenizer"])
    if tokenizer["split"] == "punctuation":  # a key that earlier preparations did not have
        del tokenizer["split"]
    if path := tokenizer["path"]:
        # A tokenizer that is given is known by its contents; nothing is trained.
        tokenizer = {"files": _digest_files(Path(path).expanduser()), "lowercase": tokenizer["lowercase"]}
    if path or tokenizer["kind"] not in ("wordpiece", "words"):
        tokenizer["spaces"] = "as written"  # earlier preparations lost those between sentences
    content = {
        "format": FORMAT_VERSION,
        "corpus": backend.fingerprint(),
        "tokenizer": tokenizer,
        "valid_fraction": options["valid_fraction"],
        "test_fraction": options["test_fraction"],
    }
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digest_files(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if not file.is_file():
            raise UserError(
                f'config.data.tokenizer.path="{path}": {file} is not a file; name a saved tokenizer or a vocab.txt.'
            )
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _slug(spec: str) -> str:
    kind, _, name = spec.partition(":")
    name = re.sub(r"[^A-Za-z0-9]+", "-", name.rstrip("/").rpartition("/")[2]).strip("-")
    return f"{kind}-{name[:40]}" if name else kind


def _build(backend: Backend, options: dict[str, Any], fingerprint: str, directory: Path, tokenizer: Tokenizer | None) -> None:
    """Builds the folder beside `directory`, with a given tokenizer or its own, and gives it its name when it is complete."""
    with temporary_folder(directory.parent, TEMPORARY) as folder:
        temporary = folder / "whole"  # with the mode of a new folder; that of `folder` is its owner's alone
        temporary.mkdir()
        backend.find_splits()  # a wrong number of documents is known before a tokenizer is trained
        tokenizer = tokenizer or backend.train_tokenizer(temporary)
        tokenizer.save(temporary / "tokenizer")
        statistics, counts = backend.write_dataset(temporary, tokenizer)
        np.save(temporary / "counts.npy", counts)
        summary = {
            "format": FORMAT_VERSION,
            "fingerprint": fingerprint,
            "statistics": statistics,
            "corpus": options["corpus"],
            **{key: options[key] for key in ("tokenizer", "valid_fraction", "test_fraction")},
        }
        write_json(temporary / "prepared.json", summary)
        write_list(temporary)
        try:
            move(temporary, directory)
        except OSError as error:
            # Without locks, another process may have prepared it meanwhile; its result is as good.
            if error.errno not in TAKEN:
                raise


def chunks(documents: Iterable[Document]) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """Groups documents (id and parts) to make sending them to another process cheap."""
    pairs = ((document.id, document.parts) for document in documents)
    return grouped(pairs, lambda pair: sum(map(len, pair[1])), CHUNK_CHARACTERS)


def features(tokenizer: Tokenizer) -> tfds.features.FeaturesDict:
    """The fields of the dataset's records."""
    words = {"unknown_words": tfds.features.Text(doc="the words behind [UNK], one a line")} if tokenizer.has_whole_words else {}
    # Arrays are stored as bytes: a list of integers takes ten times as long to read.
    array = functools.partial(tfds.features.Tensor, shape=(None,), dtype=np.int32, encoding="bytes")
    return tfds.features.FeaturesDict(
        {
            "tokens": array(doc="ids of the document's tokens"),
            "sentence_lengths": array(doc="number of tokens of each sentence"),
            "bytes": tfds.features.Scalar(np.int64, doc="length of the text in UTF-8"),
            "document": tfds.features.Scalar(np.int32, doc="number of the document in the whole corpus"),
            "id": tfds.features.Text(doc="name of the document"),
            **words,
        }
    )


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A document with tokens.

    Attributes:
      split: the split it belongs to.
      example: the record, see `features`.
      counts: its share of each of `COUNTS`.
      hashes: of its "sentences" and "documents", see `encode_documents`.
    """

    split: str
    example: dict[str, Any]
    counts: tuple[int, ...]
    hashes: dict[str, np.ndarray]


def examples_of(records: Iterable[dict[str, Any]], first: int, splits: Splits) -> Iterator[Encoded]:
    """Makes examples of what `encode_documents` returned; documents without a token are left out.

    Args:
      records: of documents that follow each other in the corpus.
      first: number of the first of them.
      splits: the splits of the corpus.
    """
    for number, record in enumerate(records, first):
        unknown = record.pop("unknown")
        hashes = {"sentences": record.pop("sentence_hashes"), "documents": record.pop("document_hash")}
        if len(record["tokens"]):
            split = splits.of(record["id"])
            counts = 1, len(record["sentence_lengths"]), len(record["tokens"]), record["bytes"], unknown
            yield Encoded(split, {**record, "document": number}, counts, hashes)


class LocalBackend:
    """Preparation by processes of this machine; see `Backend` for its methods."""

    def __init__(self, corpus: Corpus, options: dict[str, Any], root: Path, progress: Progress):
        """Args: see `Backend`."""
        self._corpus, self._options, self._progress = corpus, options, progress

    def fingerprint(self) -> str:
        return self._corpus.fingerprint()

    def find_splits(self) -> Splits:
        (self._sample, documents), self._splits = read_in_splits(self._corpus, self._options, self._read)
        require_documents(documents, self._corpus)
        self._documents = sum(documents.values())
        self._progress("reading the text", self._documents, self._documents)
        return self._splits

    def _read(self, documents: Iterator[Document], splits: Splits) -> tuple[list[str], dict[str, int]]:
        """The sentences that a tokenizer is trained on, and the number of documents of each split."""
        settings = self._options["tokenizer"]
        number = dict.fromkeys(named_splits(self._options), 0)

        def train_sentences() -> Iterator[str]:
            for document in documents:
                split = splits.of(document.id)
                number[split] += 1
                share = self._corpus.share_read
                self._progress("reading the text", *((sum(number.values()), None) if share is None else (share, 1)))
                if split == "train" and not settings["path"]:
                    yield from (normalise(sentence, settings["lowercase"]) for sentence in document.sentences)

        return sample_texts(train_sentences(), settings["sample_sentences"], settings["seed"]), number

    def train_tokenizer(self, folder: Path) -> Tokenizer:
        settings = self._options["tokenizer"]
        self._progress("training the tokenizer", 0, 1)
        asked = (settings[key] for key in ("vocab_size", "lowercase", "split"))
        tokenizer = train_on_sample(settings["kind"], self._sample, *asked)
        self._sample = []
        self._progress("training the tokenizer", 1, 1)
        return tokenizer

    def write_dataset(self, folder: Path, tokenizer: Tokenizer) -> tuple[dict[str, dict[str, int]], np.ndarray]:
        dataset = folder / "dataset"
        dataset.mkdir()
        identity = tfds.core.DatasetIdentity(
            name="bertlab", version=tfds.core.Version("1.0.0"), data_dir=str(dataset), module_name="bertlab"
        )
        writer = tfds.core.SequentialWriter(
            tfds.core.DatasetInfo(builder=identity, features=features(tokenizer)),
            max_examples_per_shard=_DOCUMENTS_PER_SHARD,
            file_format="array_record",
        )
        splits = named_splits(self._options)
        writer.initialize_splits(splits)
        statistics = {split: np.zeros(len(COUNTS), np.int64) for split in splits}
        encoded = ordered_map(
            encode_documents,
            chunks(self._corpus.documents()),
            workers=self._options["workers"],
            load=functools.partial(load_tokenizer, folder / "tokenizer"),
            few=FEW_CHUNKS,
        )
        occurrences = np.zeros(tokenizer.vocab_size, np.int64)
        document = 0
        with HashFiles(folder, splits) as hashes:
            for records in encoded:
                examples = {split: [] for split in splits}
                for found in examples_of(records, document, self._splits):
                    examples[found.split].append(found.example)
                    statistics[found.split] += found.counts
                    hashes.add(found.split, found.hashes)
                if examples["train"]:
                    tokens = np.concatenate([example["tokens"] for example in examples["train"]])
                    occurrences += np.bincount(tokens, minlength=len(occurrences))
                writer.add_examples(examples)
                document += len(records)
                self._progress("tokenising", document, self._documents)
            counts = {split: dict(zip(COUNTS, found.tolist(), strict=True)) for split, found in statistics.items()}
            require_documents({split: found["documents"] for split, found in counts.items()}, self._corpus)
            writer.close_all()
            for split in splits:
                counts[split] |= hashes.counts(split)
        self._progress("tokenising", document, document)
        return counts, occurrences
