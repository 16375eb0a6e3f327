"""Answers a task without training, by a language model's likelihood (Radford et al. 2018, section
5).

    bertlab finetune --run=RUN --task=sst2 --workdir=DIR \\
        --config.transfer.answers=bertlab.contrib.zero_shot:zero_shot

All scores are left to right, of the pieces named here given those before them; a text that is too
long loses its beginning.

    threshold   whether the mean log p of a text's pieces (of a pair: the second text's) is above a
                threshold: CoLA, and other tasks of two classes
    choices     the choice with the highest mean log p. Words that all choices begin with are
                given: RACE's question
    sentiments  "very" follows the text; which of "negative" and "positive" has the higher log p
                then: SST-2
    nouns       DPRD: which of two nouns in the pronoun's position gives what follows the higher
                mean log p
    readings    WSC: whether the mean log p of what follows the pronoun is higher with the noun in
                its position

The threshold, and the class above it, are those with the best score on `valid`; how the paper chose
its own is not verified. WSC's examples name one noun where the paper's schemas (DPRD) name two, so
the other reading has the pronoun itself.

The metric `relative` is the task's first metric on a scale from random guesses (0) to the best
single model of the time (1), as in figure 2. `BEST` are the best of tables 3 and 4, GPT's own
included; which of them the figure has is not verified. For tasks without one, 1 is no error.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.evals.code_length import Scorer
from bertlab.evals.questions import Text, encode_all
from bertlab.train.run_directory import RunDirectory, describe_environment
from bertlab.transfer.examples import Example, total_cut
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.load import Pretrained, load
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.scoring import Tasks, outcome, prediction_writer
from bertlab.transfer.tasks import Task, TaskData

BEST = {"sst2": 0.932, "cola": 0.454, "race": 0.59}

SENTIMENTS = ("negative", "positive")
"""The words for SST-2's classes 0 and 1."""

QUANTILES = 101
"""Values on `valid` that may be the threshold."""

NOUN, PRONOUN = re.compile(r"\* (.+?) \*"), re.compile(r"# (.+?) #")
"""How the WSC reader marks them."""


class Heuristic(NamedTuple):
    """How examples are answered.

    Attributes:
        readings: Example -> (text, character at which the scored part begins) of each class, or of
            one, which a threshold divides.
        mean: Whether values are means over pieces, not sums.
    """

    readings: Callable[[Example], list[tuple[str, int]]]
    mean: bool = True


def likely(example: Example) -> list[tuple[str, int]]:
    """The text, or the second one of a pair."""
    return [(" ".join(example.texts), len(" ".join(example.texts[:-1])))]


def choices(example: Example) -> list[tuple[str, int]]:
    """Each choice after the text, from the first word in which choices differ."""
    (text,) = example.texts
    words = [choice.split(" ") for choice in example.choices]
    same = sum(1 for _ in itertools.takewhile(lambda column: len({*column}) == 1, zip(*words)))
    given = " ".join(words[0][: min(same, min(map(len, words)) - 1)])
    return [(f"{text} {choice}", len(text) + 1 + len(given)) for choice in example.choices]


def sentiments(example: Example) -> list[tuple[str, int]]:
    """Each sentiment after the text and "very"."""
    start = f"{example.texts[0]} very"
    return [(f"{start} {word}", len(start)) for word in SENTIMENTS]


def nouns(example: Example) -> list[tuple[str, int]]:
    """What follows the noun with which each choice begins."""
    (text,) = example.texts
    pairs = zip(example.choices, example.targets, strict=True)
    return [(f"{text} {choice}", len(text) + 1 + end) for choice, (_, end) in pairs]


def readings(example: Example) -> list[tuple[str, int]]:
    """What follows the pronoun, after the pronoun and after the noun."""
    (text,) = example.texts
    noun, pronoun = NOUN.search(text), PRONOUN.search(text)
    if not noun or not pronoun:
        raise UserError(f"{example.where}: zero_shot needs a * noun * and a # pronoun #")
    before = NOUN.sub(r"\1", text[: pronoun.start()])
    after = NOUN.sub(r"\1", text[pronoun.end() :])
    return [(before + word + after, len(before + word)) for word in (pronoun[1], noun[1])]


THRESHOLD, CHOICES = Heuristic(likely), Heuristic(choices)

HEURISTICS = {
    "sst2": Heuristic(sentiments, mean=False),
    "wsc": Heuristic(readings),
    "dprd": Heuristic(nouns),
}
"""Heuristics by task name; others use CHOICES or THRESHOLD."""


def find_heuristic(task: Task, data: TaskData) -> Heuristic:
    """How a task is answered."""
    if task.name in HEURISTICS:
        return HEURISTICS[task.name]
    if task.kind == "choice":
        return CHOICES
    if task.kind != "classification" or len(data.labels) != 2:
        raise UserError(
            f"zero_shot answers tasks of two classes or of choices; '{task.name}' is neither"
        )
    return THRESHOLD


