"""When one objective overtakes another, and in which use: masked against left to right.

By steps of pretraining, and by what is done with the result. Each task is learned in three ways: a
linear probe on the last layer's frozen states, a biLSTM on them (as Peters et al. 2018), and
fine-tuning. Beside the last checkpoint there are `early=3` on a logarithmic grid, at which the rate
has not yet fallen. `objectives=mlm+mlm15+nsp+ltr+bilm` adds more; each is compared with the first.
With `factors=1+1/3+10/3` the last checkpoint is also used at these multiples of the uses' rates,
and `valid` selects one for each variant and use. `objectives=mlm@2e-3+ltr@6e-3` gives pretraining
rates, where a search in runs of full length would take too long.
"""

from bertlab.studies.runs import RATE
from bertlab.train.hooks import kept_steps
from common import (
    LAST_PIECE,
    TEXTS,
    Claim,
    Setting,
    axis,
    chain,
    claims_among,
    product,
    stage_keys,
    under,
)

# The best of a pilot, but for the probe the middle rate: MLM at a rate of 6e-3, the first seed,
# accuracy on UD's valid in %.
USES = {
    # 1e-2: 74.5, 3e-2: 75.5, 1e-1: 75.6
    "probe": {"recipe": "probe", "head.layers": "last", RATE: 3e-2},
    # 1e-3: 79.8, 3e-3: 83.3, 1e-2: 83.2
    "bilstm": {"recipe": "bert_features", "head.layers": "last", "head.hidden": 128, RATE: 3e-3},
    # 3e-4: 85.2, 1e-3: 85.9, 3e-3: 85.7
    "tuned": {"recipe": "small", RATE: 1e-3},
}
# What the argument `objectives` can name: the name in the study, the recipe and its arguments.
OBJECTIVES = {
    "mlm": ("MLM", "bert", {"objectives": "mlm"}),
    "mlm15": ("MLM, 15 %", "bert", {"objectives": "mlm", "mask_rate": 0.15}),
    "mlm40": ("MLM, 40 %", "bert", {"objectives": "mlm", "mask_rate": 0.4}),
    "nsp": ("MLM + NSP", "bert", {"objectives": "mlm+nsp"}),
    "diffusion": ("diffusion", "bert", {"objectives": "diffusion"}),
    "masked_next_token": ("masked next token", "bert", {"objectives": "masked_next_token"}),
    "ltr": ("LTR", "bert", {"objectives": "ltr"}),
    "bilm": ("biLM (ELMo)", "elmo", {"objectives": "bilm"}),
    "bilm_equal": ("biLM (ELMo, equal size)", "elmo", {"objectives": "bilm"}),
    "both_ways": ("biLM (transformer)", "bert", {"objectives": "prefix"}),
}
OVERRIDES = {
    # As many parameters as the transformer at scale=tiny, 0.7 M; ELMo's own have 1.1 M there.
    "bilm_equal": under("model", width=80, hidden=128),
    # One transformer reads half of the rows from the left and half from the right, and is used
    # seeing both sides.
    "both_ways": under("objectives.prefix", max_share=0.0, backward_share=0.5),
}
# Names of untrained bodies, where these differ from MLM's.
UNTRAINED = {
    "LTR": "no pretraining (LTR)",
    "biLM (ELMo)": "no pretraining (ELMo)",
    "biLM (ELMo, equal size)": "no pretraining (ELMo, equal size)",
}
FINDING = "MNLI 83.9 and 82.1 after 1,000,000 steps"
KINDS = (*TEXTS, "span")
CLAIMS = [Claim("MLM", "LTR", FINDING, "Devlin et al. 2019, table 5", KINDS, uses=("_tuned",))]


def get_study(arguments=None):
    defaults = {"early": 3, "uses": "+".join(USES), "objectives": "mlm+ltr", "factors": ""}
    setting = Setting(arguments, draws=3, labels="1000", **defaults)
    mlm = setting.recipe("bert", objectives="mlm")
    early = kept_steps("log", setting.steps(mlm))[-1 - setting.arguments["early"] : -1]
    chosen, tuned = {}, stage_keys("finetune", setting.finetuning("small"))
    for entry in setting.arguments["objectives"].split("+"):
        name, _, rate = entry.partition("@")
        label, family, recipe = OBJECTIVES[name]
        body = setting.transformer if family == "bert" else {}
        body = body | ({"optimizer.learning_rate": float(rate)} if rate else {})
        body = body | OVERRIDES.get(name, {})
        chosen[label] = {"config": setting.recipe(family, **recipe), **body}
    objectives, names = axis("objective", chosen), list(chosen)
    none = {"no pretraining": setting.transformer | {"train.steps": 0}}
    for label in filter(UNTRAINED.get, chosen):
        none[UNTRAINED[label]] = chosen[label] | {"train.steps": 0}
    steps = axis("steps", {f"{step:,}": {"finetune.init_step": step} for step in early})
    last = product(chain(objectives, axis("objective", none)), setting.rate_factors())
    pairs = [(names[0], name) for name in names[1:]]
    contrasts = pairs + [(name, UNTRAINED.get(name, "no pretraining")) for name in names]
    for step in early:
        contrasts += [(f"{first}, {step:,}", f"{other}, {step:,}") for first, other in pairs]
    fixed = {"data.format": "segment_pair", "train.keep": "log", "evaluate.sentences": 0}
    fixed["finetune.train.eval_every"] = 0
    downstream = {
        f"{task}_{use}": {**tuned, **fields, **USES[use], "task": fields.get("task", task)}
        for task, fields in setting.downstream().items()
        for use in setting.arguments["uses"].split("+")
    }
    return setting.study(
        title="When one objective overtakes another",
        question="After how much pretraining, and in which use, is MLM above left to right?",
        config=mlm,
        axes=chain(last, product(objectives, steps)),
        overrides={**setting.overrides, **LAST_PIECE, **fixed},
        downstream=downstream,
        claims=claims_among(CLAIMS, chosen),
        contrasts=contrasts,
    )
