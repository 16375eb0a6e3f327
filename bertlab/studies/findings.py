"""What a study shows, and what its reader must know first, in plain sentences computed from the results."""

import math
from collections.abc import Sequence

from bertlab.studies import plots
from bertlab.studies.results import Results, compare_data, compare_texts, difference
from bertlab.studies.statistics import failure_rate
from bertlab.studies.tables import score_columns
from bertlab.studies.text import count_text, points, score_text, seconds_text, signed_points


def findings(results: Results) -> list[str]:
    """What the results show, in plain sentences computed from them."""
    finished = results.runs[results.runs["status"] == "finished"]
    if finished.empty:
        return ["No run is finished yet, so there is nothing to conclude."]
    if not results.axes:
        return [run_finding(results)]
    sentences = []
    counts = finished.groupby("variant").size()
    seeds = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    variants = f"{len(counts)} variants" if len(counts) > 1 else "One variant"
    verb = "were" if len(counts) > 1 else "was"
    if counts.max() < 2:
        sentences.append(
            f"{variants} {verb} run with one seed each. One seed cannot separate differences between "
            "variants from chance: read what follows as what happened once."
        )
    else:
        sentences.append(
            f"{variants} {verb} run with {seeds} seeds each; ± is the standard deviation over seeds, and what stands in"
            " parentheses the 95 % interval of a difference, paired by seed."
        )
    if results.study.get("select"):
        return sentences  # which of what was selected among is best on test is nobody's to know
    references = plots.untrained(results.runs)
    for metric in score_columns(results):
        task, _, name = metric.partition("/")
        means = finished.groupby("variant", sort=False)[metric].mean().dropna().sort_values(ascending=False)
        if len(means) < 2:
            continue
        best, second = means.index[:2]
        sentence = (
            f"On {task} ({name}, test) {best} is best with {score_text(means[best], metric)}, "
            f"{gap(results, metric, best, second)} above {second}"
        )
        others = [v for v in references if v in means.index and v not in (best, second)]
        sentence += "".join(f" and {gap(results, metric, best, v)} above {v}" for v in others)
        sentences.append(sentence + ".")
        sentences += [
            comparison(results, metric, a, b) for a, b in mlm_and_ltr(results.variants) if a in means.index and b in means.index
        ]
    return sentences


def gap(results: Results, metric: str, variant: str, other: str) -> str:
    """The size of a difference with its 95 % interval over seeds: "3.1 points (1.9 to 4.3)"."""
    found = difference(results, metric, variant, other)
    text = points(found.mean, metric)
    if math.isnan(found.low):
        return text
    low, high = sorted((found.low, found.high) if found.mean >= 0 else (-found.low, -found.high))
    return f"{text} ({signed_points(low, metric)} to {signed_points(high, metric)})"


def mlm_and_ltr(variants: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of variants that differ only in the label MLM against LTR, whatever their other labels."""

    def swapped(variant):
        labels = variant.split(", ")
        return ", ".join("ltr" if label.casefold() == "mlm" else label.casefold() for label in labels)

    names = {variant.casefold(): variant for variant in variants}
    return [(v, names[swapped(v)]) for v in variants if swapped(v) != v.casefold() and swapped(v) in names]


def comparison(results: Results, metric: str, variant: str, other: str) -> str:
    """Says honestly whether one variant is above another in a downstream score."""
    task = metric.partition("/")[0]
    found = difference(results, metric, variant, other)
    size = gap(results, metric, variant, other)
    if found.mean > 0:
        sentence = f"{variant} is above {other} on {task} by {size}"
    elif found.mean < 0:
        sentence = f"{variant} is not above {other} on {task} at this scale: it is {size} below"
    else:
        sentence = f"{variant} is not above {other} on {task} at this scale: the two are equal"
    if found.pairs == 1:
        return sentence + ", with one seed, which cannot separate the two."
    if found.pairs == 0:
        return sentence + ", without a seed that both have finished."
    over = f"over {found.pairs} seeds"
    if math.isnan(found.low):
        return f"{sentence}, the same {over}, which says nothing about chance."
    if not found.beyond_chance:
        return f"{sentence}, which {found.pairs} seeds cannot tell from chance."
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
        texts.append(f"{settled['sentence']}, by a rule fixed beforehand, so {left} runs were not begun.")
    for status, wording in (("failed", "failed"), *(() if settled else (("unfinished", "not finished"),))):
        runs = results.runs[results.runs["status"] == status]
        verb = "is" if len(runs) == 1 else "are"
        did = wording if status == "failed" else f"{verb} {wording}"
        if len(runs) and results.axes:
            names = ", ".join(f"{r['name']} ({r['error']})" if r["error"] else r["name"] for _, r in runs.iterrows())
            share = f" ({failed_share(len(runs), len(results.runs))})" if status == "failed" else ""
            texts.append(f"{len(runs)} of {len(results.runs)} runs {did}{share} and {verb} left out of tables: {names}.")
        elif len(runs):
            texts.append(f"This run {did}" + (f": {runs['error'].iloc[0]}." if runs["error"].iloc[0] else "."))
    return texts


def failed_share(failed: int, runs: int) -> str:
    """The rate of failed runs with its interval: "20 %, 95 % interval 3 to 56 %"."""
    found = failure_rate(failed, runs)
    return f"{100 * found.rate:.0f} %, 95 % interval {100 * found.low:.0f} to {100 * found.high:.0f} %"
