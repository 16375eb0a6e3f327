"""Co-occurrences of words, weighted by distance: GloVe's training data (Pennington et al. 2014).

An entry is (i, j, X_ij): X_ij is the sum of 1/distance for all pairs of an i and a j of one document
that are at most `window` words apart, to both sides, so X is symmetric. As in GloVe's cooccur.c,
words outside the vocabulary (and other specials) are taken out first, and distances count the words
that are left.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse

from bertlab.spine.data.plans import ranges
from bertlab.spine.data.prepared import Prepared, read_array

ENTRY = np.dtype([("token", "<i4"), ("context", "<i4"), ("count", "<f4")])

# Pairs that are added up at a time.
_CHUNK_PAIRS = 1 << 24


@dataclass(frozen=True)
class EntryPlan:
    """Rows of L entries in a random order, the last one padded.

    Attributes:
        entries: `ENTRY` [N].
        order: int64 [N].
        length: L.
    """

    entries: np.ndarray
    order: np.ndarray
    length: int
    is_ordered = True  # by `order`

    def __len__(self) -> int:
        return -(-len(self.order) // self.length)

    def gather(self, arrays, rows: np.ndarray, width: int, pad_id: int) -> dict[str, np.ndarray]:
        """See `Plan`. Padding has the count 1, so that it has a logarithm."""
        del arrays
        at = rows[:, None] * width + np.arange(width)
        is_entry = at < len(self.order)
        chosen = self.entries[self.order.take(at, mode="clip")]
        none, zeros = np.full(len(rows), -1, np.int32), np.zeros(at.shape, np.int32)
        return {
            "tokens": np.where(is_entry, chosen["token"], pad_id),
            "contexts": np.where(is_entry, chosen["context"], pad_id),
            "counts": np.where(is_entry, chosen["count"], np.float32(1)),
            "documents": is_entry.astype(np.int32),
            "segments": zeros,
            "positions": zeros,
            "pair_label": none,
            "order_label": none,
            "number": rows,
        }


def entries(prepared: Prepared, name: str, chosen: np.ndarray, window: int) -> np.ndarray:
    """All entries of some documents of a split, sorted, in a file beside the corpus; made once.

    Needs up to 50 bytes of memory for each entry.

    Args:
        prepared: the corpus.
        name: of the split.
        chosen: numbers of its documents.
        window: the largest distance (`config.data.cooccurrence.window`).
    """
    path = prepared.directory / f"cooccurrence-{name}-{len(chosen)}-{window}.npy"
    if not path.exists():
        save(path, count_pairs(prepared, name, chosen, window))
    return read_array(path)


def count_pairs(prepared: Prepared, name: str, chosen: np.ndarray, window: int) -> np.ndarray:
    """See `entries`."""
    split, size = prepared.split(name), prepared.tokenizer.vocab_size
    roles = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    is_word = np.ones(size, bool)
    is_word[[i for i in (getattr(prepared.tokenizer, role) for role in roles) if i is not None]] = (
        False
    )
    bounds = split.token_bounds()
    first, counts = bounds[chosen], bounds[chosen + 1] - bounds[chosen]
    chunk = np.cumsum(counts) // (_CHUNK_PAIRS // (2 * window))
    sums = [scipy.sparse.csr_matrix((size, size))]
    for documents in np.split(np.arange(len(chosen)), np.flatnonzero(np.diff(chunk)) + 1):
        words = split.tokens[ranges(first[documents], counts[documents])].astype(np.int32)
        document = np.repeat(documents, counts[documents])[is_word[words]]
        words = words[is_word[words]]
        sums.append(_pairs(words, document, window, size))
        # Add up matrices of about one size, so that an entry is added to few others.
        while len(sums) > 1 and sums[-2].nnz < 2 * sums[-1].nnz:
            sums[-2:] = [sums[-2] + sums[-1]]
    total = sum(sums[1:], sums[0])
    total = (total + total.T).tocsr()
    total.sort_indices()
    result = np.empty(total.nnz, ENTRY)
    result["token"] = np.repeat(np.arange(size), np.diff(total.indptr))
    result["context"], result["count"] = total.indices, total.data
    return result


def _pairs(words, document, window: int, size: int) -> scipy.sparse.csr_matrix:
    """Sums of 1/distance, of pairs whose second word is to the right."""
    left, right, weights = [], [], []
    for distance in range(1, window + 1):
        at = np.flatnonzero(document[:-distance] == document[distance:])
        left.append(words[at])
        right.append(words[at + distance])
        weights.append(np.full(len(at), 1 / distance))
    pairs = np.concatenate(weights), (np.concatenate(left), np.concatenate(right))
    return scipy.sparse.coo_matrix(pairs, shape=(size, size)).tocsr()


def save(path: Path, array: np.ndarray) -> None:
    """Writes an array to a temporary name and renames it: several processes may make the same."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)
