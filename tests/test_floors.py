"""Floors against enumeration: topics, states, texts, choices and replacements of a tiny language, one by one."""

import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab import floors
from bertlab.cli import main
from bertlab.config import base_config
from bertlab.data.synthetic import Language, sample_document
from bertlab.data.synthetic import language as make_language
from bertlab.objectives import Corruption, NoFloor, Vocabulary
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import TASKS, ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence, SentenceOrder
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program
from bertlab.objectives.span_boundary import SpanBoundary
from bertlab.objectives.span_corruption import SpanCorruption
from bertlab.objectives.word_vectors import SkipGram
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import save_params
from bertlab.train.state import build_eval_step
from tests.conftest import ROOT
from tests.references import quick_jit, random_params

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(8, PAD, UNK, CLS, SEP, MASK, counts=(9, 1, 9, 9, 9, 5, 1, 3))
DRAWS = np.array([0, 0.1, 0, 0, 0, 0.5, 0.1, 0.3])  # of its words
IDS = np.array([6, 7, 5])  # of the three words
WORDS = range(5, 8)

# Two topics, two states, three words; nothing is symmetrical except the start, which is stationary.
LANGUAGE = Language(
    topic_prior=np.array([0.35, 0.65]),
    initial=np.array([[0.75, 0.25], [0.55 / 1.35, 0.8 / 1.35]]),
    transition=np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.55, 0.45]]]),
    emission=np.array([[0.7, 0.2, 0.1], [0.15, 0.25, 0.6]]),
    sentence_lengths=np.ones(1),
    document_lengths=np.ones(1),
)
CHAIN = floors.chain_of(LANGUAGE, VOCABULARY.size, IDS)

# Priors of the relations of a row's two parts, and where the first ends.
RELATIONS = {
    "alone": ({"follows": 1.0}, None),
    "next": ({"follows": 0.4, "random": 0.6}, 2),
    "order": ({"follows": 0.3, "swapped": 0.7}, 2),
}


def test_unknown_words_share_an_id():
    chain = floors.chain_of(LANGUAGE, VOCABULARY.size, np.array([UNK, 5, UNK]))
    np.testing.assert_allclose(chain.emission[:, [UNK, 5]], [[0.8, 0.2], [0.75, 0.25]])


@functools.cache
def stretch_probability(text: tuple[int, ...]) -> float:
    """P(words of one stretch of a document), by every topic and path of states."""
    words = [list(IDS).index(token) for token in text]
    total = 0.0
    for topic, path in itertools.product(range(2), itertools.product(range(2), repeat=len(words))):
        p = LANGUAGE.topic_prior[topic]
        for i, (state, word) in enumerate(zip(path, words)):
            p *= LANGUAGE.initial[topic, state] if i == 0 else LANGUAGE.transition[topic, path[i - 1], state]
            p *= LANGUAGE.emission[state, word]
        total += p
    return total


class World:
    """Every text [n, size] of a row's words, and the probability [n] of each with each relation of its parts."""

    def __init__(self, kind: str, size: int = 4):
        relations, cut = RELATIONS[kind]
        texts = list(itertools.product(WORDS, repeat=size))
        ways = {
            "follows": stretch_probability,
            "random": lambda text: stretch_probability(text[:cut]) * stretch_probability(text[cut:]),
            "swapped": lambda text: stretch_probability(text[cut:] + text[:cut]),
        }
        self.texts = np.array(texts)
        self.joint = {name: prior * np.array([ways[name](text) for text in texts]) for name, prior in relations.items()}
        self.all = sum(self.joint.values())
        assert abs(self.all.sum() - 1) < 1e-12

    def nats(self, seen, right, relation: str | None = None) -> float:
        """−log P(right | seen), both probabilities given each text [n]; or of a relation."""
        return -np.log(((self.joint[relation] if relation else self.all) * seen * right).sum() / (self.all * seen).sum())

    def agrees(self, text, places):
        """Where texts have the same words as one at some places."""
        return (self.texts[:, places] == text[places]).all(axis=1)


world_of = functools.cache(World)


def rows_of(texts, cut: int | None = None, padding: int = 1) -> dict[str, np.ndarray]:
    """[CLS] words [SEP], or [CLS] words [SEP] words [SEP], and some padding."""
    rows = []
    for text in texts:
        parts = [text] if cut is None else [text[:cut], text[cut:]]
        tokens, segments = [CLS], [0]
        for number, part in enumerate(parts):
            tokens += [*part, SEP]
            segments += [number] * (len(part) + 1)
        rows.append([tokens + [PAD] * padding, segments + [0] * padding, [1] * len(tokens) + [0] * padding])
    tokens, segments, documents = (np.array(x, np.int32) for x in zip(*rows))
    return {"tokens": tokens, "segments": segments, "documents": documents}


