"""A study is pure data: a base config and the axes along which its runs differ. Runs with equal pretraining share it."""

import contextlib
import functools
import itertools
import json
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertlab.config import find_file, run_file
from bertlab.errors import UserError
from bertlab.files import is_plain_name
from bertlab.keys import BY_NAME
from bertlab.run import StudyDirectory
from bertlab.studies.axes import Point, axis, product, settings

COSTS = ("parameters", "step", "tokens", "supervised", "flops", "seconds")  # in result.json
# Columns of results.runs and results.metrics; each axis becomes one more.
COLUMNS = ("run", "variant", "trained", "biases", "status", "error", "split", "metric", "value", "data_hash", *COSTS)
STAGES = ("finetune", "adapt")  # prefixes of their config names; names without a prefix are pretraining's
SEEDS = ("seed", "data.seed")  # what a seed axis sets
RATE = "optimizer.learning_rate"
TASK_RATES = "finetune.rate"  # the axis of `Study.task_rates`


@dataclass(frozen=True)
class RunSpec:
    """One run of a study: pretraining, perhaps an adaptation to each task's text, and a fine-tuning on each task.

    Attributes:
        name: Directory name under the study's workdir, e.g. "mlm+nsp-seed=1".
        labels: Axis name -> label, in the order of the study's axes; "" for an axis that does not apply to the run.
        config: Config file with its arguments, e.g. "experiments/pretrain/bert.py:size=tiny"; or "run:DIRECTORY" for an
            existing run, which is not trained further.
        overrides: Dotted config name -> value, set in the config of pretraining.
        downstream: Task directory -> settings of its fine-tuning, see `Study`.
        adapt: Settings of the adaptation to each task's text; empty for none.
        shares: "pretrain" or "adapt" -> name of the run from which this run takes that stage.
        averages: Names of runs whose predictions this run averages; such a run trains nothing.
    """

    name: str
    labels: Mapping[str, str]
    config: str
    overrides: Mapping[str, Any]
    downstream: Mapping[str, Mapping[str, Any]]
    adapt: Mapping[str, Any] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)
    averages: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """A set of runs that differ along axes over one base config.

    Overrides use dotted config names. A plain name sets the config of pretraining; "finetune.NAME" sets that of every task's
    fine-tuning (also "finetune.recipe"); "adapt.NAME" adds an adaptation to each task's text in between (also "adapt.recipe"
    and "adapt.epochs"). The reserved key "config" replaces the base config file.

    `"finetune.init_step": [100, 1000]` compares steps of one pretraining: its runs share that, and it keeps the checkpoints of
    these steps (`train.keep` is set).

    Attributes:
        name: Short name, used in messages and to recognise the study's workdir.
        title: Heading of the report.
        question: What the study asks, one or two sentences for the report.
        config: Base config file with its arguments; "run:DIRECTORY" for an existing run; in an axis, "average:A,B" averages
            the predictions of the runs with the labels A and B of that axis.
        axes: Axis name -> (label -> overrides); their product is the list of runs. A plain sequence under a dotted config
            name, such as `"train.steps": [10, 20]`, is short for `{"10": {"train.steps": 10}, "20": {"train.steps": 20}}`.
            `"seed": [1, 2]` also sets `data.seed`, unless an override or another axis does: each seed reads the text in its own
            order, the same for all variants, so the spread over seeds includes the order. Or a grid made with the functions
            of `bertlab.studies.axes`.
        overrides: Overrides of all runs; axes take precedence, and what has no effect with theirs is left out.
        downstream: The tasks each run is fine-tuned on: names, or name -> settings of the fine-tuning's config, with the
            reserved keys "recipe" and "task" (default: the name; with "task" it only names a directory and a column). They take
            precedence over shared "finetune." overrides; axes take precedence over them.
        select: Axes whose best label is selected by the score on `valid`, for each variant and task.
        rates: Factors of each variant's own pretraining rate. Its validation loss selects one of them before the seeds are run
            (`bertlab.studies.selection`); empty: all keep their own.
        task_rates: Rates of fine-tuning. They are one more axis, "finetune.rate", of which `valid` selects a label as in
            `select`; empty: the recipe's rate.
        published: A published table to show next to the study's own, see `Published`.
        claims: Published findings that the report holds against the study's own, see `Claim`.
        contrasts: Pairs of variants whose difference the study asks for beside the findings.
    """

    name: str
    title: str
    question: str
    config: str
    axes: Mapping[str, Mapping[str, Mapping[str, Any]] | Sequence[Any]] | Sequence[Point]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    downstream: Sequence[str] | Mapping[str, Mapping[str, Any]] = ()
    select: Sequence[str] = ()
    rates: Sequence[float] = ()
    task_rates: Sequence[float] = ()
    published: "Published | None" = None
    claims: "Sequence[Claim]" = ()
    contrasts: Sequence[tuple[str, str]] = ()

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Task directory -> settings of its fine-tuning.

        Raises:
            UserError: They are neither names nor names with a dict of settings each.
        """
        given = self.downstream
        if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
            raise UserError(f"study {self.name}: downstream is {given!r}; give a list of tasks, or a dict of task -> settings")
        if wrong := [name for name in given if isinstance(given, Mapping) and not isinstance(given[name], Mapping)]:
            raise UserError(f"study {self.name}: downstream {wrong[0]} is {given[wrong[0]]!r}; give a dict of settings")
        if wrong := [name for name in given if not is_plain_name(name)]:
            raise UserError(
                f"study {self.name}: downstream {wrong[0]!r} names no folder; for a task in a Python file give a name of yours,"
                ' {"mine": {"task": "FILE.py"}}'
            )
        return {name: dict(given[name]) if isinstance(given, Mapping) else {} for name in given}

    @functools.cached_property
    def grid(self) -> list[Point]:
        """The points of the study, one per run.

        Raises:
            UserError: An axis is empty, has a reserved name, or does not consist of labels with overrides.
        """
        try:
            grid = product(*(axis(*a) for a in self.axes.items())) if isinstance(self.axes, Mapping) else list(self.axes)
        except UserError as error:
            raise UserError(f"study {self.name}: {error}") from None
        if taken := [name for point in grid for name in point if name in COLUMNS]:
            raise UserError(
                f'study {self.name}: "{taken[0]}" cannot name an axis because results already have a column with that name;'
                " rename the axis"
            )
        if not self.task_rates:
            return grid
        if any(TASK_RATES in point for point in grid):
            raise UserError(f'study {self.name}: it has task_rates and an axis "{TASK_RATES}"; keep one of them')
        if wrong := [rate for rate in self.task_rates if not isinstance(rate, float) or not 0 < rate < math.inf]:
            raise UserError(f"study {self.name}: task_rates has {wrong[0]!r}; give numbers above 0, such as 1e-3")
        if not self.downstream:
            raise UserError(f"study {self.name}: task_rates has no effect without tasks; name some, or leave it out")
        rates = rate_axis(self.task_rates)
        before_seed = lambda point: {name: choice for name, choice in point.items() if name != "seed"}
        return [{**before_seed(point), **rate, **point} for point in grid for rate in rates]

    @property
    def selected(self) -> list[str]:
        """The axes of which `valid` selects a label: those of `select`, and that of `task_rates`."""
        return [*self.select, *([TASK_RATES] if self.task_rates else [])]

    @functools.cached_property
    def axis_names(self) -> list[str]:
        """The names of the axes, in order."""
        return list(dict.fromkeys(name for point in self.grid for name in point))

    def runs(self) -> list[RunSpec]:
        """One run per point of the grid; runs with equal pretraining or adaptation share the first one's.

        Raises:
            UserError: The study has no runs, an axis is wrong (see `grid`), two axes set the same or nested config names, a
                label gives an empty or repeated directory name, a value is not JSON, or an average names fewer than two runs.
        """
        if unknown := [name for name in self.select if name not in self.axis_names]:
            raise UserError(f'study {self.name}: select names "{unknown[0]}", and its axes are {", ".join(self.axis_names)}')
        grid, specs, beside = self.grid, {}, StudyDirectory("")
        # Beside the runs' directories lie study.json, sweep.lock and the report.
        reserved = {"", beside.report.name, beside.page.name, beside.explore.name}
        if not grid:
            raise UserError(f"study {self.name}: axes has no points, so the study has no runs; give at least one")
        for point in grid:
            spec = self._run(point)
            if spec.name in reserved or spec.name in specs or spec.name.endswith((".json", ".lock")):
                raise UserError(
                    f"study {self.name}: the labels {list(spec.labels.values())} give the run name "
                    f'"{spec.name}", but that name is taken; rename a label'
                )
            specs[spec.name] = spec
        return sharing(keeping([self._averaging(point, spec, specs) for point, spec in zip(grid, specs.values(), strict=True)]))

    def _run(self, point: Point) -> RunSpec:
        """The run at a point, by itself."""
        for (name, choice), (other_name, other) in itertools.combinations(point.items(), 2):
            for key, other_key in itertools.product(choice.overrides, other.overrides):
                if overlap(key, other_key):
                    raise UserError(
                        f'study {self.name}: axis "{name}" ({choice.label}) sets {key} and axis "{other_name}" ({other.label}) '
                        f"sets {other_key}; let only one axis set it"
                    )
        if empty := [(name, choice.label) for name, choice in point.items() if not file_name([choice.part])]:
            name, label = empty[0]
            raise UserError(
                f'study {self.name}: label "{label}" of axis "{name}" needs a letter or digit for its file name; rename it'
            )
        own = settings(point)
        config = own.pop("config", self.config)
        if (seed := point.get("seed")) and seed.is_value and not any(overlap("data.seed", key) for key in own | self.overrides):
            own["data.seed"] = own["seed"]
        # What the point sets replaces the same key, and what has no effect with it, such as a setting of another format.
        idle = {key for key, value in self.overrides.items() if key in BY_NAME and BY_NAME[key].without_effect(value, own)}
        shared = {k: v for k, v in self.overrides.items() if k not in idle and not any(overlap(k, key) for key in own)}
        both = shared | own
        finetune = (_of_stage("finetune", shared), _of_stage("finetune", own))
        spec = RunSpec(
            name=file_name([choice.part for choice in point.values()] or [self.name]),
            labels={name: point[name].label if name in point else "" for name in self.axis_names},
            config=config,
            overrides={key: value for key, value in both.items() if key.partition(".")[0] not in STAGES},
            downstream={task: finetune[0] | given | finetune[1] for task, given in self.tasks.items()},
            adapt=_of_stage("adapt", both),
        )
        try:
            json.dumps([spec.overrides, spec.downstream, spec.adapt])
        except TypeError as error:
            raise UserError(
                f"study {self.name}: an override of run {spec.name} is not plain data ({error}); "
                "use numbers, strings, booleans, lists or dicts"
            ) from error
        return spec

    def _averaging(self, point: Point, spec: RunSpec, specs: Mapping[str, RunSpec]) -> RunSpec:
        """The run; if it is an average, with the runs that it averages."""
        if not spec.config.startswith("average:"):
            return spec
        along = next(name for name, choice in point.items() if "config" in choice.overrides)
        elsewhere = lambda run: {name: label for name, label in run.labels.items() if name != along}
        fellows = {run.labels[along]: run.name for run in specs.values() if elsewhere(run) == elsewhere(spec)}
        wanted = spec.config.removeprefix("average:").split(",")
        if len(set(wanted)) < max(2, len(wanted)):
            raise UserError(f"study {self.name}: run {spec.name} is {spec.config}; give at least two labels, each once")
        if missing := [label for label in wanted if label not in fellows or label == spec.labels[along]]:
            raise UserError(
                f'study {self.name}: run {spec.name} averages "{missing[0]}", and the other labels of axis "{along}" are'
                f" {', '.join(label for label in fellows if label != spec.labels[along])}"
            )
        return replace(spec, overrides={}, adapt={}, averages=[fellows[label] for label in wanted])


@dataclass(frozen=True)
class Published:
    """A published table, shown next to a study's own.

    Attributes:
        source: Paper and table, such as "Devlin et al. 2019, table 5 (dev)".
        columns: Headings with the metric: "MNLI-m", "SQuAD F1".
        rows: Variant -> its values in the order of `columns`, as printed; None where the paper has none. Variants that the
            study has use the study's names.
        note: Remarks, for example on another scale or on values that were not verified.
    """

    source: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[float | str | None]]
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A published finding: one variant scores higher than another.

    Attributes:
        higher, lower: Variants of the study.
        published: What was published, with its numbers: "59.9 without pre-training, 74.7 with it (mean of nine tasks)".
        source: Paper and table.
        kinds: The kinds of task for which it was found, such as "span" (`bertlab.transfer.kinds`); empty: all.
    """

    higher: str
    lower: str
    published: str
    source: str
    kinds: Sequence[str] = ()


