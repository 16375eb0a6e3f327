"""Arrays that several processes make together: each writes its part to a file, and the first reads them all."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bertlab.files import temporary_folder
from bertlab.train.processes import gather, is_first, meet, part


@contextlib.contextmanager
def folder_of_all(place: Path, kind: str) -> Iterator[Path | None]:
    """A temporary folder in a directory, for all processes; None if not all see the same directory.

    Args:
        place: the directory; it is made.
        kind: begins the folder's name. The first process removes the folder at the end, or after a kill when the next one of
            its kind is made.
    """
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(temporary_folder(place, kind)).name if is_first() else ""
        folder = place / gather(name)[0]
        yield folder if all(gather(folder.is_dir())) else None


def joined(folder: Path, own: Mapping[int, tuple[np.ndarray, Any]]) -> Iterator[tuple[int, tuple[np.ndarray, Any]]]:
    """Yields what all processes have, in the first; nothing in the others.

    Args:
        folder: from `folder_of_all`.
        own: this process's part: an array and a JSON value by number.
    """
    index, count = part()
    file = lambda i: folder / f"part-{i}.safetensors"
    if index:
        arrays = {str(number): np.ascontiguousarray(array) for number, (array, _) in own.items()}
        values = json.dumps({str(number): value for number, (_, value) in own.items()})
        safetensors.numpy.save_file(arrays, file(index), {"values": values})
    meet("parts are written")
    if index:
        return
    yield from own.items()
    for i in range(1, count):
        with safetensors.safe_open(file(i), "numpy") as stored:
            for name, value in json.loads(stored.metadata()["values"]).items():
                yield int(name), (stored.get_tensor(name), value)
