"""Refuses configs that cannot work, before any text is read or anything is compiled.

`bertlab.keys` knows the range of each key. Here are the combinations, in the order in which they are checked.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab import keys, objectives
from bertlab.data.batches import check_data
from bertlab.data.characters import WORD_LENGTH
from bertlab.data.formats import FIELDS, FORMATS, NEGATIVES, format_of, row_length
from bertlab.data.packing import OPEN
from bertlab.data.parallel import memory_of_machine
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import FAMILIES, directions_with, family_of, model_direction, model_shape
from bertlab.models.transformer import TransformerConfig
from bertlab.objectives.blame import blamed
from bertlab.objectives.judging import scoring_of
from bertlab.run import Run
from bertlab.train.budget import parse_budget
from bertlab.train.choice import check_attention
from bertlab.train.keep import check_keep
from bertlab.train.lora import build_adapter
from bertlab.train.optimizers import check_optimizer
from bertlab.train.phases import phase_configs, weights_of
from bertlab.train.schedules import learning_rate
from bertlab.train.sharding import build_mesh, check_batch, check_rows_have_one_process

_SIDES = {
    "forward": "states that have only seen earlier tokens",
    "backward": "states that have only seen later tokens",
    "both": "states that have seen both sides",
}


def check_config(config: ConfigDict) -> dict[str, objectives.Objective]:
    """Refuses what cannot work on any machine, before any text is read or anything is compiled.

    Returns:
        The objectives by name.

    Raises:
        UserError: names the key to change.
    """
    keys.check(config)
    built = objectives.build(config.objectives)
    for name, objective in built.items():
        _check_model_of(name, objective, config.model, built)
        _check_needs(name, objective, config.data)
        _check_shared_view(name, objective, built)
        scoring_of(name, objective, sides_of(config.model.family, model_direction(config.model)))
    _check_weights(config)
    _check_phases(config)
    if config.train.budget:
        parse_budget(config.train.budget)
    check_data(config.data, None if config.data.tokenizer.path else config.data.tokenizer.kind)
    shape = model_shape(config.model, vocab_size=1)
    _check_data_fields(config, built)
    check_shape(config, shape)
    _check_views_divide(config, built)
    showing = [name for name, objective in built.items() if objective.has_view or objective.sees in ("clean", "any")]
    if config.model.attention == "pallas" and all(_has_order(name, built[name]) for name in showing):
        raise UserError(
            f"config.model.attention='pallas' does not support the masking pattern of objective {next(iter(built))}; set"
            " attention='auto'"
        )
    return built


def _has_order(name: str, objective: objectives.Objective) -> bool:
    with blamed(name, objective, "view"):
        return objective.has_order


def _check_model_of(name: str, objective: objectives.Objective, model, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses an objective on a model of another family, or on one that lacks the side it reads."""
    direction = model_direction(model)
    if unknown := {*objective.families} - {*FAMILIES}:
        raise UserError(
            f"objective {name}: families={objective.families!r} names no family {', '.join(map(repr, sorted(unknown)))};"
            f" it is a tuple of some of {', '.join(FAMILIES)}"
        )
    if objective.families and model.family not in objective.families:
        raise UserError(
            f"objective {name} works with {', '.join(objective.families)} models, not with {model.family}; set"
            f" config.model.family={objective.families[0]!r}"
        )
    if objective.reads != "any" and objective.reads not in sides_of(model.family, direction):
        wanted = {of.reads for of in built.values()} - {"any"}
        directions = directions_with(wanted, model.family)
        # A static body sees no context, so it suits only objectives that name it.
        suits = lambda family: all(family in of.families or (not of.families and family != "static") for of in built.values())
        families = [family for family in FAMILIES if suits(family) and directions_with(wanted, family)]
        instead = {name: way for name, of in built.items() if (way := of.on_both_sides())}
        others = {of.reads for name, of in built.items() if name not in instead} - {"any"}
        if directions:
            todo = f"set config.model.direction={directions[0]!r}"
        elif instead and others == {"both"} and directions_with(others, model.family):
            todo = f"train {' and '.join(f'{way} instead of {name}' for name, way in instead.items())}"
        elif families:
            todo = f"no direction of {model.family} suits {', '.join(built)}: use the recipe of {' or '.join(families)}"
        else:
            todo = f"no model suits {', '.join(built)} together: train them in different runs"
        raise UserError(
            f"objective {name} reads {_SIDES[objective.reads]}, but family {model.family} with"
            f" config.model.direction={direction!r} has none; {todo}"
        )


