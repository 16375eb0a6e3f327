"""Several hosts that work on each run together, such as those of a TPU slice: the same command runs on each.

The first host has the sweep. For each run it writes a turn to `hosts/0.json` of the study's directory and starts its worker.
The others (`follow`) read the turn, start theirs, and write how it ended to `hosts/INDEX.json`. The workers are the processes
of one run (`bertlab.train.processes`). All hosts rewrite their file every second, so one that is gone is noticed by its
silence. A turn names the tokens of the hosts that it is for, so what an earlier sweep left starts nothing. The first one's last
word is its exit status. A host that is told to stop says that it leaves, and all stop.

Files, because a study's directory is shared anyway, and JAX's own way to send messages would take the devices.
"""

import contextlib
import math
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertlab import alive
from bertlab.errors import UserError
from bertlab.files import misfit, parse_json, write_json
from bertlab.interrupts import interruptible
from bertlab.locks import alone
from bertlab.run import Run, StudyDirectory
from bertlab.studies.launchers.base import Launcher, Process, append_line, start_worker

BEAT_SECONDS = 1.0  # between two writes of a host's file
POLL_SECONDS = 0.2  # between two reads of the first host's file
JOINING = 600.0  # seconds until all hosts must have come
ENDING = 60.0  # seconds in which the others may read that the sweep has ended, and end
WITNESS = 5.0  # seconds until a worker's last line must be in its log (`bertlab.train.processes`)

_FORM = {"beat": str, "turn": int, "run?": str, "seen?": {str: str}, "token?": str, "status?": (int, None), "leaves?": bool}


class Sign:
    """A host's own file, rewritten every second by a thread."""

    def __init__(self, path: Path, **said: Any):
        self._path, self._said, self._lock, self._done = path, said, threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self.say()
        self._thread.start()

    def say(self, **said: Any) -> None:
        """Changes what the file says, and writes it."""
        with self._lock:
            self._said |= said
            write_json(self._path, {**self._said, "beat": secrets.token_hex(8)})

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):  # a full disk: the others notice the silence
                self.say()

    def close(self) -> None:
        """Stops writing."""
        self._done.set()
        self._thread.join()


class Watched:
    """Another host's file."""

    def __init__(self, path: Path):
        self._path, self._beat, self._since = path, None, time.monotonic()

    def read(self) -> dict[str, Any]:
        """What it says; {} if it is not there."""
        with contextlib.suppress(OSError, ValueError):
            said = parse_json(self._path.read_text(encoding="utf-8"))
            if not misfit(said, _FORM):
                if said["beat"] != self._beat:
                    self._beat, self._since = said["beat"], time.monotonic()
                return said
        return {}

    def is_gone(self) -> bool:
        """Whether there is no file."""
        return not self._path.exists()

    def is_silent(self) -> bool:
        """Whether it has been there, and gives no sign of life now."""
        return self._beat is not None and self.silent_for() >= alive.PATIENCE

    def silent_for(self) -> float:
        """Seconds, by this host's clock, since `read` last found something new."""
        return time.monotonic() - self._since


