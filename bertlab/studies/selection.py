"""What was selected on `valid`: each variant's pretraining rate before its seeds are run, and labels of axes after that.

**A pretraining rate** (`Study.rates`). Each variant has its own rate and a few multiples of it as candidates. All of them are
trained with the study's first seed, to the end, and the lowest validation loss of the variant's own objectives wins. A shorter
search would be cheaper and worse: masked models stay at the loss of word frequencies for long, so half a run ranks rates by
who leaves that plateau first, and the best rate falls with the length of a run. The winner is the first seed's pretraining, so
k candidates cost k - 1 more pretrainings for each variant. Nothing downstream is looked at; the first seed's validation loss is
the lowest of k, and so slightly too low.

**Labels** (`Study.select`) name axes (a rate of fine-tuning, a number of epochs). For each variant and task, the label with the
best mean `valid` score over seeds is chosen, among the labels with the fewest unscored runs (failed, or unfinished). Only that
label's `test` score is reported.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import Measure, Results, bounds, once, scores, seed_axes, variant_name
from bertlab.studies.seeds import by_seed
from bertlab.studies.statistics import mean_interval, multi_bootstrap
from bertlab.studies.study import RATE, RunSpec, Study, unseeded

TASK_STAGES = ("finetune", "most_frequent")  # of `Measure`, of which each task has its own selected label


@dataclass(frozen=True)
class Search:
    """The search for the rate of one pretraining.

    Attributes:
        variant: The labels of the runs that use it, without the seeds' and the selected axes'.
        own: The rate without a search.
        candidates: Name of a candidate's run -> its rate, from low to high.
        runs: Names of the runs that pretrain at the selected rate.
    """

    variant: str
    own: float
    candidates: Mapping[str, float]
    runs: Sequence[str]

    def losses(self, workdir: Path) -> dict[str, float]:
        """Candidate -> its validation loss at the end in nats, infinite if it diverged; without those that have not ended."""
        runs = {name: Run(workdir / name) for name in self.candidates}
        return {name: _loss(run) for name, run in runs.items() if has_ended(run)}

    def selected(self, workdir: Path) -> float | None:
        """The rate of the lowest loss; None if a candidate has not ended, or all diverged.

        Of equal losses, the rate that is nearest to the variant's own wins, and then the lower one.
        """
        losses = self.losses(workdir)
        if len(losses) < len(self.candidates) or min(losses.values()) == math.inf:
            return None
        distance = lambda rate: round(abs(math.log(rate / self.own)), 6)
        order = lambda name: (losses[name], distance(self.candidates[name]), self.candidates[name])
        return self.candidates[min(losses, key=order)]

    def result(self, workdir: Path) -> str:
        """The losses and the selected rate, as a sweep prints them."""
        losses, rate = self.losses(workdir), self.selected(workdir)
        listed = (f"{rate:g}: {loss_text(losses.get(name))}" for name, rate in self.candidates.items())
        said = "not selected" if rate is None else f"{rate:g}" + (", at the end of the candidates" * self.at_the_end(rate))
        return f"pretraining rate of {self.variant}: {said} (validation losses: {', '.join(listed)})"

    def costs(self, workdir: Path) -> list[dict[str, Any]]:
        """What each candidate has spent so far, by the names of `COSTS`; a diverged one up to its last line."""
        runs = [Run(workdir / name) for name in self.candidates]
        return [run.result.get() or (run.metrics.read() or [{}])[-1] for run in runs]

    def at_the_end(self, rate: float) -> bool:
        """Whether a rate is the lowest or the highest candidate, so that a better one may lie beyond."""
        return rate in (min(self.candidates.values()), max(self.candidates.values()))


def find_searches(study: Study, runs: Sequence[RunSpec], configs: Mapping[str, Any]) -> list[Search]:
    """The searches of a study: one for all runs whose pretrainings differ only in seeds; none for a run that does not pretrain.

    Args:
        study: With `rates`, or else without searches.
        runs: Its runs, at their own rates.
        configs: Run -> its pretraining's config.

    Raises:
        UserError: The factors are fewer than two, repeated, or not above 0; or a candidate's name is taken.
    """
    if not study.rates:
        return []
    if len(set(study.rates)) < max(2, len(study.rates)) or not all(0 < factor < math.inf for factor in study.rates):
        raise UserError(f"study {study.name}: rates are {list(study.rates)}; give at least two different factors above 0")
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        if not run.averages and configs[run.name].train.steps:
            groups.setdefault(json.dumps([run.config, unseeded(run.overrides)], sort_keys=True), []).append(run)
    searches = []
    for group in groups.values():
        first, own = group[0], float(configs[group[0].name].optimizer.learning_rate)
        rates = sorted(own if factor == 1 else float(f"{factor * own:.3g}") for factor in study.rates)
        candidates = {f"{first.name}-rate={rate:g}": rate for rate in rates}
        variant = "; ".join(dict.fromkeys(_variant(run, study.selected) or study.title for run in group))
        searches.append(Search(variant, own, candidates, [run.name for run in group]))
    if taken := {run.name for run in runs} & {name for search in searches for name in search.candidates}:
        raise UserError(f"study {study.name}: run {min(taken)} has the name of a candidate for a rate; rename its label")
    return searches


def candidates(searches: Sequence[Search], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """The runs that the searches need: the first run of each at every candidate, without its tasks."""
    by_name = {run.name: run for run in runs}
    found = []
    for search in searches:
        first = replace(by_name[search.runs[0]], downstream={}, adapt={}, shares={})
        found += [replace(_at(first, search, rate), name=name) for name, rate in search.candidates.items()]
    return found


def at_selected_rates(runs: Sequence[RunSpec], searches: Sequence[Search], workdir: Path) -> list[RunSpec]:
    """The runs, each at its selected rate, or at its own if none is selected yet."""
    rates = [(search, search.selected(workdir)) for search in searches]
    chosen = {name: (search, rate) for search, rate in rates if rate is not None for name in search.runs}
    return [_at(run, *chosen[run.name]) if run.name in chosen else run for run in runs]


def undecided(searches: Sequence[Search], workdir: Path) -> dict[str, str]:
    """Run -> why it cannot begin, for the runs that have no selected rate."""
    reasons = {}
    for search in searches:
        if search.selected(workdir) is None:
            missing = [name for name in search.candidates if not has_ended(Run(workdir / name))]
            rates = ", ".join(f"{rate:g}" for rate in search.candidates.values())
            diverged = f"all pretraining rates diverged ({rates}); lower {RATE} in the study"
            reasons |= dict.fromkeys(search.runs, f"needs {', '.join(missing)}" if missing else diverged)
    return reasons


def has_ended(run: Run) -> bool:
    """Whether a candidate has its loss, or has diverged."""
    return (run.result.exists() and run.measured.exists()) or run.diverged.exists()


def searches_of(results: Results) -> list[Search]:
    """The searches of a study that was swept; [] without."""
    names = [field.name for field in fields(Search)]  # a later version may write more
    return [Search(**{name: search[name] for name in names}) for search in results.study.get("searches", ())]


def rate_rows(results: Results) -> pd.DataFrame:
    """One row per candidate: `variant`, `run`, `rate`, `loss` (nats; infinite if it diverged), `selected`, and its costs."""
    rows, spends = [], ("tokens", "flops", "seconds")
    for search in searches_of(results):
        losses, selected = search.losses(results.path), search.selected(results.path)
        for (name, rate), spent in zip(search.candidates.items(), search.costs(results.path), strict=True):
            row = {"variant": search.variant, "run": name, "rate": rate, "loss": losses.get(name), "selected": rate == selected}
            rows.append(row | {key: spent.get(key) for key in spends})
    return pd.DataFrame(rows, columns=["variant", "run", "rate", "loss", "selected", *spends])


def loss_text(loss: float | None) -> str:
    """A candidate's validation loss, in words if it has none."""
    return "not finished" if loss is None else "diverged" if loss == math.inf else f"{loss:.4f}"


