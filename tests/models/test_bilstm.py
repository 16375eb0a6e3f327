"""ELMo's residuals, dropout and initial values (bilm-tf's rules)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertlab.models.presets import build_body
from bertlab.objectives import Vocabulary
from tests.recurrent_references import ELMO, body_params, encode, one_document, stream_batches
from tests.references import initial, quick_jit, tiny_program


@pytest.mark.parametrize("skip", [True, False])
def test_residual_adds_the_dropped_input_from_the_second_layer_on(skip):
    """With projections of zero an LSTM puts out 0, so a layer's output is its residual."""
    config = dataclasses.replace(ELMO, dropout=0.25, skip_connections=skip, layers=3, width=40, direction="left-to-right")
    view, params = one_document(np.arange(24).reshape(2, 12)), body_params(config)
    params["forward"]["projection"][1:] = 0
    encoded, _ = encode(config, params, view, key=5)
    _, first, second, third = (np.asarray(x) for x in encoded.forward)
    if not skip:
        assert not second.any() and not third.any()
        return
    kept = second != 0
    assert kept.mean() == pytest.approx(0.75, abs=0.05)
    np.testing.assert_allclose(second[kept], first[kept] / 0.75, rtol=1e-6)
    assert len({tuple(row) for row in kept[0]}) > 1, "each position has a mask of its own"
    both = third != 0
    np.testing.assert_allclose(third[both], first[both] / 0.75**2, rtol=1e-6)
    params["forward"]["projection"][0] = 0
    first = np.asarray(encode(config, params, view, key=5)[0].forward[1])
    assert not first.any(), "the first layer has no residual"


def test_states_are_dropped_once_for_all_logits_and_candidates_are_the_softmaxs_entries():
    config = dataclasses.replace(ELMO, dropout=0.5)
    batch, params = stream_batches(batches=1)[0], body_params(config)

    def run(body):
        encoded, _ = body.encode(batch, False, {})
        among = jnp.array([3, 29])
        asked = [encoded.output("forward")] * 2
        return encoded, [body.predict_tokens(hidden, "forward", of) for hidden, of in zip(asked, (None, among))]

    apply = quick_jit(nn.apply(run, build_body(config)))
    encoded, (logits, some) = apply({"params": params}, rngs={"dropout": jax.random.key(1)})
    np.testing.assert_allclose(some, logits[..., np.array([3, 29])], rtol=1e-5, atol=1e-6)
    for side in ("forward", "backward", "both"):
        plain, dropped = getattr(encoded, side)[-1], encoded.output(side)
        kept = np.asarray(dropped != 0)
        np.testing.assert_allclose(dropped[kept], 2 * plain[kept], rtol=1e-6)
        assert 0.3 < kept.mean() < 0.7
    joined = jnp.concatenate([encoded.output("forward"), encoded.output("backward")], -1)
    np.testing.assert_array_equal(encoded.output("both"), joined)


def test_initial_values(packed_batch):
    program = tiny_program("elmo", "ltr+rtl", Vocabulary(1000, 0, 1, 2, 3, 4), layers=2, width=64, hidden=96)
    params = initial(program, packed_batch())["body"]
    glorot = {
        ("token_embedding",): 1000 + 64,
        ("forward", "input_kernel"): 2 * 64 + 4 * 96,
        ("forward", "recurrent_kernel"): 2 * 64 + 4 * 96,
        ("backward", "projection"): 96 + 64,
    }
    for path, fans in glorot.items():
        value = params
        for key in path:
            value = value[key]
        bound = (6 / fans) ** 0.5
        assert np.abs(value).max() <= bound and np.std(value) == pytest.approx(bound / 3**0.5, rel=0.03), path
    assert float(params["output"]["kernel"].std()) == pytest.approx(64**-0.5, rel=0.02)
    assert not np.any(params["forward"]["bias"]), "the forget gate's 1 is added at run time"
    kernels = [params[side]["input_kernel"][n] for side in ("forward", "backward") for n in (0, 1)]
    assert all((a != b).any() for i, a in enumerate(kernels) for b in kernels[:i]), "each layer is drawn apart"
