"""Transfers a pretrained run to tasks: the same loop, with a task's head as the objective.

`config.optimizer` sets which parameters are trained (all, layer by layer, or only the head). `config.objectives.TASK` sets the
head and its input. Fine-tuning and feature-based use differ in a few keys. A recipe has the settings of a paper.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from bertlab import keys
from bertlab.config import base_config, flatten, parse_override, set_key
from bertlab.errors import UserError
from bertlab.keys import Key
from bertlab.run import Run
from bertlab.train import loop, sources
from bertlab.train.processes import alone, first_before_others, is_first
from bertlab.transfer.composition import build_finetuning, sources_of
from bertlab.transfer.cut import in_words
from bertlab.transfer.heads import BESIDE
from bertlab.transfer.inputs import LAYOUTS, transfer_of
from bertlab.transfer.kinds import KINDS
from bertlab.transfer.recipes import find_recipe
from bertlab.transfer.task_models import VECTORS
from bertlab.transfer.tasks import OPTIONS, SPLITS, Task, TaskData, find_task, load_tasks
from bertlab.transfer.tasks.assemble import constant_label
from bertlab.transfer.zero_shot import zero_shot

KEYS = (
    Key("transfer.epochs", 0.0, "passes over the training examples if train.steps is 0", least=0),
    Key("transfer.warmup", 0.0, "share of the steps that warm up; 0: optimizer.warmup_steps counts", least=0, below=1),
    Key("transfer.layout", "pair", "special tokens around texts (bertlab/transfer/inputs.py)", choices=LAYOUTS),
    Key("transfer.word_piece", "auto", "piece at which a word is read; auto: the first if the model sees both sides, else the"
        " last, because only there has it seen the whole word", choices=("auto", "first", "last")),
    Key("transfer.document_context", False, "tagging: a row shows as much of a sentence's document (CoNLL's -DOCSTART-) around"
        " it as it holds; only the sentence's words are predicted (BERT's table 7)"),
    Key("transfer.random", False, "start from random parameters instead of the run's"),
    Key("transfer.head", "", "the task of a fine-tuned run whose head the task goes on with, class by class as they are named;"
        " empty: that of its own name, if the run has one with the same classes"),
    Key("transfer.features", False, "train on stored states (bertlab/transfer/stored.py)"),
    Key("transfer.zero_shot", False, "answer by the model's own likelihood, without training (bertlab/transfer/zero_shot.py)"),
    Key("transfer.layers", int, "layers that are transferred, from the embeddings up; unset: all", least=0),
    Key("transfer.doc_stride", 128, "span: pieces between the starts of two windows", least=1),
    Key("transfer.max_query", 64, "span: most pieces of a question", least=1),
    Key("transfer.n_best", 20, "span: starts and ends of a window that are compared", least=1),
    Key("transfer.max_answer_length", 30, "span: most pieces of an answer", least=1),
    Key("transfer.null_threshold", float, "SQuAD 2.0: no answer if its score exceeds the best answer's by more; unset: the best"
        " threshold on valid"),
)  # fmt: skip
"""`config.transfer`."""


def finetune(
    run: str | os.PathLike[str],
    task: str,
    workdir: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "small",
) -> dict[str, Any]:
    """Trains a run on a task. Call it again with the same arguments to resume. All processes of a run call it.

    Args:
        run: the directory of a run with a checkpoint: pretrained, imported or fine-tuned (STILTs).
        task: a key of `bertlab.transfer.tasks.TASKS`, or a file that defines a task; several joined by "+" share the body.
        workdir: the run directory of the fine-tuning.
        overrides: dotted names to values (or their text); they override the recipe.
        recipe: a key of `bertlab.transfer.recipes.RECIPES`.

    Returns:
        The result, as in result.json. Predictions are in predictions/SPLIT.jsonl.

    Raises:
        UserError: the run has no checkpoint, the task is unknown, its files are wrong, or the workdir holds another run.
    """
    with first_before_others("the tasks are read"):  # some leave files in a cache
        config, tasks = resolved(overridden(finetune_config(Path(run), task, recipe), overrides or {}))
    defaults = {f"objectives.{name}.{key}": of for name, (task, _) in tasks.items() for key, of in task.kind.settings().items()}
    defaults |= {key.name: key.default for key in KEYS if not key.unset}
    with alone(workdir):
        if (result := loop.finished(config, Path(workdir), defaults)) is not None:
            sources.require_same(Run(workdir), result.get("sources", {}), sources_of(config, tasks))
            return result
        if is_first():
            for name, (task, data) in tasks.items():
                counts = ", ".join(f"{len(data.examples[split]):,} {split}" for split in SPLITS)
                print(f"{name}: {counts} examples", *data.notes, sep=f"\n{name}: ", flush=True)
                if task.kind.is_trained and (label := constant_label(data)) is not None:
                    print(f"{name}'s label never varies: it is {label!r} in all training examples", flush=True)
        if config.transfer.zero_shot:
            result = zero_shot(config, tasks, Path(workdir))
        else:
            result = loop.run(build_finetuning(config, tasks, Path(workdir)), Path(workdir))
        for line in in_words(result["cut"]) if is_first() else ():
            print(line, flush=True)
        return result


def overridden(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A fine-tuning's config with overrides; `head.SETTING` sets `objectives.TASK.SETTING` of each task.

    Raises:
        UserError: a key is unknown, a value has the wrong type, or `transfer.epochs` is given without `train.steps` and the
            recipe has steps.
    """
    for name, value in overrides.items():
        if not (keys_of := _keys_of(config, name)):
            setting = name.removeprefix("head.")
            kinds = " or ".join(kind.name for kind in KINDS.values() if setting in kind.settings())
            only = f"; tasks of {kinds} have it" if kinds else ""
            raise UserError(f"{name}: the heads of {config.task} have no setting '{setting}'{only}")
        for key in keys_of:
            set_key(config, key, parse_override(config, key, value) if isinstance(value, str) else value)
    if "transfer.epochs" in overrides and "train.steps" not in overrides:  # a study may give both, and its steps count
        require_no_steps(config)
    keys.drop_without_effect(config, flatten(overrides))
    return config


