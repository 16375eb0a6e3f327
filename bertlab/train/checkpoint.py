"""Orbax checkpoints: the arrays of the training state, and the totals up to then."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bertlab.errors import UserError
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import TrainState


class Checkpoints:
    """The checkpoints of one run, written in the background.

    Args:
        directory: RUN/checkpoints.
        keep: How many of the latest to keep; 0: all.
        steps: To keep for ever.
    """

    def __init__(self, directory: Path, keep: int, steps: Collection[int] = ()):
        latest, chosen = preservation_policy.LatestN(keep or None), list(steps)
        policies = [latest, preservation_policy.CustomSteps(chosen)]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)

    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, totals: dict[str, Any]) -> None:
        """Saves a step unless it exists; returns once the arrays are copied. All processes call
        it."""
        if step != self.latest():
            args = ocp.args.Composite(
                state=ocp.args.StandardSave(arrays(state)), totals=ocp.args.JsonSave(totals)
            )
            self._manager.save(step, args=args, force=True)

    def restore(self, step: int, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The state, every array placed as `abstract` says, and the totals."""
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(arrays(abstract)), totals=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=args)
        return TrainState(**restored.state), restored.totals

    def wait(self) -> None:
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def arrays(state: TrainState) -> dict[str, Any]:
    """What a checkpoint holds of a state."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def save_params(run: RunDirectory, params) -> None:
    """Writes parameters as the checkpoint of step 0, for `load_params`."""
    with ocp.CheckpointManager(run.checkpoints.absolute()) as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave({"params": params})))


def load_params(run: RunDirectory, step: int | None = None):
    """The parameters of a run as a tree of NumPy arrays, for a run from any devices.

    They are the averaged ones if the optimiser has begun to average (NT-ASGD).

    Args:
        run: A run or an import.
        step: Of the checkpoint; None: the last one.
    """
    steps = run.steps()
    if not steps or step not in (None, *steps):
        found = ", ".join(map(str, steps)) or "none"
        raise UserError(
            f"{run} has no checkpoint of step {'any' if step is None else step}; it has {found}"
        )
    path = run.checkpoints.absolute() / str(steps[-1] if step is None else step) / "state"
    handler = ocp.PyTreeCheckpointHandler()
    saved = handler.metadata(path).tree
    target = {"params": saved["params"]}
    parts = list(saved.get("opt_state", []))
    averages = [i for i, part in enumerate(parts) if part and "average" in part]
    if averages:
        target["opt_state"] = [part if i in averages else None for i, part in enumerate(parts)]
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    args = ocp.args.PyTreeRestore(target, restore_args=as_numpy, partial_restore=True)
    restored = handler.restore(path, args=args)
    for average in (restored["opt_state"][i] for i in averages):
        if average["count"] > 0:
            return average["average"]
    return restored["params"]
