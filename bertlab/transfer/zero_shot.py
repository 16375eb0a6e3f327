"""Answers a task without training, by a language model's own likelihood (Radford et al. 2018, section 5, figure 2 right).

`config.transfer.zero_shot=True` (recipe `zero_shot`) does this in place of a fine-tuning. All scores are left to right, of the
tokens named here given those before them; a text that is too long loses its beginning.

    threshold   whether the mean log p of a text's tokens (of a pair: the second text's) is above a threshold: CoLA, and other
                tasks of two classes
    choices     the choice with the highest mean log p. Words that all choices begin with count as given: RACE's question
    words       "very" follows the text; which of "negative" and "positive" has the higher log p then: SST-2
    nouns       DPRD: which of two nouns in the pronoun's place gives what follows the higher mean log p
    readings    WSC: whether the mean log p of what follows the pronoun is higher with the noun in the pronoun's place

The threshold, and which class lies above it, are those with the best score on `valid`; how the paper chose its threshold is not
verified. WSC's examples name one noun where the paper's schemas (DPRD) name two, so the other reading there has the pronoun
itself.

The metric `relative` is the task's first metric on a scale from random guesses (0) to the best single model of the time (1), as
in figure 2. `BEST` are the best of tables 3 and 4, GPT's own included; which the figure has is not verified. For tasks without
such a value 1 stands for no error.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from bertlab.config import is_finetuning
from bertlab.data.text_rows import RowEncoder
from bertlab.errors import UserError
from bertlab.objectives import build
from bertlab.run import Run
from bertlab.train import sources
from bertlab.train.environment import describe_environment
from bertlab.train.phases import weights_of
from bertlab.train.processes import is_first
from bertlab.transfer.completions import completion
from bertlab.transfer.cut import counted
from bertlab.transfer.examples import Example
from bertlab.transfer.likelihood import kinds_of
from bertlab.transfer.load import Pretrained, load
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.scoring import Scoring
from bertlab.transfer.tasks import Task, TaskData
from bertlab.transfer.tasks.base import classes_of, unseen_tags

KIND = "left-to-right"

BEST = {"sst2": 0.932, "cola": 0.454, "race": 0.59}

SENTIMENTS = ("negative", "positive")
"""The words for SST-2's classes 0 and 1."""

_QUANTILES = 101  # of the values on `valid`, which may be the threshold

_NOUN, _PRONOUN = re.compile(r"\* (.+?) \*"), re.compile(r"# (.+?) #")  # as the reader of WSC marks them


class Heuristic(NamedTuple):
    """How examples are answered.

    Attributes:
        asks: an example -> (text, character at which the part begins that is scored), one for each class, or one in all.
        mean: values are means over tokens, not sums.
        by_threshold: there is one value, and a threshold between the two classes.
    """

    asks: Callable[[Example], list[tuple[str, int]]]
    mean: bool = True
    by_threshold: bool = False


def likely(example: Example) -> list[tuple[str, int]]:
    """The text, or the second of a pair."""
    return [(" ".join(example.texts), len(" ".join(example.texts[:-1])))]


def choices(example: Example) -> list[tuple[str, int]]:
    """Each choice after the text, from the first word in which choices differ."""
    (text,) = example.texts
    words = [choice.split(" ") for choice in example.choices]
    same = sum(1 for _ in itertools.takewhile(lambda of: len({*of}) == 1, zip(*words)))
    same = " ".join(words[0][: min(same, min(map(len, words)) - 1)])
    return [(f"{text} {choice}", len(text) + 1 + len(same)) for choice in example.choices]


def sentiments(example: Example) -> list[tuple[str, int]]:
    """Each sentiment after the text and "very"."""
    begin = f"{example.texts[0]} very"
    return [(f"{begin} {word}", len(begin)) for word in SENTIMENTS]


def nouns(example: Example) -> list[tuple[str, int]]:
    """What follows the noun that each choice begins with, after it."""
    (text,) = example.texts
    return [
        (f"{text} {choice}", len(text) + 1 + end) for choice, (_, end) in zip(example.choices, example.targets, strict=True)
    ]


def readings(example: Example) -> list[tuple[str, int]]:
    """What follows the pronoun, after the pronoun itself and after the noun."""
    (text,) = example.texts
    noun, pronoun = _NOUN.search(text), _PRONOUN.search(text)
    if not noun or not pronoun:
        raise UserError(f"{example.where}: no * noun * and # pronoun # are marked; zero_shot needs both")
    before, after = (_NOUN.sub(r"\1", part) for part in (text[: pronoun.start()], text[pronoun.end() :]))
    return [(before + word + after, len(before + word)) for word in (pronoun[1], noun[1])]


THRESHOLD, CHOICES = Heuristic(likely, by_threshold=True), Heuristic(choices)

OF_TASKS = {"sst2": Heuristic(sentiments, mean=False), "wsc": Heuristic(readings), "dprd": Heuristic(nouns)}
"""By a task's name; others have CHOICES or THRESHOLD."""


def heuristic_of(task: Task, data: TaskData) -> Heuristic:
    """How a task is answered.

    Raises:
        UserError: it has neither choices nor two classes.
    """
    if task.name in OF_TASKS:
        return OF_TASKS[task.name]
    example = data.examples["train"][0]
    if example.choices and not data.labels:
        return CHOICES
    if len(data.labels) != 2 or example.words or example.choices:
        raise UserError(
            f"config.transfer.zero_shot=True answers tasks of two classes or of choices, and '{task.name}' is neither; set it"
            " to False"
        )
    return THRESHOLD


