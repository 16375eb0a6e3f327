"""Equal seeds give equal curves, and what is asked of the text does not change the text."""

import itertools

import pytest

from bertlab.train import loop
from bertlab.train.build import build_pretraining
from tests.train.test_resume import lines_of, state_of

RECIPE = "experiments/pretrain/bert.py:objectives="


@pytest.mark.parametrize("names", ["mlm+nsp", pytest.param("electra", marks=pytest.mark.slow)])
def test_equal_seeds_give_equal_curves_bit_for_bit(names, small_config, tmp_path):
    config = small_config(RECIPE + names, train__steps=6, train__log_every=1)
    for run in ("first", "second"):
        loop.train(config, tmp_path / run)
    assert lines_of(tmp_path / "first") == lines_of(tmp_path / "second")
    first, second = (state_of(tmp_path / run, 6) for run in ("first", "second"))
    assert all((array == second[name]).all() for name, array in first.items()) and first.keys() == second.keys()
    other = config.copy_and_resolve_references()
    other.seed = 1
    loop.train(other, tmp_path / "other")
    assert lines_of(tmp_path / "other") != lines_of(tmp_path / "first")


def test_changing_only_the_objective_leaves_the_data_as_they_are(small_config):
    def rows(names, **changes):
        """Three training batches without what an objective adds to them."""
        direction = "left-to-right" if names == "ltr" else "bidirectional"
        experiment = build_pretraining(small_config(RECIPE + names, model__direction=direction, **changes))
        batches = itertools.islice(experiment.phases[0].train, 3)
        return [
            {name: batch[name].tolist() for name in ("tokens", "documents", "positions", "example_id")} for batch in batches
        ]

    expected = rows("mlm")
    for names in ("mlm+nsp", "prefix", "permutation", "ltr"):
        assert rows(names) == expected, names
    assert rows("mlm", data__seed=1) != expected


def test_runs_of_two_objectives_have_one_hash_of_their_data(small_config, tmp_path, quick_compilation):
    train = lambda names, **changes: loop.train(
        small_config(RECIPE + names, train__steps=3, model__layers=1, **changes), tmp_path / f"{names}{len(changes)}"
    )["data_hash"]
    assert train("mlm") == train("ltr", model__direction="left-to-right") != train("mlm", data__seed=1)
