"""What a run will cost, before it runs: tokens and FLOPs from its config, time from what this machine or finished runs show.

Tokens count rows as full, which they nearly are. FLOPs are those that training counts itself (`Phase.flops`), on made-up rows.
Time is what FLOPs take at the rate of this study's finished runs, or else at a share of this machine's matrix products; it is
rough, and leaves out preparation, compilation and evaluation.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.formats import make_row
from bertlab.files import read_json
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives import Vocabulary
from bertlab.objectives.program import Program
from bertlab.studies.study import RunSpec
from bertlab.studies.worker import adaptation, existing_run, finetuning
from bertlab.train.budget import mean_cost
from bertlab.train.build import build_phases, check_config
from bertlab.train.lora import build_adapter
from bertlab.transfer.adapt import steps_of
from bertlab.transfer.finetune import pretraining_options
from bertlab.transfer.recipes import find_recipe
from bertlab.transfer.tasks import TaskData, find_task, load_tasks

# Of this machine's matrix products, what a small run reaches on one CPU core (bert-tiny in `make demo`: about a seventh).
SHARE_OF_PRODUCTS = 0.15
ROWS = 8


@dataclasses.dataclass(frozen=True)
class Cost:
    """Tokens that are read, padding not counted, and forward and backward FLOPs."""

    tokens: float = 0.0
    flops: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.tokens + other.tokens, self.flops + other.flops)


def pretraining_cost(config: ConfigDict) -> Cost:
    """Of a whole pretraining; nothing for one of no steps. A budget is counted as the `train.steps` beside it.

    Raises:
        UserError: the config cannot be.
    """
    if not config.train.steps or not config.data.corpus:
        return Cost()
    built = check_config(config)
    size = config.data.tokenizer.vocab_size
    # Ids as a tokenizer of ours has them; what they are does not matter to the count.
    vocabulary = Vocabulary(size, 0, 1, 2, 3, 4, counts=(1,) * size, continues=(False,) * size)
    stream, made_up = config.data.format == "stream", config.data.format not in ("stream", "cooccurrence")
    body = build_body(model_shape(config.model, size))
    program = Program(
        body, built, vocabulary, stream=stream, stateful=config.model.stateful, adapter=build_adapter(config.lora)
    )
    total, begin = Cost(), 0
    for phase in build_phases(config, program, lambda data: MadeUpRows(data, size)):
        tokens = float(phase.data.batch_size * phase.data.seq_len)
        if made_up:
            share = (begin / config.train.steps, phase.end / config.train.steps)
            flops = mean_cost(phase, "flops", config.seed, share, batches=1)
        else:  # every position is asked
            asked = sum(o.flops_per_prediction(body.config) for o in phase.program.objectives.values() if o.predicts_tokens)
            flops = phase.flops_per_step() + tokens * asked
        steps, begin = phase.end - begin, phase.end
        total += Cost(steps * tokens, steps * flops)
    return total


class MadeUpRows:
    """Endless batches of `config.data`: pairs of segments of random tokens, rows full; each iterator begins anew."""

    def __init__(self, data: ConfigDict, vocab_size: int):
        self.data, self.vocab_size = data, vocab_size

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        rng = np.random.default_rng(0)
        length, half = self.data.seq_len, self.data.seq_len // 2
        segments = np.arange(length) > half
        while True:
            made = []
            for number in range(self.data.batch_size):
                tokens = rng.integers(5, self.vocab_size, length)
                tokens[[0, half, -1]] = (2, 3, 3)
                made.append(make_row(length, 0, tokens, segments, np.ones(length), number % 2, (number, 0), number % 2))
            yield {name: np.stack([row[name] for row in made]) for name in made[0]}


def transfer_cost(run: RunSpec, config: ConfigDict) -> Cost:
    """Of a run's adaptations and fine-tunings together, tasks' examples counted where passes over them are asked for.

    Args:
        run: The run.
        config: Its pretraining's.

    Raises:
        UserError: a task, a recipe or a file is wrong.
    """
    given = existing_run(run.config)
    pretraining = ConfigDict(read_json(given / "config.json")) if given else config
    total = Cost()
    for task in run.downstream if not run.averages else ():
        if run.adapt and "adapt" not in run.shares:
            total += _adaptation_cost(run, task, pretraining)
        total += _finetuning_cost(run, task, pretraining)
    return total


def _finetuning_cost(run: RunSpec, task: str, pretraining: ConfigDict) -> Cost:
    arguments = finetuning(run, task)
    names = arguments["task"]
    defaults = {"train.steps": 400, "data.batch_size": 16, "data.seq_len": 48}
    recipe = find_recipe(arguments["recipe"], find_task(names.partition("+")[0]).kind)
    settings = {key: _number(value) for key, value in {**defaults, **recipe, **arguments["overrides"]}.items()}
    batch, steps = settings["data.batch_size"], settings["train.steps"]
    if not steps:
        examples = sum(len(data.examples["train"]) for data in _data(names, arguments["overrides"], pretraining).values())
        steps = int(examples * float(settings.get("transfer.epochs", 0)) / batch)
    tokens = float(steps * batch * settings["data.seq_len"])
    frozen = settings.get("optimizer.frozen") or settings.get("optimizer.thaw") == "head"
    flops = 0.0 if settings.get("transfer.features") else _body_flops(pretraining, settings["data.seq_len"])
    return Cost(tokens, tokens * flops * (1 / 3 if frozen else 1))


def _adaptation_cost(run: RunSpec, task: str, pretraining: ConfigDict) -> Cost:
    arguments = adaptation(run, task)
    config = pretraining.copy_and_resolve_references()
    settings = {key: _number(value) for key, value in arguments["overrides"].items()}
    for key in ("batch_size", "seq_len"):
        config.data[key] = settings.get(f"data.{key}", config.data[key])
    steps = settings.get("train.steps")
    if steps is None:
        [data] = _data(arguments["task"], arguments["overrides"], pretraining).values()
        steps = steps_of(config, data.examples["train"], arguments["epochs"])
    config.train.steps, config.train.phases, config.train.budget = steps, "", ""
    return pretraining_cost(config)


def _data(names: str, overrides: Mapping[str, Any], pretraining: ConfigDict) -> dict[str, TaskData]:
    options = {key.removeprefix("task_data."): value for key, value in overrides.items() if key.startswith("task_data.")}
    found = load_tasks(names, {**options, "pretraining": pretraining_options(pretraining.data.to_dict())})
    return {name: data for name, (_, data) in found.items()}


def _body_flops(pretraining: ConfigDict, seq_len: int) -> float:
    return model_shape(pretraining.model, vocab_size=1).flops_per_token(seq_len)


def _number(value: Any) -> Any:
    """An override given as text, as a number where it is one."""
    try:
        return value if not isinstance(value, str) else float(value) if "." in value or "e" in value else int(value)
    except ValueError:
        return value


def flops_per_second(directories: list[Path]) -> tuple[float, str]:
    """(rate of one run, where it comes from): of the finished runs, else a share of this machine's matrix products."""
    done = [read_json(path / "result.json") for path in directories if (path / "result.json").exists()]
    spent = [(result["flops"], result["seconds"]) for result in done if result.get("flops") and result.get("seconds")]
    if spent:
        flops, seconds = (sum(column) for column in zip(*spent))
        return flops / seconds, "at the rate of the finished runs"
    products = product_rate()
    where = f"{jax.devices()[0].platform}: {products / 1e9:,.0f} GFLOP/s in matrix products"
    return SHARE_OF_PRODUCTS * products, f"roughly, at {100 * SHARE_OF_PRODUCTS:.0f} % of this machine ({where})"


def product_rate(size: int = 1024) -> float:
    """FLOP/s of float32 matrix products on one device, the best of a few."""
    multiply = jax.jit(lambda a: a @ a)
    a = jnp.ones((size, size), jnp.float32)
    multiply(a).block_until_ready()
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        multiply(a).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best
