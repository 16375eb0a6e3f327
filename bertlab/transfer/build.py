"""Composes a fine-tuning: the tasks' rows, the pretrained body or its stored states, new heads."""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Float
from ml_collections import ConfigDict

from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.flops import flops_per_prediction
from bertlab.models.lora import Lora
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.objectives import flops
from bertlab.objectives.program import Program
from bertlab.train.build import require_same_model, start_from, vocabulary_of
from bertlab.train.layer_groups import layer_groups
from bertlab.train.loop import Experiment
from bertlab.train.phases import Phase, weights_of
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import parameter_name
from bertlab.transfer.baselines import outcome
from bertlab.transfer.batches import Batches, joined
from bertlab.transfer.features import WORD_VECTORS
from bertlab.transfer.heads import LANGUAGE_MODEL, AuxiliaryLanguageModel, TaskHead
from bertlab.transfer.inputs import LAYOUTS, NEW_TOKENS, Inputs, Layout
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.load import (
    embedded_tokens,
    is_finetuning,
    longest_text,
    merged_params,
    run_config,
)
from bertlab.transfer.scoring import Scores, Tasks
from bertlab.transfer.stored import with_stored_states
from bertlab.transfer.tasks import SPLITS, TaskData
from bertlab.transfer.word_vectors import WordVectors, word_vectors


def build_finetuning(config: ConfigDict, tasks: Tasks, workdir: Path) -> Experiment:
    """A run of the loop on the tasks' rows."""
    run = RunDirectory(config.init_from)
    tokenizer = load_tokenizer(run.tokenizer)
    shape = model_shape(config.model, embedded_tokens(config, tokenizer))
    check(config, shape, tasks, run)
    rows, heads, tables = {split: {} for split in SPLITS}, {}, {}
    for number, (name, (task, data)) in enumerate(tasks.items()):
        kind, (layout, tables[name]) = find_kind(task.kind), layout_of(config, name, data)
        inputs = Inputs(tokenizer, layout)
        for split in SPLITS:
            rows[split][name] = kind.rows(inputs, data.examples[split], task.symmetric)
        heads[name] = kind.build_head(
            {key: config.objectives[name][key] for key in kind.settings()},
            number=number,
            classes=len(data.labels),
            texts=max(rows[split][name].texts for split in SPLITS),
            word_types=1 + len(layout.word_ids or {}),
            vector_rows=tables[name].shape[0],
            vector_width=tables[name].shape[1],
        )
    if models_language(config):
        texts = max(made.texts for split in SPLITS for made in rows[split].values())
        heads[LANGUAGE_MODEL] = AuxiliaryLanguageModel(texts=texts)

    every, batches = {}, {}
    for split in SPLITS:
        every[split] = joined([made.rows for made in rows[split].values()])
        process = jax.process_index(), jax.process_count()
        batches[split] = Batches(every[split], config.data, tokenizer.pad_id, *process)
    data_hash, train = "-".join(made.hash for made in batches.values()), batches["train"]
    if config.transfer.features:
        body, stored = with_stored_states(config, batches, every)
        train, evaluations = stored["train"], {s: stored[s] for s in ("valid", "test")}
    else:
        body = build_body(without_dropout(shape) if is_fixed(config) else shape)
        evaluations = {split: batches[split].evaluation() for split in ("valid", "test")}
    adapter = Lora(**config.lora) if config.lora.rank else None
    program = Program(body, heads, vocabulary_of(tokenizer), adapter=adapter)
    weights = {name: weights_of(config.objectives[name]) for name in heads}
    steps, size = config.train.steps, config.data.batch_size
    axes = functools.partial(program.logical_axes, evaluations["valid"][0])
    cut = {split: {name: made.cut for name, made in rows[split].items()} for split in SPLITS}
    return Experiment(
        config=config,
        program=program,
        phases=(Phase(0, steps, size, program, weights, train, data_hash, not is_fixed(config)),),
        tokenizer=tokenizer,
        evaluations=evaluations,
        facts={},
        start=functools.partial(start_params, config, tasks, tables, axes),
        score=Scores(config, program, tasks, rows, evaluations, workdir),
        result=functools.partial(outcome, tasks, cut),
    )


def check(config: ConfigDict, shape, tasks: Tasks, run: RunDirectory) -> None:
    """Refuses what would train something else than the config reads."""
    transfer, model = config.transfer, config.model
    if transfer.layout not in LAYOUTS:
        raise UserError(f"config.transfer.layout={transfer.layout!r} is not one of {LAYOUTS}")
    if config.data.seq_len > (longest := longest_text(shape)):
        raise UserError(
            f"config.data.seq_len={config.data.seq_len} is more than the model's {longest}"
            " positions; lower it"
        )
    is_whole = not transfer.random and transfer.layers is None
    if transfer.features and not (is_whole and not config.lora.rank and jax.process_count() == 1):
        raise UserError(
            "config.transfer.features=True stores the run's own states in one process; omit"
            " transfer.random, transfer.layers and lora"
        )
    is_alone = is_whole and len(tasks) == 1 and not transfer.features
    if transfer.head and not (is_alone and transfer.head in heads_of(run)):
        raise UserError(
            f"config.transfer.head={transfer.head!r} is the head of one of {heads_of(run)} in {run}"
            " for one task on the whole body; omit other tasks, random, features and layers"
        )
    if not transfer.random:
        require_same_model(model, run_config(run.path).model, run)
    chunked = any(config.objectives[name].get("chunk") for name in tasks)
    if chunked and not (family_of(model).recurrent and model_direction(model) != "bidirectional"):
        raise UserError("config.head.chunk needs a recurrent model that reads one way; set it to 0")
    if models_language(config) and "both" in sides_of(model.family, model_direction(model)):
        raise UserError(
            "language_model needs a body that reads in one direction: set"
            " config.objectives.language_model.weight=0"
        )