def _loss(run: Run) -> float:
    return run.result.read()["metrics"]["valid"]["loss"] if run.result.exists() else math.inf


def _at(run: RunSpec, search: Search, rate: float) -> RunSpec:
    """The run at a rate; unchanged at its own."""
    return run if rate == search.own else replace(run, overrides={**run.overrides, RATE: rate})


def _variant(run: RunSpec, selected: Sequence[str]) -> str:
    """A run's labels but the seeds' and those that are selected after all runs."""
    return variant_name(label for axis, label in run.labels.items() if axis not in (*seed_axes(run.labels), *selected))


@once
def selections(results: Results) -> pd.DataFrame:
    """One row for each variant and downstream task.

    Returns:
        `variant` (labels except seeds and `select`), `task`, `metric`, `chosen` (labels of `select`, "" without), `valid`
        (mean), `test` (mean), `low` and `high` (95 % interval of the mean: Student's over seeds, the multi-bootstrap's if
        fine-tuning seeds are nested in pretraining seeds; NaN for one seed, or if nothing varies), `sd` (between seeds, ddof
        1), `best` (highest test score of a run), `seeds` and `runs` (of the chosen label, with a score), `failed` (all failed
        runs of the variant). Unfinished runs are left out.
    """
    select, rows = selected_axes(results), []
    for choice in _choices(results):
        measure = choice.measure
        on_test, on_valid = results.values(measure), results.values(measure._replace(split="valid"))
        scored = by_seed(choice.chosen_runs, on_test).dropna(how="all")
        over_seeds = scored.mean(axis=1)
        low, high = _interval(scored, bounds(measure.metric))
        named = zip(select, choice.chosen, strict=True)
        rows.append(
            {
                "variant": choice.variant,
                "task": measure.task,
                "metric": measure.metric,
                "chosen": ", ".join(f"{axis.removeprefix('finetune.')}={label}" for axis, label in named),
                "valid": by_seed(choice.chosen_runs, on_valid).mean(axis=1).mean(),
                "test": over_seeds.mean(),
                "low": low,
                "high": high,
                "sd": over_seeds.std(),
                "best": scored.max().max(),
                "seeds": len(over_seeds),
                "runs": int(scored.notna().sum().sum()),
                "failed": int((choice.runs["status"] == "failed").sum()),
            }
        )
    return pd.DataFrame(rows)


