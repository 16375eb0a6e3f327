"""How scores grow with pretraining, masked and left to right: Devlin et al. 2019, appendix C.1, figure 5.

    bertlab sweep --study=experiments/ablations/bert_figure5.py:scale=tiny,corpus=pydocs \
      --workdir=runs/bert_figure5 --jobs=2
    bertlab report runs/bert_figure5

MLM and LTR on one body, one pretraining for each and each seed. Checkpoints after a thirty-second, a sixteenth, ... and all of
the steps are kept and fine-tuned, as in the paper: inside a run the learning rate has not fallen yet, so a point shows what the
run had learned by then, and not what a whole schedule of that length gives. The report draws scores against steps, tokens,
supervised positions and FLOPs. Neither model has NSP (the paper's masked model has it), and both are fine-tuned alike, as in
`bert_table5.py`. A word is read at its last piece in all rows; only there has a left-to-right model seen all of it. The paper's
task is MNLI: `tasks=mnli,data=DIR`.

Expect: both rise with steps (the paper gains about a point of MNLI from 500,000 to 1,000,000). In the paper MLM is above LTR
almost at once, though it learns more slowly; Gisserot-Boukhlef et al. 2025 find left-to-right ahead early. With few tokens the
second is more likely.

Cost at scale=tiny with seeds=1,select=off: 207 TFLOP, as `--dry_run` counts them; its time is not measured yet.
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
    last = setting.steps(mlm)
    points = sorted({max(1, last // part) for part in (32, 16, 8, 4, 2, 1)})
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
            "steps": {str(step): {"finetune.init_step": step} for step in points},
            "seed": setting.seeds,
        },
        overrides={**setting.overrides, **setting.transformer, **LAST_PIECE, "data.format": "segment_pair"},
        rates=setting.rates,
        downstream=setting.downstream(),
        published=PUBLISHED,
    )
