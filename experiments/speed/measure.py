"""A workload of `bench.py`: prints its numbers as they are found.

python experiments/speed/measure.py WORKLOAD FOLDER SECONDS_A_TURN ROWS
"""

import contextlib
import functools
import os
import sys
import time
from pathlib import Path

import numpy as np

from workloads import WORKLOADS, tell

STARTED = time.perf_counter()
WORDS, DOCUMENTS, LENGTH = 60_000, 600, 1000
"""Of the text: different words, documents, and words of each."""
PEAK = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
"""Bfloat16 products a second, without sparsity, by the manufacturer."""


def main(name: str, folder: Path, seconds: float, rows: int) -> None:
    """Measures a workload: compiles its step, then turns of the step alone and of the loop."""
    os.environ["BERTLAB_CACHE"] = str(folder / "cache")
    import jax

    from bertlab.config.load import load_config
    from bertlab.train.build import build_pretraining
    from bertlab.train.optimizers import build_optimizer
    from bertlab.train.sharding import build_mesh, put_batch
    from bertlab.train.state import build_step, init_state, zero_carry

    recipe, overrides = WORKLOADS[name]
    text = {"data.corpus": f"text:{made_up_text(folder)}"}
    text |= {"data.batch_size": rows} if rows else {}
    device = jax.devices()[0]
    tell(stage="prepares text", device=device.device_kind, jax=jax.__version__)
    with contextlib.redirect_stdout(sys.stderr):
        config = load_config(recipe, {**overrides, **text})
        experiment = build_pretraining(config)
    tell(stage="compiles")
    (phase,), mesh = experiment.phases, build_mesh(config.mesh)
    put = functools.partial(put_batch, mesh)
    optimizer = build_optimizer(
        config.optimizer, config.train.steps, experiment.program, experiment.example
    )
    with jax.set_mesh(mesh):
        state = init_state(experiment.program, optimizer, mesh, config.seed, experiment.example)
        state = state.replace(carry=zero_carry(phase.program, mesh, phase.rows))
        train_step = build_step(config, phase, optimizer, mesh, state)
        batch = put(phase.batches(0))
        begin = time.perf_counter()
        state, sums = train_step(state, batch)
        jax.block_until_ready(sums)
        now, length = time.perf_counter(), batch["tokens"].shape[1]
        tell(rows=phase.rows, length=length, stage="steps")
        tell(compile_seconds=round(now - begin, 1), first_step_seconds=round(now - STARTED, 1))
        views = experiment.program.views(batch, jax.random.key(0), np.float32(0))
        if (view := views.get("mlm", views.get("batch"))) is not None:  # LTR reads the batch itself
            np.savez(folder / f"{name}.npz", **jax.device_get(view))
        best = rates(train_step, state, batch, phase, put, seconds)
    tell(share=round(best["loop_tokens"] / best["step_tokens"], 3))
    if memory := device.memory_stats():
        tell(gigabytes=round(memory["peak_bytes_in_use"] / 1e9, 2))
    if peak := PEAK.get(device.device_kind):
        _, flops = phase.costs(sums, length)
        tell(flop_share=round(flops / batch["tokens"].size * best["step_tokens"] / peak, 3))


def rates(train_step, state, batch, phase, put, seconds: float) -> dict[str, int]:
    """The best of three turns, in tokens a second: of the step alone and of `fit`."""
    import jax

    from bertlab.data.batches import prefetch
    from bertlab.train import loop
    from bertlab.train.processes import StopSignal

    def step_turn(state, steps: int):
        for _ in range(steps):
            state, sums = train_step(state, batch)
        jax.block_until_ready(sums)
        return state

    def loop_turn(state, steps: int):
        ahead = contextlib.closing(prefetch(phase.batches, int(state.step), put))
        with StopSignal() as stop, ahead as batches:
            last = int(state.step) + steps
            state = loop.fit(state, train_step, batches, last, [fetch], stop)
        jax.block_until_ready(state.step)
        return state

    def fetch(step, state, sums):
        """As the log hook, every twenty steps."""
        if step % 20 == 0:
            jax.device_get(sums)

    turns, best = {"step_tokens": step_turn, "loop_tokens": loop_turn}, {}
    begin = time.perf_counter()
    state = step_turn(state, 2)
    steps = max(2, round(seconds * 2 / (time.perf_counter() - begin)))
    for _ in range(3):
        for key, turn in turns.items():
            begin = time.perf_counter()
            state = turn(state, steps)
            rate = steps * batch["tokens"].size / (time.perf_counter() - begin)
            best[key] = max(best.get(key, 0), round(rate))
        tell(**best)
    return best


def made_up_text(folder: Path) -> Path:
    """A file of random words, in sentences of twenty."""
    path = folder / "words.txt"
    if not path.exists():
        numbers = np.random.default_rng(0).integers(WORDS, size=(DOCUMENTS, LENGTH // 20, 20))
        documents = [
            "\n".join(" ".join(f"w{number}" for number in sentence) + " ." for sentence in document)
            for document in numbers
        ]
        path.write_text("\n\n".join(documents))
    return path


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
