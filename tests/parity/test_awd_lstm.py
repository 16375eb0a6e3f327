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
from bertlab.interop.base import export_weights, import_weights, load_run
from bertlab.models.presets import build_body, model_shape
from tests.interop.test_fastai import WORDS, plain, salesforce

V, D, F, LAYERS = 30, 8, 12, 3


class TorchAwdLstm(torch.nn.Module):
    """awd-lstm-lm's `RNNModel` without dropout: embeddings, one `nn.LSTM` per layer, a tied decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Embedding(V, D)
        sizes = [D, *[F] * (LAYERS - 1), D]
        self.rnns = torch.nn.ModuleList(torch.nn.LSTM(a, b) for a, b in itertools.pairwise(sizes))
        self.decoder = torch.nn.Linear(D, V)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, states):
        """Tokens [L, B]; each layer's outputs, the logits and the states."""
        layers, after = [self.encoder(tokens)], []
        for rnn, state in zip(self.rnns, states):
            output, state = rnn(layers[-1], state)
            layers.append(output)
            after.append(tuple(x.detach() for x in state))
        return layers, self.decoder(layers[-1]), after


def named(model, form):
    """The state dict under the names of awd-lstm-lm, or of fastai's saved learner."""
    state = dict(model.state_dict())
    if form == "salesforce":
        raw = {"weight_hh_l0": "weight_hh_l0_raw"}
        rename = lambda k: f"rnns.{k.split('.')[1]}.module.{raw.get(k.split('.')[2], k.split('.')[2])}"
        return {rename(k) if k.startswith("rnns.") else k: v for k, v in state.items()}
    out = {"0.encoder.weight": state["encoder.weight"], "0.encoder_dp.emb.weight": state["encoder.weight"]}
    for k, v in state.items():
        if k.startswith("rnns."):
            _, layer, leaf = k.split(".")
            out[f"0.rnns.{layer}." + ("weight_hh_l0_raw" if leaf == "weight_hh_l0" else f"module.{leaf}")] = v
    return {"model": out | {f"1.{k}": v for k, v in state.items() if k.startswith("decoder")}, "opt": {"lr": 0.1}}


