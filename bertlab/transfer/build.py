"""Composes a fine-tuning: the tasks' rows, the pretrained body or its stored states, new heads."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.lora import Lora
from bertlab.models.presets import build_body, family_of, model_shape
from bertlab.objectives.base import Objective, restrict
from bertlab.objectives.program import Program
from bertlab.train.build import require_same_model, start_from, vocabulary_of
from bertlab.train.loop import Experiment
from bertlab.train.phases import Phase, weights_of
from bertlab.train.run_directory import RunDirectory
from bertlab.train.schedules import layer_groups
from bertlab.train.state import parameter_name
from bertlab.transfer.batches import Batches, joined
from bertlab.transfer.features import NO_VECTORS, WORD_VECTORS, WordVectors, word_vectors
from bertlab.transfer.heads import LANGUAGE_MODEL, AuxiliaryLanguageModel
from bertlab.transfer.inputs import NEW_TOKENS, Inputs, Layout
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.base import TaskRows
from bertlab.transfer.load import (
    embedded_tokens,
    longest_text,
    merged_params,
    reads_both_sides,
    run_config,
)
from bertlab.transfer.scoring import Tasks, build_score, outcome
from bertlab.transfer.stored import with_stored_states
from bertlab.transfer.tasks import SPLITS, TaskData


def build_finetuning(config: ConfigDict, tasks: Tasks, workdir: Path) -> Experiment:
    """A run of the loop on the tasks' rows."""
    tokenizer = load_tokenizer(RunDirectory(config.init_from).tokenizer)
    shape = model_shape(config.model, embedded_tokens(config, tokenizer))
    check(config, shape)
    runs = {name: config.objectives[name].get(WORD_VECTORS) for name in tasks}
    vectors = {
        name: word_vectors(runs[name], data.words(*SPLITS)) if runs[name] else NO_VECTORS
        for name, (_, data) in tasks.items()
    }
    rows, heads = rows_and_heads(config, tasks, tokenizer, vectors)

    process = jax.process_index(), jax.process_count()
    every = {split: joined([made.rows for made in rows[split].values()]) for split in SPLITS}
    batches = {
        split: Batches(every[split], config.data, tokenizer.pad_id, *process) for split in SPLITS
    }
    data_hash = "-".join(batches[split].hash for split in SPLITS)
    if config.transfer.features:
        body, evaluations = with_stored_states(config, batches, every)
        train = evaluations.pop("train")
    else:
        body = build_body(without_dropout(shape) if is_fixed(config) else shape)
        train = batches["train"]
        evaluations = {split: batches[split].evaluation() for split in ("valid", "test")}

    adapter = Lora(**config.lora) if config.lora.rank else None
    program = Program(body, heads, vocabulary_of(tokenizer), adapter=adapter)
    phase = Phase(
        begin=0,
        end=config.train.steps,
        rows=config.data.batch_size,
        program=program,
        weights={name: weights_of(config.objectives[name]) for name in heads},
        batches=train,
        data_hash=data_hash,
        trains_body=not is_fixed(config),
    )
    cut = {split: {name: made.cut for name, made in rows[split].items()} for split in SPLITS}
    return Experiment(
        config=config,
        program=program,
        phases=(phase,),
        tokenizer=tokenizer,
        evaluations=evaluations,
        facts={"examples": {name: data.digest for name, (_, data) in tasks.items()}},
        start=functools.partial(start_params, config, vectors),
        score=build_score(config, program, tasks, rows, evaluations, workdir),
        result=functools.partial(outcome, tasks, cut),
    )