def random_texts(rows: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(WORDS, size=(rows, size))


def oracle_of(batch, kind: str = "alone", view=None, shown_by=None, chain=CHAIN, vocabulary=VOCABULARY) -> floors.ExactOracle:
    return floors.ExactOracle(chain, batch, vocabulary, RELATIONS[kind][0], view or batch, shown_by)


def floor_of(objective, view, batch, kind: str = "next", shown_by=None):
    return floors.floor(objective, oracle_of(batch, kind, view, shown_by))


def layout(kind: str, texts):
    """The rows, and the position of each word."""
    batch = rows_of(texts, RELATIONS[kind][1])
    return batch, np.flatnonzero(floors.words_of(batch, VOCABULARY)[0])


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("backward", [False, True])
def test_directions(kind, backward):
    texts, world = random_texts(6, 4), world_of(kind)
    batch, places = layout(kind, texts)
    for text, row in zip(texts, oracle_of(batch, kind).chain_rule(backward)):
        for i in range(4):
            context = range(i + 1, 4) if backward else range(i)
            expected = world.nats(world.agrees(text, context), world.agrees(text, [i]))
            np.testing.assert_allclose(row[places[i]], expected, rtol=1e-10)
        assert np.count_nonzero(row) == 4, "special tokens are known"


def test_documents_of_a_row_are_independent():
    texts = random_texts(3, 5)
    batch = rows_of(texts, cut=2, padding=0)
    batch["documents"] += batch["segments"]
    for text, row in zip(texts, oracle_of(batch).chain_rule()):
        expected = -np.log(stretch_probability(tuple(text[:2]))) - np.log(stretch_probability(tuple(text[2:])))
        np.testing.assert_allclose(row.sum(), expected, rtol=1e-10)


@pytest.mark.parametrize("kind", RELATIONS)
def test_visible_sets(kind, monkeypatch):
    monkeypatch.setattr(floors.oracle, "_ROWS", 5)
    texts, world = random_texts(4, 4, seed=1), world_of(kind)
    batch, places = layout(kind, texts)
    rank = np.random.default_rng(2).permuted(np.tile(np.arange(4), (4, 1)), axis=1)
    visible = np.zeros((4, 4, batch["tokens"].shape[1]), bool)
    visible[:, :, places] = rank[:, None, :] < rank[:, :, None]
    nats = oracle_of(batch, kind).visible(np.tile(places, (4, 1)), visible)
    for r, i in itertools.product(range(4), range(4)):
        seen = world.agrees(texts[r], np.flatnonzero(rank[r] < rank[r, i]))
        np.testing.assert_allclose(nats[r, i], world.nats(seen, world.agrees(texts[r], [i])), rtol=1e-10)


def choices(size: int, count: int | None, rate: float):
    """(chosen positions, probability) of an exact count, or of independent choices."""
    for number in range(size + 1) if count is None else [count]:
        every = list(itertools.combinations(range(size), number))
        for chosen in every:
            yield chosen, (1 / len(every) if count is not None else rate**number * (1 - rate) ** (size - number))


@dataclasses.dataclass
class Case:
    """Some rows, corrupted: each `texts[r]` became `shown[r]`, chosen at `chosen[r]`; drawn here if not given."""

    kind: str
    count: int | None
    token: Callable  # (shown, original) -> probability, for chosen positions
    rate: float = 0.4
    texts: np.ndarray | None = None
    shown: np.ndarray | None = None
    chosen: list | None = None

    def __post_init__(self):
        self.texts = random_texts(5, 4, seed=4) if self.texts is None else self.texts
        self.rows, self.size = self.texts.shape
        self.batch, self.places = layout(self.kind, self.texts)
        self.world = world_of(self.kind)
        self.choices = list(choices(self.size, self.count, self.rate))
        if self.shown is None:
            self._corrupt(np.random.default_rng(3))
        self.view = self.batch["tokens"].copy()
        self.view[:, self.places] = self.shown
        self.counts = None if self.count is None else np.full(self.rows, self.count)

    def _corrupt(self, rng):
        self.shown, self.chosen = self.texts.copy(), []
        for r, text in enumerate(self.texts):
            self.chosen.append(self.choices[rng.integers(len(self.choices))][0])
            for i in self.chosen[r]:
                p = np.array([self.token(v, text[i]) for v in range(VOCABULARY.size)])
                self.shown[r, i] = rng.choice(VOCABULARY.size, p=p)

    def probability(self, r: int, at: int | None = None, texts=None, within=slice(None)) -> np.ndarray:
        """P(row shown within a slice | text) of every text, with `at` only of choices that include this position."""
        texts, shown = self.world.texts if texts is None else texts, self.shown[r, within]
        drawn, same, total = self.token(shown, texts), shown == texts, 0.0
        for chosen, p in self.choices:
            if at is None or at in chosen:
                total = total + p * np.where(np.isin(np.arange(self.size), chosen)[within], drawn, same).prod(axis=1)
        return total

    def check(self, nats, known: bool, ask: str = "word") -> None:
        """−log p of the truth by enumeration: of the word, or of whether the word shown is the original."""
        for r, (text, shown) in enumerate(zip(self.texts, self.shown)):
            for i in self.chosen[r] if known else range(self.size):
                right = self.world.agrees(text, [i])
                if ask == "original":
                    right = (self.world.texts[:, i] == shown[i]) == (text[i] == shown[i])
                expected = self.world.nats(self.probability(r, i if known else None), right)
                np.testing.assert_allclose(nats[r, self.places[i]], expected, rtol=1e-10, atol=1e-14)
        assert not np.delete(nats, self.places, axis=1).any()

    def relation_nats(self, r: int, truth: str) -> float:
        return self.world.nats(self.probability(r), 1.0, truth)


def masking(mask_share, random_share, count=None, rate=0.0) -> Corruption:
    """BERT's."""
    draws = np.full(VOCABULARY.size, random_share / VOCABULARY.size)
    draws[MASK] += mask_share
    return Corruption(draws, 1 - mask_share - random_share, count, rate)


def bert(mask_share, random_share):
    """P(shown | original, chosen) of BERT's channel."""

    def token(shown, original):
        p = random_share / VOCABULARY.size + mask_share * (shown == MASK)
        return p + (1 - mask_share - random_share) * (shown == original)

    return token


def by_counts(shown, original):
    """P(shown | original, chosen) where words are replaced by draws."""
    return DRAWS[shown] + 0.0 * original


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("count", [3, None])
@pytest.mark.parametrize("shares", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.3, 0.0)])
def test_masked(kind, count, shares):
    case = Case(kind, count, bert(*shares))
    channel = masking(*shares, case.counts, case.rate)
    case.check(oracle_of(case.batch, kind).corrupted(case.view, channel), known=True)


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("count", [0, 1, 2, None])
@pytest.mark.parametrize(("ask", "known"), [*itertools.product(("word", "original"), (True, False))])
def test_replaced(kind, count, ask, known):
    """ELECTRA's four tasks: which word, or whether it is the original, at the chosen positions or at all."""
    case = Case(kind, count, by_counts)
    channel = Corruption(DRAWS, count=case.counts, rate=case.rate)
    case.check(oracle_of(case.batch, kind).corrupted(case.view, channel, ask, known), known, ask)


