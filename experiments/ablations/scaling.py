"""The loss of each objective by size and text: Hoffmann et al. 2022, arXiv 2203.15556.

    bertlab sweep --study=experiments/ablations/scaling.py --workdir=runs/scaling --jobs=2
    python -m bertlab.contrib.scaling runs/scaling

One body in four widths (half to twice the scale's, with heads of one width), each trained to the
end with a quarter, a half and all of the scale's steps. The second command fits E + A / N^α + B /
D^β for each objective of `objectives=`. Compare exponents, not losses; twelve runs give wide
intervals. The law is one of new text, and pydocs is read about a hundred times; give a larger
`corpus=`. With `select=off` μP carries the scale's rate over to the other widths.
"""

from common import Setting, under

WIDTHS = (0.5, 1.0, 1.5, 2.0)
SHARES = (0.25, 0.5, 1.0)


def get_study(arguments=None):
    setting = Setting(arguments, tasks="", seeds=1, objectives="mlm+ltr")
    names = setting.arguments["objectives"].split("+")
    recipes = {name: setting.recipe("bert", objectives=name) for name in names}
    bert, steps = setting.numbers("bert"), setting.steps(recipes[names[0]])
    sizes = {}
    for heads in (max(1, round(factor * bert["heads"])) for factor in WIDTHS):
        width = heads * (bert["width"] // bert["heads"])
        sizes[f"width {width}"] = under("model", width=width, heads=heads, hidden=4 * width)
    budgets, warmup = {}, setting.adam.get("optimizer.warmup_steps")
    for count in (max(1, round(share * steps)) for share in SHARES):
        shorter = {"optimizer.warmup_steps": round(warmup * count / steps)} if warmup else {}
        budgets[f"{count:,} steps"] = {"train.steps": count, **shorter}
    carried = {} if setting.rates else {"model.base_width": bert["width"]}
    return setting.study(
        title="Loss against size and text",
        question="How does the loss of each objective fall with parameters and tokens?",
        config=recipes[names[0]],
        axes={
            "objective": {name.upper(): {"config": recipe} for name, recipe in recipes.items()},
            "size": sizes,
            "budget": budgets,
        },
        overrides={**setting.on_transformer, **carried},
    )
