"""Composes a fine-tuning: the tasks' rows, the pretrained body or its stored states, and new heads."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import PartitionSpec
from ml_collections import ConfigDict

from bertlab.config import is_finetuning
from bertlab.data.batches import Shards
from bertlab.data.buckets import bucketed, check_buckets
from bertlab.data.formats.row_format import READ_HERE
from bertlab.data.rows import Row, pad_batch
from bertlab.data.tokenizers import Tokenizer, WordsTokenizer, load_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError, some
from bertlab.models.base import sides_of
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.train import sources
from bertlab.train.build import Experiment, build_phases, warm_start
from bertlab.train.checks import check_devices, check_family, check_shape, vocabulary_of
from bertlab.train.layer_groups import layer_groups, layer_plan, parameter_name
from bertlab.train.lora import build_adapter
from bertlab.train.phases import weights_of
from bertlab.train.processes import is_first
from bertlab.transfer.heads import BESIDE
from bertlab.transfer.inputs import NEW_TOKENS, Inputs, Layout, vocabulary_size
from bertlab.transfer.load import Pretrained, load
from bertlab.transfer.scoring import Scoring
from bertlab.transfer.stored import store, stored_body, stored_rows, with_features
from bertlab.transfer.task_models import VECTORS
from bertlab.transfer.tasks import SPLITS, Task, TaskData
from bertlab.transfer.tasks.base import classes_of, order_of, unseen_tags
from bertlab.transfer.word_vectors import find_vectors
from bertlab.transfer.zero_shot import check_zero_shot

Tasks = Mapping[str, tuple[Task, TaskData]]
"""By the name of each task's objective."""

FEW = 8  # examples per task for checking a fine-tuning before its run exists


def build_finetuning(config: ConfigDict, tasks: Tasks, workdir: Path | None = None) -> Experiment:
    """Composes a fine-tuning.

    Args:
        config, tasks: from `bertlab.transfer.finetune.resolved`.
        workdir: the directory for predictions, which the first process writes; None: write none.

    Raises:
        UserError: from any of the checks.
    """
    run = Path(config.init_from).expanduser()
    Run(run).require_step(config.init_step)
    tokenizer = load_tokenizer(Run(run).tokenizer)
    shape = model_shape(config.model, vocabulary_size(config, tokenizer))
    _check(config, shape, tasks, Run(run).config.read())
    inputs, size = _inputs(config, tasks, tokenizer), config.data.batch_size
    from_disk, read = config.transfer.features, {}
    if from_disk:
        model, read = _read_start(config, workdir)
    rows, states, cut, scoring = {}, {}, {}, Scoring(config.transfer, workdir if is_first() else None)
    for split in SPLITS:
        if from_disk:
            [(name, (task, data))] = tasks.items()
            states[split], lost = store(
                model, task, data.examples[split], inputs[name].layout, config.task_data.pretraining.directory
            )
            parts = [(name, stored_rows(states[split], task, data.examples[split], inputs[name].layout), None, lost)]
        else:
            parts = list(_encoded(tasks, inputs, split))
        for name, made, about, _ in parts if split != "train" else ():
            scoring.expect(split, name, *tasks[name], len(made), about)
        rows[split] = _alike([made for _, made, *_ in parts], tasks)
        cut[split] = {name: lost for name, *_, lost in parts}
    body = stored_body(model, states["train"]) if from_disk else build_body(shape)
    program = _program(config, body, tasks, inputs, tokenizer)
    _check_rows(len(rows["train"]), config)
    check_devices(config)
    example = pad_batch(rows["train"][:size], size)
    if not from_disk:
        program = _with_fixed_body(program, config, example)
    as_it_is = lambda row: row
    add = {split: functools.partial(with_features, features=states[split]) if from_disk else as_it_is for split in SPLITS}
    return Experiment(
        config=config,
        program=program,
        phases=build_phases(config, program, lambda data: _train_batches(rows["train"], data, add["train"])),
        tokenizer=tokenizer,
        evaluations={split: Batches(rows[split], size, add[split]) for split in ("valid", "test")},
        sources=sources_of(config, tasks) | read,
        classes=classes_of(tasks),
        warm_start=_warm_start(config, run, tasks, inputs, lambda: program.logical_axes(example)),
        score=scoring,
        counts={"cut": cut, "unseen_tags": unseen_tags(tasks)},
    )


