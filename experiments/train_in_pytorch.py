"""Trains a finished pretraining again in PyTorch: the same initial values, rows, masks and rates, but not our training code.

    pip install -e '.[bench]'
    python experiments/train_in_pytorch.py RUN DIRECTORY
    bertlab finetune --run=DIRECTORY/run --task=... --workdir=...

A surprising result is first suspected of being a bug. If PyTorch's model has the same losses and, fine-tuned, the same score,
then forward pass, gradients, optimiser and schedule are not where the bug is. RUN has the objective `mlm` or `ltr`, Adam, no
dropout and one text per row (formats segment_pair and sentence_pair). A body as in the papers (`body=paper` in a study) becomes
transformers' own BERT. Other bodies become `modeling_bertlab.py`: our code, but in PyTorch, with PyTorch's gradients.

DIRECTORY gets `start` (the initial values in transformers' format), `trained` (PyTorch's model after training), `run` (the same
as a run directory) and `losses.json`: by step the mean training loss since the line before, in nats, "bertlab" and "pytorch".
"""

import argparse
import contextlib
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

from bertlab.config import base_config, flatten
from bertlab.errors import UserError
from bertlab.files import refuse_occupied, write_json
from bertlab.interop import import_weights
from bertlab.interop.base import Imported
from bertlab.interop.huggingface import save
from bertlab.run import Run
from bertlab.train.build import Experiment, build_pretraining
from bertlab.train.optimizers import build_optimizer
from bertlab.train.schedules import learning_rate
from bertlab.train.state import fresh_state

# What the training loop can do and this script does not.
AT_DEFAULT = re.compile(
    r"init_from|lora\.rank|train\.(phases|micro_batches|budget)|data\.(pack_length|buckets|shards)|model\.(dtype|base_width)"
    r"|optimizer\.(layer_decay|group_rates|thaw|frozen|gradient_scale|average_after)$"
)
MODELS = {"mlm": transformers.AutoModelForMaskedLM, "ltr": transformers.AutoModelForCausalLM}


