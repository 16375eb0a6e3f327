"""Model families: bodies behind one contract (`bertlab.models.base`), by name in `bertlab.models.presets`."""

from bertlab.models.base import Dense, Encoded, View, param

__all__ = ["Dense", "Encoded", "View", "param"]
