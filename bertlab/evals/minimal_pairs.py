"""Minimal pairs: how often a model finds the good sentence more likely than the bad one (BLiMP,
Warstadt et al. 2020)."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from bertlab.data.corpora.text import read_records

ROUNDING = 1e-5
"""In nats, for a sum of float32 log-probabilities; scores that differ by less are tied."""

FIELDS = ("sentence_good", "sentence_bad", "UID")
"""Fields of BLiMP's records, in addition to `linguistics_term`; UID is a paradigm."""


def read_pairs(path: Path, limit: int = 0) -> pd.DataFrame:
    """Pairs in BLiMP's format: JSON lines with `FIELDS`, and perhaps `linguistics_term`; the
    first `limit` of each paradigm (0: all). Columns: `good`, `bad`, `paradigm`, `phenomenon`."""
    records = [record for _, record in read_records(path, *FIELDS)]
    table = pd.DataFrame(records, columns=[*FIELDS, "linguistics_term"], dtype=object).fillna("")
    table.columns = ["good", "bad", "paradigm", "phenomenon"]
    return table.groupby("paradigm").head(limit) if limit else table


def judge(pairs: pd.DataFrame, scores: Float[np.ndarray, "2N"]) -> dict[str, Any]:
    """How often the good sentence is the more likely one: means over paradigms; a tie counts as
    half. `scores` are log p of the good and the bad sentence of each pair in turn, not divided by
    length (section 4). The standard error over pairs is None if a paradigm has one pair, or there
    is no spread anywhere: ten right answers of ten do not make the next one certain."""
    difference = np.subtract(*np.reshape(scores, (-1, 2)).T)
    right = np.where(np.abs(difference) < ROUNDING, 0.5, difference > 0)
    paradigms = pairs.assign(right=right).groupby(["phenomenon", "paradigm"], sort=False)["right"]
    means, errors = paradigms.mean(), paradigms.sem()  # NaN for one pair
    phenomena = means.groupby("phenomenon", sort=False).mean().drop("", errors="ignore")
    error = math.hypot(*errors) / len(errors)
    return {
        "accuracy": float(means.mean()),
        "standard_error/accuracy": error if error > 0 else None,
        "phenomena": phenomena.to_dict(),
    }
