"""What a study trains: its runs, the configs of all their stages, and a dry run with its cost."""

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertlab.config.load import load_config
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.models.flops import flops_per_token
from bertlab.models.presets import model_shape
from bertlab.studies.equal import pretraining_cost
from bertlab.studies.runs import RunSpec, Stage, adaptation, finetuning, sharing, without_seeds
from bertlab.studies.selection import Search, find_searches
from bertlab.studies.study import Study
from bertlab.train.build import check_config, started_from
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer import finetune
from bertlab.transfer.build import is_fixed
from bertlab.transfer.scoring import Tasks
from bertlab.transfer.tasks import load_tasks

PRETRAIN = ("pretrain", "")


@dataclass(frozen=True)
class Plan:
    """What a study trains, at the rates that the runs in its directory select."""

    searches: Sequence[Search]  # for pretraining rates
    candidates: Sequence[RunSpec]  # the runs of the searches
    runs: Sequence[RunSpec]  # the study's; those in `undecided` at their own rate
    undecided: Sequence[str]  # names of runs whose rate is not selected yet
    configs: Mapping[str, Mapping[Stage, ConfigDict]]  # run -> stage -> config, for both


def make_plan(study: Study, workdir: Path) -> Plan:
    """The plan of a study in its directory."""
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
    """Run -> stage -> its config, without the stages of averages and existing runs; a fine-tuning
    or adaptation may be another run's, which differs in seeds."""
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
            found["adapt", task], _ = finetune.adaptation_config(first, **arguments)
            before = found["adapt", task].to_dict()
        name, recipe, overrides = finetuning(run, task).values()
        tuned = finetune.recipe_config(str(begin), name, recipe, before)
        finetune.override(tuned, overrides)
        tasks = read_tasks(tuned.task, json_line(tuned.task_data.to_dict()))
        found["finetune", task] = finetune.sized(tuned, tasks)
    return found


@functools.cache
def read_tasks(names: str, options: str) -> Tasks:
    """Reads each task's files once."""
    return load_tasks(names, json.loads(options))


def dry_run(study: Study, workdir: str | Path) -> dict[str, Any]:
    """Checks a study and prints its runs with their tokens and FLOPs; returns the names of the
    `runs` still to do, and their `tokens` and `flops`."""
    plan, workdir = make_plan(study, Path(workdir)), Path(workdir)
    total, waiting, known = np.zeros(2), [], {}
    common = Counter(text for run in plan.runs for text in changes(run))
    for run in [*plan.candidates, *plan.runs]:
        cost, left = np.zeros(2), run.unfinished(workdir)
        for stage, config in plan.configs[run.name].items():
            if stage[0] in run.shares or stage not in left:
                continue
            if id(config) not in known:
                count = finetuning_cost if stage[0] == "finetune" else pretraining_cost
                known[id(config)] = count(config)
            cost += known[id(config)]
        state = "to do" if left else "finished"
        if state == "to do":
            waiting.append(run.name)
            total += cost
        source = f"from {shared}" if (shared := run.shares.get("pretrain")) else run.config
        own = [text for text in changes(run) if common[text] < len(plan.runs)]
        source = " ".join([source, *own])
        print(f"{run.name}  ({state})  {cost[0]:.3g} tokens, {cost[1]:.3g} FLOPs; {source}")
    count, candidates = len(plan.candidates) + len(plan.runs), len(plan.candidates)
    print(
        f"{study.name}: {count} runs ({candidates} of them candidates for rates), then"
        f" {', '.join(study.tasks) or 'no task'}; {len(waiting)} to do: {total[0]:.3g} tokens,"
        f" {total[1]:.3g} FLOPs (rows counted as full); nothing was started"
    )
    return {"runs": waiting, "tokens": total[0], "flops": total[1]}


def changes(run: RunSpec) -> list[str]:
    """Its overrides, as one writes them."""
    return [f"{key}={value}" for key, value in run.overrides.items()]


def finetuning_cost(config: ConfigDict) -> tuple[float, float]:
    """(tokens, model FLOPs) of a fine-tuning by its config; rows count as full."""
    tokens = float(config.train.steps * config.data.batch_size * config.data.seq_len)
    flops = flops_per_token(model_shape(config.model, vocab_size=1), config.data.seq_len)
    share = 0.0 if config.transfer.features else 1 / 3 if is_fixed(config) else 1.0
    return tokens, share * tokens * flops
