"""Ctrl-C (SIGINT) and SIGTERM, for every command: the first lets it save and end, the second ends it at once.

`interruptible` is around a whole command: the first signal raises KeyboardInterrupt. Inside `held`, a training loop, it is only
noted, and the loop saves and ends by itself. A thread sees the signals as well: the main thread does not while XLA compiles.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds in which a command that holds no signal is to notice the first one, and then again to end: it can be killed at any
# moment. What a library's own handler swallows never arrives.
PATIENCE = 5.0
# Seconds in which a signal is the first one again: `timeout` and schedulers send theirs to the process and to its group.
TOGETHER = 1.0


class Signals:
    """What has come while a block was `interruptible`.

    Attributes:
        received: The number of the first signal; None before one.
    """

    def __init__(self):
        self.received: int | None = None
        self._noticed, self._holders, self._at_once = False, [], []
        self._raised = False
        self._saving = False  # it ends by itself, however long it takes
        self._repeats = 0  # signals of our own that the thread has not seen yet

    @property
    def status(self) -> int:
        """The exit status of what the signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.received or 0)

    @property
    def ends(self) -> bool:
        """Whether KeyboardInterrupt was raised and nothing saves: whatever error comes now is what a library made of it."""
        return self._raised and not self._saving

    def saving(self) -> None:
        """Says that what follows saves, and may take long.

        If a signal has begun it, the next one ends it at once; otherwise the next one is only noted.
        """
        self._saving = self._noticed = True

    def _receive(self, number, frame) -> None:
        """In the main thread, between two lines of Python."""
        first, self._noticed = not self._noticed, True
        self.received = self.received or number
        if first and self._holders:
            self.saving()
            self._holders[-1]()
        elif first:
            self._raised = True
            raise KeyboardInterrupt

    def _forget(self, of) -> bool:
        """Raises again what Python forgets: in `__del__`, or in what a weak reference or the collection of garbage calls."""
        if of.exc_type is not KeyboardInterrupt or not self._noticed or self._holders:
            return False
        self._noticed = False
        self._repeats += 1
        again = threading.Timer(0.02, signal.pthread_kill, [threading.main_thread().ident, self.received])
        again.daemon = True
        again.start()
        return True

    def _watch(self, wakeups: int) -> None:
        """In a thread: ends the process at the second signal, or if the first does not end what holds none."""
        while not self.received:
            if (number := os.read(wakeups, 1)[0]) == 0:  # the block has ended
                return
            self.received = number if number in SIGNALS else None
        first = time.monotonic()
        if self._holders or self._saving:
            os.write(2, b"interrupted: saving; press Ctrl-C again to end at once\n")
        while True:
            noticed, waits = self._noticed, None if self._holders or self._saving else PATIENCE
            number = os.read(wakeups, 1)[0] if select.select([wakeups], [], [], waits)[0] else None
            if number == 0:
                return
            if number in SIGNALS and self._repeats:
                self._repeats -= 1
                continue
            if number in SIGNALS and time.monotonic() - first < TOGETHER:
                continue
            if number is None and (self._noticed != noticed or self._saving):
                continue
            if number is None or number in SIGNALS:
                for act in self._at_once:
                    with contextlib.suppress(Exception):
                        act()
                os.write(2, b"ended at once; run the same command again to continue\n")
                os._exit(self.status)


def end_at_once() -> None:
    """Until a block is `interruptible`, a signal ends the process at once in one line: nothing has begun."""
    for number in SIGNALS:
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _end(number, frame) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"bertlab: interrupted; run the same command again to continue\n")
    os._exit(128 + number)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """A block in which signals wait: for its end, or if it starts another program in this process, until that is ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


_active: list[Signals] = []


@contextlib.contextmanager
def interruptible(at_once: Callable[[], None] | None = None, numbers: Sequence[int] = SIGNALS) -> Iterator[Signals]:
    """A block that the first signal ends with KeyboardInterrupt, and the second with the process.

    Args:
        at_once: Called before the second one ends the process.
        numbers: Signals to receive, unless a block around this one receives them; only the main thread can.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    with contextlib.ExitStack() as stack:
        if not _active:
            _active.append(_begin(stack, numbers))
        if at_once:
            _active[0]._at_once.append(at_once)
            stack.callback(_active[0]._at_once.remove, at_once)
        yield _active[0]


def _begin(stack: contextlib.ExitStack, numbers: Sequence[int]) -> Signals:
    signals = Signals()
    wakeups, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    watcher = threading.Thread(target=signals._watch, args=(wakeups,), daemon=True)
    previous = {number: signal.signal(number, signals._receive) for number in numbers}
    before = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    forgotten, sys.unraisablehook = sys.unraisablehook, lambda of: signals._forget(of) or forgotten(of)

    def end() -> None:
        sys.unraisablehook = forgotten
        _active.clear()
        signal.set_wakeup_fd(before)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.write(wakeup, b"\0")
        watcher.join()
        os.close(wakeup)
        os.close(wakeups)

    stack.callback(end)
    watcher.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    return signals


@contextlib.contextmanager
def held(then: Callable[[], None] = lambda: None, numbers: Sequence[int] = SIGNALS) -> Iterator[Signals]:
    """A block that the first signal does not interrupt: it is to look at `received`, save and end.

    Args:
        then: Called when it comes.
        numbers: As for `interruptible`.
    """
    with interruptible(numbers=numbers) as signals:
        signals._holders.append(then)
        try:
            yield signals
        finally:
            signals._holders.remove(then)
        if signals.received:  # it came after the last look
            raise KeyboardInterrupt
