"""Checks every config of a study, and prints its runs and their cost; nothing is trained."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config.load import load_config
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.models.flops import flops_per_token
from bertlab.models.presets import model_shape
from bertlab.studies.equal import pretraining_cost
from bertlab.studies.selection import at_selected_rates, candidate_runs, find_searches
from bertlab.studies.study import RunSpec, Study, sharing, without_seeds
from bertlab.studies.worker import adaptation, finetuning, is_finished
from bertlab.train.build import started_from
from bertlab.train.checks import check_config
from bertlab.train.run_directory import RunDirectory


def check_configs(runs: Sequence[RunSpec]) -> dict[str, ConfigDict]:
    """Composes the configs of a study's runs.

    Returns:
        Run -> the config of its pretraining; without averages and existing runs.
    """
    loaded, found = {}, {}
    for run in runs:
        if run.existing and run.overrides:
            raise UserError(
                f"run {run.name}: {run.config} is trained no further, so"
                f" {next(iter(run.overrides))} has no effect; write finetune.KEY"
            )
        if run.existing or run.averages:
            continue
        key = json.dumps([run.config, without_seeds(run.overrides)], sort_keys=True)
        try:
            if key not in loaded:
                config = started_from(load_config(run.config, dict(run.overrides)))
                check_config(config, objectives.build(config.objectives))
                model_shape(config.model, config.data.tokenizer.vocab_size)
                loaded[key] = config
        except UserError as error:
            raise UserError(f"run {run.name}: {error}") from None
        config = loaded[key].copy_and_resolve_references()
        config.seed = run.overrides.get("seed", config.seed)
        config.data.seed = run.overrides.get("data.seed", config.data.seed)
        found[run.name] = config
    return found


def check_transfers(
    runs: Sequence[RunSpec], configs: Mapping[str, ConfigDict]
) -> dict[str, dict[str, ConfigDict]]:
    """Composes the configs of adaptations and fine-tunings, and reads each task's files once.

    Args:
        runs: Of a study.
        configs: From `check_configs`.

    Returns:
        Run -> stage, such as "finetune/sst2" -> its config.
    """
    from bertlab.transfer.tasks import load_tasks

    found: dict[str, dict[str, ConfigDict]] = {}
    checked: dict[str, dict[str, ConfigDict]] = {}
    read_tasks = functools.cache(lambda names, options: load_tasks(names, json.loads(options)))
    for run in runs:
        parts = [run.overrides, run.adapt, *run.downstream.values()]
        key = json.dumps([run.config, *map(without_seeds, parts), list(run.downstream)])
        try:
            if key not in checked:
                config = configs.get(run.name)
                checked[key] = {} if run.averages else _transfers(run, config, read_tasks)
        except UserError as error:
            raise UserError(f"run {run.name}: {error}") from None
        found[run.name] = checked[key]
    return found


def _transfers(
    run: RunSpec, config: ConfigDict | None, read_tasks: Callable
) -> dict[str, ConfigDict]:
    from bertlab.transfer import finetune
    from bertlab.transfer.adapt import adaptation_config

    pretraining = config.to_dict() if config else RunDirectory(run.existing).config()
    found = {}
    for task in run.downstream:
        before, directory = pretraining, run.existing or Path(run.name)
        if run.adapt:
            path = Path(run.name, "adapt", task)
            arguments = adaptation(run, task)
            adapted, _ = adaptation_config(directory, workdir=path, pretrained=before, **arguments)
            found[f"adapt/{task}"] = adapted
            before, directory = adapted.to_dict(), path
        name, recipe, overrides = finetuning(run, task).values()
        tuned = finetune.recipe_config(str(directory), name, recipe, before)
        finetune.override(tuned, overrides)
        tasks = read_tasks(tuned.task, json_line(tuned.task_data.to_dict()))
        found[f"finetune/{task}"] = finetune.sized(tuned, tasks)
    return found


def finetuning_cost(config: ConfigDict) -> tuple[float, float]:
    """(tokens, model FLOPs) of a fine-tuning by its config; rows count as full."""
    tokens = float(config.train.steps * config.data.batch_size * config.data.seq_len)
    flops = flops_per_token(model_shape(config.model, vocab_size=1), config.data.seq_len)
    frozen = config.optimizer.frozen or config.optimizer.thaw == "head"
    share = 0.0 if config.transfer.features else 1 / 3 if frozen else 1.0
    return tokens, share * tokens * flops


def dry_run(study: Study, workdir: str | Path) -> dict[str, Any]:
    """Checks a study and prints its runs with their tokens and FLOPs.

    Returns:
        `runs`: those still to do; `tokens` and `flops` of these.
    """
    workdir = Path(workdir)
    own = study.runs()
    configs = check_configs(own)
    searches = find_searches(study, own, configs)
    candidates = candidate_runs(searches, own)
    for search in searches:
        configs |= dict.fromkeys(search.candidates, configs[search.runs[0]])
    runs = sharing([*candidates, *at_selected_rates(own, searches, workdir)])
    transfers = check_transfers(runs, configs) if study.tasks else {}
    total, waiting, known = [0.0, 0.0], [], {}
    for run in runs:
        cost = [0.0, 0.0]
        stages = dict(transfers.get(run.name, {}))
        if run.name in configs and "pretrain" not in run.shares:
            stages["pretrain"] = configs[run.name]
        for stage, config in stages.items():
            if stage.startswith("adapt/") and "adapt" in run.shares:
                continue
            if id(config) not in known:
                count = finetuning_cost if stage.startswith("finetune/") else pretraining_cost
                known[id(config)] = count(config)
            cost = [spent + more for spent, more in zip(cost, known[id(config)])]
        state = "finished" if is_finished(run, workdir) else "to do"
        if state == "to do":
            waiting.append(run.name)
            total = [spent + more for spent, more in zip(total, cost)]
        source = run.shares.get("pretrain") or run.config
        print(f"{run.name}  ({state})  {cost[0]:.3g} tokens, {cost[1]:.3g} FLOPs; {source}")
    tasks = ", ".join(study.tasks) or "no task"
    print(
        f"{study.name}: {len(runs)} runs ({len(candidates)} of them candidates for rates), then"
        f" {tasks}; {len(waiting)} to do: {total[0]:.3g} tokens, {total[1]:.3g} FLOPs (rows counted"
        " as full); nothing was started"
    )
    return {"runs": waiting, "tokens": total[0], "flops": total[1]}