@pytest.mark.parametrize("known", [True, False])
def test_documents_of_a_row_share_its_count_and_see_themselves(known):
    """Not even the tokens of the other document are seen, so it may hold any number of the row's chosen words."""
    case, world, checked = Case("next", 2, bert(0.5, 0.3) if known else by_counts), world_of("alone", 2), 0
    batch = case.batch | {"documents": case.batch["documents"] + (case.batch["segments"] == 1)}
    channel = masking(0.5, 0.3, case.counts) if known else Corruption(DRAWS, count=case.counts)
    nats = oracle_of(batch).corrupted(case.view, channel, "word", known)
    for r, first in itertools.product(range(case.rows), (0, 2)):
        own = slice(first, first + 2)
        for i in set(case.chosen[r]) & {first, first + 1} if known else (first, first + 1):
            seen = case.probability(r, i if known else None, world.texts, own)
            expected = world.nats(seen, world.agrees(case.texts[r, own], [i - first]))
            np.testing.assert_allclose(nats[r, case.places[i]], expected, rtol=1e-10, atol=1e-14)
            checked += 1
    assert checked == (10 if known else 20)


@pytest.mark.parametrize(("kind", "count"), [("next", 2), ("next", "clean"), ("order", None)])
def test_relations(kind, count):
    """A mask that the segments share, or none."""
    masked = MaskedLanguageModel(mask_share=0.5, random_share=0.3, rate=0.4, exact=count is not None)
    case = Case(kind, 0 if count == "clean" else count, bert(0.5, 0.3))
    view = {"tokens": case.view, "masked_weights": np.tile(np.arange(4) < 2, (case.rows, 1))}
    oracle = oracle_of(case.batch, kind, view, None if count == "clean" else ("mlm", masked))
    other = list(RELATIONS[kind][0])[1]
    for label, truth in enumerate(("follows", other)):
        nats = oracle.relation(other, np.full(case.rows, label), case.view)
        np.testing.assert_allclose(nats, [case.relation_nats(r, truth) for r in range(case.rows)], rtol=1e-10)


# The objectives' own views.

