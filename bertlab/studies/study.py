"""A study is pure data: a base config and the axes along which its runs differ.

A study's directory:

    study.json                what `Study.describe` returns
    RUN/                      the files of its pretraining (bertlab/train/run_directory.py)
    RUN/adapt/TASK/           the run that continues it on the task's text
    RUN/finetune/TASK/        the fine-tuning
    RUN/run.json              the `RunSpec` that was executed
    RUN/log.txt, failed.json  output of the worker; why it failed
"""

import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bertlab.config.load import SHIPPED, find_file, import_file
from bertlab.errors import UserError
from bertlab.studies.runs import RATE, RunSpec, sharing

STAGES = ("finetune.", "adapt.")  # prefixes of overrides; those without one are pretraining's
TASK_RATES = "finetune.rate"  # the axis of which `valid` selects a label, by variant and task
COLUMNS = {"run", "trained_in", "stage", "task", "split", "metric", "value", "parameters", "step"}
COLUMNS |= {"tokens", "supervised", "flops", "seconds", "data_hash"}  # of `bertlab.results.load`


@dataclass(frozen=True)
class Choice:
    """One label of an axis; in a run's name it is `name`: the label, or "seed=1" for a bare value.
    `overrides` are dotted config names -> values."""

    label: str
    name: str
    overrides: Mapping[str, Any]


Point = Mapping[str, Choice]
"""Places a run on the axes. A grid is a list of points:

    product(axis("rate", {"15 %": {...}, "40 %": {...}}), axis("seed", [1, 2]))
    chain(grid, axis("variant", {"no pretraining": {"train.steps": 0}}))  # one after the other
"""


def axis(name: str, values: Mapping[str, Mapping[str, Any]] | Sequence[Any]) -> list[Point]:
    """A grid along one axis, from label -> overrides, or from plain values of the config name."""
    if not isinstance(values, Mapping):
        return [{name: Choice(str(value), f"{name}={value}", {name: value})} for value in values]
    return [{name: Choice(label, label, overrides)} for label, overrides in values.items()]


def product(*grids: Sequence[Point]) -> list[Point]:
    """Every point of each grid with every point of the others; the last grid varies fastest."""
    return [
        {name: choice for point in points for name, choice in point.items()}
        for points in itertools.product(*grids)
    ]


def chain(*grids: Sequence[Point]) -> list[Point]:
    """The points of the grids one after another; the axes may differ."""
    return list(itertools.chain(*grids))


