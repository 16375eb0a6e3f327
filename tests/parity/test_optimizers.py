"""The optimisers equal torch.optim, step for step, where its rules are the same."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch

from bertlab.config.defaults import base_config
from bertlab.train.optimizers import build_optimizer, evaluation_params, observe

RNG = np.random.default_rng(0)
SHAPES = {"kernel": (4, 3), "table": (6, 2)}
PARAMS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
PROGRAM = SimpleNamespace(init=lambda key, batch: PARAMS, body=SimpleNamespace(shape=None))
GRADS = [
    {
        name: (10 ** RNG.uniform(-1, 1) * RNG.normal(size=shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    for _ in range(30)
]
ADAM = dict(bias_correction="moments", weight_decay=0.1, epsilon=1e-8)
CASES = {
    "AdamW": (
        dict(**ADAM, clip_norm=0.0),
        lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
        0.0,
    ),
    "Adam with L2 and clipping": (
        dict(**ADAM, clip_norm=0.5, coupled_decay=True, b1=0.7, b2=0.99),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.7, 0.99), eps=1e-8, weight_decay=0.1),
        0.5,
    ),
    "SGD with L2 and clipping": (
        dict(name="sgd", weight_decay=0.1, coupled_decay=True, clip_norm=0.25),
        lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
        0.25,
    ),
    "Adagrad": (
        dict(name="adagrad", initial_accumulator=1.0, weight_decay=0.0, clip_norm=10.0),
        lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=1.0, eps=0.0),
        10.0,
    ),
}


def torch_steps(make, clip_norm, grads, params=PARAMS, scales=None):
    """(tensors, optimiser) after each step; `scales` multiply the rate, one a step."""
    tensors = [torch.nn.Parameter(torch.tensor(value)) for value in params.values()]
    optimizer = make(tensors)
    rate = optimizer.param_groups[0]["lr"]
    for grad, scale in zip(grads, scales or itertools.repeat(1.0)):
        optimizer.param_groups[0]["lr"] = rate * scale
        for tensor, value in zip(tensors, grad.values()):
            tensor.grad = torch.tensor(value)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(tensors, clip_norm)
        optimizer.step()
        yield tensors, optimizer


def built(**changes):
    optimizer = base_config().optimizer
    optimizer.update(dict(decay="constant", warmup_steps=0, learning_rate=0.05) | changes)
    return build_optimizer(optimizer, 100, PROGRAM, {})


@pytest.mark.parametrize("case", CASES)
def test_every_step_equals_torchs(case):
    changes, make, clip_norm = CASES[case]
    optimizer = built(**changes)
    update, state, params = jax.jit(optimizer.update), optimizer.init(PARAMS), PARAMS
    for step, (grad, (theirs, _)) in enumerate(zip(GRADS, torch_steps(make, clip_norm, GRADS))):
        updates, state = update(grad, state, params)
        params = jax.tree.map(np.add, params, updates)
        for name, tensor in zip(PARAMS, theirs):
            # torch adds 1e-6 to the norm by which it clips.
            right = tensor.detach().numpy()
            np.testing.assert_allclose(
                params[name], right, rtol=2e-5, atol=2e-6, err_msg=f"{step} {name}"
            )


@pytest.mark.parametrize("scales", [(1.0,), (1.0, 0.5, 1.07, 0.9)], ids=["constant", "varied"])
def test_averaged_sgd_equals_torchs_asgd(scales):
    """As salesforce/awd-lstm-lm runs it: the rate is set for each batch and put back after it."""
    scales = [scales[i % len(scales)] for i in range(len(GRADS))]
    settings = dict(name="sgd", weight_decay=0.1, coupled_decay=True, clip_norm=0.25)
    optimizer = built(**settings, average_after=1)
    update, state, params = jax.jit(optimizer.update), optimizer.init(PARAMS), PARAMS
    for grad, scale in zip(GRADS[:5], scales):
        updates, state = update(grad, state, params, rate_scale=scale)
        params = jax.tree.map(np.add, params, updates)
    for value in (1.0, 2.0, 3.0):
        state = observe(state, value)

    def make(tensors):
        return torch.optim.ASGD(tensors, lr=0.05, t0=0, lambd=0.0, weight_decay=0.1)

    begin = jax.tree.map(np.asarray, params)
    theirs = torch_steps(make, 0.25, GRADS[5:], begin, scales[5:])
    for grad, scale, (tensors, torchs) in zip(GRADS[5:], scales[5:], theirs):
        updates, state = update(grad, state, params, rate_scale=scale)
        params = jax.tree.map(np.add, params, updates)
        averaged = evaluation_params(state, params)
        for name, tensor in zip(PARAMS, tensors):
            average = torchs.state[tensor]["ax"]
            for ours, right in ((params[name], tensor.detach()), (averaged[name], average)):
                np.testing.assert_allclose(ours, right.numpy(), rtol=2e-5, atol=2e-6)
