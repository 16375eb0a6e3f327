"""Floors against enumeration: topics, states, texts, choices and replacements of tiny languages, one by one."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab import floors
from bertlab.cli import main
from bertlab.config import base_config, load_config
from bertlab.data.synthetic import Language, sample_document
from bertlab.data.synthetic import language as make_language
from bertlab.objectives import Corruption, NoFloor, Vocabulary
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.electra import TASKS, ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program
from bertlab.objectives.sentence_order import SentenceOrder
from bertlab.objectives.span_boundary import SpanBoundary
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


@pytest.fixture
def language() -> Language:
    """Two topics, two states, three words; nothing is symmetrical but the start, which is stationary."""
    transition = np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.55, 0.45]]])
    initial = np.array([[0.75, 0.25], [0.55 / 1.35, 0.8 / 1.35]])
    emission = np.array([[0.7, 0.2, 0.1], [0.15, 0.25, 0.6]])
    np.testing.assert_allclose(np.einsum("ts,tsu->tu", initial, transition), initial)
    return Language(np.array([0.35, 0.65]), initial, transition, emission, np.ones(1), np.ones(1))


@pytest.fixture
def chain(language) -> floors.Chain:
    return floors.chain_of(language, VOCABULARY.size, IDS)


def test_unknown_words_share_an_id(language):
    chain = floors.chain_of(language, VOCABULARY.size, np.array([UNK, 5, UNK]))
    np.testing.assert_allclose(chain.emission[:, [UNK, 5]], [[0.8, 0.2], [0.75, 0.25]])


def stretch_probability(language: Language, text) -> float:
    """P(words of one stretch of a document), by every topic and path of states."""
    words = [list(IDS).index(token) for token in text]
    total = 0.0
    for topic, path in itertools.product(range(2), itertools.product(range(2), repeat=len(words))):
        p = language.topic_prior[topic]
        for i, (state, word) in enumerate(zip(path, words)):
            p *= language.initial[topic, state] if i == 0 else language.transition[topic, path[i - 1], state]
            p *= language.emission[state, word]
        total += p
    return total


class World:
    """Every text of some rows' words, with its probability under each relation of the two halves."""

    def __init__(self, language, size: int, relations=(("follows", 1.0),), cut: int = 0):
        self.joint = {}
        for relation, prior in relations:
            for text in itertools.product(WORDS, repeat=size):
                a, b = text[:cut], text[cut:]
                stretches = {"follows": [a + b], "random": [a, b], "swapped": [b + a]}[relation]
                self.joint[relation, text] = prior * np.prod([stretch_probability(language, x) for x in stretches])
        assert abs(sum(self.joint.values()) - 1) < 1e-12

    def nats(self, seen, event) -> float:
        """−log P(event | seen), both functions of (relation, text) giving probabilities."""
        every = {case: p * seen(*case) for case, p in self.joint.items()}
        return -np.log(sum(p * event(*case) for case, p in every.items()) / sum(every.values()))


def agrees(text, places) -> Callable:
    """1 for texts that have the same words at some places."""
    places = list(places)
    return lambda _, other: all(other[j] == text[j] for j in places)


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


RELATIONS = {
    "alone": ({"follows": 1.0}, None),
    "next": ({"follows": 0.4, "random": 0.6}, 2),
    "order": ({"follows": 0.3, "swapped": 0.7}, 2),
}


def layout(kind: str, texts):
    """(relations, the rows, position of each word, cut)."""
    relations, cut = RELATIONS[kind]
    batch = rows_of(texts, cut)
    places = np.flatnonzero(floors.words_of(batch, VOCABULARY)[0])
    return relations, batch, places, cut or 0


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("backward", [False, True])
def test_directions(kind, backward, language, chain):
    texts = random_texts(6, 4)
    relations, batch, places, cut = layout(kind, texts)
    nats = floors.forward_nats(chain, batch, VOCABULARY, relations, backward=backward)
    world = World(language, 4, relations.items(), cut)
    for text, row in zip(texts, nats):
        for i in range(4):
            context = range(i + 1, 4) if backward else range(i)
            expected = world.nats(agrees(text, context), agrees(text, [i]))
            np.testing.assert_allclose(row[places[i]], expected, rtol=1e-10)
        assert np.count_nonzero(row) == 4, "special tokens are known"


