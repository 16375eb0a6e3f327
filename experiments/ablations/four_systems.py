"""BERT, GPT, ELMo, ULMFiT and static vectors on the same text, each used as its paper uses it.

BERT (Devlin et al. 2019) is fine-tuned through the pooler of [CLS], GPT (Radford et al. 2018) with
the language model beside the task and between delimiters; ELMo (Peters et al. 2018) is frozen, a
mix of all layers below a biLSTM of two layers, and so are static vectors (`static=skip_gram`,
`cbow`, `glove`); ULMFiT's AWD-LSTM (Howard and Ruder 2018) is adapted to the task's text, with
gradual unfreezing, slanted triangle and rates by layer. BERT's, GPT's and ELMo's bodies from random
values are three more rows. All share pieces, rows and budget of text; format, optimiser and
schedule are each recipe's. `equal=` sets what else is equal: `tokens` (each model has its own size
and reads as many tokens, without padding, as BERT has positions), `steps` (of as many positions,
padding included), `parameters` (as many tokens, and BERT's number of parameters within 2 %), or
`flops` (of pretraining, on full rows; static vectors, which would read the text often, keep the
tokens). With `factors=1+3` each system's fine-tuning rate, of which `valid` selects one, is its
own, or that many times it.
"""

import systems
from bertlab.studies.equal import cost, parameters, sized
from common import LAST_PIECE, SAME_ROWS, Setting, axis, product, table

EQUAL = ("tokens", "steps", "parameters", "flops")
# BERT keeps its size.
WIDENED = {"GPT": "gpt", "ELMo": "elmo", "ULMFiT": "awd_lstm", "static": "static"}
TABLE = table(
    systems.SOURCE,
    "MNLI-m|QQP|QNLI|SST-2|CoLA|STS-B|MRPC|RTE|Average|NER F1",
    {
        "BERT": (84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6, 92.4),
        "GPT": (82.1, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1, None),
        "ELMo": (76.4, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0, 92.2),
    },
    note="BERT-Base; on GLUE, ELMo below a biLSTM with attention. ULMFiT's paper has other tasks"
    " (IMDb, TREC-6, AG News), so it is not among these rows.",
)


def match(found, equal, setting):
    """Makes the systems' pretrainings equal to BERT's in size and budget."""

    def counted(count, name):
        overrides = systems.pretraining(found[name])
        return count(overrides.pop("config"), overrides)

    target = counted(parameters, "BERT") if equal == "parameters" else None
    for name, family in WIDENED.items():
        if target:
            overrides = systems.pretraining(found[name])
            size, start = systems.widths(family, setting)
            found[name] |= sized(overrides.pop("config"), overrides, size, target, start)
        in_flops = equal == "flops" and name != "static"
        amount, own = (counted(cost, system)[in_flops] for system in ("BERT", name))
        steps = max(1, round(found[name]["train.steps"] * amount / own))
        found[name]["train.steps"] = steps
        found[name] |= {} if in_flops else {"train.tokens": round(amount)}


def get_study(arguments=None):
    setting = Setting(arguments, paper=SAME_ROWS, equal=EQUAL, static=systems.STATIC, factors="")
    equal, found = setting.arguments["equal"], systems.as_used(setting)
    if setting.scale == "tiny":  # the best of three in bert_table5; the others keep their own
        found["BERT"]["optimizer.learning_rate"] = 2e-3
    if equal != "steps":
        match(found, equal, setting)
    return setting.study(
        title="BERT, GPT, ELMo, ULMFiT and static vectors",
        question=f"What does each system give, used as its paper uses it, at equal {equal}?",
        config=setting.recipe("bert"),
        axes=product(axis("system", systems.with_random(found)), setting.rate_factors()),
        overrides=LAST_PIECE,
        **TABLE,
        claims=systems.CLAIMS,
        contrasts=systems.CONTRASTS,
    )
