"""Composes a pretraining from its config: corpus, model, objectives, phases."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.data.batches import Batches
from bertlab.data.formats import FORMATS, label_field
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.lora import Lora
from bertlab.models.presets import build_body, model_direction, model_shape
from bertlab.objectives.program import Program
from bertlab.train.checkpoint import load_params
from bertlab.train.loop import Experiment, Phase
from bertlab.train.phases import phase_configs
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import parameter_name


def build_pretraining(config: ConfigDict) -> Experiment:
    """Prepares the corpus of a config if it is not prepared, and composes the run.

    Raises:
        UserError: An objective cannot be trained with this model or these rows.
    """
    built = objectives.build(config.objectives)
    check(config, built)
    prepared = prepare(config.data)
    vocabulary = vocabulary_of(prepared)
    program = Program(
        build_body(model_shape(config.model, vocabulary.size)),
        built,
        vocabulary,
        stream=config.data.format == "stream",
        stateful=config.model.stateful,
        adapter=Lora(**config.lora) if config.lora.rank else None,
    )
    process = (jax.process_index(), jax.process_count())
    evaluations = {
        split: Batches(prepared, config.data, split, *process).evaluation(config.train.eval_batches)
        for split in ("valid", "test")
        if split in prepared.statistics
    }
    phases = build_phases(config, program, lambda data: Batches(prepared, data, "train", *process))
    facts = {
        "fingerprint": prepared.fingerprint,
        "statistics": prepared.statistics,
        "data_hash": [phase.data_hash for phase in phases],
    }
    start = None
    if config.init_from:
        trained = load_params(RunDirectory(config.init_from), config.init_step)
        start = WarmStart(trained, config.init_from)
    return Experiment(config, program, phases, prepared.tokenizer, evaluations, facts, start)


def vocabulary_of(prepared) -> objectives.Vocabulary:
    """What objectives know about a prepared corpus and its tokenizer."""
    tokenizer = prepared.tokenizer
    return objectives.Vocabulary(
        size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        unk_id=tokenizer.unk_id,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        counts=tuple(prepared.counts.tolist()),
        continues=tokenizer.continues(),
    )


def build_phases(config: ConfigDict, program: Program, batches) -> tuple[Phase, ...]:
    """The phases of `config.train.phases`, or a single one.

    A phase reads on where the one before ended if its rows are the same, else from the start.

    Args:
        config: The whole config.
        program: With all objectives.
        batches: `config.data` -> `Batches`.
    """
    phases, begin, first, source = [], 0, 0, None
    for end, phase_config in phase_configs(config):
        made = batches(phase_config.data)
        if source is None or made.hash != source.hash:
            source, first = made, begin
        weights = {name: loss_weights(entry) for name, entry in phase_config.objectives.items()}
        # An objective without a weight costs nothing, unless another one reads its view.
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
                batches=ReadFrom(source, first),
                data_hash=source.hash,
            )
        )
        begin = end
    return tuple(phases)


def loss_weights(entry: Mapping[str, Any]) -> tuple[float, float]:
    """An objective's weight in the loss at the run's first and last step."""
    final = entry.get("final_weight")
    return float(entry["weight"]), float(entry["weight"] if final is None else final)


@dataclasses.dataclass(frozen=True)
class ReadFrom:
    """Batches whose first is read at the run's step `first`."""

    batches: Batches
    first: int

    def __call__(self, step: int):
        return self.batches(step - self.first)


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Fresh parameters, replaced by a run's where it has them; a new head stays fresh.

    Attributes:
        trained: The run's parameters.
        run: Where they are from.
    """

    trained: Any
    run: str

    def __call__(self, fresh):
        missing = []

        def choose(path, leaf):
            node = self.trained
            for key in path:
                node = node.get(key.key) if isinstance(node, dict) else None
            if node is None:
                missing.append(parameter_name(path))
                return leaf
            if node.shape != leaf.shape:
                raise UserError(
                    f"config.init_from={self.run}: {parameter_name(path)} is {node.shape} there"
                    f" and {leaf.shape} here; use the same config.model"
                )
            return node

        chosen = jax.tree.map_with_path(choose, fresh)
        if missing:
            print(f"new in this run: {', '.join(missing)}", flush=True)
        return chosen


def check(config: ConfigDict, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses what would train something else than the config reads, or cannot run.

    Raises:
        UserError: Names the key.
    """
    model, data = config.model, config.data
    if data.format not in FORMATS:
        raise UserError(f"config.data.format={data.format!r} is not one of {', '.join(FORMATS)}")
    sides = sides_of(model.family, model_direction(model))
    for name, objective in built.items():
        if objective.reads not in sides and type(objective).shares != "any":
            raise UserError(
                f"objective {name} reads {objective.reads} states, and config.model.direction="
                f"{model_direction(model)!r} gives {' and '.join(sides)}"
            )
        labels = ("pair_label", "order_label")
        for field in objective.needs:
            if field not in FORMATS[data.format].makes or (
                field in labels and field != label_field(data)
            ):
                raise UserError(
                    f"objective {name} needs {field}, which these rows lack"
                    f" (config.data.format={data.format!r} and its negatives)"
                )
        changes = type(objective).view is not objectives.Objective.view
        if model.token_encoder == "characters" and changes:
            raise UserError(
                f"objective {name} changes tokens, and the model would still see their characters;"
                " set config.model.token_encoder='ids'"
            )
    if model.stateful and data.format != "stream":
        raise UserError(
            "config.model.stateful=True carries states along config.data.format='stream' alone"
        )
    shards = abs(config.mesh.data) * config.mesh.fsdp * config.train.micro_batches
    if data.batch_size % shards:
        raise UserError(
            f"config.data.batch_size={data.batch_size} must be a multiple of {shards}, the product"
            " of config.mesh.data, config.mesh.fsdp and config.train.micro_batches"
        )