SHARED = {"mask_share": 0.4, "random_share": 0.4}
OBJECTIVES = {
    "mlm": MaskedLanguageModel(rate=0.3, **SHARED),
    "mlm of all": MaskedLanguageModel(rate=0.3, predict="all", **SHARED),
    "bernoulli": MaskedLanguageModel(rate=0.4, exact=False, **SHARED),
    "masked_next_token": MaskedNextToken(rate=0.3, **SHARED),
    "permutation": PermutationLanguageModel(predict_one_in=2),
    "context in no order": PermutationLanguageModel(predict_one_in=2, context_in_order=False),
    "prefix": PrefixLanguageModel(),
    "span_corruption": SpanCorruption(rate=0.4, mean_span=1.0),
    "electra": ReplacedTokenDetection(rate=0.3, generator="unigram"),
}


@pytest.fixture(scope="module")
def asked():
    """(texts, batch, views): rows of pairs, and one that is all padding."""
    texts = random_texts(8, 4, seed=7)
    batch = rows_of(texts, cut=2)
    batch = {name: np.concatenate([field, np.zeros_like(field[:1])]) for name, field in batch.items()}
    batch["positions"] = np.where(batch["documents"] > 0, np.arange(batch["tokens"].shape[1], dtype=np.int32), 0)
    batch["pair_label"] = np.array([0, 1, 1, 0, 0, 1, 0, 1, -1], np.int32)
    batch["example_id"] = np.zeros((9, 2), np.int32)
    views = quick_jit(Program(None, OBJECTIVES, VOCABULARY).views)(batch, jax.random.key(0))
    return texts, batch, jax.device_get(views)


def corrupted_case(view, texts, count, token, kind: str = "next") -> Case:
    """What an objective's view made of the texts; 0.4 is the rate of the one without an exact count."""
    places = layout("next", texts)[1]
    positions, used = view["masked_positions"], view["masked_weights"]
    chosen = [tuple(np.flatnonzero(np.isin(places, at[is_used]))) for at, is_used in zip(positions, used)][: len(texts)]
    return Case(kind, count, token, texts=texts, shown=view["tokens"][: len(texts), places], chosen=chosen)


def by_token(nats, positions, weights, length: int):
    """Numbers at slots, put where their tokens are."""
    placed = np.zeros((len(nats), length))
    for r, slots in enumerate(positions):
        placed[r, slots[weights[r] > 0]] = nats[r, weights[r] > 0]
    return placed


@pytest.mark.parametrize("name", ["mlm", "bernoulli"])
def test_mlm_on_its_own_view(name, asked):
    texts, batch, views = asked
    objective, view = OBJECTIVES[name], views[name]
    nats, weights = floor_of(objective, view, batch)
    np.testing.assert_array_equal(weights, view["masked_weights"])
    case = corrupted_case(view, texts, 2 if objective.exact else None, bert(0.4, 0.4))
    placed = by_token(nats, view["masked_positions"], weights, batch["tokens"].shape[1])
    assert not placed[-1].any() and (case.shown != case.texts).any()
    case.check(placed[:-1], known=True)


def test_mlm_of_all_words_on_its_own_view(asked):
    """The model does not know which words were chosen, so a word that is shown may be a random one."""
    texts, batch, views = asked
    nats, weights = floor_of(OBJECTIVES["mlm of all"], views["mlm of all"], batch)
    np.testing.assert_array_equal(weights > 0, floors.words_of(batch, VOCABULARY))
    assert weights.sum() == 8 * 4
    corrupted_case(views["mlm of all"], texts, 2, bert(0.4, 0.4)).check(nats[:-1], known=False)


def test_mlm_of_all_words_with_only_masks_has_the_floor_of_the_masked_ones(asked):
    _, batch, views = asked
    settings = dict(rate=0.3, mask_share=1.0, random_share=0.0)
    masked, places = views["mlm"]["masked_positions"], views["mlm"]["masked_weights"]
    view = dict(views["mlm"])
    view["tokens"] = np.where(by_token(places, masked, places, batch["tokens"].shape[1]) > 0, MASK, batch["tokens"])
    of_all, _ = floor_of(MaskedLanguageModel(predict="all", **settings), view, batch)
    of_chosen, weights = floor_of(MaskedLanguageModel(**settings), view, batch)
    np.testing.assert_allclose(of_all, by_token(of_chosen, masked, weights, batch["tokens"].shape[1]), atol=1e-12)