def at_the_ends(results: Results) -> dict[tuple[str, str, str], dict[str, list[str]]]:
    """Where a better label of `select` may lie beyond the candidates.

    Returns:
        (Axis, label, "lowest" or "highest") -> variant -> tasks for which `valid` selected it. Only axes of numbers have ends.
    """
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    numbers = {axis: _numbers(results.study["axes"][axis]) for axis in selected_axes(results)}
    for choice in _choices(results):
        for (axis, of), label in zip(numbers.items(), choice.chosen, strict=True):
            for end, value in (("lowest", min(of.values(), default=None)), ("highest", max(of.values(), default=None))):
                if of and of.get(label) == value:  # variants without the axis have the label ""
                    found.setdefault((axis, label, end), {}).setdefault(choice.variant, []).append(choice.measure.task)
    return found


@once
def at_selected_labels(results: Results) -> Results:
    """The results as if each variant had run each task at its selected label only; the same results without `select`.

    Runs that differ only in the axes of `select` become one, with the pretraining and costs of the first that is finished, and
    each task's scores at the label that `valid` selects for the variant.
    """
    if not (select := selected_axes(results)):
        return results
    kept = [axis for axis in results.axes if axis not in select]
    names = [axis for axis in kept if axis not in results.seed_axes]
    one = {}  # run -> the one that stands for it
    for _, of in _groups(results.runs, kept):
        done = of.loc[of["status"] == "finished", "run"]
        one |= dict.fromkeys(of["run"], [*done, *of["run"]][0])
    firsts, of_tasks = set(one.values()), results.measurements["stage"].isin(TASK_STAGES)
    parts = [results.measurements[results.measurements["run"].isin(firsts) & ~of_tasks]]
    for choice in _choices(results):
        scored = choice.chosen_runs.loc[choice.chosen_runs["status"] == "finished", "run"]
        of_task = of_tasks & results.measurements["task"].eq(choice.measure.task)
        parts.append(results.measurements[of_task & results.measurements["run"].isin(scored)])
    measurements = pd.concat(parts, ignore_index=True)
    measurements["run"] = measurements["run"].map(one)
    finished = results.runs["status"].eq("finished").groupby(results.runs["run"].map(one)).transform("max")
    runs = results.runs.assign(status=finished.map({True: "finished", False: "unfinished"}))
    runs = runs[runs["run"].isin(firsts)].drop(columns=select).reset_index(drop=True)
    runs["variant"] = [variant_name(labels) or results.study["title"] for labels in runs[names].to_numpy()]
    metrics = results.metrics[results.metrics["run"].isin(firsts)].drop(columns=select)
    metrics["variant"] = metrics["run"].map(dict(zip(runs["run"], runs["variant"], strict=True)))
    study = {**results.study, "axes": {axis: results.study["axes"][axis] for axis in kept}, "select": []}
    study["runs"] = [run for run in results.study["runs"] if run["name"] in firsts]
    return replace(results, study=study, runs=runs, measurements=measurements, metrics=metrics)


