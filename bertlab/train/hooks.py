"""Hooks: functions of (step, state, sums), called after a step, that return the state to continue
with, or None. `sums` are {name: (weighted sum, weight)} of the step, still on the device."""

import atexit
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from bertlab.errors import Diverged, UserError, require_choice
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import TrainState


def is_due(step: int, every: int, last: int) -> bool:
    """Whether an action of every n steps (0: only at the end) is due after `step` of `last`."""
    return step == last or (every > 0 and step % every == 0)


def kept_steps(keep: str, steps: int) -> list[int]:
    """The steps that "log" (10, 20, 50, 100, ... and the last), "100,1000" or both stand for."""
    kept = set()
    for part in filter(None, keep.replace(" ", "").split(",")):
        if part == "log":
            grid = (digit * 10**power for power in range(1, len(str(steps))) for digit in (1, 2, 5))
            kept |= {step for step in grid if step < steps} | {steps}
        elif part.isdecimal() and 0 < int(part) <= steps:
            kept.add(int(part))
        else:
            raise UserError(f"config.train.keep={keep!r}: {part!r} is not log or a step of the run")
    return sorted(kept)


@dataclasses.dataclass
class Totals:
    """What a run has cost so far; saved with every checkpoint."""

    tokens: int = 0  # without padding
    supervised: int = 0  # positions with a loss
    flops: float = 0.0  # the model's, forward and backward
    seconds: float = 0.0  # of training, without compilation, evaluation and saving
    sums: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)  # since a line

    def costs(self) -> dict[str, float]:
        """The values for a curve's horizontal axis."""
        return {name: value for name, value in vars(self).items() if name != "sums"}


class Log:
    """Adds up the steps' sums, and writes their means to metrics.jsonl and the terminal; `rate` is
    by updates done. A run that resumes from a step (None: new) writes later lines again."""

    def __init__(self, experiment, run: RunDirectory, totals: Totals, rate, resumed: int | None):
        config = experiment.config
        self.totals, self._train, self._run, self._rate = totals, config.train, run, rate
        self._writers = open_writers(config.writers, run, config.to_dict(), resumed or 0)
        if jax.process_index() == 0:
            run.cut_metrics(-1 if resumed is None else resumed, config.train.steps)
        self._waiting: list[tuple[int, Mapping]] = []
        self._phase, self._since = None, None
        self._line = (totals.tokens, totals.seconds)  # as of the last line

    def begin_phase(self, phase) -> None:
        """Steps from here on belong to a phase; its first one compiles."""
        self.fetch()
        self._phase, self._since = phase, None

    def __call__(self, step: int, state: TrainState, sums: Mapping) -> None:
        self._waiting.append((step, sums))
        if self._since is None:  # the clock starts after the step that compiles
            self.fetch()
            self._line = (self.totals.tokens, self.totals.seconds)
            self._since = time.perf_counter()
        if is_due(step, self._train.log_every, self._train.steps):
            self.fetch()
            totals, (tokens, seconds) = self.totals, self._line
            means, self._line = self.means(step, totals.sums), (totals.tokens, totals.seconds)
            if totals.tokens > tokens:
                means["tokens_per_second"] = (totals.tokens - tokens) / (totals.seconds - seconds)
            totals.sums = {}
            self.write(step, "train", means)

    def means(self, step: int, sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Each metric's mean, if it has weight, and `loss`: their sum by the weights at a step."""
        means = {name: total / weight for name, (total, weight) in sums.items() if weight}
        progress, loss = step / max(1, self._train.steps), 0
        for name, (first, last) in self._phase.weights.items():
            loss += (first + (last - first) * progress) * means.get(f"{name}/loss", 0.0)
        return {"loss": loss, **means}

    def fetch(self) -> None:
        """Waits for the device and adds the pending steps to the totals."""
        totals = self.totals
        for step, sums in jax.device_get(self._waiting):
            bad = [name for name, (value, _) in sums.items() if not np.isfinite(value)]
            if bad:
                raise Diverged(
                    f"{bad[0]} is not finite at step {step}; lower config.optimizer.learning_rate"
                )
            tokens, positions = map(int, sums["filled"])
            supervised_positions, flops = self._phase.costs(sums, positions // self._phase.rows)
            totals.tokens += tokens
            totals.supervised += int(supervised_positions)
            totals.flops += flops
            for name, pair in sums.items():
                before = totals.sums.get(name, (0.0, 0.0))
                totals.sums[name] = (before[0] + float(pair[0]), before[1] + float(pair[1]))
        self._waiting.clear()
        if self._since is not None:
            now = time.perf_counter()
            totals.seconds += now - self._since
            self._since = now

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context, or a decorator of functions, that does not count as training time."""
        self.fetch()
        yield
        self._since = self._since and time.perf_counter()

    def write(self, step: int, split: str, means: Mapping[str, float]) -> None:
        """Writes a line, with the costs up to now and the rate of the last update."""
        if jax.process_index() > 0:
            return
        line = {"step": step, "split": split, **means, **self.totals.costs()}
        line["learning_rate"] = float(self._rate(max(step - 1, 0)))
        self._run.add_metrics(line)
        for writer in self._writers:
            writer(line)
        shown = [f"{name} {x:.4g}" for name, x in means.items() if not name.endswith("_norm")]
        number = f"{step:>{len(str(self._train.steps))}}/{self._train.steps}"
        print("  ".join([f"step {number}", f"{split:5}", *shown]), flush=True)


def open_writers(names: str, run: RunDirectory, config: Mapping, resumed: int) -> list[Callable]:
    """TensorBoard and Weights & Biases, as `config.writers` names them, as functions of a log line;
    none but on process 0. Each is set up as its own documentation says (WANDB_MODE=offline)."""
    asked = {*names.split(",")} - {""}
    for name in asked:
        require_choice("config.writers", name, ("jsonl", "tensorboard", "wandb"))
    if jax.process_index() > 0:
        return []

    def numbers(line):
        values = {name: value for name, value in line.items() if isinstance(value, int | float)}
        return {f"{line['split']}/{name}": x for name, x in values.items() if name != "step"}

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

        client = wandb.init(
            dir=run.path,
            name=run.path.name,
            id=run.read("wandb"),  # a resumed run continues it
            resume="allow",
            reinit=True,  # a study's worker trains several runs, one after the other
            config=config,
        )
        run.write("wandb", client.id)
        writers.append(lambda line: client.log(numbers(line), step=line["step"]))
    return writers


def profile_hook(directory: Path, done: int, config) -> Callable:
    """Traces `config.profile` steps of process 0, after the first three."""
    first = done + 3
    last = min(first + config.profile, config.train.steps)

    def hook(step: int, state: TrainState, sums: Mapping) -> None:
        if first < last and step in (first, last) and jax.process_index() == 0:
            jax.block_until_ready(sums)
            if step == first:
                jax.profiler.start_trace(directory, create_perfetto_trace=True)
            else:
                jax.profiler.stop_trace()

    return hook
