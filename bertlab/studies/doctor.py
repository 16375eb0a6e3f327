"""What may make a study's numbers misleading: checks of `Results` that yield sentences. Limits are
chosen so that good runs raise nothing."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator

from bertlab.studies import comparisons
from bertlab.studies.records import Record, Results
from bertlab.transfer.examples import cut_lines

NEAR_GUESSING = 0.97  # times what guessing by frequency costs
RISE, RISE_NATS = 0.02, 0.02  # of the last held-out loss over the lowest one: share and nats


def examine(results: Results) -> list[tuple[str, str]]:
    """(check, a sentence on what it found) for all checks."""
    return [(check.__name__.replace("_", " "), text) for check in CHECKS for text in check(results)]


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
    trained, stuck = Counter(), defaultdict(list)
    for record in results.records:
        for metric, nats in record.get("evaluation", {}).get("test", {}).items():
            objective = metric.removesuffix("/guessing")
            loss = record["scores"].get("valid", {}).get(f"{objective}/loss")
            if objective != metric and loss and _trains(record, objective):
                trained[objective] += 1
                if loss >= NEAR_GUESSING * nats:
                    stuck[objective].append(record["run"])
    for objective, names in stuck.items():
        yield (
            f"{objective} was not learned in {len(names)} of {trained[objective]} pretrainings"
            f" ({_listing(names)}): its held-out loss is no better than guessing by frequency."
        )


def _trains(record: Record, objective: str) -> bool:
    """Whether a pretraining's last phase trains an objective."""
    weight, config = f"objectives.{objective}.weight", record["config"]
    last_phase = (config.get("train.phases") or "").split(";")[-1].split()
    return record["step"] > 0 and config.get(weight) != 0 and f"{weight}=0" not in last_phase


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


def edges(results: Results) -> Iterator[str]:
    """Selected rates with no candidate on one side."""
    found = defaultdict(dict)
    for measure in comparisons.measures(results):
        for variant, selected in comparisons.rates_at_edges(results, measure).items():
            for rate in selected:
                if rate != comparisons.ONLY_RATE:
                    place = "" if rate.startswith("pretraining") else f" on {measure.task}"
                    found[rate + place][variant] = None
    for rate, variants in found.items():
        yield f"Selected at the edge of what was tried: {rate} for {_listing(list(variants))}."


def cut(results: Results) -> Iterator[str]:
    """Texts and words that did not fit into rows: per task and split, the run with the most."""
    most = {}
    for record in results.records:
        for split, tasks in record.get("cut", {}).items():
            for task, counts in tasks.items():
                share = counts["examples"] / max(counts["of_examples"], 1)
                if share > most.get((task, split), (0.0,))[0]:
                    most[task, split] = share, {split: {task: counts}}
    for _, counts in most.values():
        yield from (f"{line}; no run lost more." for line in cut_lines(counts))


def other_items(results: Results) -> Iterator[str]:
    """Variants that were scored on different items from the rest."""
    for measure in comparisons.measures(results):
        for variant, reason in comparisons.incomparable(results, measure).items():
            yield f"{variant} is not compared on {measure.task}: it was {reason}."


def other_data(results: Results) -> Iterator[str]:
    """Pretrainings with the same data settings that read different batches."""
    groups = defaultdict(lambda: defaultdict(list))
    for record in results.records:
        if record["stage"] == "pretrain" and record["step"] and record["data_hash"]:
            settings = {k: v for k, v in record["config"].items() if k.startswith("data.")}
            key = json.dumps([settings, record["step"]], sort_keys=True)
            hashes = frozenset(record["data_hash"].split())  # phases read the same batches on
            groups[key][hashes].append(record["run"])
    for readers in groups.values():
        if len(readers) > 1:
            names = " and ".join(_listing(names) for names in readers.values())
            yield f"Runs with the same data settings read different batches: {names}."


def seeds_only(results: Results) -> Iterator[str]:
    """Scores without the correctness of each example."""
    tuned = [of for of in results.records if of["stage"] == "finetune" and of["finished"]]
    if tuned and not any(record["correct"] for record in tuned):
        yield "Intervals over seeds only: these results have no per-example correctness."


def _listing(names: list[str]) -> str:
    """Three names, and how many more."""
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


CHECKS = (unfinished, plateau, diverged, edges, cut, other_items, other_data, seeds_only)
