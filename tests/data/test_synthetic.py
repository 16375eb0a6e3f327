import itertools
import json
import re

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


def test_the_default_language_leaves_much_to_learn():
    """The floor of the default corpus is far below what a model that only counts words or bigrams reaches."""
    corpus = SyntheticCorpus()
    model = corpus.language
    losses = []
    for words in (corpus.sample(i).words for i in range(60)):
        joint = model.topic_prior[:, None] * model.initial  # P(topic, state | words before), by the forward algorithm
        for place, word in enumerate(words):
            joint = joint * model.emission[:, word]
            losses += [-np.log(joint.sum())] if place >= 16 else []
            joint = np.einsum("ts,tsr->tr", joint / joint.sum(), model.transition)
    unigram = np.einsum("t,ts,sv->v", model.topic_prior, model.initial, model.emission)
    bigram = np.einsum("t,ts,sv,tsr,rw->vw", model.topic_prior, model.initial, model.emission, model.transition, model.emission)
    bigram_entropy = -np.sum(bigram * np.log(bigram / unigram[:, None]))
    assert np.mean(losses) < bigram_entropy - 0.1 < -np.sum(unigram * np.log(unigram)) - 0.2


def test_the_same_seed_gives_the_same_text_and_another_another():
    corpus, again, other = (SyntheticCorpus(**{**OPTIONS, "documents": 20, "seed": seed}) for seed in (5, 5, 6))
    documents = list(corpus.documents())
    assert documents == list(again.documents()) == list(corpus.documents())
    assert len({d.id for d in documents}) == len({d.sentences for d in documents}) == 20
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


def test_fixed_lengths_of_independent_words():
    model = language(topics=1, states=1, vocab_size=2, sentence_words=(5, 5), document_sentences=(3, 3))
    sample = sample_document(model, np.random.default_rng(0))
    assert sample.sentence_lengths.tolist() == [5, 5, 5] and sample.topic == 0
    assert len(sample.words) == 15 and sample.states.tolist() == [0] * 15


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            ("documents", 0),
            ("documents", 2.5),
            ("vocab_size", 1),
            ("topics", 0),
            ("states", True),
            ("seed", -1),
            ("seed", "0"),
        ],
        *[("sentence_words", value) for value in ((0, 4), (5, 4), (4, 5, 6), 4, "48")],
        *[("document_sentences", value) for value in ((4,), (4.0, 8), (True, 8))],
    ],
)
def test_nonsense_is_refused_by_name(key, value):
    with pytest.raises(UserError, match=re.escape(f"config.data.synthetic.{key}={value!r}")):
        open_corpus("synthetic", **{**OPTIONS, key: value})


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
