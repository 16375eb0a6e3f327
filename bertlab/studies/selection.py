"""The search for pretraining rates, and what a study trains with them.

With `Study.rates` each variant has a few multiples of its own rate as candidates. All are trained
with the study's first seed, to the end, and the lowest validation loss of the variant's own
objectives wins. (Half a run ranks rates by which leaves the plateau of word frequencies first.) The
winner is the first seed's pretraining, so k candidates cost k - 1 more pretrainings. Nothing
downstream is looked at.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.studies.configs import compose
from bertlab.studies.runs import RunSpec, Stage, sharing, without_seeds
from bertlab.studies.study import RATE, Study
from bertlab.train.run_directory import RunDirectory


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
            if (result := directory.read("result")) is not None:
                losses[name] = result["metrics"]["valid"]["loss"]
            elif directory.read("failed", {}).get("status") == "diverged":
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


class Plan(NamedTuple):
    """What a study trains.

    Attributes:
        searches: Of pretraining rates; none without `Study.rates`.
        candidates: The runs of the searches.
        runs: The study's, each at its selected rate, or at its own if none is selected yet.
        configs: Run -> stage -> config, of both.
    """

    searches: Sequence[Search]
    candidates: Sequence[RunSpec]
    runs: Sequence[RunSpec]
    configs: Mapping[str, Mapping[Stage, ConfigDict]]


def make_plan(study: Study, workdir: Path) -> Plan:
    """The plan of a study at the rates that the runs in `workdir` select."""
    own = {run.name: run for run in study.runs()}
    configs = compose(list(own.values()))
    searches = find_searches(study, list(own.values()), configs)
    candidates = []
    for search in searches:
        first = replace(own[search.runs[0]], downstream={}, adapt={}, shares={})
        for name, rate in search.candidates.items():
            candidates.append(replace(_at_rate(first, search, rate), name=name))
        if (rate := search.selected(workdir)) is not None:
            own |= {name: _at_rate(own[name], search, rate) for name in search.runs}
    runs = sharing([*candidates, *own.values()])
    candidates, runs = runs[: len(candidates)], runs[len(candidates) :]
    return Plan(searches, candidates, runs, compose([*candidates, *runs]) if searches else configs)


def find_searches(
    study: Study, runs: Sequence[RunSpec], configs: Mapping[str, Mapping[Stage, ConfigDict]]
) -> list[Search]:
    """One search for all runs whose pretrainings differ only in seeds; none without `Study.rates`.

    Args:
        study: The study.
        runs: At their own rates.
        configs: Of the runs.
    """
    if not study.rates:
        return []
    if len(set(study.rates)) < 2 or not all(0 < factor < math.inf for factor in study.rates):
        raise UserError(f"study {study.name}: rates={study.rates}: give two factors or more")
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        config = configs[run.name].get(("pretrain", ""))
        if config is not None and config.train.steps:
            key = json.dumps([run.config, without_seeds(run.overrides)], sort_keys=True)
            groups.setdefault(key, []).append(run)
    searches = []
    for group in groups.values():
        own = float(configs[group[0].name]["pretrain", ""].optimizer.learning_rate)
        rates = [own if factor == 1 else float(f"{factor * own:.3g}") for factor in study.rates]
        candidates = {f"{group[0].name}-rate={rate:g}": rate for rate in sorted(rates)}
        variants = "; ".join(dict.fromkeys(run.variant for run in group))
        searches.append(Search(variants, own, candidates, [run.name for run in group]))
    return searches


def _at_rate(run: RunSpec, search: Search, rate: float) -> RunSpec:
    if rate == search.own:
        return run
    return replace(run, overrides={**run.overrides, RATE: rate})
