"""How best to adapt a language model to a task's text: Howard and Ruder 2018, section 5, table 6.

One pretraining per seed. The variants skip the second stage, or adapt the language model at a
constant rate, at rates that fall by a factor of 2.6 per layer ("discr"), or with the slanted
triangle as well ("stlr"). The classifier is always ULMFiT's. Stages, tasks and corpus are as in
`ulmfit_table4.py`. The text is read twice at scale=tiny (few texts in 20 steps), five times at
mini, ten times at small and base, and 25 times at paper, as in the released script (the paper
chooses by the validation set).

Expect: adapting the language model helps, most on large tasks. On the smallest, full fine-tuning
hurts unless it has both discr and stlr.
"""

import ulmfit
from common import table_claims

from bertlab.studies.study import Published

PUBLISHED = Published(
    source="Howard and Ruder 2018, table 6 (validation error, %)",
    columns=("IMDb", "TREC-6", "AG"),
    rows={
        "no LM fine-tuning": (6.99, 6.38, 6.09),
        "full": (5.86, 6.54, 5.61),
        "full + discr": (5.55, 6.36, 5.47),
        "full + discr + stlr": (5.00, 5.69, 5.38),
    },
    note="Errors: lower is better.",
)
CLAIMS = table_claims(
    PUBLISHED,
    ("full + discr + stlr", "no LM fine-tuning", ("TREC-6", "IMDb")),
    ("full + discr + stlr", "full", ("TREC-6", "IMDb")),
    ("full + discr", "full", ("TREC-6", "IMDb")),
)


def get_study(arguments=None):
    setting = ulmfit.read(arguments)
    ours = ulmfit.adaptation(setting)
    constant = ours | {"adapt.optimizer.decay": "constant"}
    return ulmfit.study(
        setting,
        name="ulmfit_table6",
        title="ULMFiT's fine-tuning of the language model",
        question="How should a language model be brought to a task's text, if at all?",
        axes={
            "LM fine-tuning": {
                "no LM fine-tuning": {},
                "full": constant | {"adapt.optimizer.layer_decay": 1.0},
                "full + discr": constant,
                "full + discr + stlr": ours,
            }
        },
        overrides={**setting.pretraining, **ulmfit.prose(setting), **ulmfit.classifier(setting)},
        published=PUBLISHED,
        claims=CLAIMS,
    )
