"""Looking inside: words in context and their neighbours, probes, senses, and how vectors lie, against closed forms and planted
vectors."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from bertlab.config import base_config
from bertlab.data.tokenizers import train_tokenizer
from bertlab.errors import UserError
from bertlab.train.checks import vocabulary_of
from bertlab.transfer.geometry import (
    anisotropy,
    cka,
    cka_layers,
    intra_sentence_similarity,
    layer_geometry,
    self_similarity,
)
from bertlab.transfer.inspect import InContext, in_context, neighbours, occurrences
from bertlab.transfer.load import Embedding, Pretrained
from bertlab.transfer.probes import probe, probe_layers, sense_neighbours
from tests.references import random_params, tiny_program

RIVER = ["the bank of the river was wet", "a boat lay by the bank", "the muddy bank of a stream"]
MONEY = ["the bank paid interest", "she owes the bank money", "no bank lends money now"]
SENTENCES = [line.split() for line in RIVER + MONEY]


@dataclasses.dataclass(frozen=True)
class Planted:
    """A model whose vectors a function (words, position, layer) gives."""

    vector: object
    layers: int = 1
    longest: int = 64

    def lengths(self, texts, pretokenized):
        return [len(words) for words in texts]

    def encode(self, texts, layers, pretokenized):
        chosen = range(self.layers) if layers == "all" else [layer % self.layers for layer in layers]
        found = []
        for words in texts:
            states = [[self.vector(words, at, layer) for at in range(len(words))] for layer in chosen]
            states = np.array(states, np.float32)
            found.append(Embedding(tuple(words), states, (states.shape[-1],) * len(chosen), tuple(chosen)))
        return found


def by_topic(words, at, layer):
    """Near one axis or the other: what the sentence is about; the third number tells words apart."""
    topic = [0, 1] if {"paid", "owes", "lends"} & set(words) else [1, 0]
    return [*topic, 0.1 * (sum(map(ord, words[at])) % 7) / 7]


def tiny_model(family: str, seed: int = 0, kind: str = "words", size: int = 25, **model) -> Pretrained:
    """A model of random parameters with a tokenizer of its own, from no file."""
    tokenizer = train_tokenizer(kind, [" ".join(words) for words in SENTENCES] * 20, size, seed=0, lowercase=False)
    program = tiny_program(family, "", vocabulary_of(tokenizer), **model)
    view = {name: np.ones((1, 8), np.int32) for name in ("tokens", "segments", "documents", "positions")}
    config = base_config()
    config.model.update({"family": family})
    return Pretrained(config, tokenizer, program, random_params(program, view, seed))


# ---- words in context and neighbours


def test_in_context_has_every_word_once_with_its_place():
    model = Planted(lambda words, at, layer: [len(words), at, layer], layers=2)
    first, second = in_context(model, [[], *SENTENCES])
    assert (first.layer, second.layer) == (0, 1) and len(first.words) == sum(map(len, SENTENCES))
    for words, number, at, vector in zip(second.words, second.sentence, second.position, second.vectors):
        assert [[], *SENTENCES][number][at] == words and vector.tolist() == [len(SENTENCES[number - 1]), at, 1]
    assert second.context(3, around=2) == "bank of [the] river was"
    assert first.context(2, around=1) == "bank [of] the"


def test_in_context_samples_whole_sentences_by_seed():
    model = Planted(by_topic)
    samples = [in_context(model, SENTENCES, max_words=12, seed=seed)[0] for seed in range(6)]
    for sample in samples:
        assert 6 < len(sample.words) <= 12
        assert all(np.sum(sample.sentence == number) == len(SENTENCES[number]) for number in set(sample.sentence.tolist()))
    assert len({tuple(sample.sentence) for sample in samples}) > 1
    np.testing.assert_array_equal(samples[0].sentence, in_context(model, SENTENCES, max_words=12, seed=0)[0].sentence)


def test_occurrences_are_those_of_the_word_as_it_stands():
    found = occurrences(Planted(by_topic, layers=3), SENTENCES, "bank", layer=1)
    assert found.layer == 1 and found.sentence.tolist() == [0, 1, 2, 3, 4, 5] and found.position.tolist() == [1, 5, 2, 1, 3, 1]
    assert [words[at] for words, at in zip(SENTENCES, found.position)] == found.words == ["bank"] * 6
    twice = occurrences(Planted(by_topic), SENTENCES, "the")
    assert list(zip(twice.sentence, twice.position))[:2] == [(0, 0), (0, 3)]
    assert len(occurrences(Planted(by_topic), SENTENCES, "bank", most=2).words) == 2


def test_neighbours_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    model = Planted(lambda words, at, layer: rng.normal(size=5))
    (found,) = in_context(model, SENTENCES)
    queries = rng.normal(size=(4, 5))
    for metric, sign in (("cosine", -1), ("euclidean", 1)):
        distances = cdist(queries, found.vectors, metric)
        table = neighbours(queries, found, k=3, metric=metric)
        expected = np.argsort(distances, 1)[:, :3]
        value = np.take_along_axis(1 - distances if metric == "cosine" else distances, expected, 1)
        np.testing.assert_allclose(table[metric], value.ravel(), atol=1e-6)
        assert table.word.tolist() == [found.words[n] for n in expected.ravel()]
        assert (np.diff(table[metric].to_numpy().reshape(4, 3)) * sign >= 0).all()
    assert len(neighbours(queries, found, k=1000)) == 4 * len(found.words)


def test_a_word_is_not_its_own_neighbour_nor_that_of_a_copy_of_its_sentence():
    banks = occurrences(Planted(by_topic), SENTENCES, "bank")
    table = neighbours(banks, banks, k=2)
    assert table.groupby("query").sentence.apply(set).tolist() == [{1, 2}, {0, 2}, {0, 1}, {4, 5}, {3, 5}, {3, 4}]
    assert table["rank"].tolist() == [1, 2] * 6 and table.context[0].count("[bank]") == 1
    banks = occurrences(Planted(by_topic), [SENTENCES[0], SENTENCES[0], SENTENCES[1]], "bank")
    assert neighbours(banks, banks, k=2).sentence.tolist() == [2, 2, 0, 1]


def test_words_that_cannot_be_looked_at_are_refused():
    model = Planted(by_topic)
    (found,) = in_context(model, SENTENCES)
    for message, ask in (
        (r"'Bank' .* 6 sentences.*; 'bank' does", lambda: occurrences(model, SENTENCES, "Bank")),
        (r"'qq' .* 6 sentences[^;]*$", lambda: occurrences(model, SENTENCES, "qq")),
        ("lists of words", lambda: in_context(model, RIVER)),
        ("lists of words", lambda: occurrences(model, RIVER, "bank")),
        ("sentence 0 has 7 tokens.* 6 positions", lambda: in_context(Planted(by_topic, longest=6), SENTENCES)),
        ("max_words=3 .* 6 sentences", lambda: in_context(model, SENTENCES, max_words=3)),
        ("metric='l1'", lambda: neighbours(found, found, metric="l1")),
        ("k=0", lambda: neighbours(found, found, k=0)),
        (r"queries are \(2, 5\) and candidates \(33, 3\)", lambda: neighbours(np.ones((2, 5)), found)),
    ):
        with pytest.raises(UserError, match=message):
            ask()


# ---- probes and senses


def planted_labels(count: int, seed: int, noise: float = 0.0):
    """Vectors of very different scales whose label is a linear function of them."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 6)) * 10.0 ** np.arange(-3, 3)
    standard = features / 10.0 ** np.arange(-3, 3)
    return features, np.array(["B", "C", "A"])[np.argmax(standard[:, :3] + noise * rng.normal(size=(count, 3)), 1)]


