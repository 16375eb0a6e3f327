"""What is selected on held-out data: each variant's pretraining rate, and labels of axes.

**A pretraining rate** (`Study.rates`). Each variant has a few multiples of its own rate as
candidates. All are trained with the study's first seed, to the end, and the lowest validation loss
of the variant's own objectives wins. (Half a run ranks rates by which leaves the plateau of word
frequencies first.) The winner is the first seed's pretraining, so k candidates cost k - 1 more
pretrainings. Nothing downstream is looked at.

**Labels** (`Study.select`), such as a rate of fine-tuning. For each variant and task, the label
with the best mean `valid` score over seeds is chosen; only its `test` score is reported.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bertlab.errors import UserError
from bertlab.studies.study import RATE, RunSpec, Study, without_seeds
from bertlab.train.run_directory import RunDirectory

DIVERGED = "is not finite"  # in failed.txt of a run whose loss was


@dataclass(frozen=True)
class Search:
    """The search for the rate of one pretraining.

    Attributes:
        variant: Those that use it.
        own: The rate without a search.
        candidates: Name of a candidate's run -> its rate, from low to high.
        runs: Names of the runs that pretrain at the selected rate.
    """

    variant: str
    own: float
    candidates: Mapping[str, float]
    runs: Sequence[str]

    def losses(self, workdir: Path) -> dict[str, float]:
        """Candidate -> its validation loss in nats, infinite if it diverged; only of those that
        have ended."""
        losses = {}
        for name in self.candidates:
            directory = RunDirectory(workdir / name)
            result, failed = directory.read("result"), directory.path / "failed.txt"
            if result is not None:
                losses[name] = result["metrics"]["valid"]["loss"]
            elif failed.exists() and DIVERGED in failed.read_text(encoding="utf-8"):
                losses[name] = math.inf
        return losses

    def selected(self, workdir: Path) -> float | None:
        """The rate of the lowest loss, of equal ones the smaller rate; None if a candidate has not
        ended, or all diverged."""
        losses = self.losses(workdir)
        if len(losses) < len(self.candidates) or min(losses.values()) == math.inf:
            return None
        return self.candidates[min(losses, key=lambda name: (losses[name], self.candidates[name]))]

    def at_the_end(self, rate: float) -> bool:
        """Whether a better rate may lie beyond the candidates."""
        return rate in (min(self.candidates.values()), max(self.candidates.values()))


def find_searches(
    study: Study, runs: Sequence[RunSpec], configs: Mapping[str, Any]
) -> list[Search]:
    """One search for all runs whose pretrainings differ only in seeds; none without `Study.rates`.

    Args:
        study: The study.
        runs: At their own rates.
        configs: Run -> its pretraining's config; without the runs that do not pretrain.
    """
    if not study.rates:
        return []
    if len(set(study.rates)) < 2 or not all(0 < factor < math.inf for factor in study.rates):
        raise UserError(f"study {study.name}: rates={study.rates}: give two factors or more")
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        if run.name in configs and configs[run.name].train.steps:
            key = json.dumps([run.config, without_seeds(run.overrides)], sort_keys=True)
            groups.setdefault(key, []).append(run)
    searches = []
    for group in groups.values():
        first, own = group[0], float(configs[group[0].name].optimizer.learning_rate)
        rates = sorted(
            own if factor == 1 else float(f"{factor * own:.3g}") for factor in study.rates
        )
        candidates = {f"{first.name}-rate={rate:g}": rate for rate in rates}
        variants = "; ".join(dict.fromkeys(run.variant for run in group))
        searches.append(Search(variants, own, candidates, [run.name for run in group]))
    return searches


def candidate_runs(searches: Sequence[Search], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """The runs that the searches need: the first run of each, at every candidate, without tasks."""
    by_name = {run.name: run for run in runs}
    found = []
    for search in searches:
        first = replace(by_name[search.runs[0]], downstream={}, adapt={}, shares={})
        for name, rate in search.candidates.items():
            found.append(replace(_at_rate(first, search, rate), name=name))
    return found


def at_selected_rates(
    runs: Sequence[RunSpec], searches: Sequence[Search], workdir: Path
) -> list[RunSpec]:
    """The runs, each at its selected rate, or at its own if none is selected yet."""
    changed = {run.name: run for run in runs}
    for search in searches:
        rate = search.selected(workdir)
        for name in search.runs if rate is not None else ():
            changed[name] = _at_rate(changed[name], search, rate)
    return list(changed.values())


def _at_rate(run: RunSpec, search: Search, rate: float) -> RunSpec:
    if rate == search.own:
        return run
    return replace(run, overrides={**run.overrides, RATE: rate})


def select_labels(scores: pd.DataFrame, select: Sequence[str], higher: bool = True) -> pd.DataFrame:
    """The scores of each variant and task at the labels that its `valid` scores select.

    Of equal means the first label wins, and of rates the smaller one.

    Args:
        scores: A row a run, task and split, in the study's order: `variant`, `task`, `split`,
            `metric`, `value`, and a column for each axis of `select`. NaN: the run failed.
        select: The axes.
        higher: Whether more is better.

    Returns:
        The rows at the selected labels; without `select`, all.
    """
    if not select:
        return scores
    chosen = []
    for _, group in scores.groupby(["variant", "task", "metric"], sort=False, dropna=False):
        valid = group[group["split"] == "valid"]
        best = None
        for labels, rows in valid.groupby(list(select), sort=False):
            mean = rows["value"].mean()
            rank = (rows["value"].isna().sum(), -mean if higher else mean, _numbers(labels))
            if not math.isnan(mean) and (best is None or rank < best[0]):
                best = rank, labels
        if best is not None:
            chosen.append(group[(group[list(select)] == list(best[1])).all(axis=1)])
    return pd.concat(chosen) if chosen else scores.iloc[:0]


def _numbers(labels: Sequence[str]) -> list[float]:
    """The labels as numbers, for ties; those that are none are equal."""
    return [float(x) if x.replace(".", "").replace("e-", "").isdecimal() else 0.0 for x in labels]