def check_zero_shot(config: ConfigDict, tasks: Mapping[str, tuple[Task, TaskData]], pretrained: Mapping[str, Any]) -> None:
    """Refuses what cannot be answered, before the pretrained run exists.

    Args:
        config, tasks: from `bertlab.transfer.finetune.sized`.
        pretrained: the run's config.

    Raises:
        UserError: there are several tasks or one without a heuristic, or the model does not predict from left to right.
    """
    if len(tasks) > 1 or config.transfer.random:
        raise UserError("config.transfer.zero_shot=True asks a pretrained model one task; omit other tasks and transfer.random")
    for task, data in tasks.values():
        heuristic_of(task, data)
    entries = {} if is_finetuning(pretrained) else pretrained.get("objectives", {})
    objectives = build(ConfigDict(entries)) if entries else {}
    trained = {name: objective for name, objective in objectives.items() if any(weights_of(ConfigDict(entries[name])))}
    if KIND not in kinds_of(trained):
        raise UserError(
            "config.transfer.zero_shot=True needs a model that predicts tokens from left to right; this one was trained with"
            f" {', '.join(trained) or 'no objective of its own'}; pretrain with ltr"
        )


def zero_shot(config: ConfigDict, tasks: Mapping[str, tuple[Task, TaskData]], workdir: Path) -> dict:
    """Answers a task's valid and test examples, and writes what a fine-tuning writes but for checkpoints.

    All processes of a run call it and share the examples; the first writes.

    Args:
        config, tasks: from `bertlab.transfer.finetune.resolved`.
        workdir: the run directory.

    Returns:
        The result, as in result.json.

    Raises:
        UserError: from `check_zero_shot`, or the run has no such checkpoint.
    """
    source, directory = Path(config.init_from).expanduser(), Run(workdir)
    check_zero_shot(config, tasks, Run(source).config.read())
    Run(source).require_step(config.init_step)
    if is_first():
        directory.begin(config.to_dict())
        directory.environment.write(describe_environment(config))
        directory.classes.write(classes_of(tasks))
        known = directory.described()
    [(name, (task, data))] = tasks.items()
    model, read = sources.read_start(config, lambda step: load(source, step, together=True))
    heuristic, splits = heuristic_of(task, data), ("valid", "test")
    found = {split: values_of(model, heuristic, data.examples[split]) for split in splits}
    values = {split: of for split, (of, _) in found.items()}
    if heuristic.by_threshold:
        labels = [example.label for example in data.examples["valid"]]
        side, threshold = separating(values["valid"][:, 0], labels, METRICS[task.metrics[0]])
        values = {split: np.pad(side * (of - threshold), ((0, 0), (1, 0))) for split, of in values.items()}
    scoring, metrics = Scoring(config.transfer, workdir if is_first() else None), {}
    for split, of in values.items():
        scoring.expect(split, name, task, data, len(of), None)
        metrics[split] = scoring(split, [{name: {"logits": of}}])
        if (score := metrics[split].get(f"{name}/{task.metrics[0]}")) is not None:
            metrics[split][f"{name}/relative"] = relative(score, task, values["valid"].shape[1])
    result = {
        "step": 0,
        "sources": {**sources.of_start(config), **read, **sources.of_tasks(tasks)},
        "metrics": metrics,
        "cut": {split: {name: cut} for split, (_, cut) in found.items()},
        "unseen_tags": unseen_tags(tasks),
    }
    if is_first():
        directory.finish(result, known)
    return result


def values_of(
    model: Pretrained, heuristic: Heuristic, examples: Sequence[Example]
) -> tuple[Float[np.ndarray, "N k"], dict[str, int]]:
    """The value of each reading of each example, 0 if nothing is left to be scored; and how much was cut."""
    encoder = RowEncoder(model.tokenizer, model.config.model.token_encoder == "characters")
    asked = [heuristic.asks(example) for example in examples]
    if odd := next((example for example, of in zip(examples, asked) if len(of) != len(asked[0])), None):
        raise UserError(f"{odd.where}: {len(odd.choices)} choices, where others have {len(asked[0])}; give all the same number")
    made = [[completion(text, start, model, encoder) for text, start in of] for of in asked]
    rows = [row for of in made for row, _ in of]
    scores = model.scorer.score(rows, model.check_kind(KIND), closing=False)
    values = [score.log_probability / (max(score.tokens, 1) if heuristic.mean else 1) for score in scores]
    special = len(model.tokenizer.prefix_ids) + len(model.tokenizer.suffix_ids)
    lost = [(sum(cut for _, cut in of), sum(len(row.tokens) - special + cut for row, cut in of)) for of in made]
    return np.array(values).reshape(len(examples), -1), counted({"pieces": of} for of in lost)


def separating(
    values: Float[np.ndarray, "N"], labels: Sequence[int], metric: Callable[[Sequence, Sequence], float]
) -> tuple[float, float]:
    """(side, threshold): the answer is class 1 where side · (value − threshold) > 0, with the best score of all quantiles."""
    thresholds = np.quantile(values, np.linspace(0, 1, _QUANTILES))
    score = lambda side, threshold: metric(labels, (side * (values - threshold) > 0).astype(int).tolist())
    return max(itertools.product((1.0, -1.0), thresholds.tolist()), key=lambda of: score(*of))


def relative(score: float, task: Task, classes: int) -> float:
    """A score of the task's first metric between random guesses and the best single model."""
    guess = 0.0 if task.metrics[0] == "matthews" else 1 / classes
    return (score - guess) / (BEST.get(task.name, 1.0) - guess)
