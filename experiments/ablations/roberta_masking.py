"""Static and dynamic masks: Liu et al. 2019 (RoBERTa), section 4.1, table 1.

    bertlab sweep --study=experiments/ablations/roberta_masking.py \
      --workdir=runs/roberta_masking --jobs=2
    bertlab report runs/roberta_masking

MLM + NSP. Static masks belong to a row: they repeat after the text has been read `copies` times.
Dynamic masks are drawn at each step. BERT has `copies=10`, and its 40 readings showed each mask
four times. Small runs read their text fewer times, so the default below scale=paper is copies=1:
every reading has the same masks. scale=tiny reads pydocs about eighteen times. In both variants
rows and pairs repeat with the copies; only the masks differ. The paper's tasks:
`tasks=squad2+mnli+sst2,data=DIR`.

Expect: no difference beyond the spread over seeds, dynamic slightly ahead at most. With static
masks the training loss falls below the held-out loss sooner.

Cost at scale=tiny with seeds=1,select=off: 163 TFLOP, as `--dry_run` counts them; its time is not
measured yet.
"""

from common import read_setting

from bertlab.config import papers
from bertlab.studies.study import Claim, Published, Study

PAPER = {**papers.BERT, "train.phases": ""}
PUBLISHED = Published(
    source="Liu et al. 2019, table 1 (development sets, BERT-Base)",
    columns=("SQuAD 2.0 F1", "MNLI-m", "SST-2"),
    rows={
        "static": (78.3, 84.3, 92.5),
        "dynamic": (78.7, 84.0, 92.9),
        "BERT-Base": (76.3, 84.3, 92.8),
    },
    note="Medians of five runs. BERT-Base is BERT's own and not among ours.",
)
CLAIMS = (
    Claim(
        "dynamic",
        "static",
        "SQuAD 2.0 78.7 and 78.3, SST-2 92.9 and 92.5, but MNLI 84.0 and 84.3",
        PUBLISHED.source,
    ),
)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=PAPER, copies=0)
    copies = setting.others["copies"] or (10 if setting.scale == "paper" else 1)
    return Study(
        name="roberta_masking",
        title="Static and dynamic masks",
        question="Do new masks in each epoch help more than masks that repeat?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes={
            "masks": {"static": {"objectives.mlm.static": True}, "dynamic": {}},
            "seed": setting.seeds,
        },
        overrides={**setting.overrides, **setting.transformer, "data.dupe_factor": copies},
        rates=setting.rates,
        task_rates=setting.task_rates,
        downstream=setting.downstream(),
        published=PUBLISHED,
        claims=CLAIMS,
    )