def rate_axis(rates: Sequence[float]) -> list[Point]:
    """The axis of `Study.task_rates`."""
    return axis(TASK_RATES, {f"{rate:g}": {f"finetune.{RATE}": rate} for rate in rates})


def _of_stage(stage: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides of a stage, without its prefix."""
    return {key.removeprefix(f"{stage}."): value for key, value in given.items() if key.startswith(f"{stage}.")}


def begun_at(run: RunSpec) -> Iterator[tuple[str, str, str, int]]:
    """(stage, task, stage that it begins with, step of that) of each stage that begins with another step than the last."""
    for task, finetune in run.downstream.items():
        begins = [("finetune", "adapt" if run.adapt else "pretrain", finetune), ("adapt", "pretrain", run.adapt)]
        for stage, begins_with, of in begins:
            if str(of.get("init_step")).isdecimal():  # the check of the stage's config refuses other values
                yield stage, task, begins_with, int(of["init_step"])


def keeping(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """The runs; a pretraining or an adaptation keeps the steps with which other stages begin, of all runs that share it."""
    wanted: dict[str, set[int]] = {}
    for run in runs:
        for _, _, begins_with, step in begun_at(run):
            if key := _shareable(run).get(begins_with):
                wanted.setdefault(key, set()).add(step)

    def kept(of_stage: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
        if key not in wanted:
            return of_stage
        steps = [of_stage.get("train.keep", ""), *map(str, sorted(wanted[key]))]
        return {**of_stage, "train.keep": ",".join(filter(None, steps))}

    keys = [(run, _shareable(run)) for run in runs]
    return [
        replace(run, overrides=kept(run.overrides, of.get("pretrain")), adapt=kept(run.adapt, of.get("adapt")))
        for run, of in keys
    ]


def sharing(runs: Sequence[RunSpec], claim: Callable[[str, RunSpec], int] = lambda stage, run: 0) -> list[RunSpec]:
    """The runs, with `shares` set where they have the same pretraining or adaptation.

    Args:
        runs: All runs of a study.
        claim: ("pretrain" or "adapt", run) -> how good the run's claim to the stage is. The run with the best one owns the
            stage, the first of several.
    """
    stages = [(run, _shareable(run).items()) for run in runs]
    fellows: dict[tuple[str, str], list[RunSpec]] = {}
    for run, shareable in stages:
        for stage_and_key in shareable:
            fellows.setdefault(stage_and_key, []).append(run)
    best = lambda stage, alike: max(alike, key=functools.partial(claim, stage)) if len(alike) > 1 else alike[0]
    owners = {of: best(of[0], alike).name for of, alike in fellows.items()}
    return [replace(run, shares={of[0]: owners[of] for of in shareable if owners[of] != run.name}) for run, shareable in stages]


def _shareable(run: RunSpec) -> dict[str, str]:
    """Stage -> a key that is equal in two runs if they can share the stage."""
    pretraining = [run.config, dict(run.overrides)]
    adaptation = [*pretraining, {task: data_of(of) | dict(run.adapt) for task, of in run.downstream.items()}]
    found = {}
    if not (run.averages or run.config.startswith("run:")):
        found["pretrain"] = json.dumps(["pretrain", *pretraining], sort_keys=True)
    if run.adapt and not run.averages:
        found["adapt"] = json.dumps(["adapt", *adaptation], sort_keys=True)
    return found


def data_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a fine-tuning that its adaptation uses too: the task and its data."""
    return {key: value for key, value in settings.items() if key == "task" or key.startswith("task_data.")}


def unseeded(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without those of a seed axis."""
    return {key: value for key, value in overrides.items() if key not in SEEDS}


def representatives(runs: Sequence[RunSpec]) -> dict[str, str]:
    """Run -> a run whose checks also hold for it: the first that differs in seeds alone; or itself, if a seed is new."""
    first: dict[str, str] = {}
    tried, found = set(), {}
    for run in runs:
        parts = {"": run.overrides, "adapt": run.adapt, **run.downstream}
        settings = json.dumps([run.config, run.averages, {of: unseeded(given) for of, given in parts.items()}], sort_keys=True)
        seeds = {(of, key, repr(value)) for of, given in parts.items() for key, value in given.items() if key in SEEDS}
        known = first.setdefault(settings, run.name)
        found[run.name] = known if seeds <= tried else run.name
        tried |= seeds
    return found


def overlap(key: str, other: str) -> bool:
    """Whether two dotted names are the same or one lies inside the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def file_name(parts: Sequence[str]) -> str:
    """Joins labels into one file name, letters and digits of any script: ["MLM+NSP", "α", "seed=1"] -> "mlm+nsp-α-seed=1"."""
    plain = (unicodedata.normalize("NFC", part.lower()) for part in parts)
    return "-".join(re.sub(r"[^\w+=.]+", "-", part).strip("-.") for part in plain)


def load_study(spec: str) -> Study:
    """Reads a study from "path.py" or "path.py:key=value,key=value"; the path as for `bertlab.config.find_file`.

    The file defines `get_study(arguments: str | None) -> Study`; `arguments` is the text after the colon. It can import files
    in its own directory.

    Raises:
        UserError: The file is missing, cannot be run, or does not define a study.
    """
    name = spec.partition(":")[0]
    with _importable(Path(find_file(name, f"--study={spec}")).resolve().parent):
        study = run_file(spec, "study", "get_study", None)
    if not isinstance(study, Study):
        raise UserError(
            f"--study={spec}: get_study() in {name} returned {type(study).__name__}, expected a bertlab.studies.study.Study"
        )
    return study


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Puts a folder first on the import path, as Python does for a script."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
