"""What a study shows, and what its reader must know first, in plain sentences computed from the results."""

import itertools
import math
from collections.abc import Sequence

from bertlab.studies import plots
from bertlab.studies.results import (
    Difference,
    Results,
    comparable,
    compare_data,
    compare_texts,
    difference,
    scores_by_seed,
)
from bertlab.studies.statistics import compare_variants, failure_rate
from bertlab.studies.tables import level_of_pairs, looks_of, mean_scores, score_columns, seed_counts
from bertlab.studies.text import count_text, points, score_text, seconds_text, signed_points


def findings(results: Results) -> list[str]:
    """What the results show, in plain sentences computed from them."""
    finished = results.runs[results.runs["status"] == "finished"]
    if finished.empty:
        return ["No run is finished yet, so there is nothing to conclude."]
    if not results.axes:
        return [run_finding(results)]
    columns = score_columns(results)
    counts = {variant: seed_counts(results, variant)[0] for variant in results.variants}
    counts = {variant: count for variant, count in counts.items() if count}
    least, most = min(counts.values()), max(counts.values())
    variants = f"{len(counts)} variants were" if len(counts) > 1 else "One variant was"
    if most < 2:
        said = f"{variants} run with one seed each. One seed cannot separate variants from chance, so none is compared here"
        listed = [(scores_of_one_seed(results, metric), beside_reading_nothing(results, metric)) for metric in columns]
        return [f"{said}; the numbers say what happened once.", *filter(None, itertools.chain(*listed))]
    seeds = f"{least}" if least == most else f"{least} to {most}"
    sentences = [
        f"{variants} run with {seeds} seeds each; ± is the standard deviation over seeds, and what stands in parentheses the"
        " interval of a difference, paired by seed, for all pairs of variants at once 95 % (Bonferroni)."
        if len(counts) > 1
        else f"{variants} run with {seeds} seeds; ± is the standard deviation over seeds."
    ]
    if results.study.get("select"):
        return sentences  # which of what was selected among is best on test is nobody's to know
    references = plots.untrained(results.runs)
    for metric in columns:
        task, _, name = metric.partition("/")
        means = mean_scores(results, metric).sort_values(ascending=False, kind="stable")
        if len(means) < 2:
            continue
        best, second = means.index[:2]
        others = [second, *(v for v in references if v in means.index and v not in (best, second))]
        level = level_of_pairs(results, len(means))
        gaps = [gap(results, metric, best, other, level) for other in others]
        highest = f"On {task} ({name}, test) the highest mean is that of {best}, {score_text(means[best], metric)}"
        sentences.append(f"{highest}: {'; '.join(gaps)}.")
        sentences += filter(None, [beside_reading_nothing(results, metric)])
        pairs = [(a, b) for a, b in mlm_and_ltr(results.variants) if a in means.index and b in means.index]
        sentences += [comparison(results, metric, a, b, level) for a, b in pairs]
    return sentences


def scores_of_one_seed(results: Results, metric: str) -> str:
    """What every variant has in a downstream score, in the study's order; "" without a score."""
    task, _, name = metric.partition("/")
    listed = [f"{variant} {score_text(score, metric)}" for variant, score in mean_scores(results, metric).items()]
    return f"On {task} ({name}, test): {', '.join(listed)}." if listed else ""


def beside_reading_nothing(results: Results, metric: str) -> str:
    """What always the most frequent answer scores, and which variants are above it by more than chance; "" where that is 0.

    It is of each run's own training examples, and differs where their number is an axis.
    """
    task, column = metric.partition("/")[0], f"most_frequent/{metric}"
    answered = mean_scores(results, column) if column in results.runs else []
    if not len(answered) or not answered.max() > 0:
        return ""
    low, high = (score_text(score, metric) for score in (answered.min(), answered.max()))
    head = f"Always the most frequent answer scores {low if low == high else f'{low} to {high}, by variant,'} on {task}"
    scored = list(mean_scores(results, metric).index)
    level = 1 - 0.05 / (len(scored) * looks_of(results))
    tables = {name: [scores_by_seed(results, of, name).mean(axis=1).dropna() for of in (metric, column)] for name in scored}
    tables = {name: of for name, of in tables.items() if min(map(len, of)) > 1}
    if not tables:
        return f"{head}."
    names = (metric, column)
    above = [name for name, of in tables.items() if compare_variants(*of, names, level).low > 0]
    who = "all variants are" if above == scored else f"{', '.join(above) or 'no variant'} {'are' if len(above) > 1 else 'is'}"
    return f"{head}; {who} above that by more than chance."


def gap(results: Results, metric: str, variant: str, other: str, level: float) -> str:
    """A difference in words, seed by seed, with its interval: "3.1 points (1.9 to 4.3) above LTR"."""
    if not comparable(results, metric, variant, other):
        return f"with {other} it has too few seeds in common to be compared"
    found = difference(results, metric, variant, other, level)
    if not found.mean:
        return f"as high as {other}"
    text = f"{size(found, metric)} {'above' if found.mean > 0 else 'below'} {other}"
    if math.isnan(found.low):
        return f"{text}, the same for all seeds, which says nothing about chance"
    seeds = [len(scores_by_seed(results, metric, name).dropna(how="all")) for name in (variant, other)]
    text += f" by the {found.pairs} seeds that both have" if 0 < found.pairs < max(seeds) else ""
    return text if found.beyond_chance else f"{text}, which may be chance"


