"""How large the model should be: Devlin et al. 2019, section 5.2, table 6.

BERT (MLM + NSP) in six sizes, named layers/width/heads, with the same hyper-parameters: from
scale=base the published sizes, below it in the same steps. The paper's perplexity is exp(mlm/loss)
on held-out text. The paper's tasks: `tasks=mnli+mrpc+sst2,data=DIR`. At scale=paper the seeds are
restarts of fine-tuning on one pretraining (five in the paper).
"""

from common import Setting, axis, claims, papers, table, under

SOURCE = "Devlin et al. 2019, table 6 (development sets)"
TABLE = table(
    SOURCE,
    "LM perplexity|MNLI-m|MRPC|SST-2",
    {
        "3/768/12": (5.84, 77.9, 79.8, 88.4),
        "6/768/3": (5.24, 80.6, 82.2, 90.7),
        "6/768/12": (4.68, 81.9, 84.8, 91.3),
        "12/768/12": (3.99, 84.4, 86.7, 92.9),
        "12/1024/16": (3.54, 85.7, 86.9, 93.3),
        "24/1024/16": (3.23, 86.6, 87.8, 93.7),
    },
)
SIZES = {
    "tiny": ("1/128/2", "2/128/1", "2/128/2", "4/128/2", "4/192/3", "8/192/3"),
    "mini": ("1/256/4", "2/256/1", "2/256/4", "4/256/4", "4/384/6", "8/384/6"),
    "small": ("1/512/8", "2/512/2", "2/512/8", "4/512/8", "4/768/12", "8/768/12"),
}
# Two sizes, by their places in SIZES, and the published finding.
CLAIMS = (
    (5, 0, "MNLI 86.6 and 77.9, MRPC 87.8 and 79.8, largest and smallest"),
    (2, 1, "MNLI 81.9 and 80.6, 12 heads and 3"),
    (3, 2, "MNLI 84.4 and 81.9, 12 layers and 6"),
    (4, 3, "MNLI 85.7 and 84.4, 1,024 wide and 768"),
    (5, 4, "MNLI 86.6 and 85.7, 24 layers and 12"),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT)
    sizes, shapes = SIZES.get(setting.scale) or tuple(TABLE["published"].rows), {}
    for size in sizes:
        layers, width, heads = map(int, size.split("/"))
        shapes[size] = under("model", layers=layers, width=width, heads=heads, hidden=4 * width)
    return setting.study(
        title="BERT's size",
        question="What do more layers, more width and more heads give, in perplexity and"
        " downstream?",
        config=setting.recipe("bert", objectives="mlm+nsp"),
        axes=setting.at_bert_rates(axis("layers/width/heads", shapes)),
        seeds=setting.restarts(),
        **TABLE,
        claims=claims(SOURCE, *((sizes[a], sizes[b], of) for a, b, of in CLAIMS)),
    )
