"""What tests of batches share: documents in memory, iterators that are closed, and equality."""

import contextlib
import itertools

import numpy as np

from bertlab.data.batches import train_batches


class Source(list):
    """Documents in memory; Grain compares sources by their text."""

    def __repr__(self):
        return f"Source({len(self)})"


class Tokenizer:
    """The special ids of a tokenizer of words."""

    kind = "words"
    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)


@contextlib.contextmanager
def opened(*arguments, state=None):
    """An iterator of training batches that is closed in the end."""
    with contextlib.closing(iter(train_batches(*arguments))) as iterator:
        if state is not None:
            iterator.set_state(state)
        yield iterator


def take(number, *arguments, **options):
    """The first batches, as a list; arguments as for `opened`."""
    with opened(*arguments, **options) as iterator:
        return list(itertools.islice(iterator, number))


def assert_equal_batches(first, second):
    """As many of the same fields, values and dtypes, and at least one batch."""
    assert len(first) == len(second) > 0
    for x, y in zip(first, second):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], strict=True)
