"""A run of a study and its stages: pretraining, adaptations to tasks' texts, fine-tunings.

A stage is ("pretrain", ""), ("adapt", TASK) or ("finetune", TASK). Runs with an equal pretraining,
or equal adaptations, share them: the first one trains them.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

RATE = "optimizer.learning_rate"
Stage = tuple[str, str]


@dataclass(frozen=True)
class RunSpec:
    """One run: pretraining, perhaps an adaptation to each task's text, fine-tunings."""

    name: str  # its directory's, such as "mlm+nsp-seed=1"
    variant: str  # its labels, except the seeds' and the selected axes': "MLM, 1000"
    labels: Mapping[str, str]  # axis -> label, in the study's order; "" for none
    config: str  # file with its arguments; or "run:DIRECTORY", which is not trained further
    overrides: Mapping[str, Any]  # of pretraining
    downstream: Mapping[str, Mapping[str, Any]]  # task directory -> settings of its fine-tuning
    adapt: Mapping[str, Any] = field(default_factory=dict)  # settings of the adaptation, if any
    shares: Mapping[str, str] = field(default_factory=dict)  # stage -> the run that trains it
    averages: Sequence[str] = ()  # runs whose predictions it averages; then it trains nothing

    @property
    def existing(self) -> Path | None:
        """The directory in "run:DIRECTORY"; None for a config file."""
        path = self.config.removeprefix("run:")
        return Path(path).expanduser() if path != self.config else None

    def stages(self) -> list[Stage]:
        """Its stages in order, own and shared ones; an average has fine-tunings only."""
        adapted = [("adapt", task) for task in self.downstream if self.adapt]
        before = [] if self.averages else [("pretrain", ""), *adapted]
        return before + [("finetune", task) for task in self.downstream]

    def directory(self, workdir: Path, stage: str, task: str = "") -> Path:
        if stage == "pretrain" and self.existing:
            return self.existing
        folder = workdir / self.shares.get(stage, self.name)
        return folder / stage / task if task else folder

    def beginning(self, stage: str, task: str) -> Stage:
        """The stage whose model a later one starts from."""
        return ("adapt", task) if self.adapt and stage == "finetune" else ("pretrain", "")

    def unfinished(self, workdir: Path) -> list[Stage]:
        """Its stages, own and shared ones, without a result."""
        return [
            stage
            for stage in self.stages()
            if not (self.existing and stage[0] == "pretrain")
            and not is_finished(self.directory(workdir, *stage))
        ]

    def is_ready(self, workdir: Path) -> bool:
        """Whether everything that it takes from other runs is finished."""
        if any(stage in self.shares for stage, _ in self.unfinished(workdir)):
            return False
        averaged = itertools.product(self.averages, self.downstream)
        return all(is_finished(workdir / name / "finetune" / task) for name, task in averaged)


def is_finished(directory: Path) -> bool:
    """Whether a stage has a result."""
    return (directory / "result.json").exists()


def sharing(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """The runs, with what each takes from another one.

    A shared stage keeps the checkpoints from which a later stage of any of its runs starts.
    """
    owners, kept, found = {}, defaultdict(set), []
    identities = [_identities(run) for run in runs]
    for run, own in zip(runs, identities):
        for stage, identity in own.items():
            owners.setdefault(identity, run.name)
            later = [run.adapt] if stage == "pretrain" and run.adapt else run.downstream.values()
            kept[identity] |= {int(of["init_step"]) for of in later if "init_step" in of}

    def keeping(overrides: Mapping[str, Any], identity: str | None) -> Mapping[str, Any]:
        if not kept[identity]:
            return overrides
        steps = [*overrides.get("train.keep", "").split(","), *map(str, sorted(kept[identity]))]
        return {**overrides, "train.keep": ",".join(filter(None, dict.fromkeys(steps)))}

    for run, own in zip(runs, identities):
        shares = {stage: owners[of] for stage, of in own.items() if owners[of] != run.name}
        overrides = keeping(run.overrides, own.get("pretrain"))
        adapt = keeping(run.adapt, own.get("adapt"))
        found.append(replace(run, shares=shares, overrides=overrides, adapt=adapt))
    return found


def _identities(run: RunSpec) -> dict[str, str]:
    """Stage -> text that is the same in two runs if one can use the other's."""
    overrides, adapt = dict(run.overrides), dict(run.adapt)
    for settings in (overrides, adapt):
        settings.pop("train.keep", None)
    data = {task: task_data(settings) for task, settings in run.downstream.items()}
    found = {}
    if not run.existing and not run.averages:
        found["pretrain"] = [run.config, overrides]
    if run.adapt:
        found["adapt"] = [run.config, overrides, adapt, data]
    return {stage: json.dumps([stage, of], sort_keys=True) for stage, of in found.items()}


def task_data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a fine-tuning that its adaptation reads too."""
    return {k: v for k, v in settings.items() if k == "task" or k.startswith("task_data.")}


def without_seeds(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without those of a seed axis."""
    return {key: value for key, value in overrides.items() if key not in ("seed", "data.seed")}


def finetuning(run: RunSpec, task: str) -> dict[str, Any]:
    """The arguments of `finetune` for a task: `task`, `recipe` and `overrides`."""
    from bertlab.transfer.finetune import recipe_settings

    settings = dict(run.downstream[task])
    name, recipe = settings.pop("task", task), settings.pop("recipe", "small")
    if factor := settings.pop("rate_factor", None):
        rate = settings.get(RATE) or recipe_settings(recipe, name)[RATE]
        settings[RATE] = float(f"{factor * rate:.3g}")
    fitting = {key: value for key, value in settings.items() if _fits(key, name)}
    return {"task": name, "recipe": recipe, "overrides": fitting}


def _fits(key: str, tasks: str) -> bool:
    """Whether a setting applies to tasks: "head.NAME" does if one of their heads has it."""
    from bertlab.transfer.kinds import KINDS, find_kind
    from bertlab.transfer.tasks import find_task

    if not key.startswith("head."):
        return True
    own = [find_kind(find_task(task).kind) for task in tasks.split("+")]
    having = [kind for kind in KINDS.values() if key.removeprefix("head.") in kind.settings()]
    return not having or any(key.removeprefix("head.") in kind.settings() for kind in own)


def adaptation(run: RunSpec, task: str) -> dict[str, Any]:
    """The arguments of `adapt` for a task: `task`, `recipe`, `epochs` and `overrides`."""
    settings = task_data(run.downstream[task]) | dict(run.adapt)
    name, recipe = settings.pop("task", task), settings.pop("recipe", "same")
    epochs = float(settings.pop("epochs", 1.0))
    return {"task": name, "recipe": recipe, "epochs": epochs, "overrides": settings}