def test_documents_of_a_row_are_independent(language, chain):
    texts = random_texts(3, 5)
    batch = rows_of(texts, cut=2, padding=0)
    batch["documents"] += batch["segments"]
    nats = floors.forward_nats(chain, batch, VOCABULARY, {"follows": 1.0})
    for text, row in zip(texts, nats):
        expected = -np.log(stretch_probability(language, text[:2])) - np.log(stretch_probability(language, text[2:]))
        np.testing.assert_allclose(row.sum(), expected, rtol=1e-10)


@pytest.mark.parametrize("kind", RELATIONS)
def test_visible_sets(kind, language, chain, monkeypatch):
    monkeypatch.setattr(floors.chain, "_ROWS", 5)
    texts = random_texts(4, 4, seed=1)
    relations, batch, places, cut = layout(kind, texts)
    rank = np.random.default_rng(2).permuted(np.tile(np.arange(4), (4, 1)), axis=1)
    visible = np.zeros((4, 4, batch["tokens"].shape[1]), bool)
    visible[:, :, places] = rank[:, None, :] < rank[:, :, None]
    nats = floors.visible_nats(chain, batch, VOCABULARY, relations, np.tile(places, (4, 1)), visible)
    world = World(language, 4, relations.items(), cut)
    for r, i in itertools.product(range(4), range(4)):
        seen = agrees(texts[r], np.flatnonzero(rank[r] < rank[r, i]))
        np.testing.assert_allclose(nats[r, i], world.nats(seen, agrees(texts[r], [i])), rtol=1e-10)


def subsets(size: int, count: int | None, rate: float):
    """(chosen positions, probability) of an exact count, or of independent choices."""
    for number in range(size + 1) if count is None else [count]:
        every = list(itertools.combinations(range(size), number))
        for subset in every:
            yield subset, (1 / len(every) if count is not None else rate**number * (1 - rate) ** (size - number))


def masked_token(shown, original, mask_share, random_share) -> float:
    """P(shown | original, chosen) of BERT's channel."""
    p = random_share / VOCABULARY.size + mask_share * (shown == MASK)
    return p + (1 - mask_share - random_share) * (shown == original)


def shown_probability(shown, text, token, sets) -> dict:
    """P(chosen set, shown row | text) by chosen set."""
    found = {}
    for subset, p in sets:
        for i, (now, original) in enumerate(zip(shown, text)):
            p *= token(now, original) if i in subset else float(now == original)
        found[subset] = p
    return found


@dataclasses.dataclass
class Case:
    """Some rows, corrupted: each `texts[r]` became `shown[r]`, chosen at `chosen[r]`; drawn here where they are not given."""

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
        self.relations, self.batch, self.places, self.cut = layout(self.kind, self.texts)
        self.sets = list(subsets(self.size, self.count, self.rate))
        if self.shown is None:
            self._corrupt(np.random.default_rng(3))
        self.view = self.batch["tokens"].copy()
        self.view[:, self.places] = self.shown

    def _corrupt(self, rng):
        self.shown, self.chosen = self.texts.copy(), []
        for r, text in enumerate(self.texts):
            self.chosen.append(self.sets[rng.integers(len(self.sets))][0])
            for i in self.chosen[r]:
                p = np.array([self.token(v, text[i]) for v in range(VOCABULARY.size)])
                self.shown[r, i] = rng.choice(VOCABULARY.size, p=p)

    def counts(self):
        return None if self.count is None else np.full(self.rows, self.count)

    def probability(self, r: int, text, at: int | None = None) -> float:
        """P(row shown | text), with `at` only of choices that hold this position."""
        total = 0.0
        for subset, p in self.sets:
            if at is None or at in subset:
                for i, (now, original) in enumerate(zip(self.shown[r], text)):
                    p *= self.token(now, original) if i in subset else float(now == original)
                total += p
        return total

    def nats(self, world, r: int, i: int, event, known: bool) -> float:
        """−log p of the truth, by enumeration; event(text, r, i) is what is asked."""
        seen = lambda _, text: self.probability(r, text, i if known else None)
        return world.nats(seen, lambda _, text: event(text, r, i) == event(self.texts[r], r, i))

    def relation_nats(self, world, r: int, truth: str) -> float:
        return world.nats(lambda _, text: self.probability(r, text), lambda relation, _: relation == truth)

    def check(self, nats, language, event, known: bool) -> None:
        world = World(language, self.size, self.relations.items(), self.cut)
        for r in range(self.rows):
            for i in self.chosen[r] if known else range(self.size):
                expected = self.nats(world, r, i, event, known)
                np.testing.assert_allclose(nats[r, self.places[i]], expected, rtol=1e-10, atol=1e-14)
        assert not np.delete(nats, self.places, axis=1).any()


