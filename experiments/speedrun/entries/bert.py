"""BERT-Tiny's own recipe: 15 % masked, next sentences, post-norm, learned positions, dropout.

Devlin et al. 2018, sections 3.1 and A.2, at the smallest size of Turc et al. 2019; an
initial deviation of 0.02. Batch, rate and warm-up are ours, and no other rate was tried.
"""

from bertlab.config import base_config
from bertlab.train.recipes import train_on


def get_config(arguments=None):
    config = base_config()
    config.data.batch_size = 32
    config.model.dtype = "bfloat16"
    config.optimizer.learning_rate = 1e-3
    config.train.steps = 5_000
    train_on(config, "pydocs", "mlm+nsp")
    return config
