"""ELMo pretraining (Peters et al. 2018, section 3.1): LSTM language models of both directions.

    bertlab train --config=experiments/pretrain/elmo.py:size=tiny,corpus=pydocs --workdir=runs/elmo
    bertlab train --config=experiments/pretrain/elmo.py:size=original,tokens=characters \
        --config.data.corpus='text:news/*.txt.gz' --workdir=runs/elmo-original

With tokens=subwords (the default) it has the transformers' subword ids, packed rows and optimiser,
so an ablation changes only the model. With tokens=characters it is ELMo as published (allenai/bilm-
tf): a character CNN reads words, each direction reads its own stream of sentences with carried
states, and Adagrad trains on a sampled softmax. The published sizes then also have its vocabulary,
batch and steps, and as words what spaces separate (`bertlab.config.papers`): give them text in
tokens, or add `--config.data.tokenizer.split=punctuation`.
"""

from bertlab.config import base_config, parse_arguments
from bertlab.train.recipes import take_published, train_on


def get_config(arguments=None):
    values = parse_arguments(
        arguments, size="tiny", objectives="bilm", corpus="pydocs", tokens="subwords", steps=0
    )
    config = base_config()
    config.model.update(family="elmo", size=values["size"])
    config.data.format = "full_sentences"
    config.train.steps = values["steps"] or 1000
    is_large = values["size"] in ("small", "medium", "original")  # the published sizes
    if values["tokens"] == "characters":
        as_published(config)
        if is_large:
            take_published(config, values["steps"])
    train_on(config, values["corpus"], values["objectives"])
    if values["tokens"] == "characters" and is_large:
        for objective in config.objectives.values():
            if "negatives" in objective:
                objective.negatives = 8192
    return config


def as_published(config):
    """bilm-tf's data, states and optimiser."""
    config.model.update(token_encoder="characters", stateful=True)
    config.data.tokenizer.kind = "words"
    config.data.update(characters=True, format="stream", seq_len=20, batch_size=128)
    config.data.stream.update(wrap="sentence", backward=True)
    config.optimizer.update(name="adagrad", learning_rate=0.2, warmup_steps=0, decay="constant")
    config.optimizer.update(weight_decay=0.0, initial_accumulator=1.0, clip_norm=10.0)
    # bilm-tf multiplies the loss by its steps, 20.
    config.optimizer.gradient_scale = config.data.get_oneway_ref("seq_len").to_float()
