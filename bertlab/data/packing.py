"""Packing: several of a format's rows in one, without their padding (MLPerf's BERT: sequences of up to 512 in rows of 512).

An example is one of the format's rows. In a packed row [L], `documents` number the documents of all examples 1, 2, ...,
`positions` begin again in each, and what an example has one of is [n], n = `pack_examples`: `pair_label` and `order_label` (−1
without an example), `visit` and `example_id` (0 without one).
"""

import functools

import grain
import numpy as np

from bertlab.data.rows import Row

_OF_POSITIONS = ("tokens", "segments", "documents", "positions")
_OF_EXAMPLES = ("pair_label", "order_label", "visit", "example_id")  # the last is two numbers

# Rows that are filled at a time. An example goes to the first that has room; when none has, all are done.
OPEN = 64


def packed(rows: grain.IterDataset, data, pad_id: int, seed: int) -> grain.IterDataset:
    """Rows of up to `config.data.pack_examples` examples and `config.data.pack_length` positions.

    Args:
        rows: of a format, with `visit`.
        data: `config.data`.
        pad_id: of the tokenizer.
        seed: of the order of the rows that were filled together: the first ones are the fullest.
    """
    packs = grain.experimental.FirstFitPackIterDataset(
        rows.map(_in_columns),
        length_struct={"positions": data.pack_length, "examples": data.pack_examples},
        num_packing_bins=OPEN,
        seed=seed,
        meta_features=["examples"],
    )
    return packs.map(functools.partial(_row, pad_id=pad_id))


def _in_columns(row: Row) -> dict[str, np.ndarray]:
    """A row as Grain packs it: `positions` [T, 4] without padding and `examples` [1, 5]; every field takes time."""
    size = np.count_nonzero(row["documents"])
    return {
        "positions": np.stack([row[name][:size] for name in _OF_POSITIONS], axis=1),
        "examples": np.hstack([row[name] for name in _OF_EXAMPLES])[None],
    }


def _row(pack: dict[str, np.ndarray], pad_id: int) -> Row:
    """The fields of a packed row, whose documents are numbered through all its examples."""
    row = dict(zip(_OF_POSITIONS, pack["positions"].T))
    example, own = pack["positions_segment_ids"], row["documents"]
    begins = (np.diff(example, prepend=0) != 0) | (np.diff(own, prepend=0) != 0)
    pair_label, order_label, visit = pack["examples"][:, :3].T
    no_example = np.arange(len(visit)) >= example.max()
    return {
        **row,
        "tokens": np.where(own > 0, row["tokens"], pad_id),
        "documents": np.where(own > 0, np.cumsum(begins), 0).astype(np.int32),
        "pair_label": np.where(no_example, -1, pair_label),
        "order_label": np.where(no_example, -1, order_label),
        "visit": visit,
        "example_id": pack["examples"][:, 3:],
    }
