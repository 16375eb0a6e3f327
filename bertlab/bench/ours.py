"""Our side of the workloads, and the data that both sides work on."""

import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab.bench.workloads import LEARNING_RATE, REPLICAS, SEEDS, Runner, Workload
from bertlab.data.batches import train_batches
from bertlab.data.corpora import open_corpus
from bertlab.data.formats import row_length
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.models.attention import BACKENDS
from bertlab.models.presets import model_shape
from bertlab.run import StudyDirectory
from bertlab.studies.estimate import product_rate
from bertlab.train.build import Experiment, build_pretraining
from bertlab.train.chips import chip_of
from bertlab.train.choice import Shape, compiled, error_of, with_attention
from bertlab.train.cost import step_flops
from bertlab.train.environment import describe_environment
from bertlab.train.hlo import read_work
from bertlab.train.loop import Session
from bertlab.train.loop import train as train_run
from bertlab.train.made_up import made_up_experiment
from bertlab.train.optimizers import build_optimizer
from bertlab.train.plan import shortest
from bertlab.train.state import build_train_step, compile_lowered, fresh_state
from bertlab.train.width import update_factors

# bfloat16 products a second without sparsity, by NVIDIA's data sheets; the H100 is the SXM5.
PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12, "NVIDIA A100": 312e12}


def built(workload: Workload) -> Experiment:
    """The workload's pretraining, on its corpus or on made-up rows."""
    return (made_up_experiment if workload.made_up else build_pretraining)(workload.config())


class TrainingSteps(Runner):
    """Training steps, through the loop's own session."""

    def __init__(self, workload: Workload, *_):
        """Builds and compiles; `facts` holds how long each took."""
        super().__init__()
        began = time.perf_counter()
        experiment = with_attention(built(workload))
        directory = self.enter_context(tempfile.TemporaryDirectory())
        self.session = self.enter_context(contextlib.closing(Session(experiment, Path(directory))))
        ready = time.perf_counter()
        self.step = self.session.compile_training()
        self.facts = {"build_seconds": ready - began, "compile_seconds": time.perf_counter() - ready}
        self.facts |= {"attention": getattr(experiment.program.body.config, "attention", "")}
        self.facts |= limits(jax.devices()[0].device_kind, *self.step.values())
        data = experiment.config.data
        self.positions = data.batch_size * row_length(data)

    def round(self, steps: int) -> dict[str, float]:
        found, positions = self.session.count(self.step, steps), steps * self.positions
        return {"seconds": found.seconds, "tokens": found.tokens, "positions": positions, "flops": found.flops}


def limits(kind: str, step) -> dict[str, float]:
    """Of a device that is known: the manufacturer's FLOP/s, and on a TPU the least seconds of a compiled step by `plan`."""
    if chip := chip_of(kind):
        return {"peak": chip.flops, "bound_seconds": max(shortest(read_work(step.as_text()), chip).values())}
    peak = next((flops for name, flops in PEAKS.items() if kind.startswith(name)), None)
    return {"peak": peak} if peak else {}


class Replicas(Runner):
    """Training steps of several models that differ in their seed, in one program on the same batches (`jax.vmap`)."""

    def __init__(self, workload: Workload, *_):
        """Builds and compiles; `facts` holds how long compiling took."""
        super().__init__()
        experiment = with_attention(built(workload))
        config, [phase] = experiment.config, experiment.phases
        self.phase, self.seeds, self.batches = phase, np.arange(REPLICAS, dtype=np.int32), iter(phase.train)
        batch = next(self.batches)
        optimizer = build_optimizer(config.optimizer, config.train.steps, update_factors(phase.program, batch))
        step = build_train_step(phase.program, optimizer, phase.weights, 1, config.train.steps)
        self.states = jax.jit(jax.vmap(lambda seed: fresh_state(phase.program, optimizer, seed, batch)))(self.seeds)
        began = time.perf_counter()
        in_one = jax.jit(jax.vmap(step, in_axes=(0, None, 0)), donate_argnums=0)
        self.step = compile_lowered(in_one.lower(self.states, batch, self.seeds))
        self.facts = {"compile_seconds": time.perf_counter() - began}

    def round(self, steps: int) -> dict[str, float]:
        tokens = positions = 0
        for batch in itertools.islice(self.batches, steps):
            self.states, metrics = self.step(self.states, batch, self.seeds)
            tokens += REPLICAS * int(np.count_nonzero(batch["documents"]))
            positions += REPLICAS * batch["documents"].size
        sums = jax.device_get(metrics)
        if not np.isfinite(sums["parameter_norm"][0]).all():
            raise UserError("a replica's parameters are not finite, so the speed is meaningless")
        first = {name: (value[0][0], value[1][0]) for name, value in sums.items() if name.endswith("/loss")}
        flops = REPLICAS * steps * step_flops(self.phase, first, row_length(self.phase.data))
        return {"tokens": tokens, "positions": positions, "flops": flops}