def _check_needs(name: str, objective: objectives.Objective, data) -> None:
    """Refuses an objective whose batch fields the format does not make."""
    if unknown := {*objective.needs} - FIELDS:
        raise UserError(
            f"objective {name} needs {', '.join(sorted(unknown))}, but no format provides that; `needs` may hold"
            f" {', '.join(sorted(FIELDS))}"
        )
    kind = format_of(data)
    if kind.is_word_pairs and not {*objective.needs} & {*kind.makes}:
        text = next(of for of in FORMATS.values() if not of.is_word_pairs)
        raise UserError(
            f"objective {name} reads text, but rows of config.data.format={data.format!r} are pairs of words; set"
            f" config.data.format={text.name!r}"
        )
    for field in objective.needs:
        if field not in kind.makes:
            wanted = next(of for of in FORMATS.values() if field in of.makes)
            raise UserError(
                f"objective {name} needs {field}, but config.data.format={data.format!r} does not provide it; set"
                f" config.data.format={wanted.name!r}"
            )
        if field in NEGATIVES.values() and field != kind.label_field:
            wanted = next(negatives for negatives, label in NEGATIVES.items() if label == field)
            key = f"config.data.{data.format}.negatives"
            raise UserError(
                f"objective {name} needs {field}, but {key}={data[data.format].negatives!r} does not provide it; set"
                f" {key}={wanted!r}"
            )


