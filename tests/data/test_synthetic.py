import itertools
import json

import numpy as np
import pytest
from scipy import stats

from bertlab.config import base_config, load_config, parse_override
from bertlab.data.corpora import open_corpus
from bertlab.data.synthetic import SyntheticCorpus, language, sample_document
from bertlab.data.tokenizers import train_tokenizer
from bertlab.errors import UserError
from tests.conftest import ROOT

OPTIONS = dict(documents=300, vocab_size=12, topics=3, states=4, seed=5)


@pytest.fixture(scope="module")
def model():
    return language(vocab_size=12, topics=3, states=4, seed=5)


@pytest.fixture(scope="module")
def samples():
    corpus = SyntheticCorpus(**OPTIONS)
    return [corpus.sample(index) for index in range(1500)]


def assert_multinomial(counts, probabilities):
    """The counts are a plausible draw: chi-square with p > 1e-4 (the seed is fixed, so this passes always or never)."""
    assert counts.shape == probabilities.shape
    expected = counts.sum() * probabilities
    assert (counts[expected == 0] == 0).all()
    rare = expected < 5  # put together, as the chi-square distribution needs
    cells = [np.append(values[~rare], values[rare].sum()) for values in (counts, expected)]
    counts, expected = (values[cells[1] > 0] for values in cells)
    assert len(counts) > 1 and stats.chisquare(counts, expected).pvalue > 1e-4


def forward(model, words):
    """log P(words) per topic by the forward algorithm, [T, words]: the terms log P(word | words before, topic)."""
    state = model.initial.copy()
    terms = []
    for word in words:
        joint = state * model.emission[:, word]
        total = joint.sum(axis=1, keepdims=True)
        terms.append(np.log(total[:, 0]))
        state = np.einsum("ts,tsr->tr", joint / total, model.transition)
    return np.array(terms).T


def left_to_right_losses(model, words):
    """−log P(word | words before) with the topic unknown, in nats, [words]."""
    joint = np.log(model.topic_prior)[:, None] + np.cumsum(forward(model, words), axis=1)
    total = np.logaddexp.reduce(joint, axis=0)
    return -np.diff(total, prepend=0.0)


def test_the_probabilities_are_probabilities_and_initial_states_are_stationary(model):
    for array in (model.topic_prior, model.initial, model.transition, model.emission):
        np.testing.assert_allclose(array.sum(axis=-1), 1, rtol=1e-12)
        assert array.dtype == np.float64 and array.min() > 0
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert model.transition.shape == (3, 4, 4) and model.emission.shape == (4, 12)
    np.testing.assert_allclose(np.einsum("ts,tsr->tr", model.initial, model.transition), model.initial, rtol=1e-10)
    assert model.sentence_lengths[:3].sum() == 0 and model.sentence_lengths[3:].tolist() == [1 / 9] * 9


def test_hidden_draws_match_the_model(model, samples):
    topics, states = len(model.topic_prior), len(model.emission)
    assert_multinomial(np.bincount([s.topic for s in samples], minlength=topics), model.topic_prior)
    first, pairs = np.zeros((topics, states)), np.zeros((topics, states, states))
    for sample in samples:
        first[sample.topic, sample.states[0]] += 1
        np.add.at(pairs[sample.topic], (sample.states[:-1], sample.states[1:]), 1)
    for topic in range(topics):
        assert_multinomial(first[topic], model.initial[topic])
        for state in range(states):
            assert_multinomial(pairs[topic, state], model.transition[topic, state])


def test_the_chain_runs_on_across_sentence_ends(model, samples):
    pairs = np.zeros_like(model.transition)
    for sample in samples:
        ends = np.cumsum(sample.sentence_lengths)[:-1]
        np.add.at(pairs[sample.topic], (sample.states[ends - 1], sample.states[ends]), 1)
    for topic, state in itertools.product(range(3), range(4)):
        assert_multinomial(pairs[topic, state], model.transition[topic, state])


def test_words_match_the_model(model, samples):
    states, words = (np.concatenate([getattr(s, name) for s in samples]) for name in ("states", "words"))
    counts = np.zeros_like(model.emission)
    np.add.at(counts, (states, words), 1)
    for state in range(len(counts)):
        assert_multinomial(counts[state], model.emission[state])
    # A word depends on nothing else than its state: not on the state before it.
    after = np.zeros((4, *model.emission.shape))
    for sample in samples:
        np.add.at(after, (sample.states[:-1], sample.states[1:], sample.words[1:]), 1)
    for before, state in itertools.product(range(4), repeat=2):
        assert_multinomial(after[before, state], model.emission[state])


