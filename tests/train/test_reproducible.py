"""Equal seeds give equal curves, and what is asked of the text does not change the text."""

import pytest

from bertlab.train import loop
from tests.train.test_resume import lines_of, state_of

RECIPE = "experiments/pretrain/bert.py:objectives="


@pytest.mark.parametrize("names", ["mlm+nsp", "electra"])
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


def test_changing_only_the_objective_leaves_the_data_as_they_are(small_config, tmp_path):
    hashes = {}
    for names in ("mlm", "mlm+nsp", "prefix", "permutation", "ltr"):
        direction = "left-to-right" if names == "ltr" else "bidirectional"
        config = small_config(RECIPE + names, train__steps=3, model__direction=direction)
        hashes[names] = loop.train(config, tmp_path / names)["data_hash"]
    assert len(set(hashes.values())) == 1, hashes
    assert (
        loop.train(small_config(RECIPE + "mlm", train__steps=3, data__seed=1), tmp_path / "x")["data_hash"]
        not in hashes.values()
    )
