"""Static and dynamic masks: Liu et al. 2019 (RoBERTa), section 4.1, table 1.

MLM + NSP. Static masks belong to a row, and repeat after the text has been read `copies` times;
dynamic ones are drawn at each step. BERT's copies=10 showed each mask four times in 40 readings.
Small runs read their text fewer times (pydocs about eighteen at tiny), so below scale=paper
copies=1. Rows and pairs always repeat. The paper's tasks: `tasks=squad2+mnli+sst2,data=DIR`.
"""

from common import Setting, papers, table

TABLE = table(
    "Liu et al. 2019, table 1 (development sets, BERT-Base)",
    "SQuAD 2.0 F1|MNLI-m|SST-2",
    {
        "static": (78.3, 84.3, 92.5),
        "dynamic": (78.7, 84.0, 92.9),
        "BERT-Base": (76.3, 84.3, 92.8),
    },
    ("dynamic", "static", "SQuAD 2.0 F1|SST-2|MNLI-m"),
    note="Medians of five runs. BERT-Base is BERT's own and not among ours.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT | {"train.phases": ""}, copies=0)
    copies = setting.arguments["copies"] or (10 if setting.scale == "paper" else 1)
    return setting.study(
        title="Static and dynamic masks",
        question="Do new masks in each epoch help more than masks that repeat?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes={"masks": {"static": {"objectives.mlm.static": True}, "dynamic": {}}},
        overrides={**setting.on_transformer, "data.dupe_factor": copies},
        **TABLE,
    )