def models_language(config: ConfigDict) -> bool:
    """Whether the auxiliary language model is trained too."""
    entry = config.objectives.get(LANGUAGE_MODEL)
    return entry is not None and any(weights_of(entry))


def is_fixed(config: ConfigDict) -> bool:
    """Whether the whole body is frozen: its states are features, without dropout."""
    frozen = config.optimizer.frozen
    fixed = config.optimizer.thaw == "head" or (frozen and re.search(frozen, "body/"))
    return bool(fixed) and not config.lora.rank


def without_dropout(shape):
    """The shape with all dropouts at 0."""
    names = [field.name for field in dataclasses.fields(shape)]
    return dataclasses.replace(shape, **{name: 0.0 for name in names if name.endswith("dropout")})


def layout_of(
    config: ConfigDict, name: str, data: TaskData
) -> tuple[Layout, Float[np.ndarray, "R E"]]:
    """How the config's model reads the examples of a task, and the table of its pretrained word
    vectors, an empty one if its head reads none."""
    entry, transfer, word_ids = config.objectives[name], config.transfer, None
    words = {
        split: {word for example in examples for word in example.words}
        for split, examples in data.examples.items()
    }
    if entry.get("word_width"):
        word_ids = {word: number for number, word in enumerate(sorted(words["train"]), 1)}
    vectors = WordVectors(None, np.zeros((0, 0), np.float32), 0)
    if run := entry.get(WORD_VECTORS):
        words = set().union(*words.values())
        vectors = word_vectors(run, words)
        print(f"{vectors.found} of {name}'s {len(words)} words have a vector in {run}", flush=True)
    sees_both = "both" in sides_of(config.model.family, model_direction(config.model))
    layout = Layout(
        name=transfer.layout,
        seq_len=config.data.seq_len,
        first_piece={"auto": sees_both, "first": True, "last": False}[transfer.word_piece],
        characters=config.data.characters,
        double_separator=bool(config.model.position_offset),
        doc_stride=transfer.doc_stride,
        max_query=transfer.max_query,
        document_context=transfer.document_context,
        spelling=entry.get("spelling", False),
        word_ids=word_ids,
        vector_ids=vectors.ids,
    )
    return layout, vectors.table


def heads_of(run: RunDirectory) -> list[str]:
    """The tasks of which a run has a head."""
    config = run.config()
    return [n for n in config["objectives"] if n != LANGUAGE_MODEL] if is_finetuning(config) else []


def start_params(config: ConfigDict, tasks: Tasks, tables, axes: Callable[[], Any], fresh):
    """The run's body, heads that go on, word vectors, and `fresh` parameters for the rest.

    Args:
        config: The fine-tuning's.
        tasks: By name.
        tables: Word vectors by task; an empty array: none.
        axes: () -> the names of the parameters' axes.
        fresh: All parameters.
    """
    transfer, fresh = config.transfer, jax.tree.map(np.asarray, fresh)
    for name, table in tables.items():
        if table.size:
            fresh[f"heads_{name}"]["features"][WORD_VECTORS] = table
    if transfer.random or transfer.features:
        return fresh
    run = RunDirectory(config.init_from)
    trained, matched = merged_params(run, config.init_step), matched_heads(transfer, tasks, run)
    taken = {name: tree for name, tree in trained.items() if not name.startswith("heads_")}
    for name in tasks:
        key = f"heads_{name}"
        if name in matched:
            head, order = matched[name]
            taken[key] = reordered(order, axes()[key], trained[f"heads_{head}"])
        elif key in trained:
            # With one seed the run's head began with the same draws, and the body would still know
            # its classes by number.
            fresh[key] = jax.tree.map(lambda leaf: np.roll(leaf, 1), fresh[key])
    if transfer.layout == "delimited":
        taken = with_new_tokens(taken, fresh)
    params = start_from(taken, fresh)
    return params if transfer.layers is None else lower_layers(params, fresh, transfer.layers)


def matched_heads(
    transfer: ConfigDict, tasks: Tasks, run: RunDirectory
) -> dict[str, tuple[str, list[int]]]:
    """Of each task that goes on with a head of the run: its name there, and its number of each of
    the task's classes."""
    heads = heads_of(run) if transfer.layers is None else []
    classes, matched = run.read("classes", {}), {}
    for name, (_, data) in tasks.items():
        if (head := transfer.head or name) not in heads:
            continue
        theirs = classes[head]
        if sorted(theirs) == sorted(data.labels):
            matched[name] = head, [theirs.index(label) for label in data.labels]
            continue
        differ = f"the head '{head}' of {run} has the classes {theirs}, and '{name}' {data.labels}"
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
    new = {parameter_name(path): leaf for path, leaf in jax.tree.leaves_with_path(fresh)}

    def extended(path, leaf):
        table = new.get(parameter_name(path), leaf)
        if leaf.ndim and len(table) == len(leaf) + len(NEW_TOKENS):
            return np.concatenate([leaf, table[len(leaf) :]])
        return leaf

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


@flops.objective_flops.register
def _(objective: TaskHead, shape, rows: int, length: int, predictions: float) -> float:
    return 0.0


@flops.objective_flops.register
def _(objective: AuxiliaryLanguageModel, shape, rows: int, length: int, predictions: float):
    return rows * length * flops_per_prediction(shape)
