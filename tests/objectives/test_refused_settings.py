"""Settings of built-in objectives that cannot be, and vocabularies that they cannot work with."""

import dataclasses
import re

import pytest

from bertlab.errors import UserError
from bertlab.objectives import find
from bertlab.objectives.electra import unigram_probabilities
from tests.references import VOCABULARY, view_of


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ltr", {"negatives": -1}, "negatives=-1 must be at least 0"),
        ("mlm", {"final_rate": 1.5}, "final_rate=1.5 must be at least 0 and at most 1"),
        ("mlm", {"mask_share": 0.8, "random_share": 0.3}, "mask_share + random_share=1.1 must be at most 1"),
        ("mlm", {"unit": "word"}, "unit='word' is not known; choose one of token, whole_word, span"),
        ("mlm", {"unit": "span", "exact": False}, "set unit=token, or exact=True for span"),
        ("mlm", {"static": True, "final_rate": 0.15}, "static=True keeps them: set only one of them"),
        ("mlm", {"rate": 0.0}, "rate=0.0 must be more than 0"),
        ("mlm", {"unit": "span", "span_p": 0.0}, "span_p=0.0 must be above 0"),
        ("mlm", {"longest_span": 0}, "longest_span=0 must be at least 1"),
        ("mlm", {"span_p": 0.5}, "span_p=0.5 has no effect without unit=span; leave it at 0.2"),
        ("mlm", {"unit": "whole_word", "longest_span": 5}, "longest_span=5 has no effect without unit=span"),
        ("mlm", {"static_seed": 1}, "static_seed=1 has no effect without static;"),
        ("mlm", {"max_predictions": -1}, "max_predictions=-1 must be at least 0"),
        ("sbo", {"places": 0}, "places=0 must be at least 1"),
        ("sbo", {"place_width": 0}, "place_width=0 must be at least 1"),
        ("electra", {"task": "detect"}, "task='detect' is not known; choose one of discriminate, "),
        ("electra", {"generator": "large"}, "generator='large' is not known; choose one of small, unigram"),
        ("electra", {"rate": 0.0}, "rate=0.0 must be above 0"),
        ("electra", {"generator_size": 1.5}, "generator_size=1.5 must be above 0 and at most 1"),
        ("electra", {"discriminator_weight": 0.0}, "discriminator_weight=0.0 must be above 0"),
        ("electra", {"generator": "unigram", "generator_size": 0.5}, "generator_size=0.5 has no effect"),
        ("electra", {"generator": "unigram", "discriminator_weight": 1.0}, "discriminator_weight=1.0 has no effect"),
        (
            "electra",
            {"task": "all_tokens", "discriminator_weight": 1.0},
            "has no effect without task=discriminate*",
        ),
        ("diffusion", {"schedule": "square"}, "schedule='square' is not known"),
        ("diffusion", {"least_share": 0.0}, "least_share=0.0 must be above 0"),
        ("prefix", {"min_share": 0.5, "max_share": 0.2}, "min_share=0.5 must not be above max_share=0.2"),
        ("prefix", {"max_share": 1.5}, "max_share=1.5 must be at least 0 and at most 1"),
        ("masked_next_token", {"causal_share": 2}, "causal_share=2 must be at least 0 and at most 1"),
        ("masked_next_token", {"rate": -1}, "rate=-1 must be"),
        ("permutation", {"predict_one_in": 0}, "predict_one_in=0 must be at least 1"),
        ("skip_gram", {"window": 0}, "window=0 must be at least 1"),
        ("skip_gram", {"negatives": 0}, "negatives=0 must be at least 1"),
        ("cbow", {"subsample": -1.0}, "subsample=-1.0 must be at least 0"),
        ("glove", {"x_max": 0}, "x_max=0 must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        find(name)(**settings)


@pytest.mark.parametrize("name", ["mlm", "diffusion", "electra", "masked_next_token", "permutation"])
def test_a_tokenizer_without_mask_is_refused(name):
    with pytest.raises(UserError, match=r"\[MASK\] in config\.data\.tokenizer\.path"):
        find(name)().check(dataclasses.replace(VOCABULARY, mask_id=None))


def test_more_negatives_than_tokens_are_refused():
    find("ltr")(negatives=49).check(VOCABULARY)
    with pytest.raises(UserError, match="negatives=50 must be smaller than the vocabulary, 50; 0 is the full softmax"):
        find("ltr")(negatives=50).check(VOCABULARY)


def test_training_texts_without_counts_or_words_are_refused(packed_batch):
    only_specials = dataclasses.replace(VOCABULARY, counts=(5,) + (0,) * 49)
    with pytest.raises(UserError, match="nothing to draw"):
        unigram_probabilities(only_specials)
    for vocabulary, message in (
        (dataclasses.replace(VOCABULARY, counts=None), "came without counts"),
        (only_specials, "only special tokens"),
    ):
        with pytest.raises(UserError, match=message):
            view_of(find("skip_gram")(), packed_batch(), vocabulary=vocabulary)
