"""Composes a pretraining from its config: corpus, model, objectives, phases."""

import dataclasses
import functools
import re

import jax
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config import base_config
from bertlab.data.batches import Batches
from bertlab.data.formats import row_length
from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.attention import attention_rule
from bertlab.models.lora import Lora
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from bertlab.train.checkpoint import load_params
from bertlab.train.checks import check_config, check_devices
from bertlab.train.loop import Experiment
from bertlab.train.phases import Phase, phase_configs, steps_within, weights_of
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import parameter_name


def build_pretraining(config: ConfigDict) -> Experiment:
    """Prepares the corpus of a config unless it already is, and composes the run."""
    config = started_from(config)
    check_config(config)
    check_devices(config)
    prepared = prepare(config.data)
    program = build_program(config, vocabulary_of(prepared.tokenizer, prepared.counts))
    shape = program.body.shape
    if getattr(shape, "attention", "") == "auto":
        rule = attention_rule(shape, row_length(config.data), jax.default_backend())
        print("attention: {} ({})".format(*rule), flush=True)
    process = (jax.process_index(), jax.process_count())
    evaluations = {
        split: Batches(prepared, config.data, split, *process).evaluation(config.train.eval_batches)
        for split in ("valid", "test")
        if split == "valid" or split in prepared.statistics
    }

    def batches(data):
        return Batches(prepared, data, "train", *process)

    if config.train.tokens and config.train.steps:  # counting all processes' rows
        whole = build_phases(config, program, functools.partial(Batches, prepared))
        config.train.steps = steps_within(config.train.tokens, whole)
    phases = build_phases(config, program, batches)
    facts = {"fingerprint": prepared.fingerprint, "statistics": prepared.statistics}
    start = None
    if config.init_from:
        start = functools.partial(start_from, warm_start(config, prepared.tokenizer))
    return Experiment(config, program, phases, prepared.tokenizer, evaluations, facts, start)


def build_program(config: ConfigDict, vocabulary: objectives.Vocabulary) -> Program:
    """Model and objectives of a config."""
    return Program(
        build_body(model_shape(config.model, vocabulary.size)),
        objectives.build(config.objectives),
        vocabulary,
        stream=config.data.format == "stream",
        stateful=config.model.stateful,
        adapter=Lora(**config.lora) if config.lora.rank else None,
    )


def started_from(config: ConfigDict) -> ConfigDict:
    """A copy of the config with the size, shape and tokenizer of the run in `config.init_from`.

    What the config sets is kept if the parameters mean the same with it.
    """
    config = config.copy_and_resolve_references()
    if not config.init_from:
        return config
    run, model = RunDirectory(config.init_from), config.model
    theirs = ConfigDict({**base_config().model, **run.config()["model"]})
    if model.family == theirs.family:
        model.size = theirs.size
        for key in theirs:
            if model.get(key) is None:
                model[key] = theirs[key]
    require_same_model(model, theirs, run)
    config.data.tokenizer.path = config.data.tokenizer.path or str(run.tokenizer)
    return config


def require_same_model(model: ConfigDict, theirs: ConfigDict, run: RunDirectory) -> None:
    """Refuses values of a model for which the parameters of a run of `theirs` would mean something
    else."""
    shapes = [dataclasses.asdict(model_shape(each, vocab_size=1)) for each in (model, theirs)]
    for key in sorted(shapes[0].keys() | shapes[1].keys()):
        ours, its = (shape.get(key) for shape in shapes)
        if ours != its and not MAY_DIFFER.fullmatch(key):
            raise UserError(
                f"config.model.{key} is {ours!r}, and {its!r} in the {theirs.family} model of"
                f" config.init_from={run}; leave it unset, and use that family's recipe"
            )


MAY_DIFFER = re.compile(r"direction|dtype|remat|scan_layers|attention|sides|.*dropout")
"""Keys of a shape that may differ while the parameters stay equally valid."""


def warm_start(config: ConfigDict, tokenizer):
    """Parameters of the run in `config.init_from`, which must have the same vocabulary."""
    run = RunDirectory(config.init_from)
    if load_tokenizer(run.tokenizer).pieces() != tokenizer.pieces():
        raise UserError(
            f"config.data.tokenizer.path has a different vocabulary from config.init_from={run};"
            " leave it unset"
        )
    return load_params(run, config.init_step)


def start_from(trained, fresh):
    """The trained parameters where there are any, else fresh ones, as for a new head."""
    found = {parameter_name(path): x for path, x in jax.tree.leaves_with_path(trained)}
    new = []

    def choose(path, leaf):
        name = parameter_name(path)
        if name not in found:
            new.append(name)
        elif found[name].shape != leaf.shape:
            raise UserError(
                f"{name} of config.init_from has the shape {found[name].shape}, and {leaf.shape}"
                " here; use the same config.model"
            )
        return found.get(name, leaf)

    chosen = jax.tree.map_with_path(choose, fresh)
    if new:
        print(f"new in this run: {', '.join(new)}", flush=True)
    return chosen


def vocabulary_of(tokenizer: Tokenizer, counts=None) -> objectives.Vocabulary:
    """What objectives know about a tokenizer and, with `counts` [V] of its ids, its corpus."""
    return objectives.Vocabulary(
        size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        unk_id=tokenizer.unk_id,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        counts=None if counts is None else tuple(counts.tolist()),
        continues=tokenizer.continues(),
    )


def build_phases(config: ConfigDict, program: Program, batches) -> tuple[Phase, ...]:
    """The phases of `config.train.phases`, or a single one, with `batches` of their `config.data`.

    A phase continues where the previous one ended if its rows are the same, else from the start.
    """
    phases, begin, first, source = [], 0, 0, None
    for end, phase_config in phase_configs(config):
        made = batches(phase_config.data)
        if source is None or made.hash != source.hash:
            source, first = made, begin
        weights = {name: weights_of(entry) for name, entry in phase_config.objectives.items()}
        # An objective without weight costs nothing, unless another one reads its view.
        views = {program.objectives[name].shares for name, weight in weights.items() if any(weight)}
        trained = [name for name, weight in weights.items() if any(weight) or name in views]
        phases.append(
            Phase(
                begin=begin,
                end=end,
                rows=phase_config.data.batch_size,
                program=dataclasses.replace(
                    program, objectives={name: program.objectives[name] for name in trained}
                ),
                weights={name: weights[name] for name in trained},
                # From the batch of step `first` on.
                batches=lambda step, source=source, first=first: source(step - first),
                data_hash=source.hash,
            )
        )
        begin = end
    return tuple(phases)
