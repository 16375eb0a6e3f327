"""Imports weights of published models and exports bertlab's.

A table maps bertlab's names to another system's, in both directions (`bertlab.interop.base`); each system has one file.
"""

from bertlab.interop.base import EXPORTERS, IMPORTERS, export_weights, import_weights

__all__ = ["EXPORTERS", "IMPORTERS", "export_weights", "import_weights"]
