"""Word similarity and analogies on planted vectors."""

import dataclasses

import numpy as np
import pytest

from bertlab.data.tokenizers.words import WordsTokenizer
from bertlab.errors import UserError
from bertlab.evals import similarity
from bertlab.evals.similarity import answer_questions, solve
from bertlab.objectives import REGISTRY
from tests.evals.tiny import PIECES, model_of

TABLE = {
    "king": [3.0, 1, 0, 0],
    "man": [1.0, 1, 0, 0.2],
    "queen": [3.0, 0, 1, 0],
    "woman": [1.0, 0, 1, 0.2],
    "Sweden": [0.0, 2, 0, 5],
    "sweden": [0.0, 2, 1, 5],
    "boy": [0.2, 1, 0.1, 0.3],
    "MAN": [-3.0, 0, 0, 1],
}
SPECIALS = PIECES[:5]


def static_model():
    """A static model whose words have the vectors of TABLE."""
    model = model_of("static", {"skip_gram": REGISTRY["skip_gram"]()}, 13, width=4)
    rows = np.concatenate([np.zeros((5, 4)), [*TABLE.values()]]).astype(np.float32)
    params = {**model.params, "body": {**model.params["body"], "token_embedding": rows}}
    tokenizer = WordsTokenizer([*SPECIALS, *TABLE], False)
    return dataclasses.replace(model, params=params, tokenizer=tokenizer)


def test_similarity_is_spearmans_correlation_of_the_pairs_with_vectors():
    model = static_model()
    pairs = [("king", "queen", 8.5), ("king", "man", 6), ("man", "boy", 8.5), ("king", "duke", 1)]
    pairs += [("woman", "Sweden", 0.5), ("King", "queen", 9)]
    words = list(dict.fromkeys(word for pair in pairs for word in pair[:2]))
    vectors = similarity.word_vectors(model, words)
    counts, found = similarity.rate_words(pairs, vectors)
    # Cosines: king-queen 0.9, king-man 0.886, man-boy 0.827 (ratings 8.5, 6, 8.5, 0.5).
    assert counts == {"pairs": 6, "scored": 4} and set(words) - set(vectors) == {"duke", "King"}
    ranks = np.array([3.5, 2, 3.5, 1]), np.array([4.0, 3, 2, 1])
    assert found["similarity"] == [pytest.approx(np.corrcoef(*ranks)[0, 1])]


def test_analogies_word_by_word():
    """3CosAdd of Levy and Goldberg 2014, for one word after the other."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 6)) * rng.uniform(0.1, 10, size=(40, 1))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = np.array([rng.choice(40, 3, replace=False) for _ in range(200)])
    for (a, b, c), answer in zip(asked, solve(vectors, asked)):
        others = set(range(40)) - {a, b, c}
        expected = max(
            others, key=lambda d: unit[d] @ unit[b] - unit[d] @ unit[a] + unit[d] @ unit[c]
        )
        assert answer == expected


def test_questions_follow_the_rules_of_compute_accuracy(tmp_path):
    """compute-accuracy.c gives the same numbers for these vectors and questions."""
    path = tmp_path / "questions.txt"
    path.write_text(
        ": family\nMAN Woman king QUEEN\nman woman duke duchess\n: gram6\nman king woman queen\n"
        "woman queen SWEDEN man\n: capital\nking queen Man woman\nwoman queen Sweden sweden\n"
        "boy king man SWEDEN\n"
    )
    questions, model = similarity.read_questions(path), static_model()
    words = similarity.possible_answers(model, questions)
    assert words == [*TABLE], "the model's own, in its order"
    planted = {word: np.array([vector]) for word, vector in TABLE.items()}
    counts, found = answer_questions(questions, words, planted)
    assert counts == {"questions": 7, "answers": 8, "answered": 6}
    shares = {name.removeprefix("analogies"): layers for name, layers in found.items()}
    assert shares == {"": [pytest.approx(4 / 6)], " (semantic)": [0.75], " (syntactic)": [0.5]}
    assert answer_questions(questions, words[:3], planted)[1] == {}


def test_of_equally_good_answers_the_more_frequent_word_counts():
    vectors = {"a": [1.0, 0, 0], "b": [1.0, 1, 0], "c": [0.0, 0, 1], "d": [0.0, 1, 1]}
    vectors |= {"e": [0.0, 2, 2], "f": [1.0, 0, 0.1]}
    for order, share in (("abcdef", 1.0), ("abcedf", 0.0)):
        planted = {word: np.array([vector]) for word, vector in vectors.items()}
        _, found = answer_questions([("s", *"abcd")], list(order), planted)
        assert found["analogies"] == [share]


def test_a_word_is_the_mean_of_its_pieces():
    model = model_of("bert", {"mlm": REGISTRY["mlm"]()})
    found = similarity.word_vectors(model, ["abc", "d", "Ω"])
    assert [*found] == ["abc", "d"], "Ω is unknown"
    (embedding,) = model.embed(["abc"])
    assert list(embedding.tokens) == ["a", "##b", "##c"]
    np.testing.assert_allclose(found["abc"], embedding.states.mean(1), atol=1e-5)


def test_glove_has_the_sum_of_both_vectors():
    model = model_of("static", {"glove": REGISTRY["glove"]()}, 13, width=4)
    model = dataclasses.replace(model, tokenizer=WordsTokenizer([*SPECIALS, *TABLE], False))
    found = similarity.word_vectors(model, ["man"])
    body = model.params["body"]
    expected = body["token_embedding"][6] + body["output"]["kernel"][6]
    np.testing.assert_allclose(found["man"][0], expected, rtol=1e-6)


def test_a_wrong_line_is_named(tmp_path):
    path = tmp_path / "file.txt"
    for read, text in (
        (similarity.read_ratings, "old new 1.5\n\nold new"),
        (similarity.read_ratings, "\n\nold new x"),
        (similarity.read_questions, ": s\na b c d\na b c"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=r"file\.txt:3: expected"):
            read(path)
