"""Trains a pretrained run on tasks: pretraining's loop, with the tasks' heads as objectives.
`config.optimizer` states what is trained (everything, layer by layer, the head), and
`config.objectives.TASK` what the head reads."""

import copy
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from bertlab.config import load
from bertlab.config.defaults import base_config, objective_entry
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.build import build_finetuning
from bertlab.transfer.examples import cut_lines
from bertlab.transfer.features import WORD_VECTORS
from bertlab.transfer.heads import LANGUAGE_MODEL
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.recipes import ADAPTATIONS, RECIPES, find_recipe
from bertlab.transfer.scoring import Tasks
from bertlab.transfer.tasks import TASK_DATA, find_task, load_task, load_tasks

DATA = dict(
    seq_len=48,  # positions per text, at most
    batch_size=16,
    seed=placeholder(int),  # seed of the order of examples; unset: `seed`
    characters=False,  # as in pretraining
    buckets=(),  # lengths below seq_len: a batch has rows of similar length
)
"""`config.data` for a fine-tuning."""

TRANSFER = dict(
    epochs=0.0,  # passes over the training examples, if train.steps is 0
    warmup=0.0,  # share of the steps that warm up, where optimizer.warmup_steps is unset
    layout="pair",  # pair, delimited: special tokens around texts (bertlab/transfer/inputs.py)
    # auto, first, last: the piece at which a word is read; auto: the first if the model sees both
    # sides, else the last, which alone has seen the whole word
    word_piece="auto",
    # tagging: a sentence gets as much of its document around it as fits (BERT's table 7)
    document_context=False,
    random=False,  # start from random parameters instead of the run's
    features=False,  # train on stored states (`add_stored_states`)
    # module:function that answers instead of training (bertlab/contrib/zero_shot.py)
    answers="",
    layers=placeholder(int),  # how many are transferred, from the embeddings up; unset: all
    doc_stride=128,  # span: pieces between the starts of two windows
    max_query=64,  # span: pieces of a question, at most
)
"""`config.transfer`."""


def finetune(
    run: str | Path,
    task: str,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "small",
) -> dict[str, Any]:
    """Trains the body of a pretrained, imported or fine-tuned run (STILTs) on a task (a name, or
    FILE.py with your own), or on several joined by "+"; the same call resumes. `overrides` map
    dotted names to values or their text, `head.X` that of every head. Returns result.json."""
    config, tasks = configure(run, task, recipe, overrides)
    if jax.process_index() == 0:
        for name, (_, data) in tasks.items():
            counts = ", ".join(f"{len(found):,} {split}" for split, found in data.examples.items())
            print(f"{name}: {counts} examples", *data.notes, sep=f"\n{name}: ", flush=True)
    if config.transfer.answers:
        result = pkgutil.resolve_name(config.transfer.answers)(config, tasks, Path(workdir))
    else:
        result = loop.run(build_finetuning(config, tasks, Path(workdir)), workdir)
    if jax.process_index() == 0:
        for line in cut_lines(result["cut"]):
            print(line, flush=True)
    return result


def configure(
    run: str | Path, task: str, recipe: str = "small", overrides: Mapping[str, Any] | None = None
) -> tuple[ConfigDict, Tasks]:
    """The config of a fine-tuning, and the tasks' examples."""
    config = recipe_config(str(run), task, recipe, RunDirectory(run).config())
    override(config, overrides or {})
    tasks = load_tasks(config.task, config.task_data.to_dict())
    return sized(config, tasks), tasks


def recipe_settings(recipe: str, task: str) -> dict[str, Any]:
    """The settings of a recipe, in which the first task and its kind may differ."""
    first = find_task(task.partition("+")[0])
    own = (find_kind(first.kind).recipes, first.recipes)
    return find_recipe(RECIPES, recipe) | own[0].get(recipe, {}) | own[1].get(recipe, {})


def recipe_config(run: str, task: str, recipe: str, pretrained: Mapping[str, Any]) -> ConfigDict:
    """The config of `finetune` before overrides; `pretrained` is the run's."""
    settings = recipe_settings(recipe, task)
    tasks, config = [find_task(name) for name in task.split("+")], base_config()
    config.init_from, config.task, config.recipe = run, task, recipe
    config.seed = pretrained["seed"]
    config.model.update(pretrained["model"])
    config.model.update(stateful=False, attention="auto")
    config.data, config.transfer = map(ConfigDict, copy.deepcopy((DATA, TRANSFER)))
    config.data.characters = pretrained["data"].get("characters", False)
    config.task_data = ConfigDict({**TASK_DATA, **pretraining_data(pretrained)})
    config.transfer.layout = (pretrained.get("transfer") or {}).get("layout", "pair")
    config.metrics = ConfigDict({task.name: task.metrics[0] for task in tasks})
    for task in tasks:
        config.objectives[task.name] = objective_entry(1.0, find_kind(task.kind).settings())
    if LANGUAGE_MODEL in settings:
        config.objectives[LANGUAGE_MODEL] = objective_entry(settings.pop(LANGUAGE_MODEL), {})
    config.train.update(steps=400, eval_every=0, eval_batches=0)
    config.train.update(checkpoint_every=0, keep_checkpoints=1)
    del config.train.tokens, config.train.phases  # those are pretraining's
    keys = {key: value for name, value in settings.items() for key in keys_of(config, name)}
    config.update_from_flattened_dict(keys)
    return config


