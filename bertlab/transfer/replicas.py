"""Several fine-tunings that differ in seed, order of examples and learning rate alone, as one vectorised program.

A small model leaves an accelerator idle; k of them side by side fill it. (On a CPU separate processes are faster: measured at
0.65 of the speed of one after the other.) Each replica has its own run directory, as `finetune` would leave it, with numbers
that differ from a run's alone by rounding. What is stopped begins again: there are no checkpoints in between.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.config import flatten
from bertlab.data.batches import BatchHash
from bertlab.errors import UserError
from bertlab.files import write_json
from bertlab.train import loop
from bertlab.train.build import Experiment
from bertlab.train.checkpoint import save_params
from bertlab.train.environment import describe_environment
from bertlab.train.metrics import JsonlWriter, MetricSums, first_not_finite
from bertlab.train.optimizers import build_optimizer
from bertlab.train.schedules import learning_rate
from bertlab.train.sharding import build_mesh
from bertlab.train.state import TrainState, build_eval_step, build_train_step, compiled
from bertlab.transfer.finetune import build_finetuning, resolved, sized

MAY_DIFFER = ("seed", "data.seed", "optimizer.learning_rate")


def finetune_replicas(configs: Sequence[ConfigDict], workdirs: Sequence[Path]) -> dict[Path, dict | None]:
    """Fine-tunes by several configs at once, on one device.

    Args:
        configs: of `finetune_config`, which differ in MAY_DIFFER alone.
        workdirs: a run directory for each; those that are finished are left alone.

    Returns:
        By run directory its result, as written to result.json; None for one that diverged, whose failed.txt says where.

    Raises:
        UserError: the configs differ in something else, or as for `finetune`.
    """
    check_alike(configs)
    _, tasks = resolved(configs[0])
    configs = [sized(config, tasks) for config in configs]
    done = {workdir: loop.finished(config, workdir) for config, workdir in zip(configs, workdirs, strict=True)}
    waiting = [(config, workdir) for config, workdir in zip(configs, workdirs) if done[workdir] is None]
    if not waiting:
        return done
    experiments = [build_finetuning(config, tasks, workdir) for config, workdir in waiting]
    for experiment, (config, workdir) in zip(experiments, waiting):
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / "metrics.jsonl").unlink(missing_ok=True)
        write_json(workdir / "config.json", config.to_dict())
        write_json(workdir / "environment.json", describe_environment())
        experiment.tokenizer.save(workdir / "tokenizer")
    # As the loop does, on one device's mesh: what is computed may depend on its kind.
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=1, fsdp=1, tensor=1)))):
        return done | train_together(experiments, [workdir for _, workdir in waiting])


def check_alike(configs: Sequence[ConfigDict]) -> None:
    """Refuses configs that differ in more than seeds and rates."""
    flat = [flatten(config.to_dict()) for config in configs]
    for other in flat[1:]:
        if differ := [key for key in {**flat[0], **other} if flat[0].get(key) != other.get(key) and key not in MAY_DIFFER]:
            raise UserError(
                f"config.{differ[0]} is {flat[0].get(differ[0])!r} in one run and {other.get(differ[0])!r} in another: together"
                f" go runs that differ in {', '.join(MAY_DIFFER)} alone"
            )
    if configs[0].data.buckets:
        raise UserError(
            f"config.data.buckets={configs[0].data.buckets}: runs that go together read rows of one length; set --together=no"
        )
    if configs[0].optimizer.average_after:
        raise UserError(
            f"config.optimizer.average_after={configs[0].optimizer.average_after}: runs that go together begin to average at"
            " different steps; set --together=no"
        )


def train_together(experiments: Sequence[Experiment], workdirs: Sequence[Path]) -> dict[Path, dict | None]:
    """Trains, evaluates and writes; letters: k replicas, in front of every array of state and batches."""
    shared = experiments[0]
    config, program, phase = shared.config, shared.program, shared.phases[0]
    steps, cadence = config.train.steps, config.train
    seeds = jnp.asarray([e.config.seed for e in experiments], jnp.int32)
    rates = np.asarray([e.config.optimizer.learning_rate for e in experiments], np.float32)
    scale = rates / rates[0] if rates[0] else np.ones_like(rates)
    optimizer = build_optimizer(config.optimizer, steps)
    state = begin_together(experiments, optimizer, seeds)

    step_of_one = build_train_step(
        program, optimizer, phase.weights, config.train.micro_batches, steps, frozen=config.optimizer.frozen
    )
    train = jax.jit(jax.vmap(step_of_one), donate_argnums=0)
    evaluate = jax.jit(jax.vmap(build_eval_step(program), in_axes=(0, None, None, None)))
    record = _Record(experiments, workdirs)
    record.write("valid", state, evaluate, 0) if steps else None
    iterators, waiting, began = [iter(e.phases[0].train) for e in experiments], [], time.perf_counter()
    for step in range(1, steps + 1):
        parts = [next(iterator) for iterator in iterators]
        record.hash(parts)
        batch = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        batch["rate_scale"] = np.repeat(scale[:, None], config.data.batch_size, axis=1)
        if step == 1:  # compiled while no clock runs
            train, began = compiled(train.lower(state, batch, seeds)), time.perf_counter()
        state, metrics = train(state, batch, seeds)
        waiting.append(metrics)
        due = loop.itstime(step, steps, cadence.log_every), loop.itstime(step, steps, cadence.eval_every) and step < steps
        if any(due):
            record.add(jax.device_get(waiting), time.perf_counter() - began, batch["documents"].shape[-1])
            waiting.clear()
            if due[0]:
                record.log(step)
            if due[1]:
                record.write("valid", state, evaluate, step)
            began = time.perf_counter()
    for iterator in iterators:
        iterator.close()
    metrics = {split: record.write(split, state, evaluate, steps) for split in shared.evaluations}
    return record.finish(state, metrics, steps)


def begin_together(experiments: Sequence[Experiment], optimizer, seeds) -> TrainState:
    """The state with which each run alone would begin, stacked."""
    program = experiments[0].program
    example = next(iter(experiments[0].evaluations.values()))[0]
    fresh = jax.device_get(jax.jit(jax.vmap(lambda seed: program.init(jax.random.key(seed), example)))(seeds))
    each = [jax.tree.map(lambda x, i=i: x[i], fresh) for i in range(len(experiments))]
    begun = [e.warm_start(params) if e.warm_start else params for e, params in zip(experiments, each)]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *begun)
    return TrainState(jnp.zeros(len(experiments), jnp.int32), params, jax.vmap(optimizer.init)(params), {})


class _Record:
    """What is known of each replica, and its files."""

    def __init__(self, experiments: Sequence[Experiment], workdirs: Sequence[Path]):
        self._experiments, self._workdirs = experiments, workdirs
        self._totals = [loop.Progress() for _ in experiments]
        self._hashes = [BatchHash() for _ in experiments]
        self._sums = [MetricSums() for _ in experiments]
        self._failed: dict[int, str] = {}
        steps = experiments[0].config.train.steps
        self._writers = [JsonlWriter(workdir / "metrics.jsonl", None, steps) for workdir in workdirs]
        self._rates = [learning_rate(e.config.optimizer, steps) for e in experiments]

    def hash(self, batches: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Adds a step's batches to the chains."""
        for chain, batch in zip(self._hashes, batches):
            chain.update(batch)

    def add(self, waiting: Sequence[Mapping[str, Any]], seconds: float, length: int) -> None:
        """Adds metrics of steps over rows of `length`; a replica whose loss is not finite is noted, and the others go on."""
        for i, (experiment, totals) in enumerate(zip(self._experiments, self._totals)):
            phase = experiment.phases[0]
            for metrics in waiting:
                own = jax.tree.map(lambda x, i=i: x[i], metrics)
                totals.tokens += int(own.pop("tokens"))
                if bad := first_not_finite(own):
                    self._failed.setdefault(i, f"{bad} is not finite; lower config.optimizer.learning_rate")
                    continue
                totals.supervised += int(phase.supervised(own))
                totals.flops += phase.flops(own, length)
                self._sums[i].add(own)
            totals.seconds += seconds

    def log(self, step: int) -> None:
        """Writes the mean metrics since the last log line."""
        for i, experiment in enumerate(self._experiments):
            if i not in self._failed:
                self._line(
                    i, step, "train", self._sums[i].means(experiment.weights(step)), {"data_hash": self._hashes[i].value}
                )
            self._sums[i] = MetricSums()

    def write(self, split: str, state: TrainState, evaluate, step: int) -> list[dict[str, float]]:
        """Evaluates a split for all, and writes each one's means."""
        batches = self._experiments[0].evaluations[split]
        found = [jax.device_get(evaluate(state.params, dict(batch), np.int32(i), {})) for i, batch in enumerate(batches)]
        written = []
        for i, experiment in enumerate(self._experiments):
            sums = MetricSums()
            own = [jax.tree.map(lambda x, i=i: x[i], (metrics, outputs)) for metrics, _, outputs in found]
            if any(first_not_finite(metrics) for metrics, _ in own):
                self._failed.setdefault(i, f"the {split} loss is not finite; lower config.optimizer.learning_rate")
            written.append({})
            if i in self._failed:
                continue
            for metrics, _ in own:
                sums.add(metrics)
            written[i] = sums.means(experiment.weights(step)) | experiment.score(split, [outputs for _, outputs in own])
            self._line(i, step, split, written[i], {})
        return written

    def _line(self, i: int, step: int, split: str, means: Mapping[str, float], more: Mapping[str, Any]) -> None:
        rate = {"learning_rate": float(self._rates[i](max(step - 1, 0)))}
        self._writers[i].write({"step": step, "split": split, **means, **self._totals[i].axes(), **rate, **more})

    def finish(self, state: TrainState, metrics: Mapping[str, list[dict]], steps: int) -> dict[Path, dict | None]:
        """Writes parameters and results."""
        params, results = jax.device_get(state.params), {}
        for i, workdir in enumerate(self._workdirs):
            self._writers[i].close()
            if i in self._failed:
                (workdir / "failed.txt").write_text(f"error: {self._failed[i]}\n", encoding="utf-8")
                results[workdir] = None
                continue
            own = jax.tree.map(lambda x, i=i: x[i], params)
            save_params(workdir, own)
            results[workdir] = {
                "step": steps,
                "parameters": sum(x.size for x in jax.tree.leaves(own)),
                **self._totals[i].axes(),
                "replicas": len(self._workdirs),  # whose time the seconds are
                "data_hash": self._hashes[i].value,
                "metrics": {split: of_split[i] for split, of_split in metrics.items()},
            }
            write_json(workdir / "result.json", results[workdir])
        return results
