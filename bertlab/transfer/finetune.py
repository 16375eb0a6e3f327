"""Transfer of a pretrained run to tasks: the same loop, with a task's head as the objective.

What is trained (everything, layer by layer, the head alone) is said by `config.optimizer`, what the head reads and is by
`config.objectives.TASK`; so fine-tuning and feature-based use are differences of a few keys, and a recipe names the papers'.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from ml_collections import ConfigDict, config_dict

from bertlab import keys
from bertlab.config import base_config, parse_override, set_key
from bertlab.data.batches import READ_HERE, Shards, pad_batch
from bertlab.data.buckets import bucketed, check_buckets
from bertlab.data.formats import Row
from bertlab.data.tokenizers import Tokenizer, WordsTokenizer, load_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import build_body, family_of, model_direction, model_shape
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.train import loop
from bertlab.train.build import Experiment, build_phases, warm_start
from bertlab.train.checks import check_devices, check_family, check_shape, vocabulary_of
from bertlab.train.layer_groups import layer_groups, layer_plan, parameter_name
from bertlab.train.lora import build_adapter
from bertlab.train.phases import weights_of
from bertlab.transfer import heads
from bertlab.transfer.inputs import LAYOUTS, NEW_TOKENS, Inputs, Layout, transfer_of, vocabulary_size
from bertlab.transfer.pretrained import load
from bertlab.transfer.recipes import find_recipe
from bertlab.transfer.scoring import Scoring
from bertlab.transfer.spans import Window
from bertlab.transfer.stored import store, stored_body, stored_rows, with_features
from bertlab.transfer.tasks import OPTIONS, Task, TaskData, find_task, load_tasks

# Examples of each task that a fine-tuning is checked on before its run is there.
FEW = 8
WORD_PIECES = ("auto", "first", "last")
# What a head is told and not asked.
_DERIVED = ("classes", "texts", "word_types", "number")


def finetune(run, task: str, workdir, overrides: Mapping[str, Any] | None = None, recipe: str = "small") -> dict:
    """Trains a run on a task; called again with the same arguments, it goes on where it stopped.

    Args:
        run: the directory of a run with a checkpoint, pretrained, imported or itself fine-tuned (STILTs).
        task: a key of `bertlab.transfer.tasks.TASKS` or a file that defines one; several joined by "+" share the body.
        workdir: the fine-tuning's own run directory.
        overrides: dotted names to values (or their text), over the recipe's.
        recipe: a key of `bertlab.transfer.recipes.RECIPES`.

    Returns:
        The result, as written to result.json; beside it lies predictions/SPLIT.jsonl.

    Raises:
        UserError: the run has no checkpoint, the task is unknown or its files are wrong, or the workdir holds something else.
    """
    return finetune_by(overridden(finetune_config(Path(run), task, recipe), overrides or {}), Path(workdir))


def overridden(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A fine-tuning's config with keys set; `head.SETTING` is each task's `objectives.TASK.SETTING`.

    Raises:
        UserError: there is no such key, or a value is of the wrong type.
    """
    for name, value in overrides.items():
        names = [name]
        if name.startswith("head."):
            leaf = name.removeprefix("head.")
            names = [f"objectives.{task}.{leaf}" for task, entry in config.objectives.items() if leaf in entry]
            if not names:
                raise UserError(f"{name}: the heads of {config.task} have no setting '{leaf}'")
        for key in names:
            set_key(config, key, parse_override(config, key, value) if isinstance(value, str) else value)
    return config


def finetune_by(config: ConfigDict, workdir: Path) -> dict:
    """`finetune` by a whole config."""
    config, tasks = resolved(config)
    if (result := loop.finished(config, workdir)) is not None:
        return result
    return loop.run(build_finetuning(config, tasks, workdir), workdir)


