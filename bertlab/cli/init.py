"""Start your own project in a new folder: a config, an objective, a task, a study and tests.

bertlab init my_project
"""

import shutil
from pathlib import Path

from bertlab.config.load import SHIPPED
from bertlab.errors import UserError


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("directory", type=Path, help="a new folder")


def run(arguments, overrides):
    """Copies experiments/own_project."""
    directory = arguments.directory
    if directory.exists():
        raise UserError(f"{directory} exists; give a new folder")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SHIPPED / "experiments" / "own_project", directory, ignore=ignored)
    print(f"{directory}/README.md describes the project")
