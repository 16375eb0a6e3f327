"""Runs a study: each unfinished run in a worker process, several at a time, through one of the launchers.

A study with `rates` first selects each variant's pretraining rate (`bertlab.studies.selection`); then its runs begin. A run
that shares another run's pretraining waits for it. All state of a run is in its directory, so the same command resumes a sweep
that was killed.
"""

import dataclasses
import functools
import itertools
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.console import Console
from bertlab.data.prepare import check_corpus, prepare
from bertlab.data.prepared import check_part
from bertlab.errors import RunFailed
from bertlab.interrupts import interruptible
from bertlab.locks import alone
from bertlab.progress import hidden
from bertlab.run import Run, StudyDirectory
from bertlab.studies.checks import blaming, check_claims, check_transfers, load_checked
from bertlab.studies.dry_run import print_plan
from bertlab.studies.launchers import Launcher, Local
from bertlab.studies.measurements import trained_objectives
from bertlab.studies.ordering import check_until_decided, fix_rule, look, open_pairs, seed_by_seed, write_settled
from bertlab.studies.published import adopt, clear_needed
from bertlab.studies.records import check_same_code, check_same_study, check_steps, clear_changed, with_owners
from bertlab.studies.selection import Search, at_selected_rates, candidates, find_searches, has_ended, undecided
from bertlab.studies.silence import Silence
from bertlab.studies.statistics import Settlement
from bertlab.studies.store import Store
from bertlab.studies.study import RunSpec, Study, representatives
from bertlab.studies.views import Job, LineView, TerminalView, print_line
from bertlab.studies.worker import RUNNER, awaited, is_finished, worker_command, write_job

POLL_SECONDS = 0.1  # between two checks for workers that have ended
VIEW_SECONDS = 1.0  # between two reads of the files of running workers


