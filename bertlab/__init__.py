"""bertlab: contextual-embedding pretraining objectives compared on equal terms."""


def load(path, step=None):
    """Opens a run or an imported directory, at a step or the last one: see `bertlab.transfer.load.Pretrained`."""
    from bertlab.transfer.load import load

    return load(path, step)


__all__ = ["load"]
