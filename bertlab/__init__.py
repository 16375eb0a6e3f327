"""bertlab: contextual-embedding pretraining objectives compared on equal terms."""


def load(path):
    """Opens a run or an imported directory: see `bertlab.transfer.load.Pretrained`."""
    from bertlab.transfer.load import load

    return load(path)


__all__ = ["load"]
