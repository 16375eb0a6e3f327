"""Length buckets: a batch has rows of similar length, cut to the length of their bucket."""

import numpy as np


def bucketed(lengths, buckets, size: int, rng: np.random.Generator):
    """The order of rows that makes batches of one bucket each.

    A row belongs to the smallest bucket that holds it. Rows that do not fill a batch move to
    the next longer bucket; in the longest, they are dropped: fewer than a batch.

    Args:
        lengths: [R], the rows' lengths.
        buckets: increasing lengths; the last holds every row.
        size: rows per batch.

    Returns:
        order: int64 [n · size], the rows of n batches.
        widths: int64 [n], the positions of each batch.
    """
    order = rng.permutation(len(lengths))
    bucket = np.searchsorted(buckets, lengths[order])
    batches, widths, remaining = [], [], order[:0]
    for number, width in enumerate(buckets):
        rows = np.concatenate([remaining, order[bucket == number]])
        full = len(rows) // size
        batches.append(rows[: full * size].reshape(full, size))
        widths += [width] * full
        remaining = rows[full * size :]
    shuffled = rng.permutation(len(widths))
    return np.concatenate(batches)[shuffled].ravel(), np.asarray(widths, np.int64)[shuffled]