def masking(vocabulary, mask_share, random_share, count=None, rate=0.0) -> Corruption:
    """BERT's."""
    draws = np.full(vocabulary.size, random_share / vocabulary.size)
    draws[vocabulary.mask_id] += mask_share
    return Corruption(draws, 1 - mask_share - random_share, count, rate)


def floor_of(objective, view, batch, chain, vocabulary, relations, shown_by=None):
    return floors.floor(objective, floors.ExactOracle(chain, batch, vocabulary, relations, view, shown_by))


def bert(mask_share, random_share):
    """P(shown | original, chosen) of BERT's channel."""

    def token(shown, original):
        p = random_share / VOCABULARY.size + mask_share * (shown == MASK)
        return p + (1 - mask_share - random_share) * (shown == original)

    return token


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("count", [3, None])
@pytest.mark.parametrize("shares", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.3, 0.0)])
def test_masked(kind, count, shares, language, chain):
    case = Case(kind, count, bert(*shares))
    channel = masking(VOCABULARY, *shares, case.counts(), case.rate)
    nats = floors.corrupted_nats(chain, case.batch, VOCABULARY, case.relations, case.view, channel, "word", known=True)
    case.check(nats, language, lambda text, r, i: text[i], known=True)


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("count", [0, 1, 2, None])
@pytest.mark.parametrize("ask", ["word", "original"])
@pytest.mark.parametrize("known", [True, False])
def test_replaced(kind, count, ask, known, language, chain):
    """ELECTRA's four tasks: which word, or whether it is the original, at the chosen positions or at all."""
    case = Case(kind, count, lambda now, _: DRAWS[now])
    channel = Corruption(DRAWS, count=case.counts(), rate=case.rate)
    nats = floors.corrupted_nats(chain, case.batch, VOCABULARY, case.relations, case.view, channel, ask, known)
    event = {"word": lambda text, r, i: text[i], "original": lambda text, r, i: text[i] == case.shown[r, i]}[ask]
    case.check(nats, language, event, known)


@pytest.mark.parametrize("known", [True, False])
def test_documents_of_a_row_share_its_count_and_see_themselves(known, language, chain):
    """Of the other document not even the tokens are seen, so it may hold any number of the row's chosen words."""
    token = bert(0.5, 0.3) if known else lambda now, _: DRAWS[now]
    case = Case("next", 2, token)
    batch = case.batch | {"documents": case.batch["documents"] + (case.batch["segments"] == 1)}
    channel = masking(VOCABULARY, 0.5, 0.3, case.counts()) if known else Corruption(DRAWS, count=case.counts())
    nats = floors.corrupted_nats(chain, batch, VOCABULARY, {"follows": 1.0}, case.view, channel, "word", known)
    world, checked = World(language, 2), 0
    for r, first in itertools.product(range(case.rows), (0, 2)):
        own = slice(first, first + 2)
        for i in set(case.chosen[r]) & {first, first + 1} if known else (first, first + 1):

            def seen(_, text, r=r, i=i, own=own):
                return sum(
                    p * np.prod([token(now, word) if j in subset else now == word for j, now, word in
                                 zip(range(own.start, own.stop), case.shown[r, own], text)])
                    for subset, p in case.sets if not known or i in subset
                )  # fmt: skip

            expected = world.nats(seen, agrees(case.texts[r, own], [i - first]))
            np.testing.assert_allclose(nats[r, case.places[i]], expected, rtol=1e-10, atol=1e-14)
            checked += 1
    assert checked == (10 if known else 20)


