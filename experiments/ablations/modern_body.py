"""From the encoder of 2018 to today's (ModernBERT, Warner et al. 2024), switch by switch.

Each row adds one switch to those above it, or with `alone=true` sets only its own. Pre-norm brings
a norm at the end, and gated layers are narrower, with as many weights as before. The last row adds
the rest of experiments/pretrain/modern.py. Depth, width, dropout, optimiser and text stay BERT's.
Every third layer is global, starting with the first; the others see a quarter of the row. No
published table has these steps at equal data. Local attention saves no time in this code.
"""

import math

from common import Setting, papers, under


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT, body="paper", alone=False)
    bert, window = setting.numbers("bert"), setting.overrides["data.seq_len"] // 4
    gated = 8 * math.ceil(bert["width"] / 3)  # as many weights as ungated layers of four widths
    switches = {
        "rotary positions": {"model.position_encoding": "rotary"},
        "pre-norm": {"model.norm_placement": "pre", "model.final_norm": True},
        "scaled initial values": {"model.scaled_residual_init": True},
        "gated feed-forward": {"model.gated": True, "model.hidden": gated},
        "RMSNorm": {"model.norm": "rms_norm"},
        "no biases": {"model.use_bias": False},
        "local-global attention": {"model.local_window": window, "model.global_every": 3},
    }
    steps, so_far = {}, {}
    for label, keys in switches.items():
        so_far = keys if setting.arguments["alone"] else {**so_far, **keys}
        steps[f"+ {label}"] = so_far
    dropout = setting.overrides.get("model.dropout", 0.1)
    modern = under("model", layers=bert["layers"], hidden=gated, dropout=dropout)
    modern |= {"config": setting.recipe("modern"), "model.local_window": window}
    return setting.study(
        title="The encoder of 2018 and today's",
        question="Which of today's changes to the encoder help, on the same text with the same"
        " optimiser?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={"body": {"BERT": {}, **steps, "the rest of modern.py": modern}},
        overrides={**setting.on_transformer, "data.format": "full_sentences"},
    )
