"""The comparisons of a study: each variant's scores by seed, and their differences.

A seed is a pretraining seed; with fine-tuning seeds nested in it, its score is their mean. (A
fine-tuning seed counts as a seed if the study has no others.)
"""

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from statsmodels.stats.multitest import multipletests

from bertlab.results import run_labels, scores
from bertlab.studies.records import Results, unpack
from bertlab.studies.selection import Search
from bertlab.studies.statistics import TTest, compare
from bertlab.studies.study import TASK_RATES
from bertlab.transfer.tasks import find_task

ALPHA = 0.05
SEEDS, DRAWS = 5, 3  # pretraining seeds, and fine-tunings of each, that a verdict needs
VERDICTS = ("decided", "agrees", "contradicts")
EDGE = "undecided: rate at the edge"
ONLY_RATE = "the only fine-tuning rate"
CODE_LENGTH = "bits_per_byte"  # prefix of an evaluation's metrics that are compared
PERCENT = ("accuracy", "f1", "exact_match", "precision", "recall")
PERCENT += ("matthews", "spearman", "pearson")
DIFFERENCE = ["variant", "other", "mean", "low", "high", "seeds", "p", "decided"]
DIFFERENCE += ["sentences", "published", "source", "verdict"]


class Measure(NamedTuple):
    """A score that variants are compared by."""

    stage: str  # "finetune", or "evaluate" in a study without tasks
    task: str  # its directory's name; "" for an evaluation
    metric: str

    @property
    def scale(self) -> tuple[float, int, str]:
        """(factor, digits, unit) of printed numbers."""
        if self.metric.endswith(PERCENT):
            return 100.0, 1, "points"
        return 1.0, 3, "bits per byte" if self.stage == "evaluate" else ""


def measures(results: Results) -> list[Measure]:
    """The first metric of each task; without tasks, the code lengths."""
    found = []
    for task in results.study["tasks"]:
        records = [results.stage(run, "finetune", task) for run in results.runs.values()]
        if record := next(filter(None, records), None):
            named = [value for key, value in record["config"].items() if key.startswith("metrics.")]
            measured = record["scores"].get("test", {})
            reported = [metric for metric in [*named, *measured] if metric in measured]
            found.append(Measure("finetune", task, [*reported, ""][0]))
    if results.study["tasks"]:
        return found
    frame = scores(results)
    frame = frame[(frame["stage"] == "evaluate") & frame["metric"].str.startswith(CODE_LENGTH)]
    return [Measure("evaluate", "", metric) for metric in frame["metric"].unique()]


def variants(results: Results) -> list[str]:
    """The variants that are compared, in the study's order."""
    return list(dict.fromkeys(run.variant for run in results.runs.values()))


def values_of(results: Results, measure: Measure) -> pd.DataFrame:
    """The rows of `bertlab.results.load` for a measure."""
    frame = scores(results)
    return frame[frame[list(Measure._fields)].eq(list(measure)).all(axis=1)]


@functools.lru_cache(maxsize=64)
def selected_scores(results: Results, measure: Measure) -> pd.DataFrame:
    """The scores of a measure, one row per run and split, at the rate that `valid` selects for
    each variant; NaN for a run without one or in `incomparable`. Cached: do not modify."""
    runs = [run_labels(results, run) for run in results.runs.values()]
    splits = pd.DataFrame({"split": ["valid", "test"]})
    values = values_of(results, measure)[["run", "split", "value"]]
    frame = pd.DataFrame(runs).merge(splits, "cross").assign(**measure._asdict())
    frame = frame.merge(values, "left", ["run", "split"])
    frame.loc[frame["variant"].isin(incomparable(results, measure)), "value"] = float("nan")
    return at_best_rate(frame) if TASK_RATES in frame else frame


