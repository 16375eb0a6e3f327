"""Co-occurrences of words, weighted by distance: GloVe's training data (Pennington et al. 2014).

An entry is (i, j, X_ij): X_ij is the sum of 1/distance for all pairs of an i and a j of one
document that are at most `window` words apart, on either side. As in GloVe's cooccur.c, words
outside the vocabulary (and other specials) are removed first and do not count in distances. As in
its shuffle.c, entries are shuffled once; an epoch then shuffles rows of them.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from bertlab.data.plans import ranges
from bertlab.data.prepared import Prepared, read_array, write_array

ENTRY = np.dtype([("token", "<i4"), ("context", "<i4"), ("count", "<f4")])
_CHUNK_PAIRS = 1 << 24  # pairs to add up at a time


@dataclass(frozen=True)
class EntryPlan:
    """Rows of `length` entries (`ENTRY` [N]), the last one padded."""

    entries: np.ndarray
    length: int
    is_ordered = False

    def __len__(self) -> int:
        return -(-len(self.entries) // self.length)

    def gather(self, arrays, rows: np.ndarray, width: int, pad_id: int) -> dict[str, np.ndarray]:
        """Fields [B, width] of `rows` [B]. Padding has the count 1, which has a logarithm."""
        at = rows[:, None] * self.length + np.arange(width)
        is_entry = at < len(self.entries)
        chosen = self.entries.take(at, mode="clip")
        zeros = np.zeros(at.shape, np.int32)
        return {
            "tokens": np.where(is_entry, chosen["token"], pad_id),
            "contexts": np.where(is_entry, chosen["context"], pad_id),
            "counts": np.where(is_entry, chosen["count"], np.float32(1)),
            "documents": is_entry.astype(np.int32),
            "segments": zeros,
            "positions": zeros,
        }


def entries(prepared: Prepared, name: str, documents: np.ndarray, window: int) -> np.ndarray:
    """All entries of some documents of a split, from a file next to the corpus; made once, in up to
    50 bytes of memory for each entry."""
    path = prepared.directory / f"cooccurrence-{name}-{len(documents)}-{window}.npy"
    if not path.exists():
        counted = _count(prepared, name, documents, window)
        write_array(path, np.random.default_rng(0).permutation(counted))
    return read_array(path)


def _count(prepared: Prepared, name: str, documents: np.ndarray, window: int) -> np.ndarray:
    split, size = prepared.split(name), prepared.tokenizer.vocab_size
    is_word = ~np.isin(np.arange(size), list(prepared.tokenizer.special_ids))
    bounds = split.token_bounds()
    first, lengths = bounds[documents], bounds[documents + 1] - bounds[documents]
    chunk = np.cumsum(lengths) // (_CHUNK_PAIRS // window)
    sums = [scipy.sparse.csr_matrix((size, size))]
    for some in np.split(np.arange(len(documents)), np.flatnonzero(np.diff(chunk)) + 1):
        words = split.tokens[ranges(first[some], lengths[some])].astype(np.int32)
        document = np.repeat(some, lengths[some])[is_word[words]]
        sums.append(_pairs(words[is_word[words]], document, window, size))
        # Add up matrices of similar size, so that each entry is added only a few times.
        while len(sums) > 1 and sums[-2].nnz < 2 * sums[-1].nnz:
            sums[-2:] = [sums[-2] + sums[-1]]
    total = sum(sums[1:], sums[0])
    total = (total + total.T).tocsr()
    counted = np.empty(total.nnz, ENTRY)
    counted["token"] = np.repeat(np.arange(size), np.diff(total.indptr))
    counted["context"], counted["count"] = total.indices, total.data
    return counted


def _pairs(words, document, window: int, size: int) -> scipy.sparse.csr_matrix:
    """Sums of 1/distance, by first and second word of the text."""
    first, second, weights = [], [], []
    for distance in range(1, window + 1):
        at = np.flatnonzero(document[:-distance] == document[distance:])
        first.append(words[at])
        second.append(words[at + distance])
        weights.append(np.full(len(at), 1 / distance))
    pairs = np.concatenate(weights), (np.concatenate(first), np.concatenate(second))
    return scipy.sparse.coo_matrix(pairs, shape=(size, size)).tocsr()
