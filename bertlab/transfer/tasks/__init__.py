"""Downstream tasks: `TASKS`, and the functions that make your own (`table`, `conll`, ...).

Your own task is a Python file next to its data:

    from bertlab.transfer.tasks import table

    TASK = table("reviews", train="train.tsv", valid="dev.tsv", text="review", label="stars")
"""

import dataclasses
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.config.load import find_file, import_file
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import find_scheme
from bertlab.transfer.tasks import catalogue, pydocs
from bertlab.transfer.tasks.assemble import draw
from bertlab.transfer.tasks.base import SPLITS, TASK_DATA, Task, TaskData
from bertlab.transfer.tasks.files import json_task
from bertlab.transfer.tasks.readers import (
    UPOS,
    XPOS,
    conll,
    conllu,
    labelled_folders,
    labelled_lines,
    multiple_choice,
    squad,
    table,
)

__all__ = [
    "SPLITS",
    "TASKS",
    "TASK_DATA",
    "UPOS",
    "XPOS",
    "Task",
    "TaskData",
    "conll",
    "conllu",
    "find_task",
    "json_task",
    "labelled_folders",
    "labelled_lines",
    "load_task",
    "load_tasks",
    "multiple_choice",
    "squad",
    "table",
]

TASKS = {task.name: task for task in (*catalogue.TASKS, *pydocs.TASKS)}


def find_task(name: str) -> Task:
    """The task of this name, the `TASK` of a .py file, or what "module:NAME" names.

    Paths in a .py file's task are relative to that file.
    """
    if name in TASKS:
        return TASKS[name]
    if ":" in name:
        return pkgutil.resolve_name(name)
    if not name.endswith(".py"):
        raise UserError(
            f"config.task: '{name}' is neither FILE.py, nor MODULE:NAME, nor one of"
            f" {', '.join(sorted(TASKS))}"
        )
    path = find_file(str(Path(name).expanduser()))
    task = getattr(import_file(str(path)), "TASK", None)
    if not isinstance(task, Task):
        raise UserError(f"{path}: the file defines no TASK, such as TASK = table(...)")
    folder = path.resolve().parent
    return dataclasses.replace(
        task, load=lambda directory, options: task.load(directory or folder, options)
    )


def load_tasks(names: str, options: Mapping) -> dict[str, tuple[Task, TaskData]]:
    """The tasks of "NAME+NAME" by their own names, with their examples.

    `options` as for `load_task`; `directory` is one for all, or one for each, joined by +.
    """
    tasks = [find_task(name) for name in names.split("+")]
    directory = options.get("directory", "")
    directories = directory.split("+") if len(tasks) > 1 else [directory]
    if len(directories) == 1:
        directories *= len(tasks)
    if len(directories) != len(tasks):
        raise UserError(
            f"config.task_data.directory names {len(directories)} folders for {len(tasks)} tasks"
        )
    return {
        task.name: (task, load_task(task, {**options, "directory": directory}))
        for task, directory in zip(tasks, directories)
    }


def load_task(task: Task, options: Mapping) -> TaskData:
    """A task's examples, with `limit` applied to train; options: keys of `config.task_data`."""
    options = {**TASK_DATA, **options}
    if options["dev"] not in ("test", "valid"):
        raise UserError(f"config.task_data.dev={options['dev']} is neither test nor valid")
    directory = Path(options["directory"]).expanduser() if options["directory"] else None
    data = task.load(directory, options)
    if "f1" in task.metrics and len(data.labels) != 2:
        raise UserError(
            f"task '{task.name}': f1 scores class 1 of two, and there are {len(data.labels)}; use"
            " macro_f1"
        )
    scheme, notes = None, []
    if "entity_f1" in task.metrics:
        scheme, notes = find_scheme(task.name, data.names, data.examples)
    notes += [
        f"{number:,} words of {split} have a tag that train lacks and count as wrong:"
        f" {', '.join(data.unseen)}"
        for split in data.examples
        if (number := data.count_unseen(split))
    ]
    train = draw(data.examples["train"], options["limit"], options["seed"])
    if (label := _constant_label(train, data.labels)) is not None:
        notes.append(f"the label never varies: it is {label!r} in all training examples")
    # A kind that trains nothing needs no valid split of its own.
    examples = {"valid": train, **data.examples, "train": train}
    examples = {split: examples[split] for split in SPLITS}
    return dataclasses.replace(data, examples=examples, scheme=scheme, notes=tuple(notes))


def _constant_label(train: Sequence[Example], names: Sequence[str]) -> Any:
    """The label of every example, word or target; None if labels differ."""
    labels = [one.label for one in train]
    if labels[0] is None:  # a span: only whether there is an answer can be constant
        labels = ["an answer" if one.answers else "no answer" for one in train]
    found = {one for label in labels for one in (label if isinstance(label, tuple) else (label,))}
    label = found.pop() if len(found) == 1 else None
    return names[label] if names and isinstance(label, int) else label