@pytest.mark.parametrize("kind", ["next", "order"])
@pytest.mark.parametrize("count", [2, None, "clean"])
def test_relations(kind, count, language, chain):
    case = Case(kind, 0 if count == "clean" else count, bert(0.5, 0.3))
    channel = None if count == "clean" else masking(VOCABULARY, 0.5, 0.3, case.counts(), case.rate)
    world = World(language, case.size, case.relations.items(), case.cut)
    for truth in case.relations:
        nats = floors.relation_nats(chain, case.batch, VOCABULARY, case.relations, [truth] * case.rows, case.view, channel)
        for r in range(case.rows):
            np.testing.assert_allclose(nats[r], case.relation_nats(world, r, truth), rtol=1e-10)


# The objectives' own views.

SHARES = {"mask_share": 0.4, "random_share": 0.4}
OBJECTIVES = {
    "mlm": MaskedLanguageModel(rate=0.3, **SHARES),
    "bernoulli": MaskedLanguageModel(rate=0.4, exact=False, **SHARES),
    "masked_next_token": MaskedNextToken(rate=0.3, **SHARES),
    "permutation": PermutationLanguageModel(predict_one_in=2),
    "prefix": PrefixLanguageModel(),
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


def corrupted_case(view, texts, count, token, weights=None) -> Case:
    """What an objective's view made of the texts; 0.4 is the rate of the one without an exact count."""
    places = layout("next", texts)[2]
    positions, used = view["masked_positions"], view["masked_weights"]
    chosen = [tuple(np.flatnonzero(np.isin(places, at[is_used]))) for at, is_used in zip(positions, used)][: len(texts)]
    return Case("next", count, token, texts=texts, shown=view["tokens"][: len(texts), places], chosen=chosen)


def by_token(nats, positions, weights, length: int):
    """Numbers at slots, put where their tokens are."""
    placed = np.zeros((len(nats), length))
    for r, slots in enumerate(positions):
        placed[r, slots[weights[r] > 0]] = nats[r, weights[r] > 0]
    return placed


@pytest.mark.parametrize("name", ["mlm", "bernoulli"])
def test_mlm_on_its_own_view(name, asked, language, chain):
    texts, batch, views = asked
    objective, view = OBJECTIVES[name], views[name]
    nats, weights = floor_of(objective, view, batch, chain, VOCABULARY, RELATIONS["next"][0])
    np.testing.assert_array_equal(weights, view["masked_weights"])
    case = corrupted_case(view, texts, 2 if objective.exact else None, bert(0.4, 0.4))
    placed = by_token(nats, view["masked_positions"], weights, batch["tokens"].shape[1])
    assert not placed[-1].any() and (case.shown != case.texts).any()
    case.check(placed[:-1], language, lambda text, r, i: text[i], known=True)


def test_nsp_on_the_view_of_mlm(asked, language, chain):
    texts, batch, views = asked
    relations = RELATIONS["next"][0]
    nats, weights = floor_of(NextSentence(), views["mlm"], batch, chain, VOCABULARY, relations, OBJECTIVES["mlm"])
    case = corrupted_case(views["mlm"], texts, 2, bert(0.4, 0.4))
    world = World(language, 4, relations.items(), cut=2)
    np.testing.assert_array_equal(weights[:, 0], [1] * 8 + [0])
    for r in range(8):
        truth = ["follows", "random"][batch["pair_label"][r]]
        np.testing.assert_allclose(nats[r, 0], case.relation_nats(world, r, truth), rtol=1e-10)


def test_sop_on_the_view_of_electra(asked, language, chain):
    texts, batch, views = asked
    relations, view = RELATIONS["order"][0], views["electra"]
    batch = batch | {"order_label": batch["pair_label"]}
    given = (view, batch, chain, VOCABULARY, relations, OBJECTIVES["electra"])
    nats, _ = floor_of(SentenceOrder(), *given)
    case = dataclasses.replace(corrupted_case(view, texts, 2, lambda now, _: DRAWS[now]), kind="order")
    world = World(language, 4, relations.items(), cut=2)
    for r in range(8):
        truth = ["follows", "swapped"][batch["order_label"][r]]
        np.testing.assert_allclose(nats[r, 0], case.relation_nats(world, r, truth), rtol=1e-10)
    with pytest.raises(NoFloor, match="random"):
        floor_of(NextSentence(), *given)


@pytest.mark.parametrize("task", TASKS)
def test_electra_on_its_own_view(task, asked, language, chain):
    texts, batch, views = asked
    view, objective = views["electra"], dataclasses.replace(OBJECTIVES["electra"], task=task)
    nats, weights = floor_of(objective, view, batch, chain, VOCABULARY, RELATIONS["next"][0])
    known = task in ("discriminate_masked", "replace_mlm")
    np.testing.assert_array_equal(weights, view["masked_weights"] if known else batch["documents"] > 0)
    case = corrupted_case(view, texts, 2, lambda now, _: DRAWS[now])
    if known:
        nats = by_token(nats, view["masked_positions"], weights, batch["tokens"].shape[1])
    is_original = lambda text, r, i: text[i] == case.shown[r, i]
    event = is_original if task.startswith("discriminate") else lambda text, r, i: text[i]
    case.check(nats[:-1], language, event, known)


def test_orders_on_their_own_views(asked, language, chain):
    texts, batch, views = asked
    relations = RELATIONS["next"][0]
    places = np.flatnonzero(floors.words_of(batch, VOCABULARY)[0])
    world = World(language, 4, relations.items(), cut=2)
    forward = floors.forward_nats(chain, batch, VOCABULARY, relations)
    real = batch["documents"] > 0
    for objective, backward in ((LeftToRight(), False), (RightToLeft(), True)):
        nats, weights = floor_of(objective, batch, batch, chain, VOCABULARY, relations)
        np.testing.assert_allclose(nats, floors.forward_nats(chain, batch, VOCABULARY, relations, backward))
        assert not weights[~real].any() and weights.sum() == 8 * 6, "every token but the first, or the last"
        assert (weights[:8, 6 if backward else 0] == 0).all()

    view = views["prefix"]
    nats, weights = floor_of(OBJECTIVES["prefix"], view, batch, chain, VOCABULARY, relations)
    assert weights.sum() == (view["prefix_targets"] >= 0).sum() < 8 * 6
    np.testing.assert_allclose(nats, np.where(weights, forward, 0))
    for row, asked_row, tokens in zip(view["prefix_targets"], weights, batch["tokens"]):
        np.testing.assert_array_equal(row[row >= 0], tokens[asked_row > 0])

    ranks = np.random.default_rng(0).permuted(np.tile(np.arange(8), (9, 1)), axis=1).astype(np.int32)
    for in_order in (True, False):
        objective = PermutationLanguageModel(predict_one_in=2, context_in_order=in_order)
        view = jax.device_get(objective.in_order(jax.tree.map(jax.numpy.asarray, batch), ranks, VOCABULARY))
        nats, weights = floor_of(objective, view, batch, chain, VOCABULARY, relations)
        np.testing.assert_array_equal(weights, view["permutation_weights"])
        assert weights.sum() == 8 * 3
        for r, text in enumerate(texts):
            rank = ranks[r, places]
            targets = np.argsort(-rank)[:3]
            for slot, i in enumerate(targets):
                before = rank < rank[i] if in_order else ~np.isin(np.arange(4), targets) | (rank < rank[i])
                expected = world.nats(agrees(text, np.flatnonzero(before)), agrees(text, [i]))
                np.testing.assert_allclose(nats[r, slot], expected, rtol=1e-10)


def test_masked_next_token_on_its_own_view(asked, language, chain):
    texts, batch, views = asked
    view, relations = views["masked_next_token"], RELATIONS["next"][0]
    causal, length = view["causal"], batch["tokens"].shape[1]
    assert 0 < causal[:8].sum() < 8, "rows of both kinds"
    nats, weights = floor_of(OBJECTIVES["masked_next_token"], view, batch, chain, VOCABULARY, relations)
    np.testing.assert_array_equal(weights[:, 1:], view["next_token_targets"][:, :-1] >= 0)
    forward = floors.forward_nats(chain, batch, VOCABULARY, relations)
    np.testing.assert_allclose(nats[causal], forward[causal])
    # Of the masked rows alone, a view like mlm's: two chosen positions each.
    rows = np.flatnonzero(~causal[:8])
    positions = np.array([np.flatnonzero(weights[r]) for r in rows])
    mlm = {"tokens": view["tokens"][rows], "masked_positions": positions, "masked_weights": np.ones((len(rows), 2), bool)}
    case = corrupted_case(mlm, texts[rows], 2, bert(0.4, 0.4))
    case.check(by_token(nats[rows][:, :], np.tile(np.arange(length), (len(rows), 1)), weights[rows], length), language,
               lambda text, r, i: text[i], known=True)  # fmt: skip


def test_masked_next_token_counts_chosen_tokens_that_begin_a_document(chain):
    """They are corrupted like the others, and not predicted: the floor is MLM's on the same rows where both ask."""
    tokens = random_texts(16, 6, seed=3).astype(np.int32)
    documents = np.tile(np.array([1, 1, 1, 2, 2, 2], np.int32), (16, 1))
    batch = {"tokens": tokens, "documents": documents, "segments": np.zeros_like(tokens), "positions": np.zeros_like(tokens)}
    objective = MaskedNextToken(causal_share=0.0, rate=0.4, **SHARES)
    view = jax.device_get(Program(None, {"hybrid": objective}, VOCABULARY).views(batch, jax.random.key(1))["hybrid"])
    given = (batch, chain, VOCABULARY, {"follows": 1.0})
    nats, weights = floor_of(objective, view, *given)
    assert view["masked"][:, [0, 3]].any() and not weights[:, [0, 3]].any()
    positions = np.array([np.flatnonzero(row) for row in view["masked"]])
    mlm = {"tokens": view["tokens"], "masked_positions": positions, "masked_weights": np.ones_like(positions, bool)}
    theirs = by_token(*floor_of(objective.masking, mlm, *given)[:1], positions, np.ones_like(positions), 6)
    np.testing.assert_allclose(nats[weights > 0], theirs[weights > 0], rtol=1e-12)


def test_a_wrong_channel_is_noticed(asked, language, chain):
    """Another distribution of the random tokens than the objective's, a row that says more than it may, another count."""
    texts, batch, views = asked
    view = views["mlm"]
    case = corrupted_case(view, texts, 2, bert(0.4, 0.4))
    right = masking(VOCABULARY, 0.4, 0.4, np.array([2] * 8))
    words_only = dataclasses.replace(right, draws=np.array([0, 0, 0, 0, 0.4, *[0.4 / 3] * 3]))
    for wrong in (
        words_only,
        dataclasses.replace(right, count=None, rate=0.5),
        dataclasses.replace(right, count=right.count + 1),
    ):
        nats = floors.corrupted_nats(chain, case.batch, VOCABULARY, case.relations, case.view, wrong, "word", known=True)
        with pytest.raises(AssertionError):
            case.check(nats, language, lambda text, r, i: text[i], known=True)
    unmasked = {**view, "tokens": batch["tokens"]}
    with pytest.raises(ValueError, match="corruption is not theirs"):
        floor_of(MaskedLanguageModel(mask_share=1.0, random_share=0.0), unmasked, batch, chain, VOCABULARY, case.relations)


def test_more_context_is_never_worse():
    """Expected floors: all else seen < what is before; a [MASK] alone tells less than a token that may be the right one."""
    model = make_language(vocab_size=20, topics=3, states=4, seed=1, sentence_words=(12, 12), document_sentences=(1, 1))
    rng = np.random.default_rng(0)
    texts = np.stack([sample_document(model, rng).words + 5 for _ in range(400)])
    vocabulary = Vocabulary(25, PAD, UNK, CLS, SEP, MASK)
    batch, chain = rows_of(texts), floors.chain_of(model, 25, np.arange(5, 25))
    at = rng.integers(1, 13, size=(400, 1))
    shown = batch["tokens"].copy()
    np.put_along_axis(shown, at, MASK, axis=1)
    given = (chain, batch, vocabulary, {"follows": 1.0})
    masks = masking(vocabulary, 1.0, 0.0, np.ones(400, int))
    masked = np.take_along_axis(floors.corrupted_nats(*given, shown, masks, "word", known=True), at, axis=1)
    before, after = (np.take_along_axis(floors.forward_nats(*given, backward=b), at, axis=1) for b in (False, True))
    kept = floors.corrupted_nats(*given, batch["tokens"], masking(vocabulary, 0.0, 0.5, np.ones(400, int)), "word", True)
    states = np.einsum("ts,sv->v", chain.start, chain.emission)
    unigram = -np.log(states[np.take_along_axis(batch["tokens"], at, axis=1)])
    for less, more in ((unigram, before), (unigram, after), (before, masked), (after, masked)):
        gain = (less - more).ravel()
        assert gain.mean() > 3 * gain.std() / 20
    assert (np.take_along_axis(kept, at, axis=1) < masked).mean() > 0.99, "the shown token is the right one"
    # The whole row's probability is the same from both ends.
    sums = [floors.forward_nats(*given, backward=b).sum(axis=1) for b in (False, True)]
    np.testing.assert_allclose(*sums, rtol=1e-10)


def test_long_rows_do_not_underflow():
    model = make_language(vocab_size=30, topics=2, states=3, seed=2, sentence_words=(1000, 1000), document_sentences=(1, 1))
    batch = rows_of([sample_document(model, np.random.default_rng(0)).words + 5])
    vocabulary, chain = Vocabulary(35, PAD, UNK, CLS, SEP, MASK), floors.chain_of(model, 35, np.arange(5, 35))
    given = (chain, batch, vocabulary, {"follows": 1.0})
    channel = Corruption(np.append(np.zeros(5), np.full(30, 1 / 30)), count=np.array([60]))
    for nats in (
        floors.forward_nats(*given),
        floors.forward_nats(*given, backward=True),
        floors.corrupted_nats(*given, batch["tokens"], channel, "original", known=False),
    ):
        assert np.isfinite(nats).all() and nats.sum() > 1


def test_what_has_no_floor_says_why(asked, chain):
    _, batch, views = asked
    one = {"follows": 1.0}
    two_documents = batch | {"documents": batch["documents"] + batch["segments"]}
    view = views["mlm"]
    for objective, rows, shown_by, reason in (
        (MaskedLanguageModel(unit="span"), batch, None, "mask_share=1"),
        (MaskedLanguageModel(exact=False, max_predictions=2), batch, None, "max_predictions"),
        (ReplacedTokenDetection(), batch, None, "generator learns"),
        (NextSentence(), batch, None, "random"),
        (SkipGram(), batch, None, "not known"),
    ):
        with pytest.raises(NoFloor, match=reason):
            floor_of(objective, view, rows, chain, VOCABULARY, one, shown_by)
    with pytest.raises(NoFloor, match="PrefixLanguageModel"):
        floor_of(NextSentence(), views["prefix"], batch, chain, VOCABULARY, RELATIONS["next"][0], OBJECTIVES["prefix"])
    # Where all that is chosen is seen to be, neither spans nor documents matter.
    masked = np.where(np.isin(np.arange(8), view["masked_positions"][0]) & (batch["tokens"] > 4), MASK, batch["tokens"])
    view = {"tokens": masked, "masked_positions": np.argwhere(masked[0] == MASK).T.repeat(9, 0)}
    view["masked_weights"] = np.repeat(batch["documents"][:, :1] > 0, 2, axis=1)
    only_masks = MaskedLanguageModel(unit="span", mask_share=1.0, random_share=0.0)
    nats, _ = floor_of(only_masks, view, two_documents, chain, VOCABULARY, one)
    assert nats[:8].all()
    view["span_place"] = np.array([[1, 2]]).repeat(9, 0)
    deep, weights = floor_of(SpanBoundary(places=1), view, two_documents, chain, VOCABULARY, one, only_masks)
    np.testing.assert_array_equal(deep, nats * [1, 0])
    assert weights.sum() == 8


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


@pytest.fixture
def synthetic_config(cache):
    def make(recipe: str, **changes):
        overrides = {
            "data.corpus": "synthetic",
            "data.directory": cache,
            "data.workers": 1,
            "data.format": "doc_sentences",
            "data.synthetic.documents": 60,
            "data.synthetic.vocab_size": 12,
            "data.synthetic.topics": 2,
            "data.synthetic.states": 3,
            "data.synthetic.sentence_words": (5, 5),
            "data.synthetic.document_sentences": (2, 2),
            "data.test_fraction": 0.3,
            "data.tokenizer.kind": "words",
            "data.tokenizer.vocab_size": 13,  # rare words are unknown
            "data.seq_len": 12,
            "data.batch_size": 4,
            "model.width": 8,
            "model.hidden": 8,
            "model.layers": 1,
            "train.steps": 0,
            "train.eval_batches": 2,
            "optimizer.warmup_steps": 0,
            "mesh.data": 1,
        }
        return load_config(
            f"{ROOT}/experiments/pretrain/{recipe}", overrides | {k.replace("__", "."): v for k, v in changes.items()}
        )

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
    numbers = [cell.strip() for cell in row.split("│")[2:-1]]
    value, error, positions, exact, loss, above, above_standard_error, excess = numbers
    assert [value, error, positions, exact] == [
        f"{found.value:.4f}",
        f"{found.standard_error:.4f}",
        str(found.positions),
        "yes",
    ]
    assert [loss, above] == [f"{found.loss:.4f}", f"+{found.above:.4f}"]
    assert above_standard_error == f"{found.above_standard_error:.4f}"
    assert excess == f"+{100 * found.above / found.value:.2f}%"

    recipe = f"--config={ROOT}/experiments/pretrain/bert.py:objectives=mlm"
    words = ["--config.data.corpus=synthetic", "--config.data.tokenizer.kind=words"]
    for arguments, message in (
        ([], "give --config=FILE.py, or --run=RUN"),
        ([recipe], "config.data.corpus='synthetic' alone, not for 'pydocs'"),
        ([recipe, words[0]], "config.data.tokenizer.kind='words' alone, one token a word; set it"),
        ([recipe, *words, f"--run={run}"], f"--run={run} was trained with another data."),
        ([f"--run={tmp_path}"], "has no config.json"),
        ([f"--run={run}", words[0]], "give --config=FILE.py too"),
    ):
        assert main(["floor", *arguments]) == 2
        text = capsys.readouterr().err
        assert message in text and text.startswith("bertlab floor: ") and text.count("\n") == 1


def test_rows_of_many_lengths_have_a_lower_bound(synthetic_config, capsys, quick_compilation):
    lengths = {"data__synthetic__sentence_words": (2, 5), "data__synthetic__documents": 61}
    config = synthetic_config("gpt.py:objectives=ltr", **lengths)
    found = floors.floors(config)["ltr"]
    assert not found.exact and "length" in found.note and found.loss is None
    config.data.format = "segment_pair"
    assert not floors.print_floors(config), "the command's exit code is 1"
    assert "ltr: no floor: lengths tell segments" in capsys.readouterr().out
