"""Reads the directories of runs and studies into one long table of measurements: one row per measured number."""

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from bertlab.config import is_finetuning
from bertlab.errors import UserError
from bertlab.files import misfit
from bertlab.run import JsonFile, Run, StudyDirectory
from bertlab.studies import held_out
from bertlab.studies.study import COSTS
from bertlab.studies.worker import NO_COSTS, common_step, from_scratch, result_at
from bertlab.train.sources import of_tests
from bertlab.transfer.evaluations import MEASURES, TEST_SPLIT, biases_of, read_evaluations

X_AXES = ("step", "tokens", "supervised", "flops", "seconds")
TRANSFER_COSTS = ("flops", "seconds")
COLUMNS = ("run", "stage", "task", "split", "metric", "value", "standard_error")


class Measure(NamedTuple):
    """What a number of the long table measures.

    Attributes:
        stage: "pretrain", "finetune", "evaluate" (of `bertlab evaluate`), "floor" (of `bertlab floor`), "transfer" (all
            adaptations and fine-tunings together) or "most_frequent" (what always giving the most frequent answer scores).
        task: The fine-tuning's directory; of `bertlab evaluate` the file, "" for the run's own test split; else "".
        split: "valid" or "test"; "" for costs.
        metric: Such as "accuracy", "mlm/loss" (nats), "bits_per_byte/pseudo", "mlm/floor" (nats), "tokens".
    """

    stage: str
    task: str
    split: str
    metric: str

    @property
    def name(self) -> str:
        """Without the split: "package/accuracy", "mlm/loss", "tokens", "transfer/flops", "most_frequent/package/accuracy"."""
        stage = self.stage if self.stage in ("transfer", "most_frequent") else ""
        return "/".join(part for part in (stage, self.task, self.metric) if part)

    @property
    def is_cost(self) -> bool:
        """Whether it counts effort: parameters, steps, tokens, FLOPs, seconds."""
        return not self.split


def cost(metric: str, stage: str = "pretrain") -> Measure:
    """The measure of one of `COSTS`, or of `TRANSFER_COSTS` in the stage "transfer"."""
    return Measure(stage, "", "", metric)


