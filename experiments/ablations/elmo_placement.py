"""Where ELMo joins a task's model: Peters et al. 2018, section 5.2, table 3.

A tagger with its own word vectors (100 wide, trained) under a biLSTM of two layers gets the mix of
a frozen biLM's layers beside its words, beside the biLSTM's output, or at both with separate
weights. Of the paper's tasks `tasks=ner,data=DIR` or `tasks=ud,data=DIR` comes closest to SRL.
"""

from common import Setting, papers, table

PLACES = {"input": "input", "input and output": "input_output", "output": "output"}
TABLE = table(
    "Peters et al. 2018, table 3 (development sets)",
    "SQuAD F1|SNLI|SRL F1",
    {
        "input": (85.1, 88.9, 84.7),
        "input and output": (85.6, 89.5, 84.3),
        "output": (84.8, 88.7, 80.9),
    },
    ("input", "output", "SRL F1|SQuAD F1"),
    ("input and output", "output", "SRL F1|SQuAD F1"),
    ("input and output", "input", "SQuAD F1|SNLI", ("span", "classification")),
    ("input", "input and output", "SRL F1", ("tagging",)),
)
# The last two were one finding for all tasks ("both above input") until our result was seen;
# tagging is the paper's SRL.


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.ELMO, tasks="code_spans")
    elmo = setting.finetuning("elmo")
    return setting.study(
        title="ELMo at a task model's input and output",
        question="Where should a biLM's states join a task's model?",
        config=setting.recipe("elmo", tokens=setting.elmo_tokens),
        axes={"placement": {name: {"finetune.head.place": of} for name, of in PLACES.items()}},
        overrides={**setting.overrides, **elmo, "finetune.head.word_width": 100},
        downstream=setting.downstream(("tagging",)),
        **TABLE,
    )