def main(arguments: list[str] | None = None) -> None:
    """Trains, compares the losses line by line, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished pretraining")
    parser.add_argument("directory", type=Path, help="a new directory")
    given = parser.parse_args(arguments)
    refuse_occupied(given.directory)
    if not Run(given.run).result.exists():
        raise UserError(f"{given.run} is not a finished pretraining; give one with a result.json")
    config = ConfigDict(Run(given.run).config.read())
    objective = check(config)
    experiment = build_pretraining(config)
    start, trained = given.directory / "start", given.directory / "trained"
    start.mkdir(parents=True)
    save(Imported(config, initial_values(experiment), experiment.tokenizer), start)
    model = MODELS[objective].from_pretrained(start, trust_remote_code=True)
    ours = {line["step"]: line[f"{objective}/loss"] for line in Run(given.run).metrics.read() if line["split"] == "train"}
    theirs = {}
    for step, loss in train(model, experiment, objective):
        theirs[step] = loss
        print(f"step {step}: bertlab {ours[step]:.4f}, pytorch {loss:.4f}", flush=True)
    losses = {step: {"bertlab": ours[step], "pytorch": loss} for step, loss in theirs.items()}
    write_json(given.directory / "losses.json", {"model": type(model).__name__, "losses": losses})
    shutil.copytree(start, trained)
    model.save_pretrained(trained)
    import_weights("huggingface", trained, given.directory / "run")


def check(config: ConfigDict) -> str:
    """The objective of a run that PyTorch can repeat here.

    Raises:
        UserError: The run has something that this script does not do.
    """
    optimizer, names = config.optimizer, list(config.objectives)
    needed = {
        "objectives": len(names) == 1 and names[0] in MODELS,
        "model.dropout": config.model.dropout == 0,
        "optimizer.name": optimizer.name == "adam",
        "optimizer.bias_correction": optimizer.bias_correction in ("none", "moments"),
        "optimizer.coupled_decay": not optimizer.coupled_decay,
        "optimizer.decay_exclude": optimizer.decay_exclude == "(norm|bias)",
        "data.format": config.data.format in ("segment_pair", "sentence_pair"),
    }
    default = flatten(base_config())
    needed |= {
        key: value == default[key] or not (value or default[key])  # () is saved as []
        for key, value in flatten(config).items()
        if AT_DEFAULT.match(key)
    }
    weights = {entry.get(key) for entry in config.objectives.values() for key in ("weight", "final_weight")}
    needed["objectives' weight"] = weights <= {None, 1.0}
    if other := [key for key, is_met in needed.items() if not is_met]:
        raise UserError(f"the run has another {other[0]} than this script repeats; its docstring lists what it does")
    return names[0]


def initial_values(experiment: Experiment) -> dict:
    """The parameters with which the run began: a function of its seed."""
    config, example = experiment.config, next(iter(experiment.evaluations.values()))[0]
    optimizer = build_optimizer(config.optimizer, config.train.steps)
    return jax.device_get(fresh_state(experiment.program, optimizer, config.seed, example).params)


def train(model: torch.nn.Module, experiment: Experiment, objective: str) -> Iterator[tuple[int, float]]:
    """Yields (step, mean loss since the last time) at every step that the run has logged."""
    config = experiment.config
    rate, update = learning_rate(config.optimizer, config.train.steps), Adam(model, config.optimizer)
    total, count = 0.0, 0
    with contextlib.closing(iter(experiment.phases[0].train)) as batches:
        for step in range(config.train.steps):
            rows, labels = given(experiment, next(batches), step, objective)
            logits = model(**rows).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            asked = int((labels != -100).sum())
            (loss / asked).backward()
            update(float(rate(step)), step + 1)
            total, count = total + loss.item(), count + asked
            if (step + 1) % config.train.log_every == 0 or step + 1 == config.train.steps:
                yield step + 1, total / count
                total, count = 0.0, 0


def given(experiment: Experiment, batch, step: int, objective: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the model reads, and [B, L] which token its logits are to predict, −100 for none."""
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(experiment.config.seed), step))
    (view,) = jax.device_get(experiment.program.views(batch, key, step / experiment.config.train.steps)).values()
    inside, labels = view["documents"] > 0, np.full(view["tokens"].shape, -100)
    if objective == "mlm":
        row, slot = np.nonzero(view["masked_weights"] > 0)
        labels[row, view["masked_positions"][row, slot]] = view["masked_labels"][row, slot]
    else:
        labels[:, :-1] = np.where(inside[:, 1:], view["tokens"][:, 1:], -100)
    rows = {"input_ids": view["tokens"], "token_type_ids": view["segments"], "attention_mask": inside}
    return {name: torch.tensor(array, dtype=torch.long) for name, array in rows.items()}, torch.tensor(labels)


class Adam:
    """Adam with decoupled decay of matrices and clipping, and without a correction of the moments' bias if the run has none."""

    def __init__(self, model: torch.nn.Module, optimizer: ConfigDict):
        self.settings = optimizer
        self.params = list(model.parameters())
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.params]

    @torch.no_grad()
    def __call__(self, rate: float, count: int) -> None:
        """Updates every parameter, and forgets its gradient."""
        s = self.settings
        if s.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.params, s.clip_norm)
        corrections = [1 - b**count if s.bias_correction == "moments" else 1.0 for b in (s.b1, s.b2)]
        for p, (m, v) in zip(self.params, self.moments, strict=True):
            if p.grad is None:
                continue
            m.mul_(s.b1).add_(p.grad, alpha=1 - s.b1)
            v.mul_(s.b2).addcmul_(p.grad, p.grad, value=1 - s.b2)
            change = (m / corrections[0]) / ((v / corrections[1]).sqrt() + s.epsilon)
            p.sub_(rate * (change + (s.weight_decay * p if p.ndim > 1 else 0.0)))
            p.grad = None


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"train_in_pytorch.py: {error}")
