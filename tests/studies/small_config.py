"""A pretraining of seconds, for sweeps."""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import train_on

SETTINGS = {
    "data.synthetic.documents": 100,
    "data.synthetic.vocab_size": 32,
    "data.tokenizer.vocab_size": 37,
    "data.valid_fraction": 0.2,
    "data.test_fraction": 0.2,
    "data.seq_len": 16,
    "data.batch_size": 8,
    "data.workers": 1,
    "model.layers": 1,
    "model.width": 16,
    "model.hidden": 24,
    "train.steps": 4,
    "train.log_every": 2,
    "train.eval_every": 0,
    "train.eval_batches": 1,
    "train.checkpoint_every": 0,
    "evaluate.sentences": 0,
    "optimizer.learning_rate": 0.01,
    "mesh.data": 1,
}


def get_config(arguments=None):
    values = parse_arguments(arguments, objectives="mlm")
    config = base_config()
    train_on(config, "synthetic", values["objectives"])
    config.update_from_flattened_dict(SETTINGS)
    return config
