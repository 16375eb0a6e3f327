"""ELMo pretraining (Peters et al. 2018, section 3.1): a forward and a backward LSTM language model, loss averaged.

    bertlab train --config=experiments/pretrain/elmo.py:size=tiny,corpus=pydocs --workdir=runs/elmo

On subword ids, so that it is compared with the transformers under one tokenizer. The original used
Adagrad; here the optimiser is the other families', so that an ablation changes the objective alone.
"""

from bertlab.config import add_objectives, base_config, parse_arguments


def get_config(arguments=None):
    values = parse_arguments(arguments, size="tiny", objectives="bilm", corpus="pydocs", steps=0)
    config = base_config()
    config.model.family = "elmo"
    config.model.size = values["size"]
    config.data.corpus = values["corpus"]
    config.data.format = "full_sentences"
    config.train.steps = values["steps"] or 1000
    add_objectives(config, values["objectives"])
    return config
