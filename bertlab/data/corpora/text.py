"""Corpora in text files, which may be compressed, and in TFDS datasets."""

import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from bertlab.data.documents import LONGEST_DOCUMENT, SECTION, SPLITS, Document, make_documents
from bertlab.errors import UserError, require_choice

# In characters. A longer stretch without a blank line is cut at a line end, to bound memory.
_LARGEST_DOCUMENT = 1_000_000
_NAME = re.compile(r".+\.(txt|train|dev|test|jsonl)(\.(gz|xz|zst))?", re.IGNORECASE)
_LINE_END = "<eos>"  # a word


class TextCorpus:
    """Text files (.txt, BabyLM's .train, .dev, .test) or records (.jsonl), plain, .gz, .xz or .zst.

    Blank lines separate the documents of a text file, unless each file is one; a line of a .jsonl
    file is a record whose `text` is a document. A document's id is its file's path relative to the
    files' common folder and the number of its first line. Commas separate the globs in `patterns`.
    """

    def __init__(self, patterns: str, one_document_a_file: bool = False):
        self._whole = one_document_a_file
        found = set()
        for pattern in patterns.split(","):
            matches = glob.glob(os.path.expanduser(pattern.strip()), recursive=True)
            files = {Path(os.path.abspath(match)) for match in matches if os.path.isfile(match)}
            others = sorted(str(path) for path in files if not _NAME.fullmatch(path.name))
            if others or not files:
                raise UserError(
                    f'config.data.corpus: "{pattern}" matches {(others or ["no file"])[0]}; its'
                    " files must be .txt or .jsonl (plain, .gz, .xz or .zst)"
                )
            found |= files
        folder = os.path.commonpath([path.parent for path in found])
        self._files = {path.relative_to(folder).as_posix(): path for path in sorted(found, key=str)}

    def fingerprint(self) -> str:
        settings = f"{self._whole} {_LARGEST_DOCUMENT} {LONGEST_DOCUMENT} {SECTION}"
        return digest(settings, self._files)

    def documents(self) -> Iterator[Document]:
        for name, path in self._files.items():
            if _NAME.fullmatch(path.name)[1].lower() == "jsonl":
                for number, record in read_records(path, "text"):
                    # JSON can encode half a surrogate pair, which no tokenizer can represent.
                    text = record["text"].encode("utf-16", "surrogatepass")
                    yield from make_documents(f"{name}:{number}", text.decode("utf-16", "replace"))
            else:
                for number, text in self._texts(path):
                    yield from make_documents(f"{name}:{number}", text, joins_lines=True)

    def _texts(self, path: Path) -> Iterator[tuple[int, str]]:
        """(Number of its first line, text) of each document of a text file."""
        lines, start, size = [], 0, 0
        for number, line in read_lines(path):
            is_blank = not line.strip()
            is_end = is_blank and not self._whole
            if lines and (is_end or size + len(line) > _LARGEST_DOCUMENT):
                yield start, "\n".join(lines)
                lines, size = [], 0
            start = start if lines else number
            if lines or not is_blank:
                lines.append(line)
                size += 0 if is_blank else len(line) + 1
        if lines:
            yield start, "\n".join(lines)


class PublishedSplits:
    """A file for each split with a sentence a line, such as the Penn Treebank or WikiText.

    A file's name is its split or ends in it: `train.txt`, `ptb.train.txt`, `wiki.train.tokens`.
    Every line, empty ones too, ends with the word `<eos>`, as salesforce/awd-lstm-lm's data.py
    reads it; the words stay as they are, and `data.tokenizer.split=whitespace` keeps them whole.
    A document is a stretch of lines of about 50,000 characters.
    """

    def __init__(self, folder: str):
        self._files = {}
        for split in SPLITS:
            paths = Path(folder).expanduser().glob("*.*")
            found = [path for path in paths if path.stem.split(".")[-1] == split]
            if len(found) != 1:
                raise UserError(
                    f"config.data.corpus: expected one file of {split} in {folder}, such as"
                    f" {split}.txt or ptb.{split}.txt, found {len(found)}"
                )
            self._files[split] = found[0]

    def fingerprint(self) -> str:
        return digest(f"{SECTION} {_LINE_END}", self._files)

    def documents(self) -> Iterator[Document]:
        for split, path in self._files.items():
            parts, size, start = [], 0, 1
            for number, line in read_lines(path):
                sentence = " ".join([*line.split(), _LINE_END])
                parts.append(f" {sentence}" if parts else sentence)
                size += len(sentence)
                if size >= SECTION:
                    yield Document(f"{path.name}:{start}", tuple(parts), split)
                    parts, size, start = [], 0, number + 1
            if parts:
                yield Document(f"{path.name}:{start}", tuple(parts), split)


class TfdsCorpus:
    """A TFDS dataset on disk, in a format with random access, read without TensorFlow.

    `name` is what `tfds.builder` takes, such as `ag_news_subset:1.0.0`, looked for in
    $TFDS_DATA_DIR, or the folder of a prepared dataset; `split` is TFDS's, such as `train[:10%]`.
    The feature `field` of each example is a document.
    """

    def __init__(self, name: str, split: str, field: str):
        import tensorflow_datasets as tfds  # slow

        folder = Path(name).expanduser().absolute()
        if folder.is_dir():
            builder = tfds.builder_from_directory(folder)
        else:
            builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        require_choice("config.data.tfds.field", field, builder.info.features)
        self._examples, self._field = builder.as_data_source(split=split), field
        self._folder = Path(builder.data_dir)
        self._name = f"{builder.info.full_name}/{split}"

    def fingerprint(self) -> str:
        settings = f"{self._name} {self._field} {LONGEST_DOCUMENT} {SECTION}"
        return digest(settings, files_of(self._folder))

    def documents(self) -> Iterator[Document]:
        for number in range(len(self._examples)):
            text = self._examples[number][self._field].decode()
            yield from make_documents(f"{self._name}:{number}", text)


def read_records(path: Path, *fields: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(Line number, record) of a file of JSON lines whose records have these text fields."""
    for number, line in read_lines(path):
        if line.strip():
            try:
                record = json.loads(line)
                "".join(record[field] for field in fields)
            except (ValueError, KeyError, TypeError):
                names = " with texts " + ", ".join(fields) if fields else ""
                raise UserError(f"{path}:{number}: not a JSON object{names}") from None
            yield number, record


def files_of(path: Path) -> dict[str, Path]:
    """The files of a folder (not of those in it) by name; of a file, itself."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    return {path.name: path for path in paths if path.is_file()}


def digest(settings: str, files: Mapping[str, Path] = {}) -> str:
    """Digest of settings and of files' names and bytes."""
    found = hashlib.blake2b(settings.encode(), digest_size=16)
    for name, path in files.items():
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "blake2b").digest()
        found.update(f"\0{name}\0".encode() + content)
    return found.hexdigest()


def read_lines(path: Path, encoding: str = "UTF-8") -> Iterator[tuple[int, str]]:
    """(Number from 1, line without its end) of a file of text, decompressed by its suffix."""
    number = 0
    try:
        with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode(encoding)
                yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not {encoding} text ({error}); convert it") from error


def _open_zstandard(path: Path, _: str) -> io.BufferedReader:
    file = path.open("rb")
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return io.BufferedReader(reader, 1 << 16)


_OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zstandard}
