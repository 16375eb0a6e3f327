"""A task: its kind, its examples and its metrics, independent of any model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bertlab.keys import Key
from bertlab.transfer.entities import Scheme
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Kind

SPLITS = ("train", "valid", "test")

KEYS = (
    Key("task_data.directory", "", "folder of the task's files, or tfds; of several tasks one for all, or one each (A+B)"),
    Key("task_data.train_file", "", "name of a file in it, if it is not one that the task looks for"),
    Key("task_data.valid_file", "", "the same of the development set"),
    Key("task_data.test_file", "", "the same of the test set"),
    Key("task_data.dev", "test", "a development set without a labelled test set is the test set, and valid is a part of train;"
        " valid: it is both, as in papers", choices=("test", "valid")),
    Key("task_data.valid_fraction", 0.1, "share of train that is held out if valid is not published", above=0, below=0.5),
    Key("task_data.test_fraction", 0.1, "the same for test", above=0, below=0.5),
    Key("task_data.seed", 0, "seed of what is held out and of what `limit` draws", least=0),
    Key("task_data.limit", 0, "most training examples; a smaller limit draws a part of a larger one's; 0: all", least=0),
)  # fmt: skip
OPTIONS = {key.leaf: key.default for key in KEYS} | {
    # For tasks made from the pretraining documents: the cache and the split of documents.
    "pretraining": {"directory": "", "valid_fraction": 0.05, "test_fraction": 0.05}
}
"""`config.task_data` and its defaults; `bertlab.transfer.tasks.load_task` completes what it is given with them."""


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task's examples.

    Attributes:
        labels: names of the classes, by number; () for kinds without classes.
        examples: by split. Train and valid have labels; test may lack them.
        unseen: names of the tags that train lacks, numbered after the classes. No head predicts them, so they count as wrong.
        scheme: how the tags say where entities are, if a metric asks.
        notes: what to tell the user about the examples.
    """

    labels: tuple[str, ...]
    examples: Mapping[str, list[Example]]
    unseen: tuple[str, ...] = ()
    scheme: Scheme | None = None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all labels, by number."""
        return self.labels + self.unseen

    def count_unseen(self, split: str) -> int:
        """Number of a split's words whose tag train lacks."""
        if not self.unseen:
            return 0
        return sum(number >= len(self.labels) for example in self.examples[split] for number in example.label or ())


def unseen_tags(tasks: Mapping[str, tuple["Task", TaskData]]) -> dict[str, dict[str, int]]:
    """Split -> task -> its number of words with a tag that train lacks; {} if there are none."""
    counts = {split: {name: data.count_unseen(split) for name, (_, data) in tasks.items()} for split in ("valid", "test")}
    return {split: found for split, of_tasks in counts.items() if (found := {name: n for name, n in of_tasks.items() if n})}


def classes_of(tasks: Mapping[str, tuple["Task", TaskData]]) -> dict[str, list[str]]:
    """The names of each task's classes, as classes.json has them."""
    return {name: list(data.labels) for name, (_, data) in tasks.items()}


def order_of(theirs: Sequence[str], ours: Sequence[str]) -> list[int] | None:
    """Their number of each of our classes; None if theirs are other ones."""
    return [theirs.index(name) for name in ours] if sorted(theirs) == sorted(ours) else None


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's description.

    Attributes:
        name: names its directory in results and its entry in `config.objectives`.
        kind: the task's kind.
        metrics: some of `kind.metrics`; the first selects and is reported.
        load: (directory or None, options) -> TaskData; the directory holds the files in their published layout. Options are
            `config.task_data` with all keys of `OPTIONS`. `load_task` completes them and applies `limit`; for a kind that
            trains nothing, what it draws is `valid` too.
        is_in: whether a directory holds the files of all its splits.
    """

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    load: Callable[[Path | None, Mapping], TaskData]
    is_in: Callable[[Path], bool] = lambda directory: True
