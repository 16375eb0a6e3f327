"""AWD-LSTM pretraining (Merity et al. 2017), ULMFiT's language model (Howard and Ruder 2018): a
regularised LSTM over a stream.

    bertlab train --config=experiments/pretrain/awd_lstm.py:direction=forward --workdir=runs/awd

As in salesforce/awd-lstm-lm: weight-drop, locked and embedding dropout, activation penalties,
truncated backpropagation of varying length with the rate in proportion, and SGD that starts
averaging when the held-out loss stops falling (checked every `train.eval_every` steps). Size
original has that repository's settings for WikiText-2, a text in tokens (`bertlab.config.papers`);
for prose add `--config.data.tokenizer.split=punctuation`. The rate is the published 30: at tiny it
has the lowest loss of 10, 30, 60 and 120 on Wikipedia (5.80, 5.40, 6.22, 12.02 nats; one seed).
"""

from bertlab.config import base_config, parse_arguments
from bertlab.errors import UserError
from bertlab.train.recipes import take_published, train_on


def get_config(arguments=None):
    values = parse_arguments(arguments, size="tiny", direction="forward", corpus="pydocs", steps=0)
    names = {"forward": ("left-to-right", "ltr"), "backward": ("right-to-left", "rtl")}
    if values["direction"] not in names:
        raise UserError(f"argument direction={values['direction']}: expected forward or backward")
    config = base_config()
    config.model.update(family="awd_lstm", size=values["size"])
    config.model.direction, objective = names[values["direction"]]
    config.model.stateful = True
    config.data.format = "stream"
    config.data.stream.wrap = "none" if values["size"] == "original" else "document"
    config.data.stream.update(backward=values["direction"] == "backward", vary_length=True)
    config.data.seq_len = 70
    config.train.steps = values["steps"] or 1000
    config.optimizer.update(name="sgd", learning_rate=30.0, warmup_steps=0, decay="constant")
    config.optimizer.update(weight_decay=1.2e-6, coupled_decay=True, decay_exclude="")
    config.optimizer.update(clip_norm=0.25, average_after=5)
    if values["size"] == "original":
        take_published(config, values["steps"])
    else:
        # A small model on little text needs less dropout.
        config.model.update(input_dropout=0.2, hidden_dropout=0.1, dropout=0.1)
        config.model.update(weight_dropout=0.2, embedding_dropout=0.02)
    train_on(config, values["corpus"], f"{objective}+ar+tar")
    config.objectives.ar.weight = 2.0
    return config