class Slice(Launcher):
    """The first host's launcher: each run takes all hosts.

    Args:
        workdir: The study's directory, of which this process holds the lock.
        count: Number of hosts.

    Attributes:
        stopping: Whether the running worker was told to end: what the others do no longer matters.
    """

    jobs, is_here = 1, True

    def __init__(self, workdir: Path, count: int):
        self._workdir, self._turn, self._tokens, self.stopping = workdir, 0, {}, False
        folder = StudyDirectory(workdir).hosts
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.json"):  # of an earlier sweep; a host that is here writes its own again
            file.unlink(missing_ok=True)
        self._others = {index: Watched(folder / f"{index}.json") for index in range(1, count)}
        self._sign = Sign(folder / "0.json", token=secrets.token_hex(8), turn=0, run="", seen={})
        self._folder = folder

    def share(self, workers: int) -> float | None:
        return 1.0

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "SliceRun":
        self._tokens = self._assembled()
        self._turn += 1
        inherited = () if lock is None else (lock,)  # as `Local`: no new sweep starts beside a worker that is at work
        process = start_worker([*command, "--together"], directory, pass_fds=inherited)
        self._sign.say(turn=self._turn, run=os.path.relpath(directory, self._workdir), seen=self._tokens)
        return SliceRun(self, process, directory, self._turn)

    def _assembled(self) -> dict[str, str]:
        """The tokens of the others, when all are here.

        Raises:
            UserError: One does not come, or has gone.
            KeyboardInterrupt: One was told to stop.
        """
        deadline = time.monotonic() + JOINING
        while True:
            said = {index: other.read() for index, other in self._others.items()}
            self._require_staying(said)
            away = [i for i, of in said.items() if not of or self._others[i].is_silent()]
            if not away:
                return {str(index): of["token"] for index, of in said.items()}
            if time.monotonic() > deadline:
                raise UserError(
                    f"host {away[0]} of {len(said) + 1} is not here after {JOINING:.0f} s; start the same command on all hosts,"
                    " with a --workdir that they share"
                )
            time.sleep(POLL_SECONDS)

    def endings(self, turn: int) -> dict[int, int | None]:
        """How the others' workers of a turn have ended; None while one is at work.

        Raises:
            UserError: A host that has not said it gives no sign of life, or began again.
            KeyboardInterrupt: One was told to stop.
        """
        said = {index: other.read() for index, other in self._others.items()}
        self._require_staying(said)
        if again := [index for index, of in said.items() if of and of["token"] != self._tokens[str(index)]]:
            raise UserError(
                f"host {again[0]} of {len(said) + 1} began again in the middle of a run; run the same command on all hosts"
                " again: it goes on from the last checkpoints"
            )
        found = {index: of.get("status") if of.get("turn") == turn else None for index, of in said.items()}
        for index, other in self._others.items():
            if found[index] is None and other.is_silent():
                raise UserError(
                    f"host {index} of {len(self._others) + 1} has given no sign of life for {other.silent_for():.0f} s; end its"
                    " command if it is there, and run the same command on all hosts again: it goes on from the last checkpoints"
                )
        return found

    def _require_staying(self, said: dict[int, dict[str, Any]]) -> None:
        """Raises KeyboardInterrupt, as Ctrl-C here would, if one of the others was told to stop."""
        if leaving := [index for index, of in said.items() if of.get("leaves")]:
            print(f"host {leaving[0]} of {len(said) + 1} was told to stop", flush=True)
            raise KeyboardInterrupt

    def end(self, status: int) -> None:
        """Tells the others how the study has ended, and waits until they have read it.

        One that comes only now is told too; one that gives no sign of life any more is not waited for.

        Args:
            status: The exit status of all.
        """
        began, waited, told, gone, is_said = time.monotonic(), set(self._others), {}, {}, False
        try:
            self._sign.say(turn=-1, status=status, seen={})
            while waited and time.monotonic() - began < ENDING:
                for index in sorted(waited):
                    other = self._others[index]
                    said = other.read()
                    since = gone.setdefault(index, time.monotonic()) if str(index) in told and other.is_gone() else math.inf
                    if said.get("leaves") or other.is_silent() or time.monotonic() - since > BEAT_SECONDS:
                        waited.discard(index)
                    elif said and told.get(str(index)) != said["token"]:
                        told[str(index)] = said["token"]
                        gone.pop(index, None)  # another one, which waited for it
                        self._sign.say(seen=dict(told))
                if waited and not is_said and time.monotonic() - began > 3 * BEAT_SECONDS:
                    is_said = True
                    print(
                        f"waiting up to {ENDING:.0f} s for host {min(waited)}, to tell it that the study has ended", flush=True
                    )
                time.sleep(POLL_SECONDS)
        except OSError:  # a full disk: the others notice the silence
            pass
        finally:
            self._sign.close()
            with contextlib.suppress(OSError):  # a file of a host that is gone stays
                for index, other in self._others.items():
                    if other.read().get("leaves"):
                        (self._folder / f"{index}.json").unlink()
                (self._folder / "0.json").unlink()
                self._folder.rmdir()


class SliceRun(Process):
    """A `Process`: one run, by a worker on each host. It has ended when all have."""

    def __init__(self, slice: Slice, process: subprocess.Popen, directory: Path, turn: int):
        self._slice, self._process, self._directory, self._turn = slice, process, directory, turn
        self._status: int | None = None
        self._ended = 0.0

    def poll(self) -> int | None:
        own = self._process.poll()
        if self._slice.stopping:
            return own
        if self._status is None:
            endings = self._slice.endings(self._turn)
            if own is None:
                return None
            self._ended = self._ended or time.monotonic()
            if None in endings.values():
                return None
            if own and not self._said() and time.monotonic() - self._ended < WITNESS:
                return None
            self._status = own
            if failed := {index: status for index, status in endings.items() if status and not own}:
                index, self._status = next(iter(failed.items()))
                append_line(self._directory, f"error: the worker on host {index} failed; see log-{index}.txt")
        return self._status

    def _said(self) -> bool:
        """Whether the worker's last line is there: it comes after the worker's end."""
        lines = Run(self._directory).log.read_text("utf-8", "replace").strip().splitlines()
        return bool(lines) and lines[-1].startswith("bertlab: process ")

    def stop(self) -> None:
        self._slice.stopping = True
        self._process.terminate()  # JAX tells the others

    def kill(self) -> None:
        self._slice.stopping = True
        self._process.kill()  # the others notice it within a minute


