"""Synthetic fixtures: directories as runs write them, filled with made-up but plausible numbers."""

import contextlib
import hashlib
import io
import json
import math
import os
import random
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict
from rich.console import Console

from bertlab.run import Run
from bertlab.studies import sweep as sweep_module
from bertlab.studies.launchers import Launcher
from bertlab.studies.report import report
from bertlab.studies.study import Study
from bertlab.studies.sweep import describe, sweep
from bertlab.studies.worker import execute_job
from tests.conftest import ROOT


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes, text of a script or style)."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append([tag, dict(attributes), ""])
        self.open = True

    def handle_endtag(self, tag):
        self.open = False

    def handle_data(self, text):
        if self.found and self.open:
            self.found[-1][2] += text

    def named(self, tag):
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


# variant -> (objectives and their final losses, package accuracy, code_spans F1, seconds per step)
VARIANTS = {
    "MLM": ({"mlm": 4.41}, 0.702, 0.713, 0.050),
    "MLM+NSP": ({"mlm": 4.46, "nsp": 0.52}, 0.731, 0.709, 0.055),
    "LTR": ({"ltr": 4.02}, 0.684, 0.628, 0.042),
    "biLM": ({"ltr": 4.31, "rtl": 4.36}, 0.655, 0.671, 0.091),
    "No pretraining": ({"mlm": 9.01}, 0.513, 0.487, 0.0),
}
TASKS = ("package", "code_spans")
STEPS, TOKENS_PER_STEP, PARAMETERS = 1500, 3900, 4_386_178


def objectives_study(seeds=(1, 2), variants=tuple(VARIANTS)) -> Study:
    """The demo's study in small."""
    objective = {}
    for name in variants:
        objective[name] = {f"objectives.{o}.weight": 1.0 for o in VARIANTS[name][0]}
        if name == "biLM":
            objective[name]["config"] = "experiments/pretrain/elmo.py:size=tiny,corpus=pydocs"
        if name == "No pretraining":
            objective[name]["train.steps"] = 0
    return Study(
        name="objectives",
        title="Which pretraining objective helps?",
        question="MLM, MLM+NSP, left-to-right and biLM pretraining compared on the same real text.",
        config="experiments/pretrain/bert.py:size=tiny,corpus=pydocs",
        axes={"objective": objective, "seed": list(seeds)},
        overrides={"train.steps": STEPS},
        downstream=TASKS,
    )


def write_run(directory, variant, seed, *, package=None, code_spans=None, steps=STEPS, data="same", finished=True):
    """Writes a run's directory; `data` names the stream of batches that the hash chain stands for."""
    losses, default_package, default_code_spans, pace = VARIANTS[variant]
    steps = 0 if variant == "No pretraining" else steps
    rng = random.Random(f"{variant} {seed}")
    directory.mkdir(parents=True, exist_ok=True)
    share = {"MLM": 0.15, "MLM+NSP": 0.152}.get(variant, 0.99)

    def costs(step):
        return {
            "tokens": step * TOKENS_PER_STEP,
            "supervised": int(step * TOKENS_PER_STEP * share),
            "flops": step * TOKENS_PER_STEP * 6.0 * 2.9e6 * (1 + share),
            "seconds": step * pace * (1 + 0.03 * seed),
        }

    def held_out(step):
        values = {}
        for objective, final in losses.items():
            start = math.log(2) if objective == "nsp" else 9.01
            decay = math.exp(-4 * step / STEPS) - math.exp(-4)
            jitter = rng.gauss(0, 0.02 if objective != "nsp" else 0.004)
            values[f"{objective}/loss"] = final + (start - final) * decay / (1 - math.exp(-4)) + jitter
            values[f"{objective}/accuracy"] = 0.35
        return {"loss": sum(v for k, v in values.items() if k.endswith("loss")), **values}

    def data_hash(step):
        return hashlib.blake2b(f"{data} {seed} {step}".encode(), digest_size=16).hexdigest()

    run, lines = Run(directory), []
    for step in range(0, steps + 1, 150):
        if step:
            rates = {"tokens_per_second": TOKENS_PER_STEP / pace, "learning_rate": 1e-3 * (1 - step / STEPS)}
            line = {"step": step, "split": "train", **held_out(step), **costs(step), **rates, "data_hash": data_hash(step)}
            lines.append(line)
        lines.append({"step": step, "split": "valid", **held_out(step), **costs(step)})
    write_lines(directory / "metrics.jsonl", lines)
    run.config.write({"train": {"steps": steps}, "seed": seed})
    run.environment.write(
        {
            "versions": {"python": "3.11.9", "bertlab": "0.1.0", "jax": "0.10.2", "flax": "0.12.4", "numpy": "2.4.6"},
            "devices": ["cpu"],
            "commit": "3f2a9c1d",
            "command": "python -m bertlab.studies.sweep --run job.json",
        }
    )
    if not finished:
        return
    valid = {k: v for k, v in lines[-1].items() if k == "loss" or "/" in k}
    metrics = {"valid": valid, "test": valid}
    run.result.write(
        {"step": steps, "parameters": PARAMETERS, **costs(steps), "data_hash": data_hash(steps), "metrics": metrics}
    )
    accuracy = default_package + rng.gauss(0, 0.006) if package is None else package
    f1 = default_code_spans + rng.gauss(0, 0.006) if code_spans is None else code_spans
    for task, loss, scores in (
        ("package", 0.91, {"accuracy": accuracy}),
        ("code_spans", 0.2, {"precision": f1 + 0.02, "recall": f1 - 0.02, "f1": f1}),
    ):
        metrics = {"loss": loss, f"{task}/loss": loss} | {f"{task}/{name}": score for name, score in scores.items()}
        result = {"flops": 1.0, "seconds": 20.0, "metrics": {"valid": metrics, "test": metrics}}
        run.stage("finetune", task).result.write(result)


