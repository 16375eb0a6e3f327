"""A study as records: one per stage, from the directories of runs or from a published file.

A published study is one file, STUDY.jsonl.zst: the content of study.json in the first line, then
one line per stage. Tables (`bertlab.results`) and reports are functions of records.
"""

import base64
import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from bertlab.config.load import flatten
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.studies.runs import RunSpec
from bertlab.studies.study import Study
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.scorers import normalize_answer

COSTS = ("tokens", "supervised", "flops", "seconds")  # cumulative, in every line of metrics.jsonl
SUFFIX = ".jsonl.zst"
BASELINES = {  # for a fine-tuning's labels (bertlab.transfer.scoring), and what a page calls them
    "most_frequent": "always the most frequent answer",
    "linear": "a linear model on n-grams, as many labels",
}

Record = dict[str, Any]
"""A stage: `run`, `stage` ("pretrain", "adapt", "finetune"), `task` ("" for a pretraining),
`config` (flat), `environment`, `finished`, `step`, `parameters`, the `COSTS`, `data_hash`, `scores`
(split -> metric -> value), `curve` (lines of metrics.jsonl), `correct` (split -> packed bits), and,
where the run has them, `evaluation` (evaluation.json), `cut`, `most_frequent` and `linear`."""


@dataclass(frozen=True, eq=False)
class Results:
    """What was measured."""

    study: Mapping[str, Any]  # study.json, with `failures`: run -> why it failed
    records: Sequence[Record]  # one per stage

    @functools.cached_property
    def runs(self) -> dict[str, RunSpec]:
        return {run["name"]: RunSpec(**run) for run in self.study["runs"]}

    @functools.cached_property
    def by_stage(self) -> dict[tuple[str, str, str], Record]:
        return {(of["run"], of["stage"], of["task"]): of for of in self.records}

    def stage(self, run: RunSpec, stage: str, task: str = "") -> Record | None:
        """The record of a stage, a run's own or a shared one; None without a result."""
        record = self.by_stage.get((run.shares.get(stage, run.name), stage, task))
        return record if record and record["finished"] else None

    def finished(self, run: RunSpec) -> bool:
        outside = [("pretrain", "")] if run.existing else []
        return all(self.stage(run, *stage) for stage in run.stages() if stage not in outside)

    def pretraining_costs(self, run: RunSpec) -> dict[str, float]:
        """`parameters`, `step` and the `COSTS` of what a run's fine-tunings begin with.

        A step before the last has the costs up to that step, interpolated between the lines of
        metrics.jsonl; random parameters cost nothing; an average costs what its members do.
        """
        if run.averages:
            members = [self.pretraining_costs(self.runs[name]) for name in run.averages]
            keys = members[0] if all(members) else ()
            return {key: sum(of[key] for of in members) for key in keys}
        if not (record := self.stage(run, "pretrain")):
            return {}
        found = {key: record.get(key) for key in ("parameters", "step", *COSTS)}
        step = self.first_step(run)
        if step in (None, record["step"]):
            return found
        lines = sorted(record["curve"], key=lambda line: line["step"])
        steps = [line["step"] for line in lines]
        costs = {key: np.interp(step, steps, [line[key] for line in lines]) for key in COSTS}
        return found | {"step": step} | (dict.fromkeys(COSTS, 0.0) if step == 0 else costs)

    def first_step(self, run: RunSpec) -> int | None:
        """The step of its pretraining from which a run continues: None for the last, 0 for random
        parameters."""
        settings = list(run.downstream.values())
        if settings and all(str(of.get("transfer.random")).lower() == "true" for of in settings):
            return 0
        steps = {of.get("init_step") for of in ([run.adapt] if run.adapt else settings)}
        return int(steps.pop()) if len(steps) == 1 and None not in steps else None


def read(path: str | Path | Results) -> Results:
    """The records of a study's directory, a single run's, or a published study's file or folder."""
    if isinstance(path, Results):
        return path
    path = Path(path).expanduser()
    for published in [path] if path.name.endswith(SUFFIX) else path.glob(f"*{SUFFIX}"):
        text = zstandard.ZstdDecompressor().decompress(published.read_bytes()).decode()
        study, *records = map(json.loads, text.rstrip("\n").split("\n"))
        return Results(study, records)
    study = RunDirectory(path).read("study")
    if study is None:
        return _single_run(RunDirectory(path))
    records, failures = [], {}
    for run in Results(study, ()).runs.values():
        if failed := RunDirectory(path / run.name).read("failed"):
            failures[run.name] = failed["reason"]
        for stage in run.stages():
            directory = run.directory(path, *stage)
            if stage[0] not in run.shares and directory.exists():
                records.append(read_stage(directory, run.name, *stage))
    names = {name for search in study.get("searches", ()) for name in search["candidates"]}
    for name in sorted(names - {record["run"] for record in records}):
        if (path / name / "config.json").exists():
            records.append(read_stage(path / name, name, "pretrain"))
    return Results(study | {"failures": failures}, records)


