"""The results of a study as tidy tables.

frame = bertlab.results.load("runs/table5")                           # the runs' directories
frame = bertlab.results.load("experiments/results/bert_table5_tiny")  # a published study
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from bertlab.studies.results import COSTS, Record, Results, read, stage_names, unpack


def load(path: str | Path) -> pd.DataFrame:
    """The scores: one row a number.

    Columns: `run`, `variant` (labels but the seeds' and the selected axes'), one of labels for each
    axis, `stage` ("pretrain", "evaluate", "finetune", or "most_frequent": what always giving the
    most frequent answer scores), `task` (of an evaluation the file that was scored, "" for the held
    out text), `split`, `metric`, `value`; what the run's pretraining cost: `parameters`, `step`,
    `tokens`, `supervised` (predicted positions), `flops`, `seconds`; what adapting and fine-tuning
    cost: `transfer_flops`, `transfer_seconds` (NaN for a pretraining); and `data_hash` of the
    stage's batches. Unfinished stages have no rows.
    """
    return scores(read(path)).copy()


@functools.lru_cache(maxsize=2)
def scores(results: Results) -> pd.DataFrame:
    """As `load`; nobody may change it."""
    axes, rows = list(results.study["axes"]), []
    for run in results.study["runs"]:
        identity = [run["name"], run["variant"], *(run["labels"].get(axis, "") for axis in axes)]
        costs = results.pretraining_costs(run)
        pretraining = [costs.get(name) for name in ("parameters", "step", *COSTS)]
        for place, record, metrics in _measured(results, run):
            transfer = _transfer_costs(results, run, record)
            end = [*pretraining, *transfer, record["data_hash"]]
            rows += [[*identity, *place, metric, value, *end] for metric, value in metrics.items()]
    numbers = ["value", "parameters", "step", *COSTS, "transfer_flops", "transfer_seconds"]
    columns = ["run", "variant", *axes, "stage", "task", "split", "metric", *numbers, "data_hash"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, float))


def _measured(results: Results, run) -> Iterator[tuple[tuple[str, str, str], Record, dict]]:
    """((stage, task, split), record, metrics) of a run's finished stages.

    Held-out losses of a pretraining are its last step's: a run that goes on from an earlier one, or
    from random values, has none.
    """
    pretraining = results.stage(run, "pretrain")
    whole = pretraining and results.first_step(run) in (None, pretraining["step"])
    if whole and not results.is_random(run):
        for split, metrics in pretraining["scores"].items():
            yield ("pretrain", "", split), pretraining, metrics
        for text, metrics in pretraining.get("evaluation", {}).items():
            file = "" if text == "test" else text
            yield ("evaluate", file, "test"), pretraining, metrics
    for task in run["downstream"]:
        if record := results.stage(run, "finetune", task):
            for split, metrics in record["scores"].items():
                yield ("finetune", task, split), record, metrics
            for split, metrics in record.get("most_frequent", {}).items():
                yield ("most_frequent", task, split), record, metrics


def _transfer_costs(results: Results, run, record: Record) -> list[float | None]:
    """FLOPs and seconds of an adaptation and its fine-tuning; of an average, its members'."""
    if record["stage"] == "pretrain":
        return [None, None]
    members = [results.runs[name] for name in run.get("averages") or [run["name"]]]
    stages = [results.stage(of, name, record["task"]) for of in members for name in _TRANSFER]
    return [sum(of[key] or 0.0 for of in stages if of) for key in ("flops", "seconds")]


def curves(path: str | Path) -> pd.DataFrame:
    """The curves: one row a number of metrics.jsonl.

    Columns: `run`, `variant`, the axes, `trained_in` (the run whose stage it is: a shared one is
    listed under each run that uses it), `stage`, `task`, `split`, `step`, `tokens`, `supervised`,
    `flops`, `seconds`, `metric`, `value`.
    """
    return curve_points(read(path))


def curve_points(results: Results) -> pd.DataFrame:
    """As `curves`."""
    axes, rows, steps = list(results.study["axes"]), [], ["step", *COSTS]
    for run in results.study["runs"]:
        identity = [run["name"], run["variant"], *(run["labels"].get(axis, "") for axis in axes)]
        for stage, task in stage_names(run):
            owner = run.get("shares", {}).get(stage, run["name"])
            for line in results.by_stage.get((owner, stage, task), {}).get("curve", ()):
                place = [*identity, owner, stage, task, line["split"], *(line[x] for x in steps)]
                rows += [[*place, *of] for of in line.items() if of[0] not in ("split", *steps)]
    columns = ["run", "variant", *axes, "trained_in", "stage", "task", "split", *steps]
    return pd.DataFrame(rows, columns=[*columns, "metric", "value"])


def examples(path: str | Path) -> pd.DataFrame:
    """Which items each fine-tuning answered correctly; empty for studies published without.

    An item is an example, or a word of a tagged sentence. Columns: `run`, `variant`, `task`,
    `split`, `items_hash` (equal if two runs answered the same items), `item`, `correct`.
    """
    columns = ["run", "variant", "task", "split", "items_hash"]
    results, frames = read(path), [pd.DataFrame(columns=[*columns, "item", "correct"])]
    for run in results.study["runs"]:
        for task in run["downstream"]:
            record = results.stage(run, "finetune", task) or {}
            for split, packed in record.get("correct", {}).items():
                correct = unpack(packed)
                frame = pd.DataFrame({"item": range(len(correct)), "correct": correct})
                labels = [run["name"], run["variant"], task, split, packed["hash"]]
                frames.append(frame.assign(**dict(zip(columns, labels))))
    return pd.concat(frames[1:] or frames, ignore_index=True)[frames[0].columns]


_TRANSFER = ("adapt", "finetune")
