"""How much to mask, and with what: Wettig et al. 2022, arXiv 2202.08005.

MLM without NSP at five rates, each with BERT's 80/10/10 and with [MASK] in every chosen place.
Losses at different rates answer different questions: compare bits per byte, for which one token at
a time is masked, and downstream scores. The paper's tasks are GLUE's and SQuAD:
`tasks=mnli+qnli+squad1,data=DIR`. scale=paper is its "efficient recipe" (princeton-nlp/DinkyTrain),
BERT-Large's size with norms before the sublayers.
"""

from common import ONE_LENGTH, Setting, claims, papers, under

PAPER = {
    **papers.BERT,
    **ONE_LENGTH,
    "train.steps": 23_000,
    **under("model", size="large", norm_placement="pre", final_norm=True),
    **under("data", seq_len=128, batch_size=4096, format="full_sentences"),
    **under("data.tokenizer", kind="bpe", vocab_size=50_265, lowercase=False),
    **under("optimizer", learning_rate=2e-3, warmup_steps=1380, decay_from_start=False),
    **under("optimizer", b2=0.98, bias_correction="moments", clip_norm=0.0),
}
RATES = (0.15, 0.3, 0.4, 0.6, 0.8)
MASK_ONLY = {"objectives.mlm.mask_share": 1.0, "objectives.mlm.random_share": 0.0}
HIGHER = "on GLUE and SQuAD in BERT-Large's size; the tables' numbers are not verified"
CLAIMS = claims(
    "Wettig et al. 2022, abstract",
    ("40%, 80/10/10", "15%, 80/10/10", HIGHER),
    ("40%, [MASK] only", "15%, [MASK] only", HIGHER),
    ("40%, 80/10/10", "80%, 80/10/10", "95 % of the fine-tuned performance left when masking 80 %"),
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=PAPER)
    return setting.study(
        title="Masking rates",
        question="How many tokens should be masked, and does it matter that some are not shown as"
        " [MASK]?",
        config=setting.recipe("bert", objectives="mlm"),
        axes={
            "rate": {f"{rate:.0%}": {"objectives.mlm.rate": rate} for rate in RATES},
            "corruption": {"80/10/10": {}, "[MASK] only": MASK_ONLY},
        },
        claims=CLAIMS,
    )
