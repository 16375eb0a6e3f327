"""JSON files that are never half-written, and the folder for what can be recomputed."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return value


def json_text(value: Any, **style: Any) -> str:
    """The value as JSON. The slow walk through `finite` is for those that need it."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, **style)
    except (TypeError, ValueError):
        return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, **style)


def json_line(value: Any) -> str:
    """The value as one line of JSON."""
    return json_text(value) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Replaces a JSON file in one move; several processes may write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(f"{json_text(value, indent=2)}\n", encoding="utf-8")
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def cache_directory(directory: str = "") -> Path:
    """`directory`; if that is "", $BERTLAB_CACHE or ~/.cache/bertlab."""
    name = directory or os.environ.get("BERTLAB_CACHE") or "~/.cache/bertlab"
    return Path(name).expanduser().absolute()


def cached_json(folder: Path, content: str, compute: Callable[[], Any]) -> Any:
    """The value of a function of `content`, from a file of the folder if it was computed before."""
    path = folder / f"{hashlib.blake2b(content.encode(), digest_size=16).hexdigest()}.json"
    if not path.exists():
        write_json(path, compute())
    return read_json(path)
