"""Which of ELMo's layers a task needs, and how freely it may weigh them: Peters et al. 2018,
section 5.1, table 2.

One frozen biLM per seed. A biLSTM of two layers reads either the top layer or a mix of all with
weights that the task learns. The penalty `head.mix_penalty` (λ) keeps these weights near their mean
(1) or lets them differ (0.001). Without ELMo the same biLSTM reads embeddings that start at random
and are trained with it.

The paper's tasks are SQuAD, SNLI and SRL, each with a model and word vectors of its own;
`tasks=squad1+snli+ner,data=DIR` come closest. The biLM reads characters at scale=paper, subwords
below it. A model of characters cannot mark spans of pieces: for `squad1` name `elmo=subwords`.

Expect: any layer far above none; all layers above the last, and lambda=0.001 a little above
lambda=1. After little text, a biLM's top layer may know less than its embeddings.
"""

import systems
from common import read_setting, table_claims
from scales import FRESH_EMBEDDINGS, SAME_ROWS

from bertlab.config import papers
from bertlab.studies.study import Published

PUBLISHED = Published(
    source="Peters et al. 2018, table 2 (development sets)",
    columns=("SQuAD F1", "SNLI", "SRL F1"),
    rows={
        "baseline": (80.8, 88.1, 81.6),
        "last only": (84.7, 89.1, 84.1),
        "all layers, lambda=1": (85.0, 89.3, 84.6),
        "all layers, lambda=0.001": (85.2, 89.5, 84.8),
    },
    note="The first version of the paper had other numbers for SQuAD: 80.8, 82.5, 83.6, 84.8.",
)
CLAIMS = table_claims(
    PUBLISHED,
    ("last only", "baseline", ("SQuAD F1", "SRL F1")),
    ("all layers, lambda=1", "last only", ("SQuAD F1", "SRL F1")),
    ("all layers, lambda=0.001", "last only", ("SQuAD F1", "SRL F1")),
    ("all layers, lambda=0.001", "all layers, lambda=1", ("SQuAD F1", "SRL F1")),
)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=papers.ELMO, elmo=("", "subwords", "characters"))
    tokens = setting.arguments["elmo"] or setting.elmo_tokens
    systems.check_elmo(setting, tokens)
    if setting.scale == "paper" and tokens == "subwords":
        setting = read_setting(arguments, paper=SAME_ROWS, elmo=tokens)

    def all_layers(penalty):
        mix = {"finetune.head.layers": "scalar_mix"}
        return {**mix, "finetune.head.mix_penalty": penalty}

    return setting.study(
        name="elmo_layers",
        title="ELMo's layers",
        question="Do all of a biLM's layers give more than the last, and how freely should a task"
        " weigh them?",
        config=setting.recipe("elmo", tokens=tokens),
        axes={
            "layers": {
                "baseline": FRESH_EMBEDDINGS,
                "last only": {"finetune.head.layers": "last"},
                "all layers, lambda=1": all_layers(1.0),
                "all layers, lambda=0.001": all_layers(0.001),
            }
        },
        overrides={**setting.overrides, **setting.finetuning("elmo")},
        published=PUBLISHED,
        claims=CLAIMS,
    )
