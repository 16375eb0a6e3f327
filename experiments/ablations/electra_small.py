"""What makes ELECTRA learn more from the same text: Clark et al. 2020, section 3.4, table 5.

Five objectives on one body, for the same number of steps: BERT (MLM without NSP); Replace MLM (a
generator's tokens in place of [MASK]); ELECTRA 15 % (which of the chosen tokens are replaced?);
All-Tokens MLM (predicts every token, and can copy); ELECTRA (is this token replaced? for every
one). The generator has a quarter of the body's width and heads, like ELECTRA-Small's; from
scale=base a third, like ELECTRA-Base's. The paper's scores are means over GLUE
(`tasks=cola+sst2+mrpc+stsb+qqp+mnli+qnli+rte,data=DIR`). scale=paper is ELECTRA-Base (appendix A)
with 766,000 steps, the number at BERT-Base's compute.
"""

from common import ONE_LENGTH, Setting, papers, table

# ELECTRA's `task`, and the published score.
VARIANTS = {
    "Replace MLM": ("replace_mlm", 82.4),
    "ELECTRA 15 %": ("discriminate_masked", 82.4),
    "All-Tokens MLM": ("all_tokens", 84.3),
    "ELECTRA": ("discriminate", 85.0),
}
PAPER = {**papers.BERT, **ONE_LENGTH, "train.steps": 766_000, "optimizer.learning_rate": 2e-4}
TABLE = table(
    "Clark et al. 2020, table 5",
    "GLUE",
    {"BERT": (82.2,), **{name: (score,) for name, (_, score) in VARIANTS.items()}},
    ("ELECTRA", "BERT", "GLUE"),
    ("ELECTRA", "ELECTRA 15 %", "GLUE"),
    ("ELECTRA", "All-Tokens MLM", "GLUE"),
    ("All-Tokens MLM", "Replace MLM", "GLUE"),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=PAPER)
    tasks, size, tuned = setting.downstream(), 1 / 4, {}
    if setting.is_large:
        size, tuned = 1 / 3, setting.finetuning("electra_paper")
        if "rte" in tasks:  # as STS-B's: google-research/electra configure_finetuning.py
            tasks["rte"]["transfer.epochs"] = 10.0
    electra = {**setting.bert("electra"), "objectives.electra.generator_size": size}
    variants = {k: {**electra, "objectives.electra.task": of} for k, (of, _) in VARIANTS.items()}
    return setting.study(
        title="ELECTRA and what lies between",
        question="Does ELECTRA learn from being asked everywhere, or from never being shown"
        " [MASK]?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={"objective": {"BERT": {}, **variants}},
        overrides={**setting.on_transformer, **tuned},
        downstream=tasks,
        **TABLE,
    )