def finetune_config(run: Path, task: str, recipe: str = "small", pretrained: Mapping[str, Any] | None = None) -> ConfigDict:
    """The config of a fine-tuning: the run's model, and a recipe's keys. `resolved` fills in what depends on the task's size.

    Args:
        run, task, recipe: as for `finetune`.
        pretrained: the run's config, as its config.json has it, where the run is not there yet.

    Raises:
        UserError: the directory is no run, or there is no such task or recipe.
    """
    pretrained = Run(run).config.read() if pretrained is None else pretrained
    tasks = [find_task(name) for name in task.split("+")]
    settings = find_recipe(recipe, tasks[0].kind)
    config = base_config()
    config.init_from = str(run)
    config.task, config.recipe = task, recipe
    config.seed = pretrained["seed"]
    config.model.update(pretrained["model"])
    config.model.stateful, config.model.attention = False, "auto"
    characters = pretrained["data"].get("characters", False)
    order = config_dict.placeholder(int)  # of the training examples; None: `seed`
    # Buckets as in pretraining (bertlab/data/buckets.py), for short texts.
    config.data = ConfigDict({"seq_len": 48, "batch_size": 16, "seed": order, "characters": characters, "buckets": ()})
    config.task_data = ConfigDict({**OPTIONS, "pretraining": pretraining_options(pretrained["data"])})
    config.transfer = ConfigDict(
        {
            "epochs": 0.0,  # where train.steps is 0: that many passes over the training examples
            "warmup": 0.0,  # share of the steps, instead of optimizer.warmup_steps; 0: those
            "layout": transfer_of(pretrained).get("layout", "pair"),  # pair | delimited: see bertlab/transfer/inputs.py
            # auto | first | last: which piece a word of a tagging task, or one in context, is read at; auto: the first if the
            # model sees both sides, and else the last, which alone has seen the whole word.
            "word_piece": "auto",
            "random": False,  # begin with random parameters of the run's shape, not with its own
            "features": False,  # the body's states are taken once, from disk: see bertlab/transfer/stored.py
            "layers": config_dict.placeholder(int),  # layers that are transferred, from the embeddings up; None: all
            "doc_stride": 128,  # span: pieces between two windows
            "max_query": 64,
            "n_best": 20,
            "max_answer_length": 30,
            # SQuAD 2.0: no answer where its score is higher than the best answer's by more; None: what is best on `valid`.
            "null_threshold": config_dict.placeholder(float),
        }
    )
    config.metrics = ConfigDict({of_task.name: of_task.metrics[0] for of_task in tasks})  # by which each is reported
    config.objectives = ConfigDict()
    for of_task in tasks:
        head = heads.OF_KIND[of_task.kind]
        fields = {f.name: f.default for f in dataclasses.fields(head) if f.name not in _DERIVED}
        weight = {"weight": 1.0, "final_weight": config_dict.placeholder(float)}
        config.objectives[of_task.name] = ConfigDict({**weight, **fields})
    config.train.update(steps=400, log_every=50, eval_every=0, eval_batches=0, checkpoint_every=0, keep_checkpoints=1)
    for name, value in settings.items():
        _set(config, name, value)
    return config


def pretraining_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Of a pretraining's `config.data` what the tasks need that are made of its documents."""
    defaults = OPTIONS["pretraining"]
    return {key: data.get(key, default) for key, default in defaults.items()}


def _set(config: ConfigDict, name: str, value) -> None:
    """Sets a key of a recipe."""
    if name == "language_model":
        weight = {"weight": value, "final_weight": config_dict.placeholder(float)}
        config.objectives.language_model = ConfigDict(weight)
    elif name.startswith("head."):
        leaf = name.removeprefix("head.")
        for entry in (entry for entry in config.objectives.values() if leaf in entry):
            entry[leaf] = value
    else:
        set_key(config, name, value)


def resolved(config: ConfigDict) -> tuple[ConfigDict, dict[str, tuple[Task, TaskData]]]:
    """The config with its steps, and the tasks' examples, by the name of each task's objective.

    Raises:
        UserError: a task's files are wrong, or it has no labels to learn from.
    """
    tasks = load_tasks(config.task, config.task_data.to_dict())
    return sized(config, tasks), tasks


