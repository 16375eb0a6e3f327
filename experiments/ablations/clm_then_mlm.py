"""Left to right first, then masked: Gisserot-Boukhlef et al. 2025, arXiv 2507.00994.

One budget of steps, spent on MLM, on causal language modelling (CLM), or on CLM for a quarter, half
or three quarters of it and then on MLM. CLM is the objective `prefix` without a prefix, on a body
that otherwise sees both sides; it is fine-tuned seeing both sides, and only the left. `rate=` sets
MLM's mask rate (20 to 50 % in the paper). Beside them stand GPT-BERT's models (gpt_bert.py), with
causal and masked rows at once. scale=paper, in EuroBERT's smallest shape, adds budgets
of 12,000 and 22,000 steps and continued pretraining (`whole=on` at other scales): MLM for 22,000
further steps, from MLM or from CLM before its cooldown.
"""

from common import LAST_PIECE, Setting, axis, chain, claims, product, under

# Steps, rate and rows: the paper. Shape and vocabulary: Nicolas-BZRD/EuroBERT
# optimus/trainer/model/encoder/eurobert.py, 210m.
PAPER = {
    "train.steps": 42_000,
    **under("data", seq_len=2048, batch_size=1152),
    **under("data.tokenizer", kind="bpe", vocab_size=128_256),
    **under("model", layers=12, hidden=3072, activation="silu", tied=False, rotary_base=10_000.0),
    **under("optimizer", learning_rate=5e-4, warmup_steps=2000),
}
SHARES = (0.25, 0.5, 0.75)
NO_PREFIX = {"objectives.prefix.max_share": 0.0}
CLM, MLM = NO_PREFIX | {"objectives.mlm.weight": 0.0}, NO_PREFIX | {"objectives.prefix.weight": 0.0}
PROPORTIONS = {"1 : 15": 1 / 16, "1 : 1": 1 / 2}  # causal : masked
FULL, SHORTER, BEFORE_COOLDOWN, CONTINUED = 42, (12, 22), 40, 22  # thousands of steps
SOURCE = "Gisserot-Boukhlef et al. 2025 (figures, without numbers)"
FIRST = "CLM and then MLM best at a fixed budget, reliably with a quarter of CLM"
FINDINGS = [
    ("MLM", "CLM", "MLM above CLM on sentences, most on questions and answers; not on tokens"),
    ("25% CLM then MLM", "MLM", FIRST),
    ("CLM, continued as MLM", "MLM, continued", "MLM from CLM above MLM from MLM"),
]
CONTRASTS = [(f"{share:.0%} CLM then MLM", "MLM") for share in SHARES]
CONTRASTS += [(f"GPT-BERT, {proportion}", "MLM") for proportion in PROPORTIONS]
CONTRASTS += [("CLM from the left", "MLM"), ("MLM", "no pretraining"), ("CLM", "no pretraining")]


def clm_first(share, steps):
    """The phases of a run: CLM gets its share of the steps, and each at least one step."""
    share = min(max(round(share * steps), 1), steps - 1) / steps
    phases = f"{share} objectives.mlm.weight=0; {1 - share} objectives.prefix.weight=0"
    return NO_PREFIX | {"train.phases": phases}


def budget(steps):
    """The rows of a budget."""
    rows = {f"{share:.0%} CLM then MLM": clm_first(share, steps) for share in SHARES}
    rows |= {"CLM": CLM, "CLM from the left": CLM | {"finetune.model.direction": "left-to-right"}}
    return axis("pretraining", {"MLM": MLM, **rows})


def get_study(arguments=None):
    setting = Setting(arguments, paper=PAPER, rate=0.3, whole=("", "on", "off"))
    rate = setting.arguments["rate"]
    recipe = setting.recipe("modern", objectives="mlm+prefix", mask_rate=rate)
    hybrid = setting.recipe("modern", objectives="masked_next_token", mask_rate=rate)
    steps, whole = setting.steps(recipe), setting.arguments["whole"]
    is_whole = whole == "on" or (not whole and setting.scale == "paper")
    none = {"no pretraining": MLM | {"train.steps": 0}}
    hybrids = {
        f"GPT-BERT, {proportion}": {
            "config": hybrid,
            "objectives.masked_next_token.causal_share": share,
        }
        for proportion, share in PROPORTIONS.items()
    }
    grids = [budget(steps), axis("pretraining", hybrids | none)]
    if is_whole:
        for few in (max(2, round(steps * thousands / FULL)) for thousands in SHORTER):
            label = {f"{few:,} steps": {"train.steps": few}}
            grids.append(product(budget(few), axis("budget", label)))
        total = round(steps * (BEFORE_COOLDOWN + CONTINUED) / FULL)
        from_clm = clm_first(BEFORE_COOLDOWN / (BEFORE_COOLDOWN + CONTINUED), total)
        continued = {"MLM, continued": MLM, "CLM, continued as MLM": from_clm}
        continued = {name: of | {"train.steps": total} for name, of in continued.items()}
        grids.append(axis("pretraining", continued))
    overrides = {"model.local_window": 0, "optimizer.decay": "constant"}
    overrides["optimizer.cooldown_steps"] = steps // 21  # the paper's 2,000 of 42,000
    return setting.study(
        title="Causal and then masked language modelling",
        question="Does an encoder profit from being pretrained left to right first?",
        config=recipe,
        axes=chain(*grids),
        overrides={**setting.on_transformer, **LAST_PIECE, **overrides},
        claims=claims(SOURCE, *(FINDINGS if is_whole else FINDINGS[:2])),
        contrasts=CONTRASTS,
    )
