"""From a config to what the loop runs: checks first, then data, model and objectives composed."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.data.batches import Shards, check_data, eval_batches, train_batches
from bertlab.data.facts import data_facts
from bertlab.data.formats import NEGATIVES, label_field
from bertlab.data.prepare import prepare
from bertlab.data.streams import row_length
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.objectives.blame import blamed
from bertlab.objectives.program import Program
from bertlab.train.budget import parse_budget
from bertlab.train.checkpoint import load_params
from bertlab.train.choice import check_attention
from bertlab.train.lora import build_adapter
from bertlab.train.metrics import writer_names
from bertlab.train.optimizers import check_optimizer
from bertlab.train.phases import phase_configs, weights_of
from bertlab.train.schedules import learning_rate
from bertlab.train.sharding import build_mesh, check_batch, check_rows_have_one_process
from bertlab.train.state import weights_at

LEAST = {
    "data.seq_len": 8,
    "data.batch_size": 1,
    "data.seed": 0,
    "model.layers": 1,
    "model.width": 1,
    "model.heads": 1,
    "model.hidden": 1,
    "model.max_positions": 1,
    "model.init_stddev": 0,
    "model.epsilon": 0,
    "model.position_offset": 0,
    "model.segments": 0,
    "model.output_rows": 0,
    "model.highway_layers": 0,
    "optimizer.learning_rate": 0,
    "optimizer.weight_decay": 0,
    "optimizer.clip_norm": 0,
    "train.steps": 0,
    "train.micro_batches": 1,
    "train.log_every": 1,
    "train.eval_every": 0,
    "train.checkpoint_every": 0,
    "train.keep_checkpoints": 0,
    "profile": 0,
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
class Phase:
    """A part of a run, in which one set of objectives is trained on batches of one shape; mostly there is only one.

    Attributes:
        end: steps of the run that are done when it ends.
        data: `config.data` of its batches.
        program: model and the objectives that it trains.
        weights: objective name to weight in the loss at the run's first and last step.
        train: endless training batches; the same object as the phase's before where the data goes on.
    """

    end: int
    data: ConfigDict
    program: Program
    weights: Mapping[str, tuple[float, float]]
    train: Shards

    def flops_per_step(self, length: int | None = None) -> float:
        """Forward and backward model FLOPs of the body's passes over one batch, attention counted in full, no logits.

        Args:
            length: positions of the batch's rows; None: the most that they can have.
        """
        length, shape, asked = length or row_length(self.data), self.program.body.config, self.program.objectives
        sides = [{asked[name].reads for name in names} for names in self.program.groups.values()]
        passes = length * sum(shape.flops_per_token(length, of_pass) for of_pass in sides)
        extra = 0.0
        for name, objective in asked.items():
            with blamed(name, objective, "extra_flops"):
                extra += objective.extra_flops(shape, length)
        return self.data.batch_size * (passes + extra)

    def supervised(self, metrics: Mapping[str, tuple]) -> float:
        """Positions at which something was asked in one step."""
        trained = [(n, o) for n, o in self.program.objectives.items() if any(self.weights[n])]
        return sum(float(metrics[f"{n}/loss"][1]) for n, o in trained if o.asks in ("tokens", "positions"))

    def flops(self, metrics: Mapping[str, tuple], length: int) -> float:
        """Forward and backward FLOPs of one step with its predictions, `length` positions a row."""
        shape, asked = self.program.body.config, self.program.objectives.items()
        predicted = sum(float(metrics[f"{name}/loss"][1]) * o.flops_per_prediction(shape) for name, o in asked)
        return self.flops_per_step(length) + predicted


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What one run needs besides its directory.

    Attributes:
        config: the whole config, as written to config.json.
        program: model and all objectives as pure functions.
        phases: what is trained on, in order.
        tokenizer: saved with the run, so that its directory is enough to use it.
        evaluations: held-out batches by split; "valid" is evaluated during training, all at the end.
        data_facts: what is known of corpus and batches, for `bertlab doctor`; None for a task's rows.
        warm_start: fresh parameters -> parameters to begin with (from another run), or None.
        score: (split, what the objectives keep of each evaluation batch) -> metrics that are no means over rows, such as
            F1 or a correlation; None for pretraining.
    """

    config: ConfigDict
    program: Program
    phases: tuple[Phase, ...]
    tokenizer: Tokenizer
    evaluations: Mapping[str, list[dict[str, np.ndarray]]]
    data_facts: Mapping[str, Any] | None = None
    warm_start: Callable[[Any], Any] | None = None
    score: Callable[[str, list[Mapping[str, Any]]], dict[str, float]] | None = None

    def phase(self, step: int) -> Phase:
        """The phase of the update that follows `step` updates; after the last one, the last."""
        return next((phase for phase in self.phases if step < phase.end), self.phases[-1])

    def weights(self, step: int) -> dict[str, float]:
        """Each trained objective's weight in the loss of the `step`-th update, from 1."""
        before = max(step - 1, 0)
        return weights_at(self.phase(before).weights, before / max(1, self.config.train.steps))


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