def test_unigrams_and_bigrams_are_the_exact_marginals(model, samples):
    # z bounds from one draw a document, which are independent; words within a document are not.
    unigram = np.einsum("t,ts,sv->v", model.topic_prior, model.initial, model.emission)
    bigram = np.einsum("t,ts,sv,tsr,rw->vw", model.topic_prior, model.initial, model.emission, model.transition, model.emission)
    np.testing.assert_allclose(bigram.sum(axis=1), unigram, rtol=1e-10)
    for place in (0, 7, 15):
        assert_multinomial(np.bincount([s.words[place] for s in samples], minlength=12), unigram)
    totals = np.zeros((len(samples), 12, 12))
    for i, sample in enumerate(samples):
        np.add.at(totals[i], (sample.words[:-1], sample.words[1:]), 1)
    sizes = totals.sum(axis=(1, 2))
    residuals = totals - sizes[:, None, None] * bigram
    z = residuals.sum(axis=0) / np.sqrt((residuals**2).sum(axis=0))
    assert np.abs(z).max() < 4.5
    assert 0.7 < z.std() < 1.3


def test_lengths_match_the_model_and_say_nothing_about_words(model, samples):
    counts = np.bincount([len(s.sentence_lengths) for s in samples], minlength=41)[1:]
    assert_multinomial(counts, model.document_lengths)
    lengths = np.concatenate([s.sentence_lengths for s in samples])
    assert_multinomial(np.bincount(lengths, minlength=13)[1:], model.sentence_lengths)
    table = np.zeros((13, 4))
    for sample in samples:
        ends = np.cumsum(sample.sentence_lengths) - 1
        np.add.at(table, (sample.sentence_lengths, sample.states[ends]), 1)
    assert stats.chi2_contingency(table[4:]).pvalue > 1e-4


def test_topics_differ_in_their_words(model, samples):
    counts = np.stack([sum(np.bincount(s.words, minlength=12) for s in samples if s.topic == t) for t in range(3)])
    share = counts / counts.sum(axis=1, keepdims=True)
    distance = [np.abs(share[a] - share[b]).sum() / 2 for a, b in itertools.combinations(range(3), 2)]
    assert min(distance) > 0.03
    # And the forward algorithm finds the topic.
    found = [int(forward(model, s.words).sum(axis=1).argmax()) == s.topic for s in samples[:150]]
    assert np.mean(found) > 0.9


def test_left_to_right_floor_lies_between_its_bounds(model, samples):
    """It lies between the entropy given the last state and topic and that of the marginal, and matches an enumeration."""
    losses = [left_to_right_losses(model, s.words) for s in samples[:250]]
    late = np.array([loss[16:].mean() for loss in losses])
    unigram = np.einsum("t,ts,sv->v", model.topic_prior, model.initial, model.emission)
    upper = -np.sum(unigram * np.log(unigram))
    next_word = np.einsum("tsr,rv->tsv", model.transition, model.emission)
    lower = -np.einsum("t,ts,tsv,tsv->", model.topic_prior, model.initial, next_word, np.log(next_word))
    error = 4 * late.std() / np.sqrt(len(late))
    assert lower - error < late.mean() < upper - error
    assert lower < upper
    words = samples[0].words[:4]
    exact = 0.0
    for topic, *path in itertools.product(range(3), *[range(4)] * 4):
        steps = [model.transition[topic, a, b] for a, b in itertools.pairwise(path)]
        exact += (
            model.topic_prior[topic] * model.initial[topic, path[0]] * np.prod(steps) * np.prod(model.emission[path, words])
        )
    assert left_to_right_losses(model, words).sum() == pytest.approx(-np.log(exact), rel=1e-10)


def test_the_default_language_leaves_much_to_learn():
    """The floor of the default corpus is far below what a model that only counts words or bigrams reaches."""
    corpus = SyntheticCorpus()
    model = corpus.language
    losses = np.concatenate([left_to_right_losses(model, corpus.sample(i).words)[16:] for i in range(60)])
    unigram = np.einsum("t,ts,sv->v", model.topic_prior, model.initial, model.emission)
    bigram = np.einsum("t,ts,sv,tsr,rw->vw", model.topic_prior, model.initial, model.emission, model.transition, model.emission)
    bigram_entropy = -np.sum(bigram * np.log(bigram / unigram[:, None]))
    assert losses.mean() < bigram_entropy - 0.1 < -np.sum(unigram * np.log(unigram)) - 0.2


def test_the_same_seed_gives_the_same_text_and_another_another():
    corpus, again, other = (SyntheticCorpus(**{**OPTIONS, "documents": 20, "seed": seed}) for seed in (5, 5, 6))
    documents = list(corpus.documents())
    assert documents == list(again.documents()) == list(corpus.documents())
    assert len({d.id for d in documents}) == 20
    assert len({d.sentences for d in documents}) == 20
    assert corpus.fingerprint() == again.fingerprint() != other.fingerprint()
    assert not np.allclose(corpus.language.emission, other.language.emission)
    assert not {d.sentences for d in documents} & {d.sentences for d in other.documents()}


