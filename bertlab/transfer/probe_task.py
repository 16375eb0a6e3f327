"""`bertlab probe`: what each layer of a run knows of a tagging task's words.

probes.json has what was measured, {"probes": {TASK: {LAYER: {...}}}}; a layer's entry has the columns of `probe_layers`, the
seed, and in "cut" how many sentences of "train" and "test" were left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.config import base_config, parse_override, set_key
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.transfer.edge_probe import probe_edges, read_heads
from bertlab.transfer.evaluate import check_kept, write_merged
from bertlab.transfer.examples import Example
from bertlab.transfer.finetune import pretraining_options
from bertlab.transfer.load import Pretrained, load
from bertlab.transfer.probes import probe_layers
from bertlab.transfer.tasks import OPTIONS, Task, TaskData, find_task, load_task
from bertlab.transfer.tasks.catalogue import HEADS

MEASURE = "probes"


def probe_task(
    run: Path,
    task: str,
    overrides: Mapping[str, str] | None = None,
    layers: str | Sequence[int] = "all",
    words: int = 10_000,
    control: bool = False,
    code: bool = False,
    variational: bool = False,
    edges: bool = False,
    seed: int = 0,
    out: Path | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Probes a run's layers for a task's tags, prints a table and writes it to a file.

    The probes are trained on the task's training words and tested on its test words, or on those of its development set if the
    test set has no tags. Sentences that are too long for the model are left out.

    Args:
        run: run or imported directory.
        task: a tagging task, as for `bertlab.transfer.tasks.find_task`.
        overrides: `task_data.KEY` to text, as in a fine-tuning.
        layers: as for `Pretrained.encode`.
        words: the most words of training, and of test, in whole sentences.
        control, code, variational: as for `probe_layers`.
        edges: probe the heads of the words of task `ud` instead (`bertlab.transfer.edge_probe.probe_edges`).
        seed: of the samples, the held-out words and the control task.
        out: a JSON file; None: `run`/probes.json, or probes-STEP.json for a step other than the last. Entries of other tasks
            and layers stay.
        step: of the checkpoint; None: the last one.

    Returns:
        {"probes": {TASK: {LAYER: {...}}}}.

    Raises:
        UserError: the task has no tags, its files are wrong, a number is out of range, the checkpoint is missing, or the output
            is no such file.
    """
    if words < 1 or seed < 0:
        raise UserError(f"--words={words} must be 1 or more, and --seed={seed} 0 or more")
    Run(run).require_step(step)
    out = out or Run(run).probes_at(step).path
    check_kept(out, {MEASURE}, "probes")
    if edges and (task != "ud" or code or variational):
        raise UserError("--edges reads the heads of --task=ud, and its probe has no --code or --variational; omit the others")
    name, data = _tagged(run, HEADS if edges else find_task(task), overrides or {})
    model = load(run, step)
    hidden = any(example.label is None for example in data.examples["test"])
    (train, of_train), (test, of_test) = (_fitting(model, data, split) for split in ("train", "valid" if hidden else "test"))
    if edges:
        train, test = ([read_heads(*of, name) for of in part] for part in (train, test))
        table = probe_edges(model, train, test, layers, words, seed, control)
    else:
        table = probe_layers(model, train, test, layers, words, seed, control, code, variational)
    print(f"{name}: a {'bilinear' if edges else 'linear'} probe on each layer\n{table.to_string(float_format='{:.4f}'.format)}")
    also = {"seed": seed, "cut": {"train": of_train, "test": of_test}}
    found = {MEASURE: {name: {str(layer): row | also for layer, row in table.to_dict("index").items()}}}
    write_merged(out, found)
    print(f"{out}: {MEASURE}")
    return found


def _tagged(run: Path, of: Task, overrides: Mapping[str, str]) -> tuple[str, TaskData]:
    """A tagging task's name and data."""
    if not of.kind.of_words:
        raise UserError(
            f"--task={of.name} has kind {of.kind.name}, but a probe reads a tag for each word; give a tagging task, or"
            f" fit a head alone on whole texts: bertlab finetune --run=RUN --task={of.name} --recipe=probe"
        )
    config = base_config()
    config.task_data = ConfigDict({**OPTIONS, "pretraining": pretraining_options(Run(run).config.read()["data"])})
    for key, value in overrides.items():
        if not key.startswith("task_data."):
            raise UserError(f"--config.{key}={value}: bertlab probe has no such setting; it takes only --config.task_data.KEY")
        set_key(config, key, parse_override(config, key, value))
    return of.name, load_task(of, config.task_data.to_dict())


def _fitting(model: Pretrained, data: TaskData, split: str) -> tuple[list[tuple[Sequence[str], list[str]]], dict[str, int]]:
    """The words and tags of a split's sentences that the model can read, and how many it cannot."""
    examples = [example for example in data.examples[split] if example.words]
    lengths = model.lengths([list(example.words) for example in examples], pretokenized=True)
    fits: list[Example] = [example for example, length in zip(examples, lengths) if length <= model.longest]
    if left := len(examples) - len(fits):
        print(f"{left:,} of {len(examples):,} sentences of {split} are longer than the model's {model.longest} positions")
    found = [(example.words, [data.names[number] for number in example.label]) for example in fits]
    return found, {"examples": left, "of_examples": len(examples)}
