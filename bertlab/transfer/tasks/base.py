"""A task: its kind, metrics and examples; labels are numbered, and missing splits held out."""

import dataclasses
import functools
import glob
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertlab.data.documents import SPLITS
from bertlab.errors import UserError, require_choice
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import METRICS, Scheme, find_scheme

Splits = Mapping[str, list[Example]]  # examples by split

MOST_VALID = 2000  # examples that are held out for selection, at most

TASK_DATA = dict(
    directory="",  # folder of the task's files; of several tasks one for all, or one for each (A+B)
    # test: a development set without a labelled test set is the test set, and valid is held out
    # from train; valid: it is both, as in papers
    dev="test",
    valid_fraction=0.1,  # share of train that is held out if valid is not published
    test_fraction=0.1,  # the same for test
    seed=0,  # seed of what is held out for valid (test is the same for all), and of `limit`
    # tags are drawn at random for each word type, from train's: a control task (Hewitt and Liang
    # 2019), which shows how much a probe can learn by heart
    control=False,
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
    """A task's examples."""

    labels: tuple[str, ...]  # names of the classes, by number; () for kinds without classes
    examples: Splits  # those of test may lack labels
    # Tags that train lacks, numbered after the classes: no head predicts them, so they are wrong.
    unseen: tuple[str, ...] = ()
    scheme: Scheme | None = None  # how the tags mark entities, if a metric needs it
    notes: tuple[str, ...] = ()  # what to print about the examples

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


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's description."""

    name: str  # of its folder in results and its entry in `config.objectives`: [A-Za-z0-9_-]+
    kind: str  # a key of `bertlab.transfer.kinds.KINDS`, or "module:NAME" of a kind
    # Keys of `METRICS`, or one; the first selects and is reported. () for the kind's.
    metrics: tuple[str, ...]
    # (folder of the files or None, `config.task_data` with all keys) -> examples, with labels as
    # published; those of test may lack them
    load: Callable[[Path | None, Mapping], Splits]
    # The classes in order, if labels are texts; () for those of train, sorted.
    label_names: tuple[str, ...] = ()
    every_label: bool = False  # () stands for those of all splits
    symmetric: bool = False  # the order of a pair does not matter (similarity, paraphrase)
    # Recipe -> those of its settings that differ for this task, as for a kind.
    recipes: Mapping[str, Mapping] = dataclasses.field(default_factory=dict)
    is_in: Callable[[Path], bool] = lambda directory: True  # has a folder the files of all splits?

    def __post_init__(self):
        if not (metrics := several(self.metrics)):
            require_choice(f"task '{self.name}' has no metrics: kind", self.kind, DEFAULT_METRICS)
            metrics = DEFAULT_METRICS[self.kind]
        for metric in metrics:
            require_choice(f"task '{self.name}': metric", metric, METRICS)
        object.__setattr__(self, "metrics", metrics)


def several(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names, of which one may be given alone."""
    return (names,) if isinstance(names, str) else tuple(names)


def load_task(task: Task, options: Mapping) -> TaskData:
    """A task's examples, with `limit` applied to train; options: keys of `config.task_data`."""
    from bertlab.transfer.kinds import find_kind  # imports JAX

    options = {**TASK_DATA, **options}
    require_choice("config.task_data.dev", options["dev"], ("test", "valid"))
    directory = Path(options["directory"]).expanduser() if options["directory"] else None
    published = task.load(directory, options)
    if options["control"]:
        published = control_task(published, options["seed"])
    data = TaskData((), published)
    if find_kind(task.kind).is_trained:  # otherwise labels stay, and no split is held out
        data = prepare(task, data.examples, options)
    if "f1" in task.metrics and (count := len(data.labels)) != 2:
        raise UserError(f"task '{task.name}': f1 is for two classes, found {count}; use macro_f1")
    scheme, notes = None, []
    if "entity_f1" in task.metrics:
        scheme, notes = find_scheme(task.name, data.names, data.examples)
    if data.unseen:
        notes.append(f"train lacks tags, whose words count as wrong: {', '.join(data.unseen)}")
    train = draw(data.examples["train"], options["limit"], options["seed"])
    # A kind that trains nothing needs no valid split of its own.
    examples = {"train": train, "valid": train} | data.examples | {"train": train}
    return dataclasses.replace(data, examples=examples, scheme=scheme, notes=tuple(notes))


def prepare(task: Task, published: Splits, options: Mapping) -> TaskData:
    """All splits, with numbers in place of labels that are texts."""
    everyone = [example for examples in published.values() for example in examples]
    labels = task.label_names or _texts(everyone if task.every_label else published["train"])
    unseen = tuple(label for label in _texts(everyone) if label not in labels)
    if unseen and (task.label_names or not isinstance(published["train"][0].label, tuple)):
        where = next(one.where for one in everyone if unseen[0] in labels_in(one.label))
        raise UserError(f"{where}: the label '{unseen[0]}' is not one of {', '.join(labels)}")
    numbers = {label: number for number, label in enumerate(labels + unseen)}

    def number(label: Any) -> Any:
        return tuple(map(number, label)) if isinstance(label, tuple) else numbers.get(label, label)

    examples = {
        split: [dataclasses.replace(example, label=number(example.label)) for example in found]
        for split, found in published.items()
    }
    return TaskData(labels, divide(examples, options, task.symmetric), unseen)


def control_task(published: Splits, seed: int) -> Splits:
    """A tagging task's sentences with a random tag for each word type."""
    tags = [tag for one in published["train"] for tag in one.label]
    words = sorted({word for found in published.values() for one in found for word in one.words})
    tag_of = dict(zip(words, np.random.default_rng(seed).choice(tags, len(words)).tolist()))
    return {
        split: [dataclasses.replace(one, label=tuple(map(tag_of.get, one.words))) for one in found]
        for split, found in published.items()
    }


def labels_in(label: Any) -> list[int | float | str]:
    """An example's label, or those of its words or targets; [] for None."""
    if isinstance(label, tuple):
        return [one for part in label for one in labels_in(part)]
    return [] if label is None else [label]


def _texts(examples: list[Example]) -> tuple[str, ...]:
    """The labels that are texts, sorted."""
    found = {label for example in examples for label in labels_in(example.label)}
    return tuple(sorted(label for label in found if isinstance(label, str)))


def divide(published: Splits, options: Mapping, symmetric=False) -> Splits:
    """Train, valid (selects) and test (is reported). A development set without a test set is the
    test set (`task_data.dev`). Missing splits are held out from train, test first."""
    train, valid, test = map(published.get, SPLITS)
    if valid is not None and test is None:
        test, valid = valid, (valid if options["dev"] == "valid" else None)
    size, seed = len(train), options["seed"]
    if test is None:
        number = round(options["test_fraction"] * size)
        # Whatever the seed, so that runs with other labels are scored on the same examples.
        train, test = hold_out(train, number, (0, 1), symmetric)
    if valid is None:
        number = min(MOST_VALID, round(options["valid_fraction"] * size))
        train, valid = hold_out(train, number, (seed, 2), symmetric)
    return {"train": train, "valid": valid, "test": test}


def hold_out(examples: list[Example], number: int, seed: tuple, symmetric=False) -> tuple:
    """(The rest, about `number` examples), in their order. Examples with the same first text (a
    span's: context) stay together; if it has more than `number` on average, only equal pairs."""
    keys = [_first_text(example) for example in examples]
    pairs = examples[0].label is not None and len(examples[0].texts) == 2
    if pairs and len(examples) > max(number, 1) * len(set(keys)):
        keys = [_normalized(example.texts) for example in examples]
    sizes = Counter(keys)
    if len(sizes) < 2:
        raise UserError(f"{examples[0].where}: train has only one text to hold other splits out of")
    texts, chosen, total = list(sizes), set(), 0
    for index in np.random.default_rng(seed).permutation(len(texts)):
        size = sizes[texts[index]]
        if total + size <= number:
            chosen.add(texts[index])
            total += size
    chosen = chosen or {min(sizes, key=sizes.get)}
    held = [key in chosen for key in keys]
    if symmetric:  # a pair and the swapped pair stay together
        swapped = {_normalized(x.texts[::-1]) for x in itertools.compress(examples, held)}
        held = [own or _normalized(x.texts) in swapped for own, x in zip(held, examples)]
    rest = [example for example, own in zip(examples, held) if not own]
    return rest, list(itertools.compress(examples, held))


def _first_text(example: Example) -> tuple[str, ...]:
    """The words, a span's context, otherwise the first text; where it is empty, all texts."""
    texts = example.words or (example.texts[-1:] if example.label is None else example.texts[:1])
    return _normalized(texts if any(texts) else example.texts + example.choices)


def _normalized(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(text.casefold().split()) for text in texts)


def draw(examples: list[Example], limit: int, seed: int) -> list[Example]:
    """`limit` random examples, in their order; 0: all. Fewer are a subset of more."""
    order = np.random.default_rng((seed, 3)).permutation(len(examples))
    return [examples[i] for i in sorted(order[: limit or None])]


def file_task(
    name: str, kind: str, read, *, train, valid=(), test=(), folder="", metrics=(), **fields
) -> Task:
    """A task with one file or folder per split; `name`, `kind`, `metrics`, `fields` as in `Task`.
    `read` is (file or folder, split) -> examples as published; one without an id gets its number.
    `train`, `valid`, `test` are names or globs of files, or of folders ("train/"), the preferred
    first, in the task's folder (for your own task: its Python file's) or its subfolder `folder`. A
    split without any is held out from train (`divide`)."""
    patterns = {}
    for split, names in zip(SPLITS, map(several, (train, valid, test))):
        if names:
            patterns[split] = (*(f"{folder}/{one}" for one in names if folder), *names)

    def load(directory: Path | None, options: Mapping) -> Splits:
        if directory is None:
            raise UserError(f"config.task_data.directory must be the folder of task '{name}'")
        published = {}
        for split, names in patterns.items():
            found = matches(directory, names)
            if len(found) != 1:
                wanted, seen = " or ".join(names), ", ".join(found) or "no file"
                raise UserError(f"{directory}: task '{name}' looks for {wanted} and finds {seen}")
            path, labelled = directory / found[0], split != "test" and kind != "span"
            published[split] = _identify(read(path, split), path, labelled)
        return published

    def is_in(directory: Path) -> bool:
        return all(matches(directory, names) for names in patterns.values())

    return Task(name, kind, metrics, load, is_in=is_in, **fields)


def matches(directory: Path, patterns: tuple[str, ...]) -> list[str]:
    """What the first pattern with any match names in a folder."""
    found = (sorted(glob.glob(pattern, root_dir=directory)) for pattern in patterns)
    return next(filter(None, found), [])


def _identify(examples: Iterable[Example], path: Path, labelled: bool) -> list[Example]:
    """The examples, each one with an id, and if `labelled` with a label."""
    found: dict[str, Example] = {}
    for number, example in enumerate(examples):
        if labelled and example.label is None:
            raise UserError(f"{example.where}: the label is missing")
        own = example if example.id else dataclasses.replace(example, id=str(number))
        if own.id in found:
            raise UserError(f"{own.where}: {found[own.id].where} has the same id '{own.id}'")
        found[own.id] = own
    if not found:
        raise UserError(f"{path}: there are no examples")
    return list(found.values())