def test_a_document_depends_on_its_number_only():
    few, many = (SyntheticCorpus(**{**OPTIONS, "documents": documents}) for documents in (3, 30))
    assert list(few.documents()) == list(itertools.islice(many.documents(), 3))
    assert few.fingerprint() != many.fingerprint()
    np.testing.assert_array_equal(few.sample(2).words, many.sample(2).words)


@pytest.mark.parametrize("key", ["vocab_size", "topics", "states"])
def test_every_option_changes_language_and_fingerprint(key):
    base, changed = SyntheticCorpus(**OPTIONS), SyntheticCorpus(**{**OPTIONS, key: OPTIONS[key] + 1})
    assert base.fingerprint() != changed.fingerprint()
    assert next(base.documents()) != next(changed.documents())


def test_text_is_the_sample_written_out():
    corpus = open_corpus("synthetic", **OPTIONS)
    assert corpus.spec == "synthetic"
    for index, document in enumerate(itertools.islice(corpus.documents(), 5)):
        sample = corpus.sample(index)
        assert [len(sentence.split(" ")) for sentence in document.sentences] == sample.sentence_lengths.tolist()
        assert " ".join(document.sentences).split(" ") == [corpus.language.words[word] for word in sample.words]


def test_each_word_is_one_token_of_the_words_tokenizer():
    corpus = SyntheticCorpus(documents=100)
    sentences = [sentence for document in corpus.documents() for sentence in document.sentences]
    tokenizer = train_tokenizer("words", sentences, 64 + 5, seed=0)
    ids, starts = tokenizer.encode_words(corpus.language.words)
    assert sorted(ids) == list(range(5, 69))
    assert starts == list(range(64))
    encoded = tokenizer.encode(sentences[0])
    assert tokenizer.decode(encoded) == sentences[0]
    assert len(encoded) == len(sentences[0].split())


def test_fixed_lengths():
    model = language(sentence_words=(5, 5), document_sentences=(3, 3))
    sample = sample_document(model, np.random.default_rng(0))
    assert sample.sentence_lengths.tolist() == [5, 5, 5]
    assert len(sample.words) == len(sample.states) == 15


def test_one_topic_and_one_state_is_independent_words():
    model = language(topics=1, states=1, vocab_size=2)
    sample = sample_document(model, np.random.default_rng(0))
    assert set(sample.states) == {0} and sample.topic == 0
    np.testing.assert_allclose(left_to_right_losses(model, sample.words), -np.log(model.emission[0, sample.words]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("documents", 0),
        ("documents", 2.5),
        ("vocab_size", 1),
        ("topics", 0),
        ("states", -1),
        ("seed", -1),
        ("states", True),
        ("seed", "0"),
    ],
)
def test_nonsense_is_refused_by_name(key, value):
    with pytest.raises(UserError, match=rf"config\.data\.synthetic\.{key}={value!r} .*whole number"):
        open_corpus("synthetic", **{**OPTIONS, key: value})


@pytest.mark.parametrize("lengths", [(0, 4), (5, 4), (4,), (4, 5, 6), 4, "48", (4.0, 8), (True, 8)])
@pytest.mark.parametrize("key", ["sentence_words", "document_sentences"])
def test_nonsense_lengths_are_refused_by_name(key, lengths):
    with pytest.raises(UserError, match=rf"config\.data\.synthetic\.{key}=.* must be the shortest and the longest"):
        open_corpus("synthetic", **{**OPTIONS, key: lengths})


def test_lengths_come_from_the_config_and_the_command_line():
    recipe = str(ROOT / "experiments/pretrain/bert.py")
    default = load_config(recipe).data.synthetic
    assert SyntheticCorpus(**default).fingerprint() == SyntheticCorpus().fingerprint()
    overrides = ["--config.data.synthetic.sentence_words=(8, 8)", "--config.data.synthetic.document_sentences=(3, 5)"]
    fixed = load_config(recipe, argv=overrides).data.synthetic
    assert fixed.sentence_words == (8, 8) == parse_override(base_config(), "data.synthetic.sentence_words", "(8, 8)")
    corpus = SyntheticCorpus(**fixed)
    samples = [corpus.sample(index) for index in range(50)]
    assert {n for sample in samples for n in sample.sentence_lengths.tolist()} == {8}
    assert {len(sample.sentence_lengths) for sample in samples} == {3, 4, 5}
    # A run's config.json has lists.
    again = SyntheticCorpus(**json.loads(json.dumps(fixed.to_dict())))
    assert again.fingerprint() == corpus.fingerprint()
    for key, value in (("sentence_words", (8, 9)), ("document_sentences", (3, 6))):
        assert SyntheticCorpus(**{**fixed, key: value}).fingerprint() != corpus.fingerprint()
