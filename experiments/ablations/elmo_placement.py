"""Where ELMo joins a task's model: Peters et al. 2018, section 5.2, table 3.

One pretrained, frozen biLM per seed. The task's model is a tagger with its own word vectors (100
wide, trained) under a biLSTM of two layers. It gets the mix of ELMo's layers beside its words,
beside the biLSTM's output, or at both with separate weights.

The paper's tasks are SQuAD, SNLI and SRL. The output placement needs a task model with its own word
vectors. Taggers have them, and `tasks=ner,data=DIR` or `tasks=ud,data=DIR` comes closest to SRL. As
in `elmo_layers.py`, tokens are subwords below scale=paper, and the tasks are not trained as in the
paper.

Expect: for tagging, the input as good as both, and the output below (SRL). For SQuAD and SNLI,
whose models have attention, both is best.
"""

from common import read_setting, table_claims

from bertlab.config import papers
from bertlab.studies.study import Published

PUBLISHED = Published(
    source="Peters et al. 2018, table 3 (development sets)",
    columns=("SQuAD F1", "SNLI", "SRL F1"),
    rows={
        "input": (85.1, 88.9, 84.7),
        "input and output": (85.6, 89.5, 84.3),
        "output": (84.8, 88.7, 80.9),
    },
)
# The last two were one finding for all tasks ("both above input") until our result was seen;
# tagging is the paper's SRL.
CLAIMS = table_claims(
    PUBLISHED,
    ("input", "output", ("SRL F1", "SQuAD F1")),
    ("input and output", "output", ("SRL F1", "SQuAD F1")),
    ("input and output", "input", ("SQuAD F1", "SNLI"), ("span", "classification")),
    ("input", "input and output", "SRL F1", ("tagging",)),
)


def get_study(arguments=None):
    setting = read_setting(arguments, paper=papers.ELMO, tasks="code_spans")
    return setting.study(
        name="elmo_placement",
        title="ELMo at a task model's input and output",
        question="Where should a biLM's states join a task's model?",
        config=setting.recipe("elmo", tokens=setting.elmo_tokens),
        axes={
            "placement": {
                "input": {"finetune.head.place": "input"},
                "input and output": {"finetune.head.place": "input_output"},
                "output": {"finetune.head.place": "output"},
            }
        },
        overrides={
            **setting.overrides,
            **setting.finetuning("elmo"),
            "finetune.head.word_width": 100,
        },
        downstream=setting.downstream(("tagging",)),
        published=PUBLISHED,
        claims=CLAIMS,
    )
