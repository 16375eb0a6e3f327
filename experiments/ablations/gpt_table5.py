"""What GPT's pretraining, auxiliary objective and transformer give: Radford et al. 2018, table 5.

The transformer is fine-tuned as published (language modelling of the task's text with half the
weight, special tokens around texts, a classifier on the last), from random values, and without the
auxiliary objective. The LSTM of one layer is AWD-LSTM without its regularisers, with about as many
weights; at the paper's scale it has the paper's 2,048 units. The paper's tasks are GLUE's, scored
by the test server: `tasks=cola+sst2+mrpc+stsb+qqp+mnli+qnli+rte,data=DIR`.
"""

import systems
from common import Setting, papers, table

TABLE = table(
    "Radford et al. 2018, table 5 (GLUE's test sets)",
    "Average|CoLA|SST-2|MRPC F1|STS-B|QQP F1|MNLI|QNLI|RTE",
    {
        "full": (74.7, 45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0),
        "no pre-training": (59.9, 18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8),
        "no auxiliary LM": (75.0, 47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4),
        "LSTM with auxiliary LM": (69.1, 30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6),
    },
    ("full", "no pre-training", "Average"),
    ("full", "LSTM with auxiliary LM", "Average|MRPC F1"),
    ("no auxiliary LM", "full", "Average|MRPC F1|SST-2"),
    note="12 layers, 768 wide, BooksCorpus.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.GPT)
    changes = {
        "full": {},
        "no pre-training": {"finetune.transfer.random": True},
        "no auxiliary LM": {"finetune.objectives.language_model.weight": 0.0},
    }
    models = {name: setting.transformer | change for name, change in changes.items()}
    models["LSTM with auxiliary LM"] = systems.gpt_lstm(setting)
    return setting.study(
        title="GPT's pretraining, auxiliary objective and transformer",
        question="What do pretraining, the auxiliary language model and the transformer give"
        " downstream?",
        config=setting.recipe("gpt"),
        axes={"model": models},
        overrides={**setting.overrides, **systems.gpt_finetuning(setting)},
        **TABLE,
    )