@dataclass(frozen=True)
class Published:
    """A published table, printed next to a study's own."""

    source: str  # paper and table, such as "Devlin et al. 2019, table 5 (dev)"
    columns: Sequence[str]  # headings that include the metric: "MNLI-m", "SQuAD F1"
    rows: Mapping[str, Sequence[float | str | None]]  # variant -> values, as printed, or None
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A published finding: the variant `higher` scores higher than `lower`."""

    higher: str
    lower: str
    published: str  # with its numbers: "59.9 without pre-training, 74.7 with it"
    source: str
    kinds: Sequence[str] = ()  # of task for which it was found, such as "span"; empty: all
    uses: Sequence[str] = ()  # endings of the task directories' names: "_tuned"; empty: any


@dataclass(frozen=True)
class Study:
    """A set of runs that differ along axes from one base config.

    Overrides are dotted config names -> values. A plain name sets pretraining's config;
    "finetune.NAME" that of every task's fine-tuning (also "finetune.recipe", and
    "finetune.rate_factor", which multiplies each task's or recipe's rate); "adapt.NAME" adds an
    adaptation to each task's text in between (also "adapt.recipe" and "adapt.epochs"); "config"
    replaces the base config. `"finetune.init_step": [100, 1000]` compares steps of one pretraining,
    which keeps their checkpoints.
    """

    name: str  # empty: its file's (`load_study`)
    title: str  # heading of the report
    question: str  # one or two sentences
    # Base config file with its arguments; "run:DIRECTORY" for an existing run; in an axis,
    # "average:A,B" averages the predictions of the runs with its labels A and B.
    config: str
    # Axis -> (label -> overrides), whose product is the list of runs, or a grid of points.
    # `"train.steps": [10, 20]` is short for `{"10": {"train.steps": 10}, ...}`. `"seed": [1, 2]`
    # also sets `data.seed`, unless something else does: each seed reads the text in its own order,
    # the same for all variants.
    axes: Mapping[str, Mapping[str, Mapping[str, Any]] | Sequence[Any]] | Sequence[Point]
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of all runs; axes take precedence
    # The tasks: names, or task directory -> settings of its fine-tuning, with the reserved keys
    # "recipe" and "task" (default: the directory's name). They take precedence over shared
    # "finetune." overrides; axes take precedence over them.
    downstream: Sequence[str] | Mapping[str, Mapping[str, Any]] = ()
    # Factors of each variant's own pretraining rate, one of which its validation loss selects
    # before the seeds are run (`bertlab.studies.selection`); empty: its own.
    rates: Sequence[float] = ()
    published: Published | None = None
    claims: Sequence[Claim] = ()  # that the report compares with the study's own findings
    contrasts: Sequence[tuple[str, str]] = ()  # pairs of variants whose difference it asks for

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Task directory -> settings of its fine-tuning."""
        given = self.downstream if isinstance(self.downstream, Mapping) else {}
        return {name: dict(given.get(name, {})) for name in self.downstream}

    @functools.cached_property
    def grid(self) -> list[Point]:
        if isinstance(self.axes, Mapping):
            return product(*itertools.starmap(axis, self.axes.items()))
        return list(self.axes)

    @property
    def axis_names(self) -> list[str]:
        return list(dict.fromkeys(name for point in self.grid for name in point))

    def runs(self) -> list[RunSpec]:
        """One run per point; those with equal pretraining or adaptation share the first one's."""
        if taken := COLUMNS.intersection(self.axis_names):
            column = f'"{min(taken)}" is a column of results; give that axis another name'
            raise UserError(f"study {self.name}: {column}")
        runs = {}
        for run in map(self._run, self.grid):
            if run.name in runs or not run.name:
                twice = f'two runs are named "{run.name}"; rename a label'
                raise UserError(f"study {self.name}: {twice}")
            runs[run.name] = run
        variants = list(dict.fromkeys(run.variant for run in runs.values()))
        compared = [(claim.higher, claim.lower) for claim in self.claims] + list(self.contrasts)
        if unknown := [name for pair in compared for name in pair if name not in variants]:
            raise UserError(
                f'study {self.name}: "{unknown[0]}" of a claim or contrast is none of the'
                f" variants {'; '.join(variants)}"
            )
        return sharing([self._averaging(run, list(runs.values())) for run in runs.values()])

    def describe(self, runs: Sequence[RunSpec], searches: Sequence[Any] = ()) -> dict[str, Any]:
        """The content of study.json: its runs, at rates that `searches` selected."""
        axes = {
            name: list(dict.fromkeys(run.labels[name] for run in runs if run.labels[name]))
            for name in self.axis_names
        }
        return dataclasses.asdict(self) | {
            "axes": axes,
            "seed_axes": seed_axes(axes),
            "select": [TASK_RATES] if TASK_RATES in axes else [],
            "tasks": list(self.tasks),
            "searches": [dataclasses.asdict(search) for search in searches],
            "runs": [dataclasses.asdict(run) for run in runs],
        }

    def _run(self, point: Point) -> RunSpec:
        """The run at a point, without what it shares."""
        for (name, choice), (other, second) in itertools.combinations(point.items(), 2):
            for key, other_key in itertools.product(choice.overrides, second.overrides):
                if overlap(key, other_key):
                    pair = f'"{name}" sets {key} and axis "{other}" sets {other_key}'
                    raise UserError(f"study {self.name}: axis {pair}; let only one of them set it")
        own = {key: value for choice in point.values() for key, value in choice.overrides.items()}
        config = own.pop("config", self.config)
        if "seed" in own and not any(overlap("data.seed", key) for key in [*own, *self.overrides]):
            own["data.seed"] = own["seed"]
        replaced = {key for key in self.overrides for other in own if overlap(key, other)}
        common = {key: value for key, value in self.overrides.items() if key not in replaced}
        everything = common | own
        labels = {name: point[name].label if name in point else "" for name in self.axis_names}
        apart = (*seed_axes(labels), TASK_RATES)
        compared = [label for name, label in labels.items() if label and name not in apart]
        before, after = stage_keys("finetune", common), stage_keys("finetune", own)
        downstream = {task: before | settings | after for task, settings in self.tasks.items()}
        # ["MLM + NSP", "seed=1"] -> "mlm-+-nsp-seed=1"
        names = [choice.name.lower() for choice in point.values()] or [self.name.lower()]
        names = [re.sub(r"[^\w+=.]+", "-", name).strip("-.") for name in names]
        return RunSpec(
            name="-".join(names),
            variant=", ".join(compared) or self.title,
            labels=labels,
            config=config,
            overrides={k: v for k, v in everything.items() if not k.startswith(STAGES)},
            downstream=downstream,
            adapt=stage_keys("adapt", everything),
        )

    def _averaging(self, run: RunSpec, runs: Sequence[RunSpec]) -> RunSpec:
        """The run; an average with the runs that it averages."""
        if not run.config.startswith("average:"):
            return run
        averages = []
        for label in run.config.removeprefix("average:").split(","):
            found = [
                other.name
                for other in runs
                if [of for name, of in other.labels.items() if of != run.labels[name]] == [label]
            ]
            if len(found) != 1:
                wrong = f'run {run.name} averages "{label}", which is no other label'
                raise UserError(f"study {self.name}: {wrong}")
            averages += found
        return replace(run, overrides={}, adapt={}, averages=averages)


def seed_axes(axes: Iterable[str]) -> list[str]:
    """The axes along which runs are repetitions: "seed", or a config name that ends in ".seed"."""
    return [name for name in axes if name.split(".")[-1] == "seed"]


def rate_axis(rates: Sequence[float]) -> list[Point]:
    """The axis of fine-tuning rates; without any, the grid of one point that names no axis."""
    return axis(TASK_RATES, {f"{rate:g}": {f"finetune.{RATE}": rate} for rate in rates}) or [{}]


def stage_keys(stage: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides of a stage, without its prefix."""
    prefix = f"{stage}."
    return {k.removeprefix(prefix): v for k, v in overrides.items() if k.startswith(prefix)}


def overlap(key: str, other: str) -> bool:
    """Whether two dotted names are the same or one lies inside the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def load_study(spec: str) -> Study:
    """The study of "path.py" or "path.py:key=value,key=value": `get_study` of that file is called
    with the text after the colon. It can import files from its own directory and from
    experiments/ablations."""
    path, _, arguments = spec.partition(":")
    before = list(sys.path)
    sys.path[:0] = [str(find_file(path).parent), str(SHIPPED / "experiments" / "ablations")]
    try:
        module = import_file(path)
        if not hasattr(module, "get_study"):
            raise UserError(f"{path} is not a study: it has no function get_study")
        study = module.get_study(arguments or None)
    finally:
        sys.path[:] = before
    return study if study.name else replace(study, name=find_file(path).stem)
