"""A task: its kind, its metrics and its examples, independent of any model."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import METRICS, Scheme

SPLITS = ("train", "valid", "test")

TASK_DATA = dict(
    # folder of the task's files; for several tasks one for all, or one for each (A+B)
    directory="",
    train_file="",  # name of the training file in it, if not one that the task looks for
    # test: a development set without a labelled test set is the test set, and valid is held out
    # from train; valid: it is both, as in papers
    dev="test",
    valid_fraction=0.1,  # share of train that is held out if valid is not published
    test_fraction=0.1,  # the same for test
    seed=0,  # seed of what is held out for valid (test is the same for all), and of `limit`
    limit=0,  # training examples, at most; fewer are a subset of more; 0: all
    # tasks made from the pretraining documents: the cache and the split of documents
    pretraining=dict(directory="", valid_fraction=0.05, test_fraction=0.05),
)
"""`config.task_data` with its defaults."""

DEFAULT_METRICS = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "choice": ("accuracy",),
    "tagging": ("accuracy",),
    "span": ("span_f1", "exact_match"),
}
"""Metrics by kind of task; the first selects."""


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task's examples.

    Attributes:
        labels: names of the classes, by number; () for kinds without classes.
        examples: by split. Those of train and valid have labels; those of test may lack them.
        unseen: tags that train lacks, numbered after the classes: no head predicts them, so they
            count as wrong.
        scheme: how the tags mark entities, if a metric needs it.
        notes: what to print about the examples.
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

    @functools.cached_property
    def digest(self) -> str:
        """Of the labels and the examples of all splits, wherever their files lie."""
        digest = hashlib.blake2b(repr(self.names).encode(), digest_size=16)
        for split, examples in self.examples.items():
            digest.update(split.encode())
            for example in examples:
                digest.update(repr(dataclasses.replace(example, where="")).encode())
        return digest.hexdigest()

    def words(self, *splits: str) -> set[str]:
        """All words of the sentences of these splits."""
        return {word for split in splits for one in self.examples[split] for word in one.words}

    def count_unseen(self, split: str) -> int:
        """Number of a split's words whose tag train lacks."""
        if not self.unseen:
            return 0
        tags = (tag for example in self.examples[split] for tag in example.label or ())
        return sum(tag >= len(self.labels) for tag in tags)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's description.

    Attributes:
        name: for its folder in results and its entry in `config.objectives`: letters, digits, "_"
            and "-".
        kind: a key of `bertlab.transfer.kinds.KINDS`, or "module:NAME" of a kind.
        metrics: keys of `bertlab.transfer.scorers.METRICS`, or one; the first selects and is
            reported. () for the kind's metrics.
        load: (folder of the files or None, `config.task_data` with all keys) -> TaskData.
        symmetric: the order of a pair does not matter (similarity, paraphrase).
        recipes: recipe -> those of its settings that differ for this task, as for a kind.
        is_in: whether a folder has the files of all splits.
    """

    name: str
    kind: str
    metrics: tuple[str, ...]
    load: Callable[[Path | None, Mapping], TaskData]
    symmetric: bool = False
    recipes: Mapping[str, Mapping] = dataclasses.field(default_factory=dict)
    is_in: Callable[[Path], bool] = lambda directory: True

    def __post_init__(self):
        metrics = (self.metrics,) if isinstance(self.metrics, str) else tuple(self.metrics)
        metrics = metrics or DEFAULT_METRICS[self.kind]
        if unknown := [metric for metric in metrics if metric not in METRICS]:
            raise UserError(
                f"task '{self.name}': metric '{unknown[0]}' is not one of {', '.join(METRICS)}"
            )
        object.__setattr__(self, "metrics", metrics)
