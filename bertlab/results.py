"""The results of a study as tidy tables.

frame = bertlab.results.load("runs/table5")                           # the runs' directories
frame = bertlab.results.load("experiments/results/bert_table5_tiny")  # a published study
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from bertlab.studies.records import BASELINES, COSTS, Record, Results, read, unpack
from bertlab.studies.runs import RunSpec

NUMBERS = ("value", "parameters", "step", *COSTS, "transfer_flops", "transfer_seconds")


def load(path: str | Path) -> pd.DataFrame:
    """The scores: one row per number of a finished stage.

    Columns: `run`, `variant` (all labels but the seeds' and the selected axes'), one for each
    axis, `trained_in` (the run that pretrained it), `stage` ("pretrain", "evaluate", "finetune";
    "most_frequent": what always giving the most frequent answer scores; "linear": a linear model of
    the same labels), `task` (for an evaluation the file that was scored, "" for the held-out text),
    `split`, `metric`, `value`; what the run's pretraining cost: `parameters`, `step`, `tokens`,
    `supervised` (predicted positions), `flops`, `seconds`; what adapting and fine-tuning cost:
    `transfer_flops`, `transfer_seconds` (NaN for a pretraining); `data_hash` of the batches.
    """
    return scores(read(path)).copy()


@functools.lru_cache(maxsize=2)
def scores(results: Results) -> pd.DataFrame:
    """As `load`; shared, so do not modify it."""
    rows = []
    for run in results.runs.values():
        labels, costs = run_labels(results, run), results.pretraining_costs(run)
        for stage, task, split, record, metrics in _measured(results, run):
            spent = costs | _transfer_costs(results, run, record)
            place = {**labels, "stage": stage, "task": task, "split": split}
            for metric, value in metrics.items():
                if metric == "by_document":  # sums for intervals (bertlab.studies.tables)
                    continue
                end = {"metric": metric, "value": value, "data_hash": record["data_hash"]}
                rows.append(place | spent | end)
    columns = ["run", "variant", *results.study["axes"], "trained_in", "stage", "task", "split"]
    frame = pd.DataFrame(rows, columns=[*columns, "metric", *NUMBERS, "data_hash"])
    return frame.astype(dict.fromkeys(NUMBERS, float))


def run_labels(results: Results, run: RunSpec) -> dict[str, str]:
    """The columns that identify a run."""
    labels = {axis: run.labels.get(axis, "") for axis in results.study["axes"]}
    owner = run.shares.get("pretrain", run.name)
    return {"run": run.name, "variant": run.variant, **labels, "trained_in": owner}


def _measured(results: Results, run: RunSpec) -> Iterator[tuple[str, str, str, Record, dict]]:
    """(stage, task, split, record, metrics) of a run's finished stages.

    Held-out losses of a pretraining are its last step's: a run that continues from an earlier
    one, or from random values, has none.
    """
    record, step = results.stage(run, "pretrain"), results.first_step(run)
    if record and (step is None or step == record["step"] != 0):
        for split, metrics in record["scores"].items():
            yield "pretrain", "", split, record, metrics
        for text, metrics in record.get("evaluation", {}).items():
            yield "evaluate", "" if text == "test" else text, "test", record, metrics
    for task in run.downstream:
        if record := results.stage(run, "finetune", task):
            for stage in ("finetune", *BASELINES):
                key = "scores" if stage == "finetune" else stage
                for split, metrics in record.get(key, {}).items():
                    yield stage, task, split, record, metrics


def _transfer_costs(results: Results, run: RunSpec, record: Record) -> dict[str, float]:
    """Of an adaptation and its fine-tuning; for an average, its members'."""
    if record["stage"] == "pretrain":
        return {}
    members = [results.runs[name] for name in run.averages or [run.name]]
    stages = [results.stage(of, x, record["task"]) for of in members for x in ("adapt", "finetune")]
    costs = {key: sum(of[key] or 0.0 for of in stages if of) for key in ("flops", "seconds")}
    return {f"transfer_{key}": cost for key, cost in costs.items()}


def curves(path: str | Path | Results) -> pd.DataFrame:
    """The curves: one row per number of metrics.jsonl.

    Columns: `run`, `variant`, the axes, `trained_in` (the run whose stage it is: a shared one is
    listed under each run that uses it), `stage`, `task`, `split`, `step`, `tokens`, `supervised`,
    `flops`, `seconds`, `metric`, `value`.
    """
    results, rows = read(path), []
    for run in results.runs.values():
        for stage, task in run.stages():
            owner = run.shares.get(stage, run.name)
            labels = run_labels(results, run) | {"trained_in": owner, "stage": stage, "task": task}
            record = results.by_stage.get((owner, stage, task), {"curve": ()})
            rows += [labels | line for line in record["curve"]]
    columns = ["run", "variant", *results.study["axes"], "trained_in", "stage", "task", "split"]
    columns += ["step", *COSTS]
    frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
    return frame.melt(columns, var_name="metric").dropna(subset="value")


def examples(path: str | Path) -> pd.DataFrame:
    """Which items each fine-tuning answered correctly; empty for studies published without them.

    An item is an example, or a word of a tagged sentence. Columns: `run`, `variant`, `task`,
    `split`, `items_hash` (equal if two runs answered the same items), `item`, `correct`.
    """
    columns = ["run", "variant", "task", "split", "items_hash"]
    results, frames = read(path), [pd.DataFrame(columns=[*columns, "item", "correct"])]
    for run in results.runs.values():
        for task in run.downstream:
            record = results.stage(run, "finetune", task) or {}
            for split, packed in record.get("correct", {}).items():
                correct = unpack(packed)
                frame = pd.DataFrame({"item": range(len(correct)), "correct": correct})
                labels = [run.name, run.variant, task, split, packed["hash"]]
                frames.append(frame.assign(**dict(zip(columns, labels))))
    return pd.concat(frames[1:] or frames, ignore_index=True)[frames[0].columns]
