"""An n-gram model over the ids of a prepared corpus."""

import numpy as np
from jaxtyping import Float, Int


class KneserNey:
    """Interpolated Kneser-Ney n-grams with a discount for each order (Chen and Goodman 1999,
    section 2.7). The end of a document is a token too, with the id `vocab_size`.

    Args:
        tokens: Documents end to end.
        ends: Where each ends.
        vocab_size: Number of ids.
        order: n.
    """

    def __init__(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "D"], vocab_size: int, order: int
    ):
        self.size, self.order, self.levels = vocab_size + 1, order, []
        stream = self._stream(tokens, ends)
        ids, found = np.zeros_like(stream), []  # ids: the n-gram that ends at each position
        for _ in range(order):
            keys, first, inverse, counts = np.unique(
                np.roll(ids, 1) * self.size + stream,
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if found:  # shorter n-grams count once for each token before them
                found[-1][1] = np.bincount(ids[first])
            found.append([keys, counts])
            ids = inverse
        contexts = 2  # how many there are, plus a last one for all unseen ones
        for keys, counts in found:
            ones, twos = (counts == 1).sum(), (counts == 2).sum()
            discount = ones / (ones + 2 * twos) if ones else 0.75
            totals = np.bincount(keys // self.size, counts, contexts)
            shared = discount * np.bincount(keys // self.size, minlength=contexts)
            self.levels.append((keys, counts - discount, totals, shared))
            contexts = len(keys) + 1

    def _stream(self, tokens, ends) -> Int[np.ndarray, "N"]:
        """The documents, each followed by enough ends that no context reaches past them; the last
        comes before the first."""
        tokens = np.asarray(tokens, np.int64)
        return np.insert(tokens, np.repeat(ends, self.order - 1), self.size - 1)

    def probabilities(self, stream: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """P of each token, given those before it (before the first: the last)."""
        p, ids = np.full(len(stream), 1 / self.size), np.zeros_like(stream)
        for keys, discounted, totals, shared in self.levels:
            context = np.roll(ids, 1)  # -1 is unseen
            wanted = context * self.size + stream
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            seen, total = keys[at] == wanted, totals[context]
            interpolated = np.where(seen, discounted[at], 0.0) + shared[context] * p
            p = np.where(total > 0, interpolated / np.maximum(total, 1.0), p)
            ids = np.where(seen, at, -1)
        return p

    def nats(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "D"]
    ) -> Float[np.ndarray, "D"]:
        """The code length of each document with its end."""
        nats = -np.log(self.probabilities(self._stream(tokens, ends)))
        lengths, padding = np.diff(ends, prepend=0), self.order - 1
        begins = np.cumsum(lengths + padding) - lengths - padding
        return np.array([nats[b : b + n + 1].sum() for b, n in zip(begins, lengths)])