def sized(config: ConfigDict, tasks: Mapping[str, tuple[Task, TaskData]]) -> ConfigDict:
    """The config with what depends on the number of training examples: steps, warm-up, stages; and the order's seed."""
    config = config.copy_and_resolve_references()
    keys.check(config)
    if config.transfer.epochs < 0 or not 0 <= config.transfer.warmup < 1:
        raise UserError(
            f"config.transfer.epochs={config.transfer.epochs} must be at least 0 and config.transfer.warmup="
            f"{config.transfer.warmup} at least 0 and below 1"
        )
    examples = sum(len(data.examples["train"]) for _, data in tasks.values())
    epoch = max(1, examples // config.data.batch_size)
    if config.data.seed is None:
        config.data.seed = config.seed
    if not config.train.steps and config.transfer.epochs:
        config.train.steps = max(1, int(examples / config.data.batch_size * config.transfer.epochs))  # as run_classifier.py
    if config.transfer.warmup:
        config.optimizer.warmup_steps = int(config.train.steps * config.transfer.warmup)
    if config.lora.rank and not config.optimizer.frozen:
        config.optimizer.frozen = "^body/"
    if config.optimizer.thaw in ("gradual", "chain") and not config.optimizer.thaw_steps:
        config.optimizer.thaw_steps = epoch
    return config


def build_finetuning(config: ConfigDict, tasks: Mapping[str, tuple[Task, TaskData]], workdir: Path | None = None) -> Experiment:
    """Composes a fine-tuning: the tasks' rows, the pretrained body, fresh heads.

    Args:
        config, tasks: from `resolved`.
        workdir: where predictions are written; None: nowhere.

    Raises:
        UserError: from any of the checks.
    """
    run = Path(config.init_from).expanduser()
    tokenizer = load_tokenizer(Run(run).tokenizer)
    shape = model_shape(config.model, vocabulary_size(config, tokenizer))
    _check(config, shape, tasks, Run(run).config.read())
    if config.transfer.features:
        return _on_stored_states(config, tasks, tokenizer, workdir)
    inputs = _inputs(config, tasks, tokenizer)
    rows, scoring = {}, Scoring(config.transfer, workdir)
    for split in ("train", "valid", "test"):
        parts = []
        for name, made, windows in _rows_of(tasks, inputs, split):
            if split != "train":
                scoring.expect(split, name, *tasks[name], len(made), windows)
            parts.append(made)
        rows[split] = _alike(parts)
    program = _program(config, shape, tasks, inputs, tokenizer)
    _check_rows(len(rows["train"]), config)
    check_devices(config)
    size = config.data.batch_size
    program = _with_fixed_body(program, config, pad_batch(rows["train"][:size], size))
    return Experiment(
        config=config,
        program=program,
        phases=build_phases(config, program, lambda data: _train_batches(rows["train"], data)),
        tokenizer=tokenizer,
        evaluations={split: _in_batches(rows[split], size) for split in ("valid", "test")},
        warm_start=None if config.transfer.random else (lambda fresh: begin(fresh, config, run)),
        score=scoring,
    )


def check_finetuning(
    config: ConfigDict,
    tasks: Mapping[str, tuple[Task, TaskData]],
    pretrained: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
) -> None:
    """Refuses what `build_finetuning` would, as far as that is known before the run to begin with is there.

    The model and its heads are composed, without a value, on the rows of a few examples; no device is asked for.

    Args:
        config: from `sized`.
        tasks: from `load_tasks`.
        pretrained: the run's config.
        tokenizer: the run's; None: it is not trained yet, and a stand-in that knows no word takes its place.

    Raises:
        UserError: from any of the checks.
    """
    tokenizer = tokenizer or WordsTokenizer(SPECIALS, lowercase=False)
    shape = model_shape(config.model, vocabulary_size(config, tokenizer))
    _check(config, shape, tasks, pretrained)
    if config.transfer.features:
        _check_stored(config, tasks)
    if not any(task.kind == "span" for task, _ in tasks.values()):  # whose rows are windows, as many as the tokenizer makes
        _check_rows(sum(len(data.examples["train"]) for _, data in tasks.values()), config)
    few = {
        name: (task, dataclasses.replace(data, examples={"train": data.examples["train"][:FEW]}))
        for name, (task, data) in tasks.items()
    }
    inputs = _inputs(config, few, tokenizer)
    rows = _alike([made for _, made, _ in _rows_of(few, inputs, "train")])
    program = _program(config, shape, few, inputs, tokenizer)
    example = pad_batch(rows[:FEW], FEW)
    params = jax.eval_shape(lambda: program.init(jax.random.key(0), example))
    layer_plan(config.optimizer, config.train.steps, params)


def _inputs(config: ConfigDict, tasks, tokenizer: Tokenizer) -> dict[str, Inputs]:
    return {name: Inputs(tokenizer, layout_of(config, name, data)) for name, (_, data) in tasks.items()}


def _rows_of(tasks, inputs: Mapping[str, Inputs], split: str) -> Iterator[tuple[str, list[Row], list[Window]]]:
    """(name, rows, windows) of each task; where there are several, each row has its task's number."""
    for number, (name, (task, data)) in enumerate(tasks.items()):
        made, windows = inputs[name].rows(task, data.examples[split])
        yield name, [row | {"task": np.int32(number)} for row in made] if len(tasks) > 1 else made, windows


def _program(config: ConfigDict, shape, tasks, inputs: Mapping[str, Inputs], tokenizer: Tokenizer) -> Program:
    """The body, with the tasks' heads."""
    texts = {name: made.layout.texts_of(tasks[name][0], tasks[name][1].examples["train"]) for name, made in inputs.items()}
    objectives = _heads(config, tasks, texts)
    return Program(build_body(shape), objectives, vocabulary_of(tokenizer), adapter=build_adapter(config.lora))


def _with_fixed_body(program: Program, config: ConfigDict, example: Row) -> Program:
    """The program, whose body has no dropout if none of it is ever trained: its states are features then."""
    if config.lora.rank:
        return program
    fixed = config.optimizer.thaw == "head"
    if config.optimizer.frozen and not fixed:
        params = jax.eval_shape(lambda: program.init(jax.random.key(0), example))
        names = [parameter_name(path) for path, _ in jax.tree.leaves_with_path(params)]
        fixed = all(re.search(config.optimizer.frozen, name) for name in names if name.startswith("body/"))
    return dataclasses.replace(program, fixed_body=fixed)


def _on_stored_states(config: ConfigDict, tasks, tokenizer, workdir: Path | None) -> Experiment:
    """A head on hidden states that are extracted once, and read from disk a batch at a time."""
    _check_stored(config, tasks)
    [(name, (task, data))] = tasks.items()
    model, layout = load(config.init_from), layout_of(config, name, data)
    cache = config.task_data.pretraining.directory
    rows, states, scoring = {}, {}, Scoring(config.transfer, workdir)
    for split in ("train", "valid", "test"):
        states[split] = store(model, task, data.examples[split], layout, cache)
        rows[split] = stored_rows(states[split], task, data.examples[split], layout)
        if split != "train":
            scoring.expect(split, name, task, data, len(rows[split]), [])
    program = Program(stored_body(model, states["train"]), _heads(config, tasks, {name: 1}), vocabulary_of(tokenizer))
    _check_rows(len(rows["train"]), config)
    check_devices(config)
    add = {split: functools.partial(with_features, features=states[split]) for split in states}
    return Experiment(
        config=config,
        program=program,
        phases=build_phases(config, program, lambda data: _train_batches(rows["train"], data, add["train"])),
        tokenizer=tokenizer,
        evaluations={split: StoredBatches(rows[split], config.data.batch_size, add[split]) for split in ("valid", "test")},
        score=scoring,
    )


def _check_stored(config: ConfigDict, tasks) -> None:
    if len(tasks) > 1 or config.transfer.random or config.transfer.layers is not None or "language_model" in config.objectives:
        raise UserError(
            "config.transfer.features=True trains one task's head on the run's own states; leave out other tasks, random,"
            " layers and language_model"
        )
    if config.data.buckets:
        raise UserError(
            f"config.data.buckets={config.data.buckets} are for rows of tokens, and config.transfer.features=True reads states"
            " from disk; set one of them only"
        )
    if config.transfer.word_piece != "auto":
        raise UserError(
            f"config.transfer.features=True keeps of a word the piece that word_piece='auto' means, not"
            f" {config.transfer.word_piece!r}; leave config.transfer.word_piece out, or set config.optimizer.frozen='^body/'"
            " instead of features"
        )


class StoredBatches(Sequence):
    """Evaluation batches whose states are read when they are asked for."""

    def __init__(self, rows: list[Row], size: int, add: Callable[[Row], Row]):
        self._rows, self._size, self._add = rows, size, add

    def __len__(self) -> int:
        return -(-len(self._rows) // self._size)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return pad_batch([self._add(row) for row in self._rows[index * self._size : (index + 1) * self._size]], self._size)


def _check_rows(count: int, config: ConfigDict) -> None:
    if count < config.data.batch_size:
        raise UserError(
            f"config.data.batch_size={config.data.batch_size} is more than the {count} training rows there are; lower it"
        )


def _heads(config: ConfigDict, tasks, texts: Mapping[str, int]) -> dict[str, Any]:
    """The tasks' objectives, and what is trained beside them; `texts` of a row, by task."""
    built = {}
    for number, (name, (task, data)) in enumerate(tasks.items()):
        settings = {k: v for k, v in config.objectives[name].items() if k not in ("weight", "final_weight")}
        derived = {"number": number}
        if task.kind in ("classification", "tagging", "word_pair"):
            derived["classes"] = len(data.labels)
        if task.kind in ("classification", "regression", "choice"):
            derived["texts"] = texts[name]
        if task.kind == "tagging":
            derived["word_types"] = 1 + len(layout_of(config, name, data).words or {})
        try:
            built[name] = heads.OF_KIND[task.kind](**settings, **derived)
        except UserError as error:
            raise UserError(f"config.objectives.{name}.{error}") from None
    if "language_model" in config.objectives and any(weights_of(config.objectives.language_model)):
        built["language_model"] = heads.AuxiliaryLanguageModel(texts=max(texts.values()))
    return built


def layout_of(config: ConfigDict, name: str, data: TaskData) -> Layout:
    """How a task's examples are to be shown to the config's model."""
    entry, words = config.objectives[name], None
    if entry.get("word_width"):
        seen = sorted({word for example in data.examples["train"] for word in example.words})
        words = {word: number for number, word in enumerate(seen, 1)}
    return Layout(
        kind=config.transfer.layout,
        seq_len=config.data.seq_len,
        first_piece=_reads_first_piece(config),
        characters=config.data.characters,
        double_separator=bool(config.model.position_offset),
        doc_stride=config.transfer.doc_stride,
        max_query=config.transfer.max_query,
        spelling=entry.get("spelling", False),
        words=words,
    )


def _reads_first_piece(config: ConfigDict) -> bool:
    """Whether a word is read at its first piece, not at its last."""
    if config.transfer.word_piece == "auto":
        return "both" in sides_of(config.model.family, model_direction(config.model))
    return config.transfer.word_piece == "first"


def _check(config: ConfigDict, shape, tasks: Mapping[str, tuple[Task, TaskData]], pretrained: Mapping[str, Any]) -> None:
    check_shape(config, shape)
    check_buckets(config.data)
    for key in ("budget", "phases"):
        if config.train[key]:
            raise UserError(f"config.train.{key}={config.train[key]!r} is for pretraining; leave it out of a fine-tuning")
    transfer = config.transfer
    if not transfer.random:
        check_family(config, ConfigDict(pretrained["model"]))
    if transfer.layout not in LAYOUTS:
        raise UserError(f"config.transfer.layout={transfer.layout!r} is not known; choose {' or '.join(LAYOUTS)}")
    if transfer.word_piece not in WORD_PIECES:
        raise UserError(f"config.transfer.word_piece={transfer.word_piece!r} is not known; choose {', '.join(WORD_PIECES)}")
    if transfer.layout == "delimited" and config.model.token_encoder == "characters":
        raise UserError("config.transfer.layout='delimited' adds tokens, which a model of characters has not; set 'pair'")
    if transfer.layers is not None and not 0 <= transfer.layers <= shape.layers:
        raise UserError(f"config.transfer.layers={transfer.layers} must be 0 (embeddings alone) to {shape.layers}")
    for name, (task, _) in tasks.items():
        if config.metrics.get(name) not in task.metrics:
            raise UserError(
                f"config.metrics.{name}={config.metrics.get(name)!r} is none of the task's: {', '.join(task.metrics)}"
            )
        if config.objectives[name].get("chunk") and not _reads_in_chunks(config):
            raise UserError(
                f"config.objectives.{name}.chunk={config.objectives[name].chunk} cuts a recurrence in one direction, and"
                f" config.model.family={config.model.family!r} has none; set it to 0"
            )


def _reads_in_chunks(config: ConfigDict) -> bool:
    return family_of(config.model).recurrent and model_direction(config.model) != "bidirectional"


def begin(fresh, config: ConfigDict, run: Path):
    """Fresh parameters, of which the run's own layers (`config.transfer.layers`), or all that it has, are replaced by its.

    Raises:
        UserError: a parameter has another shape there.
    """
    delimited = config.transfer.layout == "delimited"
    params = warm_start(fresh, run, lambda pretrained: _with_new_tokens(pretrained, fresh) if delimited else pretrained)
    if config.transfer.layers is None:
        return params
    groups, names = layer_groups(params)
    top = len(names) - 1
    keep = lambda group, ours, new: np.where((group <= config.transfer.layers) & (group < top), ours, new).astype(ours.dtype)
    return jax.tree.map(keep, groups, params, fresh)


def _with_new_tokens(pretrained, fresh):
    """A pretrained tree whose tables over the vocabulary end with the fresh rows of the delimited layout's tokens."""

    def extend(path, leaf):
        node = fresh
        for key in path:
            node = node.get(key.key) if isinstance(node, dict) else None
        more = 0 if node is None or not leaf.ndim else node.shape[0] - leaf.shape[0]
        is_table = more == len(NEW_TOKENS) and node.shape[1:] == leaf.shape[1:]
        return np.concatenate([leaf, node[-more:]]) if is_table else leaf

    return jax.tree_util.tree_map_with_path(extend, pretrained)


def _alike(parts: Sequence[list[Row]]) -> list[Row]:
    """Rows of several tasks with the same fields and lengths; what one does not have is as where nothing is known, or zero."""
    if len(parts) == 1:
        return parts[0]
    longest = {}
    for name, value in ((name, value) for part in parts for row in part[:1] for name, value in row.items()):
        longest[name] = max(longest.get(name, value), value, key=np.size)
    unknown = ("label", "labels", "word_at", "start", "end")
    empty = {
        name: np.full_like(value, np.nan if name == "target" else heads.NO_LABEL if name in unknown else 0)
        for name, value in longest.items()
    }

    def whole(name: str, value: np.ndarray) -> np.ndarray:
        if np.shape(value) == np.shape(empty[name]):
            return value
        filled = empty[name].copy()
        filled[: len(value)] = value
        return filled

    return [{**empty, **{name: whole(name, value) for name, value in row.items()}} for part in parts for row in part]


def _train_batches(rows: list[Row], data, add: Callable[[Row], Row] | None = None) -> Shards:
    shuffled = grain.MapDataset.source(rows).seed(data.seed).shuffle().repeat()
    read = (shuffled.map(add) if add else shuffled).to_iter_dataset(READ_HERE)
    if data.buckets:
        return Shards({0: bucketed(read, data, data.batch_size, len(rows[0]["tokens"]) // data.seq_len)})
    return Shards({0: read.batch(data.batch_size, drop_remainder=True)})


def _in_batches(rows: list[Row], size: int) -> list[dict[str, np.ndarray]]:
    return [pad_batch(rows[i : i + size], size) for i in range(0, len(rows), size)]
