"""Runs a study: each unfinished run through a launcher, several at a time.

A study with `rates` first selects each variant's pretraining rate. A run that takes a stage from
another one waits for it. All state is in the runs' directories, so the same command resumes.
"""

import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.data.batches import Batches
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.files import json_line, write_json
from bertlab.studies.dry_run import check_configs, check_transfers
from bertlab.studies.launchers import Job, Launcher
from bertlab.studies.launchers.local import Local
from bertlab.studies.selection import Search, at_selected_rates, candidate_runs, find_searches
from bertlab.studies.study import RunSpec, Study, sharing
from bertlab.studies.worker import (
    FILE_VALUES,
    Stage,
    is_finished,
    required,
    stage_settings,
    stages,
    write_run,
)
from bertlab.train.phases import phase_configs
from bertlab.train.run_directory import RunDirectory

POLL_SECONDS = 0.2


def sweep(study: Study, workdir: str | Path, launcher: Launcher | None = None) -> bool:
    """Runs the unfinished runs of a study in `workdir`/RUN, and writes study.json.

    Seeds, labels and tasks can be added to a study later: finished runs stay. Without a launcher,
    one run at a time on this machine.

    Returns:
        Whether every run is finished.

    Raises:
        UserError: The study or a config is wrong, or the directory has runs of other settings or
            data.
        SystemExit: After a signal, when the runs have saved.
    """
    workdir, launcher = Path(workdir), launcher or Local(1)
    own = study.runs()
    configs = check_configs(own)
    if study.tasks:
        check_transfers(own, configs)
    searches = find_searches(study, own, configs)
    candidates = candidate_runs(searches, own)
    for search in searches:  # the text does not depend on the rate
        configs |= dict.fromkeys(search.candidates, configs[search.runs[0]])
    workdir.mkdir(parents=True, exist_ok=True)
    study_file = workdir / "study.json"
    check_data([*candidates, *own], configs, workdir)
    failures = {}
    if searches:
        write_json(study_file, study.describe(own, searches))
        ended = {name for search in searches for name in search.losses(workdir)}
        for run in candidates:
            check_settings(run, workdir)
        # One that diverged is not tried again.
        failures |= run_all([run for run in candidates if run.name not in ended], workdir, launcher)
        for search in searches:
            print_selected(search, workdir)
    undecided = {
        name for search in searches if search.selected(workdir) is None for name in search.runs
    }
    runs = sharing([*candidates, *at_selected_rates(own, searches, workdir)])[len(candidates) :]
    write_json(study_file, study.describe(runs, searches))
    decided = [run for run in runs if run.name not in undecided]
    failures |= run_all(decided, workdir, launcher)
    launcher.close()
    failures |= dict.fromkeys(undecided, "no pretraining rate could be selected")
    for name, reason in failures.items():
        print(f"{name} failed: {reason} (log: {workdir / name / 'log.txt'})")
    done = sum(is_finished(run, workdir) for run in decided)
    print(f"{study.name}: {done} of {len(runs)} runs are finished; bertlab report {workdir}")
    return done == len(runs)


def run_all(runs: Sequence[RunSpec], workdir: Path, launcher: Launcher) -> dict[str, str]:
    """Executes the unfinished runs, `launcher.jobs` at a time; returns why runs failed.

    Raises:
        SystemExit: After SIGTERM or Ctrl-C, when the runs have saved and ended.
    """
    for run in runs:
        check_settings(run, workdir)
    waiting = [run for run in runs if not is_finished(run, workdir)]
    print(f"{len(runs)} runs, {len(runs) - len(waiting)} finished, in {workdir}", flush=True)
    running, failures = {}, {}
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            for run in [run for run in waiting if _ready(run, workdir)]:
                if len(running) < launcher.jobs:
                    waiting.remove(run)
                    job = launcher.start(write_run(run, workdir))
                    running[run.name] = run, job
                    print(f"{run.name} started", flush=True)
            if not running:
                break
            time.sleep(POLL_SECONDS)
            for run in [run for run, job in running.values() if job.done()]:
                del running[run.name]
                if not is_finished(run, workdir):
                    failures[run.name] = _reason(workdir / run.name)
                print(f"{run.name} {'failed' if run.name in failures else 'finished'}", flush=True)
    except KeyboardInterrupt:
        print(f"stopping {len(running)} runs, which save; the same command resumes", flush=True)
        _stop([job for _, job in running.values()])
        raise SystemExit(130) from None
    except BaseException:
        _stop([job for _, job in running.values()])
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
    for run in waiting:
        failures[run.name] = "a run whose stage it needs is not finished"
    return failures


def _ready(run: RunSpec, workdir: Path) -> bool:
    return all(stage.finished for stage in required(run, workdir))


def _stop(jobs: Sequence[Job]) -> None:
    """Asks the runs to save, and waits for them."""
    for job in jobs:
        job.stop()
    while not all(job.done() for job in jobs):
        time.sleep(POLL_SECONDS)


def _reason(directory: Path) -> str:
    failed = directory / "failed.txt"
    return failed.read_text(encoding="utf-8").strip() if failed.exists() else "its process ended"


def check_settings(run: RunSpec, workdir: Path) -> None:
    """Refuses a run of which a stage was trained with other settings than it has today."""
    recorded = RunDirectory(workdir / run.name).read("run", {"stages": {}})["stages"]
    if not recorded:
        return  # nothing was trained, and its config need not be composed here
    settings = stage_settings(run)
    for stage in stages(run, workdir):
        key = f"{stage.directory.parent.name}/{stage.task}" if stage.task else "pretrain"
        before, now = recorded.get(key), settings[key]
        if before is None or not _has_saved(stage) or json_line(before) == json_line(now):
            continue
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        names.sort(key=FILE_VALUES.__eq__)  # last: a setting that is named says more
        raise UserError(
            f"{stage.directory} was trained with {names[0]}={before.get(names[0])!r}, not"
            f" {now.get(names[0])!r}; give another --workdir, or delete it to train it again"
        )


def _has_saved(stage: Stage) -> bool:
    return stage.finished or bool(RunDirectory(stage.directory).steps())


def check_data(runs: Sequence[RunSpec], configs: Mapping[str, Any], workdir: Path) -> None:
    """Prepares the runs' texts, and refuses runs that have read other batches than today's."""
    prepared = {}
    for run in runs:
        if run.name not in configs or not configs[run.name].train.steps:
            continue
        config, directory = configs[run.name], RunDirectory(workdir / run.name)
        text = {key: value for key, value in config.data.to_dict().items() if key != "seed"}
        key = json_line(text)
        if key not in prepared:
            prepared[key] = prepare(config.data)
        if (facts := directory.read("data")) is None or "pretrain" in run.shares:
            continue
        today = [Batches(prepared[key], phase.data).hash for _, phase in phase_configs(config)]
        if facts["data_hash"] != today:
            raise UserError(
                f"{directory} has read other data (hash {facts['data_hash'][0]}, today {today[0]});"
                " give another --workdir, or delete it to train it again"
            )


def print_selected(search: Search, workdir: Path) -> None:
    """Prints the losses of a search and the selected rate."""
    losses, rate = search.losses(workdir), search.selected(workdir)
    texts = [f"{of:g}: {losses.get(name, 'unfinished')}" for name, of in search.candidates.items()]
    end = ", at the end of its candidates" if rate and search.at_the_end(rate) else ""
    print(
        f"pretraining rate of {search.variant}: {rate}{end} (validation loss: {'; '.join(texts)})"
    )
