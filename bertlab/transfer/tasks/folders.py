"""One text file per example, in a folder per class."""

from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Classification
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_text


def labelled_folders(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    label_names: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
    encoding: str = "utf-8",
) -> Task:
    """A classification task with a folder per split, in it a folder per class, and in that a .txt file per text.

    Args:
        name, metrics, encoding: as in `bertlab.transfer.tasks.table`.
        train, valid, test: the splits' folders, with "/" at the end.
        label_names: the classes in order; each names its folder. Other folders are not read.

    Raises:
        UserError: when loading: a folder is missing or has no .txt file, or a file is not in that encoding.
    """

    def read(folder: Path, split: str) -> Iterator[Example]:
        for label in label_names:
            files = sorted((folder / label).glob("*.txt"))
            if not files:
                raise UserError(
                    f"{folder / label}: there is no .txt file; task '{name}' has one per text, in a folder per class"
                )
            for path in files:
                yield Example(f"{label}/{path.stem}", f"{path}:1", (read_text(path, encoding),), label)

    return file_task(name, Classification(), metrics, read, (train, valid, test), label_names=label_names)
