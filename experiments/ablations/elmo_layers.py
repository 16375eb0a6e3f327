"""Which of ELMo's layers a task needs, how freely: Peters et al. 2018, section 5.1, table 2.

A biLSTM of two layers reads the top layer of one frozen biLM, or a mix of all with weights that the
task learns. `head.mix_penalty` (λ) keeps these near their mean (1) or lets them differ (0.001). The
baseline reads random embeddings that are trained with it. Of the paper's tasks (SQuAD, SNLI, SRL)
`tasks=squad1+snli+ner,data=DIR` come closest. The biLM reads characters at scale=paper, which
cannot mark spans of pieces: for `squad1` name `elmo=subwords`.
"""

from common import FRESH_EMBEDDINGS, SAME_ROWS, Setting, papers, table

MIXED = {"finetune.head.layers": "scalar_mix"}
LAYERS = {
    "baseline": FRESH_EMBEDDINGS,
    "last only": {"finetune.head.layers": "last"},
    "all layers, lambda=1": {**MIXED, "finetune.head.mix_penalty": 1.0},
    "all layers, lambda=0.001": {**MIXED, "finetune.head.mix_penalty": 0.001},
}
TABLE = table(
    "Peters et al. 2018, table 2 (development sets)",
    "SQuAD F1|SNLI|SRL F1",
    {
        "baseline": (80.8, 88.1, 81.6),
        "last only": (84.7, 89.1, 84.1),
        "all layers, lambda=1": (85.0, 89.3, 84.6),
        "all layers, lambda=0.001": (85.2, 89.5, 84.8),
    },
    ("last only", "baseline", "SQuAD F1|SRL F1"),
    ("all layers, lambda=1", "last only", "SQuAD F1|SRL F1"),
    ("all layers, lambda=0.001", "last only", "SQuAD F1|SRL F1"),
    ("all layers, lambda=0.001", "all layers, lambda=1", "SQuAD F1|SRL F1"),
    note="The first version of the paper had other numbers for SQuAD: 80.8, 82.5, 83.6, 84.8.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.ELMO, elmo=("", "subwords", "characters"))
    tokens = setting.elmo_tokens
    if setting.scale == "paper" and tokens == "subwords":
        setting = Setting(arguments, paper=SAME_ROWS, elmo=tokens)
    return setting.study(
        title="ELMo's layers",
        question="Do all of a biLM's layers give more than the last, and how freely should a task"
        " weigh them?",
        config=setting.recipe("elmo", tokens=tokens),
        axes={"layers": LAYERS},
        overrides={**setting.overrides, **setting.finetuning("elmo")},
        **TABLE,
    )