def zero_shot(config: ConfigDict, tasks: Tasks, workdir: Path) -> dict[str, Any]:
    """Answers a task's valid and test examples, and writes what a fine-tuning writes except
    checkpoints.
    """
    if len(tasks) > 1 or config.transfer.random:
        raise UserError(
            "zero_shot asks a pretrained model about one task; omit other tasks and"
            " config.transfer.random"
        )
    [(name, (task, data))] = tasks.items()
    heuristic, model = find_heuristic(task, data), load(config.init_from, config.init_step)
    directory, splits = RunDirectory(workdir), ("valid", "test")
    if (result := directory.read("result")) is not None:
        return result
    if jax.process_index() == 0:
        directory.write("config", config.to_dict())
        directory.write("environment", describe_environment())
        directory.write("data", {"data_hash": []})
    found = {split: likelihoods(model, heuristic, data.examples[split]) for split in splits}
    values = {split: value for split, (value, _) in found.items()}
    metric = task.metrics[0]
    if values["valid"].shape[1] == 1:
        labels = [example.label for example in data.examples["valid"]]
        side, threshold = separate(values["valid"][:, 0], labels, METRICS[metric])
        above = {split: side * (value - threshold) for split, value in values.items()}
        values = {s: np.concatenate([np.zeros_like(v), v], axis=1) for s, v in above.items()}
    write, metrics = prediction_writer(tasks, workdir), {}
    for split, value in values.items():
        outputs = [{"logits": row} for row in value]
        predict = find_kind(task.kind).predict
        lines = predict(data.examples[split], data.names, outputs, None)
        metrics[split] = write(split, {name: lines})
        if (score := metrics[split].get(f"{name}/{metric}")) is not None:
            metrics[split][f"{name}/relative"] = relative(score, task, value.shape[1])
    cut = {split: {name: lost} for split, (_, lost) in found.items()}
    result = {"step": 0, "metrics": metrics, "data_hash": [], **outcome(tasks, cut)}
    if jax.process_index() == 0:
        directory.write("result", result)
    return result


def likelihoods(
    model: Pretrained, heuristic: Heuristic, examples: Sequence[Example]
) -> tuple[Float[np.ndarray, "N k"], dict[str, int]]:
    """The value of each reading of each example, 0 if nothing of it is scored; what was cut."""
    texts, cuts, count = [], [], None
    for example in examples:
        found = [ending(text, start, model) for text, start in heuristic.readings(example)]
        count = count or len(found)
        if len(found) != count:
            raise UserError(f"{example.where}: {len(found)} choices, where others have {count}")
        texts += [text for text, _ in found]
        lost = sum(cut for _, cut in found)
        cuts.append({"pieces": (lost, lost + sum(len(text.tokens) for text, _ in found))})
    values, tokens = Scorer(model).score(texts, "left-to-right", special=False)
    if heuristic.mean:
        values = values / np.maximum(tokens, 1)
    return values.reshape(len(examples), -1), total_cut(cuts)


def ending(text: str, start: int, model: Pretrained) -> tuple[Text, int]:
    """A text whose pieces from the character `start` on are scored, and how many are cut."""
    (whole,) = encode_all(model, [text])
    first = pieces_before(text, start, model.tokenizer)
    kept = fitted(whole._replace(pieces=whole.pieces[first:]), model)
    return kept, len(whole.tokens) - len(kept.tokens)


def fitted(text: Text, model: Pretrained) -> Text:
    """The text without its first pieces, if it has more than the model has positions; special
    tokens stay."""
    excess, begin = max(0, len(text.tokens) - model.longest), len(model.tokenizer.prefix_ids)
    kept = np.delete(np.arange(len(text.tokens)), slice(begin, begin + excess))
    return text._replace(
        tokens=text.tokens[kept],
        pieces=text.pieces[text.pieces >= begin + excess] - excess,
        characters=None if text.characters is None else text.characters[kept],
    )


def pieces_before(text: str, start: int, tokenizer) -> int:
    """How many pieces end before the character `start`, which begins a word or its space."""
    if not start:
        return 0
    own, context = tokenizer.encode(text), tokenizer.encode(text[:start])
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, context))
    same = sum(1 for _ in pairs)
    # SentencePiece may give a space a piece of its own, and drops it at the end of a context.
    adds = tokenizer.decode(own[: same + 1])[len(tokenizer.decode(own[:same])) :]
    return same + (adds.isspace() and text[start - 1].isspace())


def separate(
    values: Float[np.ndarray, "N"], labels: Sequence[int], metric: Callable
) -> tuple[float, float]:
    """(side, threshold) with the best score of all quantiles: the answer is class 1 where
    side * (value - threshold) > 0."""
    thresholds = np.quantile(values, np.linspace(0, 1, QUANTILES)).tolist()

    def score(pair):
        side, threshold = pair
        return metric(labels, (side * (values - threshold) > 0).astype(int).tolist())

    return max(itertools.product((1.0, -1.0), thresholds), key=score)


def relative(score: float, task: Task, classes: int) -> float:
    """A score of the task's first metric between random guesses and the best single model."""
    guess = 0.0 if task.metrics[0] == "matthews" else 1 / classes
    return (score - guess) / (BEST.get(task.name, 1.0) - guess)
