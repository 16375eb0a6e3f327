"""Composes a fine-tuning: the tasks' rows, the pretrained body or its stored states, new heads."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from ml_collections import ConfigDict

from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.flops import flops_per_prediction
from bertlab.models.lora import Lora
from bertlab.models.presets import body_shapes, build_body, family_of, model_direction, model_shape
from bertlab.objectives import flops
from bertlab.objectives.program import Program
from bertlab.train.build import MAY_DIFFER, WarmStart, vocabulary_of
from bertlab.train.layer_groups import layer_groups
from bertlab.train.loop import Experiment
from bertlab.train.phases import Phase, weights_of
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import parameter_name
from bertlab.transfer.batches import Batches, joined
from bertlab.transfer.features import WORD_VECTORS
from bertlab.transfer.heads import AUXILIARY, AuxiliaryLanguageModel, TaskHead
from bertlab.transfer.inputs import LAYOUTS, NEW_TOKENS, Inputs, Layout
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.load import (
    embedded_tokens,
    is_finetuning,
    merged_params,
    run_config,
)
from bertlab.transfer.scoring import Scores, Tasks, outcome
from bertlab.transfer.stored import with_stored_states
from bertlab.transfer.tasks import SPLITS, Task, TaskData
from bertlab.transfer.word_vectors import WordVectors, word_vectors


def build_finetuning(config: ConfigDict, tasks: Tasks, workdir: Path) -> Experiment:
    """A run of the loop on the tasks' rows."""
    run = RunDirectory(config.init_from)
    tokenizer = load_tokenizer(run.tokenizer)
    shape = model_shape(config.model, embedded_tokens(config, tokenizer))
    check(config, shape, tasks, run)
    vectors = {name: find_vectors(config, name, data) for name, (_, data) in tasks.items()}
    rows, heads, texts = {split: {} for split in SPLITS}, {}, 1
    for number, (name, (task, data)) in enumerate(tasks.items()):
        kind, layout = find_kind(task.kind), layout_of(config, name, data, vectors[name])
        inputs = Inputs(tokenizer, layout)
        for split in SPLITS:
            rows[split][name] = kind.rows(inputs, data.examples[split], task.symmetric)
        own_texts = kind.texts(data.examples["train"], layout, task.symmetric)
        heads[name] = build_head(config, task, data, number, own_texts, layout, vectors[name])
        texts = max(texts, own_texts)
    for name in AUXILIARY.keys() & config.objectives.keys():
        if any(weights_of(config.objectives[name])):
            heads[name] = AUXILIARY[name](texts=texts)

    # The body, or its states, and their batches.
    process = jax.process_index(), jax.process_count()
    every, batches = {}, {}
    for split in SPLITS:
        parts = [made.rows for made in rows[split].values()]
        every[split] = joined(parts) if len(parts) > 1 else parts[0]
        batches[split] = Batches(every[split], config.data, tokenizer.pad_id, texts, *process)
    evaluations = {split: batches[split].evaluation() for split in ("valid", "test")}
    body, train = build_body(shape), batches["train"]
    if config.transfer.features:
        body, train, evaluations = with_stored_states(config, batches, every)
    elif is_fixed(config, shape):
        body = build_body(without_dropout(shape))

    adapter = Lora(**config.lora) if config.lora.rank else None
    program = Program(body, heads, vocabulary_of(tokenizer), adapter=adapter)
    weights = {name: weights_of(config.objectives[name]) for name in heads}
    steps, size = config.train.steps, config.data.batch_size
    axes = functools.partial(program.logical_axes, evaluations["valid"][0])
    data_hash = "-".join(batches[split].hash for split in SPLITS)
    cut = {split: {name: made.cut for name, made in rows[split].items()} for split in SPLITS}
    return Experiment(
        config=config,
        program=program,
        phases=(Phase(0, steps, size, program, weights, train, data_hash),),
        tokenizer=tokenizer,
        evaluations=evaluations,
        facts={},
        start=functools.partial(start_params, config, tasks, vectors, axes),
        score=Scores(config, program, tasks, rows, evaluations, workdir),
        result=outcome(tasks, cut),
    )


def check(config: ConfigDict, shape, tasks: Tasks, run: RunDirectory) -> None:
    """Refuses what would train something else than the config reads, or cannot run."""
    transfer, data = config.transfer, config.data
    for key in ("budget", "phases"):
        if config.train[key]:
            raise UserError(f"config.train.{key} is for pretraining; leave it empty")
    for key, choices in (("layout", LAYOUTS), ("word_piece", ("auto", "first", "last"))):
        if transfer[key] not in choices:
            raise UserError(
                f"config.transfer.{key}={transfer[key]!r} is not one of {', '.join(choices)}"
            )
    if getattr(shape, "position_encoding", "") == "learned" and data.seq_len > shape.max_positions:
        raise UserError(
            f"config.data.seq_len={data.seq_len} is more than the model's {shape.max_positions}"
            " positions; lower it"
        )
    layers = getattr(shape, "layers", 0)
    if transfer.layers is not None and not 0 <= transfer.layers <= layers:
        raise UserError(
            f"config.transfer.layers={transfer.layers} must be 0 (the embeddings) to {layers}"
        )
    changed = transfer.random or transfer.layers is not None or config.lora.rank
    if transfer.features and (changed or jax.process_count() > 1):
        raise UserError(
            "config.transfer.features=True stores the run's own states in one process; omit"
            " transfer.random, transfer.layers and lora"
        )
    if not transfer.random:
        check_same_model(config, shape, run)
    if transfer.head:
        check_head(config, tasks, run)
    for name, (task, _) in tasks.items():
        check_task(config, name, task)


