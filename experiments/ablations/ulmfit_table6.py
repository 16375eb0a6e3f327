"""How best to adapt a language model to a task's text: Howard and Ruder 2018, section 5, table 6.

The variants skip the second stage, or adapt the language model at a constant rate, at rates that
fall by a factor of 2.6 per layer ("discr"), or with the slanted triangle as well ("stlr"). The
classifier is always ULMFiT's. Otherwise as `ulmfit_table4.py`.
"""

import ulmfit

TABLE = ulmfit.published(
    6,
    {
        "no LM fine-tuning": (6.99, 6.38, 6.09),
        "full": (5.86, 6.54, 5.61),
        "full + discr": (5.55, 6.36, 5.47),
        "full + discr + stlr": (5.00, 5.69, 5.38),
    },
    ("full + discr + stlr", "no LM fine-tuning"),
    ("full + discr + stlr", "full"),
    ("full + discr", "full"),
)


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    ours = ulmfit.adaptation(setting)
    constant = ours | {"adapt.optimizer.decay": "constant"}
    variants = {"no LM fine-tuning": {}, "full": constant | {"adapt.optimizer.layer_decay": 1.0}}
    variants |= {"full + discr": constant, "full + discr + stlr": ours}
    return ulmfit.study(
        setting,
        title="ULMFiT's fine-tuning of the language model",
        question="How should a language model be brought to a task's text, if at all?",
        axes={"LM fine-tuning": variants},
        overrides={**setting.pretraining, **ulmfit.prose(setting), **ulmfit.classifier(setting)},
        **TABLE,
    )
