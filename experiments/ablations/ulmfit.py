"""ULMFiT's three stages: a language model, its adaptation to a task's text, and the classifier."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertlab.transfer.recipes import SLANTED_ADAM
from common import Setting, Study, table, under
from scales import SMALL_ROWS

# Howard and Ruder 2018, section 4.1, on WikiText-103: 103 M words are 23,000 steps. Printed are
# dropouts, batch, and Adam with its β; rate and schedule are those of the second stage, and ten
# passes and fastai's 60,000 words are our choice.
PAPER: Mapping[str, Any] = {
    **under("train", steps=230_000, eval_every=23_000),
    "data.batch_size": 64,
    **under("data.tokenizer", kind="words", vocab_size=60_000),
    **under("model", dropout=0.4, hidden_dropout=0.3, input_dropout=0.4),
    **under("model", embedding_dropout=0.05, weight_dropout=0.5),
    **SLANTED_ADAM,
    **under("optimizer", name="adam", learning_rate=0.004, average_after=0),
}
NO_DROPOUT = dict.fromkeys([key for key in PAPER if key.endswith("dropout")], 0.0)
# The classifier's settings; 280 positions or more and 64 texts are too many for a CPU.
CLASSIFIER: Mapping[str, Mapping[str, Any]] = {
    "tiny": {**SMALL_ROWS, "data.batch_size": 16, "head.chunk": 32, "train.steps": 400},
    "mini": {**SMALL_ROWS, "data.batch_size": 32, "head.chunk": 32, "train.steps": 1000},
    "small": {"transfer.epochs": 10.0},
    "base": {"transfer.epochs": 10.0},
    "paper": {"recipe": "ulmfit_paper"},
}
# Passes of the adaptation over the text: the paper selects by `valid`, the released script has 25.
READINGS = {"tiny": 2.0, "mini": 5.0, "small": 10.0, "base": 10.0, "paper": 25.0}


def read(arguments: str | None) -> Setting:
    """A study's arguments, with the paper's values and texts to classify."""
    return Setting(arguments, paper=PAPER, tasks="package")


def study(setting: Setting, **fields: Any) -> Study:
    """A study of texts to classify by one AWD-LSTM; `fields` may have other overrides."""
    own = {"config": setting.recipe("awd_lstm"), "overrides": stages(setting)}
    own["downstream"] = setting.downstream(("classification",), long_rows=0)
    return setting.study(**own | fields)


def published(
    number: int, rows: Mapping[str, Sequence], *findings: tuple[str, str]
) -> dict[str, Any]:
    """A table of Howard and Ruder 2018, with pairs (better, worse) of its rows, on the tasks with
    the least and the most text."""
    source = f"Howard and Ruder 2018, table {number} (validation error, %)"
    pairs = [(*pair, "TREC-6|IMDb") for pair in findings]
    return table(source, "IMDb|TREC-6|AG", rows, *pairs, note="Errors: lower is better.")


def stages(setting: Setting, steps: int = 0) -> dict[str, Any]:
    """Overrides of the three stages for recipe awd_lstm; `setting.task_steps` applies to both later
    stages, and `steps` to the classifier at scales that count epochs."""
    later = {**adaptation(setting), **classifier(setting, steps)}
    return {**setting.pretraining, **prose(setting), **later}


def prose(setting: Setting) -> dict[str, str]:
    """Overrides for text of sentences, not of published tokens as AWD-LSTM's own, whose size the
    larger scales have."""
    tokens = setting.size("awd_lstm") == "original"
    return {"data.tokenizer.split": "punctuation", "data.stream.wrap": "document"} if tokens else {}


def adaptation(setting: Setting) -> dict[str, Any]:
    """Overrides of the second stage."""
    settings = {"recipe": "ulmfit", "epochs": READINGS[setting.scale], **_cut(setting.task_steps)}
    settings |= {"train.steps": setting.task_steps} if setting.task_steps else {}
    return under("adapt", settings)


def classifier(setting: Setting, steps: int = 0) -> dict[str, Any]:
    """Overrides of the third stage; `steps` as for `stages`."""
    own_steps = _classifier_steps(setting, steps)
    settings = {"recipe": "ulmfit", **CLASSIFIER[setting.scale], "train.steps": own_steps}
    settings |= {"optimizer.warmup_steps": 0, **_cut(own_steps)}
    return under("finetune", settings) | thawing(setting, "gradual", steps=steps)


def thawing(setting: Setting, kind: str, stage: str = "finetune", steps: int = 0) -> dict[str, Any]:
    """Overrides of `optimizer.thaw` for the classifier (`steps` as for `stages`) or the language
    model ("adapt"). A stage lasts a tenth of the steps, or one epoch if the scale counts epochs."""
    steps = _classifier_steps(setting, steps) if stage == "finetune" else setting.task_steps
    length, groups = max(1, steps // 10), {"gradual": 1, "chain": 2}.get(kind)
    found = {"thaw": kind, "thaw_steps": 0, "thaw_stages": 0}
    if groups and steps:
        most = setting.numbers("awd_lstm")["layers"] + groups
        found |= {"thaw_steps": length, "thaw_stages": min(most, (steps - 1) // length)}
    # A slanted triangle needs at least ten steps.
    restarts = stage == "finetune" and kind == "gradual" and (not steps or length >= 10)
    return under(f"{stage}.optimizer", found, thaw_restarts=restarts)


def _classifier_steps(setting: Setting, steps: int) -> int:
    return setting.task_steps or CLASSIFIER[setting.scale].get("train.steps", steps)


def _cut(steps: int) -> dict[str, float]:
    """The slanted triangle's share of rising steps: ULMFiT's tenth, but at least one step."""
    return {"optimizer.cut_fraction": max(0.1, 1 / (steps or 10))}
