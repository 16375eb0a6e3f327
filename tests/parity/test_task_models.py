"""A tagger's biLSTM on torch's weights has torch's values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bertlab.transfer.features import RecurrentEncoder

LENGTHS = np.array([6, 4, 1])
DOCUMENTS = (np.arange(6) < LENGTHS[:, None]).astype(np.int32)
INPUTS, HIDDEN, LAYERS = 3, 5, 2


def array(tensor) -> np.ndarray:
    return tensor.detach().numpy()


def our_params(model) -> dict:
    """The parameters of torch's bidirectional LSTM under our names."""

    def direction(ending: str) -> dict:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        inputs, states, bias, other = (array(getattr(model, f"{name}{ending}")) for name in names)
        kernels = [kernel.T.reshape(-1, 4, HIDDEN) for kernel in (inputs, states)]
        found = dict(zip(("input_kernel", "recurrent_kernel"), kernels))
        return {**found, "bias": (bias + other).reshape(4, HIDDEN)}

    return {
        f"{side}_{layer}": direction(f"_l{layer}{ending}")
        for layer in range(LAYERS)
        for side, ending in (("forward", ""), ("backward", "_reverse"))
    }


def test_an_encoder_is_torchs_bidirectional_lstm():
    """Two layers over rows of three lengths; torch packs them."""
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(INPUTS, HIDDEN, LAYERS, bidirectional=True, batch_first=True)
    x = np.random.default_rng(0).normal(size=(*DOCUMENTS.shape, INPUTS)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    pack = torch.nn.utils.rnn.pack_padded_sequence(leaf, LENGTHS, batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(pack)[0], batch_first=True)
    torch.sin(expected).sum().backward()
    module = RecurrentEncoder(LAYERS, HIDDEN)

    def total(params, x):
        states = module.apply({"params": params}, x, [], DOCUMENTS)
        return jnp.sin(states).sum(), states

    run = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))
    (_, found), (gradients, slope) = run(our_params(theirs), x)
    np.testing.assert_allclose(found, array(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-4, atol=1e-6)
    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    for side, leaves in our_params(theirs).items():
        for name in ("input_kernel", "recurrent_kernel"):
            np.testing.assert_allclose(gradients[side][name], leaves[name], rtol=1e-4, atol=1e-5)
