"""A study is pure data: a base config and named axes. Their product is the list of runs."""

import importlib.util
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertlab.errors import UserError

# An axis becomes a column of results.runs and results.metrics, beside these.
COLUMNS = (
    "run",
    "name",
    "variant",
    "status",
    "error",
    "step",
    "split",
    "metric",
    "value",
    "parameters",
    "tokens",
    "supervised",
    "flops",
    "seconds",
    "data_hash",
)
REPORT_DIRECTORY = "report"
COSTS = ("parameters", "step", "tokens", "supervised", "flops", "seconds")  # of a result.json


@dataclass(frozen=True)
class RunSpec:
    """One run of a study.

    Attributes:
        name: Directory name under the study's workdir, e.g. "mlm+nsp-seed=1".
        labels: Axis name -> label, in the order of the study's axes.
        config: Config file with its arguments, e.g. "experiments/pretrain/bert.py:size=tiny"; or "run:DIRECTORY", a run that
            is there already and is not trained any more.
        overrides: Dotted config name -> value, laid over the config; with "run:DIRECTORY", over each task's.
        downstream: Task directory -> settings of its fine-tuning, see `Study`.
    """

    name: str
    labels: Mapping[str, str]
    config: str
    overrides: Mapping[str, Any]
    downstream: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Study:
    """A set of runs that differ in named axes over one base config.

    Attributes:
        name: Short name, used in messages and to recognise the study's workdir.
        title: Heading of the report.
        question: What the study asks, one or two sentences for the report.
        config: Base config file with its arguments.
        axes: Axis name -> (label -> overrides), where overrides maps dotted config names to values and the reserved
            key "config" replaces the base config file ("run:DIRECTORY" for a run that is there already). A plain sequence
            under a dotted config name, such as `"seed": [1, 2]`, is short for `{"1": {"seed": 1}, "2": {"seed": 2}}`.
        overrides: Overrides shared by all runs; an axis may override them.
        downstream: The tasks each run is fine-tuned on: names, or name -> overrides of the fine-tuning's config, with the
            reserved keys "recipe" and "task" (default: the name, which is then only that of a directory and a column).
        select: Axes whose best label is chosen, for each variant and task, by the score on `valid`.
    """

    name: str
    title: str
    question: str
    config: str
    axes: Mapping[str, Mapping[str, Mapping[str, Any]] | Sequence[Any]]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    downstream: Sequence[str] | Mapping[str, Mapping[str, Any]] = ()
    select: Sequence[str] = ()

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """Task directory -> settings of its fine-tuning."""
        given = self.downstream
        return {name: dict(given[name]) if isinstance(given, Mapping) else {} for name in given}

    def runs(self) -> list[RunSpec]:
        """The product over the axes; the last axis varies fastest.

        Raises:
            UserError: An axis is empty or has a reserved name, two axes set the same or nested config names, two
                runs get the same name, or a value cannot be written as JSON.
        """
        if unknown := [axis for axis in self.select if axis not in self.axes]:
            raise UserError(f'study {self.name}: select names "{unknown[0]}", and its axes are {", ".join(self.axes)}')
        specs: dict[str, RunSpec] = {}
        for choice in itertools.product(*(self._choices(axis) for axis in self.axes)):
            settings = {}
            for (axis, label, _, overrides), (other, other_label, _, others) in itertools.combinations(choice, 2):
                for key, other_key in itertools.product(overrides, others):
                    if overlap(key, other_key):
                        raise UserError(
                            f'study {self.name}: axis "{axis}" ({label}) sets {key} and axis "{other}" ({other_label}) '
                            f"sets {other_key}; let one axis alone set it"
                        )
            for _, _, _, overrides in choice:
                settings.update(overrides)
            config = settings.pop("config", self.config)
            shared = {k: v for k, v in self.overrides.items() if not any(overlap(k, key) for key in settings)}
            spec = RunSpec(
                name=file_name([part for _, _, part, _ in choice] or [self.name]),
                labels={axis: label for axis, label, _, _ in choice},
                config=config,
                overrides=shared | settings,
                downstream=self.tasks,
            )
            if spec.name in specs or spec.name in ("", REPORT_DIRECTORY):
                raise UserError(
                    f"study {self.name}: the labels {list(spec.labels.values())} give the run name "
                    f'"{spec.name}", which is taken; rename a label'
                )
            try:
                json.dumps([spec.overrides, spec.downstream])
            except TypeError as error:
                raise UserError(
                    f"study {self.name}: an override of run {spec.name} is not plain data ({error}); "
                    "use numbers, strings, booleans, lists or dicts"
                ) from error
            specs[spec.name] = spec
        return list(specs.values())

    def _choices(self, axis: str) -> list[tuple[str, str, str, Mapping[str, Any]]]:
        """(axis, label, part of the run's name, overrides) for each label of an axis."""
        values = self.axes[axis]
        if axis in COLUMNS:
            raise UserError(
                f'study {self.name}: "{axis}" cannot name an axis because results have a column of that name; rename the axis'
            )
        if isinstance(values, str) or not values:
            raise UserError(
                f'study {self.name}: axis "{axis}" is {values!r}; give it a dict of label -> overrides or a list of values'
            )
        if not isinstance(values, Mapping):
            return [(axis, str(value), f"{axis}={value}", {axis: value}) for value in values]
        for label, overrides in values.items():
            if not isinstance(overrides, Mapping):
                raise UserError(
                    f'study {self.name}: label "{label}" of axis "{axis}" is {overrides!r}; expected a '
                    "dict of dotted config names and values"
                )
        return [(axis, str(label), str(label), overrides) for label, overrides in values.items()]


def overlap(key: str, other: str) -> bool:
    """Whether two dotted names are the same or one lies inside the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def file_name(parts: Sequence[str]) -> str:
    """Joins labels into one portable file name: ["MLM+NSP", "seed=1"] -> "mlm+nsp-seed=1"."""
    return "-".join(re.sub(r"[^a-z0-9+=._]+", "-", part.lower()).strip("-.") for part in parts)


def load_study(spec: str) -> Study:
    """Reads a study from "path.py" or "path.py:key=value,key=value".

    The file defines `get_study(arguments: str | None) -> Study`; `arguments` is the text after the colon.

    Raises:
        UserError: There is no such file, or it does not define a study.
    """
    name, colon, arguments = spec.partition(":")
    path = Path(name)
    if not path.is_file():
        raise UserError(f"--study={spec}: there is no file {name}; give the path of a Python file with get_study()")
    module_spec = importlib.util.spec_from_file_location(f"study_{path.stem}", path)
    if module_spec is None:
        raise UserError(f"--study={spec}: {name} is not a Python file (.py)")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    if not hasattr(module, "get_study"):
        raise UserError(f"--study={spec}: {name} does not define get_study(arguments)")
    study = module.get_study(arguments if colon else None)
    if not isinstance(study, Study):
        raise UserError(
            f"--study={spec}: get_study() in {name} returned {type(study).__name__}, expected a bertlab.studies.study.Study"
        )
    return study
