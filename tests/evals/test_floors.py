"""Floors against enumeration: topics, states, texts, choices and replacements of a tiny language,
one by one."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from bertlab.config.defaults import base_config
from bertlab.data.corpora.synthetic import Language, language, sample_document
from bertlab.evals import floors
from bertlab.evals.code_length import ratio
from bertlab.evals.floors import Corruption, NoFloor
from bertlab.evals.floors.oracle import words_of
from bertlab.objectives import REGISTRY, electra
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.program import Program, named_key
from tests.evals.tiny import model_of
from tests.references import quick_jit

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(8, PAD, UNK, CLS, SEP, MASK, counts=(9, 1, 9, 9, 9, 5, 1, 3))
DRAWS = np.array([0, 0.1, 0, 0, 0, 0.5, 0.1, 0.3])  # of its words
IDS = np.array([6, 7, 5])  # of the three words
WORDS = range(5, 8)

# Nothing is symmetrical except the start, which is stationary.
LANGUAGE = Language(
    topic_prior=np.array([0.35, 0.65]),
    initial=np.array([[0.75, 0.25], [0.55 / 1.35, 0.8 / 1.35]]),
    transition=np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.55, 0.45]]]),
    emission=np.array([[0.7, 0.2, 0.1], [0.15, 0.25, 0.6]]),
    sentence_lengths=np.ones(1),
    document_lengths=np.ones(1),
)
CHAIN = floors.chain_of(LANGUAGE, VOCABULARY.size, IDS)

# Priors of the relations of a row's two segments of two words.
RELATIONS = {
    "single": {"follows": 1.0},
    "next": {"follows": 0.4, "random": 0.6},
    "order": {"follows": 0.3, "swapped": 0.7},
}


@functools.cache
def stretch_probability(text: tuple[int, ...]) -> float:
    """P(words of one stretch of a document), by every topic and path of states."""
    words = [list(IDS).index(token) for token in text]
    total = 0.0
    for topic, path in itertools.product(range(2), itertools.product(range(2), repeat=len(words))):
        p = LANGUAGE.topic_prior[topic] * LANGUAGE.initial[topic, path[0]]
        for before, after in itertools.pairwise(path):
            p *= LANGUAGE.transition[topic, before, after]
        total += p * np.prod([LANGUAGE.emission[s, word] for s, word in zip(path, words)])
    return total


PROBABILITY = {
    "follows": stretch_probability,
    "random": lambda text: stretch_probability(text[:2]) * stretch_probability(text[2:]),
    "swapped": lambda text: stretch_probability(text[2:] + text[:2]),
}


class World:
    """Every text [n, 4] of a row, and its probability [n] with each relation of its segments."""

    def __init__(self, kind: str):
        texts = list(itertools.product(WORDS, repeat=4))
        self.texts = np.array(texts)
        self.joint = {
            name: prior * np.array([PROBABILITY[name](text) for text in texts])
            for name, prior in RELATIONS[kind].items()
        }
        self.all = sum(self.joint.values())

    def nats(self, seen, right, relation: str | None = None) -> float:
        """−log P(right | seen), both given each text [n]; or of a relation."""
        joint = self.joint[relation] if relation else self.all
        return -np.log((joint * seen * right).sum() / (self.all * seen).sum())

    def agrees(self, text, places):
        """Where texts have the same words as one at some places."""
        return (self.texts[:, places] == text[places]).all(axis=1)


world_of = functools.cache(World)


def rows_of(kind: str, texts):
    """Rows [CLS] A A [SEP] B B [SEP] and padding ("single": one segment), and the words' places."""
    one, empty = kind == "single", np.zeros(len(texts), int)
    parts = [empty + CLS, *texts.T, empty + SEP, empty + PAD]
    parts.insert(7 if one else 3, empty + (PAD if one else SEP))
    tokens = np.stack(parts, axis=1).astype(np.int32)
    places = np.arange(1, 5) if one else np.array([1, 2, 4, 5])
    segments, documents = np.zeros_like(tokens), (tokens != PAD).astype(np.int32)
    segments[:, 4:-1] = 0 if one else 1
    length, rows = tokens.shape[1], np.arange(len(texts))
    batch = {"tokens": tokens, "segments": segments, "documents": documents}
    batch["positions"] = np.tile(np.arange(length, dtype=np.int32), (len(texts), 1))
    batch["pair_label"] = batch["order_label"] = (rows % 2).astype(np.int32)
    batch["example_id"] = np.stack([rows, rows], axis=1).astype(np.int32)
    return batch | {"visit": np.zeros(len(texts), np.int32)}, places