def write_study(directory, study, **options):
    """Writes a study's directory with all its runs; `options` go to write_run, or per run name in `per_run`."""
    per_run = options.pop("per_run", {})
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "study.json", describe(study, study.runs()))
    for run in study.runs():
        settings = options | per_run.get(run.name, {})
        write_run(directory / run.name, run.labels["objective"], int(run.labels["seed"]), **settings)
    return directory


class InThisProcess(Launcher):
    """A launcher that executes a run when it is started, in this process: no imports, no compilation of what is compiled."""

    def __init__(self, jobs=1):
        self.jobs = jobs

    def start(self, command, directory, lock):
        arguments = sys.argv[1:]
        with open(directory / "log.txt", "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            status = execute_job(Path(command[-1]))
        sys.argv[1:] = arguments
        return SimpleNamespace(poll=lambda: status, state=lambda: "running")


def fake_config(spec, overrides):
    """As much of a config as a sweep of fake runs reads."""
    data = {"corpus": overrides.get("data.corpus", "pydocs"), "batch_size": 4, "seq_len": 8}
    data["unique_tokens"] = overrides.get("data.unique_tokens", 0)
    optimizer = {"learning_rate": overrides.get("optimizer.learning_rate", 1e-3)}
    objectives = {"Own": {"implementation": overrides["objective"]}} if "objective" in overrides else {}
    train = {"steps": overrides.get("train.steps", 0)}
    return ConfigDict({"init_from": "", "train": train, "data": data, "optimizer": optimizer, "objectives": objectives})


def fake_prepare(data):
    """A text of 1,000 tokens."""
    return SimpleNamespace(statistics={"train": {"tokens": 1000}})


@pytest.fixture
def fake_runs(monkeypatch):
    """For sweeps of the fake runner: it is found, and configs and corpora need not exist. The corpora that were prepared."""
    prepared = []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(ROOT)]))
    monkeypatch.setattr(sweep_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(sweep_module, "load_checked", fake_config)
    monkeypatch.setattr(sweep_module, "prepare", lambda data: prepared.append(data.corpus) or fake_prepare(data))
    return prepared


def run_sweep(study, workdir, launcher=None, terminal=False, **options):
    """(exit status, what was printed) of a sweep of the fake runner."""
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    status = sweep(study, workdir, launcher or InThisProcess(), runner="fake_runner:run", console=console, **options)
    return status, console.file.getvalue()


def write_json(path, value):
    path.write_text(json.dumps(value))


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="session")
def study_directory(tmp_path_factory):
    """A finished objectives study with two seeds, and its report; shared by tests, which leave it as it is."""
    return write_study(tmp_path_factory.mktemp("study") / "objectives", objectives_study())


@pytest.fixture(scope="session")
def study_report(study_directory):
    """(path of report.html, what was printed) of that study."""
    console = Console(file=io.StringIO(), width=100)
    return report(study_directory, console=console), console.file.getvalue()
