"""Builds an experiment from a config: checks it first, then composes data, model and objectives."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.data.batches import TrainingBatches, eval_batches, train_batches
from bertlab.data.facts import data_facts
from bertlab.data.formats import NEGATIVES, format_of
from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.judging import guessing_of, prediction_flops
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.train import sources
from bertlab.train.checkpoint import load_params
from bertlab.train.checks import check_config, check_devices, check_family, check_model, check_vocabulary, vocabulary_of
from bertlab.train.layer_groups import parameter_at, parameter_name
from bertlab.train.lora import build_adapter
from bertlab.train.phases import phase_configs, weights_of
from bertlab.train.processes import part
from bertlab.train.state import weights_at


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run (often the whole) that trains one set of objectives on batches of one shape.

    Attributes:
        end: number of the run's steps done when the phase ends.
        data: `config.data` of its batches.
        program: model and the objectives that it trains.
        weights: objective name to weight in the loss at the run's first and last step.
        train: endless training batches; the same object as in the previous phase if the data continues.
    """

    end: int
    data: ConfigDict
    program: Program
    weights: Mapping[str, tuple[float, float]]
    train: TrainingBatches


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a run needs besides its directory.

    Attributes:
        config: the whole config, as written to config.json.
        program: model and all objectives as pure functions.
        phases: the phases in order.
        tokenizer: saved with the run.
        evaluations: held-out batches by split; "valid" is evaluated during training, all splits at the end.
        sources: digests of what is read (`bertlab.train.sources`).
        classes: the names of each task's classes by number; None for pretraining.
        data_facts: facts about corpus and batches, for `bertlab doctor`; None for a task's rows.
        warm_start: (fresh parameters, step of the run to start from; None: its last) -> parameters to start from; or None.
        score: (split, the objectives' outputs for each evaluation batch) -> metrics that are not means over rows, such as F1;
            None for pretraining.
        counts: of a fine-tuning, for result.json: what of its examples is `cut` (`bertlab.transfer.cut`), and `unseen_tags`.
    """

    config: ConfigDict
    program: Program
    phases: tuple[Phase, ...]
    tokenizer: Tokenizer
    evaluations: Mapping[str, list[dict[str, np.ndarray]]]
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classes: Mapping[str, list[str]] | None = None
    data_facts: Mapping[str, Any] | None = None
    warm_start: Callable[[Any, int | None], Any] | None = None
    score: Callable[[str, list[Mapping[str, Any]]], dict[str, float]] | None = None
    counts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def phase(self, step: int) -> Phase:
        """The phase of the update that follows `step` updates; after the last one, the last."""
        return next((phase for phase in self.phases if step < phase.end), self.phases[-1])

    def weights(self, step: int) -> dict[str, float]:
        """Each trained objective's weight in the loss of the `step`-th update, from 1."""
        before = max(step - 1, 0)
        return weights_at(self.phase(before).weights, before / max(1, self.config.train.steps))


def build_pretraining(config: ConfigDict) -> Experiment:
    """Checks the config, prepares its corpus if necessary, and composes the run.

    Args:
        config: a whole experiment config.

    Raises:
        UserError: from any of the checks.
    """
    built = check_config(config)
    check_devices(config)
    if config.data.tokenizer.path:  # known before any text is read
        check_vocabulary(config, load_tokenizer(Path(config.data.tokenizer.path)), built)
    prepared = prepare(config.data)
    if not config.data.tokenizer.path:
        check_vocabulary(config, prepared.tokenizer, built)
    evaluations = {split: eval_batches(prepared, config.data, split, config.train.eval_batches) for split in ("valid", "test")}
    program = compose(config, built, vocabulary_of(prepared.tokenizer, prepared.counts))
    for name, objective in built.items():  # reports a mistake before anything is compiled
        prediction_flops(name, objective, program.body.config)
    facts = data_facts(prepared, evaluations, config.data.get("unique_tokens", 0))
    asked = objective_facts(built, prepared, evaluations)
    process, begin = part(), Path(config.init_from).expanduser()
    phases = build_phases(config, program, lambda data: train_batches(prepared, data, process))
    for phase in phases:
        for name in (name for name in phase.program.objectives if asked[name]["labels"]):
            if said := format_of(phase.data, prepared).constant_label():
                asked[name]["constant"] = said
    return Experiment(
        config=config,
        program=program,
        phases=phases,
        tokenizer=prepared.tokenizer,
        evaluations=evaluations,
        sources={sources.CORPUS: prepared.fingerprint, **sources.of_start(config)},
        data_facts=facts | {"objectives": asked},
        warm_start=(lambda fresh, step: warm_start(fresh, begin, step)) if config.init_from else None,
    )


def compose(config: ConfigDict, built: Mapping[str, objectives.Objective], vocabulary: objectives.Vocabulary) -> Program:
    """A pretraining's model and objectives as pure functions."""
    body, stream = build_body(model_shape(config.model, vocabulary.size)), format_of(config.data).is_stream
    return Program(body, built, vocabulary, stream=stream, stateful=config.model.stateful, adapter=build_adapter(config.lora))


def objective_facts(built: Mapping[str, objectives.Objective], prepared, evaluations) -> dict[str, dict[str, Any]]:
    """The entries of each objective in data.json: its `asks`, its `labels`, and the loss of `guessing` in nats."""
    batches = evaluations["valid"]
    return {
        name: {
            "asks": objective.asks,
            "labels": next((field for field in objective.needs if field in NEGATIVES.values()), None),
            "guessing": guessing_of(name, objective, prepared.counts, batches),
        }
        for name, objective in built.items()
    }


def build_phases(config: ConfigDict, program: Program, batches: Callable[[ConfigDict], TrainingBatches]) -> tuple[Phase, ...]:
    """The phases of `config.train.phases`, or a single phase if it is empty.

    Args:
        config: a checked config.
        program: with all objectives.
        batches: `config.data` -> endless training batches.
    """
    built = []
    for end, of_phase in phase_configs(config):
        same = built and built[-1].data == of_phase.data
        weights = {name: weights_of(entry) for name, entry in of_phase.objectives.items()}
        # Keep the objective whose view is shown: otherwise objectives that share it would see something else than at the end.
        shown = {view for view, names in program.groups.items() if any(any(weights[name]) for name in names)}
        trained = {name: o for name, o in program.objectives.items() if any(weights[name]) or name in shown}
        built.append(
            Phase(
                end=end,
                data=of_phase.data,
                program=dataclasses.replace(program, objectives=trained),
                weights={name: weights[name] for name in trained},
                train=built[-1].train if same else batches(of_phase.data),
            )
        )
    return tuple(built)


def begun_from(config: ConfigDict) -> ConfigDict:
    """The config with the model and tokenizer of the run in `config.init_from`; unchanged if that is empty.

    Size and shape come from that run, and so do `direction`, dropouts and the tokenizer if the config does not set them. The
    keys for how to compute it (dtype, remat, scan_layers, stateful) stay as in the config.

    Raises:
        UserError: the run or checkpoint does not exist, or a key of the config contradicts its model.
    """
    if not config.init_from:
        if config.init_step is not None:
            raise UserError(f"config.init_step={config.init_step} has no effect without config.init_from; set it to a run")
        return config
    run = Run(Path(config.init_from).expanduser())
    if not run.config.exists():
        raise UserError(
            f"config.init_from={config.init_from} has no config.json; give the --workdir of a `bertlab train` or `import`"
        )
    run.require_step(config.init_step)
    theirs = ConfigDict(run.model_config()["model"])
    config = config.copy_and_resolve_references()
    check_family(config, theirs)
    config.model.size = theirs.size
    for key in [key for key, value in config.model.items() if value is None and theirs.get(key) is not None]:
        config.model[key] = theirs[key]
    check_model(config, theirs)
    config.data.tokenizer.path = config.data.tokenizer.path or str(run.tokenizer)
    return config


def warm_start(fresh, run: Path, step: int | None = None, change: Callable[[Any], Any] = lambda pretrained: pretrained):
    """Fresh parameters, replaced by a run's (converted by `change`) if it has them; prints the missing ones.

    Args:
        fresh: tree of parameters.
        run: the run with the checkpoint.
        step: of that checkpoint; None: the last one.
        change: a function applied to the run's parameters first.

    Raises:
        UserError: the run has no such checkpoint, or one of its parameters has another shape.
    """
    params, kept_fresh = grafted(fresh, change(load_params(run, step)), run)
    if kept_fresh:
        print(f"not in {run}, so newly initialized: {', '.join(kept_fresh)}", flush=True)
    return params


def grafted(fresh, pretrained, run: Path) -> tuple[dict, list[str]]:
    """Fresh parameters, replaced by the pretrained tree's; and the names of those that stay fresh (a new head).

    Raises:
        UserError: a parameter has another shape in `run`.
    """
    kept_fresh = []

    def graft(path, leaf):
        name, node = parameter_name(path), parameter_at(pretrained, path)
        if node is None:
            kept_fresh.append(name)
            return leaf
        if node.shape != leaf.shape:
            raise UserError(f"parameter {name} is {node.shape} in {run} and {leaf.shape} here; use the same config.model")
        return node

    return jax.tree_util.tree_map_with_path(graft, fresh), kept_fresh
