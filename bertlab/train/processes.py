"""Several processes that work together: how they find each other, agree and end.

Every process runs the same command with its own devices. In a training they form one mesh, and all write their part of a
checkpoint; other work they share out. Only the first prints, and writes logs and results.
"""

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertlab import hosts, locks
from bertlab.errors import UserError, failure_of_machine
from bertlab.hosts import ADDRESS
from bertlab.places import require_place
from bertlab.run import Run

# Seconds without a sign of life after which a process counts as lost.
PATIENCE = 20
# Seconds that processes wait for each other at the start; a cluster may start its hosts minutes apart.
JOINING, JOINING_CLUSTER = 120, 600
# Texts of errors that mean that another process has failed, not this one; shared operations fail in many ways.
_LOST = re.compile(
    r"gloo|nccl|unavailable:|deadline_exceeded|coordination service|heartbeat|barrier timed out|another task"
    r"|connection (reset|closed|refused)",
    re.IGNORECASE,
)


def join(saves: bool = True) -> None:
    """Joins the other processes of the run, if the environment names any.

    It looks, in this order, for JAX_COORDINATOR_ADDRESS (host:port of process 0) with JAX_NUM_PROCESSES and JAX_PROCESS_ID; a
    SLURM step of several tasks (`srun -n 4 bertlab train ...`); the hosts of a TPU slice (GKE's TPU_WORKER_HOSTNAMES). With
    JAX_COORDINATOR_ADDRESS=auto JAX finds the processes (Cloud TPU virtual machines, Open MPI). Call it before anything uses a
    device.

    Args:
        saves: SIGTERM to one lets all save after the same step; otherwise it ends what it is sent to.

    Raises:
        UserError: only some of the variables are set, or the processes do not find each other.
    """
    arguments: dict[str, Any] = {}
    if hosts.is_auto():
        del os.environ[ADDRESS]
    elif given := hosts.named():
        arguments = dict(zip(("coordinator_address", "num_processes", "process_id"), given))
    elif not hosts.are_several():
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", saves)
    address = arguments.get("coordinator_address", "the address that this cluster gives")
    patience = JOINING if arguments else JOINING_CLUSTER
    print(f"waiting up to {patience} s for the other processes of this run, at {address}", file=sys.stderr, flush=True)
    alone = threading.Timer(patience, _give_up, [address, patience])  # JAX would abort, with a stack of C++
    alone.daemon = True
    alone.start()
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=patience + 60,
            heartbeat_timeout_seconds=PATIENCE,
            shutdown_timeout_seconds=3600,  # the first process measures the model after the others have finished
        )
    except (RuntimeError, ValueError) as error:
        if not arguments and isinstance(error, ValueError):  # of what a cluster should have said
            raise UserError(
                f"JAX knows no cluster in this environment to find the processes of this run in; set {ADDRESS}=host:port of the"
                f" first process, {hosts.COUNT} and {hosts.INDEX}, or for one process none of them"
            ) from None
        raise UserError(f"the processes of this run did not find each other: {error}") from None
    finally:
        alone.cancel()
    _begin_witness()
    atexit.register(_part)
    meet("joined")  # connects them while all are present: later, JAX waits only half a minute


_witnesses: list[subprocess.Popen] = []
# Its last line is the text that it reads until this process ends: a message, a blank or nothing.
_WITNESS = "import sys; line = sys.stdin.read() or sys.argv[1]; line.isspace() or print(line, file=sys.stderr)"


def _begin_witness() -> None:
    """Starts a process that prints this one's last line, after everything that JAX's threads print during the exit."""
    said = (
        f"{who()} ended without a message: it was killed, or JAX ended it because another process is gone (see its output);"
        f" {_AGAIN}"
    )
    command = [sys.executable, "-I", "-S", "-c", _WITNESS, said]
    # In its own session: Ctrl-C reaches only us, and the witness sees us end.
    _witnesses.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))


