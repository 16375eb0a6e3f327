"""A task: its kind, its examples and its metrics, independent of any model."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Kind

SPLITS = ("train", "valid", "test")

OPTIONS = {
    # The folder of the task's files; "tfds": the prepared TFDS dataset (GLUE); "" for tasks that read none.
    # Of several tasks: one folder for all, or one for each, joined by + as the tasks are.
    "directory": "",
    # Names of files in the folder, where they are not those that the task looks for.
    "train_file": "",
    "valid_file": "",
    "test_file": "",
    # A published development set without a labelled test set is reported ("test"), and selection is by a part of train;
    # "valid": it selects and is reported too, as papers do.
    "dev": "test",
    # Shares of train that are held out where there is no published split.
    "valid_fraction": 0.1,
    "test_fraction": 0.1,
    # Of the shares held out, and of `limit`.
    "seed": 0,
    # At most so many training examples, drawn at random; a smaller limit takes a part of a larger one's. 0: all.
    "limit": 0,
    # Tasks from the documents of pretraining (those of Python's documentation): its cache and its split of documents.
    "pretraining": {"directory": "", "valid_fraction": 0.05, "test_fraction": 0.05},
}
"""`config.task_data` and its defaults; `bertlab.transfer.tasks.load_task` completes what it is given with them."""


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task's examples.

    Attributes:
        labels: names of the classes, by number; () for kinds without classes.
        examples: by split. Train and valid have labels; test may lack them.
    """

    labels: tuple[str, ...]
    examples: Mapping[str, list[Example]]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's description.

    Attributes:
        name: of its directory in results, and of its entry in `config.objectives`.
        kind: what it asks.
        metrics: of `kind.metrics`; the first selects and is reported.
        load: (directory or None, options) -> TaskData; the directory holds the files in their published layout. Options are
            `config.task_data` with all keys of `OPTIONS` (`load_task` completes them, and applies `limit`).
    """

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    load: Callable[[Path | None, Mapping], TaskData]