def random_texts(rows: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(WORDS, size=(rows, 4))


def choices(count: int | None, rate: float):
    """(chosen positions, probability) of an exact count, or of independent choices."""
    for number in range(5) if count is None else [count]:
        every = list(itertools.combinations(range(4), number))
        p = 1 / len(every) if count is not None else rate**number * (1 - rate) ** (4 - number)
        yield from ((chosen, p) for chosen in every)


def channel_probability(channel: Corruption, shown, original):
    """P(shown | original, chosen), by token."""
    return channel.draws[shown] + channel.keep_share * (shown == original)


def seen_probability(channel, count, world, shown, at: int | None, own=slice(None)):
    """P(the shown row | text) of every text; with `at` only of choices with this position."""
    drawn, same, total = channel_probability(channel, shown, world.texts), shown == world.texts, 0.0
    rate = float(np.max(channel.rate))
    for chosen, p in choices(count, rate):
        if at is None or at in chosen:
            of_choice = np.where(np.isin(range(4), chosen), drawn, same)
            total = total + p * of_choice[:, own].prod(axis=1)
    return total


def check(nats, channel, count, world, texts, shown, asked, chosen_only: bool, ask="word"):
    """−log p of the truth by enumeration, at the asked [R, 4] words."""
    assert asked.any()
    for r, i in np.argwhere(asked):
        right = world.agrees(texts[r], [i])
        if ask == "original":
            same = texts[r, i] == shown[r, i]
            right = (world.texts[:, i] == shown[r, i]) == same
        seen = seen_probability(channel, count, world, shown[r], i if chosen_only else None)
        np.testing.assert_allclose(nats[r, i], world.nats(seen, right), rtol=1e-9, atol=1e-13)


TASKS = electra.TASKS.split()
SHARED = {"mask_share": 0.4, "random_share": 0.4}
CORRUPTED = {
    "mlm": {"rate": 0.3, **SHARED},
    "mlm, bernoulli": {"rate": 0.4, "exact": False, **SHARED},
    "mlm, all": {"rate": 0.3, "predict": "all", **SHARED},
    "mlm, spans": {"unit": "span", "rate": 0.4, "mask_share": 1.0, "random_share": 0.0},
    "masked_next_token": {"rate": 0.3, "causal_share": 0.0, **SHARED},
    "diffusion": {},
    **{f"electra, {task}": {"rate": 0.3, "generator": "unigram", "task": task} for task in TASKS},
    "electra, bernoulli": {"rate": 0.3, "generator": "unigram", "exact": False},
}
OTHERS = {
    "permutation": {"predict_one_in": 2},
    "prefix": {},
    "span_corruption": {"rate": 0.4, "mean_span": 1.0},
}
OBJECTIVES = {
    name: REGISTRY[name.partition(",")[0]](**settings)
    for name, settings in {**CORRUPTED, **OTHERS}.items()
}


@functools.cache
def views_of_all():
    """kind -> (texts, batch, places, views of every objective)."""
    texts, found = random_texts(8, seed=7), {}
    shared = {name: f"electra, {TASKS[0]}" for name in OBJECTIVES if name[9:] in TASKS}
    makers = {name: of for name, of in OBJECTIVES.items() if shared.get(name, name) == name}

    def make(batch, key):
        keys = {name: named_key(key, name) for name in makers}
        return {n: of.view(batch, keys[n], VOCABULARY, 1.0) for n, of in makers.items()}

    for kind in RELATIONS:
        batch, places = rows_of(kind, texts)
        views = jax.device_get(quick_jit(make)(batch, jax.random.key(0)))
        views |= {name: views[maker] for name, maker in shared.items()}
        found[kind] = (texts, batch, places, views)
    return found


def by_position(nats, weights, view):
    """Numbers and weights of slots, put where their tokens are."""
    spread = np.zeros((2, *view["tokens"].shape))
    for r, at in enumerate(view["masked_positions"]):
        used = np.asarray(weights[r]) > 0
        spread[0, r, at[used]], spread[1, r, at[used]] = nats[r, used], 1
    return spread


@pytest.mark.parametrize("kind", RELATIONS)
@pytest.mark.parametrize("name", CORRUPTED)
def test_objectives_that_corrupt_words(name, kind):
    texts, batch, places, views = views_of_all()[kind]
    objective, view, world = OBJECTIVES[name], views[name], world_of(kind)
    oracle = floors.Oracle(CHAIN, batch, VOCABULARY, RELATIONS[kind])
    sees_chosen = name != "mlm, all" and not getattr(objective, "covers_all", False)
    nats, asked = floors.floor(objective, oracle, view, batch)
    if sees_chosen and name not in ("masked_next_token", "diffusion"):
        nats, asked = by_position(nats, asked, view)
    nats, asked = nats[:, places], asked[:, places] > 0
    shown = view["tokens"][:, places]
    if name == "diffusion":
        for r, i in np.argwhere(view["masked"][:, places]):
            hidden = world.agrees(texts[r], np.flatnonzero(shown[r] != MASK))
            expected = view["masked_weight"][r] * world.nats(hidden, world.agrees(texts[r], [i]))
            np.testing.assert_allclose(nats[r, i], expected, rtol=1e-5)  # a float32 weight
        return
    if name.startswith("electra"):
        channel, exact = Corruption(DRAWS, rate=0.3), objective.exact
    else:
        masking = objective if name.startswith("mlm") else objective.masking()
        draws = np.full(VOCABULARY.size, masking.random_share / VOCABULARY.size)
        draws[MASK] += masking.mask_share
        keep = 1 - masking.mask_share - masking.random_share
        channel, exact = Corruption(draws, keep, rate=masking.rate), masking.exact
    count = 2 if exact else None
    if name == "masked_next_token":
        count = int(view["masked"].sum(axis=1)[0])
    if name == "mlm, spans":  # all that is chosen is seen to be
        count = None
        channel = dataclasses.replace(channel, rate=0.5)
    ask = "original" if getattr(objective, "discriminates", False) else "word"
    check(nats, channel, count, world, texts, shown, asked, sees_chosen, ask)


@pytest.mark.parametrize("kind", RELATIONS)
def test_objectives_that_see_clean_words(kind):
    texts, batch, places, views = views_of_all()[kind]
    world, real = world_of(kind), batch["documents"] > 0
    oracle = floors.Oracle(CHAIN, batch, VOCABULARY, RELATIONS[kind])

    def expected(r, i, seen):
        return world.nats(world.agrees(texts[r], seen), world.agrees(texts[r], [i]))

    for name, backward in (("ltr", False), ("rtl", True)):
        nats, weights = floors.floor(REGISTRY[name](), oracle, batch, batch)
        assert weights.sum() == real.sum() - 8 and not weights[~real].any()
        np.testing.assert_allclose(np.delete(nats, places, axis=1), 0)
        for r, i in itertools.product(range(8), range(4)):
            seen = range(i + 1, 4) if backward else range(i)
            np.testing.assert_allclose(nats[r, places[i]], expected(r, i, seen), rtol=1e-9)
    view = views["prefix"]
    nats, weights = floors.floor(OBJECTIVES["prefix"], oracle, view, batch)
    np.testing.assert_allclose(nats, oracle.chain_rule())
    assert weights.sum() == (view["prefix_targets"] >= 0).sum() > 0
    view = views["permutation"]
    nats, weights = floors.floor(OBJECTIVES["permutation"], oracle, view, batch)
    rank = view["order"][:, places]
    for r, slot in np.argwhere(weights):
        i = np.argsort(-rank[r])[slot]
        seen = np.flatnonzero(rank[r] < rank[r, i])
        np.testing.assert_allclose(nats[r, slot], expected(r, i, seen), rtol=1e-9)
    view = views["span_corruption"]
    nats, weights = floors.floor(OBJECTIVES["span_corruption"], oracle, view, batch)
    masked = view["order"][:, places] > 0
    assert masked.any() and weights.sum() == 2 * masked.sum() == (view["span_targets"] >= 0).sum()
    for r, i in np.argwhere(masked):
        seen = np.flatnonzero(~masked[r] | (np.arange(4) < i))
        np.testing.assert_allclose(nats[r, places[i]], expected(r, i, seen), rtol=1e-9)


@pytest.mark.parametrize(("kind", "name"), [("next", "nsp"), ("order", "sop")])
@pytest.mark.parametrize("viewed", [None, "mlm", "electra, bernoulli"])
def test_relations_of_segments(kind, name, viewed):
    _, batch, places, views = views_of_all()[kind]
    shown_by = viewed and OBJECTIVES[viewed]
    view, world = views[viewed] if viewed else batch, world_of(kind)
    oracle = floors.Oracle(CHAIN, batch, VOCABULARY, RELATIONS[kind], shown_by)
    nats, weights = floors.floor(REGISTRY[name](), oracle, view, batch)
    assert weights.all() and len(nats) == 8
    channel, count = Corruption(np.eye(8)[MASK]), 0
    if viewed == "mlm":
        draws = np.full(8, 0.05)
        draws[MASK] += 0.4
        channel, count = Corruption(draws, 0.2), 2
    elif viewed:
        channel, count = Corruption(DRAWS, rate=0.3), None
    for r, label in enumerate(batch["pair_label"]):
        seen = seen_probability(channel, count, world, view["tokens"][r, places], None)
        expected = world.nats(seen, 1.0, list(RELATIONS[kind])[label])
        np.testing.assert_allclose(nats[r, 0], expected, rtol=1e-9)


@pytest.mark.parametrize("chosen_only", [True, False])
def test_documents_of_a_row_share_its_count_and_see_only_themselves(chosen_only):
    texts, batch, places, views = views_of_all()["next"]
    shown = views["mlm" if chosen_only else f"electra, {TASKS[0]}"]["tokens"][:, places]
    channel = Corruption(DRAWS, count=np.full(8, 2))
    if chosen_only:
        draws = np.full(8, 0.05)
        draws[MASK] += 0.4
        channel = Corruption(draws, 0.2, count=np.full(8, 2))
    tokens = batch["tokens"].copy()
    tokens[:, places] = shown
    two = batch | {"documents": batch["documents"] + batch["segments"]}
    nats = floors.Oracle(CHAIN, two, VOCABULARY, {"follows": 1.0}).corrupted(
        tokens, channel, "word", chosen_only
    )[:, places]
    world = world_of("next")
    independent = np.array([PROBABILITY["random"](tuple(text)) for text in world.texts])
    for r, i in itertools.product(range(8), range(4)):
        own = slice(0, 2) if i < 2 else slice(2, 4)
        if chosen_only and channel_probability(channel, shown[r, i], texts[r, i]) == 0:
            continue
        at = i if chosen_only else None
        seen = seen_probability(channel, 2, world, shown[r], at, own)
        if not (independent * seen).sum():
            continue
        right = world.agrees(texts[r], [i])
        expected = -np.log((independent * seen * right).sum() / (independent * seen).sum())
        np.testing.assert_allclose(nats[r, i], expected, rtol=1e-9)


def test_long_rows_do_not_underflow_and_unknown_words_share_an_id():
    chain = floors.chain_of(LANGUAGE, VOCABULARY.size, np.array([UNK, 5, UNK]))
    np.testing.assert_allclose(chain.emission[:2, [UNK, 5]], [[0.8, 0.2], [0.75, 0.25]])
    model = language(30, 2, 3, 2, sentence_words=(600, 600), document_sentences=(1, 1))
    words = sample_document(model, np.random.default_rng(0)).words + 5
    tokens = np.array([[CLS, *words, SEP]], np.int32)
    batch = {"tokens": tokens, "segments": tokens * 0, "documents": tokens * 0 + 1}
    vocabulary = Vocabulary(35, PAD, UNK, CLS, SEP, MASK)
    chain = floors.chain_of(model, 35, np.arange(5, 35))
    oracle = floors.Oracle(chain, batch, vocabulary, {"follows": 1.0})
    forward, backward = oracle.chain_rule().sum(), oracle.chain_rule(backward=True).sum()
    np.testing.assert_allclose(forward, backward, rtol=1e-9)
    channel = Corruption(np.append(np.zeros(5), np.full(30, 1 / 30)), count=np.array([60]))
    nats = oracle.corrupted(tokens, channel, "original", chosen_only=False)
    assert np.isfinite(nats).all() and nats.sum() > 1


def test_what_has_no_floor_has_a_reason():
    _, batch, _, views = views_of_all()["single"]
    oracle = floors.Oracle(CHAIN, batch, VOCABULARY, {"follows": 1.0})
    for name, settings, reason in (
        ("mlm", {"unit": "span"}, "mask_share=1"),
        ("mlm", {"exact": False, "max_predictions": 2}, "max_predictions"),
        ("electra", {}, "generator learns"),
        ("nsp", {}, "random"),
        ("skip_gram", {}, "not known"),
        ("span_corruption", {}, "mean_span=1"),
    ):
        with pytest.raises(NoFloor, match=reason):
            floors.floor(REGISTRY[name](**settings), oracle, views["mlm"], batch)
    only_masks = OBJECTIVES["mlm, spans"]
    with pytest.raises(ValueError, match="cannot produce"):
        view = {**views["mlm"], "tokens": np.where(words_of(batch, VOCABULARY), UNK, CLS)}
        floors.row_sums(only_masks, oracle, view)


def test_relations_that_lengths_give_away_are_refused():
    fixed = {"synthetic.sentence_words": (5, 5), "seq_len": 33}
    swapped = {"format": "segment_pair", "segment_pair.negatives": "swapped"}
    pairs = {"format": "sentence_pair", "sentence_pair.random_next_probability": 0.3}
    for changes, expected in (
        ({"format": "doc_sentences"}, {"follows": 1.0}),
        ({"format": "full_sentences"}, {"follows": 1.0}),
        (pairs, {"follows": 0.7, "random": 0.3}),
        (pairs | {"sentence_pair.negatives": "swapped"}, {"follows": 0.7, "swapped": 0.3}),
        (fixed | swapped, {"follows": 0.5, "swapped": 0.5}),
        ({"format": "stream"}, "stream"),
        ({"format": "doc_sentences", "pack_length": 64}, "pack_length=0"),
        (
            {"format": "full_sentences", "full_sentences.attend_across_documents": True},
            "attend_across",
        ),
        ({"format": "segment_pair"}, "sentence_pair"),
        (swapped, "sentence_words"),
        (fixed | swapped | {"seq_len": 34}, "seq_len"),
        (pairs | {"seq_len": 20}, "seq_len to 27"),
        (pairs | {"sentence_pair.force_random_if_single": True}, "force_random_if_single=False"),
    ):
        data = base_config().data
        data.update_from_flattened_dict(changes)
        if isinstance(expected, dict):
            assert floors.relations_of(data) == expected
        else:
            with pytest.raises(NoFloor, match=expected):
                floors.relations_of(data)


@dataclasses.dataclass(frozen=True)
class Cloze(Objective):
    """Masks tokens independently and predicts them; from outside the package."""

    def view(self, batch, key, vocabulary, progress):
        words = (batch["documents"] > 0) & ~vocabulary.is_special(batch["tokens"])
        chosen = words & jax.random.bernoulli(key, 0.3, words.shape)
        tokens = jax.numpy.where(chosen, vocabulary.mask_id, batch["tokens"])
        return {**batch, "tokens": tokens, "chosen": chosen, "original": batch["tokens"]}

    def loss(self, model, view):
        logits = model.predict_tokens(model.encode().output("both"), "both")
        log_p = jax.nn.log_softmax(logits)
        nats = -jax.numpy.take_along_axis(log_p, view["original"][..., None], axis=-1)[..., 0]
        return {"loss": ((nats * view["chosen"]).sum(), view["chosen"].sum().astype("float32"))}


@floors.corruption.register
def _(objective: Cloze, view, vocabulary):
    return Corruption(np.eye(vocabulary.size)[vocabulary.mask_id], rate=0.3)


@floors.floor.register
def _(objective: Cloze, oracle, view, batch):
    channel = floors.corruption(objective, view, oracle.vocabulary)
    return oracle.corrupted(view["tokens"], channel), view["chosen"]


def test_a_run_is_measured_above_its_floor_on_its_own_rows():
    model = model_of("bert", {"cloze": Cloze(), "nsp": REGISTRY["nsp"]()}, VOCABULARY.size)
    batches = [rows_of("next", random_texts(6, seed))[0] for seed in (0, 1)]
    found = floors.floors(model.program, batches, CHAIN, RELATIONS["next"], model.params)
    cloze, total = found["cloze"], np.zeros(2)
    assert cloze.exact and 0 < cloze.value < np.log(3) < cloze.loss
    for index, batch in enumerate(batches):
        views = model.program.views(batch, jax.random.fold_in(jax.random.key(0), index))
        metrics, _ = quick_jit(model.program.metrics)(model.params, views)
        total += np.float64(metrics["cloze/loss"])
    np.testing.assert_allclose(cloze.loss, total[0] / total[1], rtol=1e-5)
    assert 0 < cloze.above_standard_error < cloze.above
    assert found["nsp"].above > 0
    shorter = {name: field.copy() for name, field in batches[0].items()}
    shorter["tokens"][0, 4:], shorter["documents"][0, 4:] = PAD, 0
    ltr = Program(None, {"ltr": REGISTRY["ltr"](), "ar": REGISTRY["ar"]()}, VOCABULARY)
    found = floors.floors(ltr, [shorter], CHAIN, {"follows": 1.0})
    assert not found["ltr"].exact
    assert found["ar"] == "not known for this objective"


def test_the_error_of_a_mean_is_that_of_its_items():
    sums = np.random.default_rng(0).normal(5, 2, 50)
    expected = [sums.mean(), sums.std(ddof=1) / np.sqrt(50)]
    padded = np.append(sums, 7.0), np.append(np.ones(50), 0.0)  # a row of padding
    np.testing.assert_allclose(ratio(*padded), expected)
    assert ratio(sums[:1], np.ones(1)) == (pytest.approx(sums[0]), None)
