"""The body of scale=tiny at six times the rate of `bert`, 30 % masked, without NSP and dropout.

Rotary positions, pre-norm with RMSNorm, no biases, an initial deviation of 0.05, β2 of 0.98.
"""

from bertlab.config import base_config
from bertlab.train.recipes import train_on


def get_config(arguments=None):
    config = base_config()
    config.data.format = "full_sentences"
    config.model.update(dtype="bfloat16", dropout=0.0, init_stddev=0.05, use_bias=False)
    config.model.update(norm="rms_norm", norm_placement="pre", final_norm=True)
    config.model.position_encoding = "rotary"
    config.optimizer.update(learning_rate=6e-3, b2=0.98)
    config.train.steps = 1500
    train_on(config, "pydocs", "mlm", mask_rate=0.3)
    return config
