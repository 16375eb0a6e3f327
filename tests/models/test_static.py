"""The static body is a lookup: nothing around a token matters."""

import numpy as np

from bertlab.objectives import Vocabulary
from tests.references import initial, packed_batch, quick_jit, random_params, tiny_program


def test_states_are_the_tokens_vectors_logits_their_products_and_pooling_the_mean():
    program, batch = tiny_program("static", "mlm"), packed_batch()
    for name in ("tokens", "documents"):
        batch[name][-1] = 0
    params = random_params(program, batch)["body"]
    table, output = params["token_embedding"], np.float64(params["output"]["kernel"])
    among = np.random.default_rng(2).integers(0, 50, (4, 12, 3))

    def run(body):
        encoded, carry = body.encode(batch)
        logits = body.predict_tokens(encoded.both[0], "both")
        some = body.predict_tokens(encoded.both[0], "both", among)
        return encoded, carry, logits, some, body.pool(encoded, batch)

    apply = quick_jit(lambda params: program.body.apply({"params": params}, method=run))
    encoded, carry, logits, some, pooled = apply(params)
    for side in (encoded.forward, encoded.backward, encoded.both):
        assert len(side) == 1
        np.testing.assert_array_equal(side[0], table[batch["tokens"]])
    assert carry == {} and encoded.dropped is None
    expected = np.float64(encoded.both[0]) @ output.T
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    chosen = np.take_along_axis(expected, among, -1)
    np.testing.assert_allclose(some, chosen, rtol=1e-5, atol=1e-5)
    for row, tokens, documents in zip(pooled, batch["tokens"], batch["documents"]):
        vectors = table[tokens[documents > 0]]
        mean = vectors.mean(0) if len(vectors) else np.zeros(8)
        np.testing.assert_allclose(row, mean, rtol=1e-5, atol=1e-6)


def test_initial_values_are_word2vecs():
    """syn0 uniform in ±.5 / D, syn1neg zeros."""
    program = tiny_program("static", "mlm", Vocabulary(500, 0, 1, 2, 3, 4), width=64)
    params = initial(program, packed_batch())["body"]
    table = params["token_embedding"] * 64
    assert -0.5 <= table.min() < -0.499 and 0.499 < table.max() <= 0.5
    assert abs(table.std() - 12**-0.5) < 2e-3
    assert params["output"]["kernel"].shape == (500, 64) and not params["output"]["kernel"].any()