def _read_start(config: ConfigDict, workdir: Path | None) -> tuple[Pretrained, dict[str, str]]:
    """The model whose states are stored, as `sources.read_start`; what goes on reads the step that it began with."""
    run = Run(Path(config.init_from).expanduser())
    began = Run(workdir).sources().get(sources.INIT_STEP) if workdir and config.init_step is None else None
    if not began:
        return sources.read_start(config, lambda step: load(run.directory, step))
    if int(began) not in run.steps():
        raise UserError(
            f"{run} has removed the checkpoint of step {began}, with whose states {workdir} began; give another --workdir, or"
            f" delete {workdir} and run the same command again: it starts over"
        )
    return load(run.directory, int(began)), {sources.INIT_STEP: began}


def sources_of(config: ConfigDict, tasks: Tasks) -> dict[str, str]:
    """The digests of the run that is fine-tuned, of its tasks' examples and of the runs that have word vectors for them."""
    here = lambda path: Run(Path(path).expanduser())
    found = {**sources.of_start(config), **sources.of_tasks(tasks)}
    for name in tasks:
        vectors = config.objectives.get(name, {}).get(VECTORS)
        if vectors and here(vectors).config.exists():  # a finished fine-tuning no longer needs them
            found[f"{sources.VECTORS}/{name}"] = sources.of_pretrained(here(vectors))
    return found


def check_finetuning(
    config: ConfigDict, tasks: Tasks, pretrained: Mapping[str, Any], tokenizer: Tokenizer | None = None
) -> None:
    """Refuses what `build_finetuning` would refuse, as far as this is known before the pretrained run exists.

    It composes the model and its heads on the rows of a few examples, without parameter values or a device.

    Args:
        config: from `bertlab.transfer.finetune.sized`.
        tasks: from `load_tasks`.
        pretrained: the run's config.
        tokenizer: the run's; None if it is not trained yet: a stand-in that knows no words takes its place.

    Raises:
        UserError: from any of the checks.
    """
    if config.transfer.zero_shot:
        return check_zero_shot(config, tasks, pretrained)
    tokenizer = tokenizer or WordsTokenizer(SPECIALS, lowercase=False)
    shape = model_shape(config.model, vocabulary_size(config, tokenizer))
    _check(config, shape, tasks, pretrained)
    if all(task.kind.one_row for task, _ in tasks.values()):
        _check_rows(sum(len(data.examples["train"]) for _, data in tasks.values()), config)
    few = {
        name: (task, dataclasses.replace(data, examples={"train": data.examples["train"][:FEW]}))
        for name, (task, data) in tasks.items()
    }
    inputs = _inputs(config, few, tokenizer)
    rows = _alike([made for _, made, *_ in _encoded(few, inputs, "train")], few)
    program = _program(config, build_body(shape), few, inputs, tokenizer)
    example = pad_batch(rows[:FEW], FEW)
    params = jax.eval_shape(lambda: program.init(jax.random.key(0), example))
    layer_plan(config.optimizer, config.train.steps, params)


def _inputs(config: ConfigDict, tasks: Tasks, tokenizer: Tokenizer) -> dict[str, Inputs]:
    return {name: Inputs(tokenizer, _layout(config, name, data)) for name, (_, data) in tasks.items()}


def _layout(config: ConfigDict, name: str, data: TaskData) -> Layout:
    """The layout in which the config's model reads a task's examples."""
    entry, words, vectors = config.objectives[name], None, None
    if entry.get("word_width"):
        seen = sorted({word for example in data.examples["train"] for word in example.words})
        words = {word: number for number, word in enumerate(seen, 1)}
    if run := entry.get("word_vectors"):
        every = (word for of_split in data.examples.values() for example in of_split for word in example.words)
        try:
            vectors = find_vectors(run, every)
        except UserError as error:
            raise UserError(f"config.objectives.{name}.{error}") from None
    first_piece = config.transfer.word_piece == "first"
    if config.transfer.word_piece == "auto":
        first_piece = "both" in sides_of(config.model.family, model_direction(config.model))
    return Layout(
        name=config.transfer.layout,
        seq_len=config.data.seq_len,
        first_piece=first_piece,
        characters=config.data.characters,
        double_separator=bool(config.model.position_offset),
        doc_stride=config.transfer.doc_stride,
        max_query=config.transfer.max_query,
        spelling=entry.get("spelling", False),
        words=words,
        vectors=vectors,
        document_context=config.transfer.document_context,
    )


def _encoded(tasks: Tasks, inputs: Mapping[str, Inputs], split: str) -> Iterator[tuple]:
    """(Name, *result of `Kind.encode`) of each task; with several tasks, each row has its task's number."""
    for number, (name, (task, data)) in enumerate(tasks.items()):
        made, about, cut = task.kind.encode(inputs[name], data.examples[split])
        yield name, [row | {"task": np.int32(number)} for row in made] if len(tasks) > 1 else made, about, cut