def at_best_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores of each variant at the fine-tuning rate with the best mean on `valid`. Rates with
    fewer failed runs (NaN) come first; among equal means the smallest wins."""
    key = ["variant", TASK_RATES]
    valid = scores[scores["split"] == "valid"].groupby(key, sort=False)["value"]
    means = valid.agg(mean="mean", runs="count", failed="size").dropna().reset_index()
    means["failed"] -= means["runs"]
    means["rate"] = pd.to_numeric(means[TASK_RATES])  # "", of a variant without rates, is NaN
    best = means.sort_values(["failed", "mean", "rate"], ascending=[True, False, True])
    return scores.merge(best.drop_duplicates("variant")[key])


def test_scores(results: Results, measure: Measure) -> pd.DataFrame:
    """The rows of `selected_scores` for the test set, with their pretraining `seed`."""
    frame = selected_scores(results, measure)
    return with_seed(results, frame[frame["split"] == "test"])


def with_seed(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the pretraining `seed` of each row; in a study without any, fine-tuning's."""
    axes = results.study["seed_axes"]
    seeds = [axis for axis in axes if not axis.startswith("finetune.")] or axes
    return frame.assign(seed=frame[seeds].agg(" ".join, axis=1) if seeds else "")


def score_table(results: Results, measure: Measure) -> pd.DataFrame:
    """Test scores at the selected labels, [seeds, variants]; NaN where a run has none."""
    table = test_scores(results, measure).pivot_table("value", "seed", "variant", sort=False)
    return table.reindex(columns=[name for name in variants(results) if name in table])


def incomparable(results: Results, measure: Measure) -> dict[str, str]:
    """Variant -> why it is not compared: it was scored on other examples or words."""
    answered: dict[str, set[tuple]] = {}
    for run in results.runs.values():
        record = results.stage(run, "finetune", measure.task) or {}
        if measure.stage == "finetune" and (packed := record.get("correct", {}).get("test")):
            answered.setdefault(run.variant, set()).add((packed["items"], packed["hash"]))
    if not answered:
        return {}
    times = Counter(itertools.chain.from_iterable(answered.values()))
    whole = max(times, key=lambda items: (items[0], times[items]))
    refused = {}
    for variant, sets in answered.items():
        if sets != {whole}:
            counts = ", ".join(str(items) for items, _ in sorted(sets))
            refused[variant] = f"scored on {counts} items, others on {whole[0]} or different ones"
    return refused


def differences(results: Results, measure: Measure) -> pd.DataFrame:
    """The differences that the study asks for: its claims and contrasts; without these, each
    variant minus the first one. Pairs with too few seeds are left out.

    Columns: `variant`, `other`, `mean`, `low`, `high` (the 95 % interval), `seeds` (that both
    have), `p` (Holm's, over the claims or the contrasts), `decided`, `sentences` (of the test set,
    if they are drawn like the seeds), for claims `published` and `source`, and `verdict`: one of
    `VERDICTS` if it is decided, else why it is not.
    """
    table, claims = score_table(results, measure), claims_about(results, measure)
    items, edges = sentence_scores(results, measure), rates_at_edges(results, measure)
    means = {name: of.groupby(level=0, sort=False).mean() for name, of in items.items()}
    compared = {name: means.get(name, table[[name]]) for name in table}
    draws = test_scores(results, measure).dropna(subset="value")
    draws = draws.groupby(["variant", "seed"]).size().groupby("variant").min()
    contrasts = [tuple(pair) for pair in results.study["contrasts"]]
    if not (results.study["claims"] or contrasts):
        contrasts = [(name, table.columns[0]) for name in table.columns[1:]]
    found = {}
    for family in (claims, contrasts):
        pairs = [pair for pair in family if set(pair) <= compared.keys()]
        tests = {pair: compare(*(compared[name] for name in pair)) for pair in pairs}
        tests = {pair: test for pair, test in tests.items() if test is not None}
        p_values = [test.p for test in tests.values()]
        corrected = multipletests(p_values, method="holm")[1] if tests else ()
        for (pair, test), p in zip(tests.items(), corrected):
            claim, fewest = claims.get(pair, {}), draws[list(pair)].min()
            judged = verdict(measure, test, p, fewest, edges.keys() & pair, claim)
            row = {"variant": pair[0], "other": pair[1], **test._asdict(), "p": p}
            row |= {key: claim.get(key, "") for key in ("published", "source")}
            found.setdefault(pair, row | {"decided": judged in VERDICTS, "verdict": judged})
    return pd.DataFrame(found.values(), columns=DIFFERENCE)