def check_same_model(config: ConfigDict, shape, run: RunDirectory) -> None:
    """Refuses values of `config.model` with which the run's parameters mean something else."""
    theirs = dataclasses.asdict(model_shape(run_config(run.path).model, shape.vocab_size))
    ours = dataclasses.asdict(shape)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) and not MAY_DIFFER.fullmatch(key):
            raise UserError(
                f"config.model.{key} is {ours.get(key)!r}, and {theirs.get(key)!r} in the model of"
                f" {run}; leave it unset, or set config.transfer.random=True"
            )


def check_head(config: ConfigDict, tasks: Tasks, run: RunDirectory) -> None:
    """That the run has the head of `config.transfer.head`, and that it can go on."""
    transfer, heads = config.transfer, heads_of(run)
    if len(tasks) > 1 or transfer.random or transfer.features or transfer.layers is not None:
        raise UserError(
            f"config.transfer.head={transfer.head!r} continues one task's head on the run's whole"
            " body; omit other tasks, random, features and layers"
        )
    if transfer.head not in heads:
        raise UserError(
            f"config.transfer.head={transfer.head!r}: {run} has the heads"
            f" {', '.join(heads) or 'of no task'}; name another, or leave it empty"
        )


def check_task(config: ConfigDict, name: str, task: Task) -> None:
    """That a task's settings fit it and the model."""
    entry, model = config.objectives[name], config.model
    if config.metrics.get(name) not in task.metrics:
        raise UserError(
            f"config.metrics.{name}={config.metrics.get(name)!r} is not one of"
            f" {', '.join(task.metrics)}"
        )
    one_way = model_direction(model) != "bidirectional"
    if entry.get("chunk") and not (family_of(model).recurrent and one_way):
        raise UserError(
            f"config.objectives.{name}.chunk={entry.chunk} needs a recurrent model that reads one"
            " way; set it to 0"
        )


def is_fixed(config: ConfigDict, shape) -> bool:
    """Whether nothing in the body is trained: its states are features, without dropout."""
    if config.lora.rank:
        return False
    names = [
        f"body/{parameter_name(path)}"
        for path, _ in jax.tree.leaves_with_path(body_shapes(shape, predicts=False, pools=True))
    ]
    frozen = config.optimizer.frozen
    return config.optimizer.thaw == "head" or (
        frozen != "" and all(re.search(frozen, name) for name in names)
    )


def without_dropout(shape):
    """The shape with all dropouts at 0."""
    names = [field.name for field in dataclasses.fields(shape)]
    return dataclasses.replace(shape, **{name: 0.0 for name in names if name.endswith("dropout")})


def find_vectors(config: ConfigDict, name: str, data: TaskData) -> WordVectors | None:
    """The pretrained vectors of the words of a task, if its head reads them."""
    if not (run := config.objectives[name].get(WORD_VECTORS)):
        return None
    splits = data.examples.values()
    words = {word for examples in splits for example in examples for word in example.words}
    try:
        found = word_vectors(run, words)
    except UserError as error:
        raise UserError(f"config.objectives.{name}.{error}") from None
    print(f"{found.found} of {name}'s {len(words)} words have a vector in {run}", flush=True)
    return found


def layout_of(config: ConfigDict, name: str, data: TaskData, vectors: WordVectors | None) -> Layout:
    """How the config's model reads the examples of a task."""
    entry, transfer, word_ids = config.objectives[name], config.transfer, None
    if entry.get("word_width"):
        seen = {word for example in data.examples["train"] for word in example.words}
        word_ids = {word: number for number, word in enumerate(sorted(seen), 1)}
    sees_both = "both" in sides_of(config.model.family, model_direction(config.model))
    return Layout(
        name=transfer.layout,
        seq_len=config.data.seq_len,
        first_piece=sees_both if transfer.word_piece == "auto" else transfer.word_piece == "first",
        characters=config.data.characters,
        double_separator=bool(config.model.position_offset),
        doc_stride=transfer.doc_stride,
        max_query=transfer.max_query,
        document_context=transfer.document_context,
        spelling=entry.get("spelling", False),
        word_ids=word_ids,
        vector_ids=vectors and vectors.ids,
    )


