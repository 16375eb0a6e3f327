"""Where a command may write: not over what a run, a study or a prepared corpus is made of, nor a run over a study."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertlab import checksums
from bertlab.errors import UserError
from bertlab.run import Run, StudyDirectory, named


def require_place(directory: Path, of: str, option: str = "--workdir") -> None:
    """Refuses a directory in which a run or a study would spoil what is there.

    Args:
        directory: It need not exist.
        of: What is to be written there, "run" or "study".
        option: Names the directory on the command line.

    Raises:
        UserError: It holds a study or, for a study, a run; or it belongs to one.
    """
    if of == "run" and StudyDirectory(directory).is_there():
        raise UserError(f"{directory} holds a study, so no single run can be written there; choose another {option}")
    if of == "study" and (Run(directory).begun() or Run(directory).is_there()):
        raise UserError(f"{directory} holds a single run, so no study can be written there; choose another {option}")
    require_free(directory, str(directory), folder=True)


def require_free(path: Path, said: str, *, folder: bool, but: str = "") -> None:
    """Refuses a path that belongs to a run or a study: a name of their own, or one inside a folder of their own.

    Another folder, such as a prepared corpus, owns what its files.json lists.

    Args:
        path: It need not exist.
        said: Begins the sentence.
        folder: Whether it is a folder; links to folders are followed. The names of files are taken with any ending.
        but: The attribute of `Run` that may be written.

    Raises:
        UserError: Names what it belongs to.
    """
    real = Path(os.path.realpath(path)) if folder else Path(os.path.realpath(path.parent), path.name)
    for place in real.parents:
        within = real.relative_to(place)
        first, inside = within.parts[0], folder or len(within.parts) > 1
        for owner, names in _owners(place, but).items():
            whole_name = f"{within.as_posix()}/"
            taken = first in names or any(f"{name}/".startswith(whole_name) for name in names)
            if taken or (not inside and within.stem in {Path(name).stem for name in names}):
                shown = next((str(of) for of in path.parents if os.path.realpath(of) == str(place)), str(place))
                raise UserError(f"{said}: {first} belongs to {owner} {shown}; choose another path")


def require_json_name(out: Path) -> None:
    """Raises: UserError: the name of a command's output does not end in .json."""
    if out.suffix != ".json":
        raise UserError(f"--out={out}: the output is JSON; choose a name that ends in .json")


def _owners(place: Path, but: str) -> dict[str, set[str]]:
    """What a folder is -> its own names in it."""
    run, study, found = Run(place), StudyDirectory(place), {}
    if run.is_there():
        found["the run"] = {*_names({key: of for key, of in named(run).items() if key != but}), "predictions"}
    if study.is_there():
        found["the study"] = {*_names(named(study)), *checksums.listed(place), checksums.LIST}
    if not found and (listed := checksums.listed(place)):
        found["the folder"] = listed
    return found


def _names(of_directory: Mapping[str, Any]) -> Iterable[str]:
    """Of what `bertlab.run.named` found."""
    return (getattr(of, "path", of).name for of in of_directory.values())
