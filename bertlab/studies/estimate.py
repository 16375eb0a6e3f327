"""What runs will cost, before they run: tokens and FLOPs from the config, time from finished runs or this machine.

Tokens count rows as full; they nearly are. FLOPs are counted as in training (`Phase.flops`), on made-up rows. Time is FLOPs at
the rate of the study's finished runs, or else at a share of this machine's matrix products. It is rough, and leaves out
preparation, compilation and evaluation.
"""

import dataclasses
import heapq
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
from ml_collections import ConfigDict

from bertlab.data.formats import format_of
from bertlab.data.parallel import available_cores
from bertlab.models.presets import model_shape
from bertlab.objectives.judging import prediction_flops
from bertlab.run import Run
from bertlab.studies.launchers import Launcher
from bertlab.studies.study import RunSpec
from bertlab.train.budget import mean_cost
from bertlab.train.build import build_phases
from bertlab.train.cost import body_flops
from bertlab.train.made_up import MadeUpRows, made_up_program

# The share of a device's matrix-product rate that a run reaches. On a CPU BERT-Tiny has 20 to 34 % (experiments/speed) and
# scale=tiny 50; elsewhere it is not measured.
SHARES_OF_PRODUCTS = {"cpu": 0.3}
OTHER_SHARE = 0.15
ROWS = 8


@dataclasses.dataclass(frozen=True)
class Cost:
    """Tokens read, without padding, and forward plus backward FLOPs."""

    tokens: float = 0.0
    flops: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.flops + other.flops)


def pretraining_cost(config: ConfigDict) -> Cost:
    """The cost of a pretraining. With `train.budget` set, `train.steps` counts.

    Raises:
        UserError: The config is wrong.
    """
    if not config.train.steps or not config.data.corpus:
        return Cost()
    program, size = made_up_program(config), config.data.tokenizer.vocab_size
    made_up = not format_of(config.data).is_stream
    total, begin = Cost(), 0
    for phase in build_phases(config, program, lambda data: MadeUpRows(data, size)):
        tokens = float(phase.data.batch_size * (phase.data.pack_length or phase.data.seq_len))
        if made_up:
            share = (begin / config.train.steps, phase.end / config.train.steps)
            flops = mean_cost(phase, "flops", config.seed, share, batches=1)
        else:  # every position is asked
            asked = [(name, o) for name, o in phase.program.objectives.items() if o.asks == "tokens"]
            flops = body_flops(phase) + tokens * sum(prediction_flops(name, o, program.body.config) for name, o in asked)
        steps, begin = phase.end - begin, phase.end
        total += Cost(steps * tokens, steps * flops)
    return total


def transfer_cost(run: RunSpec, transfers: Mapping[tuple[str, str], ConfigDict]) -> Cost:
    """The cost of a run's adaptations and fine-tunings, of their configs from `bertlab.studies.checks.check_transfers`."""
    total = Cost()
    for (kind, _), config in transfers.items():
        if kind == "finetune":
            total += _finetuning_cost(config)
        elif "adapt" not in run.shares:
            total += pretraining_cost(config)
    return total


def _finetuning_cost(config: ConfigDict) -> Cost:
    tokens = float(config.train.steps * config.data.batch_size * config.data.seq_len)
    frozen = config.optimizer.frozen or config.optimizer.thaw == "head"
    flops = model_shape(config.model, vocab_size=1).flops_per_token(config.data.seq_len)
    return Cost(tokens, 0.0 if config.transfer.features else tokens * flops * (1 / 3 if frozen else 1))


def flops_per_second(directories: list[Path], launcher: Launcher) -> tuple[float, str]:
    """(FLOP/s of a run that is alone, its source): from finished runs, or a share of this machine's products.

    Runs that share this machine's cores share that rate (`Launcher.share`); other runs each have it, as that of one device.
    """
    share = launcher.share(1)
    done = [run for run in map(Run, directories) if run.result.exists()]
    spent = [(run.result.read(), run.job.get({}).get("jobs", 1) if share else 1) for run in done]
    spent = [(of["flops"] * jobs, of["seconds"]) for of, jobs in spent if of.get("flops") and of.get("seconds")]
    where = "" if launcher.is_here else ", if each had a machine like this one to itself"
    if spent:
        flops, seconds = (sum(column) for column in zip(*spent))
        return flops / seconds, f"at the rate of the finished runs{where}"
    products = machine_rate()
    platform = jax.devices()[0].platform
    reached = SHARES_OF_PRODUCTS.get(platform, OTHER_SHARE)
    source = f"roughly, at {100 * reached:.0f} % of this machine ({platform}: {products / 1e9:,.0f} GFLOP/s in matrix products)"
    return reached * products, source + where


def schedule(
    seconds: Mapping[str, float], waits: Mapping[str, set[str]], jobs: int, share: Callable[[int], float] = lambda running: 1.0
) -> float:
    """How long the runs take together, in seconds.

    Args:
        seconds: Run -> its duration if it is alone, in starting order.
        waits: Run -> the runs that must end before it starts; those not in `seconds` have already ended.
        jobs: Runs at a time.
        share: Number of runs that are running -> how fast each is beside one that is alone.
    """
    place = {name: number for number, name in enumerate(seconds)}
    needs = {name: {of for of in waits[name] if of in seconds} for name in seconds}
    followers: dict[str, list[str]] = {}
    for name, needed in needs.items():
        for of in needed:
            followers.setdefault(of, []).append(name)
    ready = [(place[name], name) for name in seconds if not needs[name]]  # heaps: sorted, and so is an empty list
    # A run ends when `worked`, the seconds that each of the running ones has had for itself, has grown by its own.
    now, worked, running = 0.0, 0.0, []
    while ready or running:
        while ready and len(running) < jobs:
            _, name = heapq.heappop(ready)
            heapq.heappush(running, (worked + seconds[name], place[name], name))
        speed, before = share(len(running)), worked
        worked, _, ended = heapq.heappop(running)
        now += (worked - before) / speed
        for name in followers.get(ended, ()):
            needs[name].discard(ended)
            if not needs[name]:
                heapq.heappush(ready, (place[name], name))
    return now


def machine_rate() -> float:
    """FLOP/s of matrix products on one device; on a CPU by its own time, so that other work on the cores slows nothing."""
    on_cpu = jax.devices()[0].platform == "cpu"
    return product_rate(clock=time.process_time) * available_cores() if on_cpu else product_rate()


def product_rate(
    size: int = 1024, dtype: str = "float32", times: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """FLOP/s of a matrix product on one device, the best of a few."""
    multiply = jax.jit(lambda a: a @ a)
    a = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    multiply(a).block_until_ready()
    best = float("inf")
    for _ in range(times):
        begin = clock()
        multiply(a).block_until_ready()
        best = min(best, clock() - begin)
    return 2 * size**3 / best
