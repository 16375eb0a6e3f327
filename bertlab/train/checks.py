"""Refuses configs that would train something else than they read, or cannot run.

Each check names the key. What a room reads by itself, such as a family's name, it checks there.
"""

from collections.abc import Mapping

import jax
from ml_collections import ConfigDict

from bertlab.data.formats import FORMATS, label_field, row_length
from bertlab.data.formats.pairs import NEGATIVES
from bertlab.errors import UserError
from bertlab.models.base import View, sides_of
from bertlab.models.presets import family_of, model_direction, model_shape
from bertlab.models.transformer import Transformer
from bertlab.objectives import Objective
from bertlab.objectives.program import Program
from bertlab.train.phases import weights_of
from bertlab.train.sharding import build_mesh


def check_config(config: ConfigDict, built: Mapping[str, Objective]) -> None:
    """All checks of a pretraining with these objectives."""
    check_rows(config)
    for name, objective in built.items():
        check_objective(config, name, objective)
    check_states(config, built)
    check_weights(config)


def check_rows(config: ConfigDict) -> None:
    """Rows that the format, the model and the devices can have."""
    data = config.data
    if data.format not in FORMATS:
        raise UserError(f"config.data.format={data.format!r} is not one of {', '.join(FORMATS)}")
    if (data.pack_length or data.buckets) and not FORMATS[data.format].has_padding:
        raise UserError(
            f"config.data.pack_length and buckets are for rows with padding, and those of"
            f" config.data.format={data.format!r} have none"
        )
    if data.pack_length and (data.pack_length < data.seq_len or data.buckets):
        raise UserError(
            f"config.data.pack_length={data.pack_length} must be at least config.data.seq_len="
            f"{data.seq_len}, and config.data.buckets empty"
        )
    if not all(isinstance(n, int) and 2 < n <= data.seq_len for n in data.buckets):
        raise UserError(
            f"config.data.buckets={tuple(data.buckets)} must be lengths up to config.data.seq_len="
            f"{data.seq_len}"
        )
    shape = model_shape(config.model, vocab_size=1)
    longest = data.seq_len if data.pack_length else row_length(data)  # positions begin again
    if getattr(shape, "position_encoding", "") == "learned" and longest > shape.max_positions:
        raise UserError(
            f"config.data.seq_len={data.seq_len} is more than config.model.max_positions="
            f"{shape.max_positions}"
        )
    mesh = build_mesh(config.mesh).shape
    parts = mesh["data"] * mesh["fsdp"] * config.train.micro_batches
    if data.batch_size % parts or data.batch_size % jax.process_count():
        raise UserError(
            f"config.data.batch_size={data.batch_size} must be a multiple of {parts}, the product"
            " of mesh.data, mesh.fsdp and train.micro_batches, and of the number of processes"
        )


def check_objective(config: ConfigDict, name: str, objective: Objective) -> None:
    """That the model gives the states that an objective reads, and the rows the fields."""
    model, data = config.model, config.data
    sides = sides_of(model.family, model_direction(model))
    if objective.reads not in sides and type(objective).shares != "any":
        raise UserError(
            f"objective {name} reads {objective.reads} states, and config.model.direction="
            f"{model_direction(model)!r} gives {' and '.join(sides)}"
        )
    for field in objective.needs:
        is_label = field in NEGATIVES.values()
        if field not in FORMATS[data.format].makes or (is_label and field != label_field(data)):
            raise UserError(
                f"objective {name} needs {field}, which these rows lack"
                f" (config.data.format={data.format!r} and its negatives)"
            )
    if data.format == "cooccurrence" and "counts" not in objective.needs:
        raise UserError(
            f"objective {name} reads text, and rows of config.data.format='cooccurrence' are pairs"
        )
    if model.token_encoder == "characters" and changes_tokens(objective):
        raise UserError(
            f"objective {name} changes tokens, and the model would still see their characters;"
            " set config.model.token_encoder='ids'"
        )


def changes_tokens(objective: Objective) -> bool:
    """Whether an objective has a view of its own."""
    return type(objective).view is not Objective.view


def check_states(config: ConfigDict, built: Mapping[str, Objective]) -> None:
    """That carried states are of a recurrent model along a stream, and that characters are read."""
    model, data = config.model, config.data
    if model.token_encoder == "characters" and not data.characters:
        raise UserError("config.model.token_encoder='characters' needs config.data.characters=True")
    if not model.stateful:
        return
    if data.format != "stream" or not family_of(model).recurrent:
        raise UserError(
            "config.model.stateful=True carries a recurrent model's states along"
            f" config.data.format='stream'; this is {model.family} on {data.format!r}"
        )
    for name, objective in built.items():
        two_sided = objective.reads == "both" and objective.shares != "any"
        if two_sided or changes_tokens(objective):
            raise UserError(
                f"objective {name} reads rows of its own, and config.model.stateful=True one"
                " direction of the stream at a time; set it to False"
            )
        if objective.reads == "backward" and not data.stream.backward:
            raise UserError(f"objective {name} needs config.data.stream.backward=True")


def check_views(config: ConfigDict, program: Program, batch: View) -> None:
    """That the body hides what a view's `order` hides: LSTMs and word vectors do not read it."""
    views = jax.eval_shape(program.views, batch, jax.random.key(0))
    for name, view in views.items():
        if "order" in view and not isinstance(program.body, Transformer):
            raise UserError(
                f"objective {name} hides tokens by an order, which config.model.family="
                f"{config.model.family} does not read; train it with a transformer"
            )


def check_weights(config: ConfigDict) -> None:
    """That something is trained, and that averaging has losses to observe."""
    weights = [weight for entry in config.objectives.values() for weight in weights_of(entry)]
    trains = any(weights) or config.train.phases or not config.train.steps
    if min(weights) < 0 or not trains:
        raise UserError("config.objectives.NAME.weight must be 0 or more, and above 0 for one NAME")
    if config.optimizer.average_after and not config.train.eval_every:
        raise UserError(
            "config.optimizer.average_after needs held-out losses: set config.train.eval_every"
        )
