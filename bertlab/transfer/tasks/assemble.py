"""Turns published files into a task's examples: labels become numbers, and missing splits are held out of train.

A reader gives examples with the `label` as in the file (a string, or one per word); `number_labels` numbers them.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertlab.errors import UserError, some
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import BESIDE
from bertlab.transfer.kinds import Kind
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks.base import SPLITS, Task, TaskData
from bertlab.transfer.tasks.files import find_file, matches, places_of

Reader = Callable[[Path, str], Iterable[Example]]
"""(File or folder, split) -> its examples. A test file may lack labels; `label` is then None."""

MOST_VALID = 2000
"""Examples that are held out for selection at most."""


def file_task(
    name: str,
    kind: Kind,
    metrics: str | tuple[str, ...],
    read: Reader,
    files: tuple[str | tuple[str, ...], ...],
    *,
    folder: str = "",
    label_names: tuple[str, ...] = (),
    every_label: bool = False,
    stored: Callable[[str], Iterable[Example]] | None = None,
) -> Task:
    """A task with one file or folder per split.

    Args:
        name: letters, digits, "_" and "-".
        kind: the task's kind.
        metrics: some of `kind.metrics`; the first selects. () for the kind's default metrics.
        read: reads one file or folder.
        files: names or patterns of the files of train, valid and test, or of folders ("train/"). A split without one is held
            out of train.
        folder: see `find_file`.
        label_names: the classes in order; () for those of train, sorted.
        every_label: () stands for those of all splits instead.
        stored: (split) -> examples, from TFDS.

    Raises:
        UserError: as `check_task`, or a class is named twice.
    """
    if twice := [label for i, label in enumerate(label_names) if label in label_names[:i]]:
        raise UserError(f"task '{name}': label_names has '{twice[0]}' twice; name each class once")
    metrics = ((metrics,) if isinstance(metrics, str) else tuple(metrics)) or kind.default_metrics
    wanted = {split: (names,) if isinstance(names, str) else names for split, names in zip(SPLITS, files) if names}

    def load(directory: Path | None, options: Mapping) -> TaskData:
        if options["directory"] == "tfds":
            if stored is None:
                raise UserError(f"config.task_data.directory='tfds': task '{name}' is read from files only; give their folder")
            published = {split: list(stored(split)) for split in wanted}
        else:
            slash = "/" if wanted["train"][0].endswith("/") else ""
            given = {split: (options[f"{split}_file"] + slash,) for split in SPLITS if options[f"{split}_file"]}
            if directory is None:
                raise UserError(
                    f"config.task_data.directory is empty; give the folder that holds task '{name}' ({wanted['train'][0]})"
                )
            published = {}
            paths = {split: find_file(name, split, directory, names, folder) for split, names in (wanted | given).items()}
            for split, path in paths.items():
                published[split] = list(read(path, split))
                if not published[split]:
                    raise UserError(f"{path}: there are no examples; task '{name}' needs at least one")
        labels, unseen = (), ()
        if kind.has_classes:
            labels, unseen, published = number_labels(published, label_names, every_label)
        return TaskData(labels, divide(published, options, kind.symmetric), unseen)

    def is_in(directory: Path) -> bool:
        places = places_of(directory, folder)
        return all(any(matches(places, names)) for names in wanted.values())

    return check_task(Task(name, kind, metrics, load, is_in))


def check_task(task: Task) -> Task:
    """The task itself.

    Raises:
        UserError: the name is invalid, no metric is given, or a metric is unknown or does not fit the kind.
    """
    where = f"task '{task.name}'"
    if not re.fullmatch(r"\w[\w-]*", task.name):
        raise UserError(f"{where}: the name must also serve as a directory and a config key; use letters, digits, '_' and '-'")
    if task.name in BESIDE:
        raise UserError(f"{where}: config.objectives uses this name for an objective; choose another")
    known = task.kind.metrics
    if not task.metrics:
        raise UserError(f"{where} has no metrics; give it at least one of {', '.join(known)}")
    for metric in task.metrics:
        if metric not in METRICS:
            near = difflib.get_close_matches(metric, known, n=1, cutoff=0.5)
            advice = f"the nearest is {near[0]}" if near else f"choose from {', '.join(known)}"
            raise UserError(f"{where}: metric '{metric}' is not known; {advice}")
        if metric not in known:
            raise UserError(f"{where}: metric '{metric}' does not fit kind '{task.kind.name}'; choose from {', '.join(known)}")
    return task


def check_labels(task: Task, labels: tuple[str, ...]) -> None:
    """Raises: UserError: a metric needs two classes, and the task has another number."""
    if "f1" in task.metrics and len(labels) != 2:
        raise UserError(
            f"task '{task.name}': metric 'f1' scores class 1 of two, but the task has {len(labels)} ({some(labels)}); use "
            "macro_f1"
        )


def constant_label(data: TaskData) -> Any:
    """The label that all training examples have, or all their words or targets; None if labels differ."""
    found: set[Any] = set()
    for example in data.examples["train"]:
        label = (example.answers[:1] or "no answer") if example.label is None else example.label
        found.update(label if isinstance(label, tuple) else [label])
        if len(found) > 1:
            return None
    name = lambda label: data.labels[label] if data.labels and isinstance(label, int) else label
    return next((tuple(map(name, of)) if isinstance(of, tuple) else name(of) for of in found), None)


def number_labels(
    published: Mapping[str, list[Example]], names: tuple[str, ...] = (), every: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, list[Example]]]:
    """The names of the classes and of the tags that only other splits than train have, and the examples with numbers as labels.

    Args:
        published: examples with labels as in their files.
        names: the classes in order; () for those of train, sorted.
        every: () stands for those of all splits instead.

    Raises:
        UserError: a label is not among the classes, unless it is a tag and no `names` are given; or, without `names` and unless
            an example has several labels, a published development or test set lacks a label that train has.
    """
    seen = {split: _first_places(examples) for split, examples in published.items()}
    every_label = set().union(*seen.values())
    labels = tuple(names) or tuple(sorted(every_label if every else seen["train"]))
    several = any(isinstance(example.label, tuple) for example in published["train"])
    unseen = tuple(sorted(every_label - set(labels))) if several and not names else ()
    source = "label_names" if names else "train's labels"
    for places in seen.values():
        for label, place in places.items():
            if label not in labels + unseen:
                raise UserError(f"{place} '{label}', but {source} are {some(labels)}; correct one of them")
    for split, places in seen.items():
        missing = [label for label in labels if label not in places]
        if places and missing and not names and not several:
            file = published[split][0].where.rpartition(":")[0]
            raise UserError(
                f"{seen['train'][missing[0]]} '{missing[0]}', but no example of {file} has it; correct one of them, or give the"
                " task label_names if that is intended"
            )
    number = {label: i for i, label in enumerate(labels + unseen)}
    of = lambda label: tuple(map(of, label)) if isinstance(label, tuple) else number[label]

    def numbered(example: Example) -> Example:
        if example.label is None:
            return example
        return dataclasses.replace(example, label=of(example.label))

    return labels, unseen, {split: [numbered(example) for example in examples] for split, examples in published.items()}


def _first_places(examples: list[Example]) -> dict[str, str]:
    """Each label and its first place, as the beginning of a sentence."""
    places = {}
    for example in examples:
        if example.spans:
            for i, of_target in enumerate(example.label or ()):
                for label in of_target:
                    places.setdefault(label, f"{example.where}: target {i + 1} has the label")
        elif isinstance(example.label, tuple):
            for i, tag in enumerate(example.label):
                if tag not in places:
                    places[tag] = f"{example.where_of(i)}: word {i + 1} of the sentence, '{example.words[i]}', has the tag"
        elif example.label is not None and example.label not in places:
            places[example.label] = f"{example.where}: the example has the label"
    return places


def divide(published: Mapping[str, list[Example]], options: Mapping, symmetric: bool = False) -> dict[str, list[Example]]:
    """Train, valid (selects) and test (reported).

    Published splits are used unchanged. A development set without a test set becomes the test set (see `task_data.dev`),
    because a score used for selection is too high. Missing splits are held out of train; equal texts stay together
    (`hold_out`).

    Raises:
        UserError: train has too few different texts.
    """
    train, valid, test = (published.get(split) for split in SPLITS)
    if valid is not None and test is None:
        test = valid
        if options["dev"] == "test":
            valid = None
    whole = len(train)
    if test is None:
        stay = 2 if valid is None else 1
        train, test = hold_out(train, round(options["test_fraction"] * whole), (options["seed"], 1), stay, symmetric)
    if valid is None:
        number = min(MOST_VALID, round(options["valid_fraction"] * whole))
        train, valid = hold_out(train, number, (options["seed"], 2), symmetric=symmetric)
    return {"train": train, "valid": valid, "test": test}


def hold_out(
    examples: list[Example], number: int, seed: tuple[int, ...], stay: int = 1, symmetric: bool = False
) -> tuple[list[Example], list[Example]]:
    """Returns (the rest, about `number` examples and at least one), in their order; equal texts stay together.

    Pairs with the same first text stay together, because many may ask about one passage. If a first text has more than `number`
    examples on average (the same question about many passages), only equal pairs stay together.

    Args:
        examples: train's examples.
        number: how many to hold out.
        seed: of the draw.
        stay: keep at least so many different texts in the rest: 2 if you hold out more from it later.
        symmetric: keep a pair and its swapped pair together.

    Raises:
        UserError: the examples have no more than `stay` different texts.
    """
    groups = _groups(examples, _text)
    if examples[0].label is not None and len(examples[0].texts) == 2 and len(examples) > max(number, 1) * len(groups):
        groups = _groups(examples, lambda example: _plain(example.texts))
    if len(groups) <= stay:
        held_out = "both valid and test" if stay > 1 else "any"
        raise UserError(
            f"{examples[0].where}: train has too few different texts ({len(groups)}) to hold out {held_out}; give more,"
            " or separate files"
        )
    held, left = set(), len(groups)
    for group in np.random.default_rng(seed).permutation(len(groups)):
        if left > stay and len(held) + len(groups[group]) <= number:
            held.update(groups[group])
            left -= 1
    held = held or set(min(groups, key=len))
    if symmetric:
        swapped = {_plain(examples[i].texts[::-1]) for i in held}
        held |= {i for i, example in enumerate(examples) if _plain(example.texts) in swapped}
    return (
        [example for i, example in enumerate(examples) if i not in held],
        [example for i, example in enumerate(examples) if i in held],
    )


def _groups(examples: list[Example], key: Callable[[Example], tuple[str, ...]]) -> list[list[int]]:
    """Numbers of the examples of each key."""
    groups = {}
    for i, example in enumerate(examples):
        groups.setdefault(key(example), []).append(i)
    return list(groups.values())


def _text(example: Example) -> tuple[str, ...]:
    """The key for equal texts: the words, a span's context, otherwise the first text."""
    texts = example.words or (example.texts[-1:] if example.label is None else example.texts[:1])
    if not any(texts):
        texts = example.texts + example.choices
    return _plain(texts)


def _plain(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts with case and spacing normalised, for comparison."""
    return tuple(" ".join(text.casefold().split()) for text in texts)


def draw(examples: list[Example], limit: int, seed: int) -> list[Example]:
    """At most `limit` random examples, in their order; 0 for all. A smaller limit gives a part of a larger one."""
    if not limit or limit >= len(examples):
        return examples
    return [examples[i] for i in sorted(np.random.default_rng((seed, 3)).permutation(len(examples))[:limit])]
