"""What the environment says of other processes that run the same command, on this host or on others.

Nothing here imports JAX; `bertlab.train.processes` joins them.
"""

import os

from bertlab.errors import UserError

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
TASKS, SLICE = "SLURM_STEP_NUM_TASKS", "TPU_WORKER_HOSTNAMES"


def are_several() -> bool:
    """Whether the environment names other processes."""
    count = os.environ.get(COUNT) or os.environ.get(TASKS) or "1"
    return count != "1" or len(os.environ.get(SLICE, "").split(",")) > 1 or os.environ.get(ADDRESS) == "auto"


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
