"""Refuses configs that cannot work, before any text is read or anything is compiled.

`bertlab.keys` knows the range of each key. Here are the combinations, in the order in which they are checked.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from bertlab import keys, objectives
from bertlab.data.batches import check_data
from bertlab.data.formats import NEGATIVES, label_field
from bertlab.data.streams import row_length
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import family_of, model_direction, model_shape
from bertlab.objectives.blame import blamed
from bertlab.run import Run
from bertlab.train.budget import parse_budget
from bertlab.train.choice import check_attention
from bertlab.train.lora import build_adapter
from bertlab.train.metrics import writer_names
from bertlab.train.optimizers import check_optimizer
from bertlab.train.phases import phase_configs, weights_of
from bertlab.train.schedules import learning_rate
from bertlab.train.sharding import build_mesh, check_batch, check_rows_have_one_process

_SIDE_MEANING = {
    "forward": "states that have seen only the tokens so far (left to right)",
    "backward": "states that have seen only the tokens to come (right to left)",
    "both": "states that have seen both sides",
}
_FIX_SIDE = {
    "forward": 'set config.model.direction="left-to-right", or take a family that reads both ways apart (elmo)',
    "backward": 'set config.model.direction="right-to-left", or take a family that reads both ways apart (elmo)',
    "both": 'set config.model.direction="bidirectional"',
}


def check_config(config: ConfigDict) -> dict[str, objectives.Objective]:
    """Refuses what cannot be on any machine, before any text is read or anything compiled.

    Returns:
        The objectives by name.

    Raises:
        UserError: names the key to change.
    """
    built = objectives.build(config.objectives)
    direction = model_direction(config.model)
    sides = sides_of(config.model.family, direction)
    labels = label_field(config.data)
    for name, objective in built.items():
        if objective.families and config.model.family not in objective.families:
            raise UserError(
                f"objective {name} goes with {', '.join(objective.families)} models, not with {config.model.family};"
                f" set config.model.family={objective.families[0]!r}"
            )
        if objective.reads != "any" and objective.reads not in sides:
            raise UserError(
                f"objective {name} reads {_SIDE_MEANING[objective.reads]}, which a {config.model.family} with"
                f" config.model.direction={direction!r} does not have; {_FIX_SIDE[objective.reads]}"
            )
        if unknown := {*objective.needs} - {*NEGATIVES.values(), "counts"}:
            raise UserError(
                f"objective {name} needs {', '.join(sorted(unknown))}, which no format makes; needs may hold"
                f" {', '.join(NEGATIVES.values())} and counts"
            )
        for field in sorted({*objective.needs} & {*NEGATIVES.values()}):
            kind = config.data.format
            if labels is None:
                raise UserError(
                    f"objective {name} needs sentence pairs, which config.data.format={kind!r} does not make;"
                    " set config.data.format='segment_pair'"
                )
            if field != labels:
                wanted = next(negatives for negatives, made in NEGATIVES.items() if made == field)
                raise UserError(
                    f"objective {name} needs {field}, which config.data.{kind}.negatives={config.data[kind].negatives!r} does"
                    f" not make; set config.data.{kind}.negatives={wanted!r}"
                )
        if not objective.has_view and objective.sees not in ("clean", "any"):
            shown = built.get(objective.sees)
            if shown is None or not shown.has_view:
                raise UserError(
                    f"objective {name} shares the view of {objective.sees}, which is not there; add it: objectives="
                    f"{objective.sees}+{name} after the config's colon"
                )
            with blamed(name, objective, "check_shown"):
                try:
                    objective.check_shown(shown)
                except UserError as error:
                    raise UserError(f"objective {name}: {error}") from None
        for key in ("weight", "final_weight"):
            if not (config.objectives[name].get(key) or 0) >= 0:
                raise UserError(f"config.objectives.{name}.{key}={config.objectives[name][key]} must be 0 or more")
    weighed = config.train.phases or any(any(weights_of(entry)) for entry in config.objectives.values())
    if config.train.steps and not weighed:  # phases give weights of their own, and refuse to have none
        raise UserError(
            f"every config.objectives.NAME.weight is 0 ({', '.join(built)}): nothing would be trained; give one a weight,"
            " or set config.train.steps=0"
        )
    check_phases(config)
    if config.train.budget:
        parse_budget(config.train.budget)
    check_data(config.data, None if config.data.tokenizer.path else config.data.tokenizer.kind)
    shape = model_shape(config.model, vocab_size=1)
    check_data_fields(config, built)
    check_shape(config, shape)
    if config.model.attention == "pallas" and all(
        o.has_order for o in built.values() if o.has_view or o.sees in ("clean", "any")
    ):
        raise UserError(
            f"config.model.attention='pallas' does not know what objective {next(iter(built))} hides of a document; set"
            " attention='auto'"
        )
    return built


def check_phases(config: ConfigDict) -> None:
    """Refuses phases that cannot be: each is checked like a run of its own."""
    if not config.train.phases:
        return
    for _, of_phase in phase_configs(config):
        if config.model.stateful and of_phase.data != config.data:
            raise UserError(
                f"config.train.phases={config.train.phases!r} changes the batches, and config.model.stateful=True carries"
                " states from one to the next; set config.model.stateful=False"
            )
        of_phase.train.phases = ""
        check_config(of_phase)


def check_data_fields(config: ConfigDict, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses models and objectives that need what the batches do not hold: characters, streams, pairs of words."""
    model, data = config.model, config.data
    if ("counts" in [n for o in built.values() for n in o.needs]) != (data.format == "cooccurrence"):
        raise UserError(
            f"config.data.format={data.format!r} with objectives {', '.join(built)}: format='cooccurrence' and objective glove"
            " need each other, and go with no other"
        )
    if model.token_encoder == "characters":
        if not data.characters:
            raise UserError("config.model.token_encoder='characters' reads characters; set config.data.characters=True")
        for name, objective in built.items():
            if objective.has_view:
                raise UserError(
                    f"objective {name} changes tokens, and config.model.token_encoder='characters' would still see their"
                    " characters; set config.model.token_encoder='ids'"
                )
    if not model.stateful:
        return
    if not family_of(model).recurrent or data.format != "stream":
        raise UserError(
            f"config.model.stateful=True needs a recurrent family (elmo, awd_lstm) and config.data.format='stream', not"
            f" {model.family} and {data.format!r}"
        )
    for name, objective in built.items():
        if objective.reads == "both" or objective.has_view:
            raise UserError(
                f"objective {name} needs both directions or its own view, and a stateful stream gives one direction at a"
                " time; set config.model.stateful=False"
            )
        if objective.reads == "backward" and not data.stream.backward:
            raise UserError(
                f"objective {name} reads right to left; set config.data.stream.backward=True for a stream that it can follow"
            )
    if not any(objective.reads in ("forward", "backward") for objective in built.values()):
        raise UserError(
            f"config.model.stateful=True carries the states of a language model, and {', '.join(built)} is none; add ltr or rtl"
        )


