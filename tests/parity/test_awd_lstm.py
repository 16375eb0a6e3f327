"""AWD-LSTM from a PyTorch state dict equals torch's own LSTMs over truncated batches."""

import functools
import itertools
import json

import jax
import numpy as np
import pytest
import torch

from bertlab.errors import UserError
from bertlab.interop import fastai
from bertlab.interop.base import export_weights, import_weights
from bertlab.models.presets import build_body, model_shape
from bertlab.transfer.load import load
from tests.interop.test_fastai import WORDS, D, F, V, fastai_names, plain

LAYERS = 3
SIZES = list(itertools.pairwise([D, *[F] * (LAYERS - 1), D]))


class TorchAwdLstm(torch.nn.Module):
    """awd-lstm-lm's `RNNModel` without dropout."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Embedding(V, D), torch.nn.Linear(D, V)
        self.rnns = torch.nn.ModuleList(torch.nn.LSTM(*sizes) for sizes in SIZES)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, states):
        """Tokens [L, B]; each layer's outputs, the logits and the states."""
        layers, after = [self.encoder(tokens)], []
        for rnn, state in zip(self.rnns, states):
            output, state = rnn(layers[-1], state)
            layers.append(output)
            after.append(state)
        return layers, self.decoder(layers[-1]), after


def write_source(tensors, folder, name):
    folder.mkdir(exist_ok=True)
    (folder / "itos.json").write_text(json.dumps(WORDS))
    state = {key: torch.tensor(array) for key, array in tensors.items()}
    torch.save(state, folder / name)
    return state


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_states_and_logits_equal_torch_over_truncated_batches(direction, tmp_path):
    tensors = plain()
    named = fastai_names(tensors, "encoder_dp.emb")
    write_source(named, tmp_path / "source", f"lm_{direction}.pth")
    model = TorchAwdLstm()
    model.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
    import_weights("fastai", tmp_path / "source", tmp_path / "run")
    run = load(tmp_path / "run")
    side = {"fwd": "forward", "bwd": "backward"}[direction]
    shape = model_shape(run.config.model, V)
    body, params = build_body(shape), {"params": run.params["body"]}
    encode = jax.jit(functools.partial(body.apply, method="encode"))
    carry, states = shape.initial_carry(2, (side,)), [None] * LAYERS
    rng, turn = np.random.default_rng(0), -1 if direction == "bwd" else 1
    for length in (7, 4, 7):
        tokens = rng.integers(0, V, (2, length)).astype(np.int32)
        view = {"tokens": tokens, "documents": np.ones_like(tokens)}
        encoded, carry = encode(params, view | {"continues": np.ones(2, np.int32)}, carry)
        logits = body.apply(params, encoded.output(side), side, method="predict_tokens")
        # A right-to-left model is torch's on the reversed text.
        reversed_text = np.ascontiguousarray(tokens[:, ::turn].T)
        with torch.no_grad():
            layers, expected, states = model(torch.tensor(reversed_text).long(), states)
        for ours, theirs in zip((*getattr(encoded, side), logits), (*layers, expected)):
            ours = np.asarray(ours)[:, ::turn]
            np.testing.assert_allclose(ours, theirs.numpy().swapaxes(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lm_fwd.pth", "lm_bwd.pth"])
def test_an_export_comes_back_bit_for_bit(name, tmp_path):
    """With fastai 2's names, and torch reads it as tensors alone."""
    expected = write_source(fastai_names(plain(), "encoder_dp.emb"), tmp_path / "source", name)
    import_weights("fastai", tmp_path / "source", tmp_path / "run")
    export_weights("fastai", tmp_path / "run", tmp_path / "out")
    found = torch.load(tmp_path / "out" / name, weights_only=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    again = fastai.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again.params, load(tmp_path / "run").params)
    assert again.tokenizer.pieces() == WORDS
    assert json.loads((tmp_path / "out/itos.json").read_text()) == WORDS


def test_only_tensors_are_read(tmp_path):
    (tmp_path / "itos.json").write_text('["xxunk"]')
    path = tmp_path / "model.pth"
    for contents, message in (
        (TorchAwdLstm(), r"state_dict\(\)"),
        ([torch.zeros(3)], r"state_dict\(\)"),
    ):
        torch.save(contents, path)
        with pytest.raises(UserError, match=message):
            fastai.load(path)
    path.write_bytes(b"no file of torch's")
    with pytest.raises(UserError, match=r"state_dict\(\)"):
        fastai.load(path)
