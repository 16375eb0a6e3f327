"""Sentences and documents that occur more than once, counted on disk by their hashes."""

import hashlib
from pathlib import Path

import numpy as np

_BLOCK = 1 << 22


def digest(content: bytes) -> bytes:
    """8 bytes. Of 100 million different texts, two have the same with probability 0.0003."""
    return hashlib.blake2b(content, digest_size=8).digest()


def sorted_file(path: Path) -> np.ndarray:
    """The uint64 [n] of a .npy file, sorted in place; its memory is the file."""
    hashes = np.load(path, mmap_mode="r+")
    hashes.sort()
    return hashes


def number_repeated(hashes: np.ndarray) -> int:
    """How many of sorted hashes repeat the one before."""
    starts = range(0, len(hashes), _BLOCK)
    blocks = (hashes[start : start + _BLOCK + 1] for start in starts)
    return sum(int((block[1:] == block[:-1]).sum()) for block in blocks)


def number_in(hashes: np.ndarray, others: np.ndarray) -> int:
    """How many of sorted hashes are among the sorted others."""
    found = 0
    for start in range(0, len(hashes), _BLOCK):
        block = hashes[start : start + _BLOCK]
        indices = np.minimum(np.searchsorted(others, block), len(others) - 1)
        found += int((others[indices] == block).sum())
    return found
