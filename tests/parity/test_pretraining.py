"""Pretraining equals PyTorch's step by step, from the same initial values, rows and masks: its
schedule, clipping and decay; no dropout."""

import json
import sys

import numpy as np
import pytest

from bertlab.config.load import SHIPPED, load_config
from bertlab.errors import UserError
from bertlab.interop.tensors import flatten
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.transfer.load import load

sys.path.insert(0, str(SHIPPED / "experiments"))
import train_in_pytorch

TODAY = dict(position_encoding="rotary", norm="rms_norm", norm_placement="pre", final_norm=True)
TODAY |= dict(use_bias=False)
STEPS = 12
SETTINGS = {
    "data.format": "sentence_pair",
    "data.seq_len": 64,
    "data.batch_size": 16,
    "data.synthetic.documents": 300,
    "model.dropout": 0.0,
    "model.init_stddev": 0.05,
    "model.layers": 2,
    "model.width": 32,
    "model.heads": 2,
    "model.hidden": 64,
    "optimizer.learning_rate": 1e-2,
    "optimizer.clip_norm": 0.5,
    "optimizer.weight_decay": 3.0,
    "train.log_every": 2,
    "train.eval_every": STEPS,
    "train.checkpoint_every": STEPS,
    "evaluate.sentences": 0,
    "mesh.data": 1,
}


def pretrained(directory, objective, changes):
    arguments = f"objectives={objective},corpus=synthetic,steps={STEPS}"
    config = load_config(f"experiments/pretrain/bert.py:{arguments}", SETTINGS | changes)
    config.data.directory = str(directory.parent / "cache")
    loop.run(build_pretraining(config), directory)
    return directory


@pytest.mark.parametrize(
    ("objective", "changes", "model"),
    [
        pytest.param("mlm", {}, "BertForMaskedLM", marks=pytest.mark.nightly),
        (
            "ltr",
            {"optimizer.bias_correction": "moments"}
            | {f"model.{key}": value for key, value in TODAY.items()},
            "BertlabForCausalLM",
        ),
    ],
    ids=["BERT", "today's"],
)
def test_losses_and_parameters_are_pytorchs(objective, changes, model, tmp_path):
    run = pretrained(tmp_path / "run", objective, changes)
    train_in_pytorch.main([str(run), str(tmp_path / "torch")])
    found = json.loads((tmp_path / "torch" / "losses.json").read_text())
    assert found["model"] == model and len(found["losses"]) == STEPS // 2
    # Clipping alone changes the losses by more than 0.01; sums in another order by less than 1e-3.
    lines = found["losses"].values()
    ours, theirs = (np.array([line[side] for line in lines]) for side in ("bertlab", "pytorch"))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    assert ours[0] - ours[-1] > 0.2, "it learns"
    # Adam divides by small moments: single values differ by 1e-3; the decay is 0.16 of a value.
    before, after = (flatten(load(tmp_path / name).params) for name in ("run", "torch/run"))
    for name in before:
        np.testing.assert_allclose(before[name], after[name], atol=5e-3, err_msg=name)


def test_what_it_does_not_repeat_is_refused(tmp_path):
    run = pretrained(tmp_path / "run", "mlm", {"model.dropout": 0.1, "train.steps": 2})
    with pytest.raises(UserError, match=r"another config\.model\.dropout"):
        train_in_pytorch.main([str(run), str(tmp_path / "torch")])
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="is not a finished pretraining"):
        train_in_pytorch.main([str(run), str(tmp_path / "torch")])