@pytest.mark.parametrize(("form", "direction"), [("salesforce", "fwd"), ("fastai", "bwd")])
def test_states_and_logits_equal_torch_over_truncated_batches(form, direction, tmp_path):
    torch.manual_seed(0)
    model = TorchAwdLstm()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    source = tmp_path / "source"
    source.mkdir()
    torch.save(named(model, form), source / f"lm_{direction}.pth")
    (source / "itos.json").write_text(json.dumps(["xxunk", "xxpad", "xxbos", *(f"w{i}" for i in range(V - 3))]))
    import_weights("fastai", source, tmp_path / "run")
    run = load_run(tmp_path / "run")
    config = model_shape(run.config.model, V)
    body, side = build_body(config), {"fwd": "forward", "bwd": "backward"}[direction]
    encode = jax.jit(functools.partial(body.apply, method="encode"), static_argnums=2)
    params, carry = {"params": run.params["body"]}, config.initial_carry(2, (side,))
    assert list(run.config.objectives) == ["rtl" if direction == "bwd" else "ltr"]
    states, rng = [None] * LAYERS, np.random.default_rng(0)
    for length in (7, 4, 7):
        tokens = rng.integers(0, V, (2, length)).astype(np.int32)
        view = {"tokens": tokens, "documents": np.ones_like(tokens), "continues": np.ones(2, np.int32)}
        encoded, carry = encode(params, view, True, carry)
        logits = body.apply(params, encoded.output(side), side, method="predict_tokens")
        # A right-to-left model is torch's on the reversed text.
        turn = lambda x: x[:, ::-1] if direction == "bwd" else x
        with torch.no_grad():
            layers, expected, states = model(torch.from_numpy(np.ascontiguousarray(turn(tokens).T)).long(), states)
        for ours, theirs in zip((*getattr(encoded, side), logits), (*layers, expected), strict=True):
            np.testing.assert_allclose(turn(np.asarray(ours)), theirs.numpy().swapaxes(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_an_export_comes_back_bit_for_bit(direction, saved, tmp_path):
    """And torch's own model takes it, strictly."""
    (saved / "lm.pth").rename(saved / f"lm_{direction}.pth")
    import_weights("fastai", saved, tmp_path / "run")
    export_weights("fastai", tmp_path / "run", tmp_path / "out")
    state = torch.load(tmp_path / "out" / f"lm_{direction}.pth", weights_only=True)
    first, again = load_run(tmp_path / "run"), fastai.load(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, again.params, first.params)
    assert again.tokenizer.pieces() == first.tokenizer.pieces() == json.loads((tmp_path / "out/itos.json").read_text())
    assert again.config.model == first.config.model and again.files[-1] == "tokenizer"
    body, head = modules = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
    body.encoder, body.encoder_dp, body.rnns = torch.nn.Embedding(11, 4), torch.nn.Module(), torch.nn.ModuleList()
    body.encoder_dp.emb, head.decoder = body.encoder, torch.nn.Linear(4, 11)
    for inputs, cell in ((4, 6), (6, 6), (6, 4)):
        layer = torch.nn.Module()
        layer.module = torch.nn.LSTM(inputs, cell)
        layer.weight_hh_l0_raw = layer.module.weight_hh_l0
        del layer.module._parameters["weight_hh_l0"]
        body.rnns.append(layer)
    modules.load_state_dict(state, strict=True)


def test_only_tensors_are_read(tmp_path):
    (tmp_path / "itos.txt").write_text("xxunk\n")
    torch.save(TorchAwdLstm(), tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"state_dict\(\)"):
        import_weights("fastai", tmp_path, tmp_path / "run")
    torch.save([torch.zeros(3)], tmp_path / "model.pt")
    with pytest.raises(UserError, match="state dict"):
        import_weights("fastai", tmp_path / "model.pt", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def saved(tmp_path):
    """A directory with a model that is whole."""
    (tmp_path / "itos.txt").write_text("".join(f"{word}\n" for word in WORDS))
    torch.save({name: torch.from_numpy(array) for name, array in salesforce(plain()).items()}, tmp_path / "lm.pth")
    return tmp_path


def test_damaged_files_are_refused_by_name(saved):
    assert fastai.load(saved).tensors == 15
    whole = (saved / "lm.pth").read_bytes()
    damaged = {f"{part} of {len(whole)} bytes": whole[:part] for part in (0, 1, 2, 3, 10, 100, len(whole) // 2, len(whole) - 1)}
    damaged |= {"text": b"weights of a language model\n", "zeros": bytes(100), "frame": b"\x80\x02.", "digits": b"0123456789"}
    for what, contents in damaged.items():
        (saved / "lm.pth").write_bytes(contents)
        with pytest.raises(UserError, match=r"lm\.pth .*state_dict\(\)") as refusal:
            fastai.load(saved)
        assert "\n" not in str(refusal.value), what


def test_tensors_that_are_no_plain_arrays_are_refused_by_name(saved):
    for value, said in (
        (torch.ones(2, 2).to_sparse(), r"lm\.pth: decoder\.bias is torch\.float32, torch\.sparse_coo; save it as a dense"),
        (torch.ones(2, device="meta"), r"lm\.pth: decoder\.bias is"),
    ):
        torch.save({"decoder.bias": value}, saved / "lm.pth")
        with pytest.raises(UserError, match=said):
            fastai.load(saved)
    for contents in ({0: torch.ones(1)}, [torch.ones(1)], {"model": {"x": 1}}):
        torch.save(contents, saved / "lm.pth")
        with pytest.raises(UserError, match=r"lm\.pth: .*state dict"):
            fastai.load(saved)
