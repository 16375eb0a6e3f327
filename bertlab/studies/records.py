"""What a study's workdir holds from earlier sweeps: the settings of each stage, and whether it has something to lose.

A run's job.json records the settings of every stage that has begun. A stage with a result or a checkpoint keeps its settings; a
stage that saved nothing may get new ones, and starts over.
"""

import functools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.places import require_place
from bertlab.run import JsonFile, Run, StudyDirectory
from bertlab.studies.study import RunSpec, begun_at, sharing
from bertlab.studies.worker import Stage, existing_run, is_finished, pretrained, recorded, stage_settings
from bertlab.train.code import code_of, file_of, other_code

LISTED = 6  # runs that an error names


def with_owners(runs: Sequence[RunSpec], workdir: Path) -> list[RunSpec]:
    """The runs, each sharing a stage with the run that already has it in this workdir, whatever their order.

    A run that has more to do cannot begin with a stage whose checkpoints are gone, as those of a published one are: it shares
    the stage with another run that has it or still has to train it.
    """

    there_of = functools.cache(lambda name: recorded(workdir / name))

    def has_it(stage: str, run: RunSpec) -> bool:
        wanted, there = stage_settings(run), there_of(run.name)
        return any(there.get(key) == of for key, of in wanted.items() if key.partition("/")[0] == stage)

    shared = sharing(runs, has_it)
    to_do = {run.name for run in shared if not is_finished(run, workdir / run.name)}

    def claim(stage: str, run: RunSpec) -> int:
        of = Run(workdir / run.name)
        gone = stage == "pretrain" and of.result.exists() and not of.steps()
        return 2 if has_it(stage, run) and not gone else int(run.name in to_do)

    return [new if new.name in to_do else old for old, new in zip(shared, sharing(runs, claim), strict=True)]


def check_same_study(workdir: Path, description: Mapping[str, Any], runs: Sequence[RunSpec]) -> None:
    """Refuses a workdir in which something would be lost, or would continue as something else.

    Runs and tasks that left the study stay on disk as they are; new ones are added.

    Args:
        workdir: The study's.
        description: The new content of study.json.
        runs: From `with_owners`.

    Raises:
        UserError: The workdir is not a directory or belongs to a single run; the study's name, axes or factors of rates differ;
            the settings of a stage with something to lose differ; or a run uses the pretraining of a run that left the study.
    """
    path = StudyDirectory(workdir).study
    for place in (workdir, *(workdir / run.name for run in runs)):
        if place.exists() and not place.is_dir():
            raise UserError(f"{place} is a file, not the directory of a study or run; give another --workdir")
    require_place(workdir, "study")
    if not path.exists():
        return
    old = path.read()
    if old["name"] != description["name"]:
        _refuse(path, [f'its name is "{old["name"]}", not "{description["name"]}"'])
    if list(old["axes"]) != list(description["axes"]):
        _refuse(path, [f"its axes are {', '.join(old['axes'])}, not {', '.join(description['axes'])}"])
    rates = [of.get("rates", []) for of in (old, description)]
    if rates[0] != rates[1] and any(_begun(place, recorded(place)) for place in (workdir / run["name"] for run in old["runs"])):
        before, now = (", ".join(map(str, of)) or "none" for of in rates)
        _refuse(path, [f"the factors of its pretraining rates are {before}, not {now} (select=off: none)"])
    differences, there = {}, {run.name: recorded(workdir / run.name) for run in runs}
    for run, key, before, now in _changes(runs, there):
        if has_something_to_lose(workdir / run.name, key):
            for name in [name for name in before | now if before.get(name, "unset") != now.get(name, "unset")]:
                said = f"in its run {run.name} {name} is {before.get(name, 'unset')!r}, not {now.get(name, 'unset')!r}"
                differences.setdefault(said, _directory(workdir / run.name, key))
    if differences:
        _refuse(path, list(differences), next(iter(differences.values())))
    for run in runs:
        directory = workdir / run.name
        before = Run(directory).job.read()["run"]["shares"].values() if _begun(directory, there[run.name]) else ()
        if gone := [owner for owner in before if owner not in there]:
            raise UserError(
                f"{path}: run {run.name} uses the pretraining of run {gone[0]}, and this study no longer has it; add that run,"
                " or give another --workdir"
            )


