"""GPT pretraining (Radford et al. 2018, section 4.1): left-to-right language modelling.

    bertlab train --config=experiments/pretrain/gpt.py:size=tiny,corpus=pydocs --workdir=runs/gpt
    bertlab train --config=experiments/pretrain/gpt.py:size=gpt2,corpus='text:books/*.jsonl.zst' \
        --workdir=runs/gpt2

Linear warm-up and cosine decay to zero; Adam with bias-corrected moments (openai/
finetune-transformer-lm opt.py). Size gpt1 is trained as in the paper, gpt2 and larger as far as
theirs tells (Radford et al. 2019: rows, batch and vocabulary); `bertlab.config.papers` has both.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import take_published, train_on


def get_config(arguments=None):
    values = parse_arguments(arguments, size="tiny", objectives="ltr", corpus="pydocs", steps=0)
    config = base_config()
    config.model.update(family="gpt", size=values["size"])
    config.data.format = "full_sentences"
    config.train.steps = values["steps"] or 1000
    config.optimizer.update(decay="cosine", decay_from_start=False)
    config.optimizer.update(bias_correction="rate", epsilon=1e-8)
    if values["size"].startswith("gpt"):
        take_published(config, values["steps"])
    train_on(config, values["corpus"], values["objectives"])
    return config