def lead(workdir: Path, count: int, work: Callable[[Slice], int]) -> int:
    """What the first host does: the work of a study, with the study's lock. At the end, however it comes, the others end too.

    Args:
        workdir: The study's directory.
        count: Number of hosts.
        work: Is given the launcher; returns the exit status.

    Raises:
        UserError: Another sweep is at work there.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with alone(workdir, StudyDirectory(workdir).lock, required=True):
        launcher, status = Slice(workdir, count), 1
        try:
            status = work(launcher)
        except UserError:
            status = 2
            raise
        except KeyboardInterrupt:
            status = 130
            raise
        finally:
            with contextlib.suppress(KeyboardInterrupt):  # how the work has ended counts
                launcher.end(status)
    return status


def follow(workdir: Path, index: int, count: int) -> int:
    """What all hosts but the first do: they take their part in each run, until the first says that the study has ended.

    Args:
        workdir: The study's directory.
        index: Of this host, from 1.
        count: Number of hosts.

    Returns:
        The exit status of the first.

    Raises:
        UserError: The first host does not come, gives no sign of life, or began again.
    """
    folder = StudyDirectory(workdir).hosts
    print(f"host {index} of {count}: takes part in the runs that the first host begins in {workdir}", flush=True)
    with alone(folder / f"{index}.json", wait=True) as lock:  # one that is leaving may still save
        return _follow(workdir, folder, index, count, lock)


def _follow(workdir: Path, folder: Path, index: int, count: int, lock: int | None) -> int:
    token, turn, worker, leaves = secrets.token_hex(8), 0, None, False
    first, leader = Watched(folder / "0.json"), None
    sign = Sign(folder / f"{index}.json", token=token, turn=0, status=None)
    try:
        while True:
            said = first.read()
            is_mine = said.get("seen", {}).get(str(index)) == token
            leader = leader or (said.get("token", "?") if is_mine else None)
            if leader and said.get("token", leader) != leader:
                raise UserError(
                    f"the first of {count} hosts began again in {workdir}; run the same command on all hosts again: it goes on"
                    " from the last checkpoints"
                )
            if worker is not None and (status := worker.poll()) is not None:
                worker = None
                sign.say(turn=turn, status=status)
            if is_mine and said["turn"] < 0:
                if status := said.get("status") or 0:
                    print(f"host {index} of {count}: the first has ended with status {status}, and says why", flush=True)
                return status
            if is_mine and said["turn"] > turn and worker is None:
                turn, directory = said["turn"], workdir / said["run"]
                print(f"{said['run']}: takes part; see {directory / f'log-{index}.txt'}", flush=True)
                worker = _begin(directory, index, lock)
            if first.silent_for() >= (alive.PATIENCE if leader else JOINING):
                raise UserError(
                    f"the first of {count} hosts has given no sign of life for {first.silent_for():.0f} s in {workdir}; run the"
                    " same command on all hosts again, with a --workdir that they share"
                )
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        leaves = True
        with contextlib.suppress(OSError):
            sign.say(leaves=True)
        sign.close()  # the first may read it later, and the next study removes it once
        raise
    finally:
        if worker is not None:
            with interruptible(worker.kill) as signals:
                signals.saving()
                worker.terminate()  # JAX tells the others
                worker.wait()
        sign.close()
        if not leaves or first.is_gone():
            (folder / f"{index}.json").unlink(missing_ok=True)


def _begin(directory: Path, index: int, lock: int | None) -> subprocess.Popen:
    """Starts this host's worker of a run, which holds the host's lock as long as it works."""
    job = Run(directory).job.path.resolve()
    command = [sys.executable, "-u", "-m", "bertlab.studies.worker", "--run", str(job), "--together"]
    inherited = () if lock is None else (lock,)
    return start_worker(command, directory, directory / f"log-{index}.txt", pass_fds=inherited)
