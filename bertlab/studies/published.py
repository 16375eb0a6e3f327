"""Publishes a study's results without its checkpoints, and lets a sweep on another machine go on from them.

    bertlab publish runs/table5 experiments/results/table5
    bertlab sweep --study=... --workdir=runs/table5 --published=experiments/results/table5

A published study is a study's directory without checkpoints, tokenizers, texts, predictions and logs; `bertlab report` reads it
as any other. A sweep takes its runs as finished. If something new begins with a published pretraining, it is trained again.
"""

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab import checksums
from bertlab.config import SHIPPED
from bertlab.errors import UserError
from bertlab.files import json_lines, move, temporary_folder, whole_file
from bertlab.locks import alone
from bertlab.places import require_place
from bertlab.run import JsonFile, Run, StudyDirectory
from bertlab.studies.study import RunSpec
from bertlab.studies.worker import is_finished

LINES = 30  # of each split, at most, that a published metrics.jsonl has


def publish(workdir: Path, folder: Path) -> list[str]:
    """Copies what has finished in a study to a folder; what is there already stays as it is.

    Args:
        workdir: The study's directory.
        folder: The copy's directory. If it exists, it must hold earlier results of the same study.

    Returns:
        The directories that were added, such as "mlm-seed=1" and "mlm-seed=1/finetune/sst2".

    Raises:
        UserError: The workdir holds no study, the folder holds anything else or another process publishes there, or a file in
            one of them is damaged.
    """
    source, target = StudyDirectory(workdir), StudyDirectory(folder)
    if Run(workdir).is_there() and not source.is_there():
        raise UserError(f"{workdir} holds a single run; publish takes the directory of a study (bertlab train --seeds=1,2,3)")
    source.require_whole()
    study = source.study.read()
    if folder.resolve().is_relative_to(workdir.resolve()):
        raise UserError(f"{folder} lies in the study's own directory; give a folder outside {workdir}")
    require_place(folder, "study", "folder")
    _require_own(target, study)
    with alone(folder):
        target.require_whole()
        return _publish(study, source, target)


def _require_own(target: StudyDirectory, study: dict) -> None:
    """Refuses a folder with anything but results of the study; without a study.json, publishing was interrupted there."""
    folder, names = target.directory, set(names_of(study))
    lists = {checksums.LIST} if checksums.listed(folder) == {checksums.LIST} else set()  # it is written before study.json
    begun = (f"{target.study.path.name}.", f"{checksums.LIST}.")  # of a write that was killed
    own = lambda name: name in names | lists or name.startswith(begun)
    if not target.study.exists() and (others := sorted(path.name for path in folder.glob("*") if not own(path.name))):
        raise UserError(f"{folder} holds {others[0]}, which is no result of the study; give a new or empty folder")
    if at_work := [run for run in map(target.run, sorted(names)) if run.log.exists() or run.checkpoints.exists()]:
        raise UserError(
            f"{folder} is the directory of a sweep (it has {at_work[0]}), not of published results; give another folder"
        )


def _publish(study: dict, source: StudyDirectory, target: StudyDirectory) -> list[str]:
    """Copies, while no other process does."""
    workdir, folder = source.directory, target.directory
    if (there := target.study.get(study)["name"]) != study["name"]:
        raise UserError(f'{target.study} is of study "{there}", not "{study["name"]}"; give another folder')
    added = []
    for name in names_of(study):
        places = [stage.directory.relative_to(workdir) for stage in _stages(workdir / name)]
        added += [str(place) for place in places if _copy(Run(workdir / place), Run(folder / place), workdir)]
        if places:
            _write(source.run(name).job, target.run(name).job, workdir)
    if "command" in study:
        study["command"] = _anywhere(study["command"])
    target.study.write(_elsewhere(study, workdir))
    if source.rule.exists():  # intervals are corrected for its looks
        target.rule.write(source.rule.read())
    target.settled.delete()
    if source.settled.exists():
        target.settled.write(source.settled.read())
    files = [path for pattern in ("*.json", "*.jsonl", "*.txt") for path in folder.rglob(pattern)]
    checksums.write_list(folder, [path for path in files if path.name != checksums.LIST])
    return added


def own_files(folder: Path) -> list[str]:
    """The Python files that a published study names and bertlab does not bring along: study, configs, objectives and tasks."""
    study, named = StudyDirectory(folder).study.read(), []
    words = shlex.split(study.get("command", ""))
    for before, word in zip(["", *words], words):
        flag, equals, value = word.partition("=")
        named += [value] if flag == "--study" and equals else [word] if before == "--study" else []
    for run in study["runs"]:
        downstream = run.get("downstream", ())
        settings_of = downstream if isinstance(downstream, Mapping) else {}  # a list of names has no settings
        tasks = [settings_of.get(task, {}).get("task", task) for task in downstream]
        named += [run.get("config", ""), *(part for task in tasks for part in task.split("+"))]
        for entry in Run(folder / run["name"]).config.get({}).get("objectives", {}).values():
            module, colon, _ = (entry.get("implementation") or "").partition(":")
            named += [f"{module.replace('.', '/')}.py"] if colon else []
    files = dict.fromkeys(name.partition(":")[0] for name in named)
    shipped = (SHIPPED / "experiments").resolve()
    return [name for name in files if name.endswith(".py") and not (SHIPPED / name).resolve().is_relative_to(shipped)]


