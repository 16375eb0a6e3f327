"""The trials behind scale=tiny: each variant differs from it in one setting, or in the body.

    study="experiments/trials.py:corpus=text:wiki/wiki-train-0*.jsonl.xz,steps=1000,select=off,tasks=ud,data=tasks,labels=1000"
    bertlab sweep --study="$study,dtype=bfloat16" --workdir=runs/trials --jobs=2

Losses at other mask rates and vocabularies answer other questions, so compare pseudo bits per byte
and the task's score. All variants read as many positions, each with its own schedule over `steps=`;
the last has random values. One seed by default: a trial chooses a setting and proves nothing.
"""

from bertlab.config import load_config
from common import Setting
from scales import BODIES, under


def get_study(arguments=None):
    setting = Setting(arguments, seeds=1)
    recipe = setting.recipe("bert", objectives="mlm")
    data = load_config(recipe, setting.pretraining).data
    rows = data.batch_size
    changes = {
        "scale=tiny": {},
        "15 % masked": {"objectives.mlm.rate": 0.15},
        "45 % masked": {"objectives.mlm.rate": 0.45},
        "b2 of 0.999": {"optimizer.b2": 0.999},
        "rows half as long": under("data", seq_len=data.seq_len // 2, batch_size=2 * rows),
        "four times the pieces": {"data.tokenizer.vocab_size": 4 * data.tokenizer.vocab_size},
    }
    trials = {name: {**setting.transformer, **change} for name, change in changes.items()}
    trials["the papers' body"] = dict(BODIES["paper"])  # and the recipe's rate and β2
    trials["no pretraining"] = {**setting.transformer, "train.steps": 0}
    return setting.study(
        title="The trials behind scale=tiny",
        question="What does each setting of scale=tiny give, all else equal?",
        config=recipe,
        axes={"trial": trials},
        overrides=setting.overrides,
    )
