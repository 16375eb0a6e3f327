"""Builds a pretraining from its config, and refuses configs that would silently train something
else."""

import dataclasses
import functools
import re

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config import base_config
from bertlab.data.batches import Batches
from bertlab.data.formats import FORMATS, label_field, row_length
from bertlab.data.formats.pairs import NEGATIVES
from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError, require_choice
from bertlab.models.attention import attention_rule
from bertlab.models.base import sides_of
from bertlab.models.lora import Lora
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.objectives.program import Program
from bertlab.train.checkpoint import load_params
from bertlab.train.loop import Experiment
from bertlab.train.phases import build_phases, steps_within, weights_of
from bertlab.train.run_directory import RunDirectory
from bertlab.train.sharding import build_mesh
from bertlab.train.state import parameter_name


def build_pretraining(config: ConfigDict) -> Experiment:
    """Prepares the corpus of a config unless it already is, and composes the run."""
    config = started_from(config)
    check_config(config)
    check_devices(config)
    prepared = prepare(config.data)
    program = build_program(config, vocabulary_of(prepared.tokenizer, prepared.counts))
    shape = program.body.shape
    if hasattr(shape, "attention") and jax.process_index() == 0:
        rule = attention_rule(shape, row_length(config.data), jax.default_backend())
        print("attention: {} ({})".format(*rule), flush=True)

    def batches(data, split="train"):
        return Batches(prepared, data, split, jax.process_index(), jax.process_count())

    if config.train.tokens and config.train.steps:  # counting all processes' rows
        whole = build_phases(config, program, functools.partial(Batches, prepared))
        config.train.steps = steps_within(config.train.tokens, whole)
    start = None
    if config.init_from:
        start = functools.partial(start_from, warm_start(config, prepared.tokenizer))
    return Experiment(
        config=config,
        program=program,
        phases=build_phases(config, program, batches),
        tokenizer=prepared.tokenizer,
        evaluations={
            split: batches(config.data, split).evaluation(config.train.eval_batches)
            for split in ("valid", "test")
            if split == "valid" or split in prepared.statistics
        },
        facts={"fingerprint": prepared.fingerprint, "statistics": prepared.statistics},
        start=start,
    )


def check_config(config: ConfigDict) -> None:
    """All checks for a pretraining that need neither the corpus nor devices."""
    data = config.data
    require_choice("config.data.format", data.format, FORMATS)
    divides = bool(data.pack_length or data.buckets)
    if (
        (divides and not FORMATS[data.format].has_padding)
        or (data.pack_length and (data.buckets or data.pack_length < data.seq_len))
        or not all(2 < length <= data.seq_len for length in data.buckets)
    ):
        raise UserError(
            f"config.data.pack_length={data.pack_length} (seq_len={data.seq_len} or more) or"
            f" config.data.buckets={tuple(data.buckets)} (lengths up to seq_len), not both, are for"
            f" rows with padding; config.data.format is {data.format!r}"
        )
    shape = model_shape(config.model, vocab_size=1)
    longest = data.seq_len if data.pack_length else row_length(data)  # positions restart
    if longest > shape.longest:
        most = f"config.model.max_positions={shape.longest}"
        raise UserError(f"config.data.seq_len={data.seq_len} is more than {most}")
    for name, objective in objectives.build(config.objectives).items():
        check_objective(config, name, objective)
    weights = [weight for entry in config.objectives.values() for weight in weights_of(entry)]
    trains = any(weights) or config.train.phases or not config.train.steps
    if min(weights) < 0 or not trains:
        raise UserError("config.objectives.NAME.weight must be 0 or more, and above 0 for one NAME")
    if config.optimizer.average_after and not config.train.eval_every:
        raise UserError("config.optimizer.average_after needs config.train.eval_every above 0")


def check_devices(config: ConfigDict) -> None:
    """That this machine's devices make the mesh, and that it divides the batch."""
    data, mesh = config.data, build_mesh(config.mesh).shape
    parts = mesh["data"] * mesh["fsdp"] * config.train.micro_batches
    if data.batch_size % parts or data.batch_size % jax.process_count():
        raise UserError(
            f"config.data.batch_size={data.batch_size} must be a multiple of {parts}, the product"
            " of mesh.data, mesh.fsdp and train.micro_batches, and of the number of processes"
        )


def check_objective(config: ConfigDict, name: str, objective: objectives.Objective) -> None:
    """Checks that an objective gets the states, the fields and the stream that it reads."""
    model, data, follows = config.model, config.data, objective.shares == "any"
    sides = sides_of(model.family, model_direction(model))
    if objective.reads not in sides and not follows:
        raise UserError(
            f"objective {name} reads {objective.reads} states, and config.model.direction="
            f"{model_direction(model)!r} gives {' and '.join(sides)}"
        )
    makes = {*FORMATS[data.format].makes} - {*NEGATIVES.values()} | {label_field(data)}
    reads_pairs = data.format == "cooccurrence"
    if not makes >= {*objective.needs} or reads_pairs != ("counts" in objective.needs):
        raise UserError(
            f"objective {name} needs {', '.join(objective.needs) or 'text'}, which these rows lack"
            f" (config.data.format={data.format!r} and its negatives)"
        )
    changes_tokens = type(objective).view is not objectives.Objective.view
    if model.token_encoder == "characters" and changes_tokens:
        raise UserError(
            f"objective {name} changes tokens, and the model would still see their characters;"
            " set config.model.token_encoder='ids'"
        )
    one_way = follows or (objective.reads != "both" and not changes_tokens)
    streams = data.format == "stream" and (objective.reads != "backward" or data.stream.backward)
    if model.stateful and not (streams and one_way and family_of(model).recurrent):
        raise UserError(
            "config.model.stateful=True needs a recurrent model, config.data.format='stream' (and"
            f" stream.backward=True) and an objective of one direction, unlike {name}; set it to"
            " False"
        )


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
    """A copy with the size, shape and tokenizer of the run in `config.init_from`; what the config
    sets itself is kept if the parameters mean the same with it."""
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
    """Refuses values for which the parameters of a run of `theirs` would mean something else."""
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


def start_from(trained, fresh, new_tokens: int = 0):
    """The trained parameters where there are any, else fresh ones, as for a new head; tables of
    tokens may have so many more rows, which stay fresh."""
    found = {parameter_name(path): x for path, x in jax.tree.leaves_with_path(trained)}
    new = []

    def choose(path, leaf):
        name = parameter_name(path)
        if name not in found:
            new.append(name)
            return leaf
        old = found[name]
        if new_tokens and leaf.ndim and len(leaf) == len(old) + new_tokens:
            old = np.concatenate([old, leaf[len(old) :]])
        return old

    chosen = jax.tree.map_with_path(choose, fresh)
    if new:
        print(f"new in this run: {', '.join(new)}", flush=True)
    return chosen


def vocabulary_of(tokenizer: Tokenizer, counts=None) -> objectives.Vocabulary:
    """What objectives know about a tokenizer and, with `counts` [V] of its ids, its corpus."""
    roles = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    return objectives.Vocabulary(
        size=tokenizer.vocab_size,
        **{role: getattr(tokenizer, role) for role in roles},
        counts=None if counts is None else tuple(counts.tolist()),
        continues=tokenizer.continues(),
    )
