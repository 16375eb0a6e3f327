"""Less padding: batches of rows of similar length, or several rows in one (MLPerf's BERT).

In a packed row `documents` number the documents of all examples 1, 2, ..., `positions` begin again
in each, and fields of examples have n entries per row, n = `config.data.pack_examples`.
"""

import dataclasses

import numpy as np

from bertlab.data.plans import RowPlan, bounds_of, chain


def bucketed(lengths, buckets, size: int, rng: np.random.Generator):
    """The order of rows that makes batches of one length bucket each.

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


def pack(plan: RowPlan, length: int, examples: int, rng: np.random.Generator) -> RowPlan:
    """Next-fit: rows in a random order, each into the last packed row if it fits, or a new one.

    A packed row has at most `length` positions and at most `examples` examples.
    """
    rows = plan.take(rng.permutation(len(plan)))
    filled = bounds_of(rows.row_lengths())
    number = np.arange(len(rows))
    following = np.searchsorted(filled, filled[:-1] + length, side="right") - 1
    first = chain(np.minimum(following, number + examples))
    pack_of = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
    slot = number - first[pack_of]

    # Documents of the packed row before each example.
    before = bounds_of(rows.documents[rows.bounds[1:] - 1])[:-1]
    before -= before[first][pack_of]
    documents = (rows.documents + np.repeat(before, np.diff(rows.bounds))).astype(np.int32)
    labels = {}
    for name, label in rows.labels.items():
        labels[name] = np.full((len(first), examples), -1, np.int32)
        labels[name][pack_of, slot] = label
    bounds = rows.bounds[np.append(first, len(rows))]
    return dataclasses.replace(rows, documents=documents, bounds=bounds, labels=labels)