class AttentionChoices(Runner):
    """One layer's attention, forward and backward, in each implementation; with dropout of the weights where it has that."""

    def __init__(self, workload: Workload, *_):
        """Compiles them; `facts["choices"]` has each one's error against float32, or why it failed."""
        super().__init__()
        config = workload.config()
        body = model_shape(config.model, config.data.tokenizer.vocab_size)
        sizes = (config.data.batch_size, row_length(config.data), body.heads, body.width // body.heads)
        shape, self.steps, choices = Shape(*sizes, workload.dtype, body.direction), {}, {}
        dropped = {f"{backend}, dropout": (backend, 0.1) for backend in BACKENDS if backend != "cudnn"}
        for name, (backend, rate) in ({backend: (backend, 0.0) for backend in BACKENDS} | dropped).items():
            try:
                error = None if rate else error_of(backend, shape, exact=True)
                step, seconds = compiled(backend, dataclasses.replace(shape, dropout=rate))
                step()  # memory may not suffice
                self.steps[name], choices[name] = step, {"error": error, "compile_seconds": seconds}
            except (ValueError, NotImplementedError, RuntimeError) as failure:  # the errors of kernels that refuse a shape
                choices[name] = {"failed": (str(failure) or repr(failure)).splitlines()[0][:200]}
        self.facts = {"choices": choices, "shape": str(shape)}

    def round(self, steps: int) -> dict:
        return {"choices": {name: min(step() for _ in range(10)) for name, step in self.steps.items()}}


class Rows(Runner):
    """The input pipeline: batches are read and thrown away."""

    def __init__(self, workload: Workload, *_):
        """Opens the prepared corpus and reads the first batch."""
        super().__init__()
        began = time.perf_counter()
        experiment = build_pretraining(workload.config())
        self.batches = self.enter_context(contextlib.closing(iter(experiment.phases[0].train)))
        next(self.batches)
        self.facts = {"first_batch_seconds": time.perf_counter() - began}

    def round(self, steps: int) -> dict[str, float]:
        return dict(zip(("tokens", "positions"), _read(self.batches, steps)))


class RowsApart(Runner):
    """Like `Rows`, with one process per shard, as on several hosts: each reads its own rows of every batch."""

    def __init__(self, workload: Workload, *_):
        """Starts the processes and waits until each has read a batch."""
        super().__init__()
        data, context = workload.config().data, multiprocessing.get_context("spawn")
        prepare(data)
        self.pipes = []
        for index in range(data.shards):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_read_when_told, args=(data, index, theirs), daemon=True)
            process.start()
            theirs.close()
            self.callback(process.join)
            self.callback(pipe.send, 0)
            self.pipes.append(pipe)
        self.round(1)

    def round(self, steps: int) -> dict[str, float]:
        for pipe in self.pipes:
            pipe.send(steps)
        return dict(zip(("tokens", "positions"), map(sum, zip(*(pipe.recv() for pipe in self.pipes)))))


def _read(batches: Iterator[dict[str, np.ndarray]], steps: int) -> tuple[int, int]:
    """Reads this many batches; their tokens (without padding) and positions."""
    documents = [next(batches)["documents"] for _ in range(steps)]
    return sum(int(np.count_nonzero(each)) for each in documents), sum(each.size for each in documents)


def _read_when_told(data: ConfigDict, index: int, pipe: Connection) -> None:
    with contextlib.closing(iter(train_batches(prepare(data), data, (index, data.shards)))) as batches:
        while steps := pipe.recv():
            pipe.send(_read(batches, steps))


