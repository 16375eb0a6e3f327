"""The output of `bertlab sweep --dry_run`."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.console import Console
from bertlab.studies.estimate import Cost, flops_per_second, pretraining_cost, schedule, transfer_cost
from bertlab.studies.launchers import Launcher
from bertlab.studies.study import RATE, RunSpec, Study, representatives, unseeded
from bertlab.studies.text import count_text, seconds_text
from bertlab.studies.views import print_line
from bertlab.studies.worker import awaited, is_finished, worker_command, write_job


def print_plan(
    study: Study,
    tried: Sequence[RunSpec],
    runs: Sequence[RunSpec],
    configs: Mapping[str, Any],
    transfers: Mapping[str, Any],
    workdir: Path,
    launcher: Launcher,
    console: Console,
    target: Path,
) -> dict[str, Any]:
    """Prints what a sweep would run and what it will cost; of runs that differ only in seeds, the settings of the first.

    Args:
        study: The study.
        tried: The candidates for pretraining rates.
        runs: The study's runs; where no rate is selected yet, at their own.
        configs: Run -> its pretraining's config.
        transfers: Run -> its adaptations' and fine-tunings' configs.
        workdir: Where the finished runs are: the study's directory, or a published study's folder.
        launcher: Would start the runs.
        console: Where to print.
        target: The study's directory.

    Returns:
        `study` (its name), `directory`, `to_do` (runs), and of these together `tokens`, `flops` and `seconds`, of training with
        so many `at_a_time`. `runs`: of each `run`, candidates among them, its `status`, `tokens`, `flops` and `seconds`.
    """
    counted = f"{len(runs)} runs" + (f" and {len(tried)} candidates for pretraining rates" if tried else "")
    runs = [*tried, *runs]
    waiting = [run for run in runs if not is_finished(run, workdir / run.name)]
    to_do = {run.name for run in waiting}
    at_a_time = max(1, min(launcher.jobs, len(waiting)))
    rate, source = flops_per_second([workdir / run.name for run in runs], launcher)
    share = lambda running: launcher.share(running) or 1.0
    known: dict[Any, Cost] = {}
    stands_for = representatives(runs)
    printed: set[str] = set()
    total, seconds, planned = Cost(), {}, []
    trained = [run.overrides.items() for run in runs if run.overrides]
    common = [(key, value) for key, value in (trained[0] if trained else ()) if all((key, value) in of for of in trained)]
    if common:
        print_line(console, "in all runs: " + " ".join(f"{key}={value}" for key, value in common))
    for run in runs:
        config, shared = configs[run.name], run.shares.get("pretrain")
        settings = unseeded(run.overrides)
        key = json.dumps([run.config, {key: value for key, value in settings.items() if key != RATE}], sort_keys=True)
        if not shared and key not in known:
            known[key] = pretraining_cost(config)
        of_tasks = (stands_for[run.name], "adapt" in run.shares)
        if of_tasks not in known:
            known[of_tasks] = transfer_cost(run, transfers.get(run.name, {}))
        cost = (Cost() if shared else known[key]) + known[of_tasks]
        if run.name in to_do:
            total += cost
            seconds[run.name] = cost.flops / rate
        steps = f"pretrained by {shared}" if shared else f"{config.train.steps:,} steps"
        duration = cost.flops / rate / share(at_a_time)
        cost_text = f"{count_text(cost.tokens)} tokens, {count_text(cost.flops)} FLOPs, {seconds_text(duration)}"
        state = "to do" if {run.name, shared} & to_do else "finished"  # a run that shares all it has is as its owner
        print_line(console, f"{run.name}  ({state})  {steps}, {cost_text}", style="bold")
        spent = {"tokens": cost.tokens, "flops": cost.flops, "seconds": duration}
        planned.append({"run": run.name, "status": state, **spent})
        same = json.dumps([run.config, settings, run.downstream, bool(run.adapt)], sort_keys=True)
        if same in printed and not run.averages:
            continue
        printed.add(same)
        own = [f"{key}={value}" for key, value in run.overrides.items() if (key, value) not in common]
        print_line(console, f"    {run.config}  {' '.join(own)}".rstrip())
        if run.averages:
            print_line(console, f"    the average of {', '.join(run.averages)}")
        elif run.downstream:
            before = "adapted to the text of and " if run.adapt else ""
            print_line(console, f"    then {before}fine-tuned on {', '.join(run.downstream)}")
    first = next((run for run in waiting if not run.shares and not run.averages), None)
    if first and (submitted := previewed(first, target, launcher)):
        print_line(console, f"{first.name} would be submitted as:\n{submitted}")
    waits = {run.name: {name for name, _ in awaited(run, workdir)} for run in waiting}
    together = schedule(seconds, waits, at_a_time, share)
    print_line(
        console,
        f"{study.name}: {counted}, {len(waiting)} to do: {count_text(total.tokens)} tokens (rows counted as full),"
        f" {count_text(total.flops)} FLOPs, {seconds_text(together)} of training with {at_a_time}"
        f" at a time, {source}, plus preparation, compilation and evaluation; in {target}; nothing was started (--dry_run)",
    )
    whole = {"tokens": total.tokens, "flops": total.flops, "seconds": together, "at_a_time": at_a_time}
    return {"study": study.name, "directory": target, "to_do": len(waiting), **whole, "runs": planned}


def previewed(run: RunSpec, workdir: Path, launcher: Launcher) -> str:
    """What the launcher would submit for a run; its job.json lies in a temporary folder meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder).resolve() / workdir.absolute().name / run.name
        job = write_job(run, directory, jobs=launcher.jobs)
        return launcher.preview(worker_command(job), directory)
