"""TensorBoard and Weights & Biases as writers of the log: functions of a line (`config.writers`).

Each is set as its own documentation says (WANDB_MODE=offline, WANDB_PROJECT). metrics.jsonl is
always written and has everything.
"""

import atexit
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bertlab.errors import UserError
from bertlab.train.run_directory import RunDirectory


def open_writers(
    names: str, run: RunDirectory, config: Mapping, resumed: int | None
) -> list[Callable[[Mapping[str, Any]], None]]:
    """The writers named in `config.writers`, of process 0.

    `resumed` is the step from which the run goes on; None: it begins.
    """
    openers = {"tensorboard": tensorboard_writer, "wandb": wandb_writer}
    asked = [name for name in names.split(",") if name not in ("", "jsonl")]
    if not set(asked) <= set(openers):
        raise UserError(f"config.writers={names} may name jsonl, {', '.join(openers)}")
    return [openers[name](run, config, resumed) for name in asked if jax.process_index() == 0]


def tensorboard_writer(run: RunDirectory, config: Mapping, resumed: int | None):
    """Event files in RUN/tensorboard, without the steps that a resumed run writes again."""
    from tensorboardX import SummaryWriter

    client = SummaryWriter(
        str(run.path / "tensorboard"),
        purge_step=None if resumed is None else resumed + 1,
        filename_suffix=f".{resumed or 0}",
    )
    atexit.register(client.close)

    def write(line):
        for name, value in numbers(line).items():
            client.add_scalar(name, value, line["step"])

    return write


def wandb_writer(run: RunDirectory, config: Mapping, resumed: int | None):
    """A W&B run whose id is in RUN/wandb.json, so that a resumed run goes on with it."""
    import wandb

    name = run.read("wandb")
    client = wandb.init(dir=run.path, name=run.path.name, id=name, resume="allow", config=config)
    run.write("wandb", client.id)
    client.define_metric("*", step_metric="step")
    return lambda line: client.log({"step": line["step"]} | numbers(line))


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log line by "split/metric"."""
    values = {name: value for name, value in line.items() if isinstance(value, int | float)}
    return {f"{line['split']}/{name}": value for name, value in values.items() if name != "step"}
