"""How many labelled examples ELMo saves: Peters et al. 2018, section 5.4, figure 1.

Each task trains on a growing number of examples, with ELMo and without, as in `elmo_layers.py`, for
the same number of steps, 3,000 from scale=small on. The figure shows 0.1 % to 100 % of SNLI and
SRL: 1 % of the data with ELMo is about as good as 10 % without. The report compares ELMo with as
many examples without, and with ten times as many.
"""

from common import FRESH_EMBEDDINGS, Claim, Setting, papers

CLAIM = (
    "SQuAD 85.8 and 81.1, SNLI 88.7 and 88.0, SRL 84.6 and 81.4",
    "Peters et al. 2018, table 1 (test sets, all examples)",
)


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.ELMO)
    examples = setting.examples((100, 300, 1000, 3000), (100, 1000, 10_000, 100_000))
    overrides = {**setting.overrides, **setting.finetuning("elmo")}
    if not overrides["finetune.train.steps"]:
        overrides["finetune.train.steps"] = 3000
    # With ELMo and without: as many, ten times as many without, all without against the fewest.
    counts = [count for count in examples if count != "all"]
    compared = [(count, count) for count in counts]
    compared += [(few, many) for few in counts for many in counts if int(many) == 10 * int(few)]
    compared += [(few, "all") for few in counts[:1] if "all" in examples]
    return setting.study(
        title="ELMo with few labelled examples",
        question="How many labelled examples is a biLM worth?",
        config=setting.recipe("elmo", tokens=setting.elmo_tokens),
        axes={"examples": examples, "model": {"without ELMo": FRESH_EMBEDDINGS, "with ELMo": {}}},
        overrides=overrides,
        downstream=setting.downstream(labels=()),
        claims=[Claim("all, with ELMo", "all, without ELMo", *CLAIM)] if "all" in examples else [],
        contrasts=[(f"{few}, with ELMo", f"{many}, without ELMo") for few, many in compared],
    )