def _check_shared_view(name: str, objective: objectives.Objective, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses an objective that shares a view which is missing or is not set as it needs."""
    if objective.has_view or objective.sees in ("clean", "any"):
        return
    shown = built.get(objective.sees)
    if shown is None or not shown.has_view:
        providing = [key for key, kind in objectives.REGISTRY.items() if kind.sees in ("own", "shared")]
        if objective.sees in providing:
            raise UserError(
                f"objective {name} shares the view of {objective.sees}; add it: objectives={objective.sees}+{name} after the"
                " config's colon"
            )
        raise UserError(
            f"objective {name}: sees={objective.sees!r} names no objective of this run that has a view of its own; `sees` is"
            f" clean, own, shared, any, or such an objective: {', '.join(providing)}, or a class that you add to the run"
        )
    for setting, value in objective.shows.items():
        if getattr(shown, setting, None) != value:
            key = f"config.objectives.{objective.sees}.{setting}"
            raise UserError(f"objective {name} needs {key}={value!r}, not {getattr(shown, setting, None)!r}; set it")


def _check_weights(config: ConfigDict) -> None:
    """Refuses negative weights, and training without any weight."""
    for name, entry in config.objectives.items():
        for key in ("weight", "final_weight"):
            if not (entry.get(key) or 0) >= 0:
                raise UserError(f"config.objectives.{name}.{key}={entry[key]} must be at least 0")
    # Phases set weights of their own and refuse to have none.
    weighed = config.train.phases or any(any(weights_of(entry)) for entry in config.objectives.values())
    if config.train.steps and not weighed:
        raise UserError(
            f"every config.objectives.NAME.weight is 0 ({', '.join(config.objectives)}), so nothing would train; set one,"
            " or config.train.steps=0"
        )


def _check_phases(config: ConfigDict) -> None:
    """Refuses phases that cannot work; each is checked like a run of its own."""
    if not config.train.phases:
        return
    for _, of_phase in phase_configs(config):
        if config.model.stateful and of_phase.data != config.data:
            raise UserError(
                f"config.train.phases={config.train.phases!r} changes the batches, but config.model.stateful=True carries"
                " states from one batch to the next; set config.model.stateful=False"
            )
        of_phase.train.phases = ""
        keys.drop_without_effect(of_phase, ())
        try:
            check_config(of_phase)
        except UserError as error:
            raise UserError(f"config.train.phases={config.train.phases!r}: {error}") from None


def _check_data_fields(config: ConfigDict, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses models and objectives that need what the batches do not have: characters and streams."""
    model, data = config.model, config.data
    if model.token_encoder == "characters":
        if not data.characters:
            raise UserError("config.model.token_encoder='characters' reads characters; set config.data.characters=True")
        if changing := [name for name, objective in built.items() if objective.has_view]:
            raise UserError(
                f"objective {changing[0]} changes tokens, but config.model.token_encoder='characters' would still see their"
                " characters; set config.model.token_encoder='ids'"
            )
    if model.stateful:
        _check_stateful(config, built)


def _check_stateful(config: ConfigDict, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses to carry states for models, formats and objectives that cannot use them."""
    model, data, kind = config.model, config.data, format_of(config.data)
    if not family_of(model).recurrent or not kind.is_stream:
        raise UserError(
            f"config.model.stateful=True needs a recurrent family (elmo, awd_lstm) and config.data.format='stream', not"
            f" {model.family} and {data.format!r}"
        )
    for name, objective in built.items():
        if objective.reads == "both" or objective.has_view:
            raise UserError(
                f"objective {name} needs both directions or its own view, but a stateful stream has one direction at a"
                " time; set config.model.stateful=False"
            )
        if objective.reads == "backward" and not kind.settings.backward:
            raise UserError(f"objective {name} reads right to left; set config.data.{kind.name}.backward=True")
    if not any(objective.reads in ("forward", "backward") for objective in built.values()):
        raise UserError(
            f"config.model.stateful=True carries the states of a language model; {', '.join(built)} is not one; add ltr or rtl"
        )


def check_shape(config: ConfigDict, shape) -> None:
    """Refuses sizes that do not fit each other: rows and positions, the batch and its parts, the schedule."""
    limit = getattr(shape, "max_positions", None)
    learned = getattr(shape, "position_encoding", None) == "learned"
    # Positions begin again in each example of a packed row.
    if learned and (rows := config.data.seq_len if config.data.get("pack_length") else row_length(config.data)) > limit:
        raise UserError(
            f"config.data.seq_len={config.data.seq_len} makes rows of {rows} tokens, more than the model's {limit} positions;"
            " lower it or raise config.model.max_positions"
        )
    # A sweep must not take devices from its runs, so this asks for none.
    known_shards = math.prod(size for size in (config.mesh.data, config.mesh.fsdp) if size > 0)
    check_batch(known_shards, config.data.batch_size, config.train.micro_batches)
    try:
        re.compile(config.optimizer.decay_exclude)
    except re.error as error:
        raise UserError(
            f"config.optimizer.decay_exclude={config.optimizer.decay_exclude!r} is not a regular expression: {error}"
        ) from None
    check_sequence(config, shape, config.mesh)
    check_attention(config, shape)
    check_optimizer(config.optimizer)
    if shape.times_base != 1 and config.optimizer.name != "adam":
        raise UserError(
            f"config.model.base_width={shape.base_width} scales Adam's rates, not those of"
            f" config.optimizer.name={config.optimizer.name!r}; set config.optimizer.name='adam'"
        )
    build_adapter(config.lora)
    if config.optimizer.average_after and not config.train.eval_every:
        raise UserError(
            f"config.optimizer.average_after={config.optimizer.average_after} needs held-out losses, but"
            " config.train.eval_every=0 never measures them; set it, or average_after=0"
        )
    if (again := config.optimizer.average_again) and again >= config.train.steps > 0 and not config.train.budget:
        raise UserError(
            f"config.optimizer.average_again={again} is not before the end, config.train.steps={config.train.steps}; lower it"
        )
    learning_rate(config.optimizer, config.train.steps)
    check_keep(config.train)


def check_sequence(config: ConfigDict, shape, mesh: Mapping[str, int]) -> None:
    """Refuses a mesh whose sequence axis divides what cannot be divided: LSTMs and static vectors, heads, rows.

    Args:
        config: the whole config.
        shape: of the model.
        mesh: sizes of its axes; −1 is not known yet.
    """
    parts, tensor, data = mesh["sequence"], mesh["tensor"], config.data
    if parts == 1:
        return
    if not isinstance(shape, TransformerConfig):
        why = "read a row one position after another" if family_of(config.model).recurrent else "have no states of long rows"
        raise UserError(
            f"config.mesh.sequence={parts} divides a row's positions, but models of config.model.family="
            f"{config.model.family!r} {why}; set config.mesh.sequence=1"
        )
    if parts < 0:
        return
    if tensor > 0 and shape.heads % (parts * tensor):
        raise UserError(
            f"config.mesh.sequence={parts} times config.mesh.tensor={tensor} does not divide the model's {shape.heads} heads;"
            " change them or config.model.heads"
        )
    for length in (row_length(data), *data.get("buckets", ())):
        if length % parts:
            raise UserError(
                f"config.mesh.sequence={parts} does not divide rows of {length} positions; change it, config.data.seq_len"
                " or config.data.buckets"
            )


def _check_views_divide(config: ConfigDict, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses objectives that add positions to a row, if the mesh's sequence axis does not divide them all."""
    parts, rows = config.mesh.sequence, row_length(config.data)
    for name, objective in built.items() if parts > 1 else ():
        with blamed(name, objective, "view"):
            length = objective.positions(rows)
        if length % parts:
            raise UserError(
                f"config.mesh.sequence={parts} does not divide the {length} positions that objective {name} makes of rows of"
                f" {rows}; change it or config.data.seq_len"
            )


def check_devices(config: ConfigDict) -> None:
    """Refuses a mesh that does not fill the devices, whose `tensor` spans processes, or that does not divide the batch.

    It also refuses rows for which this machine has too little memory.
    """
    mesh = build_mesh(config.mesh)
    check_sequence(config, model_shape(config.model, vocab_size=1), mesh.shape)
    check_batch(mesh.shape["data"] * mesh.shape["fsdp"], config.data.batch_size, config.train.micro_batches)
    check_rows_have_one_process(mesh)
    _check_rows_fit(config.data)


def _check_rows_fit(data) -> None:
    """Refuses `config.data` if the rows that a process holds at once (a batch, a window, open packs) exceed the memory."""
    position = 4 * (4 + (WORD_LENGTH if data.characters else 0))  # bytes: tokens, segments, documents, positions; int32
    held = {"pack_length": (OPEN, data.pack_length)} if data.get("pack_length") else {}
    held["batch_size"] = data.batch_size // jax.process_count(), row_length(data)
    held["shuffle_window"] = data.get("shuffle_window", 0), data.seq_len
    memory = memory_of_machine()
    for key, (rows, length) in held.items():
        if (needed := rows * length * position) > memory:
            raise UserError(
                f"config.data.{key}={data[key]} makes {rows} rows of {length} tokens, or {needed / 2**30:,.0f} GiB,"
                f" but there are {memory / 2**30:,.0f} GiB; lower it, or config.data.seq_len"
            )


def vocabulary_of(tokenizer: Tokenizer, counts: np.ndarray | None = None) -> objectives.Vocabulary:
    """What objectives may know of a tokenizer and of how often each id occurs in the training text."""
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    counted = None if counts is None else tuple(counts.tolist())
    return objectives.Vocabulary(tokenizer.vocab_size, *ids, counted, tokenizer.continues())


def check_vocabulary(config: ConfigDict, tokenizer: Tokenizer, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses a tokenizer that an objective cannot work with, or that differs from that of `config.init_from`."""
    if config.init_from:
        theirs = load_tokenizer(Run(Path(config.init_from).expanduser()).tokenizer)
        if theirs.pieces() != tokenizer.pieces():
            raise UserError(
                f"config.init_from={config.init_from} was trained with another vocabulary; set"
                f" config.data.tokenizer.path={config.init_from}/tokenizer"
            )
    for name, objective in built.items():
        with blamed(name, objective, "check"):
            try:
                objective.check(vocabulary_of(tokenizer))
            except UserError as error:
                raise UserError(f"objective {name}: {error}") from None


def check_model(config: ConfigDict, theirs: ConfigDict) -> None:
    """Refuses a model whose family or shape differs from `theirs`, the model of the run in `config.init_from`."""
    check_family(config, theirs)
    shape, expected = (dataclasses.asdict(model_shape(m, vocab_size=1)) for m in (config.model, theirs))
    del shape["output"]["rows"], expected["output"]["rows"]
    for key in sorted(shape.keys() - {"vocab_size"}):
        own = keys.has("own", f"model.{key}") or key.endswith("dropout")
        if shape[key] != expected[key] and not own:
            raise UserError(
                f"config.model.{key}={shape[key]!r} differs from the model in config.init_from={config.init_from}, with"
                f" {expected[key]!r}; omit it"
            )


def check_family(config: ConfigDict, theirs: ConfigDict) -> None:
    """Refuses a model whose family or base width differs from `theirs`."""
    if config.model.family != theirs.family:
        raise UserError(
            f"config.init_from={config.init_from} holds a model of family {theirs.family!r}, but config.model.family is"
            f" {config.model.family!r}; use that family's recipe"
        )
    ours, its = (model.get("base_width") or 0 for model in (config.model, theirs))
    if ours != its:
        raise UserError(
            f"config.init_from={config.init_from} holds a model with base_width={its}, by which its logits are scaled, but"
            f" config.model.base_width={ours}; leave it unset"
        )
