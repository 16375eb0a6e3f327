"""Numbers in a study's notes: each {expression} is replaced by the number of the published results."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies import plots
from bertlab.studies.comparisons import ALL_PAIRS, CONTRASTS, PUBLISHED, Comparison, find
from bertlab.studies.measurements import Measure, Results, score_of_task, scores, variant_name
from bertlab.studies.published import names_of
from bertlab.studies.seeds import mean_scores
from bertlab.studies.selection import at_selected_labels
from bertlab.studies.tables import interval_text, losses
from bertlab.studies.text import number


@dataclasses.dataclass(eq=False)
class Place:
    """A published study: the folder's name, its results and comparisons."""

    name: str
    results: Results
    compared: list[Comparison]

    @functools.cached_property
    def chosen(self) -> Results:
        """The results at the selected labels."""
        return at_selected_labels(self.results)

    @functools.cached_property
    def pretrainings(self) -> set[str]:
        """The study's pretrainings, each known by all digits of its losses."""
        results = (Run(self.results.path / name).result.get({}) for name in names_of(dict(self.results.study)))
        return {json.dumps(of["metrics"], sort_keys=True) for of in results if of.get("step")}


def fill(written: Path, place: Place, places: Mapping[str, Place]) -> str:
    """A study's notes with each {expression} replaced by its number.

    | Expression | Number |
    |---|---|
    | {TASK: A}, {TASK valid: A} | the mean score of variant A on test, on valid |
    | {TASK: A | B} | how far the means of A and B are apart |
    | {TASK: A | B | interval} | that of A minus B, corrected as a finding, else as a contrast, else as one of all pairs |
    | {TASK: A @ 0.001} | at another label than the selected one |
    | {FOLDER/TASK: A} | on another page |

    A task can also be a loss on valid ("mlm/loss") or bits per byte on test ("bits_per_byte/any-order").

    Raises:
        UserError: There is no such number.
    """

    def value(match: re.Match) -> str:
        try:
            return number_of(match[1], place, places)
        except UserError as error:
            raise UserError(f"{written}: {{{match[1]}}}: {error}") from None

    return re.sub(r"\{([^{}]+)\}", value, written.read_text(encoding="utf-8").strip())


def number_of(asked: str, place: Place, places: Mapping[str, Place]) -> str:
    """The number for an expression of `fill`, without its braces."""
    what, _, variants = asked.partition(": ")
    folder, _, task = what.partition("/")
    if folder in places:
        place, what = places[folder], task
    task, _, split = what.partition(" ")
    names = [name.strip() for name in variants.split(" | ")]
    interval = names[2:] == ["interval"]
    if split not in ("", "valid") or len(names) > 3 or (len(names) == 3 and not interval):
        raise UserError("write {TASK: A}, {TASK valid: A}, {TASK: A | B} or {TASK: A | B | interval}")
    measure = measure_of(place.results, task)
    measure = measure._replace(split=split or measure.split)
    if interval:
        families = [find(place.compared, measure, *names[:2], family) for family in (PUBLISHED, CONTRASTS, ALL_PAIRS)]
        if not (known := [found for found in families if found]):
            raise UserError("these two are not compared; both need two seeds or more")
        return interval_text(known[0].low, known[0].high, measure.metric)
    means = [mean_of(place, measure, name) for name in names]
    factor, digits = plots.score_scale(measure.metric) if measure.stage == "finetune" else (1, 2)
    return number(factor * (means[0] if len(means) == 1 else abs(means[0] - means[1])), digits)


def measure_of(results: Results, name: str) -> Measure:
    """The score of a task, or else the loss on valid or the evaluation on test of this name."""
    others = [*losses(results), *results.measures(stage="evaluate")]
    if found := score_of_task(results, name) or next((of for of in others if of.metric == name), None):
        return found
    known = [*(measure.task for measure in scores(results)), *(measure.metric for measure in others)]
    raise UserError(f"'{name}' is not one of {', '.join(known)}")


def mean_of(place: Place, measure: Measure, name: str) -> float:
    """A variant's mean over seeds, at its selected labels or, after "@", at another label."""
    results = place.results
    variant, _, label = (part.strip() for part in name.partition("@"))
    if label:
        selected = results.study["select"]
        runs = results.finished[(results.finished[list(selected)] == label).any(axis=1)]
        kept = [axis for axis in results.axes if axis not in (*selected, *results.seed_axes)]
        variants = [variant_name(labels) for labels in runs[kept].itertuples(index=False)]
        means = results.values(measure).loc[runs["run"]].groupby(variants).mean()
    else:
        means = mean_scores(place.chosen, measure)
    if variant not in means.index:
        raise UserError(f"'{variant}' is not one of {'; '.join(means.index)}")
    return means[variant]
