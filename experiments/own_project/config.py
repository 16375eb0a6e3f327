"""A small BERT: `bertlab train --config=config.py:objectives=mlm --workdir=runs/x`.

Any key follows as --config.KEY=VALUE; `bertlab keys` lists them.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import train_on


def get_config(arguments=None):
    """What follows the colon is text: "objectives=mlm,steps=200"."""
    values = parse_arguments(arguments, objectives="objective:Swapped", corpus="pydocs", steps=1000)
    config = base_config()
    config.model.update(family="bert", size="tiny")
    config.data.seq_len = 64
    config.data.tokenizer.vocab_size = 2048
    config.data.valid_fraction = config.data.test_fraction = 0.1
    config.optimizer.learning_rate = 1e-3
    config.train.steps = values["steps"]
    train_on(config, values["corpus"], values["objectives"])
    return config