def pretraining_data(pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """What tasks made from the pretraining documents need to know about its data."""
    data = (pretrained.get("task_data") or {}).get("pretraining") or pretrained["data"]
    return {"pretraining": {k: data.get(k, v) for k, v in TASK_DATA["pretraining"].items()}}


def keys_of(config: ConfigDict, key: str) -> list[str]:
    """The keys that an override sets; `head.X` sets those of the heads that have it."""
    group, _, setting = key.partition(".")
    if group != "head":
        return [key]
    names = [name for name, entry in config.objectives.items() if setting in entry]
    return [f"objectives.{name}.{setting}" for name in names]


def override(config: ConfigDict, overrides: Mapping[str, Any]) -> None:
    """Sets keys to values, or to what text means for the key's type, as --config.KEY=TEXT does.
    `transfer.epochs` replaces the recipe's `train.steps`."""
    command, values = [], {}
    for name, value in overrides.items():
        if not (keys := keys_of(config, name)):
            raise UserError(f"config.{name} is not a setting of any head of this run")
        if isinstance(value, str):
            command += [f"--config.{key}={value}" for key in keys]
        else:
            values |= dict.fromkeys(keys, value)
    if float(overrides.get("transfer.epochs", 0)) and "train.steps" not in overrides:
        config.train.steps = 0
    load.override(config, command, values)


def sized(config: ConfigDict, tasks: Tasks) -> ConfigDict:
    """The config with what follows from its other keys and the number of training examples."""
    config = config.copy_and_resolve_references()
    train, optimizer, transfer = config.train, config.optimizer, config.transfer
    if not any(find_kind(task.kind).is_trained for task, _ in tasks.values()):
        train.steps, transfer.epochs, optimizer.frozen, optimizer.thaw = 0, 0.0, "", "all"
    examples = sum(len(data.examples["train"]) for _, data in tasks.values())
    if config.data.seed is None:
        config.data.seed = config.seed
    if not train.steps and transfer.epochs:  # as in run_classifier.py
        train.steps = max(1, int(examples / config.data.batch_size * transfer.epochs))
    if transfer.warmup and optimizer.warmup_steps is None:
        optimizer.warmup_steps = int(train.steps * transfer.warmup)
    if config.lora.rank and not optimizer.frozen:
        optimizer.frozen = "^body/"
    for name, entry in config.objectives.items():
        if entry.get(WORD_VECTORS):
            vectors = f"^heads_{re.escape(name)}/features/{WORD_VECTORS}$"
            optimizer.frozen = "|".join(filter(None, [optimizer.frozen, vectors]))
    if optimizer.thaw in ("gradual", "chain") and not optimizer.thaw_steps:
        optimizer.thaw_steps = max(1, examples // config.data.batch_size)
    return config


def adapt(
    run: str | Path,
    task: str,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "same",
    epochs: float = 1.0,
) -> dict[str, Any]:
    """Continues pretraining on the texts of a task's training examples (task_text.jsonl), about
    `epochs` times if the overrides do not set `train.steps`, with one of `ADAPTATIONS`; otherwise
    as `finetune`. This is ULMFiT's second stage (Howard and Ruder 2018, section 3.2), and ELMo's
    fine-tuned biLM (Peters et al. 2018, section 3.4)."""
    pretrained = RunDirectory(run).config()
    config, lines = adaptation_config(run, task, workdir, overrides, recipe, epochs, pretrained)
    path = Path(config.data.corpus.removeprefix("text:"))
    if jax.process_index() == 0 and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(map(json_line, lines)), encoding="utf-8")
    return loop.run(build_pretraining(config), workdir)


def adaptation_config(
    run, task, workdir, overrides, recipe: str, epochs: float, pretrained: Mapping[str, Any]
) -> tuple[ConfigDict, list[dict[str, str]]]:
    """The config of `adapt` for a run with the config `pretrained`, and the texts that it reads."""
    if pretrained.get("task"):
        raise UserError(f"{run} is a fine-tuning, without a pretraining objective; give another")
    keys, config = ("model", "data", "objectives", "optimizer", "seed"), base_config()
    config.update(ConfigDict({key: pretrained[key] for key in keys if key in pretrained}))
    config.init_from, config.task_data = str(run), ConfigDict(TASK_DATA)
    config.task_data.update(pretraining_data(pretrained))
    config.data.corpus = f"text:{Path(workdir).absolute() / 'task_text.jsonl'}"
    config.data.tokenizer.path = str(RunDirectory(run).tokenizer)
    config.data.unique_tokens = 0
    settings = {**find_recipe(ADAPTATIONS, recipe), **(overrides or {})}
    override(config, settings)
    data, optimizer, train = config.data, config.optimizer, config.train
    lines = []
    for example in load_task(find_task(task), config.task_data.to_dict()).examples["train"]:
        sentence = [" ".join(example.words)] if example.words else []
        texts = (*example.texts, *example.choices, *sentence)
        lines += [{"id": example.id, "text": text} for text in texts]
    if "train.steps" not in settings:
        pieces = 1.5 * sum(len(line["text"].split()) for line in lines)  # 1.5 for each word
        batch = data.batch_size * (data.pack_length or data.seq_len)
        train.steps = max(20, int(pieces * epochs / batch))
    # Warm-up takes the same share of the steps as in the run, at most a tenth.
    steps = pretrained.get("train", {}).get("steps")
    if optimizer.warmup_steps and steps and "optimizer.warmup_steps" not in settings:
        optimizer.warmup_steps = int(min(optimizer.warmup_steps / steps, 0.1) * train.steps)
    if optimizer.thaw == "gradual" and not optimizer.thaw_steps:
        optimizer.thaw_steps = max(1, train.steps // (config.model.layers or 4) // 2)
    return config, lines
