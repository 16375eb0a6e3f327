"""Today's encoder on 2018's terms: the shape of ModernBERT (Warner et al. 2024).

    bertlab train --config=experiments/pretrain/modern.py:size=tiny --workdir=runs/modern

Rotary positions, gated feed-forward, pre-norm RMSNorm, no biases, local-global attention: every
part is a switch of `config.model`, such as `--config.model.position_encoding=learned`. Optimiser
and masks are those of bert.py; batch, steps, rate and tokenizer are ours in every size.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import train_on


def get_config(arguments=None):
    values = parse_arguments(
        arguments, size="tiny", objectives="mlm", corpus="pydocs", steps=0, mask_rate=0.0
    )
    config = base_config()
    config.model.update(family="modern", size=values["size"])
    config.data.format = "full_sentences"
    config.train.steps = values["steps"] or 1000
    train_on(config, values["corpus"], values["objectives"], values["mask_rate"])
    return config
