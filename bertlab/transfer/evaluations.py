"""evaluation.json: the measurements of `bertlab evaluate` for a run, by text. Reading it needs no model.

    {"bits_per_byte": {SOURCE: {KIND: {...}}}, "minimal_pairs": {SOURCE: {KIND: {...}}}, "babylm": {SOURCE: {KIND: {...}}}}

SOURCE is TEST_SPLIT, the path of a file as given or (for "babylm") the name of a task, KIND one of
`bertlab.transfer.likelihood.KINDS`. Every entry has a `text_hash`: you can compare the numbers of entries with equal hashes,
because they score the same texts.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.files import misfit, read_json
from bertlab.run import BOUNDS, Run

TEST_SPLIT = "test split"
"""SOURCE of the sample of a run's own held-out sentences."""

CODE_LENGTHS = ("left-to-right", *BOUNDS)
"""Kinds that compare with each other: a left-to-right model's code length, and bounds of those of the others."""

MEASURES = {
    "bits_per_byte": ("value", "standard_error", "text_hash", "tokens", "pieces", "unknown", "lowercase"),
    "minimal_pairs": ("accuracy", "standard_error", "text_hash", "pairs"),
    "babylm": ("score", "standard_error", "text_hash", "items", "special_tokens"),
}
"""The measures, with what an entry of each has at least."""

BIASES = {
    "unknown": "any unknown word costs only one [UNK]: too low, and not comparable between tokenizers",
    "lowercase": "the tokenizer drops capitals, so they count as bytes but are not predicted: too low",
    "free": "fewer scores than pieces: without a special token next to it, one piece of each text is not scored",
}
"""What makes bits per byte wrong, in words."""


def read_evaluations(path: Path) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """The content of an evaluation.json.

    Raises:
        UserError: it is missing, damaged or not in this format.
    """
    found = read_json(path)
    if not isinstance(found, dict) or not all(key in MEASURES and _is_measure(key, found[key]) for key in found):
        mend = (
            "delete it and run `bertlab evaluate` again"
            if path.name.startswith(Run(path.parent).evaluation.path.stem)
            else "name another"
        )
        raise UserError(f"{path}: this file does not hold evaluations; {mend}")
    return found


_SCORE = (int, float, None)
_TYPES = {"text_hash": str, "lowercase": bool, "special_tokens": str} | dict.fromkeys(
    ("tokens", "pieces", "unknown"), (int, float)
)


def _is_measure(name: str, by_source: Any) -> bool:
    nested = isinstance(by_source, dict) and all(isinstance(by_kind, dict) for by_kind in by_source.values())
    entries = [entry for by_kind in by_source.values() for entry in by_kind.values()] if nested else [None]
    form = {key: _TYPES.get(key, (int, float, None)) for key in MEASURES[name]} | {
        "phenomena?": {str: {"accuracy": _SCORE, "standard_error": _SCORE}}
    }
    return not any(misfit(entry, form) for entry in entries)


def text_hash(texts: Sequence[Any]) -> str:
    """The hash of texts, or of pairs of them, in their order."""
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).hexdigest()


def biases_of(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Which of BIASES a run's entries of bits per byte have."""
    entries = list(entries)
    has = {
        "unknown": any(entry["unknown"] for entry in entries),
        "lowercase": any(entry["lowercase"] for entry in entries),
        "free": any(entry["tokens"] < entry["pieces"] for entry in entries),
    }
    return [name for name in BIASES if has[name]]
