"""How the papers use a pretrained model: named sets of overrides of `finetune_config`'s keys.

`small` is for small models that you train on a laptop. `bert`, `bert_paper`, `electra_paper`, `gpt` and `ulmfit_paper` have
published numbers; so have `ulmfit` and `fitlam`, but for their passes and heads. `probe`, `stored`, `elmo`, `taglm`,
`taglm_paper` and `bert_features` have a published model or use, but the rows, batches, steps and rates of small models. Set
`data.seq_len`, `data.batch_size` and `transfer.epochs` for larger ones, as studies do.

A recipe's `head.` keys set the task's own objective if it has that setting.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertlab.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bertlab.transfer.kinds import Kind

SMALL = {
    "data.seq_len": 48,
    "data.batch_size": 16,
    "optimizer.learning_rate": 5e-4,
    "train.steps": 400,
    "train.eval_every": 200,
    "head.pooling": "mean",
}
# Feature-based: only the task's model is trained.
_FROZEN = SMALL | {"optimizer.frozen": "^body/", "optimizer.learning_rate": 1e-3}
# For all of ULMFiT's stages: Adam with the paper's β and the slanted triangle (Howard and Ruder 2018, sections 3.2 and 4.1).
SLANTED_ADAM = {
    "optimizer.b1": 0.7,
    "optimizer.b2": 0.99,
    "optimizer.bias_correction": "moments",
    "optimizer.epsilon": 1e-8,
    "optimizer.decay": "slanted_triangular",
    "optimizer.warmup_steps": 0,
}
# Of the first version's language model: "warm-up reverse annealing", then a cosine. The warm-up's share is ours.
FITLAM_ANNEALING: Mapping[str, Any] = {"optimizer.decay": "reverse_cosine", "optimizer.warmup_steps": None}
# Howard and Ruder 2018, sections 3.3 and 4.1; weight decay as in the released scripts.
_ULMFIT = SLANTED_ADAM | {
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
# Peters et al. 2017: a tagger with character features and a CRF; language model states join after its first layer.
_TAGLM = _FROZEN | {
    "head.bilstm": 2,
    "head.hidden": 300,
    "head.place": "after_first",
    "head.spelling": True,
    "head.word_width": 50,
    "head.crf": True,
    "head.dropout": 0.25,
}

# google-research/bert run_classifier.py; Devlin et al. 2018, A.3: batch 16 or 32, rate 5e-5, 3e-5 or 2e-5, 2 to 4 epochs.
_BERT = {
    "data.seq_len": 128,
    "data.batch_size": 32,
    "optimizer.learning_rate": 5e-5,
    "transfer.warmup": 0.1,
    "transfer.epochs": 3.0,
    "train.steps": 0,
    "head.pooling": "pooler",
}
# Of which the development set selects one for each task of GLUE (ibid., section 4.1).
BERT_RATES = (5e-5, 4e-5, 3e-5, 2e-5)

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "small": SMALL,
    "bert": _BERT,
    # The released scripts and the paper differ for SQuAD (`bertlab.transfer.kinds.span`).
    "bert_paper": _BERT,
    # google-research/electra configure_finetuning.py and finetune/classification: its first state, without a pooler. There a
    # further step of 0.8 lies between the head and the top layer (model/optimization.py); Clark et al. 2020, appendix A.
    "electra_paper": _BERT | {"optimizer.learning_rate": 1e-4, "optimizer.layer_decay": 0.8, "head.pooling": "first"},
    # openai/finetune-transformer-lm train.py (n_ctx=512); Radford et al. 2018, section 4.1.
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
    "ulmfit": _ULMFIT,
    # The paper's head, and long texts as the released classifier reads them, in chunks up to 20 · 70 positions. (It reads on in
    # longer ones, and pools the last of them.) In `ulmfit` the head has layer norm, with which the results of the small scales
    # were published. Passes as in section 4.1.
    "ulmfit_paper": _ULMFIT
    | {
        "transfer.epochs": 50.0,
        "data.seq_len": 1400,
        "data.buckets": (70, 140, 280, 560),
        "head.norm": "batch_norm",
        "head.chunk_varies": True,
    },
    # Howard and Ruder 2018, first version (FitLaM): another factor between layers, cosine annealing.
    "fitlam": _ULMFIT | {"optimizer.layer_decay": 0.3, "optimizer.decay": "cosine"},
    "probe": _FROZEN | {"head.dropout": 0.0},
    "stored": SMALL | {"transfer.features": True, "optimizer.learning_rate": 1e-3},
    # Radford et al. 2018, section 5: nothing is trained.
    "zero_shot": {"transfer.zero_shot": True, "train.steps": 0},
    # Peters et al. 2018, section 3.3: all layers, mixed with weights that the task learns.
    "elmo": _FROZEN | {"head.layers": "scalar_mix", "head.mix_penalty": 0.001, "head.mix_dropout": 0.5, "head.bilstm": 2},
    "taglm": _TAGLM,
    # Its tagger of names: GRUs as layers and for the characters. Their form is not verified, nor whether the 80 units for
    # characters are of each direction.
    "taglm_paper": _TAGLM | {"head.cell": "gru", "head.speller": "gru"},
    # Devlin et al. 2018, section 5.3: the last four layers side by side under a biLSTM.
    "bert_features": _FROZEN | {"head.layers": "concat_last_4", "head.bilstm": 2, "head.hidden": 384},
}


def find_recipe(name: str, kind: "Kind") -> dict[str, Any]:
    """The overrides of a recipe for a kind of task.

    Raises:
        UserError: the recipe is unknown.
    """
    if name not in RECIPES:
        raise UserError(f"recipe '{name}' is not known; {did_you_mean(name, RECIPES)}")
    return {**RECIPES[name], **kind.recipe(name)}
