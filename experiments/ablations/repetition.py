"""Little text read often: Muennighoff et al. 2023, Prabhudesai et al. 2025 (arXiv 2507.15857).

    bertlab sweep --study=experiments/ablations/repetition.py:readings=128+512 --workdir=runs/repeat

LTR, MLM and masked diffusion with one number of steps, on parts of the text (a smaller one is in
every larger one) that are read once and more often. One reading needs as much text as the steps
read, at scale=tiny 24.6 M tokens: pydocs has 1 % of that, so the command above has no baseline of
new text; give a larger `corpus=`. Compare bits per byte, and an objective's losses with each other.
"""

from bertlab.config import load_config
from common import LAST_PIECE, Setting, numbers_in

OBJECTIVES = {"LTR": "ltr", "MLM": "mlm", "diffusion": "diffusion"}


def get_study(arguments=None):
    setting = Setting(arguments, readings="1+4+16+64")
    readings = sorted(numbers_in("readings", setting.arguments["readings"]))
    recipes = {label: setting.recipe("bert", objectives=of) for label, of in OBJECTIVES.items()}
    config = load_config(recipes["MLM"], setting.pretraining)
    tokens = config.train.steps * config.data.batch_size * config.data.seq_len
    unique = {f"{count:g} readings": max(1, int(tokens // count)) for count in readings}
    return setting.study(
        title="Little text read often",
        question="What does it cost each objective to read less text more often?",
        config=recipes["MLM"],
        axes={
            "objective": {label: {"config": recipe} for label, recipe in recipes.items()},
            "text": {name: {"data.unique_tokens": count} for name, count in unique.items()},
        },
        overrides={**setting.on_transformer, **LAST_PIECE, "data.format": "full_sentences"},
    )
