"""Code lengths in any order: the mean over all orders, enumerated one by one from the losses of training; and its estimate."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

from bertlab.data.text_rows import TextRow
from bertlab.errors import UserError
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.transfer import likelihood
from tests.references import quick_jit
from tests.transfer.test_likelihood import VOCABULARY, compile_quickly, ids_of, model_of  # noqa: F401 (a fixture)

MASK = VOCABULARY.mask_id
ROWS = ("tokens", "segments", "documents", "positions")


def row_of(ids, hidden) -> dict[str, np.ndarray]:
    """A row with [MASK] at some positions."""
    tokens = np.array([ids], np.int32)
    masked = np.where(np.isin(np.arange(len(ids)), hidden), MASK, tokens).astype(np.int32)
    zeros = np.zeros_like(tokens)
    return {"tokens": masked, "segments": zeros, "documents": zeros + 1, "positions": np.arange(len(ids), dtype=np.int32)[None]}


# What training shows, and asks at one position: ids, the positions shown so far in their order, those hidden, the one asked.


def masked_view(ids, shown, hidden, asked):
    one = lambda value: np.array([[value]])
    labels = {"masked_positions": one(asked), "masked_labels": one(ids[asked]), "masked_weights": one(True)}
    return row_of(ids, hidden) | labels | {"original_tokens": np.array([ids]), "uniforms": np.zeros((1, 1), np.float32)}


def diffusion_view(ids, shown, hidden, asked):
    at = np.arange(len(ids))[None]
    view = row_of(ids, hidden) | {"original_tokens": np.array([ids]), "words": at > 0}
    return view | {"masked": at == asked, "masked_weight": np.ones(1, np.float32)}


def next_token_view(ids, shown, hidden, asked):
    at = np.arange(len(ids))[None]
    targets = np.where(at == asked - 1, ids[asked], -1)
    return row_of(ids, hidden) | {"causal": np.zeros(1, bool), "next_token_targets": targets}


def permuted_view(ids, shown, hidden, asked):
    ranks = np.zeros((1, len(ids)), np.int32)  # special tokens come first, together
    for rank, place in enumerate([*shown, asked, *(place for place in hidden if place != asked)]):
        ranks[0, place] = 1 + rank
    view = PermutationLanguageModel(predict_one_in=1).in_order(row_of(ids, []), ranks, VOCABULARY)
    place = (view["permutation_labels"] == ids[asked]) & (view["order"][:, len(ids) :] == ranks[0, asked] - 1)
    return view | {"permutation_weights": place & view["permutation_weights"]}


CASES = {
    "mlm": (MaskedLanguageModel(), masked_view, "loss"),
    "diffusion": (MaskedDiffusion(time_conditioning=True), diffusion_view, "loss"),
    "masked_next_token": (MaskedNextToken(), next_token_view, "loss"),
    "permutation": (PermutationLanguageModel(predict_one_in=2), permuted_view, "loss"),
    "permutation, context in no order": (PermutationLanguageModel(context_in_order=False), permuted_view, "loss"),
    "electra": (ReplacedTokenDetection(), masked_view, "generator_loss"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_mean_over_all_orders_of_the_losses_of_training(name):
    objective, view_of_one, metric = CASES[name]
    model = model_of(objective)
    text = "a b h" if name.startswith(("permutation", "electra")) else "a b h c"
    ids = ids_of(model, text)
    places, size = range(1, len(ids) - 1), len(ids) - 2
    losses = quick_jit(lambda params, view: model.program.metrics(params, {"own name": view})[f"own name/{metric}"][0])

    @functools.cache
    def nats(shown, asked):
        hidden = [place for place in places if place not in shown]
        shown = () if name.endswith("no order") else shown
        return float(losses(model.params, jax.tree.map(np.asarray, view_of_one(ids, shown, hidden, asked))))

    if name == "permutation, context in no order":
        nats = functools.partial(_unordered, losses, model.params, ids)
    orders = list(itertools.permutations(places))
    keep = (lambda shown: shown) if "permutation" in name else (lambda shown: tuple(sorted(shown)))
    expected = np.mean([sum(nats(keep(order[:k]), order[k]) for k in range(size)) for order in orders])
    (score,) = model.score([text], "any-order")
    assert (score.tokens, score.kind, score.standard_error) == (size, "any-order", 0.0)
    # The frame shows how many pieces there are, so their number is coded too.
    assert score.log_probability == pytest.approx(-expected - math.log(size * (size + 1)), rel=1e-5)
    assert model.bits_per_byte([text], "any-order").value == pytest.approx(-score.log_probability / np.log(2) / len(text))


def _unordered(losses, params, ids, shown, asked) -> float:
    """XLNet's released code: all that is no target is seen by all. Here every hidden piece is one."""
    ranks = np.array([[0 if place in (0, len(ids) - 1, *shown) else 1 for place in range(len(ids))]], np.int32)
    queries = {"tokens": np.full((1, 1), MASK), "order": np.zeros((1, 1)), "shown_at": np.full((1, 1), 9)}
    queries |= {"segments": np.zeros((1, 1)), "documents": np.ones((1, 1)), "positions": np.full((1, 1), asked)}
    content = row_of(ids, []) | {"order": ranks, "shown_at": ranks}
    view = {field: np.concatenate([content[field], of], axis=1).astype(np.int32) for field, of in queries.items()}
    view |= {"permutation_labels": np.array([[ids[asked]]]), "permutation_weights": np.array([[True]])}
    return float(losses(params, view))


