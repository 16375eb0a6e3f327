"""What may make a study's numbers mislead, judged from its files.

A check is a function of `Results` that yields findings. Limits are chosen so that runs that did
well stay silent.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd

from bertlab.studies import comparisons
from bertlab.studies.results import Results
from bertlab.transfer.cut import cut_lines

NEAR_GUESSING = 0.97  # of what guessing by token frequency costs
RISE, RISE_NATS = 0.02, 0.02  # of the last held-out loss above the lowest one: share and nats


class Finding(NamedTuple):
    """Something that may mislead.

    Attributes:
        kind: Name of the check, such as "plateau".
        text: What was found, as a sentence.
    """

    kind: str
    text: str


def examine(results: Results) -> list[Finding]:
    """All findings."""
    return [Finding(kind, text) for kind, check in CHECKS.items() for text in check(results)]


def unfinished(results: Results) -> Iterator[str]:
    """Runs without a result: failed, or still to be run."""
    names = [run["name"] for run in results.study["runs"] if not results.finished(run)]
    if names:
        total = len(results.study["runs"])
        yield f"{len(names)} of {total} runs have not finished: {_listing(names)}."


def plateau(results: Results) -> Iterator[str]:
    """Pretrainings whose held-out loss is that of guessing by frequency."""
    stuck: dict[str, list[str]] = {}
    for record in results.records:
        for objective, nats in record.get("guessing", {}).items():
            loss = record["scores"].get("valid", {}).get(f"{objective}/loss")
            if record["step"] and loss is not None and loss >= NEAR_GUESSING * nats:
                stuck.setdefault(objective, []).append(record["run"])
    for objective, names in stuck.items():
        yield (
            f"The held-out loss of {objective} is no better than guessing by token frequency in"
            f" {_listing(names)}: these models learned little else. Train them longer, or at"
            " another rate or initial deviation."
        )


def diverged(results: Results) -> Iterator[str]:
    """Pretrainings whose held-out loss ends above its lowest value."""
    rises = []
    for record in results.records:
        lines = [line for line in record["curve"] if line["split"] == "valid" and "loss" in line]
        losses = [line["loss"] for line in lines]
        if record["stage"] == "pretrain" and losses and not record["config"].get("train.phases"):
            if losses[-1] > max(RISE_NATS, RISE * min(losses)) + min(losses):
                rises.append(record["run"])
    if rises:
        yield (
            f"The held-out loss ends above its lowest value in {_listing(rises)}: the rate is too"
            " high, or the text was repeated too often."
        )


def edge_of_grid(results: Results) -> Iterator[str]:
    """Selected rates, and other selected numbers, with no candidate on one side."""
    edges = []
    for search in results.study.get("searches", ()):
        losses = {}
        for name, rate in search["candidates"].items():
            record = results.by_stage.get((name, "pretrain", ""), {})
            losses[rate] = record.get("scores", {}).get("valid", {}).get("loss", math.inf)
        rate = min(losses, key=lambda rate: (losses[rate], rate))
        if rate in (min(losses), max(losses)):
            edges.append(f"{search['variant']} ({rate:g})")
    if edges:
        yield f"The selected pretraining rate is the lowest or highest tried: {'; '.join(edges)}."
    measures = comparisons.measures(results)
    for axis in results.study["select"]:
        numbers = [label for label in results.study["axes"][axis] if _is_number(label)]
        frames = [comparisons.selected_scores(results, measure) for measure in measures]
        if len(numbers) < 2 or not frames:
            continue
        chosen = pd.concat(frames)[["variant", "task", axis]].drop_duplicates()
        low, high = min(numbers, key=float), max(numbers, key=float)
        counts = [int((chosen[axis] == edge).sum()) for edge in (low, high)]
        if any(counts):
            yield (
                f"Of {len(chosen)} selections of {axis}, {counts[0]} are the lowest value tried"
                f" ({low}) and {counts[1]} the highest ({high}); better ones may lie beyond."
            )


def cut(results: Results) -> Iterator[str]:
    """Texts and words that did not fit into rows."""
    texts: dict[str, list[str]] = {}
    for record in results.records:
        for line in cut_lines(record.get("cut", {})):
            texts.setdefault(line, []).append(record["run"])
    for line, names in texts.items():
        yield f"In {_listing(names)}: {line}."


def other_items(results: Results) -> Iterator[str]:
    """Variants that were scored on other test items than the rest: they are not compared."""
    for measure in comparisons.measures(results):
        for variant, reason in comparisons.incomparable(results, measure).items():
            yield f"{variant} is left out on {measure.task}: it was {reason}."


def other_data(results: Results) -> Iterator[str]:
    """Pretrainings with the same settings of data that read other batches."""
    groups: dict[str, dict[str, list[str]]] = {}
    for record in results.records:
        if record["stage"] == "pretrain" and record["step"] and record["data_hash"]:
            read = {k: v for k, v in record["config"].items() if k.startswith("data.")}
            key = json.dumps([read, record["step"]], sort_keys=True)
            groups.setdefault(key, {}).setdefault(record["data_hash"], []).append(record["run"])
    for hashes in groups.values():
        if len(hashes) > 1:
            groups_of_runs = " and ".join(_listing(names) for names in hashes.values())
            yield f"Runs with the same settings of data read different batches: {groups_of_runs}."


def seeds_only(results: Results) -> Iterator[str]:
    """Scores without the correctness of each example."""
    if results.study["tasks"] and not any(record["correct"] for record in results.records):
        yield "Intervals over seeds only: these results have no per-example correctness."


CHECKS: dict[str, Callable[[Results], Iterator[str]]] = {
    "unfinished": unfinished,
    "plateau": plateau,
    "diverged": diverged,
    "edge of the grid": edge_of_grid,
    "cut": cut,
    "other items": other_items,
    "data differ": other_data,
    "seeds only": seeds_only,
}


def _is_number(label: str) -> bool:
    return label.replace(".", "").replace("e-", "").isdecimal()


def _listing(names: list[str]) -> str:
    """Three names, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more
