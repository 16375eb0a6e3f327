"""Orbax checkpoints: the training state, data position and progress of a step, saved together or not at all.

Each has a list of its files (`bertlab.checksums`), written before it gets its name, so that damage to any of them is noticed
when it is read. Training then goes on from the last whole checkpoint; whoever reads parameters is refused, as those of another
step would be another model's. It also has run.json, with what the run's other files held up to it (`OfRun`).
"""

import contextlib
import functools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np
import orbax.checkpoint as ocp
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bertlab import checksums
from bertlab.errors import RunFailed, UserError, causes, code_of, remedy_of
from bertlab.files import write_json
from bertlab.models.presets import body_shapes
from bertlab.run import AT_STEP, Run
from bertlab.train.layer_groups import parameter_at, parameter_name
from bertlab.train.lora import build_adapter
from bertlab.train.processes import is_first, meet

_ATTEMPTS = 5  # to read a run that is training


class OfRun(TypedDict, total=False):
    """run.json of a checkpoint: the run's other files when it was saved.

    Attributes:
        metrics: bytes and blake2b of metrics.jsonl, as in files.json.
        costs: the content of costs.json.
        settings: the numbers that the run computed for its config, by dotted name.
        sources: the digests of what it reads (`bertlab.train.sources`).
    """

    metrics: Mapping[str, Any]
    costs: Mapping[str, Any]
    settings: Mapping[str, Any]
    sources: Mapping[str, str]