def test_a_probe_finds_a_planted_linear_label_and_nothing_in_shuffled_ones():
    features, labels = planted_labels(600, 0)
    test_features, test_labels = planted_labels(400, 1)
    found = probe(features, labels, test_features, test_labels)
    assert found.accuracy > 0.95 and found.c == 1.0
    assert found.standard_error == pytest.approx(np.sqrt(found.accuracy * (1 - found.accuracy) / 400))
    rng = np.random.default_rng(2)
    shuffle = lambda labels: rng.permutation(np.where(rng.random(len(labels)) < 0.6, "A", labels))
    chance = probe(features, shuffle(labels), test_features, mixed := shuffle(test_labels))
    assert chance.majority == np.mean(mixed == "A") and chance.majority > 0.6
    assert chance.accuracy == pytest.approx(chance.majority, abs=3 * chance.standard_error)
    assert chance.c < 1.0


def test_a_probe_holds_out_whole_groups_and_never_the_test_words():
    # Each group has a vector and a label of its own: what is learnt of one says nothing of another, so that with groups held
    # out no C is better than the strongest penalty; with single words held out the weakest recalls their groups best.
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 10)
    features, labels = rng.normal(size=(30, 40))[groups] + 0.01 * rng.normal(size=(300, 40)), rng.integers(0, 2, 30)[groups]
    test = rng.normal(size=(50, 40)), rng.integers(0, 2, 50)
    assert probe(features, labels, *test, choices=(1e-6, 10.0)).c == 10.0
    assert probe(features, labels, *test, groups, choices=(1e-6, 10.0), seed=1).c == 1e-6


