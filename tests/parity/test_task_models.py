"""Task models on torch's weights have torch's values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bertlab.transfer.task_models import RecurrentEncoder

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
