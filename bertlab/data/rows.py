"""Rows of token ids: dicts of arrays of length L (`tokens`, `segments`, `documents`, `positions`, int32) and of labels."""

import numpy as np

Row = dict[str, np.ndarray]


def make_row(seq_len: int, pad_id: int, tokens, segments, documents, pair_label: int, example_id, order_label: int = -1) -> Row:
    """Pads to `seq_len`; positions count from 0 within each document of the row.

    Returns:
        The four fields of positions, and

            pair_label   0: B follows A, 1: B is random, −1: unknown
            order_label  0: B follows A, 1: A follows B, −1: unknown
            example_id   [2] the document's index, and the number of the row's first unit in it
    """
    size = len(tokens)
    row = {name: np.zeros(seq_len, np.int32) for name in ("tokens", "segments", "documents", "positions")}
    row["tokens"][:size] = tokens
    row["tokens"][size:] = pad_id
    row["segments"][:size] = segments
    row["documents"][:size] = documents
    row["positions"][:size] = np.arange(size)
    for start in np.flatnonzero(np.diff(row["documents"][:size])) + 1:
        row["positions"][start:size] = np.arange(size - start)
    return {
        **row,
        "pair_label": np.int32(pair_label),
        "order_label": np.int32(order_label),
        "example_id": np.asarray(example_id, np.int32),
    }


def pad_batch(rows: list[dict], size: int) -> dict[str, np.ndarray]:
    """Stacks rows and adds empty ones up to `size`: their document is 0 everywhere, so all their weights are zero."""
    empty = {k: np.full_like(v, -1 if "label" in k else 0) for k, v in rows[0].items()}
    rows = rows + [empty] * (size - len(rows))
    return {k: np.stack([row[k] for row in rows]) for k in rows[0]}


def sentence_bounds(document: dict) -> np.ndarray:
    """[sentences + 1] Where the sentences of a prepared document start in its tokens, and its end; skips empty sentences."""
    lengths = document["sentence_lengths"]
    bounds = np.zeros(np.count_nonzero(lengths) + 1, np.int64)
    np.cumsum(lengths[lengths > 0], out=bounds[1:])
    return bounds
