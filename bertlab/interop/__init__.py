"""Imports weights of published models and exports bertlab's.

A mapping between two namings is a table that is read in both directions (`bertlab.interop.base`); each system has one file.
"""

from bertlab.interop.base import EXPORTERS, IMPORTERS, export_weights, import_weights

__all__ = ["EXPORTERS", "IMPORTERS", "export_weights", "import_weights"]