def _alike(parts: Sequence[list[Row]], tasks: Tasks) -> list[Row]:
    """Rows of several tasks with the same fields and lengths; missing label fields are "unknown", other missing fields 0."""
    if len(parts) == 1:
        return parts[0]
    unknown, empty = {field: value for task, _ in tasks.values() for field, value in task.kind.unknown.items()}, {}
    for name, value in ((name, value) for part in parts for row in part[:1] for name, value in row.items()):
        shape = tuple(map(max, np.shape(value), np.shape(empty.get(name, value))))
        empty[name] = np.full(shape, unknown.get(name, 0), np.asarray(value).dtype)

    def whole(name: str, value: np.ndarray) -> np.ndarray:
        if np.shape(value) == np.shape(empty[name]):
            return value
        filled = empty[name].copy()
        filled[tuple(map(slice, value.shape))] = value
        return filled

    return [{**empty, **{name: whole(name, value) for name, value in row.items()}} for part in parts for row in part]


def _program(config: ConfigDict, body, tasks: Tasks, inputs: Mapping[str, Inputs], tokenizer: Tokenizer) -> Program:
    """The body with the tasks' heads, and with the auxiliary language model if the config has one."""
    built, most = {}, 1
    for number, (name, (task, data)) in enumerate(tasks.items()):
        layout = inputs[name].layout
        texts = task.kind.texts(data.examples["train"], layout)
        most = max(most, texts)
        derived = {
            "number": number,
            "classes": len(data.labels),
            "texts": texts,
            "word_types": 1 + len(layout.words or {}),
            "vector_rows": 1 + len(layout.vectors.pieces) if layout.vectors else 0,
            "vector_width": layout.vectors.width if layout.vectors else 0,
        }
        fields = {field.name for field in dataclasses.fields(task.kind.head)}
        settings = {key: config.objectives[name][key] for key in task.kind.settings()}
        try:
            built[name] = task.kind.head(**settings, **{key: derived[key] for key in derived if key in fields})
        except UserError as error:
            raise UserError(f"config.objectives.{name}.{error}") from None
    for name in beside(config, tasks):
        if any(weights_of(config.objectives[name])):
            built[name] = BESIDE[name](texts=most)
    return Program(body, built, vocabulary_of(tokenizer), adapter=build_adapter(config.lora))


def beside(config: ConfigDict, tasks: Tasks) -> list[str]:
    """The objectives that are no tasks."""
    return [name for name in config.objectives if name not in tasks]


def _with_fixed_body(program: Program, config: ConfigDict, example: Row) -> Program:
    """The program; if its body is never trained, the body has no dropout, because its states are features."""
    if config.lora.rank:
        return program
    fixed = config.optimizer.thaw == "head"
    if config.optimizer.frozen and not fixed:
        params = jax.eval_shape(lambda: program.init(jax.random.key(0), example))
        names = [parameter_name(path) for path, _ in jax.tree.leaves_with_path(params)]
        fixed = all(re.search(config.optimizer.frozen, name) for name in names if name.startswith("body/"))
    return dataclasses.replace(program, fixed_body=fixed)


def _check(config: ConfigDict, shape, tasks: Tasks, pretrained: Mapping[str, Any]) -> None:
    check_shape(config, shape)
    check_buckets(config.data)
    for key in ("budget", "phases"):
        if config.train[key]:
            raise UserError(f"config.train.{key}={config.train[key]!r} is for pretraining; omit it for fine-tuning")
    transfer = config.transfer
    if not transfer.random:
        check_family(config, ConfigDict(pretrained["model"]))
    if transfer.layout == "delimited" and config.model.token_encoder == "characters":
        raise UserError("config.transfer.layout='delimited' adds tokens, but this model reads characters; set it to 'pair'")
    if transfer.layers is not None and transfer.layers > (layers := getattr(shape, "layers", 0)):
        raise UserError(f"config.transfer.layers={transfer.layers} must be 0 (only the embeddings) to {layers}")
    for name, (task, data) in tasks.items():
        if config.metrics.get(name) not in task.metrics:
            metrics = ", ".join(task.metrics)
            raise UserError(f"config.metrics.{name}={config.metrics.get(name)!r} is not a metric of the task; choose {metrics}")
        if transfer.document_context and not any(example.document for example in data.examples["train"]):
            raise UserError(
                f"config.transfer.document_context=True, but the examples of task '{name}' have no documents (CoNLL's lines"
                " -DOCSTART-); set it to False"
            )
        chunked = family_of(config.model).recurrent and model_direction(config.model) != "bidirectional"
        if config.objectives[name].get("chunk") and not chunked:
            raise UserError(
                f"config.objectives.{name}.chunk={config.objectives[name].chunk} needs a recurrent model in one direction;"
                f" set it to 0 for config.model.family={config.model.family!r}"
            )
        size, parts = config.data.batch_size, config.train.micro_batches
        if config.objectives[name].get("norm") == "batch_norm" and size < 2 * parts:
            raise UserError(
                f"config.objectives.{name}.norm='batch_norm' needs two rows or more, but config.data.batch_size={size} and"
                f" config.train.micro_batches={parts} give {size // parts}; raise batch_size, or set norm='layer_norm'"
            )
    if transfer.head:
        _check_head(config, tasks, pretrained)
    if transfer.features:
        _check_stored(config, tasks)


