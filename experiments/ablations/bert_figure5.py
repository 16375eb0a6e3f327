"""How scores grow with pretraining, masked and left to right: Devlin et al. 2019, appendix C.1, figure 5.

    bertlab sweep --study=experiments/ablations/bert_figure5.py:scale=tiny,corpus=pydocs \
      --workdir=runs/bert_figure5 --jobs=2
    bertlab report runs/bert_figure5

MLM and LTR on one body, pretrained for an eighth, a quarter, half and all of the steps, then fine-tuned. The paper fine-tunes
checkpoints of one run, before its learning rate has fallen. Here each length is a run of its own with a whole schedule: a
point shows what that many steps can give. All four cost 15/8 of the longest. Neither model has NSP (the paper's masked model
has it), and both are fine-tuned alike, as in `bert_table5.py`. A word is read at its last piece in all rows; only there has a
left-to-right model seen all of it. The paper's task is MNLI: `tasks=mnli,data=DIR`.

Expect: both rise with steps (the paper gains about a point of MNLI from 500,000 to 1,000,000). In the paper MLM is above LTR
almost at once, though it learns more slowly; Gisserot-Boukhlef et al. 2025 find left-to-right ahead early. With few tokens the
second is more likely.

Cost at scale=tiny with seeds=1,select=off: 66.2 TFLOP, as `--dry_run` counts them; its time is not measured yet.
"""

from bertlab.studies.settings import BERT_PAPER, LAST_PIECE, read_setting
from bertlab.studies.study import Published, Study

PUBLISHED = Published(
    source="Devlin et al. 2019, figure 5 (its end points, from table 5)",
    columns=("MNLI-m",),
    rows={"MLM, 1000000": (84.4,), "LTR, 1000000": (82.1,)},
    note="the masked model has NSP too; 500,000 steps are about a point of MNLI below 1,000,000; variants here have their own"
    " steps in their names",
)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=BERT_PAPER)
    mlm = setting.recipe("bert", objectives="mlm")
    warmup = setting.overrides.get("optimizer.warmup_steps", 100)
    lengths = sorted({max(1, setting.steps(mlm) // part) for part in (8, 4, 2, 1)})
    return Study(
        name="bert_figure5",
        title="Pretraining steps",
        question="How do downstream scores grow with pretraining, masked and left to right?",
        config=mlm,
        axes={
            "pretraining": {
                "MLM": {},
                "LTR": {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"},
            },
            "steps": {
                str(steps): {"train.steps": steps, "optimizer.warmup_steps": min(warmup, steps // 10)} for steps in lengths
            },
            "seed": setting.seeds,
        },
        overrides={**setting.overrides, **setting.transformer, **LAST_PIECE, "data.format": "segment_pair"},
        rates=setting.rates,
        downstream=setting.downstream(),
        published=PUBLISHED,
    )
