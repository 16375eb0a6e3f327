"""A study as records: one a stage, from the directories of runs or from a published file.

A published study is one file, STUDY.jsonl.zst: the content of study.json in the first line, then
one line a stage. Tables (`bertlab.results`) and reports are functions of records.
"""

import base64
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from bertlab.config.load import flatten
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.scorers import normalize_answer

COSTS = ("tokens", "supervised", "flops", "seconds")  # cumulative, in every line of metrics.jsonl
SUFFIX = ".jsonl.zst"
LINES = 200  # of a published curve, for each split

Record = dict[str, Any]
"""A stage: `run`, `stage` ("pretrain", "adapt", "finetune"), `task` ("" for a pretraining),
`config` (flat), `environment`, `finished`, `step`, `parameters`, the `COSTS`, `data_hash`, `scores`
(split -> metric -> value), `curve` (lines of metrics.jsonl), `correct` (split -> packed bits), and
where the run has them `evaluation` (evaluation.json), `cut` and `most_frequent`."""


@dataclass(frozen=True, eq=False)
class Results:
    """What was measured.

    Attributes:
        study: The content of study.json; of a single run the same keys, without axes.
        records: One a stage.
    """

    study: Mapping[str, Any]
    records: Sequence[Record]

    @functools.cached_property
    def by_stage(self) -> dict[tuple[str, str, str], Record]:
        """(run, stage, task) -> record."""
        return {(of["run"], of["stage"], of["task"]): of for of in self.records}

    @functools.cached_property
    def runs(self) -> dict[str, Mapping[str, Any]]:
        """Name -> the run's entry in study.json."""
        return {run["name"]: run for run in self.study["runs"]}

    def stage(self, run: Mapping[str, Any], stage: str, task: str = "") -> Record | None:
        """A stage of a run of study.json, its own or the one that it shares; None without a
        result."""
        name = run.get("shares", {}).get(stage, run["name"])
        record = self.by_stage.get((name, stage, task))
        return record if record and record["finished"] else None

    def finished(self, run: Mapping[str, Any]) -> bool:
        """Whether all stages of a run have a result."""
        untrained = run.get("averages") or run["config"].startswith("run:")
        pretrained = untrained or self.stage(run, "pretrain")
        return bool(pretrained) and all(self.stage(run, "finetune", t) for t in run["downstream"])

    def pretraining_costs(self, run: Mapping[str, Any]) -> dict[str, float]:
        """`parameters`, `step` and the `COSTS` of what a run's fine-tunings begin with.

        An earlier step than the last has the costs of that step, interpolated between the lines of
        metrics.jsonl; random values cost nothing; an average costs what its members do.
        """
        if run.get("averages"):
            members = [self.pretraining_costs(self.runs[name]) for name in run["averages"]]
            return (
                {key: sum(of[key] for of in members) for key in members[0]} if all(members) else {}
            )
        if not (record := self.stage(run, "pretrain")):
            return {}
        found = {key: record.get(key) for key in ("parameters", "step", *COSTS)}
        step = 0 if self.is_random(run) else self.first_step(run)
        if step is None or step == record["step"]:
            return found
        lines = sorted(record["curve"], key=lambda line: line["step"])
        steps = [line["step"] for line in lines]
        costs = {key: np.interp(step, steps, [line[key] for line in lines]) for key in COSTS}
        return found | {"step": step} | (dict.fromkeys(COSTS, 0.0) if step == 0 else costs)

    def first_step(self, run: Mapping[str, Any]) -> int | None:
        """The step of its pretraining with which a run goes on; None: the last."""
        settings = [run.get("adapt")] if run.get("adapt") else run["downstream"].values()
        steps = {of.get("init_step") for of in settings}
        return int(steps.pop()) if len(steps) == 1 and None not in steps else None

    def is_random(self, run: Mapping[str, Any]) -> bool:
        """Whether all fine-tunings of a run begin with random values instead of its pretraining."""
        flags = [str(of.get("transfer.random")).lower() for of in run["downstream"].values()]
        return bool(flags) and set(flags) == {"true"}


def read(path: str | Path) -> Results:
    """The records of a study's directory, of a single run's, or of a published study (its file, or
    the folder with it)."""
    path = Path(path).expanduser()
    published = [path] if path.name.endswith(SUFFIX) else sorted(path.glob(f"*{SUFFIX}"))
    if published and published[0].exists():
        study, *records = _read_lines(published[0])
        base, environments = study.pop("configs"), study.pop("environments")
        for record in records:
            config = base[_config_group(record)] | record["config"]
            without = record.pop("without")
            record["config"] = {k: v for k, v in config.items() if k not in without}
            record["environment"] = environments[record["environment"]]
        return Results(study, records)
    directory = RunDirectory(path)
    study = directory.read("study")
    if study is None:
        return _single_run(directory)
    records = [record for run in study["runs"] for record in _stages(path, run)]
    names = {name for search in study.get("searches", ()) for name in search["candidates"]}
    for name in sorted(names - {record["run"] for record in records}):
        if (path / name / "config.json").exists():
            records.append(read_stage(RunDirectory(path / name), name, "pretrain"))
    return Results(study, records)


def pack(correct: Sequence[bool], items_hash: str) -> dict[str, Any]:
    """Bits as text, eight to a byte."""
    bits = np.packbits(np.asarray(correct, bool)).tobytes()
    return {"items": len(correct), "hash": items_hash, "bits": base64.b64encode(bits).decode()}