def require_no_steps(config: ConfigDict) -> None:
    """Refuses passes that `train.steps` makes idle. Raises: UserError: names both keys."""
    if config.transfer.epochs > 0 and config.train.steps:
        raise UserError(
            f"config.transfer.epochs={config.transfer.epochs} has no effect with config.train.steps={config.train.steps};"
            " set config.train.steps=0, or leave epochs unset"
        )


def finetune_config(run: Path, task: str, recipe: str = "small", pretrained: Mapping[str, Any] | None = None) -> ConfigDict:
    """The config of a fine-tuning: the run's model and a recipe's keys. `resolved` adds those that depend on the task's size.

    Args:
        run, task, recipe: as for `finetune`.
        pretrained: the run's config, if the run does not exist yet.

    Raises:
        UserError: the directory is not a run, or the task or recipe is unknown.
    """
    pretrained = Run(run).model_config() if pretrained is None else pretrained
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
    defaults = {key.leaf: config_dict.placeholder(key.default) if key.unset else key.default for key in KEYS}
    config.transfer = ConfigDict(defaults | {"layout": transfer_of(pretrained).get("layout", "pair")})
    config.metrics = ConfigDict({of_task.name: of_task.metrics[0] for of_task in tasks})  # by which each is reported
    config.objectives = ConfigDict()
    for of_task in tasks:
        config.objectives[of_task.name] = ConfigDict({**_weight(1.0), **of_task.kind.settings()})
    config.train.update(steps=400, log_every=50, eval_every=0, eval_batches=0, checkpoint_every=0, keep_checkpoints=1)
    for name in BESIDE:
        if (weight := settings.pop(name, None)) is not None:
            config.objectives[name] = ConfigDict(_weight(weight))
    for name, value in settings.items():
        for key in _keys_of(config, name):
            set_key(config, key, value)
    return config


def pretraining_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a pretraining's `config.data` that tasks made from its documents need."""
    defaults = OPTIONS["pretraining"]
    return {key: data.get(key, default) for key, default in defaults.items()}


def _keys_of(config: ConfigDict, name: str) -> list[str]:
    """The keys that an override sets; `head.SETTING` sets that of each head that has it."""
    setting = name.removeprefix("head.")
    heads = [task for task, entry in config.objectives.items() if setting in entry]
    return [name] if name == setting else [f"objectives.{task}.{setting}" for task in heads]


def _weight(value: float) -> dict[str, Any]:
    return {"weight": value, "final_weight": config_dict.placeholder(float)}


def resolved(config: ConfigDict) -> tuple[ConfigDict, dict[str, tuple[Task, TaskData]]]:
    """The config with its number of steps, and each task's examples by the name of its objective.

    Raises:
        UserError: a task's files are wrong, or it has no training labels.
    """
    tasks = load_tasks(config.task, config.task_data.to_dict())
    return sized(config, tasks), tasks


def sized(config: ConfigDict, tasks: Mapping[str, tuple[Task, TaskData]]) -> ConfigDict:
    """The config with keys that depend on the number of training examples (steps, warm-up, stages), and the order's seed."""
    config = config.copy_and_resolve_references()
    keys.check(config)
    for key in KEYS:
        key.check(config.transfer[key.leaf], {})
    if config.transfer.random and config.init_step is not None:
        raise UserError(f"config.init_step={config.init_step} has no effect with config.transfer.random=True; leave it unset")
    if not any(task.kind.is_trained for task, _ in tasks.values()):
        config.train.steps, config.transfer.epochs, config.transfer.warmup = 0, 0.0, 0.0
        config.optimizer.frozen, config.optimizer.thaw = "", "all"  # so nothing refuses that nothing is left to train
    examples = sum(len(data.examples["train"]) for _, data in tasks.values())
    epoch = max(1, examples // config.data.batch_size)
    if config.data.seed is None:
        config.data.seed = config.seed
    if not config.train.steps and config.transfer.epochs:
        config.train.steps = max(1, int(examples / config.data.batch_size * config.transfer.epochs))  # as run_classifier.py
    if config.transfer.warmup and config.optimizer.warmup_steps:
        raise UserError(
            f"config.optimizer.warmup_steps={config.optimizer.warmup_steps} and config.transfer.warmup={config.transfer.warmup}"
            " both set the warm-up; set config.transfer.warmup=0, or leave warmup_steps unset"
        )
    if config.transfer.warmup:
        config.optimizer.warmup_steps = int(config.train.steps * config.transfer.warmup)
    if config.lora.rank and not config.optimizer.frozen:
        config.optimizer.frozen = "^body/"
    for name, entry in config.objectives.items():
        pattern = f"^heads_{re.escape(name)}/features/{VECTORS}$"
        if entry.get("word_vectors") and not entry.word_vectors_trained and pattern not in config.optimizer.frozen:
            config.optimizer.frozen = "|".join(filter(None, [config.optimizer.frozen, pattern]))
    if config.optimizer.thaw in ("gradual", "chain") and not config.optimizer.thaw_steps:
        config.optimizer.thaw_steps = epoch
    return config
