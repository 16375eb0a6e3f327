"""Which part of BERT's pretraining counts: Devlin et al. 2019, section 5.1, table 5.

BERT (MLM + NSP); without NSP; left to right without NSP, also in fine-tuning; and that with a new
BiLSTM on top. Ours are the rows without pretraining, and the task `next_sentence`, NSP's own
question, for the paper's pairs: `tasks=mnli+qnli+mrpc+sst2+squad1,data=DIR`. At base and paper the
pooler reads the token that has seen the whole text, [CLS] or a left-to-right model's last; at
smaller scales the head reads the mean of the states. With few tokens LTR is ahead: it is supervised
at every position, MLM at 30 % (15 % in the paper).
"""

from common import LAST_PIECE, TEXTS, Claim, Setting, axis, claims, papers, table

TABLE = table(
    "Devlin et al. 2019, table 5 (development sets, BERT-Base)",
    "MNLI-m|QNLI|MRPC|SST-2|SQuAD F1",
    {
        "BERT": (84.4, 88.4, 86.7, 92.7, 88.5),
        "No NSP": (83.9, 84.9, 86.5, 92.6, 87.9),
        "LTR & No NSP": (82.1, 84.3, 77.5, 92.1, 77.8),
        "+ BiLSTM": (82.1, 84.1, 75.7, 91.6, 84.9),
    },
)
ON_SENTENCES = "MRPC 77.5 and 75.7, SST-2 92.1 and 91.6, QNLI 84.3 and 84.1"
PRETRAINING = "74.7 and 59.9, on average"
CLAIMS = [
    *claims(
        "Devlin et al. 2019, table 5",
        ("No NSP", "LTR & No NSP", "MNLI 83.9 and 82.1, SQuAD 87.9 and 77.8", (*TEXTS, "span")),
        ("BERT", "No NSP", "QNLI 88.4 and 84.9, MNLI 84.4 and 83.9", (*TEXTS, "span")),
        ("+ BiLSTM", "LTR & No NSP", "SQuAD 84.9 and 77.8", ("span",)),
        ("LTR & No NSP", "+ BiLSTM", ON_SENTENCES, TEXTS),
    ),
    Claim("LTR & No NSP", "No pretraining", PRETRAINING, "Radford et al. 2018, table 5", TEXTS),
    Claim("No NSP", "No pretraining", PRETRAINING, "Radford et al. 2018, table 5, for LTR", TEXTS),
]
# The same differences on other kinds of task.
CONTRASTS = [(of.higher, of.lower) for of in CLAIMS if of.higher != "+ BiLSTM"]


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT, tasks="package+code_spans+next_sentence")
    none = {"train.steps": 0}
    ltr = {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"}
    bilstm = {"finetune.head.bilstm": 2}
    if setting.is_large:  # their recipe's pooler reads the body, below a biLSTM
        bilstm["finetune.head.pooling"] = "last"
    variants = {"BERT": setting.bert("mlm+nsp"), "No NSP": {}, "LTR & No NSP": ltr}
    variants |= {"+ BiLSTM": ltr | bilstm, "No pretraining": none}
    variants |= {"No pretraining + BiLSTM": ltr | bilstm | none}
    return setting.study(
        title="BERT's pretraining tasks",
        question="What do next-sentence prediction and seeing both sides give downstream?",
        config=setting.recipe("bert", objectives="mlm"),
        axes=setting.at_bert_rates(axis("pretraining", variants)),
        overrides={**setting.on_transformer, **LAST_PIECE, "data.format": "segment_pair"},
        **TABLE,
        claims=CLAIMS,
        contrasts=CONTRASTS,
    )
