"""The results of a study as tidy tables.

frame = bertlab.results.load("runs/table5")                           # the runs' directories
frame = bertlab.results.load("experiments/results/bert_table5_tiny")  # a published study
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from bertlab.studies.results import COSTS, Record, Results, read, stage_names, unpack


def load(path: str | Path) -> pd.DataFrame:
    """The scores: one row a number.

    Columns: `run`, `variant` (labels but the seeds' and the selected axes'), one of labels for each
    axis, `stage` ("pretrain", "evaluate", "finetune", or "most_frequent": what always giving the
    most frequent answer scores), `task`, `split`, `metric`, `value`; what the run's pretraining
    cost: `parameters`, `step`, `tokens`, `supervised` (predicted positions), `flops`, `seconds`;
    what adapting and fine-tuning cost: `transfer_flops`, `transfer_seconds` (NaN in rows of a
    pretraining); and `data_hash` of the stage's batches. Unfinished stages have no rows.
    """
    return scores(read(path))


def scores(results: Results) -> pd.DataFrame:
    """As `load`."""
    axes, rows = list(results.study["axes"]), []
    for run in results.study["runs"]:
        labels = {axis: run["labels"].get(axis, "") for axis in axes}
        identity = {"run": run["name"], "variant": run["variant"], **labels}
        costs = results.pretraining_costs(run)
        for stage, record, split, metric, value in _numbers(results, run):
            transfer = (
                _transfer_costs(results, run, record) if record["stage"] != "pretrain" else {}
            )
            rows.append(
                identity
                | {"stage": stage, "task": record["task"], "split": split}
                | {"metric": metric, "value": value, **costs, **transfer}
                | {"data_hash": record.get("data_hash", "")}
            )
    measured = ["stage", "task", "split", "metric", "value", "parameters", "step", *COSTS]
    columns = [
        "run",
        "variant",
        *axes,
        *measured,
        "transfer_flops",
        "transfer_seconds",
        "data_hash",
    ]
    frame = pd.DataFrame(rows, columns=columns)
    numbers = columns[columns.index("value") : -1]
    return frame.astype(dict.fromkeys(numbers, float))


def curves(path: str | Path) -> pd.DataFrame:
    """The curves: one row a number of metrics.jsonl.

    Columns: `run`, `variant`, the axes, `trained_in` (the run whose stage it is: a shared one is
    listed under each run that uses it), `stage`, `task`, `split`, `step`, `tokens`, `supervised`,
    `flops`, `seconds`, `metric`, `value`.
    """
    return curve_points(read(path))


def curve_points(results: Results) -> pd.DataFrame:
    """As `curves`."""
    axes, rows = list(results.study["axes"]), []
    for run in results.study["runs"]:
        labels = [run["labels"].get(axis, "") for axis in axes]
        for stage, task in stage_names(run):
            name = run.get("shares", {}).get(stage, run["name"])
            for line in results.by_stage.get((name, stage, task), {}).get("curve", ()):
                begin = [run["name"], run["variant"], *labels, name, stage, task, line["split"]]
                begin += [line[key] for key in ("step", *COSTS)]
                rows += [[*begin, *of] for of in line.items() if of[0] not in _PLACES]
    columns = ["run", "variant", *axes, "trained_in", "stage", "task", "split", "step", *COSTS]
    columns += ["metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def examples(path: str | Path) -> pd.DataFrame:
    """Which test items each fine-tuning answered correctly.

    An item is an example, or a word of a tagged sentence. Columns: `run`, `variant`, `task`,
    `split`, `items_hash` (equal if two runs answered the same items), `item`, `correct`. Empty for
    studies that were published without.
    """
    columns = ["run", "variant", "task", "split", "items_hash", "item", "correct"]
    results, frames = read(path), []
    for run in results.study["runs"]:
        for task in run["downstream"]:
            record = results.stage(run, "finetune", task) or {}
            for split, packed in record.get("correct", {}).items():
                values = unpack(packed)
                begin = {
                    "run": run["name"],
                    "variant": run["variant"],
                    "task": task,
                    "split": split,
                }
                begin["items_hash"] = packed["hash"]
                frames.append(pd.DataFrame({"item": range(len(values)), "correct": values}))
                frames[-1] = frames[-1].assign(**begin)[[*begin, "item", "correct"]]
    columns = ["run", "variant", "task", "split", "items_hash", "item", "correct"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


_PLACES = {"step", "split", *COSTS}


def _numbers(results: Results, run) -> Iterator[tuple[str, Record, str, str, float]]:
    """(stage, record, split, metric, value) of a run's finished stages.

    Held-out losses of a pretraining are its last step's: a run that goes on from an earlier one, or
    from random values, has none.
    """
    pretraining = results.stage(run, "pretrain")
    whole = pretraining and results.first_step(run) in (None, pretraining["step"])
    if whole and not results.is_random(run):
        for stage, by_split in (
            ("pretrain", pretraining["scores"]),
            ("evaluate", pretraining.get("evaluation", {})),
        ):
            for split, metrics in by_split.items():
                yield from ((stage, pretraining, split, *of) for of in metrics.items())
    for task in run["downstream"]:
        if record := results.stage(run, "finetune", task):
            for stage, by_split in (
                ("finetune", record["scores"]),
                ("most_frequent", record.get("most_frequent", {})),
            ):
                for split, metrics in by_split.items():
                    yield from ((stage, record, split, *of) for of in metrics.items())


def _transfer_costs(results: Results, run, record: Record) -> dict[str, float]:
    """Of an adaptation and its fine-tuning; of an average, its members'."""
    names = run.get("averages") or [run["name"]]
    stages = [
        results.stage(results.runs[name], stage, record["task"])
        for name in names
        for stage in ("adapt", "finetune")
    ]
    return {
        f"transfer_{key}": sum(of.get(key) or 0.0 for of in stages if of)
        for key in ("flops", "seconds")
    }
