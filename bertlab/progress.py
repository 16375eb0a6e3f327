"""How far long work is. Whoever does it says so here; a terminal shows it with the time left, and nothing else does.

    for batch in progress.over(batches, "evaluating", len(batches)):
        ...

Nothing is shown outside `shown()`, so a library call is silent.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")
# (label, done, total or None if unknown); done equals total at the end of the work.
Show = Callable[[str, float, float | None], None]

_show: Show | None = None


def tell(label: str, done: float, total: float | None) -> None:
    """Says how much of the work named `label` is done.

    Args:
        label: what is done, such as "compiling".
        done: in any unit; equal to `total` at the end.
        total: in the same unit; None if unknown.
    """
    if _show is not None:
        _show(label, done, total)


def over(
    items: Iterable[Item], label: str, total: float | None = None, size: Callable[[Item], float] = lambda _: 1
) -> Iterator[Item]:
    """Yields the items, and tells how many have been dealt with.

    Args:
        items: any.
        label: as for `tell`.
        total: sum of all sizes; None if unknown.
        size: of an item, in the unit of `total`.
    """
    done = 0.0
    tell(label, 0, total)
    try:
        for item in items:
            yield item
            done += size(item)
            if done != total:
                tell(label, done, total)
    finally:
        tell(label, 1, 1)


@contextlib.contextmanager
def doing(label: str) -> Iterator[None]:
    """Tells that work of unknown length goes on, until the block ends."""
    tell(label, 0, None)
    try:
        yield
    finally:
        tell(label, 1, 1)


@contextlib.contextmanager
def shown(console: "Console | None" = None) -> Iterator[None]:
    """Shows what is told inside the block, if standard error is a terminal.

    Args:
        console: where instead of standard error.
    """
    global _show
    before = _show
    with contextlib.ExitStack() as stack:
        show = _Late(stack, console)
        _show = show if show.is_terminal else None
        try:
            yield
        finally:
            _show = before


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Shows nothing that is told inside the block, whose own display takes the terminal."""
    global _show
    before, _show = _show, None
    try:
        yield
    finally:
        _show = before


class _Late:
    """Makes the bars when the first work is told: rich is slow to import, and most commands need no bars."""

    def __init__(self, stack: contextlib.ExitStack, console: "Console | None"):
        import sys

        self.is_terminal = sys.stderr.isatty() if console is None else console.is_terminal
        self._stack, self._console, self._bars = stack, console, None

    def __call__(self, label: str, done: float, total: float | None) -> None:
        if self._bars is None:
            self._bars = self._stack.enter_context(Bars(self._console))
        self._bars(label, done, total)


class Bars:
    """A line for each work that is going on: its name, its share, the time so far and the time left.

    Args:
        console: None for standard error.
    """

    def __init__(self, console: "Console | None" = None):
        import sys

        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *times
        # What is printed meanwhile appears above the bars, unless it goes to a file.
        self._bars = Progress(
            *columns,
            console=console or Console(stderr=True),
            transient=True,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._tasks, self._shown = {}, {}

    def __call__(self, label: str, done: float, total: float | None) -> None:
        """Shows one work; as `tell`."""
        if total is not None and done >= total:
            if label in self._tasks:
                self._bars.remove_task(self._tasks.pop(label))
                if not self._tasks:
                    self._bars.stop()
            return
        now = time.monotonic()
        if label not in self._tasks:
            if not self._tasks:
                self._bars.start()
            self._tasks[label] = self._bars.add_task(label, total=total)
        elif now < self._shown[label] + 0.1:
            return
        self._shown[label] = now
        self._bars.update(self._tasks[label], completed=done, total=total)

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *_) -> None:
        self._bars.stop()
