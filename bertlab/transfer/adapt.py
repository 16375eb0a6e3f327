"""Continues pretraining on a task's own texts, without its labels, before its head is trained.

This is ULMFiT's second stage (Howard and Ruder 2018, section 3.2), ELMo's fine-tuned biLM (Peters
et al. 2018, section 3.4), and task-adaptive pretraining.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.finetune import override, pretraining_data
from bertlab.transfer.load import with_defaults
from bertlab.transfer.recipes import FITLAM_ANNEALING, SLANTED_ADAM, find_recipe
from bertlab.transfer.tasks import TASK_DATA, find_task, load_task

ULMFIT = {
    **SLANTED_ADAM,
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.004,
    "optimizer.average_after": 0,
    "optimizer.layer_decay": 1 / 2.6,
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "same": {},  # the run's own optimiser
    "ulmfit": ULMFIT,
    # The first version thaws the layers one by one, in one epoch.
    "fitlam": {
        **ULMFIT,
        **FITLAM_ANNEALING,
        "optimizer.layer_decay": 0.3,
        "optimizer.thaw": "gradual",
    },
}

PIECES_PER_WORD = 1.5


def adapt(
    run: str | Path,
    task: str,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "same",
    epochs: float = 1.0,
) -> dict[str, Any]:
    """Trains a run's objectives on the texts of a task's training examples; the same call resumes.
    Returns the content of result.json.

    Args:
        run: Directory of a pretrained or imported run.
        task: A name, or FILE.py with your own task.
        workdir: The new run's directory, where task_text.jsonl holds the texts.
        overrides: Dotted names of the run's config to values, or to their text; `task_data.` too.
        recipe: A key of `RECIPES`.
        epochs: About how many passes over the text, if the overrides do not set `train.steps`.
    """
    pretrained = RunDirectory(run).config()
    config, lines = adaptation_config(run, task, workdir, overrides, recipe, epochs, pretrained)
    path = Path(config.data.corpus.removeprefix("text:"))
    if jax.process_index() == 0 and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(map(json_line, lines)), encoding="utf-8")
    return loop.run(build_pretraining(config), workdir)


def adaptation_config(
    run: str | Path,
    task: str,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None,
    recipe: str,
    epochs: float,
    pretrained: Mapping[str, Any],
) -> tuple[ConfigDict, list[dict[str, str]]]:
    """The config of an adaptation of a run with the config `pretrained`, and the texts that it
    reads; further arguments as for `adapt`."""
    if pretrained.get("task"):
        raise UserError(f"{run} is a fine-tuning, without a pretraining objective; give another")
    keys = ("model", "data", "objectives", "optimizer", "seed")
    config = with_defaults({key: pretrained[key] for key in keys if key in pretrained})
    config.init_from, config.task_data = str(run), ConfigDict(TASK_DATA)
    config.task_data.update(pretraining_data(pretrained))
    config.data.corpus = f"text:{Path(workdir).absolute() / 'task_text.jsonl'}"
    config.data.tokenizer.path = str(RunDirectory(run).tokenizer)
    config.data.unique_tokens = 0
    settings = {**find_recipe(RECIPES, recipe), **(overrides or {})}
    override(config, settings)
    data, optimizer, train = config.data, config.optimizer, config.train
    lines = []
    for example in load_task(find_task(task), config.task_data.to_dict()).examples["train"]:
        sentence = [" ".join(example.words)] if example.words else []
        texts = (*example.texts, *example.choices, *sentence)
        lines += [{"id": example.id, "text": text} for text in texts]
    if "train.steps" not in settings:
        pieces = PIECES_PER_WORD * sum(len(line["text"].split()) for line in lines)
        batch = data.batch_size * (data.pack_length or data.seq_len)
        train.steps = max(20, int(pieces * epochs / batch))
    # Warm-up takes the same share of the steps as in the run, at most a tenth.
    steps = pretrained.get("train", {}).get("steps")
    if optimizer.warmup_steps and steps and "optimizer.warmup_steps" not in settings:
        optimizer.warmup_steps = int(min(optimizer.warmup_steps / steps, 0.1) * train.steps)
    if optimizer.thaw == "gradual" and not optimizer.thaw_steps:
        optimizer.thaw_steps = max(1, train.steps // (config.model.layers or 4) // 2)
    return config, lines
