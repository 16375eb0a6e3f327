"""The command `bertlab`: one module of this folder per command.

A command's module has a docstring, `add_arguments(parser)` and `run(arguments, overrides)`, where
`overrides` are the `--config.KEY=VALUE` of the command line. Only the module of the command that
runs is imported.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from bertlab.errors import UserError
from bertlab.files import cache_directory

COMMANDS = {
    "init": "start a project of your own: config, objective, task, study, tests",
    "keys": "list every key of a config with its default and its meaning",
    "prepare": "tokenise a config's corpus",
    "train": "pretrain a model from a config; the same command resumes",
    "finetune": "train a pretrained model on a task",
    "adapt": "continue pretraining on the text of a task",
    "evaluate": "score text, minimal pairs or word vectors with a trained model",
    "embed": "write the vectors of texts",
    "sample": "continue a prompt",
    "sweep": "train all runs of a study",
    "report": "write the page of a study",
    "doctor": "look for mistakes in a run or a study",
    "import": "turn a published model into a run",
    "export": "write a run's model for another library",
}
MODULES = {"import": "import_"}
"""Modules whose name differs from the command's, which is a Python keyword."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status: 2 after a user's mistake."""
    argv = list(sys.argv[1:] if argv is None else argv)
    overview = argparse.ArgumentParser(
        "bertlab",
        description="Compare pretraining objectives on equal terms.",
        epilog="\n".join(["commands:", *(f"  {n:10}{text}" for n, text in COMMANDS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    overview.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="see below")
    name = overview.parse_args(argv[:1]).command
    module = importlib.import_module(f"bertlab.cli.{MODULES.get(name, name)}")
    parser = argparse.ArgumentParser(
        f"bertlab {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    arguments, overrides = parser.parse_known_args(argv[1:])
    unknown = [argument for argument in overrides if not argument.startswith("--config.")]
    if unknown:
        parser.error(f"unknown argument {unknown[0]}")
    prepare_process()
    try:
        module.run(arguments, overrides)
    except UserError as error:
        print(f"bertlab {name}: {error}", file=sys.stderr)
        return 2
    return 0


def prepare_process() -> None:
    """Makes objectives in the working directory importable; JAX caches what it compiles."""
    sys.path.append(os.getcwd())
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory() / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(4 << 30))
