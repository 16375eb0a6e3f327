"""Facts about a run's text and batches: `data.json`, which `bertlab doctor` judges."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlab.data.formats import NEGATIVES
from bertlab.data.prepared import PartOfSource, Prepared

_BINS = 4  # of each segment's length: held-out rows are few, and 16 cells share them


def data_facts(
    prepared: Prepared, evaluations: Mapping[str, Sequence[Mapping[str, np.ndarray]]], limit: int = 0
) -> dict[str, Any]:
    """Facts about the text and the held-out batches.

    Args:
        prepared: the corpus.
        evaluations: held-out batches by split.
        limit: `config.data.unique_tokens`.

    Returns:
        `batches`: `batch_facts` by split; and `corpus`: `fingerprint`, `tokenizer` (its kind), `vocab_size`, `splits`
        (`Prepared.statistics`), with a limit `unique` (the `documents` and `tokens` that are trained on), and
        `unigram_entropy` of the train split in nats per token, the loss of a model that knows only how often each token occurs.
    """
    corpus = {
        "fingerprint": prepared.fingerprint,
        "tokenizer": prepared.tokenizer.kind,
        "vocab_size": prepared.tokenizer.vocab_size,
        "splits": prepared.statistics,
        "unigram_entropy": unigram_entropy(prepared.counts),
    }
    if limit:
        part = PartOfSource(prepared.source("train"), limit)
        corpus["unique"] = {"documents": len(part), "tokens": part.tokens}
    return {"corpus": corpus, "batches": {split: batch_facts(batches) for split, batches in evaluations.items()}}


def unique_tokens(facts: Mapping[str, Any]) -> int:
    """Tokens of the text that a run trains on again and again, by its data.json: the train split's, or a part's; 0: unknown."""
    corpus = facts.get("corpus", {})
    return (corpus.get("unique") or corpus.get("splits", {}).get("train", {})).get("tokens", 0)


def unique_note(facts: Mapping[str, Any], limit: int) -> str:
    """That whole documents make a run's text longer than its limit by more than a tenth; "" if they do not.

    Args:
        facts: its data.json.
        limit: `config.data.unique_tokens`.
    """
    part = facts["corpus"].get("unique")
    if not part or part["tokens"] <= 1.1 * limit:
        return ""
    documents = f"{part['documents']:,} whole document{'s' * (part['documents'] > 1)}"
    return (
        f"config.data.unique_tokens={limit}: {documents} {'have' if part['documents'] > 1 else 'has'} {part['tokens']:,} tokens"
    )


def constant_labels(facts: Mapping[str, Any]) -> dict[str, str]:
    """The objectives of pairs for which all pairs of a phase have the same label, by a run's data.json -> how (a clause)."""
    return {name: of["constant"] for name, of in facts.get("objectives", {}).items() if "constant" in of}


def unigram_entropy(counts: np.ndarray) -> float:
    """−Σ p log p in nats, with p in proportion to `counts` [V]."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def batch_facts(batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Facts of held-out batches. Rows that are only padding, at the end of the last batch, do not count.

    Args:
        batches: with `documents` [B, L] (0: padding), and for pairs `segments` [B, L] and labels [B], or [B, n] of packed
            pairs (−1: none).

    Returns: `rows`, `positions`, `tokens` (positions without padding) and, for each label field of pairs (`pair_label`,
        `order_label`), a dict of `rows` (pairs with a label), `share` (of label 1) and `length_rule` (see
        `length_rule_accuracy`).
    """
    fields = {name for batch in batches for name in batch}
    joined = {
        name: np.concatenate([batch[name] for batch in batches])
        for name in ("documents", "segments", *NEGATIVES.values())
        if name in fields
    }
    real = joined["documents"].any(axis=1)
    joined = {name: values[real] for name, values in joined.items()}
    is_token = joined["documents"] > 0
    facts = {"rows": len(is_token), "positions": is_token.size, "tokens": int(is_token.sum())}
    for name in NEGATIVES.values():
        if name not in joined or not (joined[name] >= 0).any():
            continue
        of_row = joined[name].reshape(len(is_token), -1)
        row, pair = np.nonzero(of_row >= 0)
        labels, own = of_row[row, pair], joined["documents"][row] == pair[:, None] + 1
        lengths = [(own & (joined["segments"][row] == side)).sum(axis=1) for side in (0, 1)]
        facts[name] = {
            "rows": len(labels),
            "share": float(labels.mean()),
            "length_rule": length_rule_accuracy(labels, np.stack(lengths, axis=1)),
        }
    return facts


def length_rule_accuracy(labels: np.ndarray, lengths: np.ndarray) -> float:
    """The share of labels that the segments' lengths predict correctly.

    The rule is a table: it predicts the more common label of all rows with both lengths in the same two bins. It is fitted on
    every second row and measured on the others, and vice versa.

    Args:
        labels: [n] of 0 and 1.
        lengths: [n, 2] tokens of A and of B; bins hold about equally many rows.
    """
    edges = np.quantile(lengths, np.arange(1, _BINS) / _BINS, axis=0)
    a, b = (np.searchsorted(edges[:, side], lengths[:, side], side="left") for side in (0, 1))
    cells, right = a * _BINS + b, 0
    for half in (0, 1):
        is_fitted = np.arange(len(labels)) % 2 == half
        votes = np.bincount(cells[is_fitted], 2 * labels[is_fitted] - 1.0, minlength=_BINS**2)
        majority = votes.sum() > 0
        guesses = np.where(votes == 0, majority, votes > 0)[cells[~is_fitted]]
        right += int((guesses == labels[~is_fitted]).sum())
    return right / len(labels)
