"""Where the variance of a score comes from, and how many seeds a difference takes.

    python experiments/variance.py [FOLDER]

Reads a published study with several fine-tunings of each pretraining, and prints two tables in
Markdown: for each task and variant, the standard deviation of a test score by source, and for each
pair of variants that the study compares, the pretraining seeds that it takes to see a difference.
"""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats

from bertlab.studies import comparisons
from bertlab.studies.records import read

POINTS = (1, 2, 5)  # differences to see
POWER, ALPHA, MOST = 0.8, 0.05, 100


def nested_scores(results, measure) -> dict[str, np.ndarray]:
    """Variant -> scores in points [pretraining seeds, fine-tunings, test sentences], at the labels
    that `valid` selects; without variants that have one fine-tuning of a seed."""
    found = {}
    for variant, runs in comparisons.sentence_scores(results, measure).items():
        seeds = [100 * scores.to_numpy() for _, scores in runs.groupby(level=0, sort=False)]
        if (fewest := min(map(len, seeds))) > 1:
            found[variant] = np.array([scores[:fewest] for scores in seeds])
    return found


def components(scores: np.ndarray) -> tuple[float, float, float]:
    """Variances of one run's score: of pretraining, of fine-tuning within a pretraining, and of the
    draw of the test sentences (on which all runs agree)."""
    seeds, tunings, sentences = scores.shape
    runs = scores.mean(axis=2)
    tuning = runs.var(axis=1, ddof=1).mean()
    pretraining = max(0.0, runs.mean(axis=1).var(ddof=1) - tuning / tunings)
    by_sentence = scores.mean(axis=(0, 1))
    rest = scores - runs[..., None] - by_sentence + scores.mean()
    rest = (rest**2).sum() / ((seeds * tunings - 1) * (sentences - 1))
    agreed = max(0.0, by_sentence.var(ddof=1) - rest / (seeds * tunings))
    return pretraining, tuning, agreed / sentences


def intervals(scores: np.ndarray) -> tuple[tuple[float, float], tuple[float, float]]:
    """95 % intervals of the first two of `components`, for normal effects: by the distributions of
    F (Tukey and Williams) and of chi squared."""
    seeds, tunings, _ = scores.shape
    runs, ends = scores.mean(axis=2), (0.975, 0.025)
    within, freedom = runs.var(axis=1, ddof=1).mean(), seeds * (tunings - 1)
    ratio = tunings * runs.mean(axis=1).var(ddof=1) / within
    bounds = [ratio / scipy.stats.f.ppf(end, seeds - 1, freedom) - 1 for end in ends]
    pretraining = tuple(max(0.0, bound * within / tunings) for bound in bounds)
    return pretraining, tuple(freedom * within / scipy.stats.chi2.ppf(end, freedom) for end in ends)


def seeds_needed(
    difference: float, parts: tuple[float, float, float], tunings: int, sentences: int
) -> str:
    """The fewest pretraining seeds, with so many fine-tunings each, with which the test over seeds
    and sentences (docs/statistics.md) sees a true difference with `POWER`."""
    pretraining, tuning, drawn = parts
    for seeds in range(2, MOST + 1):
        trained = (pretraining + tuning / tunings) / seeds
        variance = trained + drawn
        freedom = variance**2 / (trained**2 / (seeds - 1) + drawn**2 / (sentences - 1))
        critical = scipy.stats.t.ppf(1 - ALPHA / 2, freedom)
        if scipy.stats.nct.sf(critical, freedom, difference / math.sqrt(variance)) >= POWER:
            return str(seeds)
    return f"over {MOST}"


def rate_deviation(results, measure, variant: str) -> float:
    """Standard deviation in points of the mean scores of the rates that were tried; NaN for one."""
    values = comparisons.values_of(results, measure)
    values = values[(values["split"] == "test") & (values["variant"] == variant)]
    return 100 * values.groupby(results.study["select"])["value"].mean().std()


def tables(results) -> list[pd.DataFrame]:
    """The two tables."""
    sources, seeds = [], []
    for measure in comparisons.measures(results):
        scores = nested_scores(results, measure)
        for variant, of in scores.items():
            deviations = [f"{math.sqrt(part):.2f}" for part in components(of)]
            for number, ends in enumerate(intervals(of)):
                low, high = map(math.sqrt, ends)
                deviations[number] += f" ({low:.2f} to {high:.2f})"
            rate = f"{rate_deviation(results, measure, variant):.2f}".replace("nan", "–")
            sources.append([measure.task, variant, *deviations, rate])
        for pair in map(tuple, results.study["contrasts"]):
            if set(pair) <= scores.keys() and len({scores[name].shape for name in pair}) == 1:
                paired = scores[pair[0]] - scores[pair[1]]
                known = components(paired), paired.shape[2]
                needed = [seeds_needed(d, known[0], n, known[1]) for n in (1, 3) for d in POINTS]
                seeds.append([measure.task, " − ".join(pair), *needed])
    parts = ["pretraining", "fine-tuning", "test sentences", "rates tried"]
    heads = [f"{d} {'point' if d == 1 else 'points'}, {n} each" for n in (1, 3) for d in POINTS]
    return [
        pd.DataFrame(sources, columns=["Task", "Variant", *parts]),
        pd.DataFrame(seeds, columns=["Task", "Difference", *heads]),
    ]


if __name__ == "__main__":
    default = Path(__file__).parent / "results" / "crossover_tiny_wikipedia"
    for table in tables(read(Path(sys.argv[1]) if sys.argv[1:] else default)):
        for row in [list(table), ["---"] * len(table.columns), *table.to_numpy()]:
            print("|", " | ".join(row), "|")
        print()