@pytest.mark.parametrize(
    ("objective", "kind", "beside", "token"),
    [(NextSentence(), "next", "mlm", bert(0.4, 0.4)), (SentenceOrder(), "order", "electra", by_counts)],
)
def test_pairs_on_the_view_of_another(objective, kind, beside, token, asked):
    texts, batch, views = asked
    batch = batch | {"order_label": batch["pair_label"]}
    nats, weights = floor_of(objective, views[beside], batch, kind, (beside, OBJECTIVES[beside]))
    np.testing.assert_array_equal(weights[:, 0], [1] * 8 + [0])
    case = corrupted_case(views[beside], texts, 2, token, kind)
    relations = list(RELATIONS[kind][0])
    expected = [case.relation_nats(r, relations[label]) for r, label in enumerate(batch["pair_label"][:8])]
    np.testing.assert_allclose(nats[:8, 0], expected, rtol=1e-10)


@pytest.mark.parametrize("task", TASKS)
def test_electra_on_its_own_view(task, asked):
    texts, batch, views = asked
    view, known = views["electra"], task in ("discriminate_masked", "replace_mlm")
    nats, weights = floor_of(dataclasses.replace(OBJECTIVES["electra"], task=task), view, batch)
    np.testing.assert_array_equal(weights, view["masked_weights"] if known else batch["documents"] > 0)
    if known:
        nats = by_token(nats, view["masked_positions"], weights, batch["tokens"].shape[1])
    case = corrupted_case(view, texts, 2, by_counts)
    case.check(nats[:-1], known, "original" if task.startswith("discriminate") else "word")


def test_orders_on_their_own_views(asked):
    texts, batch, views = asked
    places, world = np.flatnonzero(floors.words_of(batch, VOCABULARY)[0]), world_of("next")
    forward, real = oracle_of(batch, "next").chain_rule(), batch["documents"] > 0
    for objective, backward in ((LeftToRight(), False), (RightToLeft(), True)):
        nats, weights = floor_of(objective, batch, batch)
        np.testing.assert_allclose(nats, oracle_of(batch, "next").chain_rule(backward))
        assert not weights[~real].any() and weights.sum() == 8 * 6, "every token but the first, or the last"
        assert (weights[:8, 6 if backward else 0] == 0).all()

    view = views["prefix"]
    nats, weights = floor_of(OBJECTIVES["prefix"], view, batch)
    assert weights.sum() == (view["prefix_targets"] >= 0).sum() < 8 * 6
    np.testing.assert_allclose(nats, np.where(weights, forward, 0))
    for row, asked_row, tokens in zip(view["prefix_targets"], weights, batch["tokens"]):
        np.testing.assert_array_equal(row[row >= 0], tokens[asked_row > 0])

    for name in ("permutation", "context in no order"):
        view = views[name]
        nats, weights = floor_of(OBJECTIVES[name], view, batch)
        np.testing.assert_array_equal(weights, view["permutation_weights"])
        assert weights.sum() == 8 * 3
        for r, text in enumerate(texts):
            rank = view["order"][r, places]
            for slot, i in enumerate(np.argsort(-rank)[:3]):
                expected = world.nats(world.agrees(text, np.flatnonzero(rank < rank[i])), world.agrees(text, [i]))
                np.testing.assert_allclose(nats[r, slot], expected, rtol=1e-10)

    view = views["span_corruption"]
    nats, weights = floor_of(OBJECTIVES["span_corruption"], view, batch)
    assert weights.sum() == (view["span_targets"] >= 0).sum() == 8 * 4, "one word of each segment, and a sentinel after it"
    masked = view["order"][:8, places] > 0
    for r, i in np.argwhere(masked):
        others = np.flatnonzero(~masked[r] | (np.arange(4) < i))
        expected = world.nats(world.agrees(texts[r], others), world.agrees(texts[r], [i]))
        np.testing.assert_allclose(nats[r, places[i]], expected, rtol=1e-10)
    assert np.count_nonzero(nats) == masked.sum() == 16


def test_masked_next_token_on_its_own_view(asked):
    texts, batch, views = asked
    view, causal, length = views["masked_next_token"], views["masked_next_token"]["causal"], batch["tokens"].shape[1]
    assert 0 < causal[:8].sum() < 8, "rows of both kinds"
    nats, weights = floor_of(OBJECTIVES["masked_next_token"], view, batch)
    np.testing.assert_array_equal(weights[:, 1:], view["next_token_targets"][:, :-1] >= 0)
    np.testing.assert_allclose(nats[causal], oracle_of(batch, "next").chain_rule()[causal])
    # The masked rows are like those of mlm, with two chosen positions each.
    rows = np.flatnonzero(~causal[:8])
    positions = np.array([np.flatnonzero(weights[r]) for r in rows])
    mlm = {"tokens": view["tokens"][rows], "masked_positions": positions, "masked_weights": np.ones((len(rows), 2), bool)}
    case = corrupted_case(mlm, texts[rows], 2, bert(0.4, 0.4))
    case.check(by_token(nats[rows], np.tile(np.arange(length), (len(rows), 1)), weights[rows], length), known=True)


