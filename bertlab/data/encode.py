"""The work of preparation's worker processes: token ids of documents."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertlab.data.tokenizers import Tokenizer

CHUNK_CHARACTERS, FEW_CHUNKS = 1 << 18, 8
"""Of the documents that go to a worker process at once, and up to how many such chunks none is started."""
HASH = np.dtype("<u8")
"""Of the hashes of texts. With 100 million different texts, two of them have one hash in common with probability 0.0003."""


def encode_documents(tokenizer: Tokenizer, documents: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    """Tokenises documents.

    Args:
      tokenizer: text to ids.
      documents: id and `Document.parts` of each document.

    Returns:
      For each document a record: `id`, `tokens` int32 [N], `sentence_lengths` int32 [S] (sentences without a token are left
      out), `bytes` of its text in UTF-8, how many tokens are `unknown`, and `sentence_hashes` uint64 [S] and `document_hash`
      uint64 [1] of its text. From a tokenizer of words also `unknown_words`, those behind the unknown tokens, one per line.
    """
    records = []
    for (document_id, parts), encoded in zip(documents, tokenizer.encode_parts([parts for _, parts in documents])):
        ids = [sentence_ids for sentence_ids in encoded if sentence_ids]
        tokens = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
        digests = b"".join(_digest(text.strip().encode()) for text, found in zip(parts, encoded, strict=True) if found)
        record = {
            "id": document_id,
            "tokens": tokens,
            "sentence_lengths": np.fromiter(map(len, ids), np.int32, len(ids)),
            "bytes": sum(len(part.encode()) for part in parts),
            "unknown": int(np.count_nonzero(tokens == tokenizer.unk_id)),
            "sentence_hashes": np.frombuffer(digests, HASH),
            "document_hash": np.frombuffer(_digest(digests), HASH),
        }
        if tokenizer.has_whole_words:
            record["unknown_words"] = "\n".join(_unknown_words(tokenizer, parts, encoded))
        records.append(record)
    return records


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH.itemsize).digest()


def _unknown_words(tokenizer: Tokenizer, parts: Sequence[str], encoded: Sequence[list[int]]) -> Iterator[str]:
    for part, ids in zip(parts, encoded, strict=True):
        if tokenizer.unk_id in ids:
            words = zip(tokenizer.words(part), ids, strict=True)
            yield from (word for word, token in words if token == tokenizer.unk_id)
