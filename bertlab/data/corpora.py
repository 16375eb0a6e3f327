"""Corpora: where documents of text come from.

A corpus is named by one string: `pydocs`, `text:GLOB`, `tfds:NAME` or `synthetic`. It yields documents of sentences, the
same ones in the same order every time, without holding the text in memory, and has a fingerprint that changes when
its text may have changed.
"""

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
from pathlib import Path
from typing import Protocol
import zlib

import zstandard

from bertlab.data.sentences import split_sentences
from bertlab.errors import UserError


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
      id: stable name, by which the document is assigned to train, valid or test.
      sentences: at least one; none is empty or has surrounding white space.
    """

    id: str
    sentences: tuple[str, ...]


class Corpus(Protocol):
    """What every corpus offers; `spec` is the string that names it."""

    spec: str

    def fingerprint(self) -> str:
        """Hexadecimal digest, cheap to compute, that changes when the text may have changed."""

    def documents(self) -> Iterator[Document]:
        """Streams the documents, in the same order every time."""


def open_corpus(spec: str, **options) -> Corpus:
    """Opens the corpus that `spec` names.

    Args:
      spec: `pydocs` (this Python installation's documentation), `text:GLOB[,GLOB...]`, `tfds:NAME` or `synthetic`.
      **options: `workers` for pydocs, `split` and `field` for tfds, the language's options for synthetic.

    Raises:
      UserError: if the name is unknown or what it names is not there.
    """
    kind, _, name = spec.partition(":")
    if kind == "text" and name:
        return TextCorpus(spec)
    if kind == "tfds" and name:
        return TfdsCorpus(spec, **options)
    if spec == "pydocs":
        from bertlab.data import pydocs

        return pydocs.PydocsCorpus(**options)
    if spec == "synthetic":
        from bertlab.data import synthetic

        return synthetic.SyntheticCorpus(**options)
    raise UserError(f'data.corpus="{spec}" names no corpus: use pydocs, text:GLOB, tfds:NAME or synthetic.')


def make_document(document_id: str, text: str) -> Document | None:
    """Splits `text` into a document's sentences; None if it holds nothing but white space."""
    if not text.isascii():
        # JSON can spell half a surrogate pair, which no UTF-8 file or tokenizer can hold.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    sentences = tuple(split_sentences(text))
    return Document(document_id, sentences) if sentences else None


class TextCorpus:
    """`.txt` and `.jsonl` files, each plain or compressed with gzip (.gz), xz (.xz) or Zstandard (.zst).

    In .txt files blank lines separate documents; in .jsonl files each line is a record whose `text` is a document. Line
    ends inside a document separate paragraphs: no sentence crosses them. A document's id is its file's path relative
    to the files' common folder and the number of the line it starts on.
    """

    def __init__(self, spec: str):
        """Args: spec: `text:GLOB[,GLOB...]`. Raises: UserError: if a glob matches no file, or a file of unknown kind."""
        self.spec = spec
        found = set()
        for pattern in spec.removeprefix("text:").split(","):
            matches = glob.glob(os.path.expanduser(pattern.strip()), recursive=True)
            matches = [os.path.abspath(match) for match in matches if os.path.isfile(match)]
            if not matches:
                raise UserError(f'data.corpus="{spec}": "{pattern}" matches no file; check the path and quote the glob.')
            found.update(matches)
        self.files = tuple(Path(path) for path in sorted(found))
        self.folder = Path(os.path.commonpath([path.parent for path in self.files]))
        for path in self.files:
            if _text_format(path) not in (".txt", ".jsonl"):
                raise UserError(
                    f'data.corpus="{spec}": {path} is neither .txt nor .jsonl (plain, .gz, .xz or .zst); '
                    "narrow the glob or rename the file."
                )

    def fingerprint(self) -> str:
        """Digest of the files' relative names and raw bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for path in self.files:
            name = path.relative_to(self.folder).as_posix()
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Streams the documents, file by file in the order of their names.

        Raises:
          UserError: at text that is not UTF-8, a line that is not a JSON object with a `text`, a damaged compressed
            file, or if there is no document at all.
        """
        empty = True
        for path in self.files:
            read = _jsonl_documents if _text_format(path) == ".jsonl" else _txt_documents
            for number, text in read(path):
                document = make_document(f"{path.relative_to(self.folder).as_posix()}:{number}", text)
                if document is not None:
                    empty = False
                    yield document
        if empty:
            raise UserError(f'data.corpus="{self.spec}" holds no text in its {len(self.files)} file(s); name other files.')


_COMPRESSIONS = (".gz", ".xz", ".zst")


def _text_format(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


class _ZstandardReader(io.RawIOBase):
    """Decompresses Zstandard frames; unlike the library's own reader, notices a file that is cut off."""

    def __init__(self, raw: io.BufferedIOBase):
        self._blocks = self._decompress(raw)
        self._rest = memoryview(b"")

    @staticmethod
    def _decompress(raw: io.BufferedIOBase) -> Iterator[bytes]:
        frame = None
        while compressed := raw.read(1 << 14):
            while compressed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(compressed)
                compressed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
        if frame is not None:
            raise EOFError("the last frame has no end")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._rest:
            try:
                self._rest = memoryview(next(self._blocks))
            except StopIteration:
                return 0
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


@contextlib.contextmanager
def _open_decompressed(path: Path):
    suffix = path.suffix.lower()
    if suffix == ".gz":
        with gzip.open(path, "rb") as file:
            yield file
    elif suffix == ".xz":
        with lzma.open(path, "rb") as file:
            yield file
    elif suffix == ".zst":
        with path.open("rb") as raw:
            yield io.BufferedReader(_ZstandardReader(raw))
    else:
        with path.open("rb") as file:
            yield file


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a possibly compressed UTF-8 file."""
    offset = 0
    try:
        with _open_decompressed(path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    # The codec counts from after a byte order mark.
                    position = offset + error.start + (3 if line.startswith(b"\xef\xbb\xbf") and number == 1 else 0)
                    where = f"{path} (decompressed)" if path.suffix.lower() in _COMPRESSIONS else path
                    raise UserError(
                        f"{where}: byte {position} (line {number}) is not UTF-8 text; convert the file, for example "
                        "with iconv -t utf-8."
                    ) from error
                offset += len(line)
                yield number, text.rstrip("\r\n")
    except (gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError, zlib.error, EOFError) as error:
        raise UserError(
            f"{path} is damaged or cut off after {offset} decompressed bytes ({error}); fetch or compress it again."
        ) from error


def _txt_documents(path: Path) -> Iterator[tuple[int, str]]:
    paragraphs, start = [], 0
    for number, line in _lines(path):
        if line.strip():
            if not paragraphs:
                start = number
            paragraphs.append(line)
        elif paragraphs:
            yield start, "\n".join(paragraphs)
            paragraphs = []
    if paragraphs:
        yield start, "\n".join(paragraphs)


def _jsonl_documents(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}:{number}: not valid JSON ({error.msg} at column {error.colno}); each line must be a JSON object."
            ) from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise UserError(f'{path}:{number}: expected a JSON object with a string "text"; rename its text field.')
        yield number, record["text"]


class TfdsCorpus:
    """A TFDS dataset that is on disk in a format with random access, read without TensorFlow.

    One example is one document; its id is the dataset's name, split and the example's number.
    """

    def __init__(self, spec: str, split: str = "train", field: str = ""):
        """Opens the dataset.

        Args:
          spec: `tfds:NAME`, where NAME is what `tfds.builder` takes, such as `ag_news_subset:1.0.0`, or the path of a
            folder that holds a prepared dataset.
          split: a TFDS split, such as `train` or `train[:10%]`.
          field: the feature that holds the text; "" means `text`, or the only text feature.

        Raises:
          UserError: if the dataset is not on disk, or has no such split or field.
        """
        import tensorflow_datasets as tfds

        self.spec = spec
        self.split = split
        name = spec.removeprefix("tfds:")
        try:
            if os.path.isdir(os.path.expanduser(name)):
                self._builder = tfds.builder_from_directory(os.path.expanduser(name))
            else:
                self._builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        except (tfds.core.DatasetNotFoundError, OSError, AssertionError) as error:
            # TFDS asserts that a version exists.
            raise UserError(
                f'data.corpus="{spec}": TFDS finds no dataset "{name}"; check its name and version, or set TFDS_DATA_DIR '
                "to the folder that holds it."
            ) from error
        info = self._builder.info
        if not info.splits:
            raise UserError(
                f'data.corpus="{spec}" is not prepared on disk in {self._builder.data_dir}; run '
                f'tfds.builder("{name}", file_format="array_record").download_and_prepare() first (many public datasets '
                "need TensorFlow installed for this step only)."
            )
        texts = [key for key, feature in info.features.items() if isinstance(feature, tfds.features.Text)]
        self.field = field or ("text" if "text" in texts else texts[0] if len(texts) == 1 else "")
        if self.field not in texts:
            raise UserError(
                f'data.tfds.field="{field}" is no text field of {info.full_name}; its text fields are: '
                f"{', '.join(texts) or 'none'}."
            )
        try:
            self._source = self._builder.as_data_source(split=split)
        except (ValueError, KeyError) as error:
            raise UserError(
                f'data.tfds.split="{split}" is no split of {info.full_name}; it has: {", ".join(sorted(info.splits))}.'
            ) from error
        except NotImplementedError as error:
            raise UserError(
                f'data.corpus="{spec}" is stored as {info.file_format.value}, which cannot be read without TensorFlow; '
                'prepare it again with file_format="array_record".'
            ) from error

    def fingerprint(self) -> str:
        """Digest of the dataset's full name, split, field and the names, sizes and times of its files."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._builder.info.full_name, self.split, self.field]).encode())
        for path in sorted(Path(self._builder.data_dir).iterdir()):
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Streams the documents in the order of the dataset. Raises: UserError: if there are none, or not UTF-8."""
        empty = True
        name = f"{self._builder.info.full_name}/{self.split}"
        for index in range(len(self._source)):
            value = self._source[index][self.field]
            if isinstance(value, bytes):
                try:
                    value = value.decode()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{name}: example {index}, field {self.field}: byte {error.start} is not UTF-8 text; "
                        "prepare the dataset again from UTF-8 text."
                    ) from error
            document = make_document(f"{name}:{index}", value)
            if document is not None:
                empty = False
                yield document
        if empty:
            raise UserError(f'data.corpus="{self.spec}": split {self.split} holds no text; choose another data.tfds.split.')
