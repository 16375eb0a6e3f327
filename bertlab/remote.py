"""URLs of object stores, `gs://` and `s3://`, through fsspec.

An object store writes an object whole or not at all, and whoever reads afterwards sees it. It has no locks, no folders that
move in one step, and no appending. What is built on that is in `bertlab.mirror`.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import RunFailed, UserError, reason_of
from bertlab.files import write_bytes

_PACKAGES = {"gs": ("gcsfs", "gs"), "s3": ("s3fs", "s3")}  # protocol -> package, extra
_PROTOCOLS = (*_PACKAGES, "memory", "file")
READ_BYTES = 1 << 23
"""Bytes that a reader of a remote file asks for at a time."""


def is_url(place: Any) -> bool:
    """Whether a place is a URL and not a path of this machine."""
    return "://" in str(place)


def open_system(url: str, named: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the place in it.

    Args:
        url: `gs://BUCKET/PATH` or `s3://BUCKET/PATH`; also `file:///PATH`, and `memory://PATH` of this process.
        named: Begins messages, such as "--store=gs://bucket".

    Raises:
        UserError: Another protocol, a URL without a bucket, or a package is missing.
    """
    import fsspec

    protocol, _, path = str(url).partition("://")
    if protocol not in _PROTOCOLS:
        raise UserError(f"{named}: {protocol}:// is not known; use gs://BUCKET/PATH or s3://BUCKET/PATH")
    if not path.strip("/"):
        raise UserError(f"{named}: expected a bucket and a path, such as {protocol}://bucket/path")
    package, extra = _PACKAGES.get(protocol, ("", ""))
    try:
        system, place = fsspec.core.url_to_fs(str(url))
    except ImportError:
        raise UserError(f"{named} needs the package {package}; install it with: pip install 'bertlab[{extra}]'") from None
    return system, place.rstrip("/")


class StoreFailed(RunFailed):
    """A store that cannot be reached, read or written."""


@contextlib.contextmanager
def _failing(url: str) -> Iterator[None]:
    """Whatever a store's client raises in the block is a StoreFailed, but for what says that an object is there or is not."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, UserError):
        raise
    except Exception as error:  # each client has its own kinds
        raise StoreFailed(f"{url} failed ({reason_of(error)}); run the same command again") from error


class Bucket:
    """The objects below a URL, by their names there; what fails is a StoreFailed.

    Args:
        url: As for `open_system`.

    Raises:
        UserError: As `open_system`.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._system, self._root = open_system(url, url)
        self._is_local = self.url.startswith("file:")

    def read(self, name: str) -> bytes:
        """The content of an object. Raises: FileNotFoundError."""
        with _failing(self.url):
            return bytes(self._system.cat_file(self._at(name)))

    def replace(self, name: str, content: bytes) -> None:
        """Writes an object in one step."""
        with _failing(self.url):
            if self._is_local:
                write_bytes(Path(self._at(name)), content)
            else:
                self._system.pipe_file(self._at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object unless it is there, which the store decides; returns whether it did."""
        with _failing(self.url), contextlib.suppress(FileExistsError):
            if self._is_local:
                Path(self._at(name)).parent.mkdir(parents=True, exist_ok=True)
            with self._system.open(self._at(name), "xb") as file:
                file.write(content)
            return True
        return False

    def put(self, file: Path, name: str) -> None:
        """Writes an object from a file."""
        with _failing(self.url):
            self._system.put_file(str(file), self._at(name))

    def get(self, name: str, file: Path) -> None:
        """Writes a file from an object. Raises: FileNotFoundError."""
        with _failing(self.url):
            self._system.get_file(self._at(name), str(file))

    def children(self) -> list[str]:
        """The first part of all names."""
        with _failing(self.url), contextlib.suppress(FileNotFoundError):
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
        with contextlib.suppress(StoreFailed, FileNotFoundError), _failing(self.url):
            self._system.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


class RemoteFile(os.PathLike):
    """A remote file that is read as a `pathlib.Path` is.

    Attributes:
        name: The last part of its URL.
    """

    def __init__(self, system: Any, place: str):
        self._system, self._place = system, place
        self.name = place.rpartition("/")[2]

    def __fspath__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._system.unstrip_protocol(self._place)

    def __reduce__(self) -> tuple[Any, ...]:
        return _file_at, (str(self),)

    @functools.cached_property
    def size(self) -> int:
        """Bytes."""
        return int(self._system.info(self._place)["size"])

    def open(self, mode: str = "rb") -> Any:
        """The open file, which is read in blocks of `READ_BYTES`."""
        return self._system.open(self._place, mode, block_size=READ_BYTES)


def _file_at(url: str) -> RemoteFile:
    return RemoteFile(*open_system(url, url))
