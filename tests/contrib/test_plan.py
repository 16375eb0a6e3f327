"""Plans on virtual devices: bytes of the state, a mesh that divides it, phases, formulas."""

import json

import jax
import pytest

from bertlab.config import load_config
from bertlab.config.load import SHIPPED
from bertlab.contrib.plan import main, plans

pytestmark = pytest.mark.nightly

BERT = str(SHIPPED / "experiments/pretrain/bert.py")
SMALL = {"model.width": 64, "model.heads": 2, "model.hidden": 128, "model.layers": 2}
SMALL |= {"data.tokenizer.vocab_size": 512, "data.batch_size": 16, "train.phases": ""}


def planned(topology="cpu:8", **settings):
    changed = {name.replace("__", "."): value for name, value in settings.items()}
    return list(plans(load_config(BERT, SMALL | {"mesh.data": -1} | changed), topology))


def test_every_device_has_the_whole_state_or_its_share():
    (whole,), (divided,) = planned(), planned(mesh__data=1, mesh__fsdp=8)
    state = 3 * 4 * whole.parameters  # parameters and Adam's moments, in float32
    batch = whole.arguments - state
    assert 0 < batch < 0.05 * state
    assert divided.arguments < state / 8 + batch + 0.1 * state
    assert whole.memory > whole.arguments and whole.mesh["data"] == divided.mesh["fsdp"] == 8
    assert whole.tokens == 16 * 128 and whole.seconds == {}
    # 6 FLOPs a weight of the blocks and position, and more for attention and predictions.
    blocks = 2 * (4 * 64 * 64 + 2 * 64 * 128)
    least = 6 * blocks * whole.tokens / 8
    assert least < whole.model_flops < 3 * least


def test_each_phase_has_a_plan(tmp_path, capsys):
    phases = "0.5 data.seq_len=32; 0.5 data.seq_len=64 data.batch_size=8"
    arguments = [f"--config={BERT}", "--topology=cpu:4", f"--out={tmp_path / 'plan.json'}"]
    settings = SMALL | {"train.phases": phases, "train.steps": 100, "mesh.data": -1}
    main([*arguments, *(f"--config.{key}={value}" for key, value in settings.items())])
    found = json.loads((tmp_path / "plan.json").read_text())
    assert [(one["steps"], one["rows"], one["tokens"]) for one in found] == [
        (50, 16, 512),
        (50, 8, 512),
    ]
    assert found[0]["versions"]["jax"] == jax.__version__ and found[0]["bound"] is None
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_model_with_states_that_are_carried_has_a_plan():
    recipe = SHIPPED / "experiments/pretrain/awd_lstm.py"
    config = load_config(str(recipe), {"mesh.data": -1, "model.width": 16, "model.hidden": 16})
    config.data.tokenizer.vocab_size, config.data.batch_size = 512, 8
    (found,) = plans(config, "cpu:4")
    assert found.arguments > 4 * found.parameters
