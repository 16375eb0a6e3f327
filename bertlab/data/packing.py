"""Packing: several rows in one, without their padding (MLPerf's BERT).

In a packed row `documents` number the documents of all examples 1, 2, ..., `positions` begin again
in each, and fields of examples have n entries per row, n = `config.data.pack_examples`.
"""

import numpy as np

from bertlab.data.plans import RowPlan, bounds_of, chain


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
    labels = {}
    for name, label in rows.labels.items():
        labels[name] = np.full((len(first), examples), -1, np.int32)
        labels[name][pack_of, slot] = label
    return RowPlan(
        rows.starts,
        rows.lengths,
        rows.segments,
        (rows.documents + np.repeat(before, np.diff(rows.bounds))).astype(np.int32),
        rows.bounds[np.append(first, len(rows))],
        labels,
    )
