"""The training loop: one file, in the order of a run. Pretraining and fine-tuning both run through it."""

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertlab import alive, keys
from bertlab.config import as_saved, base_config, flatten
from bertlab.data.batches import combined_hash
from bertlab.data.facts import constant_labels, unique_note
from bertlab.errors import RunFailed, UserError
from bertlab.interrupts import held
from bertlab.progress import doing, over, tell
from bertlab.run import Run
from bertlab.train import sources
from bertlab.train.budget import steps_within
from bertlab.train.build import Experiment, begun_from, build_pretraining
from bertlab.train.checkpoint import Checkpoints, OfRun, needs_repair
from bertlab.train.choice import with_attention
from bertlab.train.code import require_same_code
from bertlab.train.environment import describe_environment
from bertlab.train.keep import kept_steps
from bertlab.train.layer_groups import layer_plan, stage_table
from bertlab.train.metrics import open_writers
from bertlab.train.optimizers import build_optimizer, evaluation_params, observe
from bertlab.train.processes import alone, company, gather, is_first, who
from bertlab.train.profile import Trace
from bertlab.train.record import Diverged, Progress, Record
from bertlab.train.schedules import warmup_steps
from bertlab.train.sharding import build_mesh, on_host, put_batch, replicated
from bertlab.train.state import build_eval_step, compile_lowered, init_state, lower_train_step, state_shardings
from bertlab.train.width import heads_note, update_factors


def train(config, workdir) -> dict:
    """Pretrains a config. Call it again with the same arguments to resume.

    Args:
        config: a whole experiment config.
        workdir: the run directory.

    Returns:
        The result, as written to result.json.

    Raises:
        UserError: the config or workdir is unusable or another process's, or training diverged.
        RunFailed: the run's own files were changed or removed meanwhile.
        SystemExit: after a saved checkpoint, with status 0 after SIGTERM and 130 after Ctrl-C.
    """
    config, workdir = begun_from(config), Path(workdir)
    with alone(workdir):
        if (result := finished(config, workdir)) is not None:
            sources.require_same(Run(workdir), result.get("sources", {}), sources.of_start(config))
            return result
        experiment = build_pretraining(config)
        facts = experiment.data_facts
        constant = (f"{name}'s label never varies: {said}" for name, said in constant_labels(facts).items())
        for said in (heads_note(config.model), unique_note(facts, config.data.unique_tokens), *constant):
            if said:
                print(said, flush=True)
        if config.train.budget:
            experiment = within_budget(experiment, workdir)
        return run(experiment, workdir)


def within_budget(experiment: Experiment, workdir: Path) -> Experiment:
    """The experiment with the steps that fit its budget; a run that has started keeps its number of steps."""
    config, begun = experiment.config.copy_and_resolve_references(), Run(workdir).config
    if begun.exists():
        config.train.steps = begun.read()["train"]["steps"]
    else:
        config.train.steps = steps_within(experiment, lambda: seconds_per_step(experiment))
    print(f"config.train.budget={config.train.budget} is {config.train.steps} steps", flush=True)
    return build_pretraining(config)


def seconds_per_step(experiment: Experiment, steps: int = 10) -> float:
    """Mean time of a few training steps after compilation."""
    experiment = with_attention(experiment)
    with tempfile.TemporaryDirectory() as directory, contextlib.closing(Session(experiment, Path(directory))) as session:
        train_steps = session.compile_training()
        session.count(train_steps, 2)  # these warm up
        return session.count(train_steps, steps).seconds / steps


