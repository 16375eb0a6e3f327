"""bertlab: contextual-embedding pretraining objectives compared on equal terms."""

__version__ = "0.3.0.dev0"
