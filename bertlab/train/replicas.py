"""Several runs that differ in seed, order of the text and learning rate alone, as one vectorised program.

A small model leaves an accelerator idle; k of them side by side fill it. (On a CPU separate processes are faster: measured at
0.65 of the speed of one after the other.) Each replica has its own run directory, as the loop would leave it, with numbers
that differ from a run's alone by rounding; its seconds are its share of the program's. What is stopped begins again: there
are no checkpoints in between.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.config import flatten
from bertlab.errors import UserError
from bertlab.files import write_json
from bertlab.train.build import Experiment
from bertlab.train.checkpoint import save_params
from bertlab.train.layer_groups import layer_plan
from bertlab.train.loop import data_hash, describe, finished, itstime
from bertlab.train.metrics import open_writers
from bertlab.train.optimizers import build_optimizer
from bertlab.train.record import Diverged, Record
from bertlab.train.sharding import build_mesh
from bertlab.train.state import TrainState, build_eval_step, build_train_step, compiled, fresh_state

MAY_DIFFER = ("seed", "data.seed", "optimizer.learning_rate")


def train_replicas(
    configs: Sequence[ConfigDict], workdirs: Sequence[Path], build: Callable[[ConfigDict, Path], Experiment]
) -> dict[Path, dict | None]:
    """Trains by several configs at once, on one device.

    Args:
        configs: whole configs that differ in MAY_DIFFER alone.
        workdirs: a run directory for each; those that are finished are left alone.
        build: composes the run of a config and its directory.

    Returns:
        By run directory its result, as written to result.json; None for one that diverged, whose failed.txt says where.

    Raises:
        UserError: the configs differ in something else, or ask for what cannot go together; or as for `build`.
    """
    check_alike(configs)
    done = {workdir: finished(config, workdir) for config, workdir in zip(configs, workdirs, strict=True)}
    waiting = [(config, workdir) for config, workdir in zip(configs, workdirs) if done[workdir] is None]
    if not waiting:
        return done
    for _, workdir in waiting:
        begun = [int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*") if path.name.isdigit()]
        if max(begun, default=0) > 0:
            raise UserError(
                f"{workdir} has reached step {max(begun)} by itself, and runs that go together begin at 0; set --together=no to"
                " go on, or delete it"
            )
        shutil.rmtree(workdir / "checkpoints", ignore_errors=True)  # of a replica that was killed before its result was there
    experiments = [build(config, workdir) for config, workdir in waiting]
    for experiment, (_, workdir) in zip(experiments, waiting):
        workdir.mkdir(parents=True, exist_ok=True)
        describe(experiment, workdir)
    # As the loop does, on one device's mesh: what is computed may depend on its kind.
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=1, fsdp=1, tensor=1)))):
        return done | _train(experiments, [workdir for _, workdir in waiting])


def check_alike(configs: Sequence[ConfigDict]) -> None:
    """Refuses configs that differ in more than seeds and rates, and those whose steps differ from run to run."""
    flat = [flatten(config.to_dict()) for config in configs]
    for other in flat[1:]:
        if differ := [key for key in {**flat[0], **other} if flat[0].get(key) != other.get(key) and key not in MAY_DIFFER]:
            raise UserError(
                f"config.{differ[0]} is {flat[0].get(differ[0])!r} in one run and {other.get(differ[0])!r} in another: together"
                f" go runs that differ in {', '.join(MAY_DIFFER)} alone"
            )
    if reason := why_apart(configs[0]):
        raise UserError(f"{reason}; set --together=no")


def why_apart(config: ConfigDict) -> str | None:
    """Why runs by this config cannot go together; None if they can."""
    reasons = {
        "data.buckets": "read rows of one length",
        "data.stream.vary_length": "read rows of one length",
        "optimizer.average_after": "would begin to average at different steps",
        "train.budget": "are given config.train.steps",
        "train.phases": "have one phase",
        "profile": "write no trace",
    }
    values = flatten(config.to_dict())
    found = [f"config.{key}={values[key]}: runs that go together {why}" for key, why in reasons.items() if values.get(key)]
    return "; ".join(found) or None


def _train(experiments: Sequence[Experiment], workdirs: Sequence[Path]) -> dict[Path, dict | None]:
    """`bertlab.train.loop.run` for all of them; one that diverges is noted, and the others go on."""
    steps, cadence = experiments[0].config.train.steps, experiments[0].config.train
    with contextlib.closing(_Session(experiments, workdirs)) as session:
        if steps:
            session.evaluate("valid")
            session.compile_training()
        session.start_clock()
        while session.step < steps:
            session.advance()
            log, evaluate = (itstime(session.step, steps, every) for every in (cadence.log_every, cadence.eval_every))
            if not (log or evaluate):
                continue
            session.fetch()
            if log:
                session.log()
            if evaluate and session.step < steps:
                session.evaluate("valid")
            session.start_clock()
        return session.finish({split: session.evaluate(split) for split in experiments[0].evaluations})


class _Session:
    """State and steps with an axis of the replicas in front of every array, and a record for each replica."""

    def __init__(self, experiments: Sequence[Experiment], workdirs: Sequence[Path]):
        shared = experiments[0]
        config, program, self.phase = shared.config, shared.program, shared.phases[0]
        self.experiments, self.workdirs, self.steps, self.step = experiments, workdirs, config.train.steps, 0
        optimizer = build_optimizer(config.optimizer, self.steps)
        self.seeds = jnp.asarray([e.config.seed for e in experiments], jnp.int32)
        rates = np.asarray([e.config.optimizer.learning_rate for e in experiments], np.float32)
        scale = rates / rates[0] if rates[0] else np.ones_like(rates)
        self.rate_scale = np.repeat(scale[:, None], config.data.batch_size, axis=1)
        self.state = _begin(experiments, optimizer, self.seeds)
        self.fresh_carry = jax.tree.map(jnp.zeros_like, self.state.carry)
        step = build_train_step(
            program, optimizer, self.phase.weights, config.train.micro_batches, self.steps, frozen=config.optimizer.frozen
        )
        self.train = jax.jit(jax.vmap(step), donate_argnums=0)
        self.evaluate_one = jax.jit(jax.vmap(build_eval_step(program), in_axes=(0, None, None, 0)))
        self.iterators = [iter(e.phases[0].train) for e in experiments]
        self.waiting: list = []  # (step, metrics on the device, example ids, length of rows) since the last fetch
        self.failed: dict[int, str] = {}
        params = _of(self.state.params, 0)
        self.records = [
            Record(
                experiment,
                layer_plan(experiment.config.optimizer, self.steps, params).rate,
                open_writers(config.writers, workdir, None, self.steps),
                show=False,
            )
            for experiment, workdir in zip(experiments, workdirs)
        ]

    def compile_training(self) -> None:
        """Compiled while no clock runs."""
        example = next(iter(self.experiments[0].evaluations.values()))[0]
        self.train = compiled(self.train.lower(self.state, self._stacked([example] * len(self.records)), self.seeds))

    def _stacked(self, batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]} | {"rate_scale": self.rate_scale}

    def start_clock(self) -> None:
        """Training time counts from here to the next fetch."""
        self.since = time.perf_counter()

    def advance(self) -> None:
        """One update of all, without waiting for it."""
        batch = self._stacked([next(iterator) for iterator in self.iterators])
        self.state, metrics = self.train(self.state, batch, self.seeds)
        self.step += 1
        self.waiting.append((self.step, metrics, batch["example_id"], batch["documents"].shape[-1]))

    def fetch(self) -> None:
        """Waits for the device, and adds the waiting steps' metrics to the records."""
        fetched = jax.device_get(self.waiting)
        share = (time.perf_counter() - self.since) / len(self.records)
        self.waiting.clear()

        def add(i: int, record: Record) -> None:
            record.progress.seconds += share
            for step, metrics, example_ids, length in fetched:
                record.add(self.phase, step, _of(metrics, i), example_ids[i], length)

        self._of_each(add)

    def _of_each(self, act: Callable[[int, Record], dict | None]) -> list[dict | None]:
        """What it returns for each replica that has not diverged, None for the others."""
        found: list[dict | None] = [None] * len(self.records)
        for i, record in enumerate(self.records):
            if i in self.failed:
                continue
            try:
                found[i] = act(i, record)
            except Diverged as error:
                self.failed[i] = str(error)
        return found

    def log(self) -> None:
        """Writes the mean metrics since the last log line."""
        self._of_each(lambda i, record: record.log(self.step, data_hash(self.iterators[i])))

    def evaluate(self, split: str) -> list[dict | None]:
        """Mean metrics of each over a held-out split."""
        carry, results = self.fresh_carry, []
        for index, batch in enumerate(self.experiments[0].evaluations[split]):
            metrics, carry, outputs = self.evaluate_one(self.state.params, dict(batch), np.int32(index), carry)
            results.append((metrics, outputs))
        results = jax.device_get(results)
        means = self._of_each(lambda i, record: record.evaluated(self.step, split, _of(results, i)))
        losses = [of["loss"] for of in means if of is not None]
        if losses:
            said = f"loss {min(losses):.4g} to {max(losses):.4g} of {len(losses)} runs"
            print(f"step {self.step:>{len(str(self.steps))}}/{self.steps}  {split:5}  {said}", flush=True)
        return means

    def finish(self, metrics: Mapping[str, Sequence[dict | None]]) -> dict[Path, dict | None]:
        """Writes parameters and results."""
        params, results = jax.device_get(self.state.params), {}
        for i, (workdir, record) in enumerate(zip(self.workdirs, self.records)):
            failure = workdir / "failed.txt"
            if i in self.failed:
                failure.write_text(f"{self.failed[i]}\n", encoding="utf-8")
                results[workdir] = None
                continue
            failure.unlink(missing_ok=True)
            own = _of(params, i)
            save_params(workdir, own)
            parameters = sum(x.size for x in jax.tree.leaves(own))
            of_splits = {split: of[i] for split, of in metrics.items()}
            result = record.result(self.step, parameters, data_hash(self.iterators[i]), of_splits)
            results[workdir] = result | {"replicas": len(self.records)}
            write_json(workdir / "result.json", results[workdir])
        return results

    def close(self) -> None:
        """Releases threads and files."""
        for resource in (*self.iterators, *self.records):
            resource.close()


def _of(tree, i: int):
    """One replica's part of a tree."""
    return jax.tree.map(lambda x: x[i], tree)


def _begin(experiments: Sequence[Experiment], optimizer, seeds) -> TrainState:
    """The state with which each run alone would begin, stacked."""
    program = experiments[0].program
    example = next(iter(experiments[0].evaluations.values()))[0]
    fresh = jax.jit(jax.vmap(lambda seed: fresh_state(program, optimizer, seed, example)))(seeds)
    if experiments[0].warm_start is None:
        return fresh
    params = jax.device_get(fresh.params)
    begun = [experiment.warm_start(_of(params, i)) for i, experiment in enumerate(experiments)]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *begun)
    return TrainState(fresh.step, params, jax.vmap(optimizer.init)(params), fresh.carry)
