"""`bertlab init`: a copy of the example project, which is among the experiments that bertlab brings along."""

from pathlib import Path

from bertlab.config import SHIPPED
from bertlab.errors import UserError
from bertlab.files import write_bytes


def write_project(directory: Path) -> list[Path]:
    """Writes a config, an objective, a task with its file, a study, a test and a README into a directory.

    Args:
        directory: new or empty.

    Returns:
        The files.

    Raises:
        UserError: the directory is not empty, or is a file.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not an empty directory; give a new or an empty one")
    directory.mkdir(parents=True, exist_ok=True)
    source = SHIPPED / "experiments" / "own_project"
    files = [directory / path.name for path in sorted(source.iterdir()) if path.is_file()]
    try:
        for file in files:
            write_bytes(file, (source / file.name).read_bytes())
            print(file)
    except BaseException:  # Ctrl-C too: half a project would be refused by the next try
        for file in files:
            file.unlink(missing_ok=True)
        raise
    print(f"next: cd {directory}; README.md has the commands")
    return files
