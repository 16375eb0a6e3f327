"""BERT pretraining (Devlin et al. 2018, sections 3.1 and A.2): masked tokens and next-sentence prediction.

    bertlab train --config=experiments/pretrain/bert.py:size=tiny,objectives=mlm+nsp,corpus=pydocs --workdir=runs/bert

The paper's left-to-right ablation (section 5.1) is the same body with left-to-right attention: `objectives=ltr`.
"""

from bertlab.config import base_config, parse_arguments, train_on


def get_config(arguments=None):
    values = parse_arguments(arguments, size="tiny", objectives="mlm+nsp", corpus="pydocs", steps=0, mask_rate=0.0)
    config = base_config()
    config.model.family = "bert"
    config.model.size = values["size"]
    config.train.steps = values["steps"] or 1000
    train_on(config, values["corpus"], values["objectives"], values["mask_rate"])
    if values["size"] in ("base", "large"):  # A.2; its last tenth at 512 positions is a separate run
        config.data.batch_size = 256
        config.optimizer.learning_rate = 1e-4
        config.train.steps = values["steps"] or 1_000_000
        config.optimizer.warmup_steps = min(10_000, config.train.steps // 10)
    return config
