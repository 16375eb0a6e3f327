"""The code of objectives and tasks from outside the package. It decides a result as the config does, which only names it."""

import ast
import functools
import hashlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertlab import objectives
from bertlab.errors import UserError
from bertlab.run import Run


def code_of(config: Any) -> dict[str, str]:
    """Name of each outside objective ("module:Class") and own task (path of a .py file) of a config -> digest of its code.

    Code is the file, with the Python files of its folder that it imports, directly or not; of an objective also those of
    classes of the same package that it inherits from. It is as this process first read it: a process that runs several
    trainings imports an objective once.

    Raises:
        UserError: an objective's module is not found, or one of the files is no Python.
    """
    named = [entry.get("implementation") or "" for entry in config.get("objectives", {}).values()]
    found = {name: _code_of_class(objectives.find(name)) for name in named if ":" in name}
    tasks = [name for name in config.get("task", "").split("+") if name.endswith(".py")]
    return found | {name: _digest([Path(name).expanduser()]) for name in tasks}


def other_code(run: Run, code: Mapping[str, str]) -> list[str]:
    """Those of these names whose code a run's environment.json has with another digest."""
    try:
        there = run.environment.get({}).get("code", {})
    except UserError:  # damaged: an unfinished run writes it anew, and a finished one's files have digests
        return []
    return [name for name, digest in code.items() if there.get(name, digest) != digest]


def file_of(name: str) -> str:
    """The file of a name in `code_of`."""
    return inspect.getfile(objectives.find(name)) if ":" in name else name


def require_same_code(run: Run, config: Any) -> None:
    """Refuses to go on with a run under other code than it was trained with; one without a record of it goes on.

    Raises:
        UserError: names the file.
    """
    for name in other_code(run, code_of(config)):
        raise UserError(
            f"{file_of(name)}, or a file that it imports, is not as it was when {run} was trained with {name}; restore it,"
            f" give another --workdir, or delete {run}"
        )


@functools.cache
def _code_of_class(kind: type[objectives.Objective]) -> str:
    package = lambda of: of.__module__.partition(".")[0]
    return _digest(Path(inspect.getfile(of)) for of in kind.__mro__ if package(of) == package(kind))


def _digest(files: Iterable[Path]) -> str:
    waiting, found = [*files], {}
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        try:
            found[file] = file.read_text(encoding="utf-8")
            tree = ast.parse(found[file])
        except (OSError, ValueError, SyntaxError) as error:
            raise UserError(f"{file}: {getattr(error, 'msg', None) or error}; it is code of this config: correct it") from None
        names = {"__init__"}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {
                    name.rpartition(".")[2] for name in (getattr(node, "module", None) or "", *(of.name for of in node.names))
                }
        waiting += [path for name in sorted(names - {"", "*"}) if (path := file.parent / f"{name}.py").is_file()]
    text = "\n".join(sorted(f"{file.name}\n{content}" for file, content in found.items()))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
