"""Several processes that run the same command and train one model together."""

import os

import jax


def join_processes() -> None:
    """Joins the other processes of the run, if the environment names any.

    It reads JAX_COORDINATOR_ADDRESS (host:port of process 0; "auto": a cluster that JAX finds, such
    as Cloud TPUs or Open MPI) with JAX_NUM_PROCESSES and JAX_PROCESS_ID; a SLURM step of several
    tasks; the hosts of a TPU slice. Call it before anything uses a device.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    slurm_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    slice_hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if not address and slurm_tasks == 1 and len(slice_hosts) == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", True)  # SIGTERM to one stops all
    if address and address != "auto":
        count, index = (int(os.environ[f"JAX_{name}"]) for name in ("NUM_PROCESSES", "PROCESS_ID"))
        jax.distributed.initialize(address, count, index)
    else:
        os.environ.pop("JAX_COORDINATOR_ADDRESS", None)
        jax.distributed.initialize()
