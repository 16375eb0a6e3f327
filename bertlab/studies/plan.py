"""What a study trains: its runs, and the configs of all their stages."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from bertlab.config.load import load_config
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.models.presets import model_shape
from bertlab.studies.runs import RunSpec, Stage, adaptation, finetuning, sharing, without_seeds
from bertlab.studies.selection import Search, find_searches
from bertlab.studies.study import Study
from bertlab.train.build import check_config, started_from
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer import finetune
from bertlab.transfer.adapt import adaptation_config
from bertlab.transfer.scoring import Tasks
from bertlab.transfer.tasks import load_tasks

PRETRAIN = ("pretrain", "")


@dataclass(frozen=True)
class Plan:
    """What a study trains, at the rates that the runs in its directory select.

    Attributes:
        searches: The searches for pretraining rates.
        candidates: The runs of the searches.
        runs: The study's runs; those in `undecided` at their own rate.
        undecided: Names of runs whose rate is not selected yet.
        configs: Run -> stage -> config, for both.
    """

    searches: Sequence[Search]
    candidates: Sequence[RunSpec]
    runs: Sequence[RunSpec]
    undecided: Sequence[str]
    configs: Mapping[str, Mapping[Stage, ConfigDict]]


def make_plan(study: Study, workdir: Path) -> Plan:
    """The plan of a study in its directory.

    Raises:
        UserError: The study or a config is wrong.
    """
    own = {run.name: run for run in study.runs()}
    configs = compose(list(own.values()))
    pretrainings = {name: of[PRETRAIN] for name, of in configs.items() if PRETRAIN in of}
    searches = find_searches(study, list(own.values()), pretrainings)
    searches = [search.extended(search.losses(workdir)) for search in searches]
    candidates, undecided, changed = [], [], []
    for search in searches:
        candidates += search.candidate_runs(own[search.runs[0]])
        rate = search.selected(search.losses(workdir))
        if rate is None:
            undecided += search.runs
        else:
            changed += [search.at_rate(own[name], rate) for name in search.runs]
    configs |= compose([*candidates, *changed])
    own |= {run.name: run for run in changed}
    runs, count = sharing([*candidates, *own.values()]), len(candidates)
    return Plan(searches, runs[:count], runs[count:], undecided, configs)


def compose(runs: Sequence[RunSpec]) -> dict[str, dict[Stage, ConfigDict]]:
    """Run -> stage -> its config; without the stages of averages and existing runs.

    Pretrainings have their own seeds; fine-tunings and adaptations may share another run's.
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
        if PRETRAIN in found[run.name]:
            config = found[run.name][PRETRAIN].copy_and_resolve_references()
            config.seed = run.overrides.get("seed", config.seed)
            config.data.seed = run.overrides.get("data.seed", config.data.seed)
            found[run.name][PRETRAIN] = config
    return found


def _stages(run: RunSpec) -> dict[Stage, ConfigDict]:
    found = {}
    if run.existing:
        if run.overrides:
            raise UserError(
                f"{run.config} is not trained further, so {next(iter(run.overrides))} has no"
                " effect; write finetune.KEY"
            )
        pretrained = RunDirectory(run.existing).config()
    else:
        config = started_from(load_config(run.config, dict(run.overrides)))
        check_config(config)
        model_shape(config.model, config.data.tokenizer.vocab_size)
        found[PRETRAIN] = config
        pretrained = config.to_dict()
    for task in run.downstream:
        before = pretrained
        begin = run.directory(Path(), *run.beginning("finetune", task))
        if run.adapt:
            arguments = adaptation(run, task) | {"workdir": begin, "pretrained": pretrained}
            first = run.directory(Path(), *PRETRAIN)
            found["adapt", task], _ = adaptation_config(first, **arguments)
            before = found["adapt", task].to_dict()
        name, recipe, overrides = finetuning(run, task).values()
        tuned = finetune.recipe_config(str(begin), name, recipe, before)
        finetune.override(tuned, overrides)
        tasks = read_tasks(tuned.task, json_line(tuned.task_data.to_dict()))
        found["finetune", task] = finetune.sized(tuned, tasks)
    return found


@functools.cache
def read_tasks(names: str, options: str) -> Tasks:
    """Each task's files are read once."""
    return load_tasks(names, json.loads(options))
