"""Orbax checkpoints: the arrays of the training state, and the totals up to then."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from bertlab.errors import UserError
from bertlab.models.lora import Lora
from bertlab.train.run_directory import RunDirectory
from bertlab.train.state import TrainState


def open_checkpoints(directory: Path, keep: int, steps=()) -> ocp.CheckpointManager:
    """A run's checkpoints, written in the background; the last `keep` (0: all) and `steps` stay."""
    policies = [policy.LatestN(keep or None), policy.CustomSteps(list(steps))]
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policy.AnyPreservationPolicy(policies), cleanup_tmp_directories=True
    )
    return ocp.CheckpointManager(directory.absolute(), options=options)


def save(checkpoints: ocp.CheckpointManager, state: TrainState, totals: dict[str, Any]) -> None:
    """Saves the state's step unless it exists; all processes call it."""
    step = int(state.step)
    if step != checkpoints.latest_step():
        arrays, costs = ocp.args.StandardSave(vars(state)), ocp.args.JsonSave(totals)
        checkpoints.save(step, args=ocp.args.Composite(state=arrays, totals=costs), force=True)


def restore(checkpoints: ocp.CheckpointManager, abstract: TrainState) -> tuple[TrainState, dict]:
    """The last state, every array placed as `abstract` says, and its totals."""
    arrays, costs = ocp.args.StandardRestore(vars(abstract)), ocp.args.JsonRestore()
    args = ocp.args.Composite(state=arrays, totals=costs)
    restored = checkpoints.restore(checkpoints.latest_step(), args=args)
    return TrainState(**restored.state), restored.totals


def save_params(run: RunDirectory, params) -> None:
    """Writes parameters as the checkpoint of step 0, for `load_params`."""
    with ocp.CheckpointManager(run.checkpoints.absolute()) as manager:
        manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave({"params": params})))


def load_params(run: RunDirectory, step: int | None = None):
    """The parameters of a run or an import at a step (None: the last) as a tree of NumPy arrays,
    whatever devices it was trained on, with low-rank updates added to their kernels; NT-ASGD's
    averages once it has begun to average."""
    steps = run.steps()
    if not steps or step not in (None, *steps):
        raise UserError(f"config.init_step={step} is not one of the checkpoints of {run}: {steps}")
    path = run.checkpoints.absolute() / str(steps[-1] if step is None else step) / "state"
    handler = ocp.PyTreeCheckpointHandler()
    saved = handler.metadata(path).tree
    target = {"params": saved["params"]}
    *others, last = saved.get("opt_state") or [None]
    if last and "average" in last:
        target["opt_state"] = [*[None] * len(others), last]
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    args = ocp.args.PyTreeRestore(target, restore_args=as_numpy, partial_restore=True)
    restored = handler.restore(path, args=args)
    params = restored["params"]
    if "opt_state" in target and restored["opt_state"][-1]["count"] > 0:
        params = restored["opt_state"][-1]["average"]
    if "lora" in params:
        params = jax.device_get(Lora(**run.config()["lora"]).merge(params))
    return params