def sweep(
    study: Study,
    workdir: str | os.PathLike[str],
    launcher: Launcher | None = None,
    dry_run: bool = False,
    until_decided: str = "",
    published: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    *,
    runner: str = RUNNER,
    console: Console | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Runs the unfinished runs of a study; run directories are `workdir/RUN`.

    The same call resumes. You can add seeds, labels or downstream tasks to a study and keep its workdir: finished runs stay.
    You can also remove them: their files stay on disk, but study.json and the report omit them until you ask for them again.
    You can change the settings of a stage that failed before it saved anything (`bertlab.studies.records`).

    Args:
        study: The study.
        workdir: The study's directory; study.json is written there.
        launcher: Starts the runs, `launcher.jobs` at a time; default one at a time on this machine.
        dry_run: Only print the runs, their overrides and their cost.
        until_decided: A task, or "all": start no further seed once that task settles the order of the variants
            (`bertlab.studies.ordering`).
        published: A folder that `bertlab publish` wrote; its runs are copied to the workdir and count as finished.
        store: A folder or URL of finished pretrainings (`bertlab.studies.store`); the sweep takes what is there, and adds.
        runner: "module:function" called in each worker process with a RunSpec and its directory.
        console: Where to print; default the terminal.
        tell: Is given what a dry run found (`bertlab.studies.dry_run.print_plan`).

    Returns:
        The exit status: 0 if every run finished, 1 if a run failed, 130 if interrupted (SIGINT, SIGTERM).

    Raises:
        UserError: The study or a config is wrong, the workdir holds another study, or another sweep is running there.
            Raised before any run starts.
    """
    console = console or Console()
    workdir, shelf = Path(workdir), Store(store) if store and not dry_run else None
    launcher = launcher or Local(1)
    if not dry_run:
        launcher.require()
    check_claims(study)
    own = study.runs()  # at the rates that they have without a search
    if until_decided:
        check_until_decided(study, until_decided)
    if runner == RUNNER:
        print_line(console, f"checking {len(own)} runs and reading their tasks")
    configs, transfers = check_configs(own, runner)
    searches = find_searches(study, own, configs)
    tried = candidates(searches, own)
    for search in searches:  # neither text nor cost depends on the rate
        configs |= dict.fromkeys(search.candidates, configs[search.runs[0]])

    def arranged(place: Path = workdir) -> tuple[list[RunSpec], dict[str, Any]]:
        """The runs at the rates that are selected by now, in the order to run them in, and the content of study.json."""
        everything = with_owners([*tried, *at_selected_rates(own, searches, place)], place)
        runs = everything[len(tried) :]
        description = describe(study, runs, searches)
        description["trained"] = {run.name: trained_objectives(configs[run.name]) for run in own}
        check_same_study(place, description, everything)
        check_same_code(place, everything, configs, transfers)
        if place == workdir:  # published results have no checkpoints
            check_steps(workdir, everything, configs)
        return (seed_by_seed(runs, study) if until_decided else runs), description

    if published:  # it must fit before any of its files is copied
        StudyDirectory(published).require_whole()
        StudyDirectory(published).study.read()
        arranged(Path(published))
    place = workdir  # a dry run copies nothing
    if dry_run and published:
        place = workdir if StudyDirectory(workdir).study.exists() else Path(published)
        known = "it counts as finished" if place != workdir else f"what {workdir} lacks of it still counts as to do"
        print_line(console, f"--published={published}: nothing is copied in a dry run; {known}")
    runs, description = arranged(place)
    if dry_run:
        planned = print_plan(study, tried, runs, configs, transfers, place, launcher, console, workdir)
        if tell:
            tell(planned)
        return 0

    workdir.mkdir(parents=True, exist_ok=True)
    running: list[Job] = []
    only = alone(workdir, StudyDirectory(workdir).lock, required=True, say=functools.partial(print_line, console))
    with only as descriptor, interruptible(lambda: kill(running)) as signals:
        if published:
            adopt(Path(published), workdir)
            runs, description = arranged()
        names = {run.name for run in [*tried, *runs]}
        there = [run.directory for run in StudyDirectory(workdir).runs() if run.directory.is_dir()]
        if left := [directory.name for directory in there if directory.name not in names]:
            print_line(console, f"no longer in the study; their files stay, but the report omits them: {', '.join(left)}")
        if until_decided:
            fix_rule(workdir, study, until_decided)
        failures: dict[str, str] = {}

        def work_on(runs, ended, what, settled=None) -> tuple[dict[str, str], int]:
            """Prepares the text of the runs that have not ended and executes them; returns what `run_all` does."""
            pending = [run for run in runs if not ended(run)]
            for name in {run.name for run in runs} - {run.name for run in pending}:  # killed, perhaps, when all was done
                Run(workdir / name).alive.path.unlink(missing_ok=True)
            counts = f"{what}, {len(runs) - len(pending)} already finished, {len(pending)} to do"
            print_line(console, f"{study.name}: {counts}, in {workdir}")
            if pending:
                prepare_data([configs[run.name] for run in pending], console)
            if shelf:
                for run in runs:
                    tried_to(shelf.put, workdir / run.name, console=console)
            return run_all(pending, running, workdir, launcher, runner, descriptor, console, len(runs), settled, shelf)

        try:
            if searches:
                clear_changed(workdir, tried)
                StudyDirectory(workdir).study.write(description)
                what = f"{len(tried)} candidates for {len(searches)} pretraining rates"
                failed, _ = work_on(tried, lambda run: has_ended(Run(workdir / run.name)), what)
                failures |= {name: error for name, error in failed.items() if not Run(workdir / name).diverged.exists()}
                for search in searches:
                    print_line(console, search.result(workdir))
                runs, description = arranged()
            clear_changed(workdir, runs)
            StudyDirectory(workdir).study.write(description)
            held = undecided(searches, workdir)
            failures |= {run.name: held[run.name] for run in runs if run.name in held}
            free = [run for run in runs if run.name not in held]
            if published and (cleared := clear_needed(Path(published), workdir, free)):
                print_line(console, f"pretrained again, because new tasks begin with them: {', '.join(cleared)}")
            settled = functools.partial(look, workdir, study, until_decided) if until_decided else None
            StudyDirectory(workdir).settled.delete()
            failed, unbegun = work_on(free, lambda run: is_finished(run, workdir / run.name), f"{len(runs)} runs", settled)
            failures |= failed
        except KeyboardInterrupt:
            signals.saving()
            print_line(
                console, f"interrupted: waiting until running runs have saved ({len(running)}); press Ctrl-C again to kill them"
            )
            stop(running)
            print_line(console, "run the same command again to resume")
            return 130
        except BaseException:
            stop(running)
            raise
        finally:
            launcher.close()
    return conclude(runs, failures, unbegun, workdir, console)


def conclude(runs: Sequence[RunSpec], failures: Mapping[str, str], unbegun: int, workdir: Path, console: Console) -> int:
    """Prints how a sweep ended; returns its exit status."""
    for name, error in failures.items():
        log = Run(workdir / name).log
        print_line(console, f"failed: {name}: {error}" + (f" (log: {log})" if log.exists() else ""), style="bold red")
    if failures:
        asked = {*failures, *(run.name for run in runs)}
        print_line(console, f"{len(failures)} of {len(asked)} runs failed; run the same command again to retry them")
        return 1
    done = f"{len(runs) - unbegun} of {len(runs)}" if unbegun else f"all {len(runs)}"
    print_line(console, f"{done} runs are finished; see them with: bertlab report {workdir}")
    return 0


def run_all(
    pending: Sequence[RunSpec],
    running: list[Job],
    workdir: Path,
    launcher: Launcher,
    runner: str,
    lock: int,
    console: Console,
    total: int,
    settled: Callable[[Mapping[str, str]], Settlement | None] | None = None,
    store: Store | None = None,
) -> tuple[dict[str, str], int]:
    """Executes the pending runs, `launcher.jobs` at a time.

    `running` is the caller's list, so the caller can stop the processes if this function raises. `total` includes the runs that
    were already finished. `settled` is called after each run with the status of those that wait (`outlook`); once the order of
    the variants is settled, no more runs start.

    Returns:
        The error line of each failed run, and how many runs were not started because the order was settled.
    """
    waiting, failures, unbegun, ended, seen, looked = list(pending), {}, 0, True, 0.0, 0
    view, silence = (TerminalView if console.is_terminal else LineView)(console, total, total - len(pending)), Silence(console)
    with view, hidden():
        while True:
            if ended:  # only then can a run become ready, or the order be settled
                if waiting and settled and (found := settled(outlook(waiting, failures, workdir))):
                    if found.settled:
                        print_line(console, f"{write_settled(workdir, found)}: {len(waiting)} runs are not started.")
                        unbegun = len(waiting)
                        waiting.clear()
                    elif found.seeds > looked:
                        looked = found.seeds
                        print_line(console, f"undecided after {found.seeds} seeds: {open_pairs(found)}")
                for run in list(
                    itertools.islice((run for run in waiting if ready(run, workdir)), launcher.jobs - len(running))
                ):
                    waiting.remove(run)
                    if store and tried_to(store.begin, run, workdir / run.name, console=console):
                        print_line(console, f"{run.name}: its pretraining is in {store.folder}")
                    running.append(start(run, workdir, launcher, runner, lock))
                    view.started(running[-1])
                if not running:
                    break
            if ended or time.monotonic() - seen >= VIEW_SECONDS:
                view.update(running, len(waiting))
                silence.look(running)
                seen = time.monotonic()
            time.sleep(POLL_SECONDS)
            ended = False
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                ended = True
                if store:
                    tried_to(store.put, job.directory, console=console)
                error = failure(job)
                if error:
                    failures[job.run.name] = error
                    Run(job.directory).failed.write(error + "\n")
                view.ended(job, error)
    for run in waiting:  # a run they need has failed
        names = dict.fromkeys(name for name, stage in awaited(run, workdir) if not stage.finished)
        failures[run.name] = f"needs {', '.join(names)}"
        Run(workdir / run.name).failed.delete()  # of an earlier sweep: this time it did not start
    return failures, unbegun


def tried_to(use: Callable[..., bool], *arguments: Any, console: Console) -> bool:
    """What a use of the store returns; a full disk or the like is printed, and the sweep goes on as without a store."""
    try:
        return use(*arguments)
    except (OSError, RunFailed) as error:
        print_line(console, f"--store: {error}; going on without it")
        return False


def outlook(waiting: Sequence[RunSpec], failures: Mapping[str, str], workdir: Path) -> dict[str, str]:
    """Status of each waiting run: "failed" if a run it needs failed in this sweep, else "unfinished"."""
    lost = set(failures)
    status = {}
    for run in waiting:  # a run comes after those it needs
        status[run.name] = "unfinished"
        if any(name in lost and not stage.finished for name, stage in awaited(run, workdir)):
            lost.add(run.name)
            status[run.name] = "failed"
    return status


def ready(run: RunSpec, workdir: Path) -> bool:
    """Whether the stages that a run takes from other runs are finished."""
    return all(stage.finished for _, stage in awaited(run, workdir))


def start(run: RunSpec, workdir: Path, launcher: Launcher, runner: str, lock: int) -> Job:
    """Starts the worker of a run."""
    directory = workdir / run.name
    job = write_job(run, directory, runner, launcher.jobs)
    Run(directory).failed.delete()
    Run(directory).alive.delete()
    log = Run(directory).log
    log_start = log.stat().st_size if log.exists() else 0
    return Job(run, directory, launcher.start(worker_command(job), directory, lock), log_start, time.monotonic())


def stop(running: Sequence[Job]) -> None:
    """Tells the workers to save and end, and waits for them."""
    for job in running:
        job.process.stop()
    for job in running:
        job.process.wait()


def kill(running: Sequence[Job]) -> None:
    """Ends the workers at once."""
    for job in list(running):
        job.process.kill()


def failure(job: Job) -> str | None:
    """Why a run failed, in one line; None if it finished."""
    status = job.process.poll()
    if status == 0 and is_finished(job.run, job.directory):
        return None
    log = Run(job.directory).log
    text = log.read_bytes()[job.log_start :].decode("utf-8", "replace") if log.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}" + (" (out of memory?)" if status == -signal.SIGKILL else "")
    if status == 0:
        return "stopped before it finished"
    return (errors or lines or [f"exit status {status}"])[-1].removeprefix("error: ")


def check_configs(runs: Sequence[RunSpec], runner: str = RUNNER) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each run's config, and, for the real runner, the configs of its adaptations and fine-tunings.

    Runs that differ only in seeds have those of the first, whatever their own seeds are: nothing here depends on them.

    Raises:
        UserError: A config is wrong; the error names the run.
    """
    configs, texts, stands_for = {}, set(), representatives(runs)
    checked = [run for run in runs if stands_for[run.name] == run.name]
    for run in checked:
        with blaming(run):
            configs[run.name] = config = load_checked(run.config, dict(run.overrides))
            if runner == RUNNER and config.train.steps and (text := text_of(config.data)) not in texts:
                check_corpus(config.data)
                texts.add(text)
    transfers = check_transfers(checked, configs) if runner == RUNNER else {}
    of_all = lambda found: {run.name: found[stands_for[run.name]] for run in runs} if found else {}
    return of_all(configs), of_all(transfers)


def text_of(data: Any) -> str:
    """The part of `config.data` that decides which text a run reads; all but the order."""
    return json.dumps({key: value for key, value in data.to_dict().items() if key != "seed"}, sort_keys=True, default=str)


def prepare_data(configs: Sequence[Any], console: Console) -> None:
    """Prepares each distinct text once, before parallel runs would each start with it.

    Raises:
        UserError: as for `prepare`, or a run asks for more of a text than there is.
    """
    for data in {text_of(config.data): config.data for config in configs}.values():
        if data.corpus:
            print_line(console, f"preparing corpus {data.corpus}")
            check_part(data.get("unique_tokens", 0), prepare(data).statistics["train"]["tokens"])


def describe(study: Study, runs: Sequence[RunSpec], searches: Sequence[Search] = ()) -> dict[str, Any]:
    """The content of study.json, as plain JSON data; its runs are without the searches' candidates."""
    axes = {axis: list(dict.fromkeys(run.labels[axis] for run in runs if run.labels[axis])) for axis in study.axis_names}
    description = {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "command": shlex.join([Path(sys.argv[0]).name.replace("cli.py", "bertlab"), *sys.argv[1:]]),
        "axes": axes,
        "downstream": list(study.tasks),
        "select": study.selected,
        "rates": list(study.rates),
        "searches": [dataclasses.asdict(search) for search in searches],
        "published": dataclasses.asdict(study.published) if study.published else None,
        "claims": [dataclasses.asdict(claim) for claim in study.claims],
        "contrasts": list(study.contrasts),
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    return json.loads(json.dumps(description))
