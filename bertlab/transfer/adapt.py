"""Continues pretraining on a task's own text before you train its head. It does not read labels.

This is ULMFiT's second stage (Howard and Ruder 2018, section 3.2), ELMo's fine-tuned biLM (Peters et al. 2018, section 3.4),
and task-adaptive pretraining.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab import keys
from bertlab.config import base_config, flatten, is_finetuning, parse_override, set_key
from bertlab.data.prepare import prepare
from bertlab.errors import UserError, did_you_mean
from bertlab.files import json_lines
from bertlab.run import Run
from bertlab.train import loop
from bertlab.train.build import begun_from
from bertlab.train.checks import check_config, check_model
from bertlab.train.processes import alone, first_before_others, is_first, meet
from bertlab.transfer.examples import Example
from bertlab.transfer.finetune import pretraining_options
from bertlab.transfer.recipes import FITLAM_ANNEALING, SLANTED_ADAM
from bertlab.transfer.tasks import OPTIONS, find_task, load_task

_ULMFIT = SLANTED_ADAM | {
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.004,
    "optimizer.average_after": 0,
    "optimizer.layer_decay": 1 / 2.6,
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "same": {},  # the run's own optimiser
    "ulmfit": _ULMFIT,
    # The first version thaws the language model layer by layer in one epoch, with cosine annealing after a reversed warm-up.
    "fitlam": _ULMFIT | FITLAM_ANNEALING | {"optimizer.layer_decay": 0.3, "optimizer.thaw": "gradual"},
}


def adapt(
    run: str | os.PathLike[str],
    task: str,
    workdir: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "same",
    epochs: float = 1.0,
) -> dict[str, Any]:
    """Trains a run's objectives on the texts of a task's training examples. Call it again to resume.

    All processes of a run call it, as for a training.

    Args:
        run: the directory of a run with a checkpoint.
        task: as for `bertlab.transfer.finetune.finetune`, but only one.
        workdir: the new run's directory; it stores the texts as task_text.jsonl.
        overrides: dotted names to values (or their text), applied to the run's config and the recipe; `task_data.` names too.
            If they do not set `optimizer.warmup_steps`, warm-up takes the same share of the steps as in the run, at most a
            tenth.
        recipe: a key of RECIPES.
        epochs: passes over the text, if the overrides do not set `train.steps`.

    Returns:
        The result, as written to result.json.

    Raises:
        UserError: as for training, or the run, task or recipe is unknown.
    """
    run, workdir = Path(run).expanduser(), Path(workdir)
    with first_before_others("the task is read"):  # some leave files in a cache
        config, examples = adaptation_config(run, task, workdir, overrides, recipe, epochs, Run(run).model_config())
    config = begun_from(config)
    check_config(config)
    text = Run(workdir).task_text
    lines = ({"id": example.id, "text": words} for example in examples for words in texts_of(example))
    written = json_lines(lines)
    with alone(workdir):
        if is_first() and not text.exists():
            text.write(written)
        meet("the texts are written")
        if text.read() != written:
            raise UserError(f"{text} holds the texts of another task; give another --workdir")
        if loop.finished(config, workdir) is None:
            with first_before_others("prepared"):
                prepare(config.data)
        return loop.train(config, workdir)


def adaptation_config(
    run: Path,
    task: str,
    workdir: Path,
    overrides: Mapping[str, Any] | None,
    recipe: str,
    epochs: float,
    pretrained: Mapping[str, Any],
) -> tuple[ConfigDict, list[Example]]:
    """The config of an adaptation, and the examples whose texts it reads. Neither directory needs to exist.

    Args:
        run, task, workdir, overrides, recipe, epochs: as for `adapt`.
        pretrained: the run's config, as its config.json has it.

    Raises:
        UserError: the run is no pretraining, or the task, its files, the recipe or a setting are wrong.
    """
    if recipe not in RECIPES:
        raise UserError(f"recipe '{recipe}' is not known; {did_you_mean(recipe, RECIPES)}")
    if is_finetuning(pretrained):
        raise UserError(f"{run} is a fine-tuning and has no pretraining objective; give its pretraining run")
    if "+" in task:
        raise UserError(f"--task={task}: a language model is adapted to one task; give one")
    config = base_config()
    config.update(ConfigDict({key: pretrained[key] for key in ("model", "data", "objectives", "optimizer")}))
    config.seed, config.init_from = pretrained["seed"], str(run)
    config.data.corpus, config.data.tokenizer.path = f"text:{Run(workdir).task_text}", str(Run(run).tokenizer)
    config.data.unique_tokens = 0  # a limit on the pretraining's text, not on the task's
    config.task, config.task_data = task, ConfigDict({**OPTIONS, "pretraining": pretraining_options(pretrained["data"])})
    settings = {**RECIPES[recipe], **(overrides or {})}
    for name, value in settings.items():
        set_key(config, name, parse_override(config, name, value) if isinstance(value, str) else value)
    keys.drop_without_effect(config, flatten(overrides or {}))
    check_model(config, ConfigDict(pretrained["model"]))
    examples = load_task(find_task(task), config.task_data.to_dict()).examples["train"]
    if "train.steps" not in settings:
        config.train.steps = steps_of(config, examples, epochs)
    theirs = pretrained.get("train", {}).get("steps", 0)
    if "optimizer.warmup_steps" not in settings and config.optimizer.warmup_steps is not None and theirs:
        config.optimizer.warmup_steps = int(min(config.optimizer.warmup_steps / theirs, 0.1) * config.train.steps)
    if config.optimizer.thaw == "gradual" and not config.optimizer.thaw_steps:
        config.optimizer.thaw_steps = max(1, config.train.steps // (config.model.layers or 4) // 2)
    return config, examples


def texts_of(example: Example) -> Iterator[str]:
    """The texts of an example; a list of words counts as one."""
    yield from example.texts
    yield from example.choices
    if example.words:
        yield " ".join(example.words)


def steps_of(config: ConfigDict, examples: list[Example], epochs: float) -> int:
    """Steps for the given number of passes over the texts, at about one and a half pieces per word."""
    words = sum(len(text.split()) for example in examples for text in texts_of(example))
    length = config.data.pack_length or config.data.seq_len
    return max(20, int(1.5 * words * epochs / (config.data.batch_size * length)))
