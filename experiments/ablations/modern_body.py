"""From the encoder of 2018 to today's, one switch after another: Devlin et al. 2018 to Warner et al. 2024 (ModernBERT).

    bertlab sweep --study=experiments/ablations/modern_body.py:scale=tiny,corpus=pydocs,seeds=2 \
      --workdir=runs/modern_body --jobs=2
    bertlab report runs/modern_body

MLM on one body that changes from row to row; each row keeps the switches of those above it, so that neighbours differ in
one thing, and the last is experiments/pretrain/modern.py itself: no segment embeddings, from small on no dropout either, and
at base and paper ModernBERT's 22 layers. With `alone=true` each switch is set by itself on the body of 2018 instead. Gated
layers are narrower, so that they have as many weights. Every third layer sees everything, the first one too; the others see a
quarter of the row's positions, which at rows of 512 are ModernBERT's 128.

No table is known to us for these steps at equal data; optimiser and text are BERT's throughout (at scale=paper appendix A.2).

Expect: pre-norm and rotary positions to learn faster in short runs; gates to help a little; norm, biases and segments next to
nothing; local attention to cost little or nothing here, since it saves no time in this code. It can hurt where texts are short.
"""

import math

from bertlab.studies.settings import BERT_PAPER, read_setting
from bertlab.studies.study import Study


def switches(width, seq_len):
    """Label -> keys of each step, in order."""
    local = {"model.local_window": seq_len // 4, "model.global_every": 3}
    return {
        "rotary positions": {"model.position_encoding": "rotary", "model.rotary_base": 160_000.0},
        "pre-norm": {"model.norm_placement": "pre", "model.final_norm": True, "model.scaled_residual_init": True},
        "gated feed-forward": {"model.gated": True, "model.activation": "gelu_erf", "model.hidden": 8 * math.ceil(width / 3)},
        "RMSNorm without biases": {"model.norm": "rms_norm", "model.epsilon": 1e-5, "model.use_bias": False},
        "local-global attention": local,
    }


def get_study(arguments=None):
    setting = read_setting(arguments, paper=BERT_PAPER, alone=False)
    seq_len = setting.overrides["data.seq_len"]
    steps, so_far = {}, {}
    for label, keys in switches(setting.numbers("bert")["width"], seq_len).items():
        so_far = keys if setting.others["alone"] else {**so_far, **keys}
        steps[f"+ {label}"] = so_far
    modern = {"config": setting.recipe("modern"), "model.local_window": seq_len // 4}
    return Study(
        name="modern_body",
        title="The encoder of 2018 and today's",
        question="Which of today's changes to the encoder help, on the same text with the same optimiser?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={"body": {"BERT": {}, **steps, "modern": modern}, "seed": setting.seeds},
        overrides={**setting.overrides, **setting.transformer, "data.format": "full_sentences"},
        downstream=setting.downstream(),
    )