def test_diffusion_over_all_masks_is_the_chain_rule_and_a_leak_lies_below():
    texts, world = random_texts(3, 4, seed=2), world_of("alone")
    batch, places = layout("alone", texts)
    total, leaked = np.zeros(3), np.zeros(3)
    for hidden in itertools.chain.from_iterable(itertools.combinations(range(4), r) for r in range(1, 5)):
        # That an order has shown just the others, and shows this word next; over all times, what weight and masks come to.
        weight = math.factorial(len(hidden) - 1) * math.factorial(4 - len(hidden)) / math.factorial(4)
        masked = np.isin(np.arange(batch["tokens"].shape[1]), places[list(hidden)]) & np.ones((3, 1), bool)
        view = {"masked": masked, "tokens": np.where(masked, MASK, batch["tokens"]), "words": batch["tokens"] > MASK}
        view |= {"masked_share": np.full(3, 0.3), "masked_weight": np.full(3, weight)}
        nats, weights = floor_of(MaskedDiffusion(), view, batch, "alone")
        np.testing.assert_array_equal(weights.sum(1), 4)
        total += nats.sum(1)
        # The best model that is shown of each hidden word whether its id is even: the same words, with the same weights.
        for (r, text), i in itertools.product(enumerate(texts), hidden):
            shown = world.agrees(text, [place for place in range(4) if place not in hidden])
            even = world.texts[:, i] % 2 == text[i] % 2
            leaked[r] += weight * world.nats(shown & even, world.agrees(text, [i]))
    np.testing.assert_allclose(total, oracle_of(batch).chain_rule().sum(1), rtol=1e-10)
    assert (leaked < 0.9 * total).all()


def test_masked_next_token_counts_chosen_tokens_that_begin_a_document():
    """They are corrupted like the others, and not predicted: the floor is MLM's on the same rows where both ask."""
    tokens = random_texts(16, 6, seed=3).astype(np.int32)
    documents = np.tile(np.array([1, 1, 1, 2, 2, 2], np.int32), (16, 1))
    batch = {"tokens": tokens, "documents": documents, "segments": np.zeros_like(tokens), "positions": np.zeros_like(tokens)}
    objective = MaskedNextToken(causal_share=0.0, rate=0.4, **SHARED)
    view = jax.device_get(quick_jit(lambda batch, key: objective.view(batch, key, VOCABULARY, 1.0))(batch, jax.random.key(1)))
    nats, weights = floor_of(objective, view, batch, "alone")
    assert view["masked"][:, [0, 3]].any() and not weights[:, [0, 3]].any()
    positions = np.array([np.flatnonzero(row) for row in view["masked"]])
    mlm = {"tokens": view["tokens"], "masked_positions": positions, "masked_weights": np.ones_like(positions, bool)}
    theirs = by_token(floor_of(objective.masking, mlm, batch, "alone")[0], positions, np.ones_like(positions), 6)
    np.testing.assert_allclose(nats[weights > 0], theirs[weights > 0], rtol=1e-12)


def test_long_rows_do_not_underflow():
    model = make_language(vocab_size=30, topics=2, states=3, seed=2, sentence_words=(1000, 1000), document_sentences=(1, 1))
    batch = rows_of([sample_document(model, np.random.default_rng(0)).words + 5])
    vocabulary, chain = Vocabulary(35, PAD, UNK, CLS, SEP, MASK), floors.chain_of(model, 35, np.arange(5, 35))
    oracle = oracle_of(batch, chain=chain, vocabulary=vocabulary)
    forward, backward = oracle.chain_rule(), oracle.chain_rule(backward=True)
    np.testing.assert_allclose(forward.sum(), backward.sum(), rtol=1e-10)
    channel = Corruption(np.append(np.zeros(5), np.full(30, 1 / 30)), count=np.array([60]))
    for nats in (forward, backward, oracle.corrupted(batch["tokens"], channel, "original", known=False)):
        assert np.isfinite(nats).all() and nats.sum() > 1


