"""A language model without fine-tuning: Radford et al. 2018, section 5, figure 2 (right).

The transformer and the LSTM of `gpt_table5.py` answer each task at the last checkpoints of a
logarithmic grid by the model's own likelihood (`bertlab/contrib/zero_shot.py` has the heuristics,
and what they lack). The paper's tasks: `tasks=sst2+cola+race+dprd,data=DIR` (`wsc` has other
schemas); all tasks of two classes or of choices work. Its curves are normalised between random
guesses and the best single model: in result.json the metric `relative`.
"""

import systems
from bertlab.train.hooks import kept_steps
from common import Setting, axis, chain, claims, papers, product, under

ZERO_SHOT = under("finetune", {"recipe": "small", "train.steps": 0, "transfer.epochs": 0.0})
ZERO_SHOT["finetune.transfer.answers"] = "bertlab.contrib.zero_shot:zero_shot"


def get_study(arguments=None):
    setting = Setting(arguments, paper=papers.GPT, tasks="next_sentence+sentence_order")
    config = setting.recipe("gpt")
    points = kept_steps("log", setting.steps(config))[-6:]
    lstm = systems.gpt_lstm(setting)
    models = {"GPT": {**setting.transformer, **ZERO_SHOT}, "LSTM": {**lstm, **ZERO_SHOT}}
    steps = {str(step): {"finetune.init_step": step} for step in points}
    last = f"GPT, {points[-1]}"
    findings = [(last, f"LSTM, {points[-1]}", "all four curves end higher, as read from the plot")]
    if len(points) > 1:
        findings += [(last, f"GPT, {points[0]}", "scores rise steadily with updates there")]
    return setting.study(
        title="GPT's zero-shot heuristics along pretraining",
        question="Does a language model learn to do tasks as it learns to predict text, and is"
        " the transformer better at it?",
        config=config,
        axes=chain(
            product(axis("model", models), axis("steps", steps)),
            axis("model", {"GPT fine-tuned": setting.transformer}),
        ),
        overrides={**setting.overrides, **systems.gpt_finetuning(setting)},
        claims=claims("Radford et al. 2018, figure 2 (right)", *findings),
        contrasts=[(f"GPT, {step}", f"LSTM, {step}") for step in points],
    )
