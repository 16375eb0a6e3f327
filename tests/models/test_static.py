"""The static body is a lookup: nothing around a token matters."""

import jax.numpy as jnp
import numpy as np

from bertlab.models.base import OutputConfig
from bertlab.models.static import Static, StaticConfig
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program
from tests.references import initial, quick_jit

CONFIG = StaticConfig(8, 50, "bidirectional", OutputConfig(False, False, False), jnp.float32)
PROGRAM = Program(Static(CONFIG), {}, Vocabulary(50, 0, 1, 2, 3, 4))


def body_params(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda: rng.normal(size=(50, 8)).astype(np.float32)
    return {"token_embedding": draw(), "output": {"kernel": draw()}}


def test_every_side_is_the_tokens_own_vector(packed_batch):
    batch, params = packed_batch(), body_params()
    encode = lambda params, view: PROGRAM.body.apply({"params": params}, view, True, {}, method="encode")
    encoded, carry = quick_jit(encode)(params, batch)
    for side in (encoded.forward, encoded.backward, encoded.both):
        assert len(side) == 1
        np.testing.assert_array_equal(side[0], params["token_embedding"][batch["tokens"]])
    assert carry == {} and encoded.dropped is None


def test_logits_are_products_with_the_output_matrix(packed_batch):
    params = body_params()
    hidden = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)
    predict = lambda among: PROGRAM.body.apply({"params": params}, hidden, "both", among, method="predict_tokens")
    expected = np.float64(hidden) @ np.float64(params["output"]["kernel"]).T
    np.testing.assert_allclose(predict(None), expected, rtol=1e-5, atol=1e-5)
    among = np.random.default_rng(2).integers(0, 50, (2, 3, 4))
    np.testing.assert_allclose(predict(among), np.take_along_axis(expected, among, -1), rtol=1e-5, atol=1e-5)


def test_pool_is_the_mean_over_what_is_filled(packed_batch):
    batch, params = packed_batch(), body_params()
    for name in ("tokens", "documents"):
        batch[name][-1] = 0

    def pool(params, view):
        apply = lambda body: body.pool(body.encode(view, True, {})[0], view)
        return PROGRAM.body.apply({"params": params}, method=apply)

    pooled = quick_jit(pool)(params, batch)
    for row, tokens, documents in zip(pooled, batch["tokens"], batch["documents"]):
        vectors = np.float64(params["token_embedding"])[tokens[documents > 0]]
        np.testing.assert_allclose(row, vectors.mean(0) if len(vectors) else np.zeros(8), rtol=1e-5, atol=1e-6)


def test_begins_as_word2vec_does(packed_batch):
    """syn0 uniform in ±.5 / D, syn1neg zeros."""
    from bertlab.objectives.word_vectors import Glove

    config = StaticConfig(64, 500, "bidirectional", OutputConfig(False, False, False), jnp.float32)
    program = Program(Static(config), {"glove": Glove()}, Vocabulary(500, 0, 1, 2, 3, 4))
    batch = packed_batch() | {"counts": np.ones((4, 12), np.float32), "contexts": np.ones((4, 12), np.int32)}
    params = initial(program, batch)["body"]
    table = params["token_embedding"] * 64
    assert -0.5 <= table.min() < -0.499 and 0.499 < table.max() <= 0.5 and abs(table.std() - 12**-0.5) < 2e-3
    assert params["output"]["kernel"].shape == (500, 64) and not params["output"]["kernel"].any()