def run(experiment: Experiment, workdir: Path) -> dict:
    """Runs a composed experiment from the state of its directory to the end; see `train`."""
    experiment = with_warmup(with_attention(experiment), workdir)
    config = experiment.config
    steps, cadence = config.train.steps, config.train
    kept = kept_steps(cadence.keep, steps)

    # 1. Mesh and optimiser; state and data position, restored or fresh.
    with (
        company(Diverged, Refused),
        contextlib.closing(Session(experiment, workdir)) as session,
        contextlib.closing(Trace(config.profile, Run(workdir).profile, session.step, steps)) as trace,
        alive.telling(warn),
        company(Diverged),  # again: closing the rest would wait for processes that are gone
    ):
        # 2. The run directory describes itself before anything is compiled.
        if is_first():
            session.described = describe(experiment, workdir)
            print(devices_note(session.mesh), flush=True)
            for line in stage_table(config.optimizer, steps, session.state.params):
                print(line, flush=True)
        eval_step = session.compile_evaluation()
        if session.step == 0 and steps > 0:
            session.evaluate("valid", eval_step)
        elif session.record.progress.evaluates:
            session.observe(session.evaluate("valid", eval_step))
            session.record.progress.evaluates = False
        train_steps = session.compile_training() if session.step < steps else None

        # 3. Train. The host waits for the device only when something is due.
        trace.begin_at(session.step)
        session.start_clock()
        with StopSignal() as stop:
            while session.step < steps:
                with trace.step(session.step + 1):
                    session.advance(train_steps)
                tell("training", session.step, steps)
                log, evaluate, save = (
                    itstime(session.step, steps, n) for n in (cadence.log_every, cadence.eval_every, cadence.checkpoint_every)
                )
                save = save or session.step in kept
                next_phase, stopping = session.phase is not experiment.phase(session.step), stop.wanted(session.step)
                if not (log or evaluate or save or next_phase or stopping or trace.due(session.step)):
                    continue
                session.fetch()
                trace.end_at(session.step)
                if log or next_phase:
                    session.log()
                if next_phase:
                    session.enter(experiment.phase(session.step))
                if evaluate and session.step < steps:
                    means = None if stopping else session.evaluate("valid", eval_step, stop.is_here)
                    if means is not None:
                        session.observe(means)
                    session.record.progress.evaluates = means is None
                    stopping = stopping or stop.is_here()
                if save or stopping:
                    session.save()
                if stopping:
                    session.say(
                        f"stopped by {stop.name} at step {session.step} and saved; run the same command again to continue"
                    )
                    raise SystemExit(stop.status)
                if next_phase:
                    train_steps = session.compile_training()
                trace.begin_at(session.step)
                session.start_clock()

        # 4. Evaluate every held-out split and save. The result comes last: it marks the run as finished.
        metrics = {split: session.evaluate(split, eval_step) for split in experiment.evaluations}
        session.save()
        result = session.result(metrics)
    if is_first():
        Run(workdir).finish(result, session.known())
    return result


def devices_note(mesh: jax.sharding.Mesh) -> str:
    """What a run computes on: its devices and processes, and the sizes that its mesh came to have."""
    number = lambda of, what: f"{of:,} {what}{'' if of == 1 else 'es' if what[-1] == 's' else 's'}"
    sizes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    kind = mesh.devices.flat[0].device_kind
    return f"on {number(mesh.size, f'{kind} device')} of {number(jax.process_count(), 'process')}, as a mesh of {sizes}"


def warn(line: str) -> None:
    """Prints a line about this process on standard error."""
    print(f"{who()}: {line}", file=sys.stderr, flush=True)


def with_warmup(experiment: Experiment, workdir: Path) -> Experiment:
    """The experiment with a number for `optimizer.warmup_steps` if it is unset; a run that has started keeps its number."""
    config, begun = experiment.config, Run(workdir).config
    if config.optimizer.warmup_steps is not None:
        return experiment
    config = config.copy_and_resolve_references()
    theirs = begun.read()["optimizer"]["warmup_steps"] if begun.exists() else None
    config.optimizer.warmup_steps = warmup_steps(config.optimizer, config.train.steps) if theirs is None else theirs
    return dataclasses.replace(experiment, config=config)


def describe(experiment: Experiment, workdir: Path) -> dict[Path, dict[str, Any]]:
    """Writes the files that describe a run, and returns them (`Run.described`)."""
    directory = Run(workdir)
    directory.begin(experiment.config.to_dict())
    directory.environment.write(describe_environment(experiment.config))
    if experiment.data_facts is not None:
        directory.data.write(experiment.data_facts)
    if experiment.classes is not None:
        directory.classes.write(experiment.classes)
    experiment.tokenizer.save(directory.tokenizer)
    return directory.described()


