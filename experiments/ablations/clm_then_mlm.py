"""Left to right first, then masked: Gisserot-Boukhlef et al. 2025, arXiv 2507.00994.

One budget of steps, spent on MLM, on causal language modelling (CLM), or on CLM for a quarter, half
or three quarters of the steps and then on MLM. CLM is the objective `prefix` without a prefix: left
to right on a body that otherwise sees both sides. The CLM model is fine-tuned twice: seeing both
sides, and only the left. `rate=` sets MLM's mask rate; the paper has 20 to 50 %.

The learning rate is constant between a warm-up and a cooldown (in the paper 2,000 of 42,000 steps
each). scale=paper has the smallest of the paper's sizes, 210 million parameters with EuroBERT's
shape (rotary base 10,000), rows of 2,048, and 42,000 steps at 5e-4 in batches of 2.4 million
tokens. It adds the budgets of 12,000 and 22,000 steps and continued pretraining (`whole=on` at
other scales): MLM for 22,000 further steps, from MLM or from CLM before its cooldown. Not verified:
these 22,000 steps, that they begin before the cooldown, and initial values. The vocabulary of
128,256 pieces is trained on the corpus; the paper has EuroBERT's.

Expect: CLM ahead early and on tokens; MLM ahead of CLM on sentences, most on questions and answers;
CLM and then MLM above MLM, reliably with a quarter of CLM.
"""

from common import LAST_PIECE, claims, read_setting

from bertlab.errors import UserError
from bertlab.studies.axes import axis, chain, product

# Steps, rate and rows: the paper. Shape and vocabulary: Nicolas-BZRD/EuroBERT
# optimus/trainer/model/encoder/eurobert.py, 210m.
PAPER = {
    "train.steps": 42_000,
    "data.seq_len": 2048,
    "data.batch_size": 1152,
    "data.tokenizer.kind": "bpe",
    "data.tokenizer.vocab_size": 128_256,
    "model.layers": 12,
    "model.hidden": 3072,
    "model.activation": "silu",
    "model.tied": False,
    "model.rotary_base": 10_000.0,
    "optimizer.learning_rate": 5e-4,
    "optimizer.warmup_steps": 2000,
}
SHARES = (0.25, 0.5, 0.75)
CLM, MLM = {"objectives.mlm.weight": 0.0}, {"objectives.prefix.weight": 0.0}
FULL, SHORTER, BEFORE_COOLDOWN, CONTINUED = 42, (12, 22), 40, 22  # thousands of steps
SOURCE = "Gisserot-Boukhlef et al. 2025 (figures, without numbers)"
CLAIMS = claims(
    SOURCE,
    ("MLM", "CLM", "MLM above CLM on sentences, most on questions and answers; not on tokens"),
    (
        "25% CLM then MLM",
        "MLM",
        "CLM and then MLM best at a fixed budget, reliably with a quarter of CLM",
    ),
)

CONTINUED_CLAIMS = claims(
    SOURCE, ("CLM, continued as MLM", "MLM, continued", "MLM from CLM above MLM from MLM")
)


def clm_first(share, steps):
    """The two phases of a run: CLM gets its share of the steps, and each phase at least one
    step."""
    share = min(max(round(share * steps), 1), steps - 1) / steps
    return {
        "train.phases": f"{share} objectives.mlm.weight=0; {1 - share} objectives.prefix.weight=0"
    }


def fixed(steps):
    """The rows of a budget."""
    return {
        "MLM": MLM,
        **{f"{share:.0%} CLM then MLM": clm_first(share, steps) for share in SHARES},
        "CLM": CLM,
        "CLM from the left": {**CLM, "finetune.model.direction": "left-to-right"},
    }


def shorter_and_continued(steps):
    """The rows of the smaller budgets, and of continued pretraining."""
    budgets = [max(2, round(steps * thousands / FULL)) for thousands in SHORTER]
    total = round(steps * (BEFORE_COOLDOWN + CONTINUED) / FULL)
    from_clm = clm_first(BEFORE_COOLDOWN / (BEFORE_COOLDOWN + CONTINUED), total)
    continued = {"MLM, continued": MLM, "CLM, continued as MLM": from_clm}
    return chain(
        *(
            product(
                axis("pretraining", fixed(budget)),
                axis("budget", {f"{budget:,} steps": {"train.steps": budget}}),
            )
            for budget in budgets
        ),
        axis(
            "pretraining", {label: {**of, "train.steps": total} for label, of in continued.items()}
        ),
    )


def get_study(arguments=None):
    setting = read_setting(arguments, paper=PAPER, rate=0.3, whole="")
    recipe = setting.recipe("modern", objectives="mlm+prefix")
    steps, whole = (
        setting.steps(recipe),
        setting.arguments["whole"] or ("on" if setting.scale == "paper" else "off"),
    )
    if whole not in ("on", "off"):
        raise UserError(f"whole={whole}: give on or off, or omit it to use the scale's own")
    rows = [
        axis("pretraining", fixed(steps)),
        *([shorter_and_continued(steps)] if whole == "on" else []),
    ]
    return setting.study(
        name="clm_then_mlm",
        title="Causal and then masked language modelling",
        question="Does an encoder profit from being pretrained left to right first?",
        config=recipe,
        axes=chain(*rows),
        overrides={
            **setting.on_transformer,
            **LAST_PIECE,
            "model.local_window": 0,
            "objectives.prefix.max_share": 0.0,
            "objectives.mlm.rate": setting.arguments["rate"],
            "optimizer.decay": "constant",
            "optimizer.cooldown_steps": steps // 21,  # the paper's 2,000 of 42,000
        },
        claims=[*CLAIMS, *(CONTINUED_CLAIMS if whole == "on" else ())],
    )