def check_numbers(config: ConfigDict) -> None:
    """Refuses numbers that are not finite, and those below `LEAST`."""
    _check_finite(config, "config")
    if not -(2**31) <= config.seed < 2**31:
        raise UserError(f"config.seed={config.seed} must be a whole number of 32 bits")
    for key, least in LEAST.items():
        group, _, leaf = key.rpartition(".")
        value = (config[group] if group else config)[leaf]
        if value is not None and not value >= least:
            raise UserError(f"config.{key}={value} must be at least {least}")


def _check_finite(config: ConfigDict, prefix: str) -> None:
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            _check_finite(value, f"{prefix}.{key}")
        elif isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{prefix}.{key}={value} is not finite; give a number")


def check_shape(config: ConfigDict, shape) -> None:
    """Refuses sizes that do not go together: row length and positions, batch and its parts, ranges, schedule."""
    check_numbers(config)
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
    for key in [k for k in config.model if k.endswith("dropout") and config.model[k] is not None]:
        if not 0 <= config.model[key] < 1:
            raise UserError(f"config.model.{key}={config.model[key]} must be at least 0 and below 1")
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


def build_pretraining(config: ConfigDict) -> Experiment:
    """Checks the config, prepares its corpus where that is not done yet, and composes the run.

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
    program = Program(
        build_body(model_shape(config.model, prepared.tokenizer.vocab_size)),
        built,
        vocabulary_of(prepared.tokenizer, prepared.counts),
        stream=config.data.format == "stream",
        stateful=config.model.stateful,
        adapter=build_adapter(config.lora),
    )
    process = (jax.process_index(), jax.process_count())
    return Experiment(
        config=config,
        program=program,
        phases=build_phases(config, program, lambda data: train_batches(prepared, data, process)),
        tokenizer=prepared.tokenizer,
        evaluations=evaluations,
        data_facts=data_facts(prepared, evaluations) | {"objectives": objective_facts(built, prepared, evaluations)},
        warm_start=(lambda fresh: warm_start(fresh, Path(config.init_from).expanduser())) if config.init_from else None,
    )


def objective_facts(built: Mapping[str, objectives.Objective], prepared, evaluations) -> dict[str, dict[str, Any]]:
    """What data.json says of each objective: what it `asks`, its `labels` if it reads any, and the loss of `guessing` in
    nats."""
    batches = evaluations["valid"]
    return {
        name: {
            "asks": objective.asks,
            "labels": next((field for field in objective.needs if field in NEGATIVES.values()), None),
            "guessing": objective.guessing(prepared.counts, batches),
        }
        for name, objective in built.items()
    }


def build_phases(config: ConfigDict, program: Program, batches: Callable[[ConfigDict], Shards]) -> tuple[Phase, ...]:
    """The phases of `config.train.phases`, or the one that there is without.

    Args:
        config: a checked config.
        program: with all objectives.
        batches: `config.data` -> endless training batches.
    """
    built = []
    for end, of_phase in phase_configs(config):
        same = built and built[-1].data == of_phase.data
        weights = {name: weights_of(entry) for name, entry in of_phase.objectives.items()}
        # Whose view is shown stays, or what sees it would be shown something else than at the end.
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


def check_vocabulary(config: ConfigDict, tokenizer: Tokenizer, built: Mapping[str, objectives.Objective]) -> None:
    """Refuses a tokenizer that an objective cannot work with, or whose ids mean something else in `config.init_from`."""
    if config.init_from:
        theirs = load_tokenizer(Path(config.init_from).expanduser() / "tokenizer")
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


def begun_from(config: ConfigDict) -> ConfigDict:
    """The config with the model and the tokenizer of the run that `config.init_from` names; without one, as it is.

    Size and shape are that run's, and so are `direction`, dropouts and the tokenizer where the config leaves them open.
    How it is computed (dtype, remat, scan_layers, stateful) stays the config's own.

    Raises:
        UserError: there is no such run, or a key that the config gives contradicts its model.
    """
    if not config.init_from:
        return config
    run = Path(config.init_from).expanduser()
    if not (run / "config.json").is_file():
        raise UserError(
            f"config.init_from={config.init_from} has no config.json; give the --workdir of a `bertlab train` or `import`"
        )
    theirs = ConfigDict(json.loads((run / "config.json").read_text())["model"])
    config = config.copy_and_resolve_references()
    check_family(config, theirs)
    config.model.size = theirs.size
    for key in [key for key, value in config.model.items() if value is None and theirs.get(key) is not None]:
        config.model[key] = theirs[key]
    check_model(config, theirs)
    config.data.tokenizer.path = config.data.tokenizer.path or str(run / "tokenizer")
    return config


def check_model(config: ConfigDict, theirs: ConfigDict) -> None:
    """Refuses a model of another family or shape than `theirs`, that of the run that `config.init_from` names."""
    check_family(config, theirs)
    shape, expected = (dataclasses.asdict(model_shape(m, vocab_size=1)) for m in (config.model, theirs))
    del shape["output"]["rows"], expected["output"]["rows"]
    for key in sorted(shape.keys() - _OWN):
        if shape[key] != expected[key] and not key.endswith("dropout"):
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


# Of a body's shape, what may differ from the run that it begins with.
_OWN = {"attention", "direction", "dtype", "remat", "scan_layers", "vocab_size"}


def warm_start(fresh, run: Path, change: Callable[[Any], Any] = lambda pretrained: pretrained):
    """Fresh parameters replaced by a run's, as `change` makes them, wherever it has them; says which it has not.

    Raises:
        UserError: a parameter has another shape there.
    """
    params, kept_fresh = grafted(fresh, change(load_params(run)), run)
    if kept_fresh:
        print(f"not in {run}, so begun afresh: {', '.join(kept_fresh)}", flush=True)
    return params


def grafted(fresh, pretrained, run: Path) -> tuple[dict, list[str]]:
    """Fresh parameters with every one that the pretrained tree has replaced by it.

    Args:
        fresh: a new model's parameters.
        pretrained: those of a run or an imported directory.
        run: named in messages.

    Returns:
        The parameters, and the names of those that stay fresh (a pooler that was never trained, a new head).
    """
    kept_fresh = []

    def graft(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        node = pretrained
        for key in path:
            node = node.get(key.key) if isinstance(node, dict) else None
        if node is None:
            kept_fresh.append(name)
            return leaf
        if node.shape != leaf.shape:
            raise UserError(f"parameter {name} is {node.shape} in {run} and {leaf.shape} here; set config.model as there")
        return node

    return jax.tree_util.tree_map_with_path(graft, fresh), kept_fresh