def adopt(folder: Path, workdir: Path) -> None:
    """Copies a published study to a study's directory, without the runs and stages that have begun there.

    Raises:
        UserError: The folder holds no study, or one of its files is damaged.
    """
    published, target = StudyDirectory(folder), StudyDirectory(workdir)
    published.require_whole()
    names = names_of(published.study.read())
    workdir.mkdir(parents=True, exist_ok=True)
    for name in ("study", "rule"):
        if getattr(published, name).exists() and not getattr(target, name).exists():
            with whole_file(getattr(target, name).path) as partial:
                shutil.copyfile(getattr(published, name).path, partial)
    pairs = [(published.run(name), target.run(name)) for name in names if published.run(name).directory.is_dir()]
    with temporary_folder(workdir, "adopted") as folder:
        for run, there in pairs:
            if not there.job.exists():
                own = [path for path in run.directory.iterdir() if path.name not in ("adapt", "finetune")]
                for path in sorted(own, key=run.job.path.__eq__):  # its job says that all of it is there
                    _copy_whole(path, there.directory / path.name, folder)
            for stage, task in run.stages():
                if not (place := there.stage(stage, task).directory).exists():
                    _copy_whole(run.stage(stage, task).directory, place, folder)


def _copy_whole(source: Path, target: Path, folder: Path) -> None:
    """Copies a file or a folder by way of a temporary folder, so that nothing stands half-copied under its name."""
    copied = folder / source.name
    if source.is_dir():
        shutil.copytree(source, copied)
        shutil.rmtree(target, ignore_errors=True)  # of a run that has not begun
    else:
        shutil.copyfile(source, copied)
    target.parent.mkdir(parents=True, exist_ok=True)
    move(copied, target)


def clear_needed(folder: Path, workdir: Path, runs: Sequence[RunSpec]) -> list[str]:
    """Removes published pretrainings of runs that have more to do, so that they are trained again; the folder keeps them.

    Args:
        folder: From `publish`.
        workdir: The study's directory.
        runs: From `bertlab.studies.records.with_owners`, which lets no other run begin with them.

    Returns:
        The runs' names.
    """
    cleared = []
    for run in runs:
        own = Run(workdir / run.name)
        published = Run(folder / run.name).result.exists() and own.result.exists() and not own.steps()
        if published and "pretrain" not in run.shares and not is_finished(run, workdir / run.name):
            own.delete_pretraining()
            cleared.append(run.name)
    return cleared


def names_of(study: dict) -> list[str]:
    """The names of a study's runs and of the candidates for its rates."""
    candidates = [name for search in study.get("searches", ()) for name in search["candidates"]]
    return [*candidates, *(run["name"] for run in study["runs"])]


def _stages(directory: Path) -> Iterator[Run]:
    """The finished parts of a run: its pretraining, adaptations and fine-tunings."""
    run = Run(directory)
    if run.diverged.exists() or (run.result.exists() and run.measured.exists()):
        yield run
    for task in run.tasks("finetune"):  # an adaptation without one is of no use: it has no checkpoint
        if run.stage("finetune", task).result.exists():
            yield from (stage for kind in ("adapt", "finetune") if (stage := run.stage(kind, task)).result.exists())


def _copy(run: Run, copy: Run, workdir: Path) -> bool:
    """Copies the small files of a run or a stage, unless it is there; whether it did."""
    if copy.result.exists() or copy.diverged.exists():
        return False
    run.require_whole()
    for file in sorted(run.directory.glob("*.json")):
        if file.name not in (run.job.path.name, run.result.path.name, checksums.LIST):
            _write(JsonFile(file), JsonFile(copy.directory / file.name), workdir)
    if lines := run.metrics.read():
        copy.metrics.write(json_lines(thinned(lines)))
    if run.diverged.exists():
        copy.diverged.write(run.diverged.read())
    if run.result.exists():
        _write(run.result, copy.result, workdir)
    return True


def thinned(lines: Sequence[dict]) -> list[dict]:
    """At most `LINES` lines of each split, evenly, with the last."""
    by_split: dict[str, list[dict]] = {}
    for line in lines:
        by_split.setdefault(line["split"], []).append(line)
    kept = []
    for of_split in by_split.values():
        every = -(-len(of_split) // LINES)
        kept += of_split[::-1][::every]
    return sorted(kept, key=lambda line: line["step"])


def _anywhere(command: str) -> str:
    """A sweep's command as another machine runs it: all runs anew, and of the store's path only the name."""
    words, kept = shlex.split(command), []
    for place, word in enumerate(words):
        flag = word.partition("=")[0] if word.startswith("--") else ""
        given = flag or (words[place - 1] if place and words[place - 1] in ("--store", "--published") else "")
        if given == "--store" and word != "--store":
            word = f"--store={Path(word.removeprefix('--store=')).name}" if flag else Path(word).name
        kept += [] if given == "--published" else [word]
    return shlex.join(kept)


def _write(source: JsonFile, target: JsonFile, workdir: Path) -> None:
    """Copies a file, without the command of this machine's worker; study.json has the study's."""
    content = source.read()
    content.pop("command", None)
    target.write(_elsewhere(content, workdir))


def _elsewhere(content: dict, workdir: Path) -> dict:
    """The content of a file with paths below the workdir as another machine has them."""
    here = workdir.resolve()
    whole = re.compile(rf"(?<![^\s=:,'\"]){re.escape(str(here))}(?=[/\s,'\"]|$)")

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        return whole.sub(here.name, value) if isinstance(value, str) else value

    return moved(content)
