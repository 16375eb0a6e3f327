"""Causal and masked rows in one model: Charpentier and Samuel 2024 (GPT-BERT), arXiv 2410.24159.

One model predicts every token from the position before it (`masked_next_token`); some of its rows
are causal and the others masked. All are fine-tuned seeing both sides. The paper's evaluation is
BabyLM's (`bertlab.contrib.babylm`). scale=paper is the released training of the base size
(ltgoslo/gpt-bert: configs/base.json, pretraining/train_100m.py), with the mean of their batch,
which grows fourfold. **Shares count rows.** In the paper each kind's mean loss has its share, so
1 : 15 gives causal rows 6 % of the loss; here the loss is the mean over all predictions, and 1 : 15
gives them 18 % at a mask rate of 30 %, and 31 % at 15 %.
"""

from common import LAST_PIECE, Setting, claims, under

PAPER = {
    "train.steps": 15_625,
    "train.phases": "0.7 data.seq_len=128 data.batch_size=20480;"
    " 0.2 data.seq_len=256 data.batch_size=10240; 0.1 data.seq_len=512 data.batch_size=5120",
    **under("data", seq_len=512, batch_size=20_480),
    **under("data.tokenizer", kind="bpe", vocab_size=16_384),
    **under("model", layers=12, width=768, heads=12, hidden=2560, dropout=0.1),
    "model.position_encoding": "relative",  # of T5, with as many buckets
    **under("objectives.masked_next_token", rate=0.3, final_rate=0.15),
    **under("optimizer", name="lamb", learning_rate=1e-2, warmup_steps=250, weight_decay=0.1),
    **under("optimizer", bias_correction="moments", b2=0.98, epsilon=1e-8, clip_norm=2.0),
    **under("optimizer", decay="cosine", decay_from_start=False),
}
SHARE = "objectives.masked_next_token.causal_share"
SHARES = {"masked only": 0.0, "1 : 15": 1 / 16, "1 : 7": 1 / 8, "1 : 1": 1 / 2, "7 : 1": 7 / 8}
SHARES |= {"causal only": 1.0}
SOURCE = "Charpentier and Samuel 2024, abstract"
FINDING = "hybrid pretraining outperforms masked-only or causal-only models"
CLAIMS = claims(SOURCE, ("1 : 15", "masked only", FINDING), ("1 : 15", "causal only", FINDING))


def get_study(arguments=None):
    setting = Setting(arguments, paper=PAPER)
    return setting.study(
        title="Causal and masked rows in one model",
        question="How many of a model's rows should be causal, and how many masked?",
        config=setting.recipe("modern", objectives="masked_next_token"),
        axes={"causal : masked": {label: {SHARE: share} for label, share in SHARES.items()}},
        overrides={**setting.on_transformer, **LAST_PIECE, "model.local_window": 0},
        claims=CLAIMS,
    )
