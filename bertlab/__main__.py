"""The command `bertlab`, of the shell and as `python -m bertlab`."""

import sys

from bertlab.interrupts import end_at_once


def command() -> int:
    """Runs `bertlab.cli.command`; a signal that comes while that is imported ends the process too in one line."""
    end_at_once()
    from bertlab import cli

    return cli.command()


if __name__ == "__main__":
    sys.exit(command())
