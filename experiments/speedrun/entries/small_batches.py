"""`muon` with batches of 16 rows instead of 32, so twice as many updates.

The rate falls to 0 after 1,800 of them.
"""

from pathlib import Path

from bertlab.config import load_config


def get_config(arguments=None):
    return load_config(
        str(Path(__file__).with_name("muon.py")), {"data.batch_size": 16, "train.steps": 1800}
    )
