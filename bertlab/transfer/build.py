"""Composes a fine-tuning: the tasks' rows, the pretrained body or its stored states, new heads.
Letters: B rows, L positions, T positions of all rows, W the widths of all layers together."""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.files import cache_directory
from bertlab.models.base import Body, Carry, Encoded, View
from bertlab.models.lora import Lora
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.models.static import StaticShape
from bertlab.objectives.base import Objective, restrict
from bertlab.objectives.program import Program
from bertlab.objectives.word_vectors import with_word_table
from bertlab.train.build import require_same_model, start_from, vocabulary_of
from bertlab.train.checkpoint import load_params
from bertlab.train.loop import Experiment
from bertlab.train.phases import build_phases, weights_of
from bertlab.train.run_directory import RunDirectory
from bertlab.train.schedules import layer_groups
from bertlab.train.state import parameter_name
from bertlab.transfer import load
from bertlab.transfer.batches import Batches, digest_of, joined, most_texts
from bertlab.transfer.features import WORD_VECTORS, WordVectors, word_vectors
from bertlab.transfer.heads import LANGUAGE_MODEL, AuxiliaryLanguageModel
from bertlab.transfer.inputs import NEW_TOKENS, Inputs
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.base import TaskRows
from bertlab.transfer.scoring import Tasks, build_score, outcome, task_outputs
from bertlab.transfer.tasks import SPLITS


class StoredBody(Body):
    """A body without parameters: the view's `features` [B, L, W] are its layers, of these `widths`,
    which have seen this `side`. Its shape, a lookup's, costs no FLOPs."""

    shape: StaticShape
    widths: tuple[int, ...]
    side: str

    def encode(self, view: View, carry: Carry | None = None) -> tuple[Encoded, Carry]:
        ends = np.cumsum(self.widths)[:-1].tolist()
        return Encoded(**{self.side: tuple(jnp.split(view["features"], ends, axis=-1))}), {}


def build_finetuning(config: ConfigDict, tasks: Tasks, workdir: Path) -> Experiment:
    """A run of the loop on the tasks' rows."""
    tokenizer = load_tokenizer(RunDirectory(config.init_from).tokenizer)
    shape = model_shape(config.model, load.embedded_tokens(config, tokenizer))
    check(config, shape)
    vectors = {
        name: word_vectors(config.objectives[name].get(WORD_VECTORS), data.words(*SPLITS))
        for name, (_, data) in tasks.items()
    }
    rows, heads = rows_and_heads(config, tasks, tokenizer, vectors)

    process = jax.process_index(), jax.process_count()
    batches = {}
    for split, of_tasks in rows.items():
        every = joined([made.rows for made in of_tasks.values()])
        batches[split] = Batches(every, config.data, tokenizer.pad_id, *process)
    data_hash = "-".join(made.hash for made in batches.values())
    if config.transfer.features:
        body = add_stored_states(config, batches)
    else:
        if is_fixed(config):
            dropouts = [x.name for x in dataclasses.fields(shape) if x.name.endswith("dropout")]
            shape = dataclasses.replace(shape, **dict.fromkeys(dropouts, 0.0))
        body = build_body(shape)
    train = batches.pop("train")

    adapter = Lora(**config.lora) if config.lora.rank else None
    program = Program(body, heads, vocabulary_of(tokenizer), adapter=adapter)
    (phase,) = build_phases(config, program, lambda data: train)
    phase = dataclasses.replace(phase, data_hash=data_hash, trains_body=not is_fixed(config))
    cut = {split: {name: made.cut for name, made in found.items()} for split, found in rows.items()}
    return Experiment(
        config=config,
        program=program,
        phases=(phase,),
        tokenizer=tokenizer,
        evaluations=batches,
        facts={"examples": {name: data.digest for name, (_, data) in tasks.items()}},
        start=functools.partial(start_params, config, vectors),
        outputs=functools.partial(task_outputs, program, list(tasks)),
        score=build_score(tasks, rows, workdir),
        result=functools.partial(outcome, tasks, cut),
    )


