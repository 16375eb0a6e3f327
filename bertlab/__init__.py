"""bertlab: contextual-embedding pretraining objectives compared on equal terms."""

__version__ = "0.3.0.dev0"
__all__ = ["load"]


def __getattr__(name: str):
    """`bertlab.load`, imported when it is used: JAX takes seconds."""
    if name != "load":
        raise AttributeError(f"module 'bertlab' has no attribute {name!r}")
    from bertlab.transfer.load import load

    return load