def _check_head(config: ConfigDict, tasks: Tasks, pretrained: Mapping[str, Any]) -> None:
    transfer = config.transfer
    named = f"config.transfer.head={transfer.head!r}"
    if len(tasks) > 1 or transfer.random or transfer.features or transfer.layers is not None:
        raise UserError(
            f"{named} continues one task's head on the run's whole body; omit other tasks, random, features and layers"
        )
    heads = _heads_of(pretrained)
    if transfer.head not in heads:
        there = f"its heads are {', '.join(heads)}" if heads else "it is no fine-tuning"
        raise UserError(f"{named}: {config.init_from} has no such head, because {there}; name another, or leave it empty")


def _heads_of(pretrained: Mapping[str, Any]) -> list[str]:
    """The tasks of which a run has a head, by its config."""
    return [name for name in pretrained["objectives"] if name not in BESIDE] if is_finetuning(pretrained) else []


def _check_stored(config: ConfigDict, tasks: Tasks) -> None:
    others = beside(config, tasks)
    if len(tasks) > 1 or config.transfer.random or config.transfer.layers is not None or others:
        raise UserError(
            "config.transfer.features=True trains one task's head on the run's own states; omit"
            f" {', '.join(['other tasks', 'random', 'layers', *others])}"
        )
    if config.transfer.document_context:
        raise UserError(
            "config.transfer.features=True stores states of sentences without the document around them; set"
            " config.transfer.document_context=False, or replace features with config.optimizer.frozen='^body/'"
        )
    if config.data.buckets:
        raise UserError(
            f"config.data.buckets={config.data.buckets} are for rows of tokens, but config.transfer.features=True reads states"
            " from disk; set only one"
        )
    if config.transfer.word_piece != "auto":
        raise UserError(
            "config.transfer.features=True stores the state of the piece that config.transfer.word_piece='auto' selects, not"
            f" {config.transfer.word_piece!r}; omit word_piece, or replace features with config.optimizer.frozen='^body/'"
        )


def _check_rows(count: int, config: ConfigDict) -> None:
    if count < config.data.batch_size:
        raise UserError(f"config.data.batch_size={config.data.batch_size} exceeds the {count} training rows; lower it")


def _warm_start(
    config: ConfigDict, run: Path, tasks: Tasks, inputs: Mapping[str, Inputs], axes: Callable[[], Any]
) -> Callable[..., Any] | None:
    """(Fresh parameters, step) -> those to start from: with each task's pretrained word vectors, and the run's own; or None."""
    vectors = {name: of.layout.vectors for name, of in inputs.items() if of.layout.vectors}
    from_run = not (config.transfer.random or config.transfer.features)
    if not from_run and not vectors:
        return None

    def started(fresh, step=None):
        for name, of_task in vectors.items():
            head = fresh[f"heads_{name}"]
            features = {**head["features"], VECTORS: of_task.table()}
            print(f"{of_task.known} of {name}'s {len(of_task.rows)} words have a vector in {of_task.run}", flush=True)
            fresh = {**fresh, f"heads_{name}": {**head, "features": features}}
        return begin(fresh, config, run, step, _matched_heads(config, run, tasks), axes) if from_run else fresh

    return started


def _matched_heads(config: ConfigDict, run: Path, tasks: Tasks) -> dict[str, tuple[str, list[int]]]:
    """The head of the run with which each task goes on, and its number of each of the task's classes.

    A task whose classes are others than those of the head of its name begins with a new one; a printed line says so.

    Raises:
        UserError: the classes of the head of `config.transfer.head` are others.
    """
    heads, known, matched = _heads_of(Run(run).config.read()), Run(run).classes.get({}), {}
    for name, (_, data) in tasks.items():
        head = config.transfer.head or name
        if head not in heads or config.transfer.layers is not None:
            continue
        theirs = known.get(head) if data.labels else known.get(head, [])
        if theirs is not None and (order := order_of(theirs, data.labels)) is not None:
            matched[name] = head, order
            continue
        are = "unknown (an older version wrote it)" if theirs is None else some(theirs)
        differ = f"the classes of the head '{head}' of {run} are {are}, and those of task '{name}' are {some(data.labels)}"
        if config.transfer.head:
            raise UserError(f"config.transfer.head={head!r}: {differ}; leave it empty, and the task begins with a new head")
        if is_first():
            print(f"{differ}; the task begins with a new head", flush=True)
    return matched