def check(config: ConfigDict, shape) -> None:
    """Refuses what would not train what the config says."""
    transfer, model = config.transfer, config.model
    restrict(transfer, layout="pair delimited", word_piece="auto first last")
    if config.data.seq_len > (longest := longest_text(shape)):
        raise UserError(
            f"config.data.seq_len={config.data.seq_len} is more than the model's {longest}"
            " positions; lower it"
        )
    pools = any(entry.get("pooling") == "pooler" for entry in config.objectives.values())
    is_whole = not (transfer.random or config.lora.rank or pools) and transfer.layers is None
    if transfer.features and not (is_whole and jax.process_count() == 1):
        raise UserError(
            "config.transfer.features=True stores the run's own states, and no pooler, in one"
            " process; omit transfer.random, transfer.layers, lora and pooling='pooler'"
        )
    if not transfer.random:
        run = RunDirectory(config.init_from)
        require_same_model(model, run_config(run.path).model, run)
    one_way, is_recurrent = not reads_both_sides(model), family_of(model).recurrent
    chunked = any(entry.get("chunk") for entry in config.objectives.values())
    if (models_language(config) and not one_way) or (chunked and not (one_way and is_recurrent)):
        raise UserError(
            "config.objectives.language_model needs a body that reads in one direction, and"
            " config.head.chunk a recurrent one too: set objectives.language_model.weight=0 or"
            " head.chunk=0"
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
    dropouts = [x.name for x in dataclasses.fields(shape) if x.name.endswith("dropout")]
    return dataclasses.replace(shape, **dict.fromkeys(dropouts, 0.0))


def rows_and_heads(
    config: ConfigDict, tasks: Tasks, tokenizer: Tokenizer, vectors: Mapping[str, WordVectors]
) -> tuple[dict[str, dict[str, TaskRows]], dict[str, Objective]]:
    """Each task's rows, by split and task, and the heads by task."""
    rows, heads = {split: {} for split in SPLITS}, {}
    for number, (name, (task, data)) in enumerate(tasks.items()):
        kind, layout = find_kind(task.kind), layout_of(config, name, data, vectors[name])
        inputs = Inputs(tokenizer, layout)
        for split in SPLITS:
            rows[split][name] = kind.rows(inputs, data.examples[split], task.symmetric)
        heads[name] = kind.build_head(
            config.objectives[name],
            number=number,
            classes=len(data.labels),
            texts=max(rows[split][name].texts for split in SPLITS),
            word_types=1 + len(layout.word_ids),
            vector_shape=vectors[name].table.shape,
        )
    if models_language(config):
        texts = max(made.texts for split in SPLITS for made in rows[split].values())
        heads[LANGUAGE_MODEL] = AuxiliaryLanguageModel(texts=texts)
    return rows, heads


def layout_of(config: ConfigDict, name: str, data: TaskData, vectors: WordVectors) -> Layout:
    """How the config's model reads the examples of a task."""
    entry, transfer = config.objectives[name], config.transfer
    words = sorted(data.words("train")) if entry.get("word_width") else ()
    first_piece = {"auto": reads_both_sides(config.model), "first": True, "last": False}
    return Layout(
        name=transfer.layout,
        seq_len=config.data.seq_len,
        first_piece=first_piece[transfer.word_piece],
        characters=config.data.characters,
        double_separator=bool(config.model.position_offset),
        spelling=entry.get("spelling", False),
        word_ids={word: number for number, word in enumerate(words, 1)},
        vector_ids=vectors.ids,
        **{key: transfer[key] for key in ("doc_stride", "max_query", "document_context")},
    )


def start_params(config: ConfigDict, vectors: Mapping[str, WordVectors], fresh):
    """The run's body or its lower layers, the tasks' word vectors, and `fresh` parameters."""
    params, transfer = jax.tree.map(np.asarray, fresh), config.transfer
    if not (transfer.random or transfer.features):
        trained = merged_params(RunDirectory(config.init_from), config.init_step)
        for name in params.keys() & trained.keys():
            # With the same seed, the run's head of this name began with the same draws, and the
            # body would still know its classes by number.
            if name.startswith("heads_"):
                params[name] = jax.tree.map(lambda leaf: np.roll(leaf, 1), params[name])
        body = {"body": trained["body"]}
        if transfer.layout == "delimited":
            body = with_new_tokens(body, params)
        started = start_from(body, params)
        whole = transfer.layers is None
        params = started if whole else lower_layers(started, params, transfer.layers)
    for name, found in vectors.items():
        if found.table.size:
            params[f"heads_{name}"]["features"][WORD_VECTORS] = found.table
    return params


def with_new_tokens(trained, fresh):
    """The run's tree with fresh rows of the delimited layout's tokens in tables that lack them."""
    new = {parameter_name(path): leaf for path, leaf in jax.tree.leaves_with_path(fresh)}

    def extended(path, leaf):
        table = new.get(parameter_name(path), leaf)
        if leaf.ndim and len(table) == len(leaf) + len(NEW_TOKENS):
            return np.concatenate([leaf, table[len(leaf) :]])
        return leaf

    return jax.tree.map_with_path(extended, trained)


def lower_layers(params, fresh, count: int):
    """`params` for the embeddings and the lowest layers, `fresh` above; a final norm belongs to the
    top layer, and a pooler to none."""
    groups, names = layer_groups(params)
    head = len(names) - 1

    def choose(path, group, ours, new):
        if parameter_name(path).startswith("body/final_norm/"):
            group = head - 1
        return np.where((group <= count) & (group < head), ours, new).astype(ours.dtype)

    return jax.tree.map_with_path(choose, groups, params, fresh)