def test_probe_layers_shows_on_which_layer_the_tag_is():
    rng = np.random.default_rng(0)
    nouns = {"bank", "river", "boat", "stream", "interest", "money"}
    tagged = [
        (words, [None if word == "the" else "noun" if word in nouns else "other" for word in words]) for words in SENTENCES
    ]
    vector = lambda words, at, layer: np.array([layer * (words[at] in nouns), 0.3]) + rng.normal(scale=0.1, size=2)
    table = probe_layers(Planted(vector, layers=2), tagged * 8, tagged)
    known = [tag for _, tags in tagged for tag in tags if tag]
    assert (
        table.index.tolist() == [0, 1]
        and (table.test_words == len(known)).all()
        and (table.train_words == 8 * len(known)).all()
    )
    majority = max(np.mean([tag == name for tag in known]) for name in ("noun", "other"))
    np.testing.assert_allclose(table.majority, majority)
    assert table.accuracy[1] == 1.0 and table.accuracy[0] < majority + 3 * table.standard_error[0]


def test_what_cannot_be_probed_is_refused():
    features, labels = planted_labels(20, 0)
    for message, arguments in {
        r"at least two classes, .*\['A'\]": (features, ["A"] * 20, features, labels),
        r"holds out a training group": (features, labels, features, labels, [0] * 20),
        r"20 and 20 vectors with 3 and 20 labels": (features, labels[:3], features, labels),
        r"20 and 0 vectors with 20 and 0 labels": (features, labels, features[:0], []),
    }.items():
        with pytest.raises(UserError, match=message):
            probe(*arguments)
    with pytest.raises(UserError, match=r"test sentence 0 has 2 words and 1 tags"):
        probe_layers(Planted(by_topic), [(["a", "b"], ["X", "Y"])], [(["a", "b"], ["X"])])


