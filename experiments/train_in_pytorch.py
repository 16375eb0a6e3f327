"""Trains a finished pretraining again in PyTorch: same initial values, rows, masks and rates.

    pip install -e '.[parity]'
    python experiments/train_in_pytorch.py RUN DIRECTORY
    bertlab finetune --run=DIRECTORY/run --task=... --workdir=...

If PyTorch's model has the same losses and, fine-tuned, the same score, then a surprising result is
no bug of forward pass, gradients, optimiser or schedule. RUN has the objective `mlm` or `ltr`,
Adam, no dropout, and one text a row. A body as in the papers becomes transformers' own BERT; others
become `modeling_bertlab.py`. DIRECTORY gets `start` and `trained` (transformers' directories),
`run` (the latter as a run) and `losses.json`: by step the mean training loss since the last line.
"""

import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import torch
import transformers
from ml_collections import ConfigDict

from bertlab.config import base_config
from bertlab.config.load import flatten
from bertlab.errors import UserError
from bertlab.files import write_json
from bertlab.interop.base import TOKENIZER, Model, import_weights, refuse_occupied
from bertlab.interop.huggingface import save
from bertlab.train.build import build_pretraining
from bertlab.train.loop import Experiment
from bertlab.train.run_directory import RunDirectory
from bertlab.train.schedules import layer_plan
from bertlab.transfer.load import run_config

# What the training loop can do and this script does not.
AT_DEFAULT = re.compile(
    r"init_from|lora\.rank|train\.(phases|micro_batches|tokens)|data\.(pack_length|buckets)"
    r"|model\.(dtype|base_width)"
    r"|optimizer\.(layer_decay|group_rates|thaw|frozen|gradient_scale|average_after)$"
)
REPEATED = {
    "model.dropout": [0.0],
    "optimizer.name": ["adam"],
    "optimizer.bias_correction": ["none", "moments"],
    "optimizer.coupled_decay": [False],
    "optimizer.decay_exclude": ["(norm|bias)"],
    "data.format": ["segment_pair", "sentence_pair"],
}
MODELS = {"mlm": transformers.AutoModelForMaskedLM, "ltr": transformers.AutoModelForCausalLM}


def main(arguments: list[str] | None = None) -> None:
    """Trains, compares the losses line by line, and saves."""
    path, directory = map(Path, arguments or sys.argv[1:])
    refuse_occupied(directory)
    run = RunDirectory(path)
    if run.read("result") is None:
        raise UserError(f"{run} is not a finished pretraining")
    config = run_config(path)
    objective = check(config)
    experiment = build_pretraining(config)
    # The values with which the run began are a function of its seed.
    init = jax.jit(experiment.program.init)
    params = jax.device_get(init(jax.random.key(config.seed), experiment.example))
    save(Model(config, params, experiment.tokenizer), directory / "start")
    model = MODELS[objective].from_pretrained(directory / "start", trust_remote_code=True)
    lines = [line for line in run.metrics() if line["split"] == "train"]
    ours, losses = {line["step"]: line[f"{objective}/loss"] for line in lines}, {}
    for step, loss in train(model, experiment, objective, set(ours)):
        losses[step] = {"bertlab": ours[step], "pytorch": loss}
        print(f"step {step}: {losses[step]}", flush=True)
    write_json(directory / "losses.json", {"model": type(model).__name__, "losses": losses})
    shutil.copytree(directory / "start", directory / "trained")
    model.save_pretrained(directory / "trained")
    experiment.tokenizer.save(directory / "trained" / TOKENIZER)
    import_weights("huggingface", directory / "trained", directory / "run")


def check(config: ConfigDict) -> str:
    """The objective of a run that PyTorch can repeat here."""
    names, default = list(config.objectives), flatten(base_config())
    other = [] if len(names) == 1 and names[0] in MODELS else ["objectives"]
    for key, value in flatten(config).items():
        repeated = REPEATED.get(key, [default[key]] if AT_DEFAULT.match(key) else [value])
        if value not in repeated and (value or any(repeated)):
            other.append(key)
    if other:
        raise UserError(f"the run has another config.{other[0]} than this script repeats")
    return names[0]


def train(
    model: torch.nn.Module, experiment: Experiment, objective: str, lines: set[int]
) -> Iterator[tuple[int, float]]:
    """Yields (step, mean loss since the last one) at each step that the run has logged."""
    config, (phase,) = experiment.config, experiment.phases
    steps = config.train.steps
    params = experiment.program.init(jax.random.key(0), experiment.example)
    rate = layer_plan(config.optimizer, steps, params).rate
    groups = {True: [], False: []}  # decayed: matrices
    for parameter in model.parameters():
        groups[parameter.ndim > 1].append(parameter)
    betas = config.optimizer.b1, config.optimizer.b2
    adam = torch.optim.AdamW([{"params": of} for of in groups.values()], 0.0, betas, weight_decay=0)
    total, count = 0.0, 0
    for step in range(steps):
        rows, labels = read(experiment, phase.batches(step), step, objective)
        logits = model(**rows).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
        asked = int((labels != -100).sum())
        (loss / asked).backward()
        update(adam, config.optimizer, float(rate(step)), step + 1)
        total, count = total + loss.item(), count + asked
        if step + 1 in lines:
            yield step + 1, total / count
            total, count = 0.0, 0


def read(experiment: Experiment, batch, step: int, objective: str):
    """What the model reads, and [B, L] the tokens that it is to predict, -100 for none."""
    config = experiment.config
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), step))
    views = experiment.program.views(batch, key, step / config.train.steps)
    (view,) = jax.device_get(views).values()
    inside, labels = view["documents"] > 0, np.full(view["tokens"].shape, -100)
    if objective == "mlm":
        row, slot = np.nonzero(view["masked_weights"] > 0)
        labels[row, view["masked_positions"][row, slot]] = view["masked_labels"][row, slot]
    else:
        labels[:, :-1] = np.where(inside[:, 1:], view["tokens"][:, 1:], -100)
    rows = {"input_ids": view["tokens"], "token_type_ids": view["segments"]}
    rows["attention_mask"] = inside
    rows = {name: torch.tensor(array, dtype=torch.long) for name, array in rows.items()}
    return rows, torch.tensor(labels, dtype=torch.long)


def update(adam: torch.optim.AdamW, settings: ConfigDict, rate: float, count: int) -> None:
    """Clips and applies the gradients, and drops them. PyTorch corrects the moments' bias; if the
    run does not, rate, epsilon and decay undo it."""
    first, second = 1.0, 1.0
    if settings.bias_correction == "none":
        first, second = 1 - settings.b1**count, math.sqrt(1 - settings.b2**count)
    matrices, others = adam.param_groups
    for group in (matrices, others):
        group.update(lr=rate * first / second, eps=settings.epsilon / second)
    matrices["weight_decay"] = settings.weight_decay * second / first
    if settings.clip_norm:
        torch.nn.utils.clip_grad_norm_(matrices["params"] + others["params"], settings.clip_norm)
    adam.step()
    adam.zero_grad()


if __name__ == "__main__":
    main()
