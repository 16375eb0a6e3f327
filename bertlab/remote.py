"""URLs of object stores, `gs://` and `s3://`, through fsspec.

An object store writes an object whole or not at all, and whoever reads afterwards sees it. It has no locks, no folders that
move in one step, and no appending. What is built on that is in `bertlab.mirror`.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, BinaryIO

from bertlab.errors import RunFailed, UserError, how_to_install, reason_of
from bertlab.files import write_bytes

_PACKAGES = {"gs": ("gcsfs", "gs"), "s3": ("s3fs", "s3")}  # protocol -> package, extra
_PROTOCOLS = (*_PACKAGES, "memory", "file")
READ_BYTES = 1 << 23
"""Bytes that a reader of a remote file asks for at a time."""


def is_url(place: Any) -> bool:
    """Whether a place is a URL and not a path of this machine."""
    return "://" in str(place)


def require_lasting(url: Any) -> None:
    """Refuses a place in this process's memory. Raises: UserError: names it."""
    if str(url).startswith("memory:"):
        raise UserError(f"{url} is lost when this process ends; give gs://BUCKET/PATH, s3://BUCKET/PATH or file:///PATH")


def open_system(url: str, named: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the place in it.

    Args:
        url: `gs://BUCKET/PATH` or `s3://BUCKET/PATH`; also `file:///PATH`, and `memory://PATH` of this process.
        named: Begins messages, such as "--store=gs://bucket".

    Raises:
        UserError: Another protocol, a URL without a bucket, a relative `file://` path, or a package is missing.
    """
    import fsspec

    protocol, _, path = str(url).partition("://")
    if protocol not in _PROTOCOLS:
        raise UserError(f"{named}: {protocol}:// is not known; use gs://BUCKET/PATH or s3://BUCKET/PATH")
    if not path.strip("/"):
        raise UserError(f"{named}: expected a bucket and a path, such as {protocol}://bucket/path")
    if protocol == "file" and not path.startswith("/"):
        raise UserError(f"{named}: the path is relative; give an absolute one, as in file:///tmp/bucket/path")
    package, extra = _PACKAGES.get(protocol, ("", ""))
    try:
        system, place = fsspec.core.url_to_fs(str(url))
    except ImportError:
        raise UserError(f"{named} needs the package {package}; install it: {how_to_install(extra)}") from None
    return system, place.rstrip("/")


class StoreFailed(RunFailed):
    """A store that cannot be reached, read or written."""


@contextlib.contextmanager
def _failing(url: str, *expected: type[Exception]) -> Iterator[None]:
    """Whatever a store's client raises in the block is a StoreFailed, but for what is expected."""
    try:
        yield
    except (*expected, UserError):
        raise
    except FileNotFoundError:
        raise UserError(f"{url}: there is no such bucket, or it is not yours") from None
    except Exception as error:  # each client has its own kinds
        raise StoreFailed(f"{url} failed ({reason_of(error)}); run the same command again") from error


class Bucket:
    """The objects below a URL, by their names there; what fails is a StoreFailed.

    Args:
        url: As for `open_system`.

    Raises:
        UserError: As `open_system`.

    Attributes:
        folder: Where `file:///PATH` leads; None of the other protocols.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._system, self._root = open_system(url, url)
        self.folder = Path(os.path.realpath(self._root)) if self.url.startswith("file:") else None

    def read(self, name: str) -> bytes:
        """The content of an object. Raises: FileNotFoundError."""
        with _failing(self.url, FileNotFoundError):
            return bytes(self._system.cat_file(self._at(name)))

    def replace(self, name: str, content: bytes) -> None:
        """Writes an object in one step."""
        with _failing(self.url):
            if self.folder:
                write_bytes(Path(self._at(name)), content)
            else:
                self._system.pipe_file(self._at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object unless it is there, which the store decides; returns whether it did."""
        with contextlib.suppress(FileExistsError), _failing(self.url, FileExistsError):
            if self.folder:
                Path(self._at(name)).parent.mkdir(parents=True, exist_ok=True)
                with open(self._at(name), "xb") as file:
                    file.write(content)
            else:
                self._system.pipe_file(self._at(name), content, mode="create")
            return True
        return False

    def put(self, file: Path, name: str) -> None:
        """Writes an object from a file."""
        with _failing(self.url):
            self._system.put_file(str(file), self._at(name))

    def get(self, name: str, file: Path) -> None:
        """Writes a file from an object. Raises: FileNotFoundError."""
        with _failing(self.url, FileNotFoundError):
            self._system.get_file(self._at(name), str(file))

    def children(self) -> list[str]:
        """The first part of all names."""
        with contextlib.suppress(FileNotFoundError), _failing(self.url, FileNotFoundError):
            self._system.invalidate_cache()
            return [path.rstrip("/").rpartition("/")[2] for path in self._system.ls(self._root, detail=False)]
        return []

    def below(self, folder: str) -> list[str]:
        """All names that begin with a folder."""
        with _failing(self.url):
            self._system.invalidate_cache()
            return [path.removeprefix(self._root + "/") for path in self._system.find(self._at(folder))]

    def remove(self, name: str) -> None:
        """Removes an object; what stays takes room, and harms nothing."""
        with contextlib.suppress(StoreFailed, FileNotFoundError), _failing(self.url, FileNotFoundError):
            self._system.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


class RemoteFile(os.PathLike):
    """A file in an object store, read as a `pathlib.Path` is; what fails is a StoreFailed.

    Attributes:
        name: The last part of its URL.
        suffix, suffixes: As `pathlib.Path`'s.
    """

    def __init__(self, system: Any, place: str):
        self._system, self._place = system, place
        path = PurePosixPath(place)
        self.name, self.suffix, self.suffixes = path.name, path.suffix, path.suffixes

    def __fspath__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._system.unstrip_protocol(self._place)

    def __reduce__(self) -> tuple[Any, ...]:
        return _file_at, (str(self),)  # another process opens its own file system

    def stat(self) -> SimpleNamespace:
        """Its size in bytes, as `st_size`."""
        with _failing(str(self)):
            return SimpleNamespace(st_size=int(self._system.info(self._place)["size"]))

    def open(self, mode: str = "rb") -> BinaryIO:
        """The open file, which is read in blocks of `READ_BYTES`."""
        with _failing(str(self)):
            return io.BufferedReader(_Reading(self._system.open(self._place, mode, block_size=READ_BYTES), str(self)))


class _Reading(io.RawIOBase):
    """A remote file that is being read."""

    def __init__(self, file: Any, url: str):
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _failing(self._url):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def _file_at(url: str) -> RemoteFile:
    return RemoteFile(*open_system(url, url))


def matching(pattern: str, named: str) -> list[RemoteFile]:
    """The files that a URL with *, ** and ? matches.

    Raises:
        UserError: As `open_system`.
        StoreFailed: The store cannot be read.
    """
    system, place = open_system(pattern, named)
    with _failing(pattern):
        found = system.glob(place, detail=True)
    return [RemoteFile(system, path) for path, of in found.items() if of["type"] == "file"]
