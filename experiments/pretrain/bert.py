"""BERT pretraining (Devlin et al. 2018, sections 3.1 and A.2): masked tokens, next sentences.

    bertlab train --config=experiments/pretrain/bert.py:size=tiny,corpus=pydocs --workdir=runs/bert

The paper's left-to-right ablation (section 5.1) is the same body with left-to-right attention:
`objectives=ltr`. Sizes base and large are trained as in its appendix A.2 (`bertlab.config.papers`);
the smaller ones have our own text, batch, steps and rate.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import take_published, train_on


def get_config(arguments=None):
    values = parse_arguments(
        arguments, size="tiny", objectives="mlm+nsp", corpus="pydocs", steps=0, mask_rate=0.0
    )
    config = base_config()
    config.model.update(family="bert", size=values["size"])
    config.train.steps = values["steps"] or 1000
    if values["size"] in ("base", "large"):
        take_published(config, values["steps"])
    train_on(config, values["corpus"], values["objectives"], values["mask_rate"])
    return config
