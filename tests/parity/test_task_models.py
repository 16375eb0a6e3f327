"""Task models on torch's weights have torch's values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bertlab.data.characters import PADDING, character_ids
from bertlab.models.characters import ALPHABET
from bertlab.transfer.task_models import BatchNorm, Mlp, RecurrentEncoder, WordFeatures

LENGTHS = np.array([6, 4, 1])
DOCUMENTS = (np.arange(6) < LENGTHS[:, None]).astype(np.int32)
INPUTS, HIDDEN = 3, 5


def array(tensor) -> np.ndarray:
    return tensor.detach().numpy()


def of_torch(model, layers: int) -> dict:
    """The parameters of torch's bidirectional GRU or LSTM under our names."""

    def direction(layer: int, suffix: str) -> dict:
        of = lambda name: array(getattr(model, f"{name}_l{layer}{suffix}"))
        gates = 3 if isinstance(model, torch.nn.GRU) else 4
        kernel = lambda name: of(name).T.reshape(-1, gates, HIDDEN)
        inputs, states = (of(f"bias_{name}").reshape(gates, HIDDEN).copy() for name in ("ih", "hh"))
        kernels = {"input_kernel": kernel("weight_ih"), "recurrent_kernel": kernel("weight_hh")}
        if gates == 4:
            return {**kernels, "bias": inputs + states}
        last, states[2] = states[2].copy(), 0
        return {**kernels, "bias": inputs + states, "recurrent_bias": last}

    return {
        f"{side}_{layer}": direction(layer, suffix)
        for layer in range(layers)
        for side, suffix in (("forward", ""), ("backward", "_reverse"))
    }


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_encoder_is_torchs_bidirectional_recurrent_network(cell):
    """Two layers over rows of three lengths; torch packs them."""
    torch.manual_seed(0)
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    theirs = kind(INPUTS, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
    x = np.random.default_rng(0).normal(size=(*DOCUMENTS.shape, INPUTS)).astype(np.float32)
    given = torch.tensor(x, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(given, LENGTHS, batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    torch.sin(expected).sum().backward()

    module = RecurrentEncoder(2, HIDDEN, cell=cell)
    run = lambda params, x: module.apply({"params": params}, x, [], DOCUMENTS, True)
    total = lambda params, x: (jnp.sin(run(params, x)).sum(), run(params, x))
    (_, found), (of_params, of_x) = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(of_torch(theirs, 2), x)
    # float32, sums in another order.
    np.testing.assert_allclose(found, array(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, given.grad.numpy(), rtol=1e-4, atol=1e-6)
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    for side, leaves in of_torch(theirs, 2).items():
        for name in ("input_kernel", "recurrent_kernel"):
            np.testing.assert_allclose(of_params[side][name], leaves[name], rtol=1e-4, atol=1e-5)
    if cell == "gru":
        of_last = array(theirs.bias_hh_l0)[-HIDDEN:]
        np.testing.assert_allclose(of_params["forward_0"]["recurrent_bias"], of_last, rtol=1e-4, atol=1e-5)


def test_taglms_speller_has_the_last_states_of_torchs_bidirectional_gru():
    """Words of several lengths; torch packs their characters, and gives the last states of both directions."""
    torch.manual_seed(0)
    table, theirs = torch.nn.Embedding(ALPHABET, INPUTS), torch.nn.GRU(INPUTS, HIDDEN, bidirectional=True, batch_first=True)
    characters = character_ids(["Bonn", "a", "Rhône-Alpes", "x" * 60]).astype(np.int64)
    lengths = (characters != PADDING).sum(axis=1)
    given = table(torch.tensor(characters))
    packed = torch.nn.utils.rnn.pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
    expected = theirs(packed)[1].transpose(0, 1).reshape(len(characters), 2 * HIDDEN)
    torch.sin(expected).sum().backward()

    named = lambda: {name.removesuffix("_0"): leaves for name, leaves in of_torch(theirs, 1).items()}
    params = {**named(), "character_embedding": array(table.weight)}
    module = WordFeatures(spelling="gru", hidden=HIDDEN, character_width=INPUTS)
    run = lambda params: module.apply({"params": params}, characters[None].astype(np.int32))[0]
    total = lambda params: (jnp.sin(run(params)).sum(), run(params))
    (_, found), of_params = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    np.testing.assert_allclose(found, array(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_params["character_embedding"], array(table.weight.grad), rtol=1e-4, atol=1e-6)
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    for side, leaves in named().items():
        for name in ("input_kernel", "recurrent_kernel"):
            np.testing.assert_allclose(of_params[side][name], leaves[name], rtol=1e-4, atol=1e-5)


def test_batch_norm_is_torchs_in_training_and_in_evaluation():
    """Over five batches, the last ones padded: torch reads only what counts."""
    rng = np.random.default_rng(0)
    theirs, module = torch.nn.BatchNorm1d(4), BatchNorm()
    theirs.weight.data, theirs.bias.data = torch.randn(4), torch.randn(4)
    named = {"scale": theirs.weight, "bias": theirs.bias}
    params = {name: array(value) for name, value in named.items()}
    params |= {"running_mean": np.zeros(4, np.float32), "running_variance": np.ones(4, np.float32)}
    train = jax.jit(functools.partial(module.apply, deterministic=False, mutable=["statistics"]))
    for size in (8, 8, 5, 2, 3):
        x = rng.normal(loc=2, scale=3, size=(8, 4)).astype(np.float32)
        found, kept = train({"params": params}, x, np.arange(8) < size)
        np.testing.assert_allclose(found[:size], array(theirs(torch.tensor(x[:size]))), rtol=1e-4, atol=1e-5)
        params |= jax.tree.map(np.asarray, kept["statistics"])
    np.testing.assert_allclose(params["running_mean"], array(theirs.running_mean), rtol=1e-5)
    np.testing.assert_allclose(params["running_variance"], array(theirs.running_var), rtol=1e-5)
    theirs.eval()
    found = module.apply({"params": params}, x, np.ones(8, bool), True)
    np.testing.assert_allclose(found, array(theirs(torch.tensor(x))), rtol=1e-5, atol=1e-6)


def test_ulmfits_classifier_has_torchs_values_and_gradients_in_training():
    torch.manual_seed(0)
    of = torch.nn
    theirs = of.Sequential(of.BatchNorm1d(6), of.Linear(6, 5), of.ReLU(), of.BatchNorm1d(5), of.Linear(5, 3))
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    given = torch.tensor(x, requires_grad=True)
    expected = theirs(given)
    torch.sin(expected).sum().backward()

    def ours(values) -> dict:
        norm = lambda i: {"scale": values(theirs[i].weight), "bias": values(theirs[i].bias)}
        layer = lambda i: {"kernel": values(theirs[i].weight).T, "bias": values(theirs[i].bias)}
        return {"norm_0": norm(0), "dense_0": layer(1), "norm_1": norm(3), "dense_1": layer(4)}

    params = ours(array)
    for i, width in ((0, 6), (1, 5)):
        params[f"norm_{i}"] |= {"running_mean": np.zeros(width, np.float32), "running_variance": np.ones(width, np.float32)}
    module = Mlp(3, 5, (0.0, 0.0), "batch_norm")

    def total(params, x):
        logits, _ = module.apply({"params": params}, x, np.ones(7, bool), False, mutable=["statistics"])
        return jnp.sin(logits).sum(), logits

    (_, found), (of_params, of_x) = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(params, x)
    np.testing.assert_allclose(found, array(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_x, given.grad.numpy(), rtol=1e-3, atol=1e-5)
    for name, leaves in ours(lambda parameter: parameter.grad.numpy()).items():
        for leaf, gradient in leaves.items():
            np.testing.assert_allclose(of_params[name][leaf], gradient, rtol=1e-3, atol=1e-5, err_msg=f"{name}/{leaf}")
    assert not any(np.any(of_params[f"norm_{i}"][f"running_{what}"]) for i in (0, 1) for what in ("mean", "variance"))
