"""The kinds of downstream tasks; name your own as "module:NAME"."""

import pkgutil

from bertlab.transfer.kinds.base import Kind
from bertlab.transfer.kinds.span import Span
from bertlab.transfer.kinds.tagging import Tagging
from bertlab.transfer.kinds.texts import Choice, Classification, Regression

_ALL = Classification, Regression, Tagging, Choice, Span
KINDS: dict[str, Kind] = {kind.name: kind() for kind in _ALL}
"""One object per kind: it turns examples into rows, and its head's outputs into predictions."""


def find_kind(name: str) -> Kind:
    """The kind of this name, or the object that "module:NAME" names."""
    return pkgutil.resolve_name(name) if ":" in name else KINDS[name]