def unpack(packed: Mapping[str, Any]) -> np.ndarray:
    """bool [items]."""
    data = np.frombuffer(base64.b64decode(packed["bits"]), np.uint8)
    return np.unpackbits(data, count=packed["items"]).astype(bool)


def write_published(path: Path, results: Results) -> None:
    """Writes STUDY.jsonl.zst: of each record's config what differs from the first of its group."""
    base, environments, lines = {}, [], []
    for record in results.records:
        common = base.setdefault(_config_group(record), record["config"])
        config = {k: v for k, v in record["config"].items() if k not in common or common[k] != v}
        without = [key for key in common if key not in record["config"]]
        if record["environment"] not in environments:
            environments.append(record["environment"])
        number = environments.index(record["environment"])
        differences = {"config": config, "without": without, "environment": number}
        differences["curve"] = thinned(record["curve"])
        lines.append(json_line(record | differences))
    study = {**results.study, "environments": environments, "configs": base}
    text = "".join([json_line(study), *lines])
    path.write_bytes(zstandard.compress(text.encode(), level=19))


def stage_names(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(stage, task) of a run's stages."""
    adapted = [("adapt", task) for task in run["downstream"] if run.get("adapt")]
    return [("pretrain", ""), *adapted, *(("finetune", task) for task in run["downstream"])]


def _stages(workdir: Path, run: Mapping[str, Any]) -> Iterator[Record]:
    """The records of a run's own stages."""
    existing = run["config"].removeprefix("run:")
    outside = existing != run["config"]
    for stage, task in stage_names(run):
        if stage in run.get("shares", {}):
            continue
        directory = workdir / run["name"]
        if task:
            directory = directory / stage / task
        elif outside:
            directory = Path(existing).expanduser()
        if directory.exists():
            yield read_stage(RunDirectory(directory), run["name"], stage, task)


def read_stage(directory: RunDirectory, run: str, stage: str, task: str = "") -> Record:
    """The record of one directory."""
    result = directory.read("result", {})
    hashes = result.get("data_hash", "")
    config = directory.read("config", {})
    tables = {name: result.get(name, {}) for name in ("metrics", "most_frequent")}
    curve = directory.metrics()
    if stage == "finetune":
        for table in tables.values():
            table.update({split: own_names(config, of) for split, of in table.items()})
        curve = [own_names(config, line) for line in curve]
    record = {
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
    }
    extra = {"cut": result.get("cut"), "most_frequent": tables["most_frequent"]}
    extra["evaluation"] = directory.read("evaluation")
    return record | {key: value for key, value in extra.items() if value}


def own_names(config: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a fine-tuning on one task by their plain names: "trec/accuracy" is
    "accuracy"."""
    tasks = config.get("metrics") or {name.partition("/")[0] for name in metrics if "/" in name}
    prefix = f"{next(iter(tasks))}/" if len(tasks) == 1 else ""
    return {name.removeprefix(prefix): value for name, value in metrics.items()}


def correctness(folder: Path) -> dict[str, Any]:
    """Split -> packed correctness of a fine-tuning's predictions."""
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
            found[path.stem] = pack(list(itertools.chain(*marks)), digest)
    return found


def _marks(line: Mapping[str, Any]) -> list[bool]:
    """Whether a prediction is right: one mark a word if it has a class for each, none without an
    answer or for a number."""
    gold, predicted = line["gold"], line["predicted"]
    if gold is None or isinstance(gold, float):
        return []
    if not isinstance(gold, list):
        return [gold == predicted]
    if isinstance(predicted, list):
        return [right == answer for right, answer in zip(gold, predicted, strict=True)]
    answers = {normalize_answer(answer) for answer in gold or [""]}  # a span; none: no answer
    return [normalize_answer(predicted) in answers]


def thinned(curve: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most `LINES` lines of each split and the last one, evenly."""
    kept = []
    for split in dict.fromkeys(line["split"] for line in curve):
        lines = [line for line in curve if line["split"] == split]
        every = -(-len(lines) // LINES)
        kept += [line for n, line in enumerate(lines) if n % every == 0 or n == len(lines) - 1]
    return sorted(kept, key=lambda line: line["step"])


def _config_group(record: Record) -> str:
    return f"{record['stage']} {record['task']}".strip()


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
        yield from map(json.loads, text)


def _single_run(directory: RunDirectory) -> Results:
    """A run, with the fine-tunings below it."""
    if not (directory.path / "config.json").exists():
        raise UserError(
            f"{directory} holds neither a study (study.json, *{SUFFIX}) nor a run (config.json);"
            " give the --workdir of a sweep or of a training"
        )
    name = directory.path.resolve().name
    tuned = [path.name for path in sorted(directory.path.glob("finetune/*"))]
    if "metrics" in directory.config() and not tuned:  # itself a fine-tuning
        record = read_stage(directory, name, "finetune", "+".join(directory.config()["metrics"]))
        records, tuned = [record, {**record, "stage": "pretrain", "scores": {}}], [record["task"]]
    else:
        records = [read_stage(directory, name, "pretrain")]
        places = [RunDirectory(directory.path / "finetune" / task) for task in tuned]
        records += [read_stage(of, name, "finetune", of.path.name) for of in places]
    run = {"name": name, "variant": name, "labels": {}, "config": "", "adapt": {}}
    run |= {"downstream": {task: {} for task in tuned}, "shares": {}, "averages": []}
    study = {"name": name, "title": name, "question": "", "axes": {}, "seed_axes": [], "select": []}
    study |= {"tasks": tuned, "searches": [], "published": None, "claims": [], "contrasts": []}
    return Results(study | {"runs": [run]}, records)
