"""Composes and checks the configs of all stages of a study's runs before anything runs."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from bertlab.config import UnknownKey, as_saved, base_config, load_config
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import seed_axes, variant_name
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.worker import adaptation, existing_run, finetuning
from bertlab.train.build import begun_from
from bertlab.train.checks import check_config
from bertlab.train.layer_groups import freezes, has_factors, layer_plan
from bertlab.train.made_up import MadeUpRows, made_up_program
from bertlab.transfer.adapt import adaptation_config
from bertlab.transfer.composition import check_finetuning
from bertlab.transfer.finetune import finetune_config, overridden, sized
from bertlab.transfer.tasks import load_tasks

Transfers = dict[tuple[str, str], ConfigDict]
"""("adapt" or "finetune", task) -> config."""


def load_checked(spec: str, overrides: Mapping[str, Any]) -> ConfigDict:
    """Loads and checks a config, to catch mistakes before any run of the sweep starts.

    Raises:
        UserError: The config is wrong, or overrides the training of an existing run.
    """
    given = existing_run(spec)
    if given or spec.startswith("average:"):
        if given:
            Run(given).config.read()
        if overrides:
            raise UserError(f"{spec} is not pretrained further, so {next(iter(overrides))} has no effect; write finetune.KEY")
        config = base_config()
        config.data.corpus, config.train.steps = "", 0  # only the tasks are read and trained
        return config
    config = begun_from(load_config(spec, overrides))
    _check_pretraining(config)
    return config


def check_claims(study: Study) -> None:
    """Refuses a claim or a contrast with a variant that the study does not have.

    Raises:
        UserError: Names the variants.
    """
    shown = [axis for axis in study.axis_names if axis not in (*seed_axes(study.axis_names), *study.selected)]
    variants = {variant_name(point[axis].label for axis in shown if axis in point) for point in study.grid}
    pairs = [("claim", claim.higher, claim.lower) for claim in study.claims]
    for of, *pair in pairs + [("contrast", *pair) for pair in study.contrasts]:
        if unknown := {*pair} - variants:
            raise UserError(
                f'study {study.name}: a {of} is about "{min(unknown)}", and the variants are {"; ".join(sorted(variants))}'
            )


def check_transfers(runs: Sequence[RunSpec], configs: Mapping[str, ConfigDict]) -> dict[str, Transfers]:
    """The configs of each run's adaptations and fine-tunings; the pretraining need not exist yet.

    No device is used: accelerators belong to the workers.

    Args:
        runs: Of a study; of those that differ only in seeds, one is enough.
        configs: Run -> its pretraining's config, from `load_checked`.

    Raises:
        UserError: A task, its files, a recipe or a setting is wrong; the error names the run.
    """
    check, found = _Checker(), {}
    for run in runs:
        with blaming(run):
            found[run.name] = {} if run.averages else check.transfers(run, configs[run.name])
    return found


@contextlib.contextmanager
def blaming(run: RunSpec) -> Iterator[None]:
    """Names the run in a UserError; if the unknown key is an axis, adds how to name an axis."""
    try:
        yield
    except UserError as error:
        axis = " (name an axis of values after a config key, or give it labels with overrides)"
        is_axis = isinstance(error, UnknownKey) and error.shown in run.labels
        raise UserError(f"run {run.name}: {error}{axis if is_axis else ''}") from None


@contextlib.contextmanager
def _of_stage(stage: str, task: str) -> Iterator[None]:
    """Names the stage in a UserError, and an unknown key as the study spells it."""
    try:
        yield
    except UnknownKey as error:
        near = [f"{stage}.{key}" for key in error.near]
        raise UnknownKey(f"{stage}.{error.key}", error.key, near, error.groups) from None
    except UserError as error:
        raise UserError(f"{stage} on {task}: {error}") from None


class _Checker:
    """Composes and checks configs; reads each task's files and each tokenizer once."""

    def __init__(self):
        self._load = functools.cache(lambda names, options: load_tasks(names, json.loads(options)))
        self._tokenizer: Callable[[Path], Tokenizer] = functools.cache(load_tokenizer)
        self._checked: set[str] = set()

    def transfers(self, run: RunSpec, config: ConfigDict) -> Transfers:
        """The configs of one run's adaptations and fine-tunings."""
        given = existing_run(run.config)
        pretrained = Run(given).config.read() if given else as_saved(config.to_dict())
        path = Run(given).tokenizer if given else config.data.tokenizer.path
        tokenizer = self._tokenizer(Path(path)) if path else None
        found = {}
        for task in run.downstream:
            begun = pretrained
            if run.adapt:
                with _of_stage("adapt", task):
                    found["adapt", task] = adapted = self._adapted(run, task, pretrained)
                begun = as_saved(adapted.to_dict())
            with _of_stage("finetune", task):
                found["finetune", task] = self._finetuned(run, task, begun, tokenizer)
        return found

    def _adapted(self, run: RunSpec, task: str, pretrained: Mapping[str, Any]) -> ConfigDict:
        directory = existing_run(run.config) or Path(run.name)
        place = Path(run.name, "adapt", task)
        config, _ = adaptation_config(run=directory, workdir=place, pretrained=pretrained, **adaptation(run, task))
        if not existing_run(run.config):
            _check_reached(config, pretrained["train"])
        self._once(config, lambda: _check_pretraining(config))
        return config

    def _finetuned(self, run: RunSpec, task: str, begun: Mapping[str, Any], tokenizer: Tokenizer | None) -> ConfigDict:
        given = finetuning(run, task)
        config = finetune_config(Path(run.name), given["task"], given["recipe"], begun)
        config = overridden(config, given["overrides"])
        if run.adapt or not existing_run(run.config):  # of an existing run the checkpoints are known
            _check_reached(config, begun["train"])
        tasks = self._load(config.task, json.dumps(config.task_data.to_dict(), sort_keys=True))
        config = sized(config, tasks)
        self._once(config, lambda: check_finetuning(config, tasks, begun, tokenizer))
        return config

    def _once(self, config: ConfigDict, check: Callable[[], None]) -> None:
        values = config.to_dict()
        data = {key: value for key, value in values["data"].items() if key not in ("seed", "corpus", "tokenizer")}
        same = {key: value for key, value in values.items() if key not in ("seed", "init_from", "init_step")} | {"data": data}
        if (key := json.dumps(same, sort_keys=True)) not in self._checked:
            check()
            self._checked.add(key)


def _check_pretraining(config: ConfigDict) -> None:
    """Raises: UserError: as `check_config`, or the optimiser's layer keys do not fit the model."""
    check_config(config)
    optimizer = config.optimizer
    if freezes(optimizer) or has_factors(optimizer):
        program, rows = made_up_program(config), MadeUpRows(config.data, config.data.tokenizer.vocab_size)
        batch = next(iter(rows))
        layer_plan(optimizer, config.train.steps, jax.eval_shape(lambda: program.init(jax.random.key(0), batch)))


def _check_reached(config: ConfigDict, before: Mapping[str, Any]) -> None:
    """Raises: UserError: The config begins with a step that the stage before it, of which this is `train`, does not reach."""
    if config.init_step is not None and config.init_step > before["steps"] and not before["budget"]:
        raise UserError(f"init_step={config.init_step} is beyond the {before['steps']} steps that are trained before; lower it")
