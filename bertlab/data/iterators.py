"""A Grain dataset made of a function that makes its iterators."""

from collections.abc import Callable

import grain


class IteratorDataset(grain.IterDataset):
    """The dataset whose iterators are `make(*iterators of the parents)`."""

    def __init__(self, make: Callable[..., grain.DatasetIterator], *parents: grain.IterDataset):
        super().__init__(parents)
        self._make = make

    def __iter__(self) -> grain.DatasetIterator:
        return self._make(*map(iter, self._parents))
