"""Static word vectors, the baseline for contextual models: word2vec and GloVe in the same loop.

    bertlab train --config=experiments/pretrain/static.py:objectives=skip_gram --workdir=runs/words

`objectives` are skip_gram, cbow (Mikolov et al. 2013) or glove (Pennington et al. 2014). Adagrad
(GloVe's own optimiser, accumulators from 1) makes one update per batch; the originals make one per
pair of words, so size original has only their width.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import train_on


def get_config(arguments=None):
    values = parse_arguments(
        arguments, size="tiny", objectives="skip_gram", corpus="pydocs", steps=0
    )
    config = base_config()
    config.model.update(family="static", size=values["size"])
    config.data.format = "full_sentences"
    config.data.tokenizer.kind = "words"
    config.train.steps = values["steps"] or 1000
    train_on(config, values["corpus"], values["objectives"])
    config.optimizer.update(name="adagrad", learning_rate=0.05, warmup_steps=0, decay="linear")
    config.optimizer.update(weight_decay=0.0, initial_accumulator=1.0, clip_norm=0.0)
    # The losses are means over a batch; the originals' rates are for one word at a time.
    places = config.data.get_oneway_ref("batch_size") * config.data.get_oneway_ref("seq_len")
    config.optimizer.gradient_scale = places.to_float()
    if config.data.format == "cooccurrence":
        config.model.output_init = "uniform"  # GloVe's
    return config
