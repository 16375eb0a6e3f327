"""Start your own project in a new folder: a config, an objective, a task, a study and tests.

bertlab init my_project
"""

import shutil

from bertlab.config.load import SHIPPED


def add_arguments(parser):
    parser.add_argument("directory", help="a new folder")


def run(arguments, overrides):
    """Copies experiments/own_project."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SHIPPED / "experiments" / "own_project", arguments.directory, ignore=ignored)
    print(f"{arguments.directory}/README.md describes the project")
