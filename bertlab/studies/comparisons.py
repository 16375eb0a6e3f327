"""The comparisons of a study: each variant's scores by seed, their differences, the claims.

A seed is one of pretraining; with fine-tuning seeds nested in it, its score is their mean. (A
fine-tuning seed is a seed where the study has no others.)
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from bertlab.results import scores
from bertlab.studies import statistics
from bertlab.studies.results import Results
from bertlab.studies.statistics import TTest
from bertlab.transfer.tasks import find_task

ALPHA = 0.05
CODE_LENGTH = "bits_per_byte"  # what metrics of an evaluation begin with that are compared


class Measure(NamedTuple):
    """A score that variants are compared by.

    Attributes:
        stage: "finetune", or "evaluate" in a study without tasks.
        task: Its directory's name; "" of an evaluation.
        metric: Such as "accuracy".
    """

    stage: str
    task: str
    metric: str

    @property
    def higher_is_better(self) -> bool:
        return self.stage == "finetune"


@dataclasses.dataclass(frozen=True)
class Difference(TTest):
    """A variant minus another one in one measure, with a 95 % interval.

    Attributes:
        measure: What is compared.
        variant, other: Their names.
        corrected: p by Holm's method, over the family: the claims or the contrasts, in
            this measure.
    """

    measure: Measure
    variant: str
    other: str
    corrected: float = 1.0

    @property
    def beyond_chance(self) -> bool:
        return self.corrected < ALPHA


def measures(results: Results) -> list[Measure]:
    """The first metric of each task; without tasks, the code lengths."""
    found = []
    for task in results.study["tasks"]:
        records = [results.stage(run, "finetune", task) for run in results.study["runs"]]
        if records := [record for record in records if record]:
            found.append(Measure("finetune", task, _first_metric(records[0])))
    if results.study["tasks"]:
        return found
    frame = scores(results)
    frame = frame[(frame["stage"] == "evaluate") & frame["metric"].str.startswith(CODE_LENGTH)]
    return [Measure("evaluate", "", metric) for metric in frame["metric"].unique()]


def variants(results: Results) -> list[str]:
    """What is compared, in the study's order."""
    return list(dict.fromkeys(run["variant"] for run in results.study["runs"]))


def selected_scores(results: Results, measure: Measure) -> pd.DataFrame:
    """The rows of `bertlab.results.load` of a measure, at the labels that `valid` selects for each
    variant; a run that has none has NaN, and so has a variant in `incomparable`."""
    frame = scores(results)
    frame = frame[frame[list(Measure._fields)].eq(list(measure)).all(axis=1)]
    axes, rows = list(results.study["axes"]), []
    for run, split in itertools.product(results.study["runs"], ("valid", "test")):
        labels = {axis: run["labels"].get(axis, "") for axis in axes}
        rows.append({"run": run["name"], "variant": run["variant"], **labels, "split": split})
    values = frame[["run", "split", "value"]]
    whole = pd.DataFrame(rows).assign(**measure._asdict()).merge(values, "left", ["run", "split"])
    whole.loc[whole["variant"].isin(incomparable(results, measure)), "value"] = float("nan")
    return select_labels(whole, results.study["select"], measure.higher_is_better)


def score_table(results: Results, measure: Measure, split: str = "test") -> pd.DataFrame:
    """Scores at the selected labels, [seeds, variants]; NaN where a run has none."""
    frame = selected_scores(results, measure)
    frame = frame[frame["split"] == split]
    axes = results.study["seed_axes"]
    seeds = [axis for axis in axes if not axis.startswith("finetune.")] or axes
    index = frame[seeds].agg(" ".join, axis=1) if seeds else ""
    table = frame.assign(seed=index).pivot_table("value", "seed", "variant", sort=False)
    return table.reindex(columns=[name for name in variants(results) if name in table])


