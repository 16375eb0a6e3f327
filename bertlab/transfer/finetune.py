"""Fine-tuning a pretrained run on a task: the same loop, with the task's head as the objective."""

import json
from pathlib import Path

import grain
import numpy as np
from ml_collections import ConfigDict

from bertlab.config import base_config, parse_override, set_key
from bertlab.data.batches import pad_batch
from bertlab.data.text_rows import RowEncoder
from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import build_body, model_direction, model_shape
from bertlab.objectives.program import Program
from bertlab.train import loop
from bertlab.train.build import Experiment, build_phases, check_devices, check_shape, vocabulary_of, warm_start
from bertlab.transfer.heads import NO_LABEL, SentenceClassification, TokenClassification
from bertlab.transfer.tasks import TaskData, find_task, load_task


def finetune(run, task: str, workdir, overrides: dict | None = None) -> dict:
    """Fine-tunes a run on a task; called again with the same arguments, it goes on where it stopped.

    Args:
        run: the directory of a pretraining run with a checkpoint.
        task: a key of `bertlab.transfer.tasks.TASKS`.
        workdir: the fine-tuning's own run directory.
        overrides: dotted names to values, over `finetune_config`'s defaults.

    Returns:
        The result, as written to result.json.

    Raises:
        UserError: the run has no checkpoint, the task is unknown, or the workdir holds something else.
    """
    run, workdir = Path(run), Path(workdir)
    config = finetune_config(run, task)
    for name, value in (overrides or {}).items():
        set_key(config, name, parse_override(config, name, value) if isinstance(value, str) else value)
    if (result := loop.finished(config, workdir)) is not None:
        return result
    return loop.run(build_finetuning(config, run), workdir)


# Of the pretraining's data config, what a task's rows still depend on.
_DATA_KEYS = (
    "corpus", "directory", "valid_fraction", "test_fraction", "seq_len", "batch_size", "seed", "characters"
)  # fmt: skip


def finetune_config(run_directory: Path, task: str) -> ConfigDict:
    """The config of a fine-tuning: the run's model and data keys, and defaults in the manner of Devlin et al. 2018, A.3.

    Three epochs' worth of steps are the paper's; a small model needs a larger rate than its 5e-5.
    """
    path = run_directory / "config.json"
    if not path.exists():
        raise UserError(f"{run_directory} is not a run (there is no config.json); give the --workdir of a `bertlab train`")
    pretrained = json.loads(path.read_text())
    config = base_config()
    config.init_from = str(run_directory)
    config.task = task
    config.seed = pretrained["seed"]
    config.model.update(pretrained["model"])
    config.model.stateful = False
    for key in ("corpus", "directory", "valid_fraction", "test_fraction"):
        config.data[key] = pretrained["data"][key]
    config.data.characters = pretrained["data"].get("characters", False)
    for key in [key for key in config.data if key not in _DATA_KEYS]:
        del config.data[key]
    config.data.seq_len = min(48, pretrained["data"]["seq_len"])
    config.data.batch_size = 16
    settings = {"pooling": "mean"} if find_task(task).kind == "sentence" else {}
    config.objectives = {task: {"weight": 1.0, "dropout": 0.1, **settings}}
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 30
    config.train.update(steps=400, log_every=50, eval_every=200, eval_batches=0, checkpoint_every=0, keep_checkpoints=1)
    return config


def build_finetuning(config: ConfigDict, run_directory: Path) -> Experiment:
    """Composes a fine-tuning run: the task's rows, the pretrained body, a fresh head."""
    tokenizer = load_tokenizer(run_directory / "tokenizer")
    shape = model_shape(config.model, tokenizer.vocab_size)
    check_shape(config, shape)
    check_devices(config)
    for key in ("budget", "phases"):
        if config.train[key]:
            raise UserError(f"config.train.{key}={config.train[key]!r} is for pretraining; leave it out of a fine-tuning")
    data = load_task(find_task(config.task), config.data)
    first_piece = "both" in sides_of(config.model.family, model_direction(config.model))
    options = (tokenizer, config.data.seq_len, first_piece, config.data.characters)
    rows = {split: encode(data, split, *options) for split in data.examples}
    settings = {k: v for k, v in config.objectives[config.task].items() if k != "weight"}
    if settings.get("pooling", "mean") not in ("mean", "pooler"):
        raise UserError(f"config.objectives.{config.task}.pooling={settings['pooling']!r} is not known; choose mean or pooler")
    kind = {"sentence": SentenceClassification, "token": TokenClassification}[data.task.kind]
    head = kind(classes=len(data.labels), **settings)
    program = Program(build_body(shape), {config.task: head}, vocabulary_of(tokenizer))
    return Experiment(
        config=config,
        program=program,
        phases=build_phases(config, program, lambda data: _train_batches(rows["train"], data)),
        tokenizer=tokenizer,
        evaluations={split: _in_batches(rows[split], config.data.batch_size) for split in ("valid", "test")},
        warm_start=lambda fresh: warm_start(fresh, run_directory),
    )


def encode(
    data: TaskData, split: str, tokenizer, seq_len: int, first_piece: bool, characters: bool = False
) -> list[dict[str, np.ndarray]]:
    """Words between what the tokenizer puts around a text ([CLS] and [SEP]), with `label` (sentence tasks) or `labels` [L].

    In token tasks −1 says that a position has no label.

    Args:
        data: the examples.
        split: "train", "valid" or "test".
        tokenizer: the pretrained run's.
        seq_len: words beyond it are cut off, and their labels with them.
        first_piece: a word's label lies on its first piece, as in Devlin et al. 2018, section 5.3; otherwise on its last,
            since a model that reads one way has not seen the word before.
        characters: the model reads characters.
    """
    encoder = RowEncoder(tokenizer, characters, room=seq_len)
    rows = []
    for number, (words, label) in enumerate(data.examples[split]):
        text = encoder.words(words)
        row = text.padded(seq_len, tokenizer.pad_id, (number, 0))
        if data.task.kind == "sentence":
            row["label"] = np.int32(label)
        else:
            places = text.first if first_piece else text.last
            row["labels"] = np.full(seq_len, NO_LABEL, np.int32)
            row["labels"][places] = np.array(label)[: len(places)]
        rows.append(row)
    return rows


def _train_batches(rows: list[dict], data) -> grain.IterDataset:
    shuffled = grain.MapDataset.source(rows).seed(data.seed).shuffle().repeat()
    return shuffled.to_iter_dataset().batch(data.batch_size, drop_remainder=True)


def _in_batches(rows: list[dict], size: int) -> list[dict[str, np.ndarray]]:
    return [pad_batch(rows[i : i + size], size) for i in range(0, len(rows), size)]