@dataclass(frozen=True, eq=False)
class Results:
    """Everything that was measured in a study or a single run.

    Attributes:
        path: The directory it was read from.
        study: The content of study.json; for a single run the same keys, without axes. "settled" if the sweep stopped early.
        runs: One row per run: `run` (its name), `variant` (its labels without the seed; the study's title if the runs differ
            only in seeds), a column per axis, `trained` (its objectives, "mlm+nsp"), `status` ("finished", "failed",
            "unfinished"), `error`, `data_hash`, `biases` (names from `BIASES`, separated by spaces).
        measurements: One row per number: `run`, `stage`, `task`, `split`, `metric` (see `Measure`), `value`,
            `standard_error` (over tokens or pairs; NaN if not recorded).
            A run whose fine-tunings all start from random values has no pretraining: only `parameters`, and costs of 0. A run
            whose fine-tunings begin with an earlier step has the costs of that step, and what was measured there.
        metrics: One row per number in metrics.jsonl: `run`, `variant`, a column per axis, `step`, `split`, `tokens`,
            `supervised`, `flops`, `seconds` (all cumulative), `metric`, `value`.
        data_hashes: The chain of batch hashes: `run`, `step`, `data_hash`.
        text_hashes: What evaluations were asked about: `run`, `task` and `metric` (see `Measure`), `text_hash`.
        environments: Run name -> its environment.json; of a run that pretrains nothing, its first fine-tuning's.
        first_metrics: Downstream task -> the metric it is reported by.
        configs: Run name -> the config.json of its pretraining.
        token_objectives: Run name -> `held_out.token_objectives` of its pretraining.
        sources: (run name, task, "" for the pretraining) -> the digests of what it read (`bertlab.train.sources`).
    """

    path: Path
    study: Mapping[str, Any]
    runs: pd.DataFrame
    measurements: pd.DataFrame
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)
    data_hashes: pd.DataFrame = field(default_factory=pd.DataFrame)
    text_hashes: pd.DataFrame = field(default_factory=pd.DataFrame)
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first_metrics: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    token_objectives: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    sources: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of `once`

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the study's axes."""
        return tuple(self.study["axes"])

    @property
    def seed_axes(self) -> tuple[str, ...]:
        """Axes along which runs are repetitions of each other: "seed", or a config name that ends in ".seed"."""
        return seed_axes(self.axes)

    @property
    def variants(self) -> list[str]:
        """What is compared, in the study's order."""
        return list(dict.fromkeys(self.runs["variant"]))

    @functools.cached_property
    def finished(self) -> pd.DataFrame:
        """The rows of `runs` that are finished."""
        return self.runs[self.runs["status"] == "finished"]

    def measures(self, **wanted: str) -> list[Measure]:
        """What was measured, in the order of the table; with `stage="finetune", split="test"` and the like only those."""
        return [of for of in self._by_measure if all(getattr(of, name) == value for name, value in wanted.items())]

    def values(self, measure: Measure) -> pd.Series:
        """The values of a measure by run name, in the order of `runs`; NaN for runs without one."""
        return _column(self, measure, "value").copy()

    def standard_errors(self, measure: Measure) -> pd.Series:
        """The standard errors of the values, as `values`."""
        return _column(self, measure, "standard_error").copy()

    def find(self, name: str, split: str = "test") -> Measure:
        """The measure called `name` (`Measure.name`); costs are the same in all splits.

        Raises:
            UserError: Nothing of that name was measured.
        """
        measures = [measure for measure in self.measures() if measure.split in ("", split)]
        if found := [measure for measure in measures if measure.name == name]:
            return found[0]
        scores = ", ".join(measure.name for measure in measures if measure.stage == "finetune")
        raise UserError(f"no run in {self.path} has '{name}' (split {split}); it has {scores or 'no downstream scores'}")

    def wide(self, *names: str, split: str = "test") -> pd.DataFrame:
        """`runs` with a column for each named measure, such as "package/accuracy", "mlm/loss" or "tokens".

        Raises:
            UserError: Nothing of one of these names was measured.
        """
        columns = {name: self.values(self.find(name, split)).to_numpy() for name in names}
        return self.runs.assign(**columns)

    @functools.cached_property
    def _by_measure(self) -> dict[Measure, pd.DataFrame]:
        by_measure = self.measurements.groupby(list(Measure._fields), sort=False)
        return {Measure(*key): rows.set_index("run") for key, rows in by_measure}


P, T = ParamSpec("P"), TypeVar("T")


