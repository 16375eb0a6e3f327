"""Corpora in text files."""

import functools
import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from bertlab.compressed import DAMAGE, is_compressed, not_utf8, read_lines, reason_of, unpacked
from bertlab.data.documents import LONGEST_DOCUMENT, SECTION, Document, PartedCorpus, make_documents
from bertlab.errors import UserError
from bertlab.files import parse_json
from bertlab.remote import RemoteFile, is_url, matching

# Characters. A document is in memory as a whole, however large its file is.
_LARGEST_DOCUMENT = 1_000_000

_PLAIN = (".txt", ".train", ".dev", ".test")


class TextCorpus(PartedCorpus):
    """`.txt` and `.jsonl` files, here or on `gs://` or `s3://`, plain or compressed with gzip (.gz), xz (.xz) or zstd (.zst).

    BabyLM's `.train`, `.dev` and `.test` files are read like `.txt`. Blank lines separate the documents of a .txt file; with
    `files:GLOB` instead of `text:GLOB` it is one document. Each line of a .jsonl file is a record whose `text` is a document. A
    line end inside a document ends a sentence and is read as a space; blank lines inside one are kept. A document's id is its
    file's path relative to the files' common folder and the number of its first line. A part (see `PartedCorpus`) is a file.

    A document of more than 100,000 characters is cut into sections, which are documents (`make_documents`). A .txt document of
    more than 1,000,000 characters is first cut at line ends into pieces of at most that many (or a longer line), so memory does
    not grow with the file. A line has at most `bertlab.compressed.LONGEST_LINE` bytes.
    """

    def __init__(self, spec: str):
        """
        Args: spec: `text:GLOB[,GLOB...]` or `files:GLOB[,GLOB...]`.

        Raises: UserError: if a glob matches no file, or a file of unknown kind.
        """
        self.spec = spec
        found: dict[str, Path | RemoteFile] = {}
        kind, _, patterns = spec.partition(":")
        for pattern in patterns.split(","):
            matches = _matching(pattern.strip(), f'config.data.corpus="{spec}"')
            if not matches:
                raise UserError(f'config.data.corpus="{spec}": "{pattern}" matches no file; check the path and quote the glob.')
            found.update({str(match): match for match in matches})
        if len({is_url(name) and name.partition("://")[0] for name in found}) > 1:
            raise UserError(f'config.data.corpus="{spec}": the files lie in two stores, or here and in one; copy them to one.')
        self.whole = kind == "files"
        self.files = tuple(found[name] for name in sorted(found))
        self.parts = len(self.files)
        self.share_read = 0.0
        places = [PurePosixPath(name) for name in sorted(found)]
        folder = os.path.commonpath([place.parent for place in places])
        self._names = [place.relative_to(folder).as_posix() for place in places]
        for path in self.files:
            if _text_format(path) not in (*_PLAIN, ".jsonl"):
                raise UserError(
                    f'config.data.corpus="{spec}": {path} is neither .txt nor .jsonl (plain, .gz, .xz or .zst); '
                    "narrow the glob or rename the file."
                )

    def fingerprint(self) -> str:
        """Digest of the files' relative names and raw bytes, and of where documents end and are cut."""
        kind = "files" if self.whole else "text"
        digest = hashlib.blake2b(f"{kind} {_LARGEST_DOCUMENT} {LONGEST_DOCUMENT} {SECTION}".encode(), digest_size=16)
        for path, name in zip(self.files, self._names, strict=True):
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    @functools.cached_property
    def _starts(self) -> list[int]:
        """The bytes of the files before each file, and of all."""
        return [0, *itertools.accumulate(file.stat().st_size for file in self.files)]

    def part(self, index: int) -> Iterator[Document]:
        """Streams the documents of one file; files are in the order of their names.

        Raises:
          UserError: at text that is not UTF-8, a line that is not a JSON object with a `text`, or a damaged compressed file.
        """
        path = self.files[index]
        read = _jsonl_documents if _text_format(path) == ".jsonl" else functools.partial(_txt_documents, self.whole)
        *starts, end = self._starts

        def count(position: int) -> None:
            self.share_read = (starts[index] + position) / max(1, end)

        for number, text in read(path, _lines(path, count)):
            yield from make_documents(f"{self._names[index]}:{number}", text)

    def no_text(self) -> UserError:
        return UserError(f'config.data.corpus="{self.spec}" has no text in its {self.parts} file(s); name other files.')


def _matching(pattern: str, named: str) -> list[Path | RemoteFile]:
    """The files that a glob matches, of this machine or, if it is a URL, of an object store."""
    if is_url(pattern):
        return matching(pattern, named)
    found = glob.glob(os.path.expanduser(pattern), recursive=True)
    return [Path(os.path.abspath(match)) for match in found if os.path.isfile(match)]


def _text_format(path: Path | RemoteFile) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if is_compressed(path):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


_LINES_PER_COUNT, _LONG_LINE = 100, 10_000


def _lines(path: Path | RemoteFile, count: Callable[[int], None]) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a possibly compressed UTF-8 file; `count` gets its position."""
    offset = 0
    try:
        with path.open("rb") as raw, unpacked(path, raw) as file:
            for number, line in enumerate(read_lines(path, file), start=1):
                if number % _LINES_PER_COUNT == 1 or len(line) > _LONG_LINE:
                    count(raw.tell())
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    # The codec counts from after a byte order mark.
                    position = offset + error.start + (3 if line.startswith(b"\xef\xbb\xbf") and number == 1 else 0)
                    where = f"{path} (decompressed)" if is_compressed(path) else path
                    raise not_utf8(str(where), position, number) from error
                offset += len(line)
                yield number, text.rstrip("\r\n")
    except DAMAGE as error:
        raise UserError(
            f"{path} is damaged or cut off after {offset} decompressed bytes ({reason_of(error)}); download or compress it "
            "again."
        ) from error


def _txt_documents(whole: bool, _: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    paragraphs, start, size = [], 0, 0
    for number, line in lines:
        blank = not line.strip()
        if paragraphs and ((blank and not whole) or size + len(line) > _LARGEST_DOCUMENT):
            yield start, "\n".join(paragraphs)
            paragraphs, size = [], 0
        if not paragraphs:
            start = number
        if paragraphs or not blank:
            paragraphs.append(line)
            size += 0 if blank else len(line) + 1
    if paragraphs:
        yield start, "\n".join(paragraphs)


def _jsonl_documents(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = parse_json(line, surrogates=True)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not valid JSON ({error}); each line must be a JSON object.") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise UserError(f'{path}:{number}: expected a JSON object with a string "text"; rename its text field.')
        yield number, record["text"]