class Refused(UserError):
    """What all processes of a run refuse at the same place."""


class Session:
    """One process's part of a run: state, data position and totals, and the periodic actions on them."""

    def __init__(self, experiment: Experiment, workdir: Path):
        config, program = experiment.config, experiment.program
        self.experiment, self.workdir = experiment, workdir
        self.described: dict[Path, dict[str, Any]] = {}  # of the first process, once `run` has written them
        self.mesh = build_mesh(config.mesh)
        self.example = next(iter(experiment.evaluations.values()))[0]
        self.optimizer = build_optimizer(config.optimizer, config.train.steps, update_factors(program, self.example))
        kept = kept_steps(config.train.keep, config.train.steps)
        self.checkpoints = Checkpoints(Run(workdir).checkpoints, config.train.keep_checkpoints, kept)
        self.seed = np.int32(config.seed)
        self.waiting: list = []  # (step, metrics on the device, example ids, length of rows) since the last fetch

        begin = lambda: init_state(program, self.optimizer, self.mesh, config.seed, self.example)
        latest = self.checkpoints.latest_whole()
        before: OfRun = Run(workdir).at_step(latest).get({}) if is_first() and latest is not None else {}
        self._require_same(before)
        self.phase = experiment.phase(latest or 0)
        self.iterator = iter(self.phase.train)
        if latest is not None:  # (a) restored, with its data position
            shapes = jax.eval_shape(begin)
            shardings = state_shardings(program, self.optimizer, self.mesh, self.example, shapes)
            self.state, position, saved = self.checkpoints.restore(latest, shapes, shardings)
            self.iterator.set_state(position)
            progress = Progress(**saved)
            self.say(f"going on with {workdir} from step {latest}")
        else:  # (b) fresh, (c) warm-started from another run's parameters
            self.state, progress = begin(), Progress()
            if experiment.warm_start is not None:
                placement = jax.tree.map(lambda x: x.sharding, self.state.params)
                fresh = on_host(self.state.params)
                if sources.INIT_STEP in self.sources:  # of states that are stored: there is nothing more to read of the run
                    params, read = experiment.warm_start(fresh, None), {}
                else:
                    params, read = sources.read_start(config, lambda step: experiment.warm_start(fresh, step))
                params, self.sources = jax.device_put(params, placement), self.sources | read
                self.state = dataclasses.replace(self.state, params=params)
        self.step = latest or 0
        self.costs = self._costs_up_to(latest, before) if is_first() else {}
        length = before.get("metrics", {}).get("bytes")
        self.writers = open_writers(config, workdir, latest, length) if is_first() else []
        self.record = Record(
            experiment,
            layer_plan(config.optimizer, config.train.steps, self.state.params).rate,
            self.writers,
            progress,
            self.checkpoints.latest_path,
            show=is_first(),
        )

    def _settings(self) -> dict:
        """The numbers in config.json that a run may have computed."""
        config = self.experiment.config
        return {"train.steps": config.train.steps, "optimizer.warmup_steps": config.optimizer.warmup_steps}

    def _require_same(self, before: OfRun) -> None:
        """Refuses, in all processes, to go on with other settings or sources, or with processes that read different ones.

        The step of another run that this one began with stays.
        """
        refused = ""
        try:  # only the first process knows what was before
            self._require_settings(before)
            sources.require_same(Run(self.workdir), before.get("sources", {}), self.experiment.sources)
        except UserError as error:
            refused = str(error)
        now = dict(self.experiment.sources)
        kept = sources.kept(before.get("sources"), now) if before else now
        first, *others = gather({"refused": refused, "sources": now, "kept": kept})
        for process, other in enumerate(others, 1):
            if what := sources.changed(first["sources"], other["sources"]):
                first["refused"] = first["refused"] or f"process {process} does not have the same as process 0: {what}"
        if first["refused"]:
            raise Refused(first["refused"])
        self.sources = first["kept"]

    def _require_settings(self, before: OfRun) -> None:
        """Refuses numbers of config.json that are not those with which the run was trained so far."""
        for name, value in before.get("settings", {}).items():
            if (found := self._settings()[name]) not in (None, value):  # None: left open, as in a config that is no run's
                file = Run(self.workdir).config
                raise UserError(
                    f"{file} is damaged (config.{name} is {found}, and was {value} when the last checkpoint was saved); restore"
                    f" it, or delete {self.workdir} and run the same command again: it starts over"
                )

    def _costs_up_to(self, latest: int | None, before: OfRun) -> dict:
        """The costs of the checkpoints so far; costs.json is made anew from those that the last one has."""
        file = Run(self.workdir).costs
        if latest is None:
            file.delete()
            return {}
        costs = before["costs"] if "costs" in before else file.get({})
        file.write(costs)
        return costs

    def say(self, line: str) -> None:
        """Prints a line, once for all processes."""
        if is_first():
            print(line, flush=True)

    def known(self) -> dict[Path, dict[str, Any]]:
        """The files of the run that must be as this process wrote them, with their entries of files.json."""
        return {**self.described, Run(self.workdir).metrics.path: self.writers[0].written.entry()}

    def compile_training(self) -> dict:
        """Training steps of the phase by row length: one, or none with length buckets; `advance` adds others."""
        if self.phase.data.buckets:
            return {}
        if self.phase.data == self.experiment.config.data:
            batch = put_batch(self.mesh, self.example, whole=True)
        else:
            with contextlib.closing(iter(self.phase.train)) as batches:
                batch = self._placed(next(batches))
        return {batch["documents"].shape[1]: self._compile(batch)}

    def _placed(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """A batch of the phase on the mesh."""
        return put_batch(self.mesh, batch, self.phase.train.whole)

    def _compile(self, batch):
        alive.not_stepping()
        phase, config = self.phase, self.experiment.config
        with doing("compiling"):
            return compile_lowered(
                lower_train_step(phase.program, self.optimizer, config, phase.weights, self.mesh, self.state, batch)
            )

    def compile_evaluation(self):
        """The evaluation step of all objectives, compiled while the clock is stopped."""
        placement = jax.tree.map(lambda x: x.sharding, self.state.carry)
        with jax.set_mesh(self.mesh), doing("compiling"):
            whole = replicated(self.mesh)
            evaluate = jax.jit(build_eval_step(self.experiment.program), out_shardings=(whole, placement, whole))
            batch = put_batch(self.mesh, self.example, whole=True)
            return compile_lowered(evaluate.lower(self.state.params, batch, np.int32(0), self.fresh_carry()))

    def enter(self, phase) -> None:
        """Switches to another phase, and to its batches if they differ."""
        if phase.train is not self.phase.train:
            self.iterator.close()
            hashes, self.iterator = self.iterator.hashes, iter(phase.train)
            self.iterator.hashes = hashes
        self.phase = phase

    def fresh_carry(self):
        """Zero recurrent states for an evaluation, placed like those of the training state."""
        return jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), self.state.carry)

    def start_clock(self) -> None:
        """Training time counts from here to the next fetch."""
        self.since = time.perf_counter()

    def advance(self, train_steps: dict) -> None:
        """Starts one update without waiting for it; the first batch of a new length waits for its step to compile."""
        batch = next(self.iterator)
        length, placed = batch["documents"].shape[1], self._placed(batch)
        if length not in train_steps:
            self.fetch()
            train_steps[length] = self._compile(placed)
            self.start_clock()
        self.state, metrics = train_steps[length](self.state, placed, self.seed)
        self.step += 1
        alive.step_done()
        self.waiting.append((self.step, metrics, batch["example_id"], length))

    def count(self, train_steps: dict, steps: int) -> Progress:
        """The totals of so many updates, counted from 0."""
        self.record.progress = Progress()
        self.start_clock()
        for _ in range(steps):
            self.advance(train_steps)
        self.fetch()
        return self.record.progress

    def fetch(self) -> None:
        """Waits for the device, adds the waiting steps' metrics to the totals, and stops at the first that is not finite."""
        for _, metrics, *_ in self.waiting:
            jax.block_until_ready(metrics)
            alive.step_done()
        for step, metrics, example_ids, length in jax.device_get(self.waiting):
            self.record.add(self.phase, step, metrics, example_ids, length)
        self.waiting.clear()
        self.record.progress.seconds += time.perf_counter() - self.since

    def log(self) -> None:
        """Writes the mean metrics since the last log line."""
        self.record.log(self.step, data_hash(self.iterator))

    def evaluate(self, split: str, eval_step, stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Mean metrics over a held-out split, with averaged parameters if the optimiser keeps them; None if it is stopped."""
        batches, carry, results = self.experiment.evaluations[split], self.fresh_carry(), []
        params = evaluation_params(self.state.opt_state, self.state.params)
        for i, batch in enumerate(over(batches, "evaluating", len(batches))):
            if stopped():
                return None
            metrics, carry, outputs = eval_step(params, put_batch(self.mesh, batch, whole=True), np.int32(i), carry)
            results.append((metrics, outputs))
            jax.block_until_ready(results[-2:-1])  # while this batch is computed
            alive.step_done()
        jax.block_until_ready(results)
        alive.step_done()
        return self.record.evaluated(self.step, split, jax.device_get(results))

    def observe(self, means: dict[str, float]) -> None:
        """Tells the optimiser the language model's held-out loss; NT-ASGD may start averaging."""
        objectives = self.experiment.program.objectives
        watched = next((name for name, o in objectives.items() if o.asks == "tokens"), next(iter(objectives)))
        value = means[f"{watched}/loss"]
        self.state = dataclasses.replace(self.state, opt_state=observe(self.state.opt_state, value))

    def save(self) -> None:
        """Saves state, data position and totals; it writes in the background."""
        progress = self.record.progress
        progress.sums = self.record.sums.sums
        position = {shard: state for of_process in gather(self.iterator.get_state()) for shard, state in of_process.items()}
        now = None
        if is_first():
            Run(self.workdir).require_as_written(self.known(), only_sizes=True)  # now rather than at the end, days later
            # The costs first: a run that goes on from this checkpoint does not come by here again.
            self.costs = {**self.costs, str(self.step): progress.axes()}
            Run(self.workdir).costs.write(self.costs)
            now = OfRun(
                metrics=self.writers[0].written.entry(),
                costs=self.costs,
                settings=self._settings(),
                sources=self.sources,
            )
        self.checkpoints.save(self.step, self.state, position, dataclasses.asdict(progress), now)

    def result(self, metrics: dict) -> dict:
        """The content of result.json."""
        parameters = sum(x.size for x in jax.tree.leaves(self.state.params))
        totals = {"step": self.step, "parameters": parameters, **self.record.progress.axes()}
        found = {**totals, "data_hash": data_hash(self.iterator), "sources": self.sources, "metrics": metrics}
        return {**found, **self.experiment.counts}

    def close(self) -> None:
        """Waits for the background writing and releases threads and files."""
        alive.not_stepping()
        with contextlib.closing(self.record), contextlib.closing(self.iterator):
            try:
                self.checkpoints.close()
            except RunFailed:
                Run(self.workdir).require_as_written(self.described, only_sizes=True)  # what is gone may be the reason
                raise


def data_hash(iterator) -> str:
    """Hash of a training iterator: equal values at a step prove the same batches in the same order up to that step."""
    hashes = gather({shard: chain.value for shard, chain in iterator.hashes.items()})
    return combined_hash({shard: value for of_process in hashes for shard, value in of_process.items()})


class StopSignal:
    """SIGTERM or Ctrl-C as a flag that the loop reads between steps; several processes agree on the step through JAX."""

    def __enter__(self):
        self._several = jax.process_count() > 1  # then SIGTERM is JAX's, which tells the others
        tell = lambda: os.kill(os.getpid(), signal.SIGTERM)
        self._held = held(tell, (signal.SIGINT,)) if self._several else held()
        self._signals = self._held.__enter__()
        return self

    def wanted(self, step: int) -> bool:
        """Whether to stop after this many steps."""
        return multihost_utils.reached_preemption_sync_point(step) if self._several else self._signals.received is not None

    def is_here(self) -> bool:
        """Whether it has come; False with several processes, which can only stop after the same step."""
        return not self._several and self._signals.received is not None

    @property
    def name(self) -> str:
        """Of the signal."""
        return "Ctrl-C" if self.status else "SIGTERM"

    @property
    def status(self) -> int:
        """The exit status once the state is saved: 130 after Ctrl-C; 0 after SIGTERM, for those who send it and resume."""
        return 130 if self._signals.received == signal.SIGINT else 0

    def __exit__(self, *error):
        self._held.__exit__(*error)


def itstime(step: int, steps: int, every: int) -> bool:
    """Whether an action that happens every so many steps (0: only at the end) is due."""
    return step == steps or (every > 0 and step % every == 0)


def _moved(before: Any, now: str) -> bool:
    """Whether a run to start from, or its tokenizer, moved together with its study: gone there, and named the same here."""
    there, here = Path(str(before)).expanduser(), Path(now).expanduser().absolute()
    return bool(now) and there.is_absolute() and not there.exists() and there.parts[-2:] == here.parts[-2:]


def finished(config, workdir: Path, of_heads: Mapping[str, Any] | None = None) -> dict | None:
    """The result of a finished run, otherwise None; a run whose last checkpoint is damaged is no longer finished.

    Args:
        config: the whole config.
        workdir: the run directory.
        of_heads: of a fine-tuning, the defaults of its heads' settings by dotted name.

    Raises:
        UserError: the directory holds a run whose config differs in a key that may not change on resume (`bertlab.keys`), one
            that was trained with other code of an objective or task, one that is done and would evaluate something else, or
            one that is done and of whose files one is damaged.
    """
    directory = Run(workdir)
    if not directory.config.exists():
        if directory.steps():
            raise UserError(
                f"{directory.config} is missing, and {directory.checkpoints} has checkpoints of an unknown config; restore the"
                f" file, or delete {directory.checkpoints} and run the same command again: it starts over"
            )
        return None
    old = flatten(directory.config.read())
    new, default = (flatten(as_saved(value.to_dict())) for value in (config, base_config()))
    default |= of_heads or {}
    # A run from before a key existed did what the key's default does.
    old = {key: value for key, value in default.items() if key in new} | old
    found = {"train.steps": new["train.budget"], "optimizer.warmup_steps": new["optimizer.warmup_steps"] is None}
    free = lambda name: keys.has("on_resume", name) or found.get(name)  # numbers that the run computed
    for name in ("init_from", "data.tokenizer.path"):
        if _moved(old.get(name), new.get(name, "")):
            old[name] = new[name]
    result, known = directory.result.get(), directory.sources()
    # What has another digest is refused when it is read; a finished run reads no text.
    elsewhere = ["init_from"] if new.get("init_from") and sources.INIT_FROM in known else []
    of_base = lambda of: of.get("data.tokenizer.path") == str(Run(Path(of["init_from"]).expanduser()).tokenizer)
    if elsewhere and of_base(old) and of_base(new):
        elsewhere.append("data.tokenizer.path")
    if result is None and sources.CORPUS in known:
        elsewhere += ["data.corpus", "data.tokenizer.path"]
    if any(name.startswith(f"{sources.EXAMPLES}/") for name in known) or directory.task_text.exists():  # compared by `adapt`
        elsewhere.append("task_data.directory")
    old |= {name: new[name] for name in elsewhere if name in new}
    differ = [name for name in {**old, **new} if old.get(name) != new.get(name) and not free(name)]
    if differ:
        shown = ", ".join(f"{k} ({old.get(k)!r} there, {new.get(k)!r} given)" for k in differ[:5])
        raise UserError(f"{workdir} holds a run with a different config ({shown}); give another --workdir or the same config")
    if result is not None or directory.steps():  # otherwise it has trained nothing yet
        require_same_code(directory, config)
    for name in new if result is not None else ():
        if name.startswith("evaluate.") and old[name] != new[name]:
            raise UserError(
                f"{workdir} is finished, so config.{name}={new[name]!r} has no effect ({old[name]!r} there); leave it, and"
                f" measure more with: bertlab evaluate --run={workdir}"
            )
    if result is None or needs_repair(directory):
        return None
    directory.require_whole()
    return result
