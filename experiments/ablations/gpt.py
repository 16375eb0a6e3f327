"""The LSTM that GPT's paper compares its transformer with (Radford et al. 2018, section 5), and its
rate of fine-tuning."""

from collections.abc import Mapping
from typing import Any

import ulmfit
from common import Setting

# V·W + 8·W² weights equal GPT's at the scale: V·D + 512·D + 12·D² per layer.
_WIDTHS: Mapping[str, int] = {"tiny": 200, "mini": 456, "small": 900, "base": 2246, "paper": 2048}


def lstm(setting: Setting) -> dict[str, Any]:
    """Overrides that replace a study's transformer: one layer of AWD-LSTM without its
    regularisers."""
    return {
        "model.family": "awd_lstm",
        "model.size": "tiny",  # the next keys replace its layers and width
        "model.layers": 1,
        "model.width": _WIDTHS[setting.scale],
        **ulmfit.NO_DROPOUT,
    }


def finetuning(setting: Setting) -> dict[str, Any]:
    """Overrides of fine-tuning with recipe `gpt`; small models have a higher rate than the paper's
    6.25e-5."""
    rate = 6.25e-5 if setting.scale in ("base", "paper") else 5e-4
    return {**setting.finetuning("gpt"), "finetune.optimizer.learning_rate": rate}