def build_head(
    config: ConfigDict,
    task: Task,
    data: TaskData,
    number: int,
    texts: int,
    layout: Layout,
    vectors: WordVectors | None,
) -> TaskHead:
    """The head of a task."""
    kind, table = find_kind(task.kind), None if vectors is None else vectors.table
    settings = {key: config.objectives[task.name][key] for key in kind.settings()}
    try:
        return kind.build_head(
            settings,
            number=number,
            classes=len(data.labels),
            texts=texts,
            word_types=1 + len(layout.word_ids or {}),
            vector_rows=0 if table is None else table.shape[0],
            vector_width=0 if table is None else table.shape[1],
        )
    except UserError as error:
        raise UserError(f"config.objectives.{task.name}.{error}") from None


def heads_of(run: RunDirectory) -> list[str]:
    """The tasks of which a run has a head."""
    config = run.config()
    return [n for n in config["objectives"] if n not in AUXILIARY] if is_finetuning(config) else []


def start_params(config: ConfigDict, tasks: Tasks, vectors, axes: Callable[[], Any], fresh):
    """The run's body, heads that go on, word vectors, and `fresh` parameters for the rest.

    `axes`: () -> the names of the parameters' axes.
    """
    transfer, fresh = config.transfer, dict(fresh)
    for name, found in vectors.items():
        if found is not None:
            head = fresh[f"heads_{name}"]
            features = {**head["features"], WORD_VECTORS: found.table}
            fresh[f"heads_{name}"] = {**head, "features": features}
    if transfer.random or transfer.features:
        return fresh
    run = RunDirectory(config.init_from)
    trained, matched = merged_params(run, config.init_step), matched_heads(transfer, tasks, run)
    taken = {name: tree for name, tree in trained.items() if not name.startswith("heads_")}
    for name in tasks:
        key = f"heads_{name}"
        if name in matched:
            head, order = matched[name]
            taken[key] = trained[f"heads_{head}"]
            if order != sorted(order):
                taken[key] = reordered(order, axes()[key], taken[key])
        elif key in trained:
            # With one seed the run's head began with the same draws, and the body would still know
            # its classes by number.
            fresh[key] = jax.tree.map(lambda leaf: np.roll(leaf, 1), fresh[key])
    if transfer.layout == "delimited":
        taken = with_new_tokens(taken, fresh)
    params = WarmStart(taken, str(run))(fresh)
    return params if transfer.layers is None else lower_layers(params, fresh, transfer.layers)


def matched_heads(
    transfer: ConfigDict, tasks: Tasks, run: RunDirectory
) -> dict[str, tuple[str, list[int]]]:
    """Of each task that goes on with a head of the run: its name there, and its number of each of
    the task's classes."""
    heads, theirs, matched = heads_of(run), run.read("classes", {}), {}
    for name, (_, data) in tasks.items():
        head = transfer.head or name
        if head not in heads or transfer.layers is not None:
            continue
        if sorted(theirs[head]) == sorted(data.labels):
            matched[name] = head, [theirs[head].index(label) for label in data.labels]
            continue
        differ = (
            f"the classes of the head '{head}' of {run} are {', '.join(theirs[head])}, and those of"
            f" task '{name}' are {', '.join(data.labels)}"
        )
        if transfer.head:
            raise UserError(f"config.transfer.head={head!r}: {differ}; leave it empty")
        print(f"{differ}; the task begins with a new head", flush=True)
    return matched


def reordered(order: Sequence[int], axes, head):
    """A head's parameters with its classes in another order; `axes`: the names of each one's."""

    def take(axes: PartitionSpec, leaf: np.ndarray) -> np.ndarray:
        for axis, name in enumerate(axes):
            leaf = np.take(leaf, order, axis) if name == "classes" else leaf
        return leaf

    return jax.tree.map(take, axes, head, is_leaf=lambda node: isinstance(node, PartitionSpec))


def with_new_tokens(trained, fresh):
    """The run's tree with the fresh rows of the delimited layout's tokens in tables that lack
    them."""

    def extended(path, leaf):
        node = fresh
        for key in path:
            node = node.get(key.key) if isinstance(node, Mapping) else None
        if node is None or not leaf.ndim or node.shape[1:] != leaf.shape[1:]:
            return leaf
        missing = node.shape[0] - leaf.shape[0]
        return np.concatenate([leaf, node[-missing:]]) if missing == len(NEW_TOKENS) else leaf

    return jax.tree.map_with_path(extended, trained)


def lower_layers(params, fresh, count: int):
    """`params` in the embeddings and the lowest layers, `fresh` above; a final norm belongs to the
    top layer, and a pooler to none."""
    groups, names = layer_groups(params)
    head = len(names) - 1

    def choose(path, group, ours, new):
        if parameter_name(path).startswith("body/final_norm/"):
            group = head - 1
        return np.where((group <= count) & (group < head), ours, new).astype(ours.dtype)

    return jax.tree.map_with_path(choose, groups, params, fresh)


@flops.prediction_flops.register(TaskHead)
@flops.prediction_flops.register(AuxiliaryLanguageModel)
def _(objective, shape) -> float:
    return 0.0


@flops.extra_flops.register
def _(objective: AuxiliaryLanguageModel, shape, length: int) -> float:
    return length * flops_per_prediction(shape)
