"""Permutation against masked language modelling on one body: Yang et al. 2019 (XLNet), table 6.

Two rows of the table have a counterpart, XLNet with K = 7 and 6 (one token in K is predicted), with
MLM, which masks words by themselves, in the place of "DAE + Transformer-XL". Two further rows ask
what makes the difference: permutation that predicts every token, and MLM at the mask rate of K = 6.
The paper's tasks: `tasks=race+squad2+mnli+sst2,data=DIR`.
"""

from common import ONE_LENGTH, Setting, claims, papers, table

TABLE = table(
    "Yang et al. 2019, table 6 (development sets)",
    "RACE|SQuAD 2.0 F1|MNLI-m|SST-2",
    {
        "BERT-Base": (64.3, 76.30, 84.34, 92.78),
        "DAE + Transformer-XL": (65.03, 79.56, 84.88, 92.60),
        "permutation K=7": (66.05, 81.33, 85.84, 92.66),
        "permutation K=6": (66.66, 80.98, 85.63, 93.35),
    },
    note="BERT-Base is BERT's own and not among ours. DAE + Transformer-XL is the paper's"
    " denoising row; ours is MLM.",
)
CLAIMS = claims(
    f"{TABLE['published'].source}; MLM is DAE + Transformer-XL there",
    ("permutation K=7", "MLM", "MNLI 85.84 and 84.88, SQuAD 2.0 81.33 and 79.56"),
    ("permutation K=6", "MLM", "MNLI 85.63 and 84.88, SQuAD 2.0 80.98 and 79.56"),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.BERT | ONE_LENGTH)
    permutation, key = setting.bert("permutation"), "objectives.permutation.predict_one_in"
    orders = {f"permutation K={k}": {**permutation, key: k} for k in (7, 6, 1)}
    return setting.study(
        title="Permutation and masked language modelling",
        question="Is predicting in permuted orders better than filling in masks, on one body?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={"objective": {"MLM": {}, **orders, "MLM 1 in 6": {"objectives.mlm.rate": 1 / 6}}},
        overrides={**setting.on_transformer, "data.format": "full_sentences"},
        **TABLE,
        claims=CLAIMS,
    )
