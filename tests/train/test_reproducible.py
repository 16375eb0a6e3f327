"""What is asked of the text and the model's seed do not change the text; they do change the curves."""

import itertools

import pytest

from bertlab.train import loop
from bertlab.train.build import build_pretraining
from tests.train.test_resume import lines_of

RECIPE = "experiments/pretrain/bert.py:objectives="


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


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_compilation")
def test_runs_of_two_objectives_or_seeds_have_one_hash_of_their_data(small_config, tmp_path):
    def train(names, **changes):
        workdir = tmp_path / f"{names}{''.join(changes)}"
        result = loop.train(small_config(RECIPE + names, train__steps=3, model__layers=1, **changes), workdir)
        return result["data_hash"], [line["loss"] for line in lines_of(workdir)]

    first, other_seed = train("mlm"), train("mlm", seed=1)
    assert first[0] == other_seed[0] and first[1] != other_seed[1]
    assert first[0] == train("ltr", model__direction="left-to-right")[0] != train("mlm", data__seed=1)[0]
