"""The training loop, in the order of a run. Pretraining and fine-tuning both run through it."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.batches import prefetch
from bertlab.data.tokenizers import Tokenizer
from bertlab.objectives.flops import supervised
from bertlab.objectives.program import Program
from bertlab.train import checkpoint, hooks
from bertlab.train.optimizers import build_optimizer, evaluation_params, observe
from bertlab.train.phases import Phase
from bertlab.train.processes import StopSignal
from bertlab.train.run_directory import RunDirectory, describe_environment
from bertlab.train.schedules import layer_plan
from bertlab.train.sharding import build_mesh, put_batch, replicated
from bertlab.train.state import TrainState, abstract_state, build_step, init_state, zero_carry


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a run needs except its directory."""

    config: ConfigDict
    program: Program  # the model and all objectives
    phases: Sequence[Phase]
    tokenizer: Tokenizer  # saved with the run
    # Held-out batches by split; "valid" is evaluated during training, all at the end.
    evaluations: Mapping[str, Sequence[Mapping[str, np.ndarray]]]
    facts: Mapping[str, Any]  # what data.json has in addition to the hash of the batches
    start: Callable | None = None  # fresh parameters -> those to start from; None: the fresh ones
    outputs: Callable | None = None  # (parameters, batch) -> what `score` needs of its rows
    score: Callable | None = None  # (split, outputs of all batches) -> scores that are no means
    result: Callable[[], Mapping[str, Any]] = dict  # more content of result.json

    @property
    def example(self) -> Mapping[str, np.ndarray]:
        """A batch, for the shapes of its fields."""
        return next(iter(self.evaluations.values()))[0]

    def phase(self, step: int) -> Phase:
        """The phase that trains the update after `step` updates; after the last one, the last."""
        return next((phase for phase in self.phases if step < phase.end), self.phases[-1])


def fit(state: TrainState, train_step, batches: Iterable, steps: int, step_hooks, stop):
    """Runs `train_step`, (state, batch) -> (state, sums), from `state.step`, with which `batches`
    begin, to `steps`. A signal ends the loop after the current step."""
    for step, batch in zip(range(int(state.step), steps), batches):
        state, sums = train_step(state, batch)
        for hook in step_hooks:
            state = hook(step + 1, state, sums) or state
        if stop.requested(step + 1):
            break
    return state


def run(
    experiment: Experiment, workdir: str | Path, at_end: Callable[[Path], Any] | None = None
) -> dict[str, Any]:
    """Trains an experiment to its end, from the last checkpoint in its directory if there is one,
    and returns the content of result.json. After a signal it saves the state and exits. Process 0
    calls `at_end` with the directory once the last checkpoint is written."""
    config, directory = experiment.config, RunDirectory(workdir)
    steps, data_hash = config.train.steps, [phase.data_hash for phase in experiment.phases]
    with directory.lock(), StopSignal() as stop, contextlib.ExitStack() as closing:
        # 1. The directory describes the run before anything is compiled.
        if (result := describe(experiment, directory, data_hash)) is not None:
            return result

        # 2. Mesh and optimiser; the state, restored or fresh.
        mesh = build_mesh(config.mesh)
        optimizer = build_optimizer(config.optimizer, steps, experiment.program, experiment.example)
        kept = hooks.kept_steps(config.train.keep, steps)
        checkpoints = closing.enter_context(
            checkpoint.open_checkpoints(directory.checkpoints, config.train.keep_checkpoints, kept)
        )
        latest = checkpoints.latest_step()
        state, totals = open_state(experiment, mesh, optimizer, checkpoints)

        # 3. Hooks.
        rate = layer_plan(config.optimizer, steps, state.params).rate
        log = hooks.Log(experiment, directory, totals, rate, latest)
        evaluate = build_evaluation(experiment, mesh, log)
        objectives = experiment.program.objectives
        watched = max(objectives, key=lambda name: supervised(objectives[name]))  # by NT-ASGD

        @log.paused()
        def save(state):
            checkpoint.save(checkpoints, state, dataclasses.asdict(totals))

        def validate(step, state, sums):
            if step < steps and hooks.is_due(step, config.train.eval_every, steps):
                loss = evaluate("valid", step, state)[f"{watched}/loss"]
                return state.replace(opt_state=observe(state.opt_state, loss))

        def save_if_due(step, state, sums):
            if hooks.is_due(step, config.train.checkpoint_every, steps) or step in kept:
                save(state)

        profile = hooks.profile_hook(directory.path / "profile", latest or 0, config)
        step_hooks = [log, validate, save_if_due, profile]

        # 4. Train, phase by phase; the log weights the losses by the phase's objectives.
        log.begin_phase(experiment.phase(latest or 0))
        if latest is None and steps and config.train.eval_every:
            evaluate("valid", 0, state)
        for phase in [phase for phase in experiment.phases if phase.end > (latest or 0)]:
            log.begin_phase(phase)
            state = train_phase(config, phase, optimizer, mesh, state, step_hooks, stop)
            if int(state.step) < phase.end:
                save(state)
                print(f"stopped at step {int(state.step)} and saved; the same command resumes")
                raise SystemExit(stop.status)

        # 5. Evaluate every held-out split and save. The result, last, marks the run as finished.
        metrics = {split: evaluate(split, steps, state) for split in experiment.evaluations}
        save(state)
        checkpoints.wait_until_finished()
        parameters = sum(x.size for x in jax.tree.leaves(state.params))
        result = {"step": steps, "parameters": parameters, **totals.costs(), "metrics": metrics}
        result |= {"data_hash": data_hash, **experiment.result()}
        if jax.process_index() == 0:
            if at_end is not None:
                at_end(directory.path)
            directory.write("result", result)
    return result


