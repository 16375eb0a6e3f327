"""Our side of a workload: the real loop's session, stepped as many times as it is told."""

import contextlib
import dataclasses
import itertools
import json
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from bertlab.bench.workloads import Workload
from bertlab.train.build import build_pretraining
from bertlab.train.environment import describe_environment
from bertlab.train.loop import Progress, Session


class TrainingSteps:
    """Training steps on the rows of a corpus, through the loop's own session: batches are read, put, stepped and counted."""

    def __init__(self, workload: Workload, *_):
        """Builds and compiles; `facts` says how long it took."""
        self.resources = contextlib.ExitStack()
        began = time.perf_counter()
        experiment = build_pretraining(workload.config())
        directory = self.resources.enter_context(tempfile.TemporaryDirectory())
        self.session = self.resources.enter_context(contextlib.closing(Session(experiment, Path(directory))))
        built = time.perf_counter()
        self.step = self.session.compile_training()
        self.facts = {"build_seconds": built - began, "compile_seconds": time.perf_counter() - built}
        data = experiment.config.data
        self.positions = data.batch_size * data.seq_len

    def round(self, steps: int) -> dict[str, float]:
        """So many steps: seconds, tokens that are no padding, positions, model FLOPs."""
        session = self.session
        session.progress = Progress()
        session.start_clock()
        for _ in range(steps):
            session.advance(self.step)
        session.fetch()
        found = session.progress
        return {
            "seconds": found.seconds,
            "tokens": found.tokens,
            "positions": steps * self.positions,
            "flops": found.flops,
        }

    def close(self) -> dict:
        """Ends the session; what is known of the device."""
        found = {"environment": describe_environment(), "peak_bytes": peak_device_bytes()}
        self.resources.close()
        return found


class Rows:
    """The input pipeline alone: batches are read and thrown away."""

    def __init__(self, workload: Workload):
        """Opens the prepared corpus, reads the first batch."""
        began = time.perf_counter()
        experiment = build_pretraining(workload.config())
        self.iterator = iter(experiment.phases[0].train)
        next(self.iterator)
        self.facts = {"first_batch_seconds": time.perf_counter() - began}

    def round(self, steps: int) -> dict[str, float]:
        """So many batches."""
        began, tokens, positions = time.perf_counter(), 0, 0
        for _ in range(steps):
            batch = next(self.iterator)
            tokens += int(np.count_nonzero(batch["documents"]))
            positions += batch["documents"].size
        return {"seconds": time.perf_counter() - began, "tokens": tokens, "positions": positions, "flops": 0.0}

    def close(self) -> dict:
        """Ends the threads."""
        self.iterator.close()
        return {"environment": describe_environment(), "peak_bytes": 0}


def ceiling(dtype: str) -> float:
    """FLOP/s of a large matrix product, the best of several: as fast as this device can be here."""
    size = 8192 if jax.default_backend() == "gpu" else 2048
    matrix = jax.random.normal(jax.random.key(0), (size, size)).astype(dtype)
    product = jax.jit(lambda x: x @ x).lower(matrix).compile()
    product(matrix).block_until_ready()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        product(matrix).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def peak_device_bytes() -> int:
    """Most memory that was in use on the first device; 0 where the device does not say (CPU)."""
    return int((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def write_examples(workload: Workload, path: str, count: int = 8) -> dict:
    """What a rival is given: batches as the model is shown them, masked already, in FILE.npz, and facts of the model beside it.

    Arrays are [count, B, ...]; those of MLM have its view's `masked_positions`, `masked_labels` and `masked_weights`.
    """
    experiment = build_pretraining(workload.config())
    phase = experiment.phases[0]
    with contextlib.closing(iter(phase.train)) as iterator:
        batches = list(itertools.islice(iterator, count))
    views = [phase.program.views(batch, jax.random.key(i)) for i, batch in enumerate(batches)]
    shown = [view.get("mlm") or next(iter(view.values())) for view in views]
    np.savez(path, **{name: np.stack([np.asarray(view[name]) for view in shown]) for name in shown[0]})
    shape = phase.program.body.config
    facts = {name: value for name, value in dataclasses.asdict(shape).items() if isinstance(value, int | float)}
    Path(path).with_suffix(".json").write_text(json.dumps(facts))
    return facts
