"""Larger batches with fewer steps: Liu et al. 2019 (RoBERTa), section 4.3, table 3.

MLM without NSP on packed sentences, with 256, 2,048 and 8,192 rows a batch and as many readings of
the text: 1,000,000, 125,000 and 31,250 steps. The paper tuned the rate of each (1e-4, 7e-4, 1e-3)
and the warm-ups, which it does not print: ours are BERT's 10,000 steps, an 8th and a 32nd of them.
Below scale=paper the batches are the scale's, 8 and 32 times as large, and `select=on` selects the
rate of each. The paper's tasks: `tasks=mnli+sst2,data=DIR`.
"""

from common import ONE_LENGTH, Setting, claims, papers, table

RATIOS = (1, 8, 32)
COUNTED = ("train.eval_every", "train.log_every", "train.checkpoint_every")
COUNTED += ("optimizer.warmup_steps",)
RATES = (1e-4, 7e-4, 1e-3)  # scale=paper
SOURCE = "Liu et al. 2019, table 3 (BERT-Base, development sets)"
TABLE = table(
    SOURCE,
    "Perplexity|MNLI-m|SST-2",
    {
        "256 rows": (3.99, 84.7, 92.7),
        "2048 rows": (3.68, 85.2, 92.9),
        "8192 rows": (3.77, 84.6, 92.8),
    },
    note="Perplexity is of hidden tokens; ours are losses in nats. Below scale=paper the rows'"
    " labels are other batches.",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT | ONE_LENGTH)
    recipe, batches = setting.recipe("bert", objectives="mlm"), {}
    own, steps = setting.overrides, setting.steps(recipe)
    for ratio, rate in zip(RATIOS, RATES, strict=True):  # as many rows read by each
        changes = {"data.batch_size": ratio * own["data.batch_size"]}
        changes["train.steps"] = max(1, steps // ratio)
        changes |= {key: max(1, own[key] // ratio) for key in COUNTED if own.get(key)}
        if setting.scale == "paper":
            changes["optimizer.learning_rate"] = rate
        batches[f"{changes['data.batch_size']} rows"] = changes
    small, middle, large = batches
    return setting.study(
        title="Batch size",
        question="What do larger batches give, if the text is read as often?",
        config=recipe,
        axes={"batch": batches},
        overrides={**setting.on_transformer, "data.format": "full_sentences"},
        **TABLE,
        claims=claims(
            SOURCE,
            (middle, small, "MNLI 85.2 and 84.7, SST-2 92.9 and 92.7"),
            (middle, large, "MNLI 85.2 and 84.6, SST-2 92.9 and 92.8"),
        ),
    )