def test_what_has_no_floor_says_why(asked):
    _, batch, views = asked
    two_documents = batch | {"documents": batch["documents"] + batch["segments"]}
    view = views["mlm"]
    for objective, reason in (
        (MaskedLanguageModel(unit="span"), "mask_share=1"),
        (MaskedLanguageModel(exact=False, max_predictions=2), "max_predictions"),
        (ReplacedTokenDetection(), "generator learns"),
        (NextSentence(), "random"),
        (SkipGram(), "not known"),
        (SpanCorruption(), "mean_span=1"),
    ):
        with pytest.raises(NoFloor, match=reason):
            floor_of(objective, view, batch, "alone")
    with pytest.raises(NoFloor, match="PrefixLanguageModel"):
        floor_of(NextSentence(), views["prefix"], batch, shown_by=("prefix", OBJECTIVES["prefix"]))
    only_masks = MaskedLanguageModel(unit="span", mask_share=1.0, random_share=0.0)
    with pytest.raises(ValueError, match="they were corrupted differently"):
        floor_of(only_masks, {**view, "tokens": batch["tokens"]}, batch)
    # Where all that is chosen is seen to be, neither spans nor documents matter.
    masked = np.where(np.isin(np.arange(8), view["masked_positions"][0]) & (batch["tokens"] > 4), MASK, batch["tokens"])
    view = {"tokens": masked, "masked_positions": np.argwhere(masked[0] == MASK).T.repeat(9, 0)}
    view["masked_weights"] = np.repeat(batch["documents"][:, :1] > 0, 2, axis=1)
    nats, _ = floor_of(only_masks, view, two_documents, "alone")
    assert nats[:8].all()
    view["span_place"] = np.array([[1, 2]]).repeat(9, 0)
    deep, weights = floor_of(SpanBoundary(places=1), view, two_documents, "alone", ("mlm", only_masks))
    np.testing.assert_array_equal(deep, nats * [1, 0])
    assert weights.sum() == 8


HALF = np.full(4, 0.125)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"draws": HALF}, "sum to 1, not to 0.5"),
        ({"draws": 2 * HALF, "keep_share": 0.1}, "sum to 1, not to 1.1"),
        ({"draws": np.array([1.5, -0.5])}, "draws .* -0.5 to 1.5"),
        ({"draws": np.array([1.0, np.nan])}, "draws"),
        ({"draws": 2 * HALF, "rate": 1.5}, "rate .* 1.5"),
        ({"draws": 2 * HALF, "rate": np.array([0.1, -0.1])}, "rate .* -0.1"),
        ({"draws": 2 * HALF, "count": np.array([-1])}, "count .* -1"),
    ],
)
def test_a_corruption_that_is_none_is_refused(given, named):
    with pytest.raises(ValueError, match=named):
        Corruption(**given)


def test_questions_that_do_not_fit_the_rows_are_refused(asked):
    _, batch, views = asked
    oracle, shown, right = oracle_of(batch), views["mlm"]["tokens"], masking(1.0, 0.0, rate=0.5)
    with pytest.raises(ValueError, match="ask='words'"):
        oracle.corrupted(shown, right, ask="words")
    for part, given in (
        ("shown", (shown[:1], right)),
        ("draws", (shown, Corruption(2 * HALF))),
        ("count", (shown, dataclasses.replace(right, count=np.array([1, 1])))),
        ("rate", (shown, dataclasses.replace(right, rate=np.array([0.1, 0.1])))),
    ):
        with pytest.raises(ValueError, match=part):
            oracle.corrupted(*given)
    with pytest.raises(ValueError, match="seen"):
        oracle.visible(shown, shown > 0)


def data_config(**changes) -> ConfigDict:
    data = base_config().data
    for key, value in changes.items():
        group, _, leaf = key.rpartition("__")
        (data[group] if group else data)[leaf] = value
    return data


def test_relations_of_segments():
    fixed = {"synthetic__sentence_words": (5, 5), "seq_len": 33}
    swapped = {"format": "segment_pair", "segment_pair__negatives": "swapped"}
    pairs = {"format": "sentence_pair", "sentence_pair__random_next_probability": 0.3}
    for changes, expected in (
        ({"format": "doc_sentences"}, {"follows": 1.0}),
        ({"format": "full_sentences"}, {"follows": 1.0}),
        (pairs, {"follows": 0.7, "random": 0.3}),
        (pairs | {"sentence_pair__negatives": "swapped"}, {"follows": 0.7, "swapped": 0.3}),
        (fixed | swapped, {"follows": 0.5, "swapped": 0.5}),
    ):
        assert floors.relations_of(data_config(**changes)) == expected
    for changes, reason in (
        ({"format": "stream"}, "stream"),
        ({"format": "full_sentences", "full_sentences__attend_across_documents": True}, "attend_across_documents"),
        ({"format": "segment_pair"}, "sentence_pair"),
        (swapped, "sentence_words"),
        (fixed | swapped | {"seq_len": 34}, "seq_len"),
        (pairs | {"seq_len": 20}, "seq_len to 27"),
        (pairs | {"sentence_pair__force_random_if_single": True}, "force_random_if_single=False"),
    ):
        with pytest.raises(NoFloor, match=reason):
            floors.relations_of(data_config(**changes))


