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
    found = variance.components(pretraining + tuning + sentences)
    assert found[:2] == pytest.approx((4.0, 1.0), rel=0.25)
    assert found[2] == pytest.approx(sentences.var(ddof=1) / sizes[2])


def test_seeds_needed_are_those_of_a_paired_t_test():
    # Standard tables: an effect of one standard deviation takes 10 pairs at 80 % power, of half 34.
    assert variance.seeds_needed(1.0, (1.0, 0.0, 0.0), tunings=1) == "10"
    assert variance.seeds_needed(1.0, (0.0, 4.0, 0.0), tunings=1) == "34"
    assert variance.seeds_needed(1.0, (0.0, 4.0, 0.0), tunings=4) == "10"
    assert variance.seeds_needed(1.0, (0.0, 0.0, 1.0), tunings=1) == "over 100"


def test_the_document_has_the_numbers_of_the_published_study():
    tables = variance.tables(read(ROOT / "experiments/results/crossover_tiny_wikipedia"))
    computed = {tuple(row[2:]) for table in tables for row in table.to_numpy().tolist()}
    lines = (ROOT / "docs/variance.md").read_text().split("\n")
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    rows = [tuple(cells[2:]) for cells in rows if cells[0] != "Use"]
    assert len(rows) == 13 and set(rows) <= computed
