"""From published files to a task's examples: numbered labels, and splits held out of train."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks.base import SPLITS, Task, TaskData
from bertlab.transfer.tasks.files import find_file, matches

Reader = Callable[[Path, str], Iterable[Example]]
"""(File or folder, split) -> examples with labels as published; those of test may be None.

An example without an id gets its number in the file.
"""

DEFAULT_METRICS = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "choice": ("accuracy",),
    "word_pair": ("accuracy",),
    "tagging": ("accuracy",),
    "span": ("span_f1", "exact_match"),
    "candidate": ("span_f1", "exact_match"),
}
"""By kind of task; the first selects."""

CLASSES = ("classification", "word_pair", "tagging", "candidate")
"""Kinds whose labels are named classes, as those of all tasks with `label_names` are."""

MOST_VALID = 2000
"""Examples that are held out for selection at most."""

Patterns = str | tuple[str, ...]


def make_task(name: str, kind: str, metrics: Patterns, load: Callable, **fields) -> Task:
    """A task with the default metrics of its kind if it has none."""
    metrics = _as_tuple(metrics)
    for metric in metrics:
        if metric not in METRICS:
            raise UserError(f"task '{name}': metric '{metric}' is not one of {', '.join(METRICS)}")
    return Task(name, kind, metrics or DEFAULT_METRICS[kind], load, **fields)


def _as_tuple(names: Patterns) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def file_task(
    name: str,
    kind: str,
    read: Reader,
    *,
    train: Patterns,
    valid: Patterns = (),
    test: Patterns = (),
    metrics: Patterns = (),
    folder: str = "",
    label_names: tuple[str, ...] = (),
    every_label: bool = False,
    divided: bool = True,
    **fields,
) -> Task:
    """A task with a file or folder a split.

    Args:
        name: letters, digits, "_" and "-".
        kind: of task; one's own ("module:NAME") needs `metrics`.
        read: reads one file or folder.
        train, valid, test: names or globs of files, or of folders ("train/"), the preferred first,
            in the task's folder (of your own task: the one of its Python file). A split without
            any is held out of train (`divide`).
        metrics: the first selects and is reported; () for the kind's default metrics.
        folder: in the task's folder, where files may be too.
        label_names: the classes in order; () for those of train, sorted.
        every_label: () stands for those of all splits.
        divided: False: no split is held out.
        fields: others of `Task`.
    """
    splits = {"train": train, "valid": valid, "test": test}
    patterns = {split: _as_tuple(of) for split, of in splits.items() if of}
    slash = "/" if patterns["train"][0].endswith("/") else ""

    def load(directory: Path | None, options: Mapping) -> TaskData:
        files = {split: options[f"{split}_file"] for split in SPLITS}
        files = {split: (file.rstrip("/") + slash,) for split, file in files.items() if file}
        published = {}
        for split, names in (patterns | files).items():
            if directory is None:
                raise UserError(
                    f"config.task_data.directory is empty; give the folder of task '{name}'"
                )
            path = find_file(name, split, directory, names, folder)
            published[split] = _identify(read(path, split), path)
        labels, unseen = (), ()
        if kind in CLASSES or label_names or every_label:
            labels, unseen, published = number_labels(published, label_names, every_label)
        if divided:
            published = divide(published, options, fields.get("symmetric", False))
        return TaskData(labels, published, unseen)

    def is_in(directory: Path) -> bool:
        return all(matches(directory, of, folder) for of in patterns.values())

    return make_task(name, kind, metrics, load, is_in=is_in, **fields)


def _identify(examples: Iterable[Example], path: Path) -> list[Example]:
    """The examples, each with an id."""
    found: dict[str, Example] = {}
    for number, example in enumerate(examples):
        own = example if example.id else dataclasses.replace(example, id=str(number))
        if own.id in found:
            raise UserError(f"{own.where}: {found[own.id].where} has the same id '{own.id}'")
        found[own.id] = own
    if not found:
        raise UserError(f"{path}: there are no examples")
    return list(found.values())


def number_labels(
    published: Mapping[str, list[Example]], names: tuple[str, ...] = (), every: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, list[Example]]]:
    """(The classes, the tags that train lacks, the examples with numbers as labels).

    Classes are `names`, or those of train (or of `every` split), sorted.
    """
    first_uses = {
        split: {label: one.where for one in reversed(examples) for label in _flatten(one.label)}
        for split, examples in published.items()
    }
    everywhere = {label: where for found in first_uses.values() for label, where in found.items()}
    labels = names or tuple(sorted(everywhere if every else first_uses["train"]))
    unseen = tuple(sorted(everywhere.keys() - set(labels)))
    tags = any(isinstance(example.label, tuple) for example in published["train"])
    if unseen and (names or not tags):
        raise UserError(
            f"{everywhere[unseen[0]]}: the label '{unseen[0]}' is not one of {', '.join(labels)}"
        )
    numbers = {label: number for number, label in enumerate(labels + unseen)} | {None: None}

    def number(label: Any) -> Any:
        return tuple(map(number, label)) if isinstance(label, tuple) else numbers[label]

    numbered = {
        split: [dataclasses.replace(example, label=number(example.label)) for example in examples]
        for split, examples in published.items()
    }
    return labels, unseen, numbered


def _flatten(label: Any) -> list[str]:
    if isinstance(label, tuple):
        return [name for one in label for name in _flatten(one)]
    return [] if label is None else [label]


def divide(
    published: Mapping[str, list[Example]], options: Mapping, symmetric: bool = False
) -> dict[str, list[Example]]:
    """Train, valid (selects) and test (is reported).

    Published splits stay as they are. A development set without a test set becomes the test set
    (see `task_data.dev`), because a score is too high on what selected it. Missing splits are held
    out of train, test first.
    """
    train, valid, test = (published.get(split) for split in SPLITS)
    if valid is not None and test is None:
        test = valid
        if options["dev"] == "test":
            valid = None
    size, seed = len(train), options["seed"]
    if test is None:
        number = round(options["test_fraction"] * size)
        train, test = hold_out(train, number, (seed, 1), 1 + (valid is None), symmetric)
    if valid is None:
        number = min(MOST_VALID, round(options["valid_fraction"] * size))
        train, valid = hold_out(train, number, (seed, 2), 1, symmetric)
    return {"train": train, "valid": valid, "test": test}


def hold_out(
    examples: list[Example],
    number: int,
    seed: tuple[int, ...],
    keep: int = 1,
    symmetric: bool = False,
) -> tuple[list[Example], list[Example]]:
    """(The rest, about `number` examples and at least one), in their order.

    Examples with the same first text (a span's: context) stay together, as many may ask about one
    passage. If a first text has more than `number` examples on average (one question about many
    passages), only equal pairs stay together.

    Args:
        examples: of train.
        number: of examples to hold out.
        seed: of the draw.
        keep: different texts that the rest has at least.
        symmetric: a pair and the swapped pair stay together.
    """
    groups = _group(examples, _first_text)
    pairs = examples[0].label is not None and len(examples[0].texts) == 2
    if pairs and len(examples) > max(number, 1) * len(groups):
        groups = _group(examples, lambda example: _normalized(example.texts))
    if len(groups) <= keep:
        raise UserError(
            f"{examples[0].where}: train has too few different texts ({len(groups)}) to hold out"
            " other splits; give more, or a file of each split"
        )
    chosen, left = set(), len(groups)
    for index in np.random.default_rng(seed).permutation(len(groups)):
        if left > keep and len(chosen) + len(groups[index]) <= number:
            chosen.update(groups[index])
            left -= 1
    chosen = chosen or set(min(groups, key=len))
    if symmetric:
        swapped = {_normalized(examples[i].texts[::-1]) for i in chosen}
        chosen |= {i for i, one in enumerate(examples) if _normalized(one.texts) in swapped}
    return (
        [example for i, example in enumerate(examples) if i not in chosen],
        [example for i, example in enumerate(examples) if i in chosen],
    )


def _group(examples: list[Example], key: Callable[[Example], Hashable]) -> list[list[int]]:
    """Numbers of the examples of each key."""
    groups: dict[Hashable, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(key(example), []).append(i)
    return list(groups.values())


def _first_text(example: Example) -> tuple[str, ...]:
    """The words, a span's context, otherwise the first text; where it is empty, all texts."""
    first = example.texts[-1:] if example.label is None else example.texts[:1]
    texts = example.words or first
    return _normalized(texts if any(texts) else example.texts + example.choices)


def _normalized(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(text.casefold().split()) for text in texts)


def draw(examples: list[Example], limit: int, seed: int) -> list[Example]:
    """`limit` random examples, in their order; 0: all. Fewer are a subset of more."""
    if not limit or limit >= len(examples):
        return examples
    order = np.random.default_rng((seed, 3)).permutation(len(examples))
    return [examples[i] for i in sorted(order[:limit])]