class Preparation(Runner):
    """Text to rows, in a new directory each time, up to the first batch."""

    def __init__(self, workload: Workload, given: str, *_):
        """Args: given: the directory that `write_text` filled."""
        super().__init__()
        self.data = workload.config().data
        self.data.corpus, self.data.tokenizer.path = f"text:{given}/text.jsonl", f"{given}/tokenizer"

    def round(self, steps: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as self.data.directory:
            began = time.perf_counter()
            with contextlib.closing(iter(train_batches(prepare(self.data), self.data))) as batches:
                next(batches)
                return {"seconds": time.perf_counter() - began}


class FineTunings(Runner):
    """Eight seeds on a task, as `bertlab finetune --seeds` trains them."""

    settings: ClassVar = {"data.buckets": (16, 32, 64), "optimizer.learning_rate": LEARNING_RATE}

    def __init__(self, workload: Workload, given: str, *_):
        """Args: given: the directory that `write_task` filled."""
        super().__init__()
        self.given = Path(given)

    def round(self, steps: int) -> dict[str, float]:
        from bertlab.studies.grid import finetuning_grid  # these import pandas and SciPy, which training steps do not need
        from bertlab.studies.launchers import Local
        from bertlab.studies.sweep import sweep

        seeds, jobs = ",".join(map(str, range(1, SEEDS + 1))), len(os.sched_getaffinity(0))
        study = finetuning_grid(self.given / "run", str(self.given / "task.py"), seeds, None, self.settings, "bert")
        with tempfile.TemporaryDirectory() as directory:
            began = time.perf_counter()
            sweep(study, directory, Local(jobs))
            seconds = time.perf_counter() - began
            runs = [run.stage("finetune", task) for run in StudyDirectory(directory).runs() for task in run.tasks("finetune")]
            results = [run.result.read() for run in runs if run.result.exists()]
        if len(results) != SEEDS:
            raise UserError(f"{SEEDS - len(results)} of {SEEDS} fine-tunings did not finish")
        return {"seconds": seconds, "score": statistics.mean(of["metrics"]["test"]["the/accuracy"] for of in results)}


def environment() -> dict:
    """Versions and devices, without the command because it contains paths of this machine."""
    return {key: value for key, value in describe_environment().items() if key != "command"}


def ceiling(dtype: str) -> float:
    """FLOP/s of a large matrix product: the upper bound for this device."""
    return product_rate(2048 if jax.default_backend() == "cpu" else 8192, dtype, times=10)


def peak_device_bytes() -> int:
    """Peak memory of the first device in bytes; 0 if the device does not report it (a CPU)."""
    return int((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def write_text(workload: Workload, directory: str, size: int = 100_000_000) -> dict:
    """Writes `size` bytes of a corpus as text.jsonl, repeated if it is shorter, and a tokenizer trained on it."""
    data, target, written, passes = workload.config().data, Path(directory), 0, 0
    target.mkdir(parents=True, exist_ok=True)
    corpus = open_corpus(data.corpus)
    with (target / "text.jsonl").open("w", encoding="utf-8") as file:
        while written < size:
            for document in corpus.documents():
                text = "\n".join(document.sentences)
                written += len(text.encode())
                file.write(json.dumps({"id": f"{passes}/{document.id}", "text": text}) + "\n")
                if written >= size:
                    break
            passes += 1
    prepared = prepare(data)
    prepared.tokenizer.save(target / "tokenizer")
    return {"bytes": written, "passes": passes}


def write_task(workload: Workload, directory: str, train: int = 2500, held_out: int = 250) -> dict:
    """Writes a BERT with fresh weights, and a task it can learn: does a sentence contain "the"?"""
    config, target = workload.config(), Path(directory)
    config.train.steps = 0
    train_run(config, target / "run")
    _write_facts(model_shape(config.model, prepare(config.data).tokenizer.vocab_size), target)
    wanted, with_and_without = train + 2 * held_out, ([], [])
    sentences = (s.split() for document in open_corpus(config.data.corpus).documents() for s in document.sentences)
    for words in sentences:
        found = with_and_without["the" not in words]
        if len(words) >= 8 and len(found) < wanted / 2:
            found.append(" ".join(words))
        if sum(map(len, with_and_without)) >= wanted:
            break
    if sum(map(len, with_and_without)) < wanted:
        raise UserError(f'config.data.corpus={config.data.corpus!r} has too few sentences with and without "the" for {wanted}')
    examples = [(int(not number), text) for number, texts in enumerate(with_and_without) for text in texts]
    order = np.random.default_rng(0).permutation(wanted)
    parts = np.split(order, [train, train + held_out])
    for split, chosen in zip(("train", "valid", "test"), parts, strict=True):
        lines = [f"{examples[i][1]}\t{examples[i][0]}" for i in chosen]
        (target / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    (target / "task.py").write_text(
        "from bertlab.transfer.tasks import table\n\n"
        'TASK = table("the", train="train.tsv", valid="valid.tsv", test="test.tsv", text="sentence", label="label")\n'
    )
    return {"examples": train}


def write_examples(workload: Workload, directory: str, count: int = 8) -> dict:
    """Writes batches as the model sees them, masked already, to rows.npz, and the model's sizes to model.json.

    Arrays are [count, B, ...]; MLM adds `masked_positions`, `masked_labels` and `masked_weights`.
    """
    phase = built(workload).phases[0]
    with contextlib.closing(iter(phase.train)) as iterator:
        batches = list(itertools.islice(iterator, count))
    views = [phase.program.views(batch, jax.random.key(i)) for i, batch in enumerate(batches)]
    shown = [next(iter(view.values())) for view in views]  # ELMo's directions read the same rows
    Path(directory).mkdir(exist_ok=True)
    np.savez(Path(directory, "rows.npz"), **{name: np.stack([np.asarray(view[name]) for view in shown]) for name in shown[0]})
    return _write_facts(phase.program.body.config, directory)


def _write_facts(shape, directory: str | Path) -> dict:
    facts = {name: value for name, value in dataclasses.asdict(shape).items() if isinstance(value, int | float)}
    Path(directory, "model.json").write_text(json.dumps(facts))
    return facts


WRITERS = {"prepare": write_text, "finetune": write_task}
"""What writes the data of both sides, by kind; `write_examples` for other kinds."""
RUNNERS = {"step": TrainingSteps, "start": TrainingSteps, "rows": Rows, "rows-apart": RowsApart, "prepare": Preparation}
RUNNERS |= {"finetune": FineTunings, "replicas": Replicas, "attention": AttentionChoices}
