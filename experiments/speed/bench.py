"""Training speed on this machine: compile time, a step by itself, and the loop around it.

    python experiments/speed/bench.py FILE.jsonl [--only=bert-tiny,...] [--steps=60] [--seconds=240]

Each workload runs in a process of its own with a time limit, and its line is appended to FILE as
soon as it is known: a workload that hangs costs no other its number. A line has

    compile_seconds     from the first call of the training step to its result
    step_tokens         tokens a second if the same batch, on the device, is trained on again
    loop_tokens         tokens a second through `fit`, with batches from the prepared corpus and the
                        log hook every 20 steps; both are the best of three turns, which alternate
    share               loop_tokens over step_tokens
    pytorch_tokens      the same of transformers' model in PyTorch on the same rows and masks, its
                        output layer on the masked positions only; where PyTorch is installed
    gigabytes           the device's peak memory, where the device reports it

Padding counts as tokens, in all of them.
"""

import argparse
import contextlib
import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 240
RECIPE = "experiments/pretrain/{}.py:size={},objectives={}"
TEXT = {"data.tokenizer.vocab_size": 4096, "evaluate.sentences": 0}
SMALL = {"data.batch_size": 32, "data.seq_len": 128, "train.phases": "", **TEXT}
LARGE = {**SMALL, "data.batch_size": 256, "model.dtype": "bfloat16"}
WORKLOADS = {
    "bert-tiny": (RECIPE.format("bert", "tiny", "mlm"), SMALL),
    "bert-mini": (RECIPE.format("bert", "mini", "mlm"), SMALL),
    "gpt-mini": (RECIPE.format("gpt", "mini", "ltr"), SMALL),
    "elmo-small": (RECIPE.format("elmo", "small", "bilm"), TEXT),
    "bert-base": (RECIPE.format("bert", "base", "mlm"), LARGE),
    "bert-base, no dropout": (
        RECIPE.format("bert", "base", "mlm"),
        {**LARGE, "model.dropout": 0.0},
    ),
}


def main():
    """Measures the workloads one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="bert-tiny,bert-mini", help="workloads, with commas")
    parser.add_argument("--steps", type=int, default=60, help="of a turn")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="limit of a workload")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(arguments.worker, arguments.steps)))
        return
    for name in arguments.only.split(","):
        command = [sys.executable, __file__, arguments.file, f"--worker={name}"]
        command += [f"--steps={arguments.steps}"]
        try:
            done = subprocess.run(
                list(map(str, command)),
                stdout=subprocess.PIPE,
                text=True,
                timeout=arguments.seconds,
            )
            failure = f"exit status {done.returncode}"
            line = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else None
        except subprocess.TimeoutExpired:
            failure, line = f"took more than {arguments.seconds} s", None
        line = {"workload": name, **(line or {"failure": failure})}
        print(json.dumps(line), flush=True)
        with arguments.file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def measure(name: str, steps: int) -> dict:
    """The numbers of one workload."""
    import jax
    import numpy as np

    from bertlab.config.load import load_config
    from bertlab.data.prefetch import prefetch
    from bertlab.train import hooks, loop
    from bertlab.train.build import build_pretraining
    from bertlab.train.layer_groups import layer_plan
    from bertlab.train.optimizers import build_optimizer
    from bertlab.train.run_directory import RunDirectory
    from bertlab.train.sharding import build_mesh, put_batch
    from bertlab.train.state import init_state, zero_carry

    recipe, overrides = WORKLOADS[name]
    total = 6 * steps + 2
    config = load_config(recipe, {**overrides, "train.steps": total})
    experiment = build_pretraining(config)
    (phase,) = experiment.phases
    mesh = build_mesh(config.mesh)
    optimizer = build_optimizer(config.optimizer, total, experiment.program, experiment.example)
    state = init_state(experiment.program, optimizer, mesh, config.seed, experiment.example)
    state = state.replace(carry=zero_carry(phase.program, mesh, phase.rows))
    train_step = loop.build_step(config, phase, optimizer, mesh, state)
    put = functools.partial(put_batch, mesh)
    batch = put(phase.batches(0))
    tokens = batch["tokens"].size
    result = {"device": jax.devices()[0].device_kind, "devices": jax.device_count()}
    result |= {"jax": jax.__version__, "rows": phase.rows, "length": batch["tokens"].shape[1]}
    with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        state, sums = train_step(state, batch)
        jax.block_until_ready(sums)
        result["compile_seconds"] = round(time.perf_counter() - begin, 1)
        rate = layer_plan(config.optimizer, total, state.params).rate
        log = hooks.Log(RunDirectory(folder), hooks.Totals(), total, 20, rate, ())
        log.begin_phase(phase)
        found = {"step_tokens": [], "loop_tokens": []}
        with loop.StopSignal() as stop, contextlib.redirect_stdout(sys.stderr):
            for _ in range(3):
                begin = time.perf_counter()
                for _ in range(steps):
                    state, sums = train_step(state, batch)
                jax.block_until_ready(sums)
                found["step_tokens"].append(steps * tokens / (time.perf_counter() - begin))
                first = int(state.step)
                begin = time.perf_counter()
                with contextlib.closing(prefetch(phase.batches, first, put)) as batches:
                    state = loop.fit(state, train_step, batches, first + steps, [log], stop)
                jax.block_until_ready(state.params)
                found["loop_tokens"].append(steps * tokens / (time.perf_counter() - begin))
        log.close()
    result |= {key: round(max(values)) for key, values in found.items()}
    result["share"] = round(result["loop_tokens"] / result["step_tokens"], 3)
    if memory := jax.devices()[0].memory_stats():
        result["gigabytes"] = round(memory["peak_bytes_in_use"] / 1e9, 2)
    if importlib.util.find_spec("transformers") and "bert" in name and config.model.size != "base":
        views = experiment.program.views(batch, jax.random.key(0), np.float32(0))
        result["pytorch_tokens"] = round(pytorch(config, jax.device_get(views["mlm"]), steps))
        result["beside_pytorch"] = round(result["step_tokens"] / result["pytorch_tokens"], 2)
    return result


def pytorch(config, view, steps: int) -> float:
    """Tokens a second of the same step in PyTorch: model, masked positions, clipping, AdamW."""
    import torch
    import transformers

    from bertlab.models.presets import model_shape

    shape = model_shape(config.model, config.data.tokenizer.vocab_size)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.hidden,
        )
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01)
    fields = {name: torch.tensor(view[name]).long().to(device) for name in ("tokens", "segments")}
    inside = torch.tensor(view["documents"] > 0).to(device)
    rows, slots = (view["masked_weights"] > 0).nonzero()
    positions = torch.tensor(view["masked_positions"][rows, slots]).long().to(device)
    labels = torch.tensor(view["masked_labels"][rows, slots]).long().to(device)
    rows = torch.tensor(rows).to(device)

    def step():
        hidden = model.bert(fields["tokens"], inside.long(), fields["segments"]).last_hidden_state
        logits = model.cls(hidden[rows, positions])
        torch.nn.functional.cross_entropy(logits, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return logits

    def turn(number: int) -> float:
        begin = time.perf_counter()
        for _ in range(number):
            logits = step()
        logits[0, 0].item()
        return number * fields["tokens"].numel() / (time.perf_counter() - begin)

    turn(3)
    return max(turn(steps) for _ in range(3))


if __name__ == "__main__":
    main()
