"""How best to train ULMFiT's classifier: Howard and Ruder 2018, section 5, table 7.

One adapted language model per seed, and ten ways to train the classifier: from random values; all
layers at one rate ("full"); rates that fall by a factor of 2.6 per layer ("discr"); only the
classifier's own layers ("last"); chain-thaw, one group of layers after another (at a rate of 1e-3,
a tenth of it below the head, as in the released script); gradual unfreezing ("freez") by itself and
with discr, the slanted triangle ("stlr") or a cosine ("cos"). In the other rows the rate is
constant. A schedule runs once in each stage of unfreezing. Otherwise as `ulmfit_table4.py`.
"""

import ulmfit

TABLE = ulmfit.published(
    7,
    {
        "from scratch": (9.93, 13.36, 6.81),
        "full": (6.87, 6.86, 5.81),
        "full + discr": (5.57, 6.21, 5.62),
        "last": (6.49, 16.09, 8.38),
        "chain-thaw": (5.39, 6.71, 5.90),
        "freez": (6.37, 6.86, 5.81),
        "freez + discr": (5.39, 5.86, 6.04),
        "freez + stlr": (5.04, 6.02, 5.35),
        "freez + cos": (5.70, 6.38, 5.29),
        "freez + discr + stlr": (5.00, 5.69, 5.38),
    },
    *(("freez + discr + stlr", of) for of in ("from scratch", "full", "last", "chain-thaw")),
    ("full + discr", "full"),
)


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    one_rate = {"finetune.optimizer.layer_decay": 1.0}
    constant = {"finetune.optimizer.decay": "constant"}
    cosine = {"finetune.optimizer.decay": "cosine"}
    full = {**ulmfit.thawing(setting, "all"), **constant, **one_rate}
    chain = full | ulmfit.thawing(setting, "chain")
    if not setting.task_rates:
        chain["finetune.optimizer.learning_rate"] = 1e-3
    groups = ["0.1"] * (1 + setting.numbers("awd_lstm")["layers"]) + ["1"]
    chain["finetune.optimizer.group_rates"] = ",".join(groups)
    classifiers = {
        "from scratch": {**full, "finetune.transfer.random": True},
        "full": full,
        "full + discr": {**ulmfit.thawing(setting, "all"), **constant},
        "last": full | ulmfit.thawing(setting, "head"),
        "chain-thaw": chain,
        "freez": constant | one_rate,
        "freez + discr": constant,
        "freez + stlr": one_rate,
        "freez + cos": cosine | one_rate,
        "freez + discr + stlr": {},
    }
    return ulmfit.study(
        setting,
        title="ULMFiT's fine-tuning of the classifier",
        question="Which layers should a classifier train when, at what rates?",
        axes={"classifier": classifiers},
        **TABLE,
    )