def read_stage(path: Path, run: str, stage: str, task: str = "") -> Record:
    """The record of one directory."""
    directory = RunDirectory(path)
    result, config = directory.read("result", {}), directory.read("config", {})
    hashes, curve = result.get("data_hash", ""), directory.metrics()
    tables = {name: result.get(name, {}) for name in ("metrics", *BASELINES)}
    if stage == "finetune":
        for table in tables.values():
            table.update({split: own_names(config, of) for split, of in table.items()})
        curve = [own_names(config, line) for line in curve]
    optional = {"cut": result.get("cut"), **{name: tables[name] for name in BASELINES}}
    optional["evaluation"] = directory.read("evaluation")
    return {
        "run": run,
        "stage": stage,
        "task": task,
        "config": flatten(config),
        "environment": directory.read("environment", {}),
        "finished": bool(result),
        **{key: result.get(key) for key in ("step", "parameters", *COSTS)},
        "data_hash": hashes if isinstance(hashes, str) else " ".join(map(str, hashes)),
        "scores": tables["metrics"],
        "curve": curve,
        "correct": correctness(directory.path / "predictions"),
        **{key: value for key, value in optional.items() if value},
    }


def own_names(config: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a fine-tuning on one task by plain names: "trec/accuracy" is "accuracy"."""
    tasks = config.get("metrics") or {name.partition("/")[0] for name in metrics if "/" in name}
    prefix = f"{next(iter(tasks))}/" if len(tasks) == 1 else ""
    return {name.removeprefix(prefix): value for name, value in metrics.items()}


def correctness(folder: Path) -> dict[str, Any]:
    """Split -> packed correctness of a fine-tuning's predictions, and how many marks each has."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        marks = [_marks(line) for line in lines]
        items = [
            json_line([line.get("task"), line["id"], line["gold"], len(of)])
            for line, of in zip(lines, marks, strict=True)
            if of
        ]
        if items:
            digest = hashlib.blake2b("\n".join(items).encode(), digest_size=8).hexdigest()
            sizes = [len(of) for of in marks if of]
            found[path.stem] = pack(list(itertools.chain(*marks)), digest) | {"sizes": sizes}
    return found


def _marks(line: Mapping[str, Any]) -> list[bool]:
    """Whether a prediction is right: one mark per word if each has a class; none for a number."""
    gold, predicted = line["gold"], line["predicted"]
    if gold is None or isinstance(gold, float):
        return []
    if not isinstance(gold, list):
        return [gold == predicted]
    if isinstance(predicted, list):
        return [right == answer for right, answer in zip(gold, predicted, strict=True)]
    answers = {normalize_answer(answer) for answer in gold or [""]}  # a span; if none: no answer
    return [normalize_answer(predicted) in answers]


def pack(correct: Sequence[bool], items_hash: str) -> dict[str, Any]:
    """Bits as text, eight per byte."""
    bits = np.packbits(np.asarray(correct, bool)).tobytes()
    return {"items": len(correct), "hash": items_hash, "bits": base64.b64encode(bits).decode()}


def unpack(packed: Mapping[str, Any]) -> np.ndarray:
    """bool [items]."""
    data = np.frombuffer(base64.b64decode(packed["bits"]), np.uint8)
    return np.unpackbits(data, count=packed["items"]).astype(bool)


def _single_run(directory: RunDirectory) -> Results:
    """A run, with the fine-tunings below it, as a study of one."""
    if not (directory.path / "config.json").exists():
        raise UserError(
            f"{directory} holds neither a study (study.json, *{SUFFIX}) nor a run (config.json);"
            " give the --workdir of a sweep or of a training"
        )
    name, config = directory.path.resolve().name, directory.config()
    tuned = {path.name: path for path in sorted(directory.path.glob("finetune/*"))}
    first, records = "", []
    if "metrics" in config and not tuned:  # itself a fine-tuning
        first, tuned = f"run:{config['init_from']}", {"+".join(config["metrics"]): directory.path}
    else:
        records.append(read_stage(directory.path, name, "pretrain"))
    records += [read_stage(path, name, "finetune", task) for task, path in tuned.items()]
    study = Study(name, name, "", first, {}, downstream=list(tuned))
    return Results(study.describe([RunSpec(name, name, {}, first, {}, study.tasks)]), records)
