"""What may make a study's numbers mislead, judged from its files.

A check is a function of `Results` that yields sentences. Limits are chosen so that runs that did
well stay silent.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator

import pandas as pd

from bertlab.studies import comparisons
from bertlab.studies.records import Results
from bertlab.studies.selection import Search
from bertlab.transfer.cut import cut_lines

NEAR_GUESSING = 0.97  # of what guessing by frequency costs
RISE, RISE_NATS = 0.02, 0.02  # of the last held-out loss above the lowest one: share and nats


def examine(results: Results) -> list[tuple[str, str]]:
    """(check, a sentence on what it found) of all checks."""
    names = {check.__name__.replace("_", " "): check for check in CHECKS}
    return [(name, text) for name, check in names.items() for text in check(results)]


def unfinished(results: Results) -> Iterator[str]:
    """Runs without a result."""
    names = [run.name for run in results.runs.values() if not results.finished(run)]
    failures = results.study.get("failures", {})
    failed = [f"{name} ({failures[name]})" for name in names if name in failures]
    others = [name for name in names if name not in failures]
    for listed, text in ((failed, "failed"), (others, "have not finished")):
        if listed:
            yield f"{len(listed)} of {len(results.runs)} runs {text}: {_listing(listed)}."


def plateau(results: Results) -> Iterator[str]:
    """Pretrainings whose held-out loss is that of guessing by frequency."""
    stuck = defaultdict(list)
    for record in results.records:
        for metric, nats in record.get("evaluation", {}).get("test", {}).items():
            objective = metric.removesuffix("/guessing")
            loss = record["scores"].get("valid", {}).get(f"{objective}/loss")
            if objective != metric and record["step"] and loss and loss >= NEAR_GUESSING * nats:
                stuck[objective].append(record["run"])
    for objective, names in stuck.items():
        yield (
            f"{objective} was not learned in {_listing(names)}: its held-out loss is no better than"
            " guessing by frequency."
        )


def diverged(results: Results) -> Iterator[str]:
    """Pretrainings whose held-out loss ends above its lowest value."""
    names = []
    for record in results.records:
        lines = [line for line in record["curve"] if line["split"] == "valid"]
        losses = [line["loss"] for line in lines if line.get("loss") is not None]
        if record["stage"] == "pretrain" and losses and not record["config"].get("train.phases"):
            if losses[-1] > min(losses) + max(RISE_NATS, RISE * min(losses)):
                names.append(record["run"])
    if names:
        yield f"The held-out loss ends above its lowest value in {_listing(names)}."


def edge_of_rates(results: Results) -> Iterator[str]:
    """Selected pretraining rates with no candidate on one side."""
    edges = []
    for search in [Search(**search) for search in results.study.get("searches", ())]:
        losses, rates = {}, list(search.candidates.values())
        for name in search.candidates:
            scores = results.by_stage.get((name, "pretrain", ""), {}).get("scores", {})
            losses[name] = scores.get("valid", {}).get("loss", math.inf)
        if (rate := search.selected(losses)) in (rates[0], rates[-1]):
            edges.append(f"{search.variant} ({rate:g})")
    if edges:
        yield f"The selected pretraining rate is the lowest or highest tried: {_listing(edges)}."


def edge_of_labels(results: Results) -> Iterator[str]:
    """Other selected numbers with no candidate on one side."""
    measures = comparisons.measures(results)
    frames = [comparisons.selected_scores(results, measure) for measure in measures]
    for axis in results.study["select"] if frames else ():
        labels = pd.Series(results.study["axes"][axis])
        numbers = labels[pd.to_numeric(labels, errors="coerce").sort_values().dropna().index]
        chosen = pd.concat(frames)[["variant", "task", axis]].drop_duplicates()[axis]
        if len(numbers) > 1 and chosen.isin(ends := numbers.iloc[[0, -1]]).any():
            low, high = ends
            yield (
                f"Of {len(chosen)} selections of {axis}, {(chosen == low).sum()} are the lowest"
                f" value tried ({low}) and {(chosen == high).sum()} the highest ({high}); better"
                " ones may lie beyond."
            )


def cut(results: Results) -> Iterator[str]:
    """Texts and words that did not fit into rows."""
    runs = defaultdict(list)
    for record in results.records:
        for line in cut_lines(record.get("cut", {})):
            runs[line].append(record["run"])
    yield from (f"In {_listing(names)}: {line}." for line, names in runs.items())


def other_items(results: Results) -> Iterator[str]:
    """Variants that were scored on other items than the rest."""
    for measure in comparisons.measures(results):
        for variant, reason in comparisons.incomparable(results, measure).items():
            yield f"{variant} is not compared on {measure.task}: it was {reason}."


def other_data(results: Results) -> Iterator[str]:
    """Pretrainings with the same settings of data that read other batches."""
    groups = defaultdict(lambda: defaultdict(list))
    for record in results.records:
        if record["stage"] == "pretrain" and record["step"] and record["data_hash"]:
            settings = {k: v for k, v in record["config"].items() if k.startswith("data.")}
            key = json.dumps([settings, record["step"]], sort_keys=True)
            groups[key][record["data_hash"]].append(record["run"])
    for hashes in groups.values():
        if len(hashes) > 1:
            names = " and ".join(_listing(names) for names in hashes.values())
            yield f"Runs with the same settings of data read different batches: {names}."


def seeds_only(results: Results) -> Iterator[str]:
    """Scores without the correctness of each example."""
    tuned = [of for of in results.records if of["stage"] == "finetune" and of["finished"]]
    if tuned and not any(record["correct"] for record in tuned):
        yield "Intervals over seeds only: these results have no per-example correctness."


CHECKS = (unfinished, plateau, diverged, edge_of_rates, edge_of_labels, cut)
CHECKS += (other_items, other_data, seeds_only)


def _listing(names: list[str]) -> str:
    """Three names, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more
