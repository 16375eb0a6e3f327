"""Composes the configs of all stages of a study, before anything is trained."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config.load import load_config
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.models.presets import model_shape
from bertlab.studies.runs import RunSpec, Stage, adaptation, finetuning, without_seeds
from bertlab.train.build import started_from
from bertlab.train.checks import check_config
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer import finetune
from bertlab.transfer.adapt import adaptation_config
from bertlab.transfer.build import Tasks
from bertlab.transfer.tasks import load_tasks


def compose(runs: Sequence[RunSpec]) -> dict[str, dict[Stage, ConfigDict]]:
    """Run -> stage -> its config; without the stages of averages and existing runs.

    Pretrainings have their own seeds; fine-tunings and adaptations may have those of another run.
    Each task's files are read once.
    """
    found, loaded = {}, {}
    for run in runs:
        parts = [run.overrides, run.adapt, *run.downstream.values()]
        key = json.dumps([run.config, *map(without_seeds, parts), list(run.downstream)])
        try:
            if key not in loaded:
                loaded[key] = {} if run.averages else _stages(run)
        except UserError as error:
            raise UserError(f"run {run.name}: {error}") from None
        found[run.name] = dict(loaded[key])
        if ("pretrain", "") in found[run.name]:
            config = found[run.name]["pretrain", ""].copy_and_resolve_references()
            config.seed = run.overrides.get("seed", config.seed)
            config.data.seed = run.overrides.get("data.seed", config.data.seed)
            found[run.name]["pretrain", ""] = config
    return found


@functools.cache
def _read_tasks(names: str, options: str) -> Tasks:
    return load_tasks(names, json.loads(options))


def _stages(run: RunSpec) -> dict[Stage, ConfigDict]:
    found = {}
    if run.existing:
        if run.overrides:
            raise UserError(
                f"{run.config} is trained no further, so {next(iter(run.overrides))} has no"
                " effect; write finetune.KEY"
            )
        pretrained = RunDirectory(run.existing).config()
    else:
        config = started_from(load_config(run.config, dict(run.overrides)))
        check_config(config, objectives.build(config.objectives))
        model_shape(config.model, config.data.tokenizer.vocab_size)
        found["pretrain", ""] = config
        pretrained = config.to_dict()
    for task in run.downstream:
        before = pretrained
        begin = run.directory(Path(), *run.beginning("finetune", task))
        if run.adapt:
            first = run.directory(Path(), "pretrain")
            arguments = adaptation(run, task) | {"workdir": begin, "pretrained": pretrained}
            found["adapt", task], _ = adaptation_config(first, **arguments)
            before = found["adapt", task].to_dict()
        name, recipe, overrides = finetuning(run, task).values()
        tuned = finetune.recipe_config(str(begin), name, recipe, before)
        finetune.override(tuned, overrides)
        tasks = _read_tasks(tuned.task, json_line(tuned.task_data.to_dict()))
        found["finetune", task] = finetune.sized(tuned, tasks)
    return found
