"""BabyLM's zero-shot tasks in .jsonl files: which of several texts a model finds most likely.

Folders and fields are those of babylm/evaluation-pipeline-2025. A back end of the pipeline is a
kind of score here: `causal` is "left-to-right", `mlm` and `mntp` are "pseudo". Only a completion's
pieces are scored, given the rest of its text.

    task                        fields                                    score
    blimp, blimp_supplement     sentence_good, sentence_bad; UID          accuracy over paradigms
    ewok                        Context1, Target1, Target2, Domain        the same, over domains
    entity_tracking             input_prefix, options (the first is       over files of means over
                                right), numops                            numops
    comps                       prefix_acceptable, prefix_unacceptable,   over files
                                property_phrase
    wug_adj, wug_past           sentences (two, a tab between), ratio     Spearman's ρ of the ratio
                                                                          and log p's difference

Where this differs from the pipeline:

- Equal answers, up to rounding: k best ones count 1/k each. The pipeline takes the first, which is
  the right one. The scores include the number of `ties`.
- wug: the pipeline's softmax saturates in float32, which creates additional ties.
- A text that is longer than the model's positions loses the beginning of its context (`cut`).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertlab.contrib.zero_shot import ending
from bertlab.data.corpora.text import read_lines
from bertlab.errors import UserError
from bertlab.evals.code_length import Scorer
from bertlab.evals.evaluate import ROUNDING
from bertlab.transfer.scorers import spearman


class Item(NamedTuple):
    """One question.

    Attributes:
        texts: The answers with their contexts; the first is right.
        starts: The character at which each answer begins.
        paradigm: What it is averaged with.
        ratio: Share of people who chose the first; NaN for other tasks.
    """

    texts: tuple[str, ...]
    starts: tuple[int, ...]
    paradigm: str
    ratio: float = math.nan


def _pair(record: Mapping, file: str) -> Item:
    # The supplement's records have no linguistics field, and its files are the paradigms.
    paradigm = record["UID"] if "field" in record else file
    return Item((record["sentence_good"], record["sentence_bad"]), (0, 0), paradigm)


def _ewok(record: Mapping, _: str) -> Item:
    context = record["Context1"]
    texts = tuple(f"{context} {record[target]}" for target in ("Target1", "Target2"))
    return Item(texts, (len(context),) * 2, record["Domain"])


def _entity_tracking(record: Mapping, file: str) -> Item:
    context = record["input_prefix"]
    texts = tuple(context + option for option in record["options"])
    return Item(texts, (len(context),) * len(texts), f"{file}_{record['numops']}_ops")


def _comps(record: Mapping, file: str) -> Item:
    contexts = [record[f"prefix_{judged}"] + " " for judged in ("acceptable", "unacceptable")]
    texts = tuple(context + record["property_phrase"] for context in contexts)
    return Item(texts, tuple(map(len, contexts)), file.removeprefix("comps_"))


def _wug(record: Mapping, file: str) -> Item:
    first, second = record["sentences"].split("\t")
    return Item((first, second), (0, 0), file, float(record["ratio"]))


def accuracy(items: Sequence[Item], values: Sequence[np.ndarray], by_file=False) -> dict[str, Any]:
    """The mean over paradigms (for entity tracking over files, then numbers of operations).

    Args:
        items: Questions.
        values: log p of each answer of each item.
        by_file: A paradigm is FILE_N_ops, and files have equal weight.

    Returns:
        `score`, `ties` and `standard_error`, over items within paradigms: None where a paradigm has
        one item, or all items are alike.
    """
    groups: dict[str, dict[str, list[float]]] = {}
    best = [np.max(answers) - answers < ROUNDING for answers in values]
    for item, tied in zip(items, best, strict=True):
        file = item.paradigm.rsplit("_", 2)[0] if by_file else ""
        credit = float(tied[0]) / int(tied.sum())
        groups.setdefault(file, {}).setdefault(item.paradigm, []).append(credit)
    score, variance, known = 0.0, 0.0, True
    for paradigms in groups.values():
        weight = 1 / len(groups) / len(paradigms)
        for credits in paradigms.values():
            score += weight * float(np.mean(credits))
            known &= len(credits) > 1
            variance += weight**2 * float(np.var(credits, ddof=1)) / len(credits) if known else 0
    ties = sum(int(tied.sum() > 1) for tied in best)
    error = math.sqrt(variance) if known and variance else None
    return {"score": score, "standard_error": error, "ties": ties}


def accuracy_by_file(items: Sequence[Item], values: Sequence[np.ndarray]) -> dict[str, Any]:
    """The accuracy for entity tracking."""
    return accuracy(items, values, by_file=True)


def preference(items: Sequence[Item], values: Sequence[np.ndarray]) -> dict[str, Any]:
    """Correlation with people's choices."""
    differences = [first - second for first, second in values]
    return {"score": float(spearman([item.ratio for item in items], differences))}


class Suite(NamedTuple):
    """A task: its folders (full and fast evaluation), what a record asks, and the score."""

    folders: tuple[str, ...]
    item: Callable[[Mapping, str], Item]
    judge: Callable[[Sequence[Item], Sequence[np.ndarray]], dict[str, Any]]


SUITES = {
    "blimp": Suite(("blimp_filtered", "blimp_fast"), _pair, accuracy),
    "blimp_supplement": Suite(("supplement_filtered", "supplement_fast"), _pair, accuracy),
    "ewok": Suite(("ewok_filtered", "ewok_fast"), _ewok, accuracy),
    "entity_tracking": Suite(
        ("entity_tracking", "entity_tracking_fast"), _entity_tracking, accuracy_by_file
    ),
    "comps": Suite(("comps",), _comps, accuracy),
    "wug_adj": Suite(("wug_adj_nominalization",), _wug, preference),
    "wug_past": Suite(("wug_past_tense",), _wug, preference),
}


def read_items(data: Path, suite: Suite, limit: int = 0) -> list[Item]:
    """A task's items, at most `limit` (0: all) of each paradigm; [] if it has no folder.

    Raises:
        UserError: A line is not a record of the task.
    """
    folder = next((data / name for name in suite.folders if (data / name).is_dir()), None)
    items, taken = [], {}
    for path in sorted(folder.glob("*.jsonl")) if folder else ():
        for number, line in read_lines(path):
            if not line.strip():
                continue
            try:
                item = suite.item(json.loads(line), path.stem)
                if not all(isinstance(text, str) and text for text in item.texts):
                    raise TypeError("a text is empty or not a string")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                message = f"{path}:{number}: not a record of BabyLM's {folder.name} ({error})"
                raise UserError(message) from None
            taken[item.paradigm] = taken.get(item.paradigm, 0) + 1
            if not limit or taken[item.paradigm] <= limit:
                items.append(item)
    return items


def answer_scores(scorer: Scorer, items: Sequence[Item], kind: str) -> tuple[list[np.ndarray], int]:
    """(log p of each answer of each item given its context, number of texts that were cut)."""
    asked = [
        ending(text, start, scorer.model)
        for item in items
        for text, start in zip(item.texts, item.starts)
    ]
    texts, cut = [text for text, _ in asked], sum(lost > 0 for _, lost in asked)
    values = scorer.score(texts, kind, special=False).log_probability
    return np.split(values, np.cumsum([len(item.texts) for item in items])[:-1]), cut
