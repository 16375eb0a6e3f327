from pathlib import Path

import numpy as np
import pytest

from bertlab.studies.records import read
from experiments import variance

ROOT = Path(__file__).parents[2]


def test_components_are_those_of_which_scores_are_made():
    rng, sizes = np.random.default_rng(0), (200, 3, 50)
    pretraining = rng.normal(0, 2.0, (sizes[0], 1, 1))
    tuning = rng.normal(0, 1.0, (*sizes[:2], 1))
    sentences = rng.normal(0, 30.0, sizes[2])
    scores = pretraining + tuning + sentences + rng.normal(0, 5.0, sizes)
    pretrained, tuned, drawn = variance.components(scores)
    assert (pretrained, tuned) == pytest.approx((4.0, 1.0 + 25 / 50), rel=0.25)
    assert drawn == pytest.approx(sentences.var(ddof=1) / sizes[2], rel=0.05)


def test_intervals_hold_the_truth_in_95_of_100_studies():
    rng, held = np.random.default_rng(0), np.zeros(2)
    for _ in range(500):
        runs = rng.normal(0, 1.0, (5, 1, 1)) + rng.normal(0, 0.5, (5, 3, 1))
        ends = variance.intervals(runs)
        held += [low <= truth <= high for (low, high), truth in zip(ends, (1.0, 0.25))]
    assert (abs(held / 500 - 0.95) < 0.03).all()


def test_seeds_needed_are_those_of_a_paired_t_test():
    # Standard tables: an effect of one standard deviation takes 10 pairs at 80 % power, of half 34.
    for parts, tunings, expected in (
        ((1.0, 0.0, 0.0), 1, "10"),
        ((0.0, 4.0, 0.0), 1, "34"),
        ((0.0, 4.0, 0.0), 4, "10"),
        ((0.0, 0.1, 1.0), 1, "over 100"),  # sentences do not become more with seeds
    ):
        assert variance.seeds_needed(1.0, parts, tunings, sentences=1000) == expected


def test_the_document_has_the_numbers_of_the_published_study():
    tables = variance.tables(read(ROOT / "experiments/results/crossover_tiny_wikipedia"))
    computed = {tuple(row[2:]) for table in tables for row in table.to_numpy().tolist()}
    lines = (ROOT / "docs/variance.md").read_text().split("\n")
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    rows = [tuple(cells[2:]) for cells in rows if cells[0] != "Use"]
    assert len(rows) == 16 and set(rows) <= computed
