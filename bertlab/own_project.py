"""`bertlab init`: a copy of the example project, which is among the experiments that bertlab brings along."""

from pathlib import Path

from bertlab.config import SHIPPED
from bertlab.errors import UserError
from bertlab.files import write_bytes


def write_project(directory: Path) -> list[Path]:
    """Writes a config, an objective, a task with its file, a study, a test and a README into a directory.

    Args:
        directory: new or empty, or with a part of these files: a killed process wrote them.

    Returns:
        The files.

    Raises:
        UserError: the directory is not empty, or is a file.
    """
    source = SHIPPED / "experiments" / "own_project"
    files = [directory / path.name for path in sorted(source.iterdir()) if path.is_file()]
    there = [*directory.iterdir()] if directory.is_dir() else []
    half = [path for path in there if path.suffix == ".partial" and path.with_suffix("").with_suffix("") in files]
    same = [
        path for path in there if path in files and path.is_file() and path.read_bytes() == (source / path.name).read_bytes()
    ]
    if (directory.exists() and not directory.is_dir()) or {*there} - {*half, *same} or len(same) == len(files):
        raise UserError(f"{directory} is not an empty directory; give a new or an empty one")
    for file in files:
        write_bytes(file, (source / file.name).read_bytes())
        print(file)
    for path in half:
        path.unlink(missing_ok=True)
    print(f"next: cd {directory}; README.md has the commands")
    return files
