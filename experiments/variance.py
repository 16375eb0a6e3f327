"""Where the variance of a score comes from, and how many seeds a difference takes.

    python experiments/variance.py [FOLDER]

Reads a published study with pretraining seeds x fine-tunings, and prints two tables in Markdown:
for each task and variant, the standard deviation of a test score by source, and for each pair of
variants that share seeds the pretraining seeds that a paired test needs.
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


def sentence_scores(results, measure) -> dict[str, np.ndarray]:
    """Variant -> scores in points [pretraining seeds, fine-tunings, test sentences], at the labels
    that `valid` selects."""
    rows = comparisons.test_scores(results, measure).dropna(subset="value")
    found = {}
    for (variant, _), runs in rows.groupby(["variant", "seed"], sort=False):
        scores = []
        for run, value in zip(runs["run"], runs["value"]):
            record = results.stage(results.runs[run], "finetune", measure.task)
            scores.append(100 * comparisons.by_sentence(record["correct"]["test"], value))
        found.setdefault(variant, []).append(scores)
    fewest = {variant: min(map(len, of)) for variant, of in found.items()}
    return {name: np.array([of[: fewest[name]] for of in found[name]]) for name in found}


def components(scores: np.ndarray) -> tuple[float, float, float]:
    """Variances of one run's score: of pretraining, of fine-tuning within a pretraining, and of the
    draw of the test sentences (on which all runs agree)."""
    runs = scores.mean(axis=2)
    tuning = runs.var(axis=1, ddof=1).mean()
    pretraining = max(0.0, runs.mean(axis=1).var(ddof=1) - tuning / runs.shape[1])
    return pretraining, tuning, scores.mean(axis=(0, 1)).var(ddof=1) / scores.shape[2]


def seeds_needed(difference: float, parts: tuple[float, float, float], tunings: int) -> str:
    """The fewest pretraining seeds, with so many fine-tunings each, for which a two-sided paired t
    test sees a difference with `POWER`; test sentences do not become more with seeds."""
    pretraining, tuning, sentences = parts
    for seeds in range(2, MOST + 1):
        error = math.sqrt((pretraining + tuning / tunings) / seeds + sentences)
        critical = scipy.stats.t.ppf(1 - ALPHA / 2, seeds - 1)
        if scipy.stats.nct.sf(critical, seeds - 1, difference / error) >= POWER:
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
        scores = sentence_scores(results, measure)
        scores = {name: of for name, of in scores.items() if of.shape[1] > 1}
        for variant, of in scores.items():
            parts = components(of)
            shares = [f"{100 * part / sum(parts):.0f} %" for part in parts]
            sd = [f"{math.sqrt(part):.2f} ({share})" for part, share in zip(parts, shares)]
            rate = rate_deviation(results, measure, variant)
            sources.append([measure.task, variant, *sd, f"{rate:.2f}".replace("nan", "–")])
        for pair in results.study["contrasts"]:
            if set(pair) <= scores.keys() and len({scores[name].shape for name in pair}) == 1:
                parts = components(scores[pair[0]] - scores[pair[1]])
                needed = [seeds_needed(d, parts, n) for n in (1, 3) for d in POINTS]
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