def test_standard_errors_are_over_documents():
    rng = np.random.default_rng(0)
    sums, weights = rng.normal(5, 2, 50), np.ones(50)
    value, error = floors.ratio(sums, weights, np.arange(50))
    np.testing.assert_allclose([value, error], [sums.mean(), sums.std(ddof=1) / np.sqrt(50)])
    # Each row twice is no more evidence, and rows of padding are none at all.
    doubled = floors.ratio(
        np.append(np.repeat(sums, 2), 0), np.append(np.ones(100), 0), np.append(np.repeat(np.arange(50), 2), 99)
    )
    np.testing.assert_allclose(doubled, [value, error])
    assert floors.ratio(sums, weights, np.zeros(50, int)) == (pytest.approx(value), None), "one document has none"


SYNTHETIC = {
    "data__corpus": "synthetic",
    "data__format": "doc_sentences",
    "data__test_fraction": 0.3,
    "data__tokenizer__kind": "words",
    "data__tokenizer__vocab_size": 13,  # rare words are unknown
    "data__seq_len": 12,
    "data__batch_size": 4,
    "model__width": 8,
    "model__hidden": 8,
    "model__layers": 1,
    "train__steps": 0,
    "optimizer__warmup_steps": 0,
}


@pytest.fixture
def synthetic_config(small_config):
    def make(recipe: str, documents: int = 60, sentence_words=(5, 5)):
        config = small_config(f"experiments/pretrain/{recipe}", **SYNTHETIC)
        config.data.synthetic.update(documents=documents, vocab_size=12, topics=2, states=3)
        config.data.synthetic.update(sentence_words=sentence_words, document_sentences=(2, 2))
        return config

    return make


def test_floor_command(synthetic_config, tmp_path, capsys, monkeypatch, quick_compilation):
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which `main` adds
    config = synthetic_config("bert.py:objectives=mlm")
    experiment, run = build_pretraining(config), tmp_path / "run"
    program, batches = experiment.program, experiment.evaluations["test"]
    params = random_params(program, batches[0])
    run.mkdir()
    (run / "config.json").write_text(json.dumps(config.to_dict()))
    save_params(run, params)

    # What the training loop finds on the same rows, with the same keys.
    evaluate, total = jax.jit(build_eval_step(program)), np.zeros(2)
    for index, batch in enumerate(batches):
        total += np.float64(evaluate(params, batch, np.int32(index), {})[0]["mlm/loss"])
    results, find = [], floors.floors
    monkeypatch.setattr(floors.runs, "floors", lambda *given: results.append(find(*given)) or results[-1])
    assert main(["floor", f"--run={run}"]) == 0
    found = results[0]["mlm"]
    assert found.exact and found.positions == total[1] > 8
    np.testing.assert_allclose(found.loss, total[0] / total[1], rtol=1e-5)
    np.testing.assert_allclose(found.above, found.loss - found.value, rtol=1e-5)
    assert 0 < found.value < np.log(13) < found.loss, "random parameters know nothing"
    assert 0 < found.above_standard_error < found.above

    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("│ mlm"))
    said = [
        f"{found.value:.4f}", f"{found.standard_error:.4f}", str(found.positions), "yes", f"{found.loss:.4f}",
        f"+{found.above:.4f}", f"{found.above_standard_error:.4f}", f"+{100 * found.above / found.value:.2f}%",
    ]  # fmt: skip
    assert [cell.strip() for cell in row.split("│")[2:-1]] == said

    recipe = f"--config={ROOT}/experiments/pretrain/bert.py:objectives=mlm"
    words = ["--config.data.corpus=synthetic", "--config.data.tokenizer.kind=words"]
    for arguments, message in (
        ([], "give --config=FILE.py, or --run=RUN"),
        ([recipe], "config.data.corpus='synthetic', not for 'pydocs'"),
        ([recipe, words[0]], "config.data.tokenizer.kind='words', with one token per word; set it"),
        ([recipe, *words, f"--run={run}"], f"--run={run} was trained with a different data."),
        ([f"--run={tmp_path}"], "has no config.json"),
        ([f"--run={run}", words[0]], "give --config=FILE.py too"),
    ):
        assert main(["floor", *arguments]) == 2
        text = capsys.readouterr().err
        assert message in text and text.startswith("bertlab floor: ") and text.count("\n") == 1


def test_rows_of_many_lengths_have_a_lower_bound(synthetic_config, capsys, quick_compilation):
    config = synthetic_config("gpt.py:objectives=ltr", documents=61, sentence_words=(2, 5))
    found = floors.floors(config)["ltr"]
    assert not found.exact and "length" in found.note and found.loss is None
    config.data.format = "segment_pair"
    found = floors.print_floors(config)
    assert not found["floors"] and found["none"].keys() == {"ltr"}, "the command's exit code is 1"
    assert "ltr: no floor: lengths tell segments" in capsys.readouterr().out
