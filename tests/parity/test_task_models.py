"""Task models on torch's weights have torch's values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bertlab.data.characters import CHARACTERS, PADDING, character_ids
from bertlab.objectives.program import STATISTICS
from bertlab.transfer.features import RecurrentEncoder, Spelling, WordFeatures
from bertlab.transfer.heads import BatchNorm, Blocks

LENGTHS = np.array([6, 4, 1])
DOCUMENTS = (np.arange(6) < LENGTHS[:, None]).astype(np.int32)
INPUTS, HIDDEN = 3, 5
RNGS = {"dropout": jax.random.key(0)}


def array(tensor) -> np.ndarray:
    return tensor.detach().numpy()


def our_params(model, layers: int) -> dict:
    """The parameters of torch's bidirectional GRU or LSTM under our names."""
    is_lstm = isinstance(model, torch.nn.LSTM)
    gates, hidden = (4 if is_lstm else 3), model.hidden_size

    def direction(ending: str) -> dict:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        inputs, states, bias, other = (array(getattr(model, f"{name}{ending}")) for name in names)
        kernels = [kernel.T.reshape(-1, gates, hidden) for kernel in (inputs, states)]
        found = dict(zip(("input_kernel", "recurrent_kernel"), kernels))
        bias, other = bias.reshape(gates, hidden), other.reshape(gates, hidden).copy()
        if is_lstm:
            return {**found, "bias": bias + other}
        found["recurrent_bias"] = other[2].copy()
        other[2] = 0
        return {**found, "bias": bias + other}

    return {
        f"{side}_{layer}": direction(f"_l{layer}{ending}")
        for layer in range(layers)
        for side, ending in (("forward", ""), ("backward", "_reverse"))
    }


def assert_kernels_close(found, theirs):
    for side, leaves in theirs.items():
        for name in ("input_kernel", "recurrent_kernel"):
            np.testing.assert_allclose(found[side][name], leaves[name], rtol=1e-4, atol=1e-5)


