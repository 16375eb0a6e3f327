"""Errors caused by the user's input."""

from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """One sentence for the person at the keyboard: the key, or the file and line, and what to do.

    Commands print it without a traceback. Raise it where a config, a path or an input file is read.
    """


class Diverged(UserError):
    """A loss is not finite."""


def require_choice(key: str, value: Any, choices: Iterable) -> None:
    """Refuses a value of a key that is not one of the choices."""
    choices = list(choices)
    if value not in choices:
        raise UserError(f"{key}={value!r} is not one of {', '.join(map(str, choices))}")
