"""The variational code against exact evidence by quadrature and closed forms; what it compresses and what not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from bertlab.errors import UserError
from bertlab.transfer.variational_code import label_nats, variational_code, weight_nats


def test_the_weights_cost_their_divergence_from_the_prior():
    """By quadrature, weight by weight; none if they are as before."""
    means, logs, deviation = np.array([[0.3, -1.0], [0.0, 2.0]]), np.log([[0.5, 0.1], [1.0, 0.7]]), np.array([[0.4], [1.0]])
    normal, expected = scipy.stats.norm, 0.0
    for mean, log, prior in zip(means.ravel(), logs.ravel(), np.repeat(deviation, 2)):
        w, width = np.linspace(mean - 12 * np.exp(log), mean + 12 * np.exp(log), 20_001, retstep=True)
        log_q = normal.logpdf(w, mean, np.exp(log))
        expected += (np.exp(log_q) * (log_q - normal.logpdf(w, 0, prior))).sum() * width
    assert float(weight_nats((means, logs), deviation)) == pytest.approx(expected, rel=1e-5)
    assert float(weight_nats((np.zeros((2, 2)), np.log(np.tile(deviation, (1, 2)))), deviation)) == pytest.approx(0, abs=1e-6)


def test_the_labels_cost_what_they_cost_with_weights_that_are_drawn():
    """Against NumPy, which draws the weights themselves, where the code draws logits."""
    rng = np.random.default_rng(0)
    means, logs, x = rng.normal(size=(3, 4)), np.log(rng.uniform(0.2, 1, (3, 4))), rng.normal(size=(1, 3))
    logits = x @ (means + np.exp(logs) * rng.normal(size=(20_000, 3, 4)))
    log_p = logits[:, 0] - np.log(np.exp(logits[:, 0]).sum(-1, keepdims=True))
    many = jnp.tile(jnp.asarray(x, jnp.float32), (20_000, 1))
    for label in range(4):
        nats = label_nats((means, logs), many, jnp.full(20_000, label), jax.random.key(label))
        error = np.hypot(log_p[:, label].std(), np.std(nats)) / np.sqrt(20_000)
        assert abs(float(nats.mean()) + log_p[:, label].mean()) < 4 * error


def test_the_code_is_little_longer_than_the_evidence_and_not_shorter():
    """One feature and two classes: −log₂ of p(labels | states) by quadrature over the difference of both classes' weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    labels = (rng.random(300) < 1 / (1 + np.exp(-2 * x))).astype(int)
    states, signs = (x - x.mean()) / x.std(), 2 * labels - 1
    slopes, offsets = np.meshgrid(np.linspace(-1, 5, 241), np.linspace(-2, 2, 161), indexing="ij")
    log_p = -np.logaddexp(0, -signs * (slopes[..., None] * states + offsets[..., None])).sum(-1)
    prior = scipy.stats.norm(0, np.sqrt(2))
    log_p += prior.logpdf(slopes) + prior.logpdf(offsets)
    evidence = -(scipy.special.logsumexp(log_p) + np.log(6 / 240 * 4 / 160)) / np.log(2)
    found = variational_code(x[:, None], labels, choices=(1.0,))
    # Weights of two classes that are independent in q cannot say that only their difference counts. Each pair then costs
    # ½ log₂ (1 + h)² / (1 + 2h) more, with h the information of the labels, Σ p (1 − p) x²: here 2 bits or so.
    assert evidence < found.bits + 0.5 and found.bits < evidence + 6
    assert found.uniform == 300 and 0 < found.weights < found.bits < 300


def test_a_planted_label_is_compressed_and_a_random_one_costs_its_entropy():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 5))
    planted = np.array(["a", "b", "c"])[np.argmax(features[:, :3], 1)]
    found, chance = variational_code(features, planted), variational_code(features, rng.permutation(planted))
    assert found.compression > 3 and found.c > chance.c and found.weights > chance.weights
    assert 0.9 < chance.compression < 1.02
    # A rare class of two: the entropy and what the biases cost.
    rare = np.arange(600) % 10 == 0
    entropy = 600 * -(0.1 * np.log2(0.1) + 0.9 * np.log2(0.9))
    assert entropy < variational_code(rng.normal(size=(600, 5)), rare).bits < entropy + 25
    with pytest.raises(UserError, match=r"a code needs at least two classes, and the words have \['a'\]"):
        variational_code(np.zeros((3, 1)), ["a"] * 3)