def take_gradients(model):
    for parameter in model.parameters():
        parameter.data = parameter.grad


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_encoder_is_torchs_bidirectional_recurrent_network(cell):
    """Two layers over rows of three lengths; torch packs them."""
    torch.manual_seed(0)
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    theirs = kind(INPUTS, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
    x = np.random.default_rng(0).normal(size=(*DOCUMENTS.shape, INPUTS)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    pack = torch.nn.utils.rnn.pack_padded_sequence(leaf, LENGTHS, batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(pack)[0], batch_first=True)
    torch.sin(expected).sum().backward()
    module = RecurrentEncoder(2, HIDDEN, cell=cell)

    def total(params, x):
        states = module.apply({"params": params}, x, [], DOCUMENTS)
        return jnp.sin(states).sum(), states

    run = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    (_, found), (gradients, slope) = run(our_params(theirs, 2), x)
    np.testing.assert_allclose(found, array(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-4, atol=1e-6)
    take_gradients(theirs)
    assert_kernels_close(gradients, our_params(theirs, 2))
    if cell == "gru":
        expected = array(theirs.bias_hh_l0)[-HIDDEN:]
        found = gradients["forward_0"]["recurrent_bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_taglms_speller_has_the_last_states_of_torchs_bidirectional_gru():
    """Words of several lengths; torch packs their characters."""
    torch.manual_seed(0)
    width = Spelling().character_width
    table = torch.nn.Embedding(CHARACTERS, width)
    theirs = torch.nn.GRU(width, HIDDEN, bidirectional=True, batch_first=True)
    characters = character_ids(["Bonn", "a", "Rhône-Alpes", "x" * 60]).astype(np.int64)
    lengths = (characters != PADDING).sum(axis=1)
    pack = torch.nn.utils.rnn.pack_padded_sequence(
        table(torch.tensor(characters)), lengths, batch_first=True, enforce_sorted=False
    )
    expected = theirs(pack)[1].transpose(0, 1).reshape(len(characters), 2 * HIDDEN)
    torch.sin(expected).sum().backward()

    def ours():
        named = our_params(theirs, 1).items()
        return {name.removesuffix("_0"): leaves for name, leaves in named}

    module = WordFeatures(spelling="gru", hidden=HIDDEN)
    view = {"spelling": characters[None].astype(np.int32)}

    def total(params):
        states = module.apply({"params": params}, view)[0]
        return jnp.sin(states).sum(), states

    params = {**ours(), "character_embedding": array(table.weight)}
    (_, found), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    np.testing.assert_allclose(found, array(expected), rtol=1e-5, atol=1e-6)
    slope = gradients["character_embedding"]
    np.testing.assert_allclose(slope, array(table.weight.grad), rtol=1e-4, atol=1e-6)
    take_gradients(theirs)
    assert_kernels_close(gradients, ours())


def test_batch_norm_is_torchs_in_training_and_in_evaluation():
    """Over five batches, the last ones padded: torch reads only what counts."""
    rng, theirs, module = np.random.default_rng(0), torch.nn.BatchNorm1d(4), BatchNorm()
    theirs.weight.data, theirs.bias.data = torch.randn(4), torch.randn(4)
    params = {"scale": array(theirs.weight), "bias": array(theirs.bias)}
    params |= {"running_mean": np.zeros(4, np.float32), "running_variance": np.ones(4, np.float32)}
    for size in (8, 8, 5, 2, 3):
        x, counted = rng.normal(2, 3, size=(8, 4)).astype(np.float32), np.arange(8) < size
        variables = {"params": params}
        found, kept = module.apply(variables, x, counted, rngs=RNGS, mutable=[STATISTICS])
        expected = array(theirs(torch.tensor(x[:size])))
        np.testing.assert_allclose(found[:size], expected, rtol=1e-4, atol=1e-5)
        params |= jax.tree.map(np.asarray, kept[STATISTICS])
    np.testing.assert_allclose(params["running_mean"], array(theirs.running_mean), rtol=1e-5)
    np.testing.assert_allclose(params["running_variance"], array(theirs.running_var), rtol=1e-5)
    theirs.eval()
    found = module.apply({"params": params}, x, np.ones(8, bool))
    np.testing.assert_allclose(found, array(theirs(torch.tensor(x))), rtol=1e-5, atol=1e-6)


def test_ulmfits_classifier_has_torchs_values_and_gradients_in_training():
    torch.manual_seed(0)
    layers = (torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 5), torch.nn.ReLU())
    theirs = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    expected = theirs(leaf)
    torch.sin(expected).sum().backward()

    def ours(value) -> dict:
        found = {}
        for number, (norm, dense) in enumerate(((0, 1), (3, 4))):
            scale, bias = value(theirs[norm].weight), value(theirs[norm].bias)
            found[f"norm_{number}"] = {"scale": scale, "bias": bias}
            kernel, bias = value(theirs[dense].weight).T, value(theirs[dense].bias)
            found[f"dense_{number}"] = {"kernel": kernel, "bias": bias}
        return found

    params = ours(array)
    for number, width in ((0, 6), (1, 5)):
        zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
        params[f"norm_{number}"] |= {"running_mean": zeros, "running_variance": ones}
    module = Blocks(3, 5, (0.0, 0.0), "batch_norm")

    def total(params, x):
        variables = {"params": params}
        counted = np.ones(7, bool)
        logits, _ = module.apply(variables, x, counted, rngs=RNGS, mutable=[STATISTICS])
        return jnp.sin(logits).sum(), logits

    run = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    (_, found), (gradients, slope) = run(params, x)
    np.testing.assert_allclose(found, array(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-3, atol=1e-5)
    for name, leaves in ours(lambda parameter: parameter.grad.numpy()).items():
        for key, right in leaves.items():
            np.testing.assert_allclose(gradients[name][key], right, rtol=1e-3, atol=1e-5)