def describe(experiment: Experiment, directory: RunDirectory, data_hash) -> dict | None:
    """Writes the files that describe a run; if it is finished, returns its result instead."""
    result = directory.read("result")
    if directory.steps() or result:  # else it may get another config
        directory.require_config(experiment.config)
        directory.require_data(data_hash)
    if result is None and jax.process_index() == 0:
        directory.write("config", experiment.config.to_dict())
        directory.write("environment", describe_environment())
        directory.write("data", {**experiment.facts, "data_hash": data_hash})
        experiment.tokenizer.save(directory.tokenizer)
    return result


def open_state(experiment: Experiment, mesh, optimizer, checkpoints):
    """The state and the totals of the last checkpoint; fresh ones if there is none."""
    program, latest = experiment.program, checkpoints.latest_step()
    if latest is None:
        seed, start = experiment.config.seed, experiment.start
        state = init_state(program, optimizer, mesh, seed, experiment.example, start)
        return state, hooks.Totals()
    phase = experiment.phase(latest - 1)
    carry = zero_carry(phase.program, mesh, phase.rows)
    abstract = abstract_state(program, optimizer, mesh, experiment.example, carry)
    state, totals = checkpoint.restore(checkpoints, abstract)
    print(f"resuming from step {latest}", flush=True)
    return state, hooks.Totals(**totals)


def build_evaluation(experiment: Experiment, mesh, log: hooks.Log) -> Callable:
    """(split, step, state) -> mean metrics over a held-out split, which it logs."""
    program = experiment.program

    @jax.jit
    def eval_step(params, batch, index, carry):  # corruption depends on the index alone
        views = program.views(batch, jax.random.fold_in(jax.random.key(0), index))
        sums, carry = program.metrics(params, views, carry)
        # XLA encodes the rows once for both. Every process gets the outputs of all rows.
        outputs = experiment.outputs(params, batch) if experiment.outputs else ()
        return sums, carry, jax.lax.with_sharding_constraint(outputs, replicated(mesh))

    @log.paused()
    def evaluate(split: str, step: int, state: TrainState) -> dict[str, float]:
        params = evaluation_params(state.opt_state, state.params)
        batches, results = experiment.evaluations[split], []
        carry = zero_carry(program, mesh, len(batches[0]["tokens"]) * jax.process_count())
        with jax.set_mesh(mesh):
            for index, batch in enumerate(batches):
                batch = put_batch(mesh, batch)
                sums, carry, outputs = eval_step(params, batch, np.int32(index), carry)
                results.append((sums, outputs))
        results, outputs = zip(*jax.device_get(results))
        # Each metric's sum and weight over the batches, added up in float64.
        total = jax.tree.map(lambda *each: sum(map(float, each)), *results)
        means = log.means(step, total)
        if experiment.score is not None:
            means |= experiment.score(split, outputs)
        log.write(step, split, means)
        return means

    return evaluate


def train_phase(config: ConfigDict, phase: Phase, optimizer, mesh, state, step_hooks, stop):
    """The state at the end of a phase, or after the step during which a signal came."""
    step = int(state.step)
    if step == phase.begin:
        state = state.replace(carry=zero_carry(phase.program, mesh, phase.rows))
    train_step = build_step(config, phase, optimizer, mesh, state)
    batches = prefetch(phase.batches, step, functools.partial(put_batch, mesh))
    with jax.set_mesh(mesh), contextlib.closing(batches):
        return fit(state, train_step, batches, phase.end, step_hooks, stop)