class Checkpoints:
    """The checkpoints of one run directory, written in the background.

    Args:
        directory: RUN/checkpoints; one subdirectory per step.
        keep: how many of the latest to keep; 0 keeps all.
        steps: steps to keep for ever. Orbax checks all checkpoints on disk at every save, so they also survive a resume.
    """

    def __init__(self, directory: Path, keep: int, steps: Collection[int] = ()):
        _leave_errors_to_us()
        self._directory = directory.absolute()
        self._of_run: OfRun | None = None  # of the checkpoint that is being written
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(
                [preservation_policy.LatestN(keep or None), preservation_policy.CustomSteps(steps)]
            ),
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            async_options=_saving(self._directory, lambda: self._of_run),
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)
        if is_first() and keep:  # a removal that failed or was killed leaves a part of a checkpoint
            for step in Run(directory.parent).steps()[:-keep]:
                if step not in steps:
                    shutil.rmtree(self._directory / str(step), ignore_errors=True)
            self._manager.reload()

    def latest(self) -> int | None:
        """The last complete step, or None."""
        return self._manager.latest_step()

    def latest_whole(self) -> int | None:
        """The last step whose files, and the log up to it, are as they were written, or None without checkpoints.

        Later ones are renamed, and a line says why. All processes call it.

        Raises:
            UserError: all are damaged.
        """
        damaged = {}
        for step in reversed(Run(self._directory.parent).steps()) if is_first() else ():
            if (damage := self._find_damage(step)) is None:
                break
            damaged[step] = "{} is damaged ({})".format(*damage)
        else:
            if damaged:
                raise UserError(
                    f"{next(iter(damaged.values()))}, and there is no whole checkpoint before it; restore the file, or delete"
                    f" {self._directory} and run the same command again: it starts over"
                )
        for other, what in damaged.items():
            aside = self._directory / f"damaged-{other}"
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(self._directory / str(other), aside)
            print(f"warning: {what}; training goes on from step {step}, and {aside} may be deleted", flush=True)
        meet("damaged checkpoints are renamed")
        self._manager.reload()
        return self.latest()

    def _find_damage(self, step: int) -> tuple[Path, str] | None:
        """As `checksums.find_damage`, of a checkpoint and of the log up to it."""
        if damage := checksums.find_damage(self._directory / str(step)):
            return damage
        run = Run(self._directory.parent)
        metrics = run.at_step(step).get({}).get("metrics")
        return checksums.find_damage_up_to(run.metrics.path, metrics) if metrics else None

    def latest_path(self) -> str:
        """The path of the last complete step, for messages."""
        self._manager.wait_until_finished()
        return "none yet" if self.latest() is None else str(self._directory / str(self.latest()))

    def save(self, step: int, state, data: dict, progress: dict, of_run: OfRun | None = None) -> None:
        """Saves a step unless it exists; returns once the arrays are copied. All processes call it.

        Args:
            step: number of updates done.
            state: pytree of arrays.
            data: the positions in the training batches, a JSON value.
            progress: JSON values.
            of_run: what the run's other files are; only the first process's is written.
        """
        if step == self.latest():
            return
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(data), progress=ocp.args.JsonSave(progress)
        )
        with self._written():
            self._manager.wait_until_finished()  # with the checkpoint before, which has its own run.json
            self._of_run = of_run
            self._manager.save(step, args=args, force=True)

    def restore(self, step: int, shapes, shardings) -> tuple:
        """The state with every array placed by `shardings`, the positions in the batches, and the progress.

        Raises:
            UserError: a file of the checkpoint is damaged or missing.
        """
        placed = lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(jax.tree.map(placed, shapes, shardings)),
            data=ocp.args.JsonRestore(),
            progress=ocp.args.JsonRestore(),
        )
        with _whole(self._directory, self._manager, step):
            restored = self._manager.restore(step, args=args)
        return restored.state, restored.data, restored.progress

    def close(self) -> None:
        """Waits until all saves are on disk, then releases the background threads.

        Raises:
            RunFailed: a save failed.
        """
        with self._written():
            self._manager.close()

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Says why a checkpoint could not be written, perhaps one begun earlier, and removes what there is of it."""
        try:
            yield
        except Exception as error:  # Orbax raises many kinds of errors
            reason = _reason(error)
            for unfinished in self._directory.glob("*.orbax-checkpoint-tmp"):
                shutil.rmtree(unfinished, ignore_errors=True)
            latest = max(Run(self._directory.parent).steps(), default=None)
            then = "starts over" if latest is None else f"goes on from step {latest}"
            raise RunFailed(
                f"a checkpoint could not be written to {self._directory} ({reason}); {remedy_of(error)}, then run the same"
                f" command again: it {then}"
            ) from error


@contextlib.contextmanager
def _whole(directory: Path, manager: ocp.CheckpointManager, step: int) -> Iterator[None]:
    """Names a checkpoint that cannot be read, and the one before it."""
    try:
        yield
    except Exception as error:  # Orbax raises many kinds of errors
        reason = _reason(error)
        before = max((other for other in manager.all_steps() if other < step), default=None)
        then = "start over" if before is None else f"continue from {directory / str(before)}"
        raise UserError(f"{directory / str(step)} cannot be read ({reason}); remove it to {then}") from error


def _saving(directory: Path, of_run: Callable[[], OfRun | None] = lambda: None) -> ocp.AsyncOptions:
    """Has the first process write run.json and list all files, when they are written and the checkpoint has no name yet.

    Of several processes, one that cannot write ends at once. Orbax would have it wait for the others first, which wait for it.
    """

    def write_list() -> None:
        (unnamed,) = directory.glob("*.orbax-checkpoint-tmp*")
        # Orbax still changes its own files at the top, which hold only times and names.
        listed = [path for path in unnamed.glob("*/**/*") if path.is_file()]
        if (content := of_run()) is not None:
            write_json(unnamed / AT_STEP, content)
            listed.append(unnamed / AT_STEP)
        checksums.write_list(unnamed, listed)

    def meet_others(*, key: str, timeout_ms: int) -> None:
        if sys.exc_info()[0] is None:  # Orbax meets in a `finally` too, on the way of an error
            ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

    meeting = {"barrier_sync_fn": meet_others} if jax.process_count() > 1 else {}
    return ocp.AsyncOptions(post_finalization_callback=write_list, **meeting)


def lacks_last(run: Run) -> bool:
    """Whether a finished run has checkpoints, but not that of its last step."""
    steps = run.steps()
    return bool(steps) and run.result.get({}).get("step", steps[-1]) not in steps


def needs_repair(run: Run) -> bool:
    """Whether a finished run's checkpoint of its last step is damaged or missing; False if it has none of any step."""
    steps = run.steps()
    return lacks_last(run) or (bool(steps) and checksums.find_damage(run.checkpoints / str(steps[-1])) is not None)


def refuse_damaged(run: Run, step: int) -> None:
    """Checks every file of a checkpoint.

    Raises:
        UserError: one is missing or damaged; says how the checkpoint is made again.
    """
    if damage := checksums.find_damage(run.checkpoints / str(step)):
        remedy = _remedy(run) if step == run.steps()[-1] else "restore the file, or choose another step"
        raise UserError("{} is damaged ({}); {}".format(*damage, remedy))


def _remedy(run: Run) -> str:
    """How the last checkpoint of a run is made again."""
    if run.imported.exists():
        return f"delete {run} and run the same `bertlab import` again"
    first = f"delete {run.result} and " if run.job.exists() and run.result.exists() else ""  # a sweep skips what has a result
    return f"{first}run the command again that trained it: it goes on from the checkpoint before"


def _leave_errors_to_us() -> None:
    """Keeps Orbax's threads from printing a traceback each of an error that the main thread is told of and reports."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("absl").addFilter(_not_orbax)
    if getattr(sys.unraisablehook, "func", None) is not _other_unraisable:
        sys.unraisablehook = functools.partial(_other_unraisable, sys.unraisablehook)


def _not_orbax(record: logging.LogRecord) -> bool:
    """Keeps Orbax's errors, and its warning of a checkpoint that a training removes meanwhile."""
    ours = record.levelno >= logging.ERROR or str(record.msg).startswith("Metadata file does not exist")
    return not (ours and "orbax" in record.pathname)


