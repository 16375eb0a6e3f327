"""NumPy arrays in files of their own (.npy)."""

from pathlib import Path

import numpy as np

from bertlab.errors import UserError


def read_array(path: Path, remedy: str) -> np.ndarray:
    """The array of numbers that `numpy.save` wrote.

    The file is mapped before it is read: `numpy.load` alone makes room for as many numbers as the header names, and only then
    sees that the file is shorter.

    Args:
        path: the file.
        remedy: what to do if it is damaged, for the error.

    Raises:
        UserError: the file is missing or damaged, or does not hold one array of numbers.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can raise anything
        raise UserError(f"{path} cannot be read as a NumPy array ({_one_line(error)}); {remedy}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        held = f"holds {array.dtype}" if isinstance(array, np.ndarray) else "is an archive of arrays"
        raise UserError(f"{path} {held}; expected one array of numbers, as numpy.save writes it; {remedy}")
    return np.array(array)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
