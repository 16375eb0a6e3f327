"""The search for pretraining rates.

With `Study.rates`, a few multiples of each variant's own rate are trained to the end with the first
seed, and the lowest validation loss of the variant's own objectives wins. (Half a run ranks rates
by which first leaves the plateau of word frequencies.) The winner is the first seed's pretraining,
so k candidates cost k - 1 more pretrainings. A winner at the edge of the grid gets one more
candidate beyond it. An only factor is used as it is. Nothing downstream is looked at.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ml_collections import ConfigDict

from bertlab.studies.runs import RATE, RunSpec, without_seeds
from bertlab.studies.study import Study
from bertlab.train.run_directory import RunDirectory


@dataclass(frozen=True)
class Search:
    """The search for the rate of one pretraining."""

    variant: str  # the variants that use it
    own: float  # the rate without a search
    candidates: Mapping[str, float]  # name of a candidate's run -> its rate, from low to high
    runs: Sequence[str]  # names of the runs that pretrain at the selected rate

    def losses(self, workdir: Path) -> dict[str, float]:
        """Candidate that has ended -> its validation loss in nats, infinite if it diverged."""
        losses = {}
        for name in self.candidates:
            directory = RunDirectory(workdir / name)
            if (result := directory.read("result")) is not None:
                losses[name] = result["metrics"]["valid"]["loss"]
            elif directory.read("failed", {}).get("status") == "diverged":
                losses[name] = math.inf
        return losses

    def selected(self, losses: Mapping[str, float]) -> float | None:
        """The rate of the lowest loss, the smaller one on ties; None if a candidate has not ended
        or all diverged."""
        if len(losses) < len(self.candidates) or min(losses.values()) == math.inf:
            return None
        return self.candidates[min(losses, key=lambda name: (losses[name], self.candidates[name]))]

    def at_edge(self, losses: Mapping[str, float]) -> float | None:
        """The selected rate, if it is the lowest or highest of several."""
        rates, best = list(self.candidates.values()), self.selected(losses)
        return best if len(rates) > 1 and best in (rates[0], rates[-1]) else None

    def extended(self, losses: Mapping[str, float]) -> "Search":
        """The search with one more rate beyond the best one, if that is at an edge."""
        rates, best = list(self.candidates.values()), self.at_edge(losses)
        if best is None:
            return self
        neighbour = rates[1] if best == rates[0] else rates[-2]
        beyond = float(f"{best**2 / neighbour:.3g}")
        candidates = {**self.candidates, f"{self.runs[0]}-rate={beyond:g}": beyond}
        return replace(self, candidates=dict(sorted(candidates.items(), key=lambda item: item[1])))

    def at_rate(self, run: RunSpec, rate: float) -> RunSpec:
        """A run at a rate; one at its own rate has no override, so that others can share it."""
        changed = {} if rate == self.own else {RATE: rate}
        return replace(run, overrides={**run.overrides, **changed})

    def candidate_runs(self, first: RunSpec) -> list[RunSpec]:
        """The first seed's pretraining at every candidate."""
        bare, rates = replace(first, downstream={}, adapt={}, shares={}), self.candidates.items()
        return [replace(self.at_rate(bare, rate), name=name) for name, rate in rates]


def find_searches(
    study: Study, runs: Sequence[RunSpec], configs: Mapping[str, ConfigDict]
) -> list[Search]:
    """One search for all runs (at their own rates) whose pretrainings differ only in seeds;
    `configs` are those of the runs that pretrain, by name."""
    if not study.rates:
        return []
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        if run.name in configs and configs[run.name].train.steps:
            key = json.dumps([run.config, without_seeds(run.overrides)], sort_keys=True)
            groups.setdefault(key, []).append(run)
    searches = []
    for group in groups.values():
        first = group[0]
        own = float(configs[first.name].optimizer.learning_rate)
        rates = [own if factor == 1 else float(f"{factor * own:.3g}") for factor in study.rates]
        candidates = {f"{first.name}-rate={rate:g}": rate for rate in sorted(rates)}
        variants = "; ".join(dict.fromkeys(run.variant for run in group))
        searches.append(Search(variants, own, candidates, [run.name for run in group]))
    return searches
