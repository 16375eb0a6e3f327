"""Downstream tasks: `TASKS`, and the functions to make your own (`table`, `labelled_lines`, `conll`, `conllu`, ...).

Your own task is a Python file with its data files next to it:

    from bertlab.transfer.tasks import table

    TASK = table("reviews", train="train.tsv", valid="dev.tsv", text="review", label="stars")
"""

import dataclasses
import difflib
import importlib.util
import traceback
from collections.abc import Mapping
from pathlib import Path

from bertlab.errors import UserError, similar_file, some
from bertlab.transfer.entities import find_scheme
from bertlab.transfer.scorers import ENTITY_METRICS
from bertlab.transfer.tasks import babylm, catalogue, edges, glue, pydocs, superglue
from bertlab.transfer.tasks.assemble import check_labels, check_task, draw
from bertlab.transfer.tasks.base import KEYS, OPTIONS, SPLITS, Task, TaskData
from bertlab.transfer.tasks.conll import UPOS, XPOS, conll, conllu
from bertlab.transfer.tasks.edges import edge_probing
from bertlab.transfer.tasks.folders import labelled_folders
from bertlab.transfer.tasks.multiple_choice import multiple_choice
from bertlab.transfer.tasks.squad import squad
from bertlab.transfer.tasks.table import labelled_lines, table
from bertlab.transfer.tasks.word_in_context import word_in_context

__all__ = [
    "OPTIONS",
    "SPLITS",
    "TASKS",
    "UPOS",
    "XPOS",
    "Task",
    "TaskData",
    "conll",
    "conllu",
    "edge_probing",
    "find_task",
    "labelled_folders",
    "labelled_lines",
    "load_task",
    "load_tasks",
    "multiple_choice",
    "squad",
    "table",
    "word_in_context",
]

_GROUPS = (glue, superglue, babylm, catalogue, edges, pydocs)
TASKS = {task.name: task for group in _GROUPS for task in group.TASKS}


def find_task(name: str) -> Task:
    """The task of this name, or the `TASK` of a Python file.

    Args:
        name: a key of `TASKS`, or a path that ends in .py; the task's files are relative to it.

    Raises:
        UserError: the task is unknown, or its file is missing, fails or defines no TASK.
    """
    if name.endswith(".py"):
        return _own_task(Path(name).expanduser())
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.5)
        known = f"the nearest are {', '.join(near)}" if near else f"choose one of {', '.join(TASKS)}"
        raise UserError(f"task '{name}' is not known; {known}; or give the path of a .py file that defines TASK")
    return TASKS[name]


def _own_task(path: Path) -> Task:
    if not path.is_file():
        meant = similar_file(path) or "; give a task's name, or the path of a .py file that defines TASK"
        raise UserError(f"{path}: the file is missing{meant}")
    specification = importlib.util.spec_from_file_location(f"own_task_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
        task = getattr(module, "TASK", None)
        if not isinstance(task, Task):
            raise UserError("it defines no TASK; write TASK = table(...), with table from bertlab.transfer.tasks")
        check_task(task)
    except UserError as error:
        raise UserError(f"{_whereabouts(path, specification.origin, error)}: {error}") from error
    except Exception as error:
        # The file is the user's own code: any exception is a mistake in it.
        said = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
        where = _whereabouts(path, specification.origin, error)
        raise UserError(f"{where}: running the file failed ({type(error).__name__}: {said}); correct it") from error
    folder = path.resolve().parent
    return dataclasses.replace(task, load=lambda directory, options: task.load(directory or folder, options))


def _whereabouts(path: Path, origin: str, error: Exception) -> str:
    """FILE:LINE of the line in the user's own file (`origin` in tracebacks) that led to the error; FILE if no line did."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == origin]
    if isinstance(error, SyntaxError) and error.filename == origin:
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines and lines[-1] else str(path)


def load_tasks(names: str, options: Mapping) -> dict[str, tuple[Task, TaskData]]:
    """The tasks of "NAME+NAME", by their own names, with their examples.

    Args:
        names: as for `find_task`, joined by +.
        options: as for `load_task`; `directory` is one for all tasks, or one per task, joined by + ("glue+sentences"; an empty
            part means the task's own folder).

    Raises:
        UserError: as for `find_task` and `load_task`; a task is named twice; or the number of directories is wrong.
    """
    asked = names.split("+")
    directories = options.get("directory", "").split("+") if len(asked) > 1 else [options.get("directory", "")]
    if len(directories) == 1:
        directories *= len(asked)
    if len(directories) != len(asked):
        raise UserError(
            f"config.task_data.directory={options['directory']} names {len(directories)} folders for the {len(asked)} tasks"
            f" {names}; give one for all, or one for each"
        )
    found = {}
    for name, directory in zip(asked, directories):
        task = find_task(name)
        if task.name in found:
            raise UserError(f"config.task={names!r} names a task twice")
        found[task.name] = task, load_task(task, {**options, "directory": directory})
    return found


def load_task(task: Task, options: Mapping) -> TaskData:
    """Loads a task's examples and checks that train and valid have labelled examples.

    Args:
        task: from `find_task`.
        options: `config.task_data`, or a part of it; `OPTIONS` has all keys with their defaults.

    Raises:
        UserError: an option is unknown or out of range, a metric needs another number of classes, or the files are wrong.
    """
    for key in options:
        if key not in OPTIONS:
            raise UserError(f"config.task_data.{key} is not known; choose one of {', '.join(OPTIONS)}")
    options = {**OPTIONS, **options}
    options["pretraining"] = {**OPTIONS["pretraining"], **options["pretraining"]}
    for key in KEYS:
        key.check(options[key.leaf], {})
    directory = None
    if options["directory"] not in ("", "tfds"):
        directory = Path(options["directory"]).expanduser()
        if not directory.is_dir():
            raise UserError(
                f"config.task_data.directory={directory} is not a folder; give the one that holds task '{task.name}'"
            )
    data = task.load(directory, options)
    check_labels(task, data.labels)
    notes = [
        f"{number:,} words of {split} have a tag that train lacks ({some(data.unseen)}) and count as wrong"
        for split in SPLITS
        if (number := data.count_unseen(split))
    ]
    if ENTITY_METRICS.keys() & {*task.metrics}:
        scheme, said = find_scheme(task.name, data.names, data.examples)
        notes = [*said, *notes]
        data = dataclasses.replace(data, scheme=scheme)
    train = draw(data.examples["train"], options["limit"], options["seed"])
    drawn = {"train": train} if task.kind.is_trained else {"train": train, "valid": train}
    return dataclasses.replace(data, examples={**data.examples, **drawn}, notes=tuple(notes))
