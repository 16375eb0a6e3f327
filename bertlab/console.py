"""Where tables and lines are printed."""

import rich.console


class Console(rich.console.Console):
    """rich's, but a pipe that nobody reads any more is an error as of `print`; rich would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        """Is called while the error is handled."""
        raise