def verdict(measure: Measure, test: TTest, p: float, draws: int, edges, claim) -> str:
    """One of `VERDICTS`, or why there is none; `draws` are the fewest fine-tunings of a seed."""
    if test.seeds < SEEDS:
        return "too few seeds"
    if measure.stage == "finetune" and draws < DRAWS:
        return "too few fine-tunings"
    if p >= ALPHA:
        return "undecided"
    if edges:
        return EDGE
    if not claim:
        return "decided"
    higher_is_better = measure.stage == "finetune"  # a code length is not
    return "agrees" if (test.mean > 0) == higher_is_better else "contradicts"


def rates_at_edges(results: Results, measure: Measure) -> dict[str, list[str]]:
    """Variant -> those of its rates that are the lowest or highest of the study, as an only rate of
    fine-tuning is; an only rate of pretraining is left out."""
    found = defaultdict(list)
    for search in [Search(**search) for search in results.study.get("searches", ())]:
        losses = {}
        for name in search.candidates:
            scores_of = results.by_stage.get((name, "pretrain", ""), {}).get("scores", {})
            losses[name] = scores_of.get("valid", {}).get("loss", math.inf)
        if (rate := search.at_edge(losses)) is not None:
            for variant in dict.fromkeys(results.runs[name].variant for name in search.runs):
                found[variant].append(f"pretraining rate {rate:g}")
    if measure.stage != "finetune":
        return found
    tried = sorted(results.study["axes"].get(TASK_RATES, ()), key=float)
    edges = {rate: f"{TASK_RATES} {rate}" for rate in (*tried[:1], *tried[-1:])} | {"": ONLY_RATE}
    for variant, rate in selected_rates(results, measure).items():
        if rate in edges:
            found[variant].append(edges[rate])
    return found


def selected_rates(results: Results, measure: Measure) -> dict[str, str]:
    """Variant -> the label of its fine-tuning rate; "" if it has only one."""
    frame = selected_scores(results, measure).drop_duplicates("variant").set_index("variant")
    return frame.get(TASK_RATES, pd.Series("", frame.index)).to_dict()


def sentence_scores(results: Results, measure: Measure) -> dict[str, pd.DataFrame]:
    """Variant -> scores of test sentences, [fine-tunings, sentences] by seed, the mean of which is
    the score. Variants with a run that lacks them, or whose metric is no such mean, are left out.
    """
    found, lacking = {}, set()
    for row in test_scores(results, measure).dropna(subset="value").to_dict("records"):
        record = results.stage(results.runs[row["run"]], "finetune", measure.task) or {}
        items = by_sentence(record.get("correct", {}).get("test", {}), row["value"])
        if items is None:
            lacking.add(row["variant"])
        else:
            found.setdefault(row["variant"], []).append(pd.Series(items, name=row["seed"]))
    return {name: pd.DataFrame(rows) for name, rows in found.items() if name not in lacking}


def by_sentence(packed: Mapping[str, Any], score: float) -> np.ndarray | None:
    """Scores of the test sentences, of which `score` is the mean; None if it is no mean over items.

    Accuracy on words is a ratio of sums over sentences, so a sentence counts by its residual.
    """
    if "sizes" not in packed:
        return None
    correct, sizes = unpack(packed).astype(float), np.array(packed["sizes"])
    if abs(correct.mean() - score) > 1e-6:
        return None
    right = np.add.reduceat(correct, np.cumsum(sizes) - sizes)
    return score + (right - score * sizes) / sizes.mean()


def claims_about(results: Results, measure: Measure) -> dict[tuple[str, str], Mapping[str, Any]]:
    """(higher, lower) -> the published finding, among those about this kind of task and use."""
    claims, kind = results.study["claims"], ""
    if measure.task and any(claim["kinds"] for claim in claims):
        runs = (run.downstream for run in results.runs.values() if measure.task in run.downstream)
        name = next(runs)[measure.task].get("task", measure.task)
        kind = "" if name.endswith(".py") else find_task(name.partition("+")[0]).kind
    return {
        (claim["higher"], claim["lower"]): claim
        for claim in claims
        if (not claim["kinds"] or kind in claim["kinds"])
        and measure.task.endswith(tuple(claim.get("uses") or [""]))
    }
