"""Left to right first, then masked: Gisserot-Boukhlef et al. 2025, arXiv 2507.00994.

    bertlab sweep --study=experiments/ablations/clm_then_mlm.py:scale=tiny,corpus=pydocs \
      --workdir=runs/clm_then_mlm --jobs=2
    bertlab report runs/clm_then_mlm

One budget of steps, spent on MLM, on causal language modelling (CLM), or on CLM for a quarter, half or three quarters of the
steps and then on MLM. CLM is the objective `prefix` without a prefix: left to right on a body that otherwise sees both sides.
The model trained only with CLM is fine-tuned twice: seeing both sides and, in another row, only the left. All rows read a word
at its last piece: only there has a left-to-right model seen the whole word. `rate=` sets MLM's mask rate; the paper has 20 to
50 %.

The paper's models have EuroBERT's shape and 210 million to 1 billion parameters; here they are `modern` bodies without local
attention. The learning rate is constant between a warm-up and a cooldown (in the paper 2,000 of 42,000 steps each), so the
second objective does not train at a falling rate. scale=paper has the published 42,000 steps at 5e-4 in batches of 2.4 million
tokens (100 billion in all), on `modern` in size base. We could not verify rows of 512 positions and a vocabulary of 30,522
pieces. The paper shows its results as figures.

Expect: CLM ahead early and on tokens; MLM ahead of CLM on sentences, most on questions and answers; CLM and then MLM above
MLM, reliably with a quarter of CLM; with three quarters no worse than MLM.

Cost at scale=tiny with seeds=1,select=off: 482 TFLOP, as `--dry_run` counts them; its time is not measured yet.
"""

from bertlab.studies.settings import LAST_PIECE, read_setting
from bertlab.studies.study import Claim, Study

PAPER = {
    "train.steps": 42_000,
    "data.seq_len": 512,
    "data.batch_size": 4608,
    "data.tokenizer.vocab_size": 30_522,
    "optimizer.learning_rate": 5e-4,
    "optimizer.warmup_steps": 2000,
}
SHARES = (0.25, 0.5, 0.75)
CLM = {"objectives.mlm.weight": 0.0}
SOURCE = "Gisserot-Boukhlef et al. 2025 (figures, without numbers)"
CLAIMS = (
    Claim("MLM", "CLM", "MLM above CLM on sentences, most on questions and answers; not on tokens", SOURCE),
    Claim("25% CLM then MLM", "MLM", "CLM and then MLM best at a fixed budget, reliably with a quarter of CLM", SOURCE),
)


def clm_first(share, steps):
    """The two phases of a run: CLM gets its share of the steps, and each phase at least one step."""
    share = min(max(round(share * steps), 1), steps - 1) / steps
    return {"train.phases": f"{share} objectives.mlm.weight=0; {1 - share} objectives.prefix.weight=0"}


def get_study(arguments=None):
    setting = read_setting(arguments, paper=PAPER, least={"steps": 2}, rate=0.3)
    recipe = setting.recipe("modern", objectives="mlm+prefix")
    steps = setting.steps(recipe)
    return Study(
        name="clm_then_mlm",
        title="Causal and then masked language modelling",
        question="Does an encoder profit from being pretrained left to right first?",
        config=recipe,
        axes={
            "pretraining": {
                "MLM": {"objectives.prefix.weight": 0.0},
                **{f"{share:.0%} CLM then MLM": clm_first(share, steps) for share in SHARES},
                "CLM": CLM,
                "CLM from the left": {**CLM, "finetune.model.direction": "left-to-right"},
            },
            "seed": setting.seeds,
        },
        overrides={
            **setting.overrides,
            **setting.transformer,
            **LAST_PIECE,
            "model.local_window": 0,
            "objectives.prefix.max_share": 0.0,
            "objectives.mlm.rate": setting.others["rate"],
            "optimizer.decay": "constant",
            "optimizer.cooldown_steps": steps // 21,  # the paper's 2,000 of 42,000
        },
        rates=setting.rates,
        task_rates=setting.task_rates,
        downstream=setting.downstream(),
        claims=CLAIMS,
    )
