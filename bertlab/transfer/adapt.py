"""Goes on pretraining on a task's own texts, without its labels, before its head is trained.

This is ULMFiT's second stage (Howard and Ruder 2018, section 3.2), ELMo's fine-tuned biLM (Peters
et al. 2018, section 3.4), and task-adaptive pretraining.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.examples import Example
from bertlab.transfer.finetune import override, pretraining_data
from bertlab.transfer.load import is_finetuning, with_defaults
from bertlab.transfer.recipes import FITLAM_ANNEALING, SLANTED_ADAM
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

    Args:
        run: Directory of a pretrained or imported run.
        task: A name, or FILE.py with one's own task.
        workdir: The new run's directory, where task_text.jsonl has the texts.
        overrides: Dotted names of the run's config to values, or to their text; `task_data.` too.
        recipe: A key of `RECIPES`.
        epochs: About so many passes over the text, if the overrides do not set `train.steps`.

    Returns:
        The content of result.json.
    """
    pretrained = RunDirectory(run).config()
    config, examples = adaptation_config(run, task, workdir, overrides, recipe, epochs, pretrained)
    path = text_file(workdir)
    texts = [
        json_line({"id": example.id, "text": text})
        for example in examples
        for text in example_texts(example)
    ]
    if jax.process_index() == 0 and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(texts), encoding="utf-8")
    return loop.run(build_pretraining(config), workdir)


def adaptation_config(
    run: str | Path,
    task: str,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None,
    recipe: str,
    epochs: float,
    pretrained: Mapping[str, Any],
) -> tuple[ConfigDict, list[Example]]:
    """The config of an adaptation, and the examples whose texts it reads."""
    if recipe not in RECIPES:
        raise UserError(f"--recipe={recipe} is not one of {', '.join(RECIPES)}")
    if is_finetuning(pretrained):
        raise UserError(f"{run} is a fine-tuning, without a pretraining objective; give another")
    if "+" in task:
        raise UserError(f"--task={task}: a language model is adapted to one task; give one")
    keys = ("model", "data", "objectives", "optimizer", "seed")
    config = with_defaults({key: pretrained[key] for key in keys if key in pretrained})
    config.init_from, config.task_data = str(run), ConfigDict(TASK_DATA)
    config.task_data.update(pretraining_data(pretrained))
    config.data.corpus = f"text:{text_file(workdir)}"
    config.data.tokenizer.path = str(RunDirectory(run).tokenizer)
    config.data.unique_tokens = 0
    settings = {**RECIPES[recipe], **(overrides or {})}
    override(config, settings)
    examples = load_task(find_task(task), config.task_data.to_dict()).examples["train"]
    if "train.steps" not in settings:
        config.train.steps = steps_within(config, examples, epochs)
    # Warm-up takes the same share of the steps as in the run, at most a tenth.
    warmup, steps = config.optimizer.warmup_steps, pretrained.get("train", {}).get("steps")
    if warmup and steps and "optimizer.warmup_steps" not in settings:
        config.optimizer.warmup_steps = int(min(warmup / steps, 0.1) * config.train.steps)
    if config.optimizer.thaw == "gradual" and not config.optimizer.thaw_steps:
        config.optimizer.thaw_steps = max(1, config.train.steps // (config.model.layers or 4) // 2)
    return config, examples


def text_file(workdir: str | Path) -> Path:
    """Where an adaptation keeps the texts that it reads."""
    return Path(workdir).absolute() / "task_text.jsonl"


def example_texts(example: Example) -> Iterator[str]:
    """The texts of an example; a list of words is one."""
    yield from example.texts
    yield from example.choices
    if example.words:
        yield " ".join(example.words)


def steps_within(config: ConfigDict, examples: Sequence[Example], epochs: float) -> int:
    """Steps of about so many passes over the texts."""
    words = sum(len(text.split()) for example in examples for text in example_texts(example))
    row = config.data.pack_length or config.data.seq_len
    return max(20, int(PIECES_PER_WORD * words * epochs / (config.data.batch_size * row)))
