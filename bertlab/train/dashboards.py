"""TensorBoard and Weights & Biases as writers of the log: functions of a line (`config.writers`).

Each is set up as its own documentation says (WANDB_MODE=offline, WANDB_PROJECT). metrics.jsonl
is always written and has everything.
"""

import atexit
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bertlab.errors import UserError
from bertlab.train.run_directory import RunDirectory


def open_writers(
    names: str, run: RunDirectory, config: Mapping, resumed: int
) -> list[Callable[[Mapping[str, Any]], None]]:
    """The writers named in `config.writers`, on process 0; `resumed` is the run's first step."""
    asked = {*names.split(",")} - {"", "jsonl"}
    if not asked <= {"tensorboard", "wandb"}:
        raise UserError(f"config.writers={names} may name jsonl, tensorboard, wandb")
    if jax.process_index() > 0:
        return []
    writers = []
    if "tensorboard" in asked:
        from tensorboardX import SummaryWriter

        events = SummaryWriter(  # hides steps that a resumed run writes again
            str(run.path / "tensorboard"), purge_step=resumed + 1, filename_suffix=f".{resumed}"
        )
        atexit.register(events.close)

        def write_events(line):
            for name, value in numbers(line).items():
                events.add_scalar(name, value, line["step"])

        writers.append(write_events)
    if "wandb" in asked:
        import wandb

        known = run.read("wandb")  # a resumed run continues it
        client = wandb.init(
            dir=run.path,
            name=run.path.name,
            id=known,
            resume="allow",
            reinit=True,  # a study's worker trains several runs, one after the other
            config=config,
        )
        run.write("wandb", client.id)
        writers.append(lambda line: client.log(numbers(line), step=line["step"]))
    return writers


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log line by "split/metric"."""
    values = {name: value for name, value in line.items() if isinstance(value, int | float)}
    return {f"{line['split']}/{name}": value for name, value in values.items() if name != "step"}
