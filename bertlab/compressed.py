"""Files that may be compressed (.gz, .xz, .zst): however much is packed into a small file, it does not fill the memory."""

import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from bertlab.errors import UserError

LONGEST_LINE = 1 << 27
"""Bytes. text8 is one line of 100 MB."""
MOST_TIMES = 100
"""How many times its own size a file that is read whole may unpack to. Ordinary text unpacks to 3 to 6 times."""
SMALL = 1 << 26
"""Bytes that every file may unpack to."""
DAMAGE = (gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError, zlib.error, EOFError, MemoryError)
"""What reading a damaged compressed file raises; MemoryError, where its header asks for too much."""

_ENDINGS = (".gz", ".xz", ".zst")
# One byte of Zstandard can stand for 32 kB, and the library unpacks all that it is given at once.
_ZSTANDARD_BYTES = 1 << 9


class _ZstandardReader(io.RawIOBase):
    """Decompresses Zstandard frames. Unlike the library's own reader, it notices a file that is cut off."""

    def __init__(self, raw: BinaryIO):
        self._raw = raw
        self._blocks = self._decompress(raw)
        self._rest = memoryview(b"")

    def close(self) -> None:
        self._raw.close()
        super().close()

    @staticmethod
    def _decompress(raw: BinaryIO) -> Iterator[bytes]:
        frame = None
        while compressed := raw.read(_ZSTANDARD_BYTES):
            while compressed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(compressed)
                compressed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
        if frame is not None:
            raise EOFError("the last frame is incomplete")

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


def is_compressed(path: Path) -> bool:
    """Whether the file's name ends in .gz, .xz or .zst, in any case."""
    return path.suffix.lower() in _ENDINGS


def unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    """The contents of an open file, decompressed as they are read if its name says so."""
    openers = (gzip.open, lzma.open, lambda raw: io.BufferedReader(_ZstandardReader(raw)))
    return dict(zip(_ENDINGS, openers)).get(path.suffix.lower(), lambda raw: raw)(raw)


def read_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The lines of an open file, with their ends.

    Raises:
        UserError: A line has more than `LONGEST_LINE` bytes.
    """
    number = 1
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{path}:{number}: the line has more than {LONGEST_LINE:,} bytes; put line ends between its paragraphs"
            )
        yield line
        number += 1


def read_whole(path: Path, named: str = "") -> bytes:
    """All of a file's contents.

    Args:
        path: The file.
        named: Begins messages, such as "--text=FILE"; "": the path.

    Raises:
        UserError: The compressed file is damaged, or unpacks to more than `MOST_TIMES` its size and `SMALL`.
        OSError: It cannot be read.
    """
    named = named or str(path)
    if not is_compressed(path):
        return path.read_bytes()
    most, content = max(SMALL, MOST_TIMES * path.stat().st_size), io.BytesIO()
    try:
        with path.open("rb") as raw, unpacked(path, raw) as file:
            while block := file.read(1 << 20):
                content.write(block)
                if content.tell() > most:
                    raise UserError(
                        f"{named} unpacks to more than {MOST_TIMES} times its own size, as no text or table of numbers does;"
                        " unpack it yourself if it is right"
                    )
    except DAMAGE as error:
        raise UserError(f"{named} is damaged or too large ({reason_of(error)}); download or compress it again") from error
    return content.getvalue()


def text_of(content: bytes, named: str, mark: bool = True) -> str:
    """The text of a UTF-8 file.

    Args:
        content: All of it.
        named: Begins messages, such as "--text=FILE".
        mark: Whether a byte order mark at its beginning is left out.

    Raises:
        UserError: It is not UTF-8; names byte (from 0) and line (from 1).
    """
    start = 3 * (mark and content.startswith(codecs.BOM_UTF8))
    try:
        return str(memoryview(content)[start:], "utf-8")
    except UnicodeDecodeError as error:
        position = start + error.start
        raise not_utf8(named, position, content.count(b"\n", 0, position) + 1) from None


def not_utf8(named: str, position: int, line: int) -> UserError:
    """The error about a byte (from 0) of a line (from 1) of a file."""
    return UserError(
        f"{named}: byte {position} (line {line}) is not UTF-8 text; convert the file, for example with iconv -t utf-8."
    )


def reason_of(error: BaseException) -> str:
    """What one of `DAMAGE` says."""
    return str(error) or "its header asks for too much memory"
