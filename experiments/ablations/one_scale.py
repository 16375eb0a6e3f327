"""Every objective on the same text, compared by code length.

Left-to-right models give a code length, and every model that predicts hidden tokens an upper bound
of one, a mean over orders (Uria et al. 2014), so bits per byte of held-out sentences rank
objectives that ask for different things. All transformers share body, rows and steps. ELMo and
AWD-LSTM are widened to the transformer's parameters, and keep their own optimiser. ELECTRA is
scored by its generator, which is smaller. `pairs=BLIMP.jsonl.xz` adds minimal pairs. Select the
rates (`select=1/3+1` is cheap): at 6e-3 diffusion still predicts words by their frequencies after
2,000 steps on Wikipedia (`results/one_scale_tiny_wikipedia`), as do two of ELECTRA's generators.
"""

import systems
import ulmfit
from bertlab.studies.equal import parameters, sized
from common import LAST_PIECE, SAME_ROWS, Setting

MASKED = {
    "MLM 15%": ("mlm", {"objectives.mlm.rate": 0.15}),
    "MLM 30%": ("mlm", {"objectives.mlm.rate": 0.3}),
    "diffusion": ("diffusion", {}),
    "ELECTRA": ("electra", {}),
    "masked next token": ("masked_next_token", {}),
    "permutation": ("permutation", {}),
}
LSTMS = {"ELMo": "elmo", "AWD-LSTM": "awd_lstm"}


def get_study(arguments=None):
    setting = Setting(arguments, paper=SAME_ROWS, tasks="", pairs="")
    body = {"data.format": "full_sentences", **setting.adam, **setting.transformer}

    def on_body(objective, more):
        return setting.recipe("bert", objectives=objective), {**body, **more}

    found = {
        "left to right": on_body("ltr", {"model.direction": "left-to-right"}),
        "prefix": on_body("prefix", {}),
        **{name: on_body(*values) for name, values in MASKED.items()},
    }
    pieces = systems.UNIGRAM | setting.pretraining
    recipe, own = found["left to right"]
    target = parameters(recipe, {**pieces, **own})
    for name, family in LSTMS.items():
        recipe = setting.recipe(family)
        own = setting.adam if family == "elmo" else ulmfit.prose(setting)
        size, start = systems.widths(family, setting)
        found[name] = recipe, own | sized(recipe, {**pieces, **own}, size, target, start)
    variants = {name: {"config": recipe, **pieces, **own} for name, (recipe, own) in found.items()}
    pairs = setting.arguments["pairs"]
    scored = {"evaluate.minimal_pairs": pairs} if pairs else {}
    return setting.study(
        title="All objectives by code length",
        question="How many bits does each objective need for the same text?",
        config=setting.recipe("bert", objectives="ltr"),
        axes={"objective": variants},
        overrides={**setting.finetune, **LAST_PIECE, **scored},
    )
