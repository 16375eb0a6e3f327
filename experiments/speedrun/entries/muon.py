"""`today` with Muon for the matrices of the layers."""

from pathlib import Path

from bertlab.config import load_config


def get_config(arguments=None):
    return load_config(str(Path(__file__).with_name("today.py")), {"optimizer.name": "muon"})