def begin(
    fresh, config: ConfigDict, run: Path, step: int | None, heads: Mapping[str, tuple[str, list[int]]], axes: Callable[[], Any]
):
    """Fresh parameters, replaced by the run's at a step: those of `config.transfer.layers`, or all that the run has.

    A final norm goes with the top layer. The pooler is no layer.

    Args:
        fresh: tree of parameters.
        config: the fine-tuning's.
        run, step: the run and its checkpoint; None: the last one.
        heads: from `_matched_heads`.
        axes: gives `Program.logical_axes` of the parameters.

    Raises:
        UserError: a parameter has another shape in the run.
    """

    renewed = []

    def change(pretrained):
        renewed.extend(key for key in pretrained if key.startswith("heads_") and key.removeprefix("heads_") not in heads)
        body = {name: tree for name, tree in pretrained.items() if not name.startswith("heads_")}
        taken = {f"heads_{name}": pretrained.get(f"heads_{head}", {}) for name, (head, _) in heads.items()}
        pretrained = {**body, **taken}
        return _with_new_tokens(pretrained, fresh) if config.transfer.layout == "delimited" else pretrained

    params = warm_start(fresh, run, step, change)
    for key in params.keys() & {*renewed}:
        # The run's head began with the same draws if the seed is the same, and the body would still know its classes by number.
        params[key] = jax.tree.map(lambda leaf: np.roll(leaf, 1), params[key])
    for name, (_, order) in heads.items():
        if order != sorted(order) and (key := f"heads_{name}") in params:
            in_order = functools.partial(_in_order, order)
            params[key] = jax.tree.map(in_order, axes()[key], params[key], is_leaf=lambda x: isinstance(x, PartitionSpec))
    if config.transfer.layers is None:
        return params
    groups, names = layer_groups(params)
    head = len(names) - 1

    def begun(path, group, ours, new):
        if parameter_name(path).startswith("body/final_norm/"):
            group = head - 1
        return np.where((group <= config.transfer.layers) & (group < head), ours, new).astype(ours.dtype)

    return jax.tree_util.tree_map_with_path(begun, groups, params, fresh)


def _in_order(order: list[int], axes: Sequence[str | None], leaf: np.ndarray) -> np.ndarray:
    """A head's parameter with its classes in another order."""
    for axis, name in enumerate(axes):
        leaf = np.take(leaf, order, axis) if name == "classes" else leaf
    return leaf


def _with_new_tokens(pretrained, fresh):
    """A pretrained tree with the delimited layout's fresh rows appended to its vocabulary tables."""

    def extend(path, leaf):
        node = fresh
        for key in path:
            node = node.get(key.key) if isinstance(node, dict) else None
        more = 0 if node is None or not leaf.ndim else node.shape[0] - leaf.shape[0]
        is_table = more == len(NEW_TOKENS) and node.shape[1:] == leaf.shape[1:]
        return np.concatenate([leaf, node[-more:]]) if is_table else leaf

    return jax.tree_util.tree_map_with_path(extend, pretrained)


class Batches(Sequence):
    """Evaluation batches, made on demand."""

    def __init__(self, rows: list[Row], size: int, add: Callable[[Row], Row]):
        """Args: rows: all rows; size: the batch size; add: adds the data read from disk to a row."""
        self._rows, self._size, self._add = rows, size, add

    def __len__(self) -> int:
        return -(-len(self._rows) // self._size)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return pad_batch([self._add(row) for row in self._rows[index * self._size : (index + 1) * self._size]], self._size)


def _train_batches(rows: list[Row], data: ConfigDict, add: Callable[[Row], Row]) -> Shards:
    read = grain.MapDataset.source(rows).seed(data.seed).shuffle().repeat().map(add).to_iter_dataset(READ_HERE)
    if data.buckets:
        batches = bucketed(read, data, data.batch_size, len(rows[0]["tokens"]) // data.seq_len)
    else:
        batches = read.batch(data.batch_size, drop_remainder=True)
    return Shards({0: batches}, whole=True)
