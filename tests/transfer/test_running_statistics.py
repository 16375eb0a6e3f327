"""Running statistics of batch normalisation: a training step moves them, nothing else does, and a run keeps them."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.models.base import Encoded
from bertlab.objectives.program import Program
from bertlab.train.checkpoint import load_params
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import MESH_AXES, build_mesh, put_batch
from bertlab.train.state import TrainState, build_train_step, state_shardings
from bertlab.transfer.finetune import finetune
from bertlab.transfer.kinds.classification import ClassificationHead
from tests.references import QUICK, VOCABULARY, broken_at, random_params

ROWS, WIDTH = 16, 3


class Given(nn.Module):
    """A body whose only state of a row is in the batch."""

    def encode(self, view, deterministic, carry):
        return Encoded(both=(view["x"][:, None],)), {}

    def predict_tokens(self, hidden, side, among=None):
        return hidden


def batch_of():
    """Rows that lie far apart, so that each device's mean is another; the last three only fill the batch."""
    rng = np.random.default_rng(0)
    documents = (np.arange(ROWS)[:, None] < ROWS - 3).astype(np.int32)
    x = (rng.normal(size=(ROWS, WIDTH)) + np.arange(ROWS)[:, None]).astype(np.float32)
    fields = {name: documents for name in ("tokens", "segments", "positions", "documents")}
    return {**fields, "x": x, "label": np.where(documents[:, 0] > 0, np.arange(ROWS) % 2, -1).astype(np.int32)}


def one_step(mesh_sizes, micro_batches=1):
    """(statistics before, after) a step of an optimiser that decays whatever it is given."""
    head = ClassificationHead(pooling="first", blocks=4, norm="batch_norm", dropout=0.0)
    program, batch = Program(Given(), {"task": head}, VOCABULARY), batch_of()
    params = jax.tree.map(np.abs, random_params(program, batch))
    settings = base_config().optimizer
    settings.update({"warmup_steps": 0, "decay": "constant", "weight_decay": 0.5, "decay_exclude": "", "learning_rate": 0.1})
    optimizer = build_optimizer(settings, 10)
    state = TrainState(np.int32(0), params, jax.tree.map(np.asarray, optimizer.init(params)), {})
    mesh = build_mesh(dict(zip(MESH_AXES, mesh_sizes)))
    state = jax.device_put(state, state_shardings(program, optimizer, mesh, batch, state))
    step = build_train_step(program, optimizer, {"task": (1.0, 1.0)}, micro_batches, 10)
    with jax.set_mesh(mesh):
        lowered = jax.jit(step).lower(state, put_batch(mesh, batch), 0)
    after, _ = lowered.compile(QUICK)(state, put_batch(mesh, batch), 0)
    of = lambda tree: jax.tree.map(np.asarray, tree["heads_task"]["classifier"]["norm_0"])
    return of(params), of(after.params)


@pytest.mark.parametrize("mesh_sizes", [(1, 1, 1), (4, 2, 1)])
def test_a_step_moves_them_towards_the_whole_batchs(mesh_sizes):
    before, after = one_step(mesh_sizes)
    filled = np.float64(batch_of()["x"][: ROWS - 3])
    # float32 sums; a device's own mean differs by tens of percents, and the decay would take 5 %.
    np.testing.assert_allclose(after["running_mean"], 0.9 * before["running_mean"] + 0.1 * filled.mean(0), rtol=1e-5)
    variance = 0.9 * before["running_variance"] + 0.1 * filled.var(0, ddof=1)
    np.testing.assert_allclose(after["running_variance"], variance, rtol=1e-5)
    assert np.abs(after["scale"] - before["scale"]).min() > 1e-3, "the optimiser changes the rest"


def test_micro_batches_move_them_by_the_mean_of_theirs():
    before, after = one_step((2, 1, 1), micro_batches=2)
    batch = batch_of()
    parts = [np.float64(batch["x"][j::2][batch["documents"][j::2, 0] > 0]) for j in (0, 1)]
    variance = np.mean([part.var(0, ddof=1) for part in parts], axis=0)
    np.testing.assert_allclose(after["running_variance"], 0.9 * before["running_variance"] + 0.1 * variance, rtol=1e-5)


SETTINGS = {
    "data.seq_len": 16,
    "data.batch_size": 8,
    "mesh.data": 1,
    "train.steps": 4,
    "train.checkpoint_every": 2,
    "optimizer.warmup_steps": 1,
    "head.blocks": 4,
    "head.norm": "batch_norm",
}


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.nightly
def test_a_run_keeps_them_when_it_is_resumed(bert_run, words_task, tmp_path):
    finetune(bert_run, words_task, tmp_path / "straight", SETTINGS)
    with broken_at(2):
        finetune(bert_run, words_task, tmp_path / "stopped", SETTINGS)
    finetune(bert_run, words_task, tmp_path / "stopped", SETTINGS)
    straight, stopped = (load_params(tmp_path / name) for name in ("straight", "stopped"))
    jax.tree.map(np.testing.assert_array_equal, straight, stopped)
    norm = straight["heads_words"]["classifier"]["norm_0"]
    assert np.abs(norm["running_mean"]).max() > 1e-3 and np.abs(norm["running_variance"] - 1).max() > 1e-3

    # Another fine-tuning on the task begins with them.
    finetune(tmp_path / "straight", words_task, tmp_path / "again", {**SETTINGS, "train.steps": 0})
    again = load_params(tmp_path / "again")["heads_words"]["classifier"]["norm_0"]
    np.testing.assert_array_equal(again["running_variance"], norm["running_variance"])


@pytest.mark.usefixtures("quick_compilation")
def test_a_batch_of_one_is_refused(bert_run, words_task, tmp_path):
    with pytest.raises(UserError, match=r"config.objectives.words.norm='batch_norm' needs two rows .*batch_size=8 .*=8 give 1"):
        finetune(bert_run, words_task, tmp_path / "out", {**SETTINGS, "train.micro_batches": 8})
