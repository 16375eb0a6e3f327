"""The command `bertlab`: one module of this folder a command.

A command's module has a docstring, `add_arguments(parser)` and `run(arguments, overrides)`, where
`overrides` are the `--config.KEY=VALUE` of the command line.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from bertlab.errors import UserError

COMMANDS = ("train", "prepare", "keys")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status: 2 after a mistake of the user."""
    parser = argparse.ArgumentParser(
        "bertlab", description="Compare pretraining objectives on equal terms."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: importlib.import_module(f"bertlab.cli.{name}") for name in COMMANDS}
    for name, module in modules.items():
        summary = module.__doc__.splitlines()[0]
        subparser = subparsers.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(subparser)
    arguments, overrides = parser.parse_known_args(argv)
    unknown = [argument for argument in overrides if not argument.startswith("--config.")]
    if unknown:
        parser.error(f"unknown argument {unknown[0]}")
    try:
        modules[arguments.command].run(arguments, overrides)
    except UserError as error:
        print(f"bertlab {arguments.command}: {error}", file=sys.stderr)
        return 2
    return 0
