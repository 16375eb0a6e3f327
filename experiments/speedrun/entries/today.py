"""The body of scale=tiny at six times the rate of `bert`, 30 % masked, without NSP and dropout.

Rotary positions, pre-norm with RMSNorm, no biases, an initial deviation of 0.05, β2 of 0.98
(experiments/README.md).
"""

from bertlab.config import base_config
from bertlab.train.recipes import train_on


def get_config(arguments=None):
    config = base_config()
    config.data.format = "full_sentences"
    config.model.dtype = "bfloat16"
    config.model.dropout = 0.0
    config.train.steps = 1500
    config.model.init_stddev = 0.05
    config.model.position_encoding = "rotary"
    config.model.norm = "rms_norm"
    config.model.norm_placement = "pre"
    config.model.final_norm = True
    config.model.use_bias = False
    config.optimizer.learning_rate = 6e-3
    config.optimizer.b2 = 0.98
    train_on(config, "pydocs", "mlm", mask_rate=0.3)
    return config