@pytest.mark.parametrize("ordered", [False, True])
def test_the_estimate_has_the_bound_as_its_mean_and_states_its_error(ordered, monkeypatch):
    size, orders, rng = 6, 5, np.random.default_rng(0)
    nats, draws = {}, 2000
    key = (lambda shown: tuple(shown)) if ordered else (lambda shown: tuple(sorted(shown)))

    def of_step(shown):
        """The mean over what is hidden, of numbers that depend on what is shown and on how much of it."""
        return nats.setdefault(key(shown), rng.exponential() * (size - len(shown)) + 1)

    everything = likelihood.steps_of([0], size, 10**6, ordered)
    expected = sum(of_step(shown) * weight for _, shown, weight in everything)
    assert {order for order, *_ in everything} == {0}
    monkeypatch.setattr(likelihood, "STEPS", 4)  # does not divide 6
    means, errors = [], []
    for seed in range(draws):
        steps = likelihood.steps_of([seed, 1], size, orders, ordered)
        assert len(steps) == orders * 4
        by_order = np.bincount([order for order, *_ in steps], [of_step(shown) * weight for _, shown, weight in steps])
        means.append(by_order.mean())
        errors.append(by_order.std(ddof=1) / np.sqrt(orders))
    spread = np.std(means)
    assert abs(np.mean(means) - expected) < 4.2 * spread / np.sqrt(draws)
    # The mean of squared errors is the variance; 10 % is three times what 2,000 draws leave.
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.1)


def test_random_orders_come_near_all_orders_and_depend_on_the_text_alone():
    model, text = model_of("mlm"), "g a b h e d c f"
    exact, (estimate,) = model.score([text], "any-order", 32)[0], model.score([text], "any-order", 24)
    assert exact.standard_error == 0 < estimate.standard_error
    assert abs(estimate.log_probability - exact.log_probability) < 4.2 * estimate.standard_error
    among = model.score(["a b c", text, "abc d"], "any-order", 24)[1]
    assert among.log_probability == pytest.approx(estimate.log_probability, rel=1e-5)
    bits = model.bits_per_byte([text, text], "any-order", 24)
    expected = math.sqrt(2) * estimate.standard_error / math.log(2) / (2 * len(text))
    assert bits.order_error == pytest.approx(expected, rel=1e-4)
    assert model.bits_per_byte([text]).order_error is None


def test_the_standard_error_is_that_of_the_mean_of_the_orders():
    """One order more changes the mean; so each order's own sum follows from the means of the first 1, 2, … orders."""
    model = model_of("mlm")
    ids, places = ids_of(model, "g a b h e d c f"), np.arange(1, 9)
    row = TextRow(np.array(ids, np.int32), (), places, places, None)
    scores = [model.scorer.score([row], "any-order", orders)[0] for orders in range(1, 7)]
    sums = np.diff([0.0, *(number * score.log_probability for number, score in enumerate(scores, 1))])
    spread = np.sqrt(np.sum((sums - sums.mean()) ** 2) / 5)
    assert scores[-1].standard_error == pytest.approx(spread / np.sqrt(6), rel=1e-3)
    assert spread > 0.01
    with pytest.raises(UserError, match="orders=1 must be 2 or more"):
        model.score(["a b h"], "any-order", orders=1)


def test_the_probabilities_of_all_texts_of_a_length_sum_to_no_more_than_one():
    model = model_of("mlm")
    scorer = likelihood.Scorer(model.inference, model.tokenizer, 20, model.learned)
    places = np.arange(1, 3)
    rows = [
        TextRow(np.array([2, *ids, 3], np.int32), (), places, places, None)
        for ids in itertools.product(range(VOCABULARY.size), repeat=2)
    ]
    # Without what the number of pieces costs.
    total = sum(math.exp(score.log_probability) * 2 * 3 for score in scorer.score(rows, "any-order"))
    assert 0.5 < total <= 1 + 1e-5


def test_without_a_frame_no_end_is_coded_and_a_first_token_that_nothing_predicts_is_free():
    model, other = model_of("mlm"), model_of(MaskedNextToken())
    for of in (model, other):
        of.tokenizer.prefix_ids = of.tokenizer.suffix_ids = ()
    assert [of.score(["a b h"], "any-order")[0].tokens for of in (model, other)] == [3, 2]
    (free,) = other.score(["a"], "any-order")
    assert (free.tokens, free.log_probability) == (0, 0.0)


@pytest.mark.parametrize(
    ("objective", "exact"),
    [
        (ReplacedTokenDetection(), True),
        (PermutationLanguageModel(context_in_order=False), True),
        (PermutationLanguageModel(), False),  # four pieces have 41 beginnings of orders, more than 4 orders of 4 steps
    ],
)
def test_sets_are_enough_if_the_order_of_what_is_shown_does_not_count(objective, exact):
    """The 15 sets of four pieces are no more than random orders would be."""
    (score,) = model_of(objective).score(["a b h c"], "any-order")
    assert (score.standard_error == 0) == exact


def test_the_part_for_the_number_of_pieces_stands_beside_the_bound():
    model, text = model_of(MaskedLanguageModel()), "a b h"
    whole, without = (model.bits_per_byte([text], "any-order", closing=closing) for closing in (True, False))
    assert whole.closing == pytest.approx(math.log2(3 * 4) / len(text)) and without.closing == 0
    assert whole.value - whole.closing == pytest.approx(without.value, rel=1e-6)
