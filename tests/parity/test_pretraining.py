"""Pretraining equals PyTorch's step by step: same initial values, rows, masks, schedule, clipping and decay; no dropout."""

import json
import sys

import numpy as np
import pytest

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.interop.base import flatten_tree, load_run
from bertlab.train.loop import train
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "experiments"))
import train_in_pytorch

TODAY = {"position_encoding": "rotary", "norm": "rms_norm", "norm_placement": "pre", "final_norm": True, "use_bias": False}
STEPS = 12

pytestmark = pytest.mark.usefixtures("quick_compilation")


def pretrained(directory, objective, body=None, **changes):
    config = load_config(f"{ROOT}/experiments/pretrain/bert.py:objectives={objective},corpus=synthetic,steps={STEPS}")
    config.data.update(format="sentence_pair", seq_len=64, batch_size=16)
    config.data.synthetic.documents = 300
    config.model.update(dropout=0.0, init_stddev=0.05, layers=2, width=32, heads=2, hidden=64)
    config.model.update(body or {})
    config.optimizer.update(learning_rate=1e-2, clip_norm=0.5, weight_decay=3.0)
    config.train.update(log_every=2, eval_every=STEPS, checkpoint_every=STEPS)
    config.update_from_flattened_dict(changes)
    train(config, directory)
    return directory


@pytest.mark.parametrize(
    ("objective", "body", "correction", "model"),
    [
        pytest.param("mlm", {}, "none", "BertForMaskedLM", marks=pytest.mark.nightly),
        ("ltr", TODAY, "moments", "BertlabForCausalLM"),
    ],
    ids=["BERT", "today's"],
)
def test_losses_and_parameters_are_pytorch_s(objective, body, correction, model, tmp_path):
    run = pretrained(tmp_path / "run", objective, body, **{"optimizer.bias_correction": correction})
    train_in_pytorch.main([str(run), str(tmp_path / "torch")])
    found = json.loads((tmp_path / "torch" / "losses.json").read_text())
    assert found["model"] == model and len(found["losses"]) == STEPS // 2
    # Clipping alone changes the losses by more than 0.01; float32 sums in another order by less than 1e-3.
    ours, theirs = (np.array([line[side] for line in found["losses"].values()]) for side in ("bertlab", "pytorch"))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    assert ours[0] - ours[-1] > 0.2, "it learns"
    # Adam divides by small moments, so float32's noise grows to some 1e-3 in single values; the decay is 0.16 of a value.
    before, after = (flatten_tree(load_run(tmp_path / name).params) for name in ("run", "torch/run"))
    for name in before:
        np.testing.assert_allclose(before[name], after[name], atol=5e-3, err_msg=name)


def test_what_it_does_not_repeat_is_refused(tmp_path):
    run = pretrained(tmp_path / "run", "mlm", **{"model.dropout": 0.1, "train.steps": 2})
    with pytest.raises(UserError, match=r"another model\.dropout"):
        train_in_pytorch.main([str(run), str(tmp_path / "torch")])
    saved = json.loads((run / "config.json").read_text())
    saved["model"]["dropout"], saved["optimizer"]["frozen"] = 0.0, "body/blocks"
    (run / "config.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"another optimizer\.frozen"):
        train_in_pytorch.main([str(run), str(tmp_path / "torch")])
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="is not a finished pretraining"):
        train_in_pytorch.main([str(run), str(tmp_path / "torch")])
