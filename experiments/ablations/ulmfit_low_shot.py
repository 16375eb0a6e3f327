"""ULMFiT with few labelled examples: Howard and Ruder 2018, section 5, figure 3.

    bertlab sweep --study=experiments/ablations/ulmfit_low_shot.py:scale=tiny,corpus=pydocs \
      --workdir=runs/low_shot --jobs=2
    bertlab report runs/low_shot

A growing number of labelled examples (smaller sets are parts of larger ones), in three ways: a classifier from random values;
ULMFiT with a language model adapted to the text of these examples only (supervised), or to all of the task's training text
(semi-supervised). Counts are the paper's from 100 on, as far as `package` goes at tiny and mini (a few thousand examples), and
"all". All have the same number of steps (3,000 from scale=small on), so few examples are read more often. Stages, tasks and
corpus are otherwise as in `ulmfit_table4.py`.

Published: the figure has no table. The text: with 100 labels, supervised ULMFiT is as good as a classifier from scratch with 10
(IMDb) and 20 times (AG News) as many, semi-supervised 50 (AG News) and 100 times (IMDb).

Expect: the fewer labels, the more each of the three is above the one before; with all of them the last two are the same.

Cost at scale=tiny with seeds=1,select=off: 160 TFLOP, as `--dry_run` counts them; its time is not measured yet.
"""

import dataclasses

from bertlab.studies import ulmfit
from bertlab.studies.settings import read_setting
from bertlab.studies.study import Study

COUNTS, FEWER = (100, 500, 2000, 10_000), (100, 300, 1000)
STEPS = 3000


def get_study(arguments=None):
    setting = read_setting(arguments, paper=ulmfit.PAPER, tasks=("package",), least=ulmfit.LEAST)
    counts = setting.labels or (*(FEWER if setting.scale in ("tiny", "mini") else COUNTS), 0)
    examples = {str(count or "all"): {"finetune.task_data.limit": count} for count in counts}
    scratch = {**ulmfit.thawing(setting, "all"), "finetune.optimizer.layer_decay": 1.0, "finetune.transfer.random": True}
    return Study(
        name="ulmfit_low_shot",
        title="ULMFiT with few labelled examples",
        question="How many labelled examples is a language model worth, with and without the task's unlabelled text?",
        config=setting.recipe("awd_lstm"),
        axes={
            "examples": examples,
            "method": {
                "from scratch": scratch,
                "supervised": {},
                "semi-supervised": {"adapt.task_data.limit": 0},
            },
            "seed": setting.seeds,
        },
        overrides=ulmfit.stages(setting, steps=STEPS),
        rates=setting.rates,
        downstream=dataclasses.replace(setting, labels=()).downstream(ulmfit.classifies),
    )
