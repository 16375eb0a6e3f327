"""Rows [CLS] A [SEP] B [SEP] of two segments, where B follows A in its document or does not.

Each sentence draws its numbers as if a pair began there: where the pair and A would end, whether B
would follow. The pairs of a document are those that one reaches from its first sentence (`chain`):
after a random B, what would have followed A is read again.
"""

import numpy as np

from bertlab.data.plans import RowPlan, Text, chain, special

# Kinds of negative pairs, and the field that labels them.
NEGATIVES = {"random": "pair_label", "swapped": "order_label"}


def segment_pair(text: Text, data, tokenizer, rng: np.random.Generator) -> RowPlan:
    """BERT's pairs, as create_pretraining_data.py makes them (Devlin et al. 2018, appendix A.2).

    Sentences are gathered until a target length is reached (the row's, or with `short_probability`
    a random one, drawn once per document); A is a random number of them from the front, and B the
    rest.
    """
    documents, room = len(text.documents) - 1, data.seq_len - 3
    is_short = rng.random(documents) < data.segment_pair.short_probability
    target = np.where(is_short, rng.integers(2, room + 1, documents), room)
    first = np.arange(len(text.starts))
    end = np.searchsorted(text.bounds, text.bounds[:-1] + target[text.document])
    end = np.minimum(end, text.documents[text.document + 1])
    split = first + 1 + (rng.random(len(first)) * (end - first - 1)).astype(np.int64)
    return _pairs(text, split, end, target, data, tokenizer, rng)


def sentence_pair(text: Text, data, tokenizer, rng: np.random.Generator) -> RowPlan:
    """Pairs of single sentences (RoBERTa's SENTENCE-PAIR: Liu et al. 2019, section 4.2). Unlike
    RoBERTa's, batches are not enlarged to make up for the padding."""
    first = np.arange(len(text.starts))
    end = np.minimum(first + 2, text.documents[text.document + 1])
    target = np.zeros(len(text.documents) - 1, np.int64)  # one sentence reaches it
    return _pairs(text, first + 1, end, target, data, tokenizer, rng)


def _pairs(text: Text, split, end, target, data, tokenizer, rng) -> RowPlan:
    """Rows of pairs; the settings are in `config/defaults.py`.

    A and B of a pair that begins with a sentence would end at `split` and `end` [S]; nothing
    follows A if they are equal, and if B is not random either, the row is A only, without a label.
    `target` [D] is how many tokens a document's pairs should have. Swapped negatives are ALBERT's
    sentence order (Lan et al. 2020, section 3.1).
    """
    settings = data[data.format]
    swaps = settings.negatives == "swapped"
    is_single = split == end
    is_negative = rng.random(len(split)) < settings.random_next_probability
    has_random = np.zeros_like(is_single)
    if not swaps:
        has_random = (is_single & settings.force_random_if_single) | (is_negative & ~is_single)
    first = chain(np.where(has_random, split, end))
    split, end = split[first], end[first]
    is_single, is_negative, has_random = is_single[first], is_negative[first], has_random[first]

    a, b = text.starts[first], text.starts[np.minimum(split, len(text.starts) - 1)]
    a_length = text.bounds[split] - text.bounds[first]
    b_length = text.bounds[end] - text.bounds[split]
    own = text.document[first[has_random]]
    room = target[own] - a_length[has_random]
    b[has_random], b_length[has_random] = _random_segments(text, own, room, settings, rng)
    if swaps:
        swap = is_negative & ~is_single
        a[swap], b[swap] = b[swap], a[swap]
        a_length[swap], b_length[swap] = b_length[swap], a_length[swap]
    # Cut after the swap, as in ALBERT's code, so that the cut does not reveal the label.
    a, a_length, b, b_length = _truncated(a, a_length, b, b_length, data.seq_len - 3, rng)

    label = np.where(is_single & ~has_random, -1, has_random | (swaps & is_negative))
    one, has_b = np.ones_like(first), (b_length > 0).astype(np.int64)
    cls, sep = special(tokenizer.cls_id) * one, special(tokenizer.sep_id) * one
    return RowPlan.from_groups(
        starts=np.stack([cls, a, sep, b, sep], axis=1),
        lengths=np.stack([one, a_length, one, b_length, has_b], axis=1),
        documents=one,
        segments=(0, 0, 0, 1, 1),
        first=np.arange(len(first)),
        **{NEGATIVES[settings.negatives]: label},
    )


def _random_segments(text: Text, own, room, settings, rng) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths: from a random sentence of another document on, until `room` is filled."""
    documents = len(text.documents) - 1
    other = rng.integers(documents, size=len(own))
    for _ in range(settings.own_document_retries - 1):
        is_own = other == own
        if not is_own.any():
            break
        other[is_own] = rng.integers(documents, size=is_own.sum())
    first, end = text.documents[other], text.documents[other + 1]
    start = first + (rng.random(len(own)) * (end - first)).astype(np.int64)
    stop = np.searchsorted(text.bounds, text.bounds[start] + room)
    stop = np.clip(stop, start + 1, end)
    return text.starts[start], text.bounds[stop] - text.bounds[start]


def _truncated(a, a_length, b, b_length, room: int, rng):
    """Takes tokens one by one from the longer side (B at a tie), from front or back by chance."""
    excess = np.maximum(a_length + b_length - room, 0)
    from_longer = np.minimum(excess, np.abs(a_length - b_length))
    from_both = excess - from_longer  # in turn, B first
    is_a_longer = a_length > b_length
    from_a = from_both // 2 + from_longer * is_a_longer
    from_b = excess - from_a
    a, b = a + rng.binomial(from_a, 0.5), b + rng.binomial(from_b, 0.5)
    return a, a_length - from_a, b, b_length - from_b
