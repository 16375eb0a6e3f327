"""How scores grow with pretraining, masked and left to right: Devlin et al. 2019, appendix C.1,
figure 5.

The pretrainings without NSP and the fine-tuning are those of `bert_table5.py`. The study fine-tunes
checkpoints at the last points of a logarithmic grid. The rate has not yet fallen at the early ones,
so a point shows what the run has learned so far, not what a full schedule of that length would
give. The paper's task is MNLI: `tasks=mnli,data=DIR`.

Expect: both rise with steps (in the paper by about a point on MNLI from 500,000 to 1,000,000). In
the paper MLM is above LTR almost at once, though it learns more slowly; Gisserot-Boukhlef et al.
2025 find left-to-right ahead early. With few tokens, expect the latter.
"""

from common import claims, read_setting
from scales import LAST_PIECE

from bertlab.config import papers
from bertlab.studies.axes import axis, chain, product
from bertlab.studies.study import Published
from bertlab.train.hooks import kept_steps
from bertlab.transfer.recipes import BERT_RATES

PUBLISHED = Published(
    source="Devlin et al. 2019, figure 5 (its end points, from table 5)",
    columns=("MNLI-m",),
    rows={"MLM, 1000000": (84.4,), "LTR, 1000000": (82.1,)},
    note="The masked model has NSP too. After 500,000 steps MNLI is about a point lower than after"
    " 1,000,000. Variants here have their own steps in their names.",
)
FINDING = "MNLI 84.4 and 82.1 after 1,000,000 steps"


def get_study(arguments=None):
    setting = read_setting(arguments, paper=papers.BERT)
    mlm = setting.recipe("bert", objectives="mlm")
    ltr = {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"}
    points = kept_steps("log", setting.steps(mlm))[-6:]
    return setting.study(
        name="bert_figure5",
        title="Pretraining steps",
        question="How do downstream scores grow with pretraining, masked and left to right?",
        config=mlm,
        axes=chain(
            product(
                axis("pretraining", {"MLM": {}, "LTR": ltr}),
                axis("steps", {str(step): {"finetune.init_step": step} for step in points}),
            ),
            axis("pretraining", {"No pretraining": {"train.steps": 0}}),
        ),
        overrides={**setting.on_transformer, **LAST_PIECE, "data.format": "segment_pair"},
        task_rates=setting.published_rates(BERT_RATES),
        published=PUBLISHED,
        claims=claims(PUBLISHED.source, (f"MLM, {points[-1]}", f"LTR, {points[-1]}", FINDING)),
        contrasts=[(f"MLM, {step}", f"LTR, {step}") for step in points],
    )
