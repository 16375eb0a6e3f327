"""The processes of a run: they train one model together, and stop together."""

import os
import signal

import jax
from jax.experimental import multihost_utils


def join_processes() -> None:
    """Joins the other processes of the run, if the environment names any: JAX_COORDINATOR_ADDRESS
    (host:port of process 0; "auto": a cluster that JAX finds, such as Cloud TPUs or Open MPI) with
    JAX_NUM_PROCESSES and JAX_PROCESS_ID; a SLURM step of several tasks; the hosts of a TPU slice.
    Call it before anything uses a device."""
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    slurm_tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    slice_hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if not address and slurm_tasks == 1 and len(slice_hosts) == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", True)  # SIGTERM to one process stops all
    count = index = None  # found by JAX, like the address
    if address and address != "auto":
        count, index = (int(os.environ[f"JAX_{name}"]) for name in ("NUM_PROCESSES", "PROCESS_ID"))
    else:
        os.environ.pop("JAX_COORDINATOR_ADDRESS", None)
    # The others wait for process 0, which evaluates alone when training ends; after JAX's own limit
    # of five minutes all would end without a result.
    jax.distributed.initialize(None, count, index, shutdown_timeout_seconds=24 * 3600)


class StopSignal:
    """SIGTERM or Ctrl-C as a flag that the loop reads between steps; a second one ends the process
    at once. Several processes agree on the step to stop at through JAX, which receives SIGTERM."""

    def __enter__(self):
        self.received, self.agreed = None, False
        signals = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._receive) for number in signals}
        return self

    def _receive(self, number, frame):
        self.received = number
        signal.signal(number, self._before[number])
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def requested(self, step: int) -> bool:
        """Whether to stop after this many steps."""
        if jax.process_count() > 1:
            # JAX says so at one step only, which may be a phase's last one.
            self.agreed |= multihost_utils.reached_preemption_sync_point(step)
            return self.agreed
        return self.received is not None

    @property
    def status(self) -> int:
        """130 after Ctrl-C; 0 after SIGTERM, for schedulers that send it and resume."""
        return 130 if self.received == signal.SIGINT else 0

    def __exit__(self, *error):
        for number, handler in self._before.items():
            signal.signal(number, handler)