def check(config: ConfigDict, shape) -> None:
    """Refuses what would not train what the config says."""
    transfer, model = config.transfer, config.model
    restrict(transfer, layout="pair delimited", word_piece="auto first last")
    if config.data.seq_len > shape.longest:
        raise UserError(
            f"config.data.seq_len={config.data.seq_len} is more than the model's {shape.longest}"
            " positions; lower it"
        )
    pools = any(entry.get("pooling") == "pooler" for entry in config.objectives.values())
    is_whole = not (transfer.random or config.lora.rank or pools) and transfer.layers is None
    is_own = is_whole and transfer.layout == "pair" and not models_language(config)
    if transfer.features and not (is_own and jax.process_count() == 1):
        raise UserError(
            "config.transfer.features=True stores the run's own states in one process: omit random,"
            " layers, lora, pooling='pooler', layout='delimited' and objectives.language_model"
        )
    if not transfer.random:
        run = RunDirectory(config.init_from)
        require_same_model(model, load.run_config(run.path).model, run)
    one_way, is_recurrent = model_direction(model) != "bidirectional", family_of(model).recurrent
    chunked = any(entry.get("chunk") for entry in config.objectives.values())
    if (models_language(config) and not one_way) or (chunked and not (one_way and is_recurrent)):
        raise UserError(
            "config.objectives.language_model needs a body that reads in one direction, and"
            " config.head.chunk a recurrent one: set language_model.weight or chunk to 0"
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


def rows_and_heads(
    config: ConfigDict, tasks: Tasks, tokenizer: Tokenizer, vectors: Mapping[str, WordVectors]
) -> tuple[dict[str, dict[str, TaskRows]], dict[str, Objective]]:
    """Each task's rows, by split and task, and the heads by task."""
    transfer, rows, heads, texts = config.transfer, {split: {} for split in SPLITS}, {}, {}
    sees_both_sides = model_direction(config.model) == "bidirectional"
    first_piece = {"auto": sees_both_sides, "first": True, "last": False}
    for number, (name, (task, data)) in enumerate(tasks.items()):
        kind, entry, found = find_kind(task.kind), config.objectives[name], vectors[name]
        words = sorted(data.words("train")) if entry.get("word_width") else ()
        inputs = Inputs(
            tokenizer,
            transfer.layout,
            config.data.seq_len,
            first_piece[transfer.word_piece],
            config.data.characters,
            double_separator=bool(config.model.position_offset),
            spelling=entry.get("spelling", False),
            word_ids={word: n for n, word in enumerate(words, 1)},
            vector_ids=found.ids,
            **{key: transfer[key] for key in ("doc_stride", "max_query", "document_context")},
        )
        for split in SPLITS:
            rows[split][name] = kind.rows(inputs, data.examples[split], task.symmetric)
        texts[name] = max(most_texts(rows[split][name].rows) for split in SPLITS)
        heads[name] = kind.build_head(
            entry,
            number=number,
            classes=len(data.labels),
            texts=texts[name],
            word_types=1 + len(words),
            vector_shape=found.table.shape,
        )
    if models_language(config):
        heads[LANGUAGE_MODEL] = AuxiliaryLanguageModel(texts=max(texts.values()))
    return rows, heads


def start_params(config: ConfigDict, vectors: Mapping[str, WordVectors], fresh):
    """The run's body or its lower layers, the tasks' word vectors, and `fresh` parameters."""
    params, transfer = jax.tree.map(np.asarray, fresh), config.transfer
    if not (transfer.random or transfer.features):
        run = RunDirectory(config.init_from)
        trained = load_params(run, config.init_step)
        if config.model.family == "static":
            trained["body"] = with_word_table(trained["body"], run.config()["objectives"])
        for name in params.keys() & trained.keys():
            # With the same seed, the run's head of this name began with the same draws, and the
            # body would still know its classes by number.
            if name.startswith("heads_"):
                params[name] = jax.tree.map(lambda leaf: np.roll(leaf, 1), params[name])
        new_tokens = len(NEW_TOKENS) if transfer.layout == "delimited" else 0
        started = start_from({"body": trained["body"]}, params, new_tokens)
        whole = transfer.layers is None
        params = started if whole else lower_layers(started, params, transfer.layers)
    for name, found in vectors.items():
        if found.table.size:
            params[f"heads_{name}"]["features"][WORD_VECTORS] = found.table
    return params


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


def add_stored_states(config: ConfigDict, batches: Mapping[str, Batches]) -> StoredBody:
    """Runs the body once and gives each split's batches its states of all layers; returns the body
    that reads them. Runs that read the same rows with the same body share them."""
    model = load.load(config.init_from, config.init_step)
    side, layers = model.encode(batches["valid"][0]).widest()
    digest = hashlib.blake2b(repr(model.program.body.shape).encode(), digest_size=16)
    for leaf in jax.tree.leaves(model.params["body"]):
        digest.update(np.ascontiguousarray(leaf))
    directory = cache_directory(config.task_data.pretraining.directory) / "states"
    directory.mkdir(parents=True, exist_ok=True)
    widths = tuple(layer.shape[-1] for layer in layers)
    for made in batches.values():
        path = directory / f"{digest.hexdigest()}-{digest_of(made.rows)}.npy"
        if not path.exists():
            temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            store(model, made, temporary, sum(widths))
            os.replace(temporary, path)
        made.add_features(np.load(path, mmap_mode="r"))
    vocab_size, direction = model.program.vocabulary.size, model_direction(model.config.model)
    shape = StaticShape(widths[-1], vocab_size, direction, jnp.dtype("float32"))
    return StoredBody(shape, widths, side)


def store(model: load.Pretrained, batches: Batches, path: Path, width: int) -> None:
    """Writes the states [T, W] of the batches' rows, in float16."""
    shape = int(batches.lengths.sum()), width
    states = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    parts = np.split(states, np.cumsum(batches.lengths)[:-1])
    for batch in batches:
        _, layers = model.encode(batch).widest()
        found = np.concatenate([np.asarray(layer, np.float32) for layer in layers], axis=-1)
        for number, row in zip(batch["row_number"], found):
            if number >= 0:
                parts[number][:] = row[: len(parts[number])]
    states.flush()
