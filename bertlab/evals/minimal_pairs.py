"""Minimal pairs: how often a model finds the good sentence more likely than the bad one (BLiMP,
Warstadt et al. 2020)."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlab.errors import UserError

ROUNDING = 1e-5
"""Nats, of a sum of float32 log-probabilities; scores that differ less are tied."""


class Pair(NamedTuple):
    """`good` should be more likely than `bad`.

    Attributes:
        good: A sentence.
        bad: Another.
        paradigm: BLiMP's UID.
        phenomenon: BLiMP's linguistics_term, which several paradigms share; "" if the file has
            none.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str = ""


def read_pairs(lines: Iterable[str], name: str, limit: int = 0) -> list[Pair]:
    """Pairs in BLiMP's format: JSON lines with `sentence_good`, `sentence_bad`, `UID` and perhaps
    `linguistics_term`.

    Args:
        lines: Of the file.
        name: The file's, for errors.
        limit: The first so many pairs of each paradigm; 0: all.

    Raises:
        UserError: A line is not such a record, or there is none.
    """
    pairs, taken = [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            good, bad, paradigm = (record[key] for key in ("sentence_good", "sentence_bad", "UID"))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f'{name}, line {number}: expected a JSON object with "sentence_good",'
                ' "sentence_bad" and "UID", as in BLiMP'
            ) from None
        taken[paradigm] = taken.get(paradigm, 0) + 1
        if not limit or taken[paradigm] <= limit:
            pairs.append(Pair(good, bad, paradigm, record.get("linguistics_term") or ""))
    if not pairs:
        raise UserError(f"{name} has no pairs; give JSON lines like BLiMP's")
    return pairs


def judge(pairs: Sequence[Pair], score: Callable[[list[str]], Sequence[float]]) -> dict[str, Any]:
    """How often the good sentence is the more likely one; a tie counts as half.

    Args:
        pairs: Of any number of paradigms.
        score: Texts to their log-probabilities, not divided by length (section 4).

    Returns:
        `accuracy` (the mean over paradigms), its `standard_error` over pairs, the number of
        `pairs`, and the same for each of `paradigms` and of `phenomena` (the mean over its
        paradigms).
    """
    scores = score([text for pair in pairs for text in (pair.good, pair.bad)])
    difference = np.subtract(*np.reshape(scores, (-1, 2)).T)
    right = np.where(np.abs(difference) < ROUNDING, 0.5, difference > 0)
    paradigms = np.array([pair.paradigm for pair in pairs])
    phenomena = np.array([pair.phenomenon for pair in pairs])
    by_phenomenon = {}
    for name in filter(None, dict.fromkeys(phenomena.tolist())):
        inside = phenomena == name
        by_phenomenon[name] = mean_accuracy(right[inside], paradigms[inside])
        del by_phenomenon[name]["paradigms"]
    return {**mean_accuracy(right, paradigms), "phenomena": by_phenomenon}


def mean_accuracy(right: np.ndarray, names: np.ndarray) -> dict[str, Any]:
    """The accuracy as the mean over paradigms.

    A standard error is None if the items do not tell it: a paradigm has one, or all are right, or
    all wrong.

    Args:
        right: [N] 1 or 0 for each item, or between them for a tie.
        names: [N] its paradigm.
    """
    paradigms = {}
    for name in dict.fromkeys(names.tolist()):
        own = right[names == name]
        error = own.std(ddof=1) / math.sqrt(len(own)) if len(own) > 1 else None
        paradigms[name] = {
            "accuracy": float(own.mean()),
            "standard_error": None if error is None else float(error),
            "pairs": len(own),
        }
    errors = [paradigm["standard_error"] for paradigm in paradigms.values()]
    together = None
    if None not in errors and any(errors):
        together = math.hypot(*errors) / len(errors)
    for paradigm in paradigms.values():
        # No spread does not tell that the next pair would be right too.
        paradigm["standard_error"] = paradigm["standard_error"] or None
    return {
        "accuracy": float(np.mean([paradigm["accuracy"] for paradigm in paradigms.values()])),
        "standard_error": together,
        "pairs": len(right),
        "paradigms": paradigms,
    }
