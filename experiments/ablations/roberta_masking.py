"""Static and dynamic masks: Liu et al. 2019 (RoBERTa), section 4.1, table 1.

MLM + NSP. Static masks belong to a row: they repeat after the text has been read `copies` times.
Dynamic masks are drawn at each step. BERT has `copies=10`, and its 40 readings showed each mask
four times. Small runs read their text fewer times, so the default below scale=paper is copies=1:
every reading has the same masks. scale=tiny reads pydocs about eighteen times. In both variants
rows and pairs repeat with the copies; only the masks differ. The paper's tasks:
`tasks=squad2+mnli+sst2,data=DIR`.

Expect: no difference beyond the spread over seeds, dynamic slightly ahead at most. With static
masks the training loss falls below the held-out loss sooner.
"""

from common import read_setting, table_claims

from bertlab.config import papers
from bertlab.studies.study import Published

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
CLAIMS = table_claims(PUBLISHED, ("dynamic", "static", ("SQuAD 2.0 F1", "SST-2", "MNLI-m")))


def get_study(arguments=None):
    setting = read_setting(arguments, paper=PAPER, copies=0)
    copies = setting.arguments["copies"] or (10 if setting.scale == "paper" else 1)
    return setting.study(
        name="roberta_masking",
        title="Static and dynamic masks",
        question="Do new masks in each epoch help more than masks that repeat?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes={"masks": {"static": {"objectives.mlm.static": True}, "dynamic": {}}},
        overrides={**setting.on_transformer, "data.dupe_factor": copies},
        published=PUBLISHED,
        claims=CLAIMS,
    )
