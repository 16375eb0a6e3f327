"""What the environment says of other processes that run the same command, on this host or on others.

Nothing here imports JAX; `bertlab.train.processes` joins them.
"""

import os
import re

from bertlab.errors import UserError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
TASKS, TASK = "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"
SLICE, WORKER = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"


def are_several() -> bool:
    """Whether the environment names other processes."""
    count = os.environ.get(COUNT) or os.environ.get(TASKS) or "1"
    return count != "1" or len(os.environ.get(SLICE, "").split(",")) > 1 or is_auto()


def is_auto() -> bool:
    """Whether JAX is to find the processes."""
    return os.environ.get(ADDRESS) == "auto"


def named() -> tuple[str, int, int] | None:
    """(address of process 0, number of processes, index of this one) as JAX's three variables say; None without them.

    Raises:
        UserError: Only some of them are set, or one is wrong.
    """
    given = {name: os.environ[name] for name in (ADDRESS, COUNT, INDEX) if os.environ.get(name)}
    if not given:
        return None
    if missing := [name for name in (ADDRESS, COUNT, INDEX) if name not in given]:
        raise UserError(f"{', '.join(given)} without {' and '.join(missing)}: processes that work together need all three")
    if not re.fullmatch(r".+:\d+", given[ADDRESS]):
        raise UserError(f"{ADDRESS}={given[ADDRESS]}: expected host:port of process 0, or auto")
    if wrong := [name for name in (COUNT, INDEX) if not given[name].isdecimal()]:
        raise UserError(f"{wrong[0]}={given[wrong[0]]}: expected a number")
    count, index = int(given[COUNT]), int(given[INDEX])
    if index >= count:
        raise UserError(f"{INDEX}={given[INDEX]} must be below {COUNT}={given[COUNT]}: processes are counted from 0")
    return given[ADDRESS], count, index


def position() -> tuple[int, int]:
    """(index, count) of this process among all, without asking JAX, which would take the devices.

    Raises:
        UserError: The environment does not say it.
    """
    if not is_auto() and (given := named()):
        return given[2], given[1]
    slices = os.environ.get(SLICE, "").split(",")
    index, count = (TASK, os.environ.get(TASKS, "1")) if len(slices) == 1 else (WORKER, str(len(slices)))
    if is_auto() or not os.environ.get(index, "").isdecimal():
        raise UserError(f"a study on several hosts must know which host this is: set {ADDRESS}=host:port, {COUNT} and {INDEX}")
    return int(os.environ[index]), int(count)


def refuse(what: str = "this command") -> None:
    """Refuses several processes for what runs in one.

    Raises:
        UserError: The environment names several processes.
    """
    if are_several():
        raise UserError(
            f"{what} runs in one process: start it once, without {COUNT}, in a SLURM step with one task, or on one host of a"
            f" TPU slice with an empty {SLICE}"
        )
