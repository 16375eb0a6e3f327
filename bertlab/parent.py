"""The process that started this one, as a worker sees it: its orders, and whether it is still there."""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable


class Parent:
    """The process that started this one. It sends orders on standard input, one a line.

    When standard input closes, no order follows. If that happens in the middle of work, the parent is gone, and this process
    gets a signal.
    """

    def __init__(self, ends_work: signal.Signals):
        """Listens from now on.

        Args:
            ends_work: SIGTERM for work that saves and ends by itself, SIGKILL for what is worth nothing without the parent.
        """
        self.ends_work = ends_work
        self.orders, self.gone, self.idle = queue.SimpleQueue(), threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with open(0, "rb", closefd=False) as lines:
            for line in lines:
                self.orders.put(line.removesuffix(b"\n"))
        works = not self.idle.is_set()  # before it is woken
        self.gone.set()
        self.orders.put(None)
        if works:
            os.kill(os.getpid(), self.ends_work)

    def next_order(self, answer: Callable[[], object]) -> bytes | None:
        """Calls `answer`, which tells the parent that its order is done; waits for the next, None if there is none."""
        self.idle.set()
        with contextlib.suppress(BrokenPipeError):
            answer()
        order = self.orders.get()
        self.idle.clear()
        return None if self.gone.is_set() else order