def size(found: Difference, metric: str) -> str:
    """How far apart two variants are, whichever is above, with its interval: "3.1 points (1.9 to 4.3)"."""
    if math.isnan(found.low):
        return points(found.mean, metric)
    low, high = (-found.high, -found.low) if found.mean < 0 else (found.low, found.high)
    return f"{points(found.mean, metric)} ({signed_points(low, metric)} to {signed_points(high, metric)})"


def mlm_and_ltr(variants: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of variants that differ only in the label MLM against LTR, whatever their other labels."""

    def swapped(variant):
        labels = variant.split(", ")
        return ", ".join("ltr" if label.casefold() == "mlm" else label.casefold() for label in labels)

    names = {variant.casefold(): variant for variant in variants}
    return [(v, names[swapped(v)]) for v in variants if swapped(v) != v.casefold() and swapped(v) in names]


def comparison(results: Results, metric: str, variant: str, other: str, level: float) -> str:
    """Says honestly whether one variant is above another in a downstream score, with an interval of that level."""
    task = metric.partition("/")[0]
    if not comparable(results, metric, variant, other):
        return f"{variant} and {other} have too few seeds in common to be compared on {task}."
    found = difference(results, metric, variant, other, level)
    if found.mean > 0:
        sentence = f"{variant} is above {other} on {task} by {size(found, metric)}"
    elif found.mean < 0:
        sentence = f"{variant} is not above {other} on {task} at this scale: it is {size(found, metric)} below"
    else:
        sentence = f"{variant} is not above {other} on {task} at this scale: the two are equal"
    over = f"over {found.pairs} seeds" if found.pairs else "by seeds that differ"
    if math.isnan(found.low):
        return f"{sentence}, the same {over}, which says nothing about chance."
    if not found.beyond_chance:
        return f"{sentence}, which {found.pairs or 'so few'} seeds cannot tell from chance."
    return f"{sentence}, more than chance {over}."


def run_finding(results: Results) -> str:
    """The plain-language summary of a single run."""
    row = results.runs.iloc[0]
    sentence = (
        f"The run took {row['step']:,.0f} steps over {count_text(row['tokens'])} tokens in {seconds_text(row['seconds'])}"
    )
    for metric in plots.loss_metrics(results.metrics):
        curve = results.metrics[(results.metrics["split"] == "valid") & (results.metrics["metric"] == metric)]
        first, last = curve["value"].iloc[0], curve["value"].iloc[-1]
        sentence += f"; {metric} on held-out text went from {first:.3f} to {last:.3f}"
    for metric in score_columns(results):
        sentence += f"; {metric} on test is {score_text(row[metric], metric)}"
    return sentence + ". One run says nothing about differences."


def notices(results: Results) -> list[str]:
    """What the reader must know before the numbers: data that differ, runs that are missing."""
    _, problems = compare_data(results)
    texts = []
    if problems:
        texts.append(
            "The runs did not read the same data in the same order, so their differences are not due to the "
            f"variants alone. {'. '.join(problems)}."
        )
    texts += compare_texts(results)
    for name in (column.removeprefix("floor/") for column in results.runs.columns if column.startswith("floor/")):
        above, error = results.runs[f"above/{name}"], results.runs[f"above_error/{name}"]
        if leaking := list(results.runs.loc[above < -3 * error, "name"]):
            texts.append(
                f"The loss of {name} is below its floor by more than three standard errors in {', '.join(leaking)}: no"
                " model can be that good, so it sees what it is asked (a leak)."
            )
    settled = results.study.get("settled")
    if settled:
        left = int((results.runs["status"] == "unfinished").sum())
        texts.append(f"{settled['sentence']}, by a rule fixed beforehand, so {left} runs were left out.")
    statuses = ("failed",) if settled else ("failed", "unfinished")
    return texts + [runs_left_out(results, status) for status in statuses if (results.runs["status"] == status).any()]


def runs_left_out(results: Results, status: str) -> str:
    """Which runs have failed, of those that were begun, with their rate; or which are not finished, of all."""
    runs = results.runs[results.runs["status"] == status]
    verb = "is" if len(runs) == 1 else "are"
    did = "failed" if status == "failed" else f"{verb} not finished"
    if not results.axes:
        return f"This run {did}" + (f": {runs['error'].iloc[0]}." if runs["error"].iloc[0] else ".")
    names = ", ".join(f"{run['name']} ({run['error']})" if run["error"] else run["name"] for _, run in runs.iterrows())
    of = f"{len(results.runs)} runs"
    if status == "failed":
        begun = int(results.runs["status"].isin(["failed", "finished"]).sum())
        of = f"{begun} runs that were begun" if begun < len(results.runs) else of
        did += f" ({failed_share(len(runs), begun)})"
    return f"{len(runs)} of {of} {did} and {verb} left out of tables: {names}."


def failed_share(failed: int, runs: int) -> str:
    """The rate of failed runs among those that ended, with its interval: "20 %, 95 % interval 3 to 56 %"."""
    found = failure_rate(failed, runs)
    return f"{100 * found.rate:.0f} %, 95 % interval {100 * found.low:.0f} to {100 * found.high:.0f} %"