def check_same_code(
    workdir: Path, runs: Sequence[RunSpec], configs: Mapping[str, Any], transfers: Mapping[str, Mapping[tuple[str, str], Any]]
) -> None:
    """Refuses a workdir in which runs were trained with other code of an outside objective or own task than there is now.

    Args:
        workdir: The study's.
        runs: Of the study.
        configs, transfers: Run -> its pretraining's config; run -> those of its adaptations and fine-tunings.

    Raises:
        UserError: Names the file and the runs.
    """
    code = functools.cache(lambda key: code_of(json.loads(key)))
    changed: dict[str, list[str]] = {}
    for run in runs:
        stages = {"/".join(stage): config for stage, config in transfers.get(run.name, {}).items()}
        for key, config in ({"pretrain": configs[run.name]} | stages).items():
            named = {"objectives": config.objectives.to_dict(), "task": config.get("task", "")}
            there = Run(_directory(workdir / run.name, key))
            if (now := code(json.dumps(named, sort_keys=True))) and has_something_to_lose(workdir / run.name, key):
                for name in other_code(there, now):
                    changed.setdefault(name, []).append(str(there))
    for name, places in changed.items():
        more = f" and {len(places) - LISTED} more" if len(places) > LISTED else ""
        raise UserError(
            f"{file_of(name)}, or a file that it imports, is not as it was when these were trained with {name}:"
            f" {', '.join(places[:LISTED])}{more}; restore it, give another --workdir, or delete them to train them again"
        )


def check_steps(workdir: Path, runs: Sequence[RunSpec], configs: Mapping[str, Any] = {}) -> None:
    """Refuses a study that begins with a step without a checkpoint, or with whatever a run that still trains has by then.

    Args:
        workdir: The study's.
        runs: From `with_owners`.
        configs: Run name -> the config of its pretraining.

    Raises:
        UserError: Names the step and those that there are.
    """
    for run in runs:
        directory = workdir / run.name
        _require_one_step(run, directory, configs.get(run.name))
        for stage, task, begins_with, step in begun_at(run):
            if Stage(stage, task, directory / stage / task).finished or run.averages:
                continue
            source = Run(pretrained(run, directory, task if stage == "finetune" else ""))
            there = source.steps()
            done = source.result.exists() or (begins_with == "pretrain" and existing_run(run.config))
            if step not in there and (done or (there and step < there[-1])):
                listed = ", ".join(map(str, there)) or "none"
                raise UserError(
                    f"run {run.name}: {stage}.init_step={step}, but {source} has checkpoints at {listed} and goes on from the"
                    " last one; choose one of these steps, or give another --workdir"
                )


def _require_one_step(run: RunSpec, directory: Path, config: Any) -> None:
    """Refuses to begin with a run that is not finished, unless the step is named."""
    begins: list[tuple[Stage, Any, Any, str]] = []
    if given := existing_run(run.config):
        key = "adapt.init_step" if run.adapt else "finetune.init_step"
        said = f"{key} (of bertlab finetune: --config.init_step)"
        for task, finetune in run.downstream.items():
            step = (run.adapt or finetune).get("init_step")
            begins.append((Stage("finetune", task, directory / "finetune" / task), given, step, said))
    elif config is not None and config.init_from and "pretrain" not in run.shares:
        begins.append((Stage("pretrain", "", directory), config.init_from, config.init_step, "config.init_step"))
    for stage, path, step, key in begins:
        source = Run(Path(path).expanduser())
        if step is None and source.is_half_trained() and not stage.finished:
            raise UserError(
                f"{source} is not finished, so runs of this study could start from different checkpoints of it; let it finish,"
                f" or set {key}, now at most {source.steps()[-1]}"
            )


def clear_changed(workdir: Path, runs: Sequence[RunSpec]) -> None:
    """Removes the remains of stages that have new settings and had nothing to lose."""
    for run, key, _, _ in _changes(runs, {run.name: recorded(workdir / run.name) for run in runs}):
        if key == "pretrain":
            Run(workdir / run.name).delete_pretraining()
        else:
            shutil.rmtree(workdir / run.name / key, ignore_errors=True)


def has_something_to_lose(directory: Path, key: str) -> bool:
    """Whether a stage has its own result or checkpoint; the result of an existing run that a study uses is not its own."""
    run = Run(_directory(directory, key))
    own = run.result.exists() and (key != "pretrain" or "run" not in run.result.read())
    return own or bool(run.steps())


def _begun(directory: Path, stages: Iterable[str]) -> bool:
    return any(has_something_to_lose(directory, key) for key in stages)


def _directory(directory: Path, key: str) -> Path:
    return directory if key == "pretrain" else directory / key


def _changes(runs: Sequence[RunSpec], there: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple]:
    """(run, stage, settings there, settings now) of each stage that began with other settings than it has now.

    Args:
        runs: Of the study.
        there: Run -> what `recorded` says.
    """
    for run in runs:
        wanted = stage_settings(run)
        for key, before in there[run.name].items():
            now = wanted.get(key, before)
            if now != before:
                yield run, key, before, now


def _refuse(path: JsonFile, differences: Sequence[str], place: Path | None = None) -> None:
    more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
    delete = f", or delete {place} to lose its results and start it over" if place else ""
    raise UserError(f"{path} holds another study: {differences[0]}{more}; give another --workdir{delete}")