def test_senses_are_those_of_planted_clusters_and_of_the_word_alone():
    rng = np.random.default_rng(0)
    centres = {"bank%river": [4, 0, 0], "bank%money": [0, 4, 0], "boat%1": [0, 0, 4]}
    senses = ["bank%river"] * 9 + ["bank%money"] * 30 + ["boat%1"] * 5
    words = [sense.split("%")[0] for sense in senses]
    vectors = np.array([centres[sense] for sense in senses]) + rng.normal(scale=0.4, size=(44, 3))
    test = np.array([[9, 1, 0], [0.1, 0.3, 0], [0.1, 0, 5], [1, 0, 0], [0, 0, 1]])
    asked = ["bank", "bank", "bank", "boat", "ship"]
    found = sense_neighbours(vectors, words, senses, test, asked, {"ship": "ship%1", "bank": "wrong"})
    assert found[:2] == ["bank%river", "bank%money"] and found[2].startswith("bank%") and found[3:] == ["boat%1", "ship%1"]
    with pytest.raises(UserError, match=r"the test word 'ship' is not in training and has no first_sense"):
        sense_neighbours(vectors, words, senses, test, asked, {})


def test_a_sense_is_the_mean_of_its_vectors_and_near_by_cosine():
    # The nearest single vector, and by distance the nearest mean too, is of sense b.
    vectors = np.array([[1.0, 0.0], [1.0, 0.2], [0.5, 0.9], [-0.9, 0.9]])
    assert sense_neighbours(vectors, ["w"] * 4, ["a", "a", "b", "b"], np.array([[0.3, 0.3]]), ["w"], {}) == ["a"]
    long = np.array([[1.0, 0.0], [5.0, 5.0]])
    assert sense_neighbours(long, ["w"] * 2, ["a", "b"], np.array([[1.0, 0.1]]), ["w"], {}) == ["a"]


# ---- geometry


def test_self_similarity_is_the_mean_cosine_of_all_pairs():
    vectors = np.random.default_rng(0).normal(size=(7, 4)) * np.arange(1, 8)[:, None]
    assert self_similarity(vectors) == pytest.approx(np.mean(1 - pdist(vectors, "cosine")))
    assert anisotropy(vectors) == pytest.approx(self_similarity(vectors))
    with pytest.raises(UserError, match="at least two, not 1"):
        self_similarity(vectors[:1])


def test_intra_sentence_similarity_is_with_the_mean_vector_not_of_pairs():
    assert intra_sentence_similarity(np.array([[2.0, 0], [0, 1]])) == pytest.approx((2 + 1) / np.sqrt(5) / 2)
    assert intra_sentence_similarity(np.array([[3.0, 4]])) == pytest.approx(1.0)


def test_anisotropy_is_the_mean_cosine_of_words_of_different_sentences():
    vectors = np.random.default_rng(0).normal(size=(50, 20)) + 1
    sentence = np.repeat(np.arange(5), 10)[np.random.default_rng(1).permutation(50)]
    cosine = 1 - cdist(vectors, vectors, "cosine")
    assert anisotropy(vectors, sentence) == pytest.approx(cosine[sentence[:, None] != sentence].mean())
    with pytest.raises(UserError, match=r"give at least two sentences"):
        anisotropy(vectors, np.zeros(50))


def test_layer_geometry_is_made_of_its_measures():
    rng = np.random.default_rng(0)
    table = {}
    vector = lambda words, at, layer: table.setdefault((tuple(words), at, layer), rng.normal(size=4) + layer)
    model = Planted(vector, layers=2)
    found = layer_geometry(model, SENTENCES, least=2)
    assert found.index.tolist() == [0, 1]
    counted = [word for word in {w for s in SENTENCES for w in s} if sum(word in words for words in SENTENCES) >= 2]
    for layer in in_context(model, SENTENCES):
        row, words = found.loc[layer.layer], np.array(layer.words)
        of_words = np.mean([np.mean(1 - pdist(layer.vectors[words == word], "cosine")) for word in counted])
        within = [intra_sentence_similarity(layer.vectors[layer.sentence == s]) for s in range(6)]
        assert row.self_similarity == pytest.approx(of_words, abs=1e-6)
        assert row.anisotropy == pytest.approx(anisotropy(layer.vectors, layer.sentence))
        assert row.self_similarity_adjusted == pytest.approx(of_words - row.anisotropy, abs=1e-6)
        assert row.intra_sentence_similarity_adjusted == pytest.approx(np.mean(within) - row.anisotropy)
        assert (row.words, row.sentences, row.tokens) == (len(counted), 6, len(words))
    assert found.anisotropy[1] > found.anisotropy[0] + 0.2
    for arguments, message in [({"least": 7}, "no word occurs in 7 of the 6 sentences"), ({"least": 1}, "least=1: ")]:
        with pytest.raises(UserError, match=message):
            layer_geometry(model, SENTENCES, **arguments)


