"""A trace of a few training steps, for TensorBoard's profile plugin and for Perfetto (`config.profile`)."""

import contextlib
from pathlib import Path

import jax

from bertlab.train.processes import is_first

WARM_UP = 3  # steps of a process before the first traced one


class Trace:
    """Traces steps of the loop and writes the trace. With several processes, the first traces itself and its devices.

    The loop waits for the device before and after the traced steps, so the trace has all their work and everything in between
    (a log line, an evaluation, another phase's compilation).

    Args:
        count: number of steps to trace; fewer if fewer remain.
        directory: the files go to `plugins/profile/TIME/` in it.
        begin: number of steps done when this process started.
        steps: of the whole run.
    """

    def __init__(self, count: int, directory: Path, begin: int, steps: int):
        wanted = count > 0 and begin < steps
        self._first = begin + min(WARM_UP, steps - begin - 1) if wanted else None
        self._last = min(self._first + count, steps) if wanted else None
        self._directory, self._running = directory, False

    def due(self, step: int) -> bool:
        """Whether the trace begins or ends after this many steps."""
        return step in (self._first, self._last)

    def begin_at(self, step: int) -> None:
        """Begins the trace if this is the step; the device must be idle."""
        if step == self._first and is_first():
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # an event for each Python call would slow the traced steps
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True, profiler_options=options)
            self._running = True

    def step(self, number: int):
        """A context for dispatching the `number`-th step; TensorBoard's step view uses it."""
        return jax.profiler.StepTraceAnnotation("train", step_num=number) if self._running else contextlib.nullcontext()

    def end_at(self, step: int) -> None:
        """Writes the trace if this is the step; the device must be idle."""
        if step == self._last:
            self.close()

    def close(self) -> None:
        """Writes an unfinished trace."""
        if not self._running:
            return
        self._running = False
        jax.profiler.stop_trace()
        file = max(self._directory.glob("plugins/profile/*/perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
        print(
            f"wrote a trace: tensorboard --logdir={self._directory} shows it (pip install tensorboard xprof), or"
            f" open {file} in https://ui.perfetto.dev",
            flush=True,
        )
