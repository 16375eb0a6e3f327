"""Refuses configs that cannot run or would not train what they say.

Each check names the key. What only one package reads, such as a family's name, is checked there.
"""

import jax
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.data.formats import FORMATS, label_field, row_length
from bertlab.data.formats.pairs import NEGATIVES
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import family_of, model_direction, model_shape
from bertlab.objectives import Objective
from bertlab.train.phases import weights_of
from bertlab.train.sharding import build_mesh


def check_config(config: ConfigDict) -> None:
    """All checks for a pretraining."""
    check_rows(config)
    for name, objective in objectives.build(config.objectives).items():
        check_objective(config, name, objective)
    weights = [weight for entry in config.objectives.values() for weight in weights_of(entry)]
    trains = any(weights) or config.train.phases or not config.train.steps
    if min(weights) < 0 or not trains:
        raise UserError("config.objectives.NAME.weight must be 0 or more, and above 0 for one NAME")
    if config.optimizer.average_after and not config.train.eval_every:
        raise UserError(
            "config.optimizer.average_after needs held-out losses: set config.train.eval_every"
        )


def check_rows(config: ConfigDict) -> None:
    """Checks that the format, the model and the devices can have such rows."""
    data = config.data
    if data.format not in FORMATS:
        raise UserError(f"config.data.format={data.format!r} is not one of {', '.join(FORMATS)}")
    packs = data.pack_length and (data.pack_length < data.seq_len or data.buckets)
    padded = FORMATS[data.format].has_padding or not (data.pack_length or data.buckets)
    if packs or not padded or not all(2 < length <= data.seq_len for length in data.buckets):
        raise UserError(
            f"config.data.pack_length={data.pack_length} (seq_len={data.seq_len} or more) or"
            f" config.data.buckets={tuple(data.buckets)} (lengths up to seq_len), not both, are for"
            f" rows with padding; config.data.format is {data.format!r}"
        )
    shape = model_shape(config.model, vocab_size=1)
    longest = data.seq_len if data.pack_length else row_length(data)  # positions restart
    if getattr(shape, "position_encoding", "") == "learned" and longest > shape.max_positions:
        raise UserError(
            f"config.data.seq_len={data.seq_len} is more than config.model.max_positions="
            f"{shape.max_positions}"
        )


def check_devices(config: ConfigDict) -> None:
    """That this machine's devices make the mesh, and that it divides the batch."""
    data, mesh = config.data, build_mesh(config.mesh).shape
    parts = mesh["data"] * mesh["fsdp"] * config.train.micro_batches
    if data.batch_size % parts or data.batch_size % jax.process_count():
        raise UserError(
            f"config.data.batch_size={data.batch_size} must be a multiple of {parts}, the product"
            " of mesh.data, mesh.fsdp and train.micro_batches, and of the number of processes"
        )


def check_objective(config: ConfigDict, name: str, objective: Objective) -> None:
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
    changes_tokens = type(objective).view is not Objective.view
    if model.token_encoder == "characters" and changes_tokens:
        raise UserError(
            f"objective {name} changes tokens, and the model would still see their characters;"
            " set config.model.token_encoder='ids'"
        )
    one_way = follows or (objective.reads != "both" and not changes_tokens)
    streams = data.format == "stream" and family_of(model).recurrent and one_way
    if objective.reads == "backward":
        streams = streams and data.stream.backward
    if model.stateful and not streams:
        raise UserError(
            f"config.model.stateful=True carries a recurrent model's states along"
            " config.data.format='stream' (and stream.backward=True), one direction at a time, and"
            f" objective {name} on {model.family} with {data.format!r} does not; set it to False"
        )
