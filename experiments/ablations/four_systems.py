"""BERT, GPT, ELMo, ULMFiT and static vectors on the same text, each used as its paper uses it.

BERT (Devlin et al. 2019) is fine-tuned through the pooler of [CLS], GPT (Radford et al. 2018) with
the language model beside the task and between delimiters; ELMo (Peters et al. 2018) is frozen, a
mix of all layers below a biLSTM of two layers, and so are static vectors (`static=skip_gram`,
`cbow`, `glove`); ULMFiT's AWD-LSTM (Howard and Ruder 2018) is adapted to the task's text, with
gradual unfreezing, slanted triangle and rates by layer. BERT's and GPT's bodies from random values
are two more rows. All share pieces, rows and budget of text; format, optimiser and schedule are
each recipe's. BERT and GPT are fine-tuned at 5e-4 below scale base. `equal=` sets what else is
equal: `tokens` (each model has its own size and reads as many tokens, without padding, as BERT has
positions), `steps` (as many steps of as many positions, padding included), `parameters` (as many
tokens, and BERT's number of parameters within 2 %), or `flops` (as many pretraining FLOPs as BERT,
on full rows; static vectors keep the tokens, since with equal FLOPs they would read the text more
than a hundred times).
"""

import systems
from bertlab.studies.equal import flops, parameters, sized, tokens
from common import LAST_PIECE, SAME_ROWS, Setting, table

EQUAL = ("tokens", "steps", "parameters", "flops")
# BERT keeps its size.
WIDENED = {"GPT": "gpt", "ELMo": "elmo", "ULMFiT": "awd_lstm", "static": "static"}
TABLE = table(
    systems.SOURCE,
    "MNLI-m|QQP|QNLI|SST-2|CoLA|STS-B|MRPC|RTE|Average|NER F1",
    {
        "BERT": (84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6, 92.4),
        "GPT": (82.1, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1, None),
        "ELMo": (*[None] * 9, 92.2),
    },
    note="BERT-Base. ULMFiT's paper has other tasks (IMDb, TREC-6, AG News), so it is not among"
    " these rows.",
)


def pretrainings(setting, used):
    """System -> overrides of its pretraining, matched to BERT's by `equal`."""
    read = systems.pretrainings(used, dict.fromkeys(used, setting.pretraining))
    found = {name: (recipe, read[name]) for name, (recipe, _, _) in used.items()}
    equal, reference = setting.arguments["equal"], found["BERT"]
    if equal == "steps":
        return read
    if equal == "parameters":
        target = parameters(*reference)
        for name, family in WIDENED.items():
            (recipe, overrides), (size, start) = found[name], systems.widths(family, setting)
            found[name] = recipe, {**overrides, **sized(recipe, overrides, size, target, start)}
    for name, (recipe, overrides) in list(found.items())[1:]:  # BERT's are what all are matched to
        in_flops = equal == "flops" and name != "static"
        count = flops if in_flops else tokens
        amount = count(*reference)
        steps = max(1, round(overrides["train.steps"] * amount / count(recipe, overrides)))
        found[name] = recipe, {**overrides, "train.steps": steps}
        if not in_flops:
            found[name][1]["train.tokens"] = amount
    return {name: overrides for name, (_, overrides) in found.items()}


def get_study(arguments=None):
    setting = Setting(arguments, paper=SAME_ROWS, equal=EQUAL, static=systems.STATIC)
    used = systems.as_used(setting, setting.arguments["static"])
    return setting.study(
        title="BERT, GPT, ELMo, ULMFiT and static vectors",
        question="What does each system give, used as its paper uses it, at equal"
        f" {setting.arguments['equal']}?",
        config=setting.recipe("bert"),
        axes={"system": systems.variants(used, pretrainings(setting, used))},
        overrides=LAST_PIECE,
        **TABLE,
        claims=systems.CLAIMS,
    )
