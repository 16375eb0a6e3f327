"""Curricula: phases that change what is trained or the batches, weights that change over the run."""

import json

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checks import check_config
from bertlab.train.phases import phase_configs
from bertlab.train.state import weights_at
from tests.train.test_resume import break_at, lines_of, state_of

LENGTHS = "0.5 data.seq_len=16 data.batch_size=16; 0.5 data.seq_len=32"
MLM_NSP = "0.5 objectives.nsp.weight=0; 0.5 objectives.mlm.weight=0"
BOTH = "experiments/pretrain/bert.py:objectives=mlm+nsp"


def lines(run, split):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


@pytest.mark.slow
def test_lengths_change_where_a_phase_ends_and_the_killed_run_goes_on_bit_for_bit(small_config, tmp_path):
    config = small_config("bert", train__phases=LENGTHS, train__steps=20)
    loop.train(config, tmp_path / "straight")
    experiment = build_pretraining(config)
    assert [phase.end for phase in experiment.phases] == [10, 20]
    assert [next(iter(phase.train))["tokens"].shape for phase in experiment.phases] == [(16, 16), (8, 32)]
    # A line is written where the phase ends, whatever log_every is, so that none mixes two phases.
    written = lines(tmp_path / "straight", "train")
    assert [line["step"] for line in written] == [4, 8, 10, 12, 16, 20]
    short, long = (written[i + 1]["flops"] - written[i]["flops"] for i in (0, 4))
    assert 0.5 < short / long < 1, "as many tokens, of which each attends to fewer"
    # Killed where the second phase has just begun (from the checkpoint at the border), and within it.
    for step in (11, 16):
        break_at(config, tmp_path / f"killed{step}", step)
        loop.train(config, tmp_path / f"killed{step}")
        assert lines_of(tmp_path / "straight") == lines_of(tmp_path / f"killed{step}")
    straight, killed = state_of(tmp_path / "straight", 20), state_of(tmp_path / "killed11", 20)
    for name, array in straight.items():
        np.testing.assert_array_equal(array, killed[name], err_msg=name)


def test_an_objective_without_weight_is_not_trained_in_its_phase(small_config, tmp_path):
    config = small_config(BOTH, train__phases=MLM_NSP, train__steps=8)
    loop.train(config, tmp_path)
    found = lines(tmp_path, "train")
    assert ["nsp/loss" in line for line in found] == [False, True]
    assert [line["loss"] for line in found] == [found[0]["mlm/loss"], found[1]["nsp/loss"]]
    assert found[0]["supervised"] == found[1]["supervised"] > 0, "NSP predicts no tokens"
    assert all({"mlm/loss", "nsp/loss"} <= line.keys() for line in lines(tmp_path, "valid")), "held-out text is asked both"
    phases = build_pretraining(config).phases
    assert phases[0].train is phases[1].train, "the batches go on"
    assert phases[1].program.groups == {"mlm": ("mlm", "nsp")}, "NSP is shown in training what it is shown at the end"


def test_weights_go_linearly_from_first_to_last(small_config, tmp_path):
    assert weights_at({"mlm": (1.0, 0.2), "nsp": (0.5, 0.5)}, 0.25) == {"mlm": 0.8, "nsp": 0.5}
    config = small_config(BOTH, train__steps=4, train__log_every=1, objectives__nsp__final_weight=0.0)
    loop.train(config, tmp_path)
    found = lines(tmp_path, "train")
    for step, line in enumerate(found):
        assert line["loss"] == pytest.approx(line["mlm/loss"] + (1 - step / 4) * line["nsp/loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5 data.seq_len=16", r"the shares sum to 0.5 instead of 1"),
        ("data.seq_len=16; 1.0", r"must begin with its share of the steps"),
        ("0.7; 0.7", r"shares sum to 1"),
        (
            "0.5 data.corpus=x; 0.5",
            r"'data.corpus=x' must be data.seq_len=, .* or objectives",
        ),
        ("0.5 objectives.mlm.weight=0 objectives.nsp.weight=0; 0.5", r"leaves no objective with a weight"),
        ("0.5 objectives.ltr.weight=0; 0.5", r"has no key 'objectives.ltr.weight'"),
        ("0.5 data.seq_len=many; 0.5", r"^config.train.phases='0.5 data.seq_len=many; 0.5': data.seq_len=many: expected int"),
        ("0.5 data.seq_len=600; 0.5", r"config.data.seq_len=600 .* 512 positions"),
        ("0.5; 0.001; 0.499", r"'0.001' is less than one of the run's 20 steps"),
    ],
)
def test_phases_that_cannot_be_are_refused(small_config, text, message):
    with pytest.raises(UserError, match=message):
        check_config(small_config(BOTH, train__phases=text))


def test_a_weight_may_fade_within_a_phase(small_config):
    config = small_config(BOTH, train__phases="0.5 objectives.nsp.final_weight=0.5; 0.5 objectives.nsp.weight=0.5")
    check_config(config)
    assert [of_phase.objectives.nsp.final_weight for _, of_phase in phase_configs(config)] == [0.5, None]


def test_without_phases_there_is_one(small_config):
    config = small_config("bert")
    assert phase_configs(config) == [(20, config)]


def test_phases_may_give_the_weights_that_the_run_itself_leaves_at_zero(small_config):
    phases = "0.5 objectives.mlm.weight=1; 0.5 objectives.nsp.weight=1"
    config = small_config(BOTH, objectives__mlm__weight=0.0, objectives__nsp__weight=0.0, train__phases=phases)
    assert check_config(config).keys() == {"mlm", "nsp"}