def _other_unraisable(before: Callable[[Any], Any], unraisable: Any) -> None:
    """TensorStore still tells Orbax of other arrays after the first error, when nobody listens."""
    if str(unraisable.exc_value) != "Event loop is closed":
        before(unraisable)


def _reason(error: BaseException) -> str:
    """What the machine did, or the first line of the error behind all others."""
    if (known := code_of(error)) is not None:
        return os.strerror(known)
    *_, first = causes(error)
    return (str(first).strip() or repr(first)).splitlines()[0][:200]


def save_params(run: Path, params) -> None:
    """Writes parameters as the checkpoint of step 0 of a run directory, for `load_params`."""
    _leave_errors_to_us()
    directory = Run(run).checkpoints.absolute()
    options = ocp.CheckpointManagerOptions(async_options=_saving(directory))
    with ocp.CheckpointManager(directory, options=options) as manager:
        if not manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave({"params": params}))):
            raise UserError(
                f"{Run(run).checkpoints} already has a later step than 0, so parameters cannot be saved there; delete it"
            )


def require_fitting(run: Run, params, config, vocabulary_size: int) -> None:
    """Refuses parameters that are not those of a config's body.

    Args:
        run: where both come from.
        params: the whole tree.
        config: the whole config.
        vocabulary_size: V.

    Raises:
        UserError: names a parameter that is missing or has another shape.
    """
    for path, leaf in jax.tree.leaves_with_path(body_shapes(config, vocabulary_size, predicts=False)):
        name, found = parameter_name(path), parameter_at(params, path)
        if found is None or found.shape != leaf.shape:
            there = "missing" if found is None else found.shape
            differ = f"{name} is {leaf.shape} by config.model and {there} there"
            raise UserError(f"{run.config} does not fit the run's checkpoint: {differ}; restore the file")


def load_params(run: Path, step: int | None = None):
    """The parameters of a run's checkpoint as a tree of NumPy arrays, for a run from any devices.

    They are the averaged parameters if the optimiser has begun to average (NT-ASGD). Low-rank updates are merged into their
    kernels.

    Args:
        run: run or imported directory.
        step: of the checkpoint; None: the last one, which of a finished run is that of its last step.

    Raises:
        UserError: the run has no complete checkpoint, none of that step, or a file of it is damaged or missing.
    """
    Run(run).require_step(step)
    if step is None and lacks_last(Run(run)):
        last = Run(run).result.read()["step"]
        raise UserError(f"{run} has lost the checkpoint of its last step {last}; {_remedy(Run(run))}")
    # A training may remove what is read here: the oldest checkpoint, when it saves another one.
    for _ in range(_ATTEMPTS - 1):
        newest = Run(run).steps()[-1:]
        try:
            return _load_params(run, step)
        except FileNotFoundError:
            continue
        except UserError:
            if step is not None or newest == Run(run).steps()[-1:]:
                raise
    return _load_params(run, step)


def _load_params(run: Path, step: int | None):
    """The parameters, as they are now on disk."""
    _leave_errors_to_us()
    directory = Run(run).checkpoints.absolute()
    if not directory.is_dir():
        raise UserError(f"{run} is not a run with checkpoints; give the --workdir of a `bertlab train`")
    handlers = {"state": ocp.PyTreeCheckpointHandler()} | {name: ocp.JsonCheckpointHandler() for name in ("data", "progress")}
    # Only this process reads, so Orbax must not wait for the others.
    alone = ocp.options.MultiprocessingOptions(jax.process_index(), {jax.process_index()})
    options = ocp.CheckpointManagerOptions(create=False, multiprocessing_options=alone)
    with ocp.CheckpointManager(directory, item_handlers=handlers, options=options) as manager:
        step = manager.latest_step() if step is None else step
        if step is None:
            raise UserError(f"{run} has no complete checkpoint; run `bertlab train --workdir={run}` until it saves one")
        refuse_damaged(Run(run), step)
        with _whole(directory, manager, step):
            saved = manager.item_metadata(step)["state"].tree
            wanted = {"params": saved["params"]}
            averages = [i for i, part in enumerate(saved.get("opt_state", [])) if part and "average" in part]
            if averages:
                wanted["opt_state"] = [part if i in averages else None for i, part in enumerate(saved["opt_state"])]
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
            args = ocp.args.PyTreeRestore(wanted, restore_args=as_numpy, partial_restore=True)
            restored = manager.restore(step, args=ocp.args.Composite(state=args))["state"]
    begun = [restored["opt_state"][i] for i in averages if restored["opt_state"][i]["count"] > 0]
    params = begun[0]["average"] if begun else restored["params"]
    if "lora" not in params:
        return params
    adapter = build_adapter(ConfigDict(Run(run).config.read()["lora"]))
    return jax.device_get(adapter.merge(params))