def once(work: Callable[Concatenate[Results, P], T]) -> Callable[Concatenate[Results, P], T]:
    """Makes a function of results one that works once for each `Results`, which keep what it returned; nobody may change it.

    Its further arguments are part of the key, and so hashable.
    """

    @functools.wraps(work)
    def found(results: Results, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (work, args, *kwargs.items())
        if key not in results._found:
            results._found[key] = work(results, *args, **kwargs)
        return results._found[key]

    return found


@once
def _column(results: Results, measure: Measure, column: str) -> pd.Series:
    rows = results._by_measure.get(measure)
    known = pd.Series(dtype=float) if rows is None else rows[column]
    return known.reindex(results.runs["run"]).astype(float)


def seed_axes(axes: Iterable[str]) -> tuple[str, ...]:
    """Those axes along which runs are repetitions of each other."""
    return tuple(axis for axis in axes if axis.split(".")[-1] == "seed")


def variant_name(labels: Iterable[str]) -> str:
    """The name of a variant: its labels along the axes that it is compared along, "MLM, 1000"."""
    return ", ".join(filter(None, labels))


def load(path: str | os.PathLike[str]) -> Results:
    """Reads a study's directory or a single run's directory.

    A last line of a metrics.jsonl that a kill cut off is left out. If a resumed run logged a step twice, the later line counts.

    Raises:
        UserError: The directory holds neither a study nor a run, or a file in it is damaged (file and line named).
    """
    path = Path(path)
    study, directories = read_study(path)
    return _read(path, study, directories, single=not StudyDirectory(path).study.exists())


def load_run(path: Path) -> Results:
    """As `load` for a single run, but one of a study is what it is there: with the pretraining that it shares or discards."""
    job = Run(path).job.get()
    if job is None or "run" not in job:
        return load(path)
    return _read(path, _alone(job["run"]), {job["run"]["name"]: Run(path)}, single=False)


def _read(path: Path, study: dict[str, Any], directories: Mapping[str, Run], single: bool) -> Results:
    """The results of runs; of a single one the pretraining counts, whatever its fine-tunings start from."""
    seeds = seed_axes(study["axes"])
    repetitions = bool(seeds) and len(seeds) == len(study["axes"])
    runs, measured, curves, data_hashes, text_hashes, environments, configs, asked, read = [], [], [], [], [], {}, {}, {}, {}
    for run in study["runs"]:
        name, directory = run["name"], directories[run["name"]]
        owner = run.get("shares", {}).get("pretrain")  # perhaps a candidate for a rate, which is no run of the study
        pretraining = directories[name].beside(owner) if owner else directories[name]
        scratch = not single and discards_pretraining(directory, run)
        tuned = isinstance(directory, _Finetuning)
        labels = {axis: run["labels"].get(axis, "") for axis in study["axes"]}
        variant = variant_name(label for axis, label in labels.items() if axis not in seeds)
        identity = {"run": name, "variant": variant or (study["title"] if repetitions else name), **labels}
        stages = directory.stages()
        for of in (pretraining, *(directory.stage(*stage) for stage in stages)):
            of.require_whole()
        lines = [] if scratch else pretraining.metrics.read()
        step = pretraining_step(run)
        result = result_at(pretraining, step)
        earlier = result is not None and "metrics" not in result
        config = pretraining.config.get({})
        evaluations = {} if scratch or not (file := pretraining.evaluation_at(step)).exists() else read_evaluations(file.path)
        words = {} if scratch else pretraining.similarity_at(step).get({})
        data_hash = "" if scratch or not result else result.get("data_hash") or ""
        trained = "" if scratch else study.get("trained", {}).get(name, trained_objectives(config))
        own = [
            *_pretraining(result, lines, without_metrics=scratch or tuned, costs=NO_COSTS if scratch else {}),
            *([] if scratch or earlier else _floors(pretraining.floor.get({}))),
            *_evaluations(evaluations),
            *[(measure, _number(value)) for measure, value, _ in _similarities(words)],
            *[row for row in _finetunings(directory, run) if not (tuned and row[0].is_cost)],  # its costs are the run's
        ]
        measured += [(name, *measure, *numbers) for measure, numbers in own]
        runs.append(
            {
                **identity,
                "trained": trained,
                **_status(directory, run, bool(result)),
                "data_hash": data_hash,
                "biases": " ".join(biases_of(evaluations.get("bits_per_byte", {}).get(TEST_SPLIT, {}).values())),
            }
        )
        curves += [row for line in lines for row in _curve_rows(identity, line)]
        hashes = {line["step"]: line["data_hash"] for line in lines if "data_hash" in line}
        hashes |= {result["step"]: data_hash} if data_hash and result.get("step") is not None else {}
        data_hashes += [(name, *of) for of in hashes.items()]
        asked_about = [(of.task, of.metric, entry["text_hash"]) for of, entry in _entries(evaluations)]
        asked_about += [(of.task, of.metric, entry["text_hash"]) for of, _, entry in _similarities(words)]
        read |= {(name, ""): result["sources"]} if not scratch and result and "sources" in result else {}
        for task in run["downstream"]:
            if known := directory.stage("finetune", task).result.get({}).get("sources"):
                read[name, task] = known
                asked_about += [(task, "scores", digests)] if (digests := of_tests(known)) else []
        text_hashes += [(name, *row) for row in asked_about]
        configs |= {name: config} if config else {}
        if not scratch and (data := pretraining.data.get()):
            asked[name] = held_out.token_objectives(data)
        places = (pretraining, *(directory.stage(*stage) for stage in stages if stage[0] == "finetune"))
        found = next(filter(None, (of.environment.get() for of in places)), None)
        environments |= {name: found} if found else {}
    if all(row["status"] == "finished" for row in runs):
        study.pop("settled", None)  # the runs that were left out then were run since
    results = Results(
        path=path,
        study=study,
        runs=pd.DataFrame(runs),
        measurements=pd.DataFrame(measured + _costs_of_averages(study["runs"], measured), columns=COLUMNS),
        metrics=pd.DataFrame(
            curves, columns=["run", "variant", *study["axes"], "step", "split", *X_AXES[1:], "metric", "value"]
        ),
        data_hashes=pd.DataFrame(data_hashes, columns=["run", "step", "data_hash"]),
        text_hashes=pd.DataFrame(text_hashes, columns=["run", "task", "metric", "text_hash"]),
        environments=environments,
        first_metrics=read_first_metrics(directories.values(), study["downstream"]),
        configs=configs,
        token_objectives=asked,
        sources=read,
    )
    for table, columns in ((results.measurements, COLUMNS[5:]), (results.metrics, (*X_AXES, "value"))):
        for column in columns:
            table[column] = pd.to_numeric(table[column])
    return results


_READ = {
    **dict.fromkeys(("name", "title", "question", "command"), str),
    "axes": {str: [str]},
    "downstream": [str],
    "runs": [{"name": str, "labels": {str: str}, "downstream": {str: dict}, "adapt?": (dict, None)}],
    "select?": [str],
    "rates?": [(int, float)],
    "searches?": [{"variant": str, "own": (int, float), "candidates": {str: (int, float)}, "runs": [str]}],
    "claims?": [{**dict.fromkeys(("higher", "lower", "published", "source"), str), "kinds?": [str]}],
    "contrasts?": [[str]],
    "published?": (dict, None),
}
"""What reports read in study.json."""
_PUBLISHED = {"source": str, "columns": [str], "rows": {str: [(int, float, str, None)]}, "note": str}
_ROUNDED = 1e-6  # how far beyond its bounds a score may be that was computed in float32


def _wrong_in(study: Mapping[str, Any]) -> str:
    """What reports cannot use in a study.json; "" if nothing."""
    published = study.get("published") if isinstance(study.get("published"), dict) else None
    if wrong := misfit(study, _READ) or (published and misfit({"published": published}, {"published": _PUBLISHED})):
        return wrong
    names = [run["name"] for run in study["runs"]]
    if not names:
        return "runs is empty"
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        return f"runs has {twice[0]!r} more than once"
    for run in study["runs"]:
        for settings in (run.get("adapt") or {}, *run["downstream"].values()):
            for key in ("init_step", "task_data.limit"):
                if settings.get(key) is not None and not str(settings[key]).isdecimal():
                    return f"{key} of run {run['name']} must be a whole number, not {str(settings[key])[:40]!r}"
    for number, search in enumerate(study.get("searches", ())):
        if len(search["candidates"]) != len(study.get("rates", ())) or not search["candidates"]:
            return f"searches.{number}.candidates must have a candidate for each of rates"
        if not all(rate > 0 for rate in (search["own"], *search["candidates"].values())):
            return f"searches.{number} must have rates above 0"
    for number, pair in enumerate(study.get("contrasts", ())):
        if len(pair) != 2:
            return f"contrasts.{number} must have two variants, not {len(pair)}"
    for name, row in published["rows"].items() if published else ():
        if len(row) != len(published["columns"]):
            return f"published.rows.{name} must have a value for each of published.columns"
    return ""


def read_study(path: Path) -> tuple[dict[str, Any], dict[str, Run]]:
    """What study.json says, with "settled" if the sweep stopped early, and the runs; of a single run the same keys.

    Raises:
        UserError: The directory holds neither a study nor a run, or study.json is damaged.
    """
    directory, single = StudyDirectory(path), Run(path)
    if single.is_there() and not directory.is_there():
        single.require_whole()
    else:
        directory.require_whole()
    if study := directory.study.get():
        for run in study["runs"]:
            if isinstance(run.get("downstream"), list):  # of names, without settings
                run["downstream"] = {task: {} for task in run["downstream"]}
        if wrong := _wrong_in(study):
            raise UserError(f"{directory.study} is damaged: {wrong}; restore it, or run the sweep again")
        if settled := directory.settled.get():
            study["settled"] = settled
        return study, {run["name"]: directory.run(run["name"]) for run in study["runs"]}
    if not single.begun():
        raise UserError(
            f"{path} holds neither a study (study.json) nor a run (config.json, metrics.jsonl); "
            "give the --workdir of a sweep or of a run"
        )
    name = path.resolve().name
    tasks = single.tasks("finetune")
    if is_finetuning(config := single.config.get({})):
        tasks, single = ["+".join(config["metrics"])], _Finetuning(path)
    return _alone({"name": name, "labels": {}, "config": "", "overrides": {}, "downstream": tasks}), {name: single}


class _Finetuning(Run):
    """The directory of a single fine-tuning, which is the only one in it."""

    def stage(self, kind: str, task: str = "") -> Run:
        """As `Run.stage`, with itself as the fine-tuning."""
        return self if kind == "finetune" else super().stage(kind, task)


def _alone(run: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a study.json with one run."""
    described = {"name": run["name"], "title": f"Run {run['name']}", "question": "", "command": "", "axes": {}}
    return described | {"downstream": list(run["downstream"]), "runs": [run]}


def pretraining_step(run: Mapping[str, Any]) -> int | None:
    """The step of its pretraining that a run of study.json uses in all tasks; None for the last, or if tasks differ."""
    if run.get("adapt"):
        return common_step([run["adapt"]])
    tasks = run["downstream"]
    return common_step(tasks.values()) if isinstance(tasks, Mapping) else None


def trained_objectives(config: Mapping[str, Any]) -> str:
    """The objectives that are in a pretraining's loss, in alphabetical order: "mlm+nsp"."""
    entries = config.get("objectives", {}).items()
    return "+".join(sorted(name for name, entry in entries if entry.get("weight") or entry.get("final_weight")))


def discards_pretraining(directory: Run, run: Mapping[str, Any]) -> bool:
    """Whether all fine-tunings of a study's run start from random values; an average has the costs of what it averages.

    A fine-tuning's config.json says what it started from; before it begins, the study's settings say it.
    """
    tasks = run["downstream"]
    settings_of = tasks if isinstance(tasks, Mapping) else {}  # a list of names has no settings

    def at_random(task: str) -> bool:
        if config := directory.stage("finetune", task).config.get():
            return bool(config.get("transfer", {}).get("random"))
        return str(settings_of.get(task, {}).get("transfer.random")).lower() == "true"

    return not run.get("averages") and from_scratch(map(at_random, tasks))


def read_first_metrics(directories: Iterable[Run], downstream: Sequence[str]) -> dict[str, str]:
    """Task -> the metric it is reported by, taken from the first run whose fine-tuning says so."""
    found = {}
    for directory in directories:
        for task in (task for task in downstream if task not in found):
            if metrics := directory.stage("finetune", task).config.get({}).get("metrics"):
                found[task] = next(iter(metrics.values()))
    return found


def score_of_task(results: Results, task: str) -> Measure | None:
    """The test score a task is reported by: its first metric; if the runs do not say, F1, then accuracy, then any."""
    measured = results.measures(stage="finetune", task=task, split="test")
    scores = [measure for measure in measured if not measure.metric.endswith(("loss", "perplexity"))]  # more is better
    preferred = (results.first_metrics.get(task), "f1", "accuracy")
    ranked = [m for metric in preferred for m in scores if metric and f"/{m.metric}".endswith(f"/{metric}")]
    return next(iter(ranked + scores), None)


def scores(results: Results) -> list[Measure]:
    """The one test score of each downstream task that reports show."""
    found = (score_of_task(results, task) for task in results.study["downstream"])
    return [measure for measure in found if measure]


def bits_per_byte(kind: str) -> Measure:
    """Bits per byte of the test split by one kind of score."""
    return Measure("evaluate", "", "test", f"bits_per_byte/{kind}")


def bounds(metric: str) -> tuple[float, float]:
    """The lowest and highest value a score can have: shares and correlations have both, others neither."""
    name = metric.rsplit("/", 1)[-1]
    if name.endswith(("accuracy", "f1", "precision", "recall", "exact_match")):
        return 0.0, 1.0
    return (-1.0, 1.0) if name.endswith(("correlation", "matthews", "mcc", "pearson", "spearman")) else (-np.inf, np.inf)


def _number(value: float | None, standard_error: float | None = None) -> tuple[float | None, float | None]:
    return value, standard_error


Rows = list[tuple[Measure, tuple[float | None, float | None]]]


def _pretraining(
    result: Mapping[str, Any] | None, lines: Sequence[Mapping[str, Any]], without_metrics: bool, costs: Mapping[str, float]
) -> Rows:
    """Costs and held-out metrics of a pretraining; before it is finished, the costs of its last line; `costs` replace some."""
    costs = {key: (result or {}).get(key) for key in COSTS} | costs
    if lines and costs["step"] is None:
        costs |= {key: lines[-1].get(key) for key in X_AXES}
    rows = [(cost(key), _number(value)) for key, value in costs.items() if value is not None]
    metrics = {} if without_metrics else (result or {}).get("metrics", {})
    return rows + [
        (Measure("pretrain", "", split, metric), _number(value))
        for split, values in metrics.items()
        for metric, value in values.items()
    ]


def _floors(floors: Mapping[str, Mapping[str, Any]]) -> Rows:
    """The floors of floor.json, and the nats above them."""
    rows = []
    for objective, floor in floors.items():
        kind = "floor" if floor["exact"] else "lower_bound"
        rows.append((Measure("floor", "", "test", f"{objective}/{kind}"), _number(floor["value"], floor.get("standard_error"))))
        above = _number(floor["above"], floor["above_standard_error"])
        rows.append((Measure("floor", "", "test", f"{objective}/above"), above))
    return rows


def _evaluations(evaluations: Mapping[str, Any]) -> Rows:
    """Bits per byte, minimal pairs (of each phenomenon too) and BabyLM's scores, from evaluation.json."""
    rows = []
    for measure, entry in _entries(evaluations):
        name, _, kind = measure.metric.partition("/")
        rows.append((measure, _number(entry[MEASURES[name][0]], entry["standard_error"])))
        for phenomenon, of in entry.get("phenomena", {}).items():
            metric = f"phenomenon/{kind}/{phenomenon}"
            rows.append((measure._replace(metric=metric), _number(of["accuracy"], of["standard_error"])))
    return rows


def _similarities(found: Mapping[str, Any]) -> list[tuple[Measure, float, Mapping[str, Any]]]:
    """Of each layer and way of similarity.json: Spearman's correlation, or the share of right answers by 3CosAdd."""
    rows = []
    for kind, name in (("word_similarity", "similarity"), ("analogies", "analogies")):
        for file, by_way in found.get(kind, {}).items():
            for way, entry in by_way.items():
                for layer, of in entry["layers"].items():
                    value = of if kind == "word_similarity" else of["3CosAdd"]["all"]
                    measure = Measure("evaluate", file, "test", f"{name}/{way.partition(';')[0]}, layer {layer}")
                    rows += [] if value is None else [(measure, value, entry)]
    return rows


def _entries(evaluations: Mapping[str, Any]) -> list[tuple[Measure, Mapping[str, Any]]]:
    """The entries of evaluation.json; the file that was asked about is the task."""
    return [
        (Measure("evaluate", "" if source == TEST_SPLIT else source, "test", f"{measure}/{kind}"), entry)
        for measure, by_source in evaluations.items()
        for source, by_kind in by_source.items()
        for kind, entry in by_kind.items()
    ]


def _finetunings(directory: Run, run: Mapping[str, Any]) -> Rows:
    """The scores of a run's fine-tunings, the scores of the most frequent answer, and what transfer has cost."""
    rows: Rows = []
    spent = []
    adapted = directory.beside(run.get("shares", {}).get("adapt", directory.directory.name))
    for task in run["downstream"]:
        adaptation, place = adapted.stage("adapt", task), directory.stage("finetune", task)
        result = place.result.get({})
        spent += [_spent(adaptation.result, adaptation.result.get({})), _spent(place.result, result)]
        metrics = result.get("metrics", {})
        most_frequent = place.most_frequent.get({}) if metrics else {}
        parts = (("finetune", place.result, metrics), ("most_frequent", place.most_frequent, most_frequent))
        for stage, file, by_split in parts:
            for split, values in by_split.items():
                _require_possible(file, split, values)
                # A task's own loss ("package/loss") stands for the total ("loss"), which may hold other objectives.
                own = {metric.removeprefix(f"{task}/"): value for metric, value in values.items()}
                rows += [(Measure(stage, task, split, metric), _number(value)) for metric, value in own.items()]
    spent = [of for of in spent if of]
    totals = {key: sum(of[key] for of in spent) for key in TRANSFER_COSTS if spent and not run.get("averages")}
    return rows + [(cost(key, "transfer"), _number(value)) for key, value in totals.items()]


def _require_possible(file: JsonFile, split: str, values: Mapping[str, float | None]) -> None:
    """Refuses a score that no model can have."""
    for metric, value in values.items():
        low, high = bounds(metric)
        finite = isinstance(value, int) or (value is not None and math.isfinite(value))  # others are no scores
        if finite and not low - _ROUNDED <= value <= high + _ROUNDED:
            raise UserError(
                f"{file} is damaged: {split}/{metric} must be between {low:g} and {high:g}, not {value!r:.40};"
                " restore it, or delete it and run the sweep again"
            )


def _spent(file: JsonFile, result: Mapping[str, Any]) -> dict[str, float]:
    """What an adaptation or a fine-tuning has cost; {} before it is finished, and for one that averages others."""
    if not any(key in result for key in TRANSFER_COSTS):
        return {}
    if wrong := misfit(result, dict.fromkeys(TRANSFER_COSTS, (int, float))):
        raise UserError(f"{file} is damaged: {wrong}; restore it, or delete it and run the sweep again")
    return {key: result[key] for key in TRANSFER_COSTS}


def _costs_of_averages(runs: Sequence[Mapping[str, Any]], measured: Sequence[tuple]) -> list[tuple]:
    """The costs of runs that average others' predictions: the sums of theirs, once all of them have costs; as `measured`."""
    rows, averages = [], [run for run in runs if run.get("averages")]
    table = pd.DataFrame(measured if averages else (), columns=COLUMNS)
    table = table[table["split"] == ""]
    for run in averages:
        of = table[table["run"].isin(run["averages"])]
        if len(of) and set(of.loc[of["metric"] == "step", "run"]) == set(run["averages"]):
            sums = of.groupby(["stage", "metric"], sort=False)["value"].sum()
            rows += [(run["name"], *cost(metric, stage), *_number(value)) for (stage, metric), value in sums.items()]
    return rows


def _status(directory: Run, run: Mapping[str, Any], pretrained: bool) -> dict[str, str]:
    """Whether a run is finished, with the reason if it failed."""
    finetuned = all(directory.stage("finetune", task).result.exists() for task in run["downstream"])
    if finetuned and (pretrained or run.get("averages")):
        return {"status": "finished", "error": ""}
    for file in (directory.failed, directory.diverged):
        if file.exists():
            return {"status": "failed", "error": file.read().strip()}
    return {"status": "unfinished", "error": ""}


def _curve_rows(identity: Mapping[str, str], line: Mapping[str, Any]) -> list[tuple]:
    """A row of `Results.metrics` for each number of a line of metrics.jsonl."""
    place = {"step": line["step"], "split": line["split"]} | {key: line.get(key) for key in X_AXES[1:]}
    begin = (*identity.values(), *place.values())
    return [(*begin, key, value) for key, value in line.items() if key not in place and isinstance(value, int | float)]
