"""Curricula: phases that change what is trained or the batches, weights that change over the run."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checks import check_config
from bertlab.train.phases import phase_configs
from bertlab.train.state import weights_at
from tests.train.test_resume import assert_same_run, break_at

LENGTHS = "0.5 data.seq_len=16 data.batch_size=16; 0.5 data.seq_len=32"
MLM_NSP = "0.5 objectives.nsp.weight=0; 0.5 objectives.mlm.weight=0"
BOTH = "experiments/pretrain/bert.py:objectives=mlm+nsp"


def lines(run, split):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


@pytest.mark.nightly
def test_lengths_change_where_a_phase_ends_and_the_killed_run_goes_on_bit_for_bit(small_config, tmp_path):
    config = small_config("bert", train__phases=LENGTHS, model__layers=1)
    loop.train(config, tmp_path / "straight")
    experiment = build_pretraining(config)
    assert [phase.end for phase in experiment.phases] == [10, 20]
    assert [next(iter(phase.train))["tokens"].shape for phase in experiment.phases] == [(16, 16), (8, 32)]
    # A line is written where the phase ends, whatever log_every is, so that none mixes two phases.
    written = lines(tmp_path / "straight", "train")
    assert [line["step"] for line in written] == [4, 8, 10, 12, 16, 20]
    short, long = (written[i + 1]["flops"] - written[i]["flops"] for i in (0, 4))
    assert 0.5 < short / long < 1, "as many tokens, of which each attends to fewer"
    # Killed where the second phase has just begun (from the checkpoint at the border), and again within it.
    for step in (11, 16):
        break_at(config, tmp_path / "killed", step)
    loop.train(config, tmp_path / "killed")
    assert_same_run(tmp_path / "straight", tmp_path / "killed", 20)


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
        ("0.5 data.seq_len=16", "0.5 instead of 1"),
        ("data.seq_len=16; 1.0", "its share of the steps"),
        ("0.7; 0.7", "sum to 1"),
        ("0.5 data.corpus=x; 0.5", "'data.corpus=x' .* data.seq_len=, .* objectives"),
        ("0.5 objectives.mlm.weight=0 objectives.nsp.weight=0; 0.5", "no objective with a weight"),
        ("0.5 objectives.ltr.weight=0; 0.5", r"has no key 'objectives.ltr.weight'"),
        ("0.5 data.seq_len=many; 0.5", r"^config.train.phases='0.5 data.seq_len=many; 0.5': data.seq_len=many: "),
        ("0.5 data.seq_len=600; 0.5", r"config.data.seq_len=600 .* 512 positions"),
        ("0.5; 0.001; 0.499", r"'0.001' is less than one of the run's 20 steps"),
    ],
)
def test_phases_that_cannot_be_are_refused(small_config, text, message):
    with pytest.raises(UserError, match=message):
        check_config(small_config(BOTH, train__phases=text))


def test_a_weight_may_fade_within_a_phase_or_be_zero_outside_of_it(small_config):
    phases = "0.5 objectives.nsp.final_weight=0.5; 0.5 objectives.nsp.weight=0.5"
    config = small_config(BOTH, objectives__mlm__weight=0.0, objectives__nsp__weight=0.0, train__phases=phases)
    assert check_config(config).keys() == {"mlm", "nsp"}
    assert [of_phase.objectives.nsp.final_weight for _, of_phase in phase_configs(config)] == [0.5, None]
