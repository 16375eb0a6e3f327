"""`muon` with batches of 16 rows instead of 32; the rate falls to 0 after 1,800 updates."""

from pathlib import Path

from bertlab.config import load_config


def get_config(arguments=None):
    muon = str(Path(__file__).with_name("muon.py"))
    return load_config(muon, {"data.batch_size": 16, "train.steps": 1800})