def check_shape(config: ConfigDict, shape) -> None:
    """Refuses sizes that do not go together: row length and positions, batch and its parts, ranges, schedule."""
    keys.check(config)
    limit = getattr(shape, "max_positions", None)
    learned = getattr(shape, "position_encoding", None) == "learned"
    # Positions begin again in each example of a packed row.
    if learned and (rows := config.data.seq_len if config.data.get("pack_length") else row_length(config.data)) > limit:
        longer = f" makes rows of {rows}, which" if rows != config.data.seq_len else ""
        raise UserError(
            f"config.data.seq_len={config.data.seq_len}{longer} is beyond the model's {limit} positions; lower it or raise"
            " config.model.max_positions"
        )
    # What is known without asking for devices, which a sweep must not take from its runs.
    known_shards = math.prod(size for size in (config.mesh.data, config.mesh.fsdp) if size > 0)
    check_batch(known_shards, config.data.batch_size, config.train.micro_batches)
    try:
        re.compile(config.optimizer.decay_exclude)
    except re.error as error:
        raise UserError(f"config.optimizer.decay_exclude={config.optimizer.decay_exclude!r} is no pattern: {error}") from None
    check_attention(config, shape)
    check_optimizer(config.optimizer)
    build_adapter(config.lora)
    if config.optimizer.average_after and not config.train.eval_every:
        raise UserError(
            f"config.optimizer.average_after={config.optimizer.average_after} looks at the held-out loss every"
            " config.train.eval_every steps, which is 0: never; set it, or average_after=0"
        )
    learning_rate(config.optimizer, config.train.steps)
    writer_names(config.writers)


def check_devices(config: ConfigDict) -> None:
    """Refuses a mesh that the devices do not fill, one whose `tensor` spans processes, and a batch that it does not divide."""
    mesh = build_mesh(config.mesh)
    check_batch(mesh.shape["data"] * mesh.shape["fsdp"], config.data.batch_size, config.train.micro_batches)
    check_rows_have_one_process(mesh)


def vocabulary_of(tokenizer: Tokenizer, counts: np.ndarray | None = None) -> objectives.Vocabulary:
    """What objectives may know of a tokenizer, and of how often its ids stand in the training text."""
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    counted = None if counts is None else tuple(counts.tolist())
    return objectives.Vocabulary(tokenizer.vocab_size, *ids, counted, tokenizer.continues())


def check_vocabulary(config: ConfigDict, tokenizer: Tokenizer, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses a tokenizer that an objective cannot work with, or whose ids mean something else in `config.init_from`."""
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
    """Refuses a model of another family or shape than `theirs`, that of the run that `config.init_from` names."""
    check_family(config, theirs)
    shape, expected = (dataclasses.asdict(model_shape(m, vocab_size=1)) for m in (config.model, theirs))
    del shape["output"]["rows"], expected["output"]["rows"]
    for key in sorted(shape.keys() - {"vocab_size"}):
        own = keys.has("own", f"model.{key}") or key.endswith("dropout")
        if shape[key] != expected[key] and not own:
            raise UserError(
                f"config.model has {key}={shape[key]!r}, and the model in config.init_from={config.init_from}"
                f" {expected[key]!r}; leave it out"
            )


def check_family(config: ConfigDict, theirs: ConfigDict) -> None:
    """The first half of `check_model`, which settles what the others of its keys may be."""
    if config.model.family != theirs.family:
        raise UserError(
            f"config.init_from={config.init_from} holds a model of family {theirs.family!r}, and config.model.family is"
            f" {config.model.family!r}; take that family's recipe"
        )
