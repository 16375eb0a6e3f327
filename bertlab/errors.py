"""Errors caused by the user's input."""


class UserError(Exception):
    """One sentence for the person at the keyboard: the key, or the file and line, and what to do.

    Commands print it without a traceback. Raise it where a config, a path or an input file is read.
    """


class Diverged(UserError):
    """A loss is not finite."""