# ---- CKA


def hsic(x, y):
    """Of Gram matrices, biased (Kornblith et al. 2019, equation 3)."""
    centre = np.eye(len(x)) - 1 / len(x)
    return np.trace(centre @ (x @ x.T) @ centre @ (y @ y.T))


def unbiased_hsic(x, y):
    """Of Gram matrices (Song et al. 2012, equation 5)."""
    k, m, count = x @ x.T, y @ y.T, len(x)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    total = np.trace(k @ m) + k.sum() * m.sum() / ((count - 1) * (count - 2)) - 2 / (count - 2) * (k @ m).sum()
    return total / (count * (count - 3))


@pytest.mark.parametrize(("debiased", "reference"), [(False, hsic), (True, unbiased_hsic)])
def test_cka_is_the_normalised_hsic_of_gram_matrices(debiased, reference):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5)) + 2
    y = x @ rng.normal(size=(5, 9)) + rng.normal(size=(30, 9)) - 7
    expected = reference(x, y) / np.sqrt(reference(x, x) * reference(y, y))
    assert cka(x, y, debiased) == pytest.approx(expected, abs=1e-12) and 0.1 < expected < 0.99
    assert cka(x, x, debiased) == pytest.approx(1)


def test_cka_that_is_not_defined_is_refused():
    x = np.random.default_rng(0).normal(size=(5, 3))
    for message, arguments in {
        r"5 and 4 rows; .* 2 or more": (x, x[:4]),
        r"3 and 3 rows; .* 4 or more": (x[:3], x[:3], True),
        r"the same for all words": (x, np.ones((5, 2))),
    }.items():
        with pytest.raises(UserError, match=message):
            cka(*arguments)


# ---- on models


def test_layers_of_runs_compare_by_words_whatever_their_tokenizers():
    model, other = tiny_model("bert"), tiny_model("bert", seed=1, kind="wordpiece", size=50, width=12)
    assert model.lengths([SENTENCES[0]], True) != other.lengths([SENTENCES[0]], True)
    for debiased in (False, True):
        own = cka_layers(model, model, SENTENCES, debiased=debiased)
        np.testing.assert_allclose(np.diag(own), 1)
        np.testing.assert_allclose(own, own.T)
        table = cka_layers(model, other, SENTENCES, debiased=debiased)
        ours, theirs = in_context(model, SENTENCES), in_context(other, SENTENCES)
        assert ours[0].words == theirs[0].words and table.shape == (len(ours), len(theirs)) == (2, 2)
        assert table[0, 1] == pytest.approx(cka(ours[0].vectors, theirs[1].vectors, debiased))


def test_words_of_a_model_are_its_pretokenized_vectors():
    model = tiny_model("bert")
    banks = occurrences(model, SENTENCES, "bank", layer=-1)
    assert isinstance(banks, InContext) and banks.layer == 1
    for vector, number, at in zip(banks.vectors, banks.sentence, banks.position):
        (alone,) = model.encode([SENTENCES[number]], layers=[1], pretokenized=True)
        np.testing.assert_allclose(vector, alone.states[0, at], atol=1e-5)
    with pytest.raises(UserError, match=r"layer 2 does not exist; the model has 0 \(embeddings\) to 1"):
        occurrences(model, SENTENCES, "bank", layer=2)
