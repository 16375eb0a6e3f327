"""Makes batches ahead of the training step."""

import collections
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def prefetch(batches: Callable, start: int, put: Callable, ahead: int = 2) -> Iterator[Any]:
    """`put(batches(step))` for start, start + 1, ..., made by a thread while the caller works."""
    thread, waiting = ThreadPoolExecutor(1, thread_name_prefix="batches"), collections.deque()
    try:
        for step in itertools.count(start):
            waiting.append(thread.submit(lambda step=step: put(batches(step))))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
