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

from workloads import WORKLOADS, tell, tell_rates

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
    from bertlab.data.batches import prefetch
    from bertlab.train.build import build_pretraining
    from bertlab.train.loop import fit
    from bertlab.train.optimizers import build_optimizer
    from bertlab.train.processes import StopSignal
    from bertlab.train.sharding import build_mesh, put_batch
    from bertlab.train.state import build_step, init_state, zero_carry

    def fetch(step, state, sums):
        if step % 20 == 0:  # as the log hook
            jax.device_get(sums)

    recipe, overrides = WORKLOADS[name]
    text = {"data.corpus": f"text:{made_up_text(folder)}"}
    text["data.batch_size"] = rows or overrides["data.batch_size"]
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

        def step_turn(steps: int):
            nonlocal state
            for _ in range(steps):
                state, sums = train_step(state, batch)
            jax.block_until_ready(sums)

        def loop_turn(steps: int):
            nonlocal state
            ahead = contextlib.closing(prefetch(phase.batches, int(state.step), put))
            with StopSignal() as stop, ahead as batches:
                last = int(state.step) + steps
                state = fit(state, train_step, batches, last, [fetch], stop)
            jax.block_until_ready(state.step)

        turns = {"step_tokens": step_turn, "loop_tokens": loop_turn}
        best = tell_rates(turns, batch["tokens"].size, seconds)
    tell(share=round(best["loop_tokens"] / best["step_tokens"], 3))
    if memory := device.memory_stats():
        tell(gigabytes=round(memory["peak_bytes_in_use"] / 1e9, 2))
    if peak := PEAK.get(device.device_kind):
        _, flops = phase.costs(sums, length)
        tell(flop_share=round(flops / batch["tokens"].size * best["step_tokens"] / peak, 3))


def made_up_text(folder: Path) -> Path:
    """A file of random words, in sentences of twenty."""
    path = folder / "words.txt"
    if not path.exists():
        numbers = np.random.default_rng(0).integers(WORDS, size=(DOCUMENTS, LENGTH // 20, 20))
        words = np.char.add("w", numbers.astype(str))
        documents = ["\n".join(" ".join(sentence) + " ." for sentence in of) for of in words]
        path.write_text("\n\n".join(documents))
    return path


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
