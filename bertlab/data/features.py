"""The classes that a TFDS data set's features.json names: TFDS imports them, so other people's are refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertlab.files import parse_json

FEATURES = "features.json"
_OWN = "tensorflow_datasets."


def require_own_classes(folder: Path) -> None:
    """Refuses a data set whose features are of classes outside TFDS: to open it would run their code.

    Args:
        folder: has features.json; one without is TFDS's to refuse.

    Raises:
        ValueError: says which class.
    """
    file = folder / FEATURES
    if not file.is_file():
        return
    for name in _classes(parse_json(file.read_text(encoding="utf-8"))):
        if not isinstance(name, str) or not name.startswith(_OWN):
            raise ValueError(
                f"{FEATURES} names the class {json.dumps(name)[:80]}, which is not one of TFDS and would run its code"
            )


def _classes(value: Any) -> Iterator[Any]:
    """The names of classes in features.json: of today's form, and of the form with "type" and "content" before it."""
    values = [value]
    for one in values:
        if isinstance(one, dict):
            yield from (one[key] for key in ("pythonClassName", "python_class_name") if key in one)
            yield from (one[key] for key in one if key == "type" and "content" in one)
        values += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
