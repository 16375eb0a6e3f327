"""The objectives ablation: MLM, MLM + NSP, left-to-right and biLM on the same tokens in the same order.

    bertlab sweep --study=experiments/ablations/objectives.py --workdir=runs/objectives --jobs=2
    bertlab report runs/objectives

The question of Devlin et al. 2018, table 5 (BERT, No NSP, LTR & No NSP), with ELMo's biLM beside it and no pretraining as the
floor. MLM and LTR share one transformer body; only its direction and the objective differ. A word is read at its last piece
in all rows; only there has a left-to-right model seen all of it. `scale=demo` is what `make demo` runs: scale=tiny for 800
steps and one seed.
"""

from bertlab.studies.settings import BERT_PAPER, LAST_PIECE, read_setting
from bertlab.studies.study import Study

DEMO = {"scale": "tiny", "steps": 800, "seeds": 1, "select": "off"}


def demo_logging(steps):
    """How often a demo of so many steps looks at itself."""
    every = {"train.eval_every": min(100, steps), "train.log_every": min(50, steps), "train.checkpoint_every": min(400, steps)}
    return {**every, "optimizer.warmup_steps": min(100, steps // 8)}


def get_study(arguments=None):
    setting = read_setting(arguments, paper=BERT_PAPER, presets={"demo": DEMO})
    mlm, ltr = setting.recipe("bert", objectives="mlm"), setting.recipe("bert", objectives="ltr")
    return Study(
        name="objectives",
        title="Pretraining objectives on the same text",
        question="What does each pretraining objective give, all else equal?",
        config=mlm,
        axes={
            "objective": {
                "biLM": {"config": setting.recipe("elmo", objectives="bilm")},
                "LTR": {**setting.transformer, "config": ltr, "model.direction": "left-to-right"},
                "MLM": setting.transformer,
                "MLM+NSP": {**setting.transformer, "config": setting.recipe("bert", objectives="mlm+nsp")},
                "no pretraining": {**setting.transformer, "train.steps": 0},
            },
            "seed": setting.seeds,
        },
        overrides={
            **setting.overrides,
            **(demo_logging(setting.steps(mlm)) if setting.preset == "demo" else {}),
            **LAST_PIECE,
            "data.format": "segment_pair",
        },
        rates=setting.rates,
        downstream=setting.downstream(),
    )
