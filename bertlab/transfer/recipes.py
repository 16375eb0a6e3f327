"""How the papers use a pretrained model: named sets of overrides of a fine-tuning's config.

All numbers are published, except the epochs and heads of `ulmfit` and `fitlam`, and the rows,
batches, steps and rates of those that build on `SMALL`, for small models on a laptop. A `head.` key
sets `objectives.TASK` of every task whose head has the setting.
"""

from collections.abc import Mapping
from typing import Any

from bertlab.errors import require_choice

Settings = Mapping[str, Any]

SMALL: Settings = {
    "data.seq_len": 128,
    "data.buckets": (32, 64),
    "data.batch_size": 16,
    "optimizer.learning_rate": 5e-4,
    "train.steps": 400,
    "train.eval_every": 200,
    "head.pooling": "mean",
}
# Only the head is trained.
FROZEN: Settings = {**SMALL, "optimizer.frozen": "^body/", "optimizer.learning_rate": 1e-3}

# google-research/bert, run_classifier.py; Devlin et al. 2018, A.3: batch 16 or 32, rate 5e-5, 3e-5
# or 2e-5, 2 to 4 epochs.
BERT: Settings = {
    "data.seq_len": 128,
    "data.batch_size": 32,
    "optimizer.learning_rate": 5e-5,
    "transfer.warmup": 0.1,
    "transfer.epochs": 3.0,
    "train.steps": 0,
    "head.pooling": "pooler",
}
# The development set selects one of them for each GLUE task (ibid., section 4.1).
BERT_RATES = (5e-5, 4e-5, 3e-5, 2e-5)

# For all stages of ULMFiT (Howard and Ruder 2018, sections 3.2 and 4.1).
SLANTED_ADAM: Settings = {
    "optimizer.b1": 0.7,
    "optimizer.b2": 0.99,
    "optimizer.bias_correction": "moments",
    "optimizer.epsilon": 1e-8,
    "optimizer.decay": "slanted_triangular",
    "optimizer.warmup_steps": 0,
}
# ibid., sections 3.3 and 4.1; weight decay as in the released scripts.
ULMFIT: Settings = {
    **SLANTED_ADAM,
    "data.seq_len": 280,
    "data.batch_size": 64,
    "optimizer.learning_rate": 0.01,
    "optimizer.weight_decay": 1e-6,
    "optimizer.layer_decay": 1 / 2.6,
    "optimizer.thaw": "gradual",
    "optimizer.thaw_restarts": True,
    "transfer.epochs": 8.0,
    "train.steps": 0,
    "head.pooling": "concat",
    "head.blocks": 50,
    "head.chunk": 70,
    "head.dropout": 0.4,
}
# The language model of its first version, FitLaM: "warm-up reverse annealing", then a cosine. The
# share of the warm-up is ours.
FITLAM_ANNEALING: Settings = {"optimizer.decay": "reverse_cosine", "optimizer.warmup_steps": None}

RECIPES: Mapping[str, Settings] = {
    "small": SMALL,
    "bert": BERT,
    # The released script and the paper differ for SQuAD (`bertlab.transfer.kinds.span`).
    "bert_paper": BERT,
    # google-research/electra, configure_finetuning.py: the first state, without a pooler; Clark et
    # al. 2020, appendix A. There the rate falls by 0.8 between the head and the top layer too.
    "electra_paper": {
        **BERT,
        "optimizer.learning_rate": 1e-4,
        "optimizer.layer_decay": 0.8,
        "head.pooling": "first",
    },
    # openai/finetune-transformer-lm, train.py (n_ctx=512); Radford et al. 2018, section 4.1.
    "gpt": {
        "transfer.layout": "delimited",
        "data.seq_len": 512,
        "data.batch_size": 32,
        "optimizer.learning_rate": 6.25e-5,
        "optimizer.decay": "warmup_linear",
        "optimizer.bias_correction": "rate",
        "optimizer.epsilon": 1e-8,
        "transfer.warmup": 0.002,
        "transfer.epochs": 3.0,
        "train.steps": 0,
        "head.pooling": "last",
        "language_model": 0.5,
    },
    "ulmfit": ULMFIT,
    # The paper's epochs (section 4.1), and texts up to the 20 * 70 positions that the released
    # classifier pools.
    "ulmfit_paper": {
        **ULMFIT,
        "transfer.epochs": 50.0,
        "data.seq_len": 1400,
        "data.buckets": (70, 140, 280, 560),
    },
    # Howard and Ruder 2018, first version: a different factor between layers, cosine annealing.
    "fitlam": {**ULMFIT, "optimizer.layer_decay": 0.3, "optimizer.decay": "cosine"},
    "probe": {**FROZEN, "head.dropout": 0.0},
    "stored": {**SMALL, "transfer.features": True, "optimizer.learning_rate": 1e-3},
    # Peters et al. 2018, section 3.3: all layers, mixed by weights that the task learns.
    "elmo": {
        **FROZEN,
        "head.layers": "scalar_mix",
        "head.mix_penalty": 0.001,
        "head.mix_dropout": 0.5,
        "head.bilstm": 2,
    },
    # Peters et al. 2017: a tagger with features of characters and a CRF; the language model's
    # states join it after its first layer. Its named-entity tagger has GRUs; here they are LSTMs.
    "taglm": {
        **FROZEN,
        "head.bilstm": 2,
        "head.hidden": 300,
        "head.place": "after_first",
        "head.spelling": True,
        "head.word_width": 50,
        "head.crf": True,
        "head.dropout": 0.25,
    },
    # Devlin et al. 2018, section 5.3: the last four layers side by side under a biLSTM.
    "bert_features": {
        **FROZEN,
        "head.layers": "concat_last_4",
        "head.bilstm": 2,
        "head.hidden": 384,
    },
}

_ADAPTED: Settings = {
    **SLANTED_ADAM,
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.004,
    "optimizer.average_after": 0,
    "optimizer.layer_decay": 1 / 2.6,
}
ADAPTATIONS: Mapping[str, Settings] = {
    "same": {},  # the run's own optimiser
    "ulmfit": _ADAPTED,
    # The first version thaws the layers one by one, in one epoch.
    "fitlam": {
        **_ADAPTED,
        **FITLAM_ANNEALING,
        "optimizer.layer_decay": 0.3,
        "optimizer.thaw": "gradual",
    },
}
"""Recipes of `bertlab.transfer.finetune.adapt`."""


def find_recipe(recipes: Mapping[str, Settings], name: str) -> dict[str, Any]:
    """A copy of the settings of this name."""
    require_choice("--recipe", name, recipes)
    return dict(recipes[name])