def _part() -> None:
    """Waits at the exit until all others have ended too, or says that one of them is lost.

    JAX's own exit handler would wait as well, but later, when the witness is gone.
    """
    last = f"{who()} lost another process after its own work; {_AGAIN}"
    try:
        jax.distributed.shutdown()
    except RuntimeError:
        leave(2, last)
    while _witnesses:
        _witnesses.pop().communicate(b" ")


def who() -> str:
    """This process among those of the run, as its last line names it."""
    return f"bertlab: process {jax.process_index()} of {jax.process_count()}"


_AGAIN = "rerun the command for all processes; a training continues from its last checkpoint"


def meet(where: str) -> None:
    """Waits until all processes of the run arrive. Does nothing in a single process."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


@contextlib.contextmanager
def first_before_others(what: str) -> Iterator[None]:
    """The first process runs the block before the others; then all continue together."""
    if not is_first():
        meet(what)
    yield
    if is_first():
        meet(what)
    meet(f"{what} by all")


def alone(workdir: str | os.PathLike) -> contextlib.AbstractContextManager[None]:
    """Holds a run directory for all processes of the run; raises as `alone_at`, and for a directory that no run may have."""
    require_place(Path(workdir), "run")
    return alone_at(workdir, Run(workdir).lock)


@contextlib.contextmanager
def alone_at(place: str | os.PathLike, lock: Path | None = None) -> Iterator[None]:
    """Holds a directory or file for all processes: the first takes its lock (`bertlab.locks.alone`).

    Raises:
        UserError: in each of them, another process is at work there.
    """
    with contextlib.ExitStack() as stack:
        refusal = ""
        if is_first():
            try:
                stack.enter_context(locks.alone(place, lock))
            except UserError as error:
                refusal = str(error)
        if refusal := gather(refusal)[0]:
            raise UserError(refusal)
        yield


def _give_up(address: str, patience: int) -> None:
    print(
        f"error: the processes of this run did not find each other at {address} within {patience} s; check that all have"
        " started, with the same address and number of processes, and that they can reach that host and port",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)


def have_joined() -> bool:
    """Whether this process has joined others; does not take the devices."""
    return jax.distributed.is_initialized()


def leave(status: int, line: str) -> None:
    """Ends one of several processes at once, with a last line. An orderly end would wait for the others, which may be gone.

    A single process does nothing.
    """
    if jax.process_count() == 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    for witness in _witnesses:  # prints the line after this process has ended: until then JAX's threads may print more
        witness.stdin.write(line.encode())
        witness.stdin.flush()
    os._exit(status)


def is_first() -> bool:
    """Whether this process writes logs and results."""
    return jax.process_index() == 0


def part() -> tuple[int, int]:
    """(index, count) of this process among all."""
    return jax.process_index(), jax.process_count()


def gather(value: Any) -> list[Any]:
    """The JSON values of all processes, in the order of processes; every process calls it with its own."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(text)] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes)]


@contextlib.contextmanager
def company(*alike: type[Exception]) -> Iterator[None]:
    """Ends this process at once if something fails: an orderly end would wait for the others. No effect with one process.

    Args:
        alike: errors that all processes raise at the same place, so that they may end in order.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if jax.process_count() == 1 or isinstance(error, alike):
            raise
        status, line = 2, f"{who()} failed: {type(error).__name__}; see above"
        if isinstance(error, UserError):
            line = f"{who()}: {error}"
        elif isinstance(error, KeyboardInterrupt):
            status, line = 130, f"{who()} was interrupted; the others end with it"
        elif isinstance(error, (RuntimeError, ValueError)) and _LOST.search(cause := str(error).partition("\n")[0][:200]):
            line = f"{who()} lost another process; it was killed or failed (see its output); {_AGAIN}. ({cause})"
        elif said := failure_of_machine(error):
            status, line = 1, f"{who()}: {said}"
        else:
            traceback.print_exc()
        leave(status, line)
