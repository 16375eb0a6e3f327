"""What the worker processes of preparation run: token ids of documents."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertlab.data.tokenizers import Tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    """Tokenises documents.

    Args:
      tokenizer: text to ids.
      documents: id and sentences of each document.

    Returns:
      For each document a record: `id`, `tokens` int32 [N], `sentence_lengths` int32 [S] (without sentences that have no
      token, such as one of control characters only), `bytes` of its text in UTF-8, and how many tokens are `unknown`.
    """
    sentences = [sentence for _, sentences in documents for sentence in sentences]
    encoded = iter(tokenizer.encode_batch(sentences))
    records = []
    for document_id, sentences in documents:
        ids = [sentence_ids for sentence_ids in itertools.islice(encoded, len(sentences)) if sentence_ids]
        tokens = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
        records.append(
            {
                "id": document_id,
                "tokens": tokens,
                "sentence_lengths": np.fromiter(map(len, ids), np.int32, len(ids)),
                "bytes": sum(len(sentence.encode()) for sentence in sentences),
                "unknown": int(np.count_nonzero(tokens == tokenizer.unk_id)),
            }
        )
    return records
