"""What a language model can do without fine-tuning, along its pretraining: Radford et al. 2018,
section 5, figure 2 (right).

The transformer and the LSTM of `gpt_table5.py` keep checkpoints at the last points of a logarithmic
grid, and answer each task at each of them by the model's own likelihood
(`bertlab/contrib/zero_shot.py` has the heuristics, and what they lack). "GPT fine-tuned" is the
last transformer after fine-tuning: what there is to be reached.

The paper's tasks: `tasks=sst2+cola+race+dprd,data=DIR` (`wsc` has other schemas); all tasks of two
classes or of choices work. Its curves are normalised between random guesses and the best single
model; result.json has this as the metric `relative`.

Expect: scores rise steadily with the transformer's updates, and those of the LSTM vary more. At a
small scale and with little text, most are near chance.
"""

import gpt
from common import claims, read_setting

from bertlab.config import papers
from bertlab.studies.axes import axis, chain, product
from bertlab.train.hooks import kept_steps

SOURCE = "Radford et al. 2018, figure 2 (right)"


def get_study(arguments=None):
    setting = read_setting(arguments, paper=papers.GPT, tasks="next_sentence+sentence_order")
    config = setting.recipe("gpt")
    points = kept_steps("log", setting.steps(config))[-6:]
    zero_shot = {
        "finetune.recipe": "small",
        "finetune.transfer.answers": "bertlab.contrib.zero_shot:zero_shot",
        "finetune.train.steps": 0,
        "finetune.transfer.epochs": 0.0,
    }
    models = {
        "GPT": {**setting.transformer, **zero_shot},
        "LSTM": {**gpt.lstm(setting), **zero_shot},
    }
    last = f"GPT, {points[-1]}"
    findings = [(last, f"LSTM, {points[-1]}", "all four curves end higher, as read from the plot")]
    if len(points) > 1:
        findings += [(last, f"GPT, {points[0]}", "scores rise steadily with updates there")]
    return setting.study(
        name="gpt_zero_shot",
        title="GPT's zero-shot heuristics along pretraining",
        question="Does a language model learn to do tasks as it learns to predict text, and is"
        " the transformer better at it?",
        config=config,
        axes=chain(
            product(
                axis("model", models),
                axis("steps", {str(step): {"finetune.init_step": step} for step in points}),
            ),
            axis("model", {"GPT fine-tuned": setting.transformer}),
        ),
        overrides={**setting.overrides, **gpt.finetuning(setting)},
        claims=claims(SOURCE, *findings),
        contrasts=[(f"GPT, {step}", f"LSTM, {step}") for step in points],
    )
