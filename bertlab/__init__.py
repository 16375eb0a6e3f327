"""bertlab: contextual-embedding pretraining objectives compared on equal terms."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertlab.transfer.load import Pretrained

__version__ = "0.2.0.dev0"


def load(path: str | os.PathLike[str], step: int | None = None) -> "Pretrained":
    """Opens a run or an imported directory, at a step or the last one: see `bertlab.transfer.load.Pretrained`."""
    from bertlab.transfer.load import load

    return load(path, step)


__all__ = ["__version__", "load"]
