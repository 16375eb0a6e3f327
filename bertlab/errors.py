"""Errors meant for the person at the keyboard."""


class UserError(ValueError):
    """A mistake in what was asked for: one sentence that names the key, file or line and says what to do.

    The command line prints it without a traceback and exits with status 2.
    """
