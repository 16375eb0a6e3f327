"""Sentence order instead of the next sentence: Lan et al. 2020 (ALBERT), table 5.

MLM on pairs of segments, alone (on NSP's pairs), with NSP or with SOP (were A and B swapped?).
Every model answers both questions, fine-tuned and by a linear layer on the mean of its frozen
states (the paper does not say how it asks). The paper's tasks:
`tasks=squad1+squad2+mnli+sst2+race,data=DIR`. scale=paper follows section 4.1, on BERT's body.
"""

from common import ONE_LENGTH, Setting, papers, stage_keys, table, under

PAPER = {**papers.BERT, **ONE_LENGTH, "train.steps": 125_000}
PAPER |= under("data", {"tokenizer.kind": "unigram", "tokenizer.vocab_size": 30_000})
PAPER |= under("data", batch_size=4096, dupe_factor=40)
PAPER |= under("objectives.mlm", static=True, unit="whole_word")
PAPER |= under("optimizer", name="lamb", learning_rate=1.76e-3, warmup_steps=3125)
QUESTIONS = ("next_sentence", "sentence_order")
TABLE = table(
    "Lan et al. 2020, table 5",
    "MLM|NSP|SOP|SQuAD 1.1 F1/EM|SQuAD 2.0 F1/EM|MNLI|SST-2|RACE|Average",
    {
        "None": (54.9, 52.4, 53.3, "88.6/81.5", "78.1/75.3", 81.5, 89.9, 61.7, 79.0),
        "NSP": (54.5, 90.5, 52.0, "88.4/81.5", "77.2/74.6", 81.6, 91.1, 62.3, 79.2),
        "SOP": (54.0, 78.9, 86.5, "89.3/82.3", "80.0/77.1", 82.0, 90.3, 64.0, 80.1),
    },
    ("SOP", "NSP", "SQuAD 2.0 F1/EM|RACE|NSP"),
    ("SOP", "None", "SQuAD 2.0 F1/EM|RACE"),
    note="MLM, NSP and SOP are accuracies on held-out text, the latter two of every model.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=PAPER, tasks="package+next_sentence+sentence_order")
    tasks = setting.downstream()
    probe = stage_keys("finetune", setting.finetuning("probe"))
    asked = [name for name in QUESTIONS if name in tasks]
    tasks |= {f"{name}_frozen": {**probe, **tasks[name], "task": name} for name in asked}
    swapped = setting.bert("mlm+sop") | {"data.segment_pair.negatives": "swapped"}
    return setting.study(
        title="Next sentence and sentence order",
        question="What does a loss on pairs of segments give beside MLM, and which one?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={"loss on pairs": {"None": {}, "NSP": setting.bert("mlm+nsp"), "SOP": swapped}},
        overrides={**setting.on_transformer, "data.format": "segment_pair"},
        downstream=tasks,
        **TABLE,
    )