def selected_axes(results: Results) -> list[str]:
    """The axes of which `valid` selects a label."""
    return [axis for axis in results.axes if axis in results.study.get("select", ())]


@dataclass(frozen=True)
class _Choice:
    """What `valid` selected for a variant and a score.

    Attributes:
        variant: Its name.
        measure: The score.
        runs: All runs of the variant.
        chosen: The selected labels, in the order of `selected_axes`.
        chosen_runs: The runs with these labels.
    """

    variant: str
    measure: Measure
    runs: pd.DataFrame
    chosen: tuple[str, ...]
    chosen_runs: pd.DataFrame


@once
def _choices(results: Results) -> list[_Choice]:
    """By variant and score, without those that no run has."""
    select, found = selected_axes(results), []
    for labels, runs in _groups(results.runs, [a for a in results.axes if a not in (*select, *results.seed_axes)]):
        for measure in scores(results):
            choices, chosen = _choose(runs, select, results.values(measure._replace(split="valid")))
            if chosen is not None:
                name = variant_name(labels) or results.study["name"]
                found.append(_Choice(name, measure, runs, chosen, choices[chosen]))
    return found


def _numbers(labels: Sequence[str]) -> dict[str, float]:
    """Label -> number; empty unless all are numbers and there are two or more."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return {}
    return numbers if len(numbers) > 1 else {}


def _choose(
    runs: pd.DataFrame, select: Sequence[str], on_valid: pd.Series
) -> tuple[dict[tuple[str, ...], pd.DataFrame], tuple[str, ...] | None]:
    """The runs of a variant by their labels of `select`, and the labels of the best; None if no run has a score.

    Args:
        runs: The variant's.
        select: The axes.
        on_valid: Run -> score.
    """
    valid = pd.Series(on_valid.loc[runs["run"]].to_numpy(), index=runs.index).where(runs["status"] == "finished")
    choices = {label: of for label, of in _groups(runs, list(select)) if valid[of.index].notna().any()}
    values = {label: valid[of.index] for label, of in choices.items()}
    best = max(choices, key=lambda label: (-values[label].isna().sum(), values[label].mean()), default=None)
    return choices, best


def _interval(scores: pd.DataFrame, within: tuple[float, float]) -> tuple[float, float]:
    """95 % interval of the mean of a variant's scores (`by_seed`), cut where scores end; NaN if there is none."""
    if len(scores) < 2:
        return math.nan, math.nan
    found = multi_bootstrap(scores) if scores.shape[1] > 1 else None
    low, high = (found.low, found.high) if found else mean_interval(scores.iloc[:, 0])
    return max(low, within[0]), min(high, within[1])


def _groups(runs: pd.DataFrame, axes: list[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """(Labels, runs) by the axes, in the order of the runs; all of them without axes."""
    if not axes:
        return [((), runs)]
    return [(labels, of) for labels, of in runs.groupby(axes, sort=False)]
