"""From a config to what the loop runs: checks first, then data, model and objectives composed."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import grain
import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.data.batches import eval_batches, train_batches
from bertlab.data.formats import format_class
from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import build_body, model_direction, model_shape
from bertlab.objectives.program import Program, group_by_view
from bertlab.train.metrics import writer_names
from bertlab.train.schedules import learning_rate
from bertlab.train.sharding import build_mesh, check_batch

LEAST = {
    "data.seq_len": 8,
    "data.batch_size": 1,
    "data.seed": 0,
    "model.layers": 1,
    "model.width": 1,
    "model.heads": 1,
    "model.hidden": 1,
    "model.init_stddev": 0,
    "optimizer.learning_rate": 0,
    "optimizer.weight_decay": 0,
    "optimizer.clip_norm": 0,
    "train.steps": 0,
    "train.micro_batches": 1,
    "train.log_every": 1,
    "train.eval_every": 0,
    "train.checkpoint_every": 0,
    "train.keep_checkpoints": 0,
}
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


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What one run needs besides its directory.

    Attributes:
        config: the whole config, as written to config.json.
        program: model and objectives as pure functions.
        weights: objective name to weight in the loss.
        tokenizer: saved with the run, so that its directory is enough to use it.
        train: endless training batches.
        evaluations: held-out batches by split; "valid" is evaluated during training, all at the end.
        warm_start: fresh parameters -> parameters to begin with (from another run), or None.
    """

    config: ConfigDict
    program: Program
    weights: Mapping[str, float]
    tokenizer: Tokenizer
    train: grain.IterDataset
    evaluations: Mapping[str, list[dict[str, np.ndarray]]]
    warm_start: Callable[[Any], Any] | None = None

    def flops_per_step(self) -> float:
        """Forward and backward model FLOPs of the bodies' passes over one batch, attention counted in full, no heads."""
        data = self.config.data
        passes = len(group_by_view(self.program.objectives))
        return passes * data.batch_size * data.seq_len * self.program.body.config.flops_per_token(data.seq_len)

    def flops_per_prediction(self) -> float:
        """Forward and backward FLOPs of one row of logits."""
        return self.program.body.config.flops_per_prediction()

    def supervised(self, metrics: Mapping[str, tuple]) -> float:
        """Positions at which a token was predicted in one step; each cost one row of logits."""
        return sum(float(metrics[f"{n}/loss"][1]) for n, o in self.program.objectives.items() if o.predicts_tokens)


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
    has_pairs = format_class(config.data.format).has_pairs
    for name, objective in built.items():
        if objective.reads != "any" and objective.reads not in sides:
            raise UserError(
                f"objective {name} reads {_SIDE_MEANING[objective.reads]}, which a {config.model.family} with"
                f" config.model.direction={direction!r} does not have; {_FIX_SIDE[objective.reads]}"
            )
        if "pair_label" in objective.needs and not has_pairs:
            raise UserError(
                f"objective {name} needs sentence pairs, which config.data.format={config.data.format!r} does not make;"
                " set config.data.format='segment_pair'"
            )
        if not config.objectives[name].weight >= 0:
            raise UserError(f"config.objectives.{name}.weight={config.objectives[name].weight} must be 0 or more")
    check_shape(config, model_shape(config.model, vocab_size=1))
    return built


def check_shape(config: ConfigDict, shape) -> None:
    """Refuses sizes that do not go together: row length and positions, batch and its parts, ranges, schedule."""
    limit = getattr(shape, "max_positions", None)
    if limit is not None and config.data.seq_len > limit:
        raise UserError(
            f"config.data.seq_len={config.data.seq_len} is beyond the model's {limit} positions;"
            " lower it or raise config.model.max_positions"
        )
    for key, least in LEAST.items():
        group, leaf = key.split(".")
        value = config[group][leaf]
        if value is not None and not value >= least:
            raise UserError(f"config.{key}={value} must be at least {least}")
    # What is known without asking for devices, which a sweep must not take from its runs.
    known_shards = math.prod(size for size in (config.mesh.data, config.mesh.fsdp) if size > 0)
    check_batch(known_shards, config.data.batch_size, config.train.micro_batches)
    for key in ("short_probability", "random_next_probability"):
        if "segment_pair" in config.data and not 0 <= config.data.segment_pair[key] <= 1:
            raise UserError(f"config.data.segment_pair.{key}={config.data.segment_pair[key]} must be between 0 and 1")
    try:
        re.compile(config.optimizer.decay_exclude)
    except re.error as error:
        raise UserError(f"config.optimizer.decay_exclude={config.optimizer.decay_exclude!r} is no pattern: {error}") from None
    if not 0 <= config.model.dropout < 1:
        raise UserError(f"config.model.dropout={config.model.dropout} must be at least 0 and below 1")
    learning_rate(config.optimizer, config.train.steps)
    writer_names(config.writers)


def check_devices(config: ConfigDict) -> None:
    """Refuses a mesh that this machine's devices do not fill, and a batch that it does not divide."""
    mesh = build_mesh(config.mesh)
    check_batch(mesh.shape["data"] * mesh.shape["fsdp"], config.data.batch_size, config.train.micro_batches)


def vocabulary_of(tokenizer: Tokenizer) -> objectives.Vocabulary:
    """What objectives may know of a tokenizer."""
    return objectives.Vocabulary(
        tokenizer.vocab_size, tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    )


def build_pretraining(config: ConfigDict) -> Experiment:
    """Checks the config, prepares its corpus where that is not done yet, and composes the run.

    Args:
        config: a whole experiment config.

    Raises:
        UserError: from any of the checks.
    """
    built = check_config(config)
    check_devices(config)
    prepared = prepare(config.data)
    body = build_body(model_shape(config.model, prepared.tokenizer.vocab_size))
    return Experiment(
        config=config,
        program=Program(body, built, vocabulary_of(prepared.tokenizer)),
        weights={name: float(config.objectives[name].weight) for name in built},
        tokenizer=prepared.tokenizer,
        train=train_batches(prepared, config.data, (jax.process_index(), jax.process_count())),
        evaluations={
            split: eval_batches(prepared, config.data, split, config.train.eval_batches) for split in ("valid", "test")
        },
    )