def incomparable(results: Results, measure: Measure) -> dict[str, str]:
    """Variant -> why its score in a measure is refused: it was not scored on the same examples and
    words as the others are."""
    answered: dict[str, set[tuple]] = {}
    for run in results.study["runs"]:
        record = results.stage(run, "finetune", measure.task) or {}
        if measure.stage == "finetune" and (packed := record.get("correct", {}).get("test")):
            answered.setdefault(run["variant"], set()).add((packed["items"], packed["hash"]))
    if not answered:
        return {}
    times = Counter(itertools.chain.from_iterable(answered.values()))
    whole = max(times, key=lambda items: (items[0], times[items]))
    refused = {}
    for variant, sets in answered.items():
        if sets != {whole}:
            counts = ", ".join(str(items) for items, _ in sorted(sets))
            refused[variant] = f"scored on {counts} items, others on {whole[0]} or other ones"
    return refused


def contrasts(results: Results, measure: Measure) -> list[Difference]:
    """The pairs that the study asks for."""
    pairs = [tuple(pair) for pair in results.study["contrasts"]]
    return differences(score_table(results, measure), measure, pairs)


def claims(results: Results, measure: Measure) -> list[tuple[Mapping[str, Any], Difference]]:
    """Each published finding that is about this kind of task, and the study's own difference."""
    kind, suited = _kind(results, measure), []
    for claim in results.study["claims"]:
        if not claim["kinds"] or kind in claim["kinds"]:
            suited.append(claim)
    pairs = dict.fromkeys((claim["higher"], claim["lower"]) for claim in suited)
    found = differences(score_table(results, measure), measure, list(pairs))
    by_pair = {(difference.variant, difference.other): difference for difference in found}
    matched = [(claim, by_pair.get((claim["higher"], claim["lower"]))) for claim in suited]
    return [(claim, difference) for claim, difference in matched if difference]


def verdict(difference: Difference) -> str:
    """Whether the study agrees with a claim: "agrees", "contradicts" or "undecided"."""
    if not difference.beyond_chance:
        return "undecided"
    higher = difference.mean > 0
    return "agrees" if higher == difference.measure.higher_is_better else "contradicts"


def differences(
    table: pd.DataFrame, measure: Measure, pairs: Sequence[tuple[str, str]]
) -> list[Difference]:
    """The tests of a family of pairs, without those that have too few seeds."""
    found = []
    for variant, other in pairs:
        if variant not in table or other not in table:
            continue
        test = statistics.compare(table[variant].dropna(), table[other].dropna())
        if test is not None:
            found.append(Difference(**vars(test), measure=measure, variant=variant, other=other))
    corrected = statistics.holm([difference.p for difference in found])
    return [dataclasses.replace(of, corrected=p) for of, p in zip(found, corrected)]


def _first_metric(record: Mapping[str, Any]) -> str:
    """By which a fine-tuning is reported: the first of its task's."""
    named = [value for key, value in record["config"].items() if key.startswith("metrics.")]
    measured = record["scores"].get("test", {})
    return next((metric for metric in [*named, *measured] if metric in measured), "")


def _kind(results: Results, measure: Measure) -> str:
    """The kind of a measure's task; "" of an evaluation and of a task in a file of the user's."""
    for run in results.study["runs"] if measure.task else ():
        name = run["downstream"].get(measure.task, {}).get("task", measure.task)
        return "" if name.endswith(".py") else find_task(name.partition("+")[0]).kind
    return ""


def select_labels(scores: pd.DataFrame, select: Sequence[str]) -> pd.DataFrame:
    """The scores of each variant, task and metric at the labels with the best mean on `valid`.

    Labels with fewer failed runs come first; of equal means the first label wins, of rates the
    smaller one.

    Args:
        scores: A row a run, task and split, in the study's order: `variant`, `task`, `metric`,
            `split`, `value`, and a column for each axis of `select`. NaN: the run failed.
        select: The axes; without any, all rows are selected.
    """
    if not select:
        return scores
    group = ["variant", "task", "metric"]
    valid = scores[scores["split"] == "valid"].groupby([*group, *select], sort=False)["value"]
    means = valid.agg(mean="mean", runs="count", failed="size").dropna().reset_index()
    means["failed"] -= means["runs"]
    means["mean"] *= -1
    rates = [f"{axis} as a number" for axis in select]
    means[rates] = means[select].apply(pd.to_numeric, errors="coerce").fillna(0)
    best = means.sort_values(["failed", "mean", *rates], kind="stable").drop_duplicates(group)
    return scores.merge(best[[*group, *select]])
