"""When one objective overtakes another, and in which use: masked against left to right, by steps of
pretraining and by what is done with the result.

Devlin et al. 2019 (appendix C.1, figure 5) find that MLM learns more slowly than LTR and is above
it almost at once; Peters et al. 2018 freeze what is pretrained, Radford et al. 2018 and Devlin et
al. 2019 fine-tune it. Each task is learned in three ways: a linear probe on the last layer's frozen
states, a biLSTM on them, and fine-tuning. The last checkpoint is used three times, with another
seed of fine-tuning and another draw of the labelled examples, and `early=3` checkpoints on a
logarithmic grid once; at these the rate has not yet fallen. The rates of the uses are fixed: the
best of a pilot with the first seed.

Expect: left to right ahead early and under a probe, masks ahead late and when fine-tuned.
"""

from common import claims, of_stage, read_setting
from scales import LAST_PIECE

from bertlab.studies.axes import axis, chain, product
from bertlab.studies.study import stage_keys
from bertlab.train.hooks import kept_steps

USES = {
    "probe": {"recipe": "probe", "head.layers": "last", "optimizer.learning_rate": 3e-2},
    "bilstm": {
        "recipe": "bert_features",
        "head.layers": "last",
        "head.hidden": 128,
        "optimizer.learning_rate": 3e-3,
    },
    "tuned": {"recipe": "small", "optimizer.learning_rate": 1e-3},
}
REPETITIONS = 3
CLAIMS = claims(
    "Devlin et al. 2019, figure 5", ("MLM", "LTR", "MNLI 84.4 and 82.1 after 1,000,000 steps")
)


def get_study(arguments=None):
    setting = read_setting(arguments, tasks="package+code_spans", early=3)
    mlm = setting.recipe("bert", objectives="mlm")
    ltr = {"config": setting.recipe("bert", objectives="ltr"), "model.direction": "left-to-right"}
    early = kept_steps("log", setting.steps(mlm))[-1 - setting.arguments["early"] : -1]
    objectives = axis("objective", {"MLM": {}, "LTR": ltr})
    steps = axis("steps", {f"{step:,}": {"finetune.init_step": step} for step in early})
    draws = axis(
        "finetune.seed",
        {
            f"draw={n}": of_stage("finetune", {"seed": n, "task_data.seed": n})
            for n in range(1, REPETITIONS + 1)
        },
    )
    objectives += axis("objective", {"no pretraining": {"train.steps": 0}})
    return setting.study(
        name="crossover",
        title="When one objective overtakes another",
        question="After how much pretraining, and in which use, is MLM above left to right?",
        config=mlm,
        axes=chain(
            product(objectives, draws),
            product(objectives[:2], steps, draws[:1]),
        ),
        overrides={
            **setting.overrides,
            **setting.transformer,
            **LAST_PIECE,
            "data.format": "segment_pair",
            "train.keep": "log",
            "evaluate.sentences": 0,
            "finetune.train.eval_every": 0,
        },
        downstream={
            f"{task}_{use}": stage_keys("finetune", setting.finetuning("small"))
            | fields
            | settings
            | {"task": fields.get("task", task)}
            for task, fields in setting.downstream().items()
            for use, settings in USES.items()
        },
        claims=CLAIMS,
        contrasts=[(f"MLM, {step:,}", f"LTR, {step:,}") for step in early],
    )
