"""Minimal pairs: how often a model finds the good sentence more likely than the bad one (BLiMP,
Warstadt et al. 2020)."""

import collections
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bertlab.data.corpora.text import read_lines
from bertlab.errors import UserError

ROUNDING = 1e-5
"""Nats, of a sum of float32 log-probabilities; scores that differ less are tied."""


class Pair(NamedTuple):
    """`good` should be more likely than `bad`; several paradigms (BLiMP's UID) share a phenomenon
    (its linguistics_term, or "")."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str = ""


def read_pairs(path: Path, limit: int = 0) -> list[Pair]:
    """Pairs in BLiMP's format: JSON lines with `sentence_good`, `sentence_bad`, `UID` and perhaps
    `linguistics_term`; of each paradigm the first `limit`, 0: all.
    """
    pairs, taken = [], collections.Counter()
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            good, bad, paradigm = (record[key] for key in ("sentence_good", "sentence_bad", "UID"))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f'{path}:{number}: expected a JSON object with "sentence_good", "sentence_bad" and'
                ' "UID", as in BLiMP'
            ) from None
        taken[paradigm] += 1
        if not limit or taken[paradigm] <= limit:
            pairs.append(Pair(good, bad, paradigm, record.get("linguistics_term") or ""))
    if not pairs:
        raise UserError(f"{path} has no pairs; give JSON lines like BLiMP's")
    return pairs


def judge(pairs: Sequence[Pair], scores: Sequence[float]) -> dict[str, Any]:
    """How often the good sentence is the more likely one; a tie counts as half.

    Args:
        pairs: Of any number of paradigms.
        scores: log p of the good and the bad sentence of each pair in turn, not divided by length
            (section 4).

    Returns:
        `accuracy` (the mean over paradigms), `standard_error/accuracy` over pairs, and the accuracy
        of each of `phenomena` (the mean over its paradigms). No standard error (None) if a paradigm
        has one pair, or no spread is found anywhere: not even ten right answers of ten make the
        next one certain.
    """
    difference = np.subtract(*np.reshape(scores, (-1, 2)).T)
    table = pd.DataFrame(pairs, columns=Pair._fields)
    table["right"] = np.where(np.abs(difference) < ROUNDING, 0.5, difference > 0)
    paradigms = table.groupby(["phenomenon", "paradigm"], sort=False)["right"]
    means, errors = paradigms.mean(), paradigms.sem()  # NaN of one pair
    phenomena = means.groupby("phenomenon", sort=False).mean().drop("", errors="ignore")
    error = math.hypot(*errors) / len(errors)
    return {
        "accuracy": float(means.mean()),
        "standard_error/accuracy": error if error > 0 else None,
        "phenomena": phenomena.to_dict(),
    }
