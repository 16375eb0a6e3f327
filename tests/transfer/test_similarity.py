"""`bertlab similarity`: correlations against scipy, and analogies against a reference and word2vec's rules, on planted vectors;
and how a word gets its vector from a contextual model.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cosine
from scipy.stats import pearsonr, spearmanr

from bertlab.cli import main
from bertlab.interop import import_weights
from bertlab.train.checks import vocabulary_of
from bertlab.transfer.load import load
from bertlab.transfer.similarity import (
    SENTENCE,
    Question,
    Rated,
    alone,
    answer_questions,
    in_context,
    possible_answers,
    rate_sentences,
    solve,
)
from tests.references import tiny_program
from tests.transfer.test_inspect import tiny_model

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


def static_run(directory: Path, table=TABLE) -> Path:
    """The directory of imported vectors, in the order of `table`."""
    lines = [f"{len(table)} {len(next(iter(table.values())))}", *(f"{w} {' '.join(map(str, v))}" for w, v in table.items())]
    (directory / "vectors.txt").write_text("\n".join(lines) + "\n")
    import_weights("word2vec", directory / "vectors.txt", directory / "run")
    return directory / "run"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def entries(run: Path, name: str = "similarity.json") -> dict:
    return json.loads((run / name).read_text())


def test_word_similarity_is_spearmans_correlation_of_the_pairs_that_have_vectors(tmp_path, capsys):
    run = static_run(tmp_path)
    pairs = [("king", "queen", 8.5), ("king", "man", 6), ("man", "boy", 8.5), ("woman", "Sweden", 0.5), ("queen", "boy", 7)]
    lines = [f"{one}\t{other} {rating}" for one, other, rating in pairs]
    file = written(tmp_path / "pairs.txt", lines[0], "king duke 1", "", "King queen 9", *lines[1:])
    assert main(["similarity", f"--run={run}", f"--words={file}"]) == 0
    cosines = [1 - cosine(TABLE[one], TABLE[other]) for one, other, _ in pairs]
    entry = entries(run)["word_similarity"][str(file)]["table"]
    assert entry["layers"] == {"0": pytest.approx(spearmanr([rating for *_, rating in pairs], cosines).statistic)}
    assert (entry["pairs"], entry["scored"]) == (7, 5), "no vector: duke, and King as it is written"
    assert "5 of 7 pairs" in capsys.readouterr().out


def both_measures(unit, a, b, c):
    """The answers of both measures, word by word (Levy and Goldberg 2014)."""
    added, multiplied = {}, {}
    for d in set(range(len(unit))) - {a, b, c}:
        to_a, to_b, to_c = (float(unit[d] @ unit[other]) for other in (a, b, c))
        added[d] = to_b - to_a + to_c
        multiplied[d] = ((to_b + 1) / 2) * ((to_c + 1) / 2) / ((to_a + 1) / 2 + 0.001)
    return max(added, key=added.get), max(multiplied, key=multiplied.get)


def test_both_measures_are_those_of_a_reference():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 6)) * rng.uniform(0.1, 10, size=(40, 1))
    asked = np.array([rng.choice(40, 3, replace=False) for _ in range(200)])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = np.array([both_measures(unit, *row) for row in asked])
    found = solve(vectors, asked)
    np.testing.assert_array_equal(np.stack([found["3CosAdd"], found["3CosMul"]], axis=1), expected)
    assert (expected[:, 0] != expected[:, 1]).any(), "the measures can be told apart"


def test_the_words_of_a_question_are_never_its_answer():
    """b is near a, so that c itself is nearest to b − a + c; the right answer is only second."""
    words, vectors = ["a", "b", "c", "d", "e"], np.array([[1, 0.1, 0], [1, 0.2, 0], [0, 0.1, 1], [0, 0.5, 1], [-1, 0, 0.5]])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.argmax(unit @ (unit[1] - unit[0] + unit[2])) == 2
    found = answer_questions([Question("gram1", "a", "b", "c", "d")], words, vectors[None])["layers"]["0"]
    assert found["3CosAdd"]["all"] == found["3CosMul"]["all"] == 1.0


def test_of_equally_good_answers_the_more_frequent_word_counts():
    vectors = {"a": [1.0, 0, 0], "b": [1.0, 1, 0], "c": [0.0, 0, 1], "d": [0.0, 1, 1], "e": [0.0, 2, 2], "f": [1.0, 0, 0.1]}
    for order, share in (("abcdef", 1.0), ("abcedf", 0.0)):
        planted = np.array([[vectors[word] for word in order]])
        found = answer_questions([Question("s", *"abcd")], list(order), planted)["layers"]["0"]
        assert found["3CosAdd"]["all"] == found["3CosMul"]["all"] == share


def test_questions_follow_the_rules_of_compute_accuracy(tmp_path):
    """The first word of a spelling in capitals is the question's; another may be the answer, and is right in any case.

    compute-accuracy.c gives the same numbers for these vectors and questions.
    """
    run = static_run(tmp_path)
    file = written(
        tmp_path / "questions.txt",
        ": family",
        "MAN Woman king QUEEN",
        "man woman duke duchess",
        ": gram6",
        "man king woman queen",
        "woman queen SWEDEN man",
        ": capital",
        "king queen Man woman",
        "woman queen Sweden sweden",
        "boy king man SWEDEN",
    )
    ask = ["similarity", f"--run={run}", f"--analogies={file}"]
    assert main(ask) == 0
    (entry,) = entries(run)["analogies"][str(file)].values()
    assert (entry["questions"], entry["answered"], entry["words"]) == (7, 6, 8)
    assert entry["answers_from"] == "the run's vocabulary"
    assert entry["sections"]["family"] == {"questions": 2, "answered": 1}
    found = entry["layers"]["0"]["3CosAdd"]
    assert found["sections"] == {"family": 1.0, "gram6": 0.5, "capital": pytest.approx(2 / 3)}
    assert (found["semantic"], found["syntactic"], found["all"]) == (0.75, 0.5, pytest.approx(4 / 6))
    place = {word: number for number, word in enumerate(TABLE)}
    vectors = np.array([*TABLE.values()])
    asked = np.array([[place["woman"], place["queen"], place["Sweden"]]])
    assert solve(vectors, asked)["3CosAdd"].tolist() == [place["sweden"]], "another spelling of a question's word"

    assert main([*ask, "--vocabulary=3"]) == 0
    (entry,) = entries(run)["analogies"][str(file)].values()
    assert (entry["answered"], entry["words"]) == (0, 3) and entry["layers"]["0"]["3CosMul"]["all"] is None
    assert main([*ask, "--vocabulary=4"]) == 0
    (entry,) = entries(run)["analogies"][str(file)].values()
    assert (entry["answered"], entry["words"], entry["layers"]["0"]["3CosAdd"]["all"]) == (3, 4, 1.0)


def test_glove_has_the_vectors_that_are_exported(tmp_path):
    model, rng = tiny_model("static"), np.random.default_rng(0)
    body = {"token_embedding": rng.normal(size=(25, 8)), "output": {"kernel": rng.normal(size=(25, 8))}}
    program = tiny_program("static", "glove", vocabulary_of(model.tokenizer))
    model = dataclasses.replace(model, program=program, params={"body": body})
    known, sizes, vectors = alone(model, ["bank", "duck"])
    row = model.tokenizer.pieces().index("bank")
    np.testing.assert_allclose(vectors[0, 0], body["token_embedding"][row] + body["output"]["kernel"][row], rtol=1e-6)
    assert known.tolist() == [True, False] and sizes.tolist() == [1, 1]


# ---- contextual models

LINES = ["the money, the river: a money!", "she owes the bank money", "no money-boat lay by", "muddy " * 200 + "money"]


@pytest.fixture(scope="module")
def model():
    """Its pieces are letters and few more: "bank" is one piece, "money" four."""
    return tiny_model("bert", kind="wordpiece", size=50)


def states_of(model, text: str) -> tuple[list[str], np.ndarray]:
    """The pieces of a text without special tokens, and their states [n, T, D]."""
    (embedding,) = model.encode([text])
    return list(embedding.tokens), embedding.states


def test_alone_is_the_mean_of_a_words_pieces_without_special_tokens(model):
    known, sizes, vectors = alone(model, ["bank", "money", "Ω"])
    assert known.tolist() == [True, True, False] and sizes[:2].tolist() == [1, 4] and vectors.shape == (2, 3, 8)
    for number, word in enumerate(["bank", "money"]):
        tokens, states = states_of(model, word)
        assert len(tokens) == sizes[number]
        np.testing.assert_allclose(vectors[:, number], states.mean(1), atol=1e-5)


def test_in_context_is_the_mean_over_occurrences_of_the_mean_of_pieces(model):
    counts, left_out, vectors = in_context(model, ["money", "boat", "money-boat", "Money", "bank"], LINES)
    assert counts.tolist() == [3, 0, 1, 0, 1] and left_out == 1, "the last line is longer than the model's positions"
    found = []
    for line in LINES[:2]:
        tokens, states = states_of(model, line)
        starts = [at for at in range(len(tokens)) if tokens[at : at + 4] == ["m", "##o", "##n", "##ey"]]
        found += [states[:, at : at + 4].mean(1) for at in starts]
    assert len(found) == 3
    np.testing.assert_allclose(vectors[:, 0], np.mean(found, 0), atol=1e-5)
    assert not vectors[:, 1].any() and not vectors[:, 3].any()
    assert in_context(model, ["money"], LINES, most=2)[0].tolist() == [2]


def test_with_a_text_every_way_scores_the_same_words(model, tmp_path, monkeypatch):
    monkeypatch.setattr("bertlab.transfer.similarity.load", lambda run, step: model)
    file = written(tmp_path / "pairs.txt", "bank money 3", "the money 2", "the river 1", "bank Ω 9", "bank boat 9")
    text = written(tmp_path / "text.txt", *LINES)
    for more in ([], [f"--text={text}", "--contexts=9"]):
        assert main(["similarity", f"--run={tmp_path}", f"--words={file}", *more]) == 0
    ways = entries(tmp_path)["word_similarity"][str(file)]
    scored = {way: entry["scored"] for way, entry in ways.items()}
    assert scored == {"alone": 4, f"alone; words of {text}": 3, f"in context; words of {text}": 3}
    entry = ways[f"in context; words of {text}"]
    assert entry["text_hash"] == ways[f"alone; words of {text}"]["text_hash"] != ways["alone"]["text_hash"]
    assert (entry["contexts"], entry["mean_contexts"], entry["lines_left_out"]) == (9, (3 + 3 + 1 + 1) / 4, 1)
    words = ["bank", "money", "the", "river"]
    vectors = dict(zip(words, in_context(model, words, LINES)[2][1]))
    cosines = [
        1 - cosine(vectors[one], vectors[other]) for one, other in (("bank", "money"), ("the", "money"), ("the", "river"))
    ]
    assert entry["layers"]["1"] == pytest.approx(spearmanr([3, 2, 1], cosines).statistic)


def test_answers_are_sought_among_words_of_the_text_or_of_the_run_or_of_the_questions(model):
    questions = [Question("s", "The", "bank", "the", "Bank")]
    assert possible_answers(model, questions) == (["The", "bank", "the", "Bank"], "the questions")
    assert possible_answers(model, questions, LINES[:3], 3) == (["money", "the", "a"], "the text")
    words = tiny_model("awd_lstm")
    vocabulary = words.tokenizer.pieces()[5:]
    assert possible_answers(words, questions, most=0) == (vocabulary, "the run's vocabulary")
    assert "the" in possible_answers(words, questions, most=4)[0] and "[UNK]" not in vocabulary


# ---- sentences


def test_sentence_similarity_correlates_cosines_of_mean_states_on_each_layer(model):
    pairs = [
        Rated("the bank", "a bank", 4.5),
        Rated("the river", "money", 1),
        Rated("no boat", "a boat lay", 3),
        Rated("a", "by", 0),
    ]
    entry = rate_sentences(model, pairs)
    assert entry["pairs"] == 4 and entry["unknown"] == 0 and list(entry["layers"]) == ["0", "1"]
    for layer in (0, 1):
        first, second = (model.sentence_vectors([pair[side] for pair in pairs], layer) for side in (0, 1))
        cosines = [1 - cosine(one, other) for one, other in zip(first, second)]
        for measure, name in ((spearmanr, "spearman"), (pearsonr, "pearson")):
            assert entry["layers"][str(layer)][name] == pytest.approx(measure([4.5, 1, 3, 0], cosines).statistic, abs=1e-5)


def test_sentences_of_planted_vectors_have_known_correlations(tmp_path):
    """Sentences at 0°, 60° and 90° have cosines 1, 1/2 and 0; the sums of their words matter, not the first or the last."""
    run = static_run(tmp_path, {"east": [1, 0], "north": [0, 1], "west": [-1, 0], "up": [-1, 2 * 3**0.5]})
    header = "index\tsentence1\tsentence2\tscore"
    rows = ["0\teast\teast east\t5", "1\teast\teast up east\t1", "2\teast\twest north east\t0.5"]
    file = written(tmp_path / "dev.tsv", header, *rows)
    assert main(["similarity", f"--run={run}", f"--sts={file}"]) == 0
    entry = entries(run)["sentence_similarity"][str(file)][SENTENCE]
    assert entry["layers"]["0"]["spearman"] == pytest.approx(1)
    ratings, cosines = np.array([5, 1, 0.5]), np.array([1, (1 / 13) ** 0.5, 0])
    assert entry["layers"]["0"]["pearson"] == pytest.approx(np.corrcoef(ratings, cosines)[0, 1])


# ---- the file, and mistakes


def test_entries_of_other_files_and_ways_stay(tmp_path):
    run = static_run(tmp_path)
    files = [written(tmp_path / name, "king queen 1", "king man 2", "man boy 3") for name in ("a.txt", "b.txt")]
    questions = written(tmp_path / "questions.txt", ": s", "man woman king queen")
    assert main(["similarity", f"--run={run}", f"--words={files[0]},{files[1]}"]) == 0
    before = entries(run)["word_similarity"]
    assert list(before) == [*map(str, files)]
    assert main(["similarity", f"--run={run}", f"--analogies={questions}", f"--words={files[0]}"]) == 0
    assert entries(run)["word_similarity"] == before and str(questions) in entries(run)["analogies"]
    assert load(run).tokenizer.has_whole_words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to measure; give --words=FILE"),
        (["--words=w.txt", "--contexts=0"], "--contexts=0 must be at least 1"),
        (["--words=no.txt"], "--words=no.txt: "),
        (["--words=w.txt", "--out=w.txt"], "--out=w.txt: the output is JSON"),
        (["--words=w.txt", "--out=other.json"], "other.json: this file does not hold similarities"),
        (["--words=w.txt", "--step=3"], "no checkpoint of step 3"),
        (["--words=bad.txt"], "bad.txt:2: expected two words and a number"),
        (["--words=nan.txt"], "nan.txt:1: expected two words and a number"),
        (["--words=unknown.txt"], "none of the 2 words has a vector in this run"),
        (["--analogies=w.txt"], "w.txt:1: expected four words under a line ': section'"),
        (["--analogies=empty.txt"], "--analogies=empty.txt has no questions"),
        (["--sts=no.tsv"], "--sts=no.tsv: there is no such file"),
        (["--sts=w.txt"], "no column is called 'sentence1'"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    static_run(tmp_path)
    written(tmp_path / "w.txt", "king queen 1")
    written(tmp_path / "bad.txt", "king queen 1", "king queen")
    written(tmp_path / "nan.txt", "king queen nan")
    written(tmp_path / "unknown.txt", "duke duchess 1")
    written(tmp_path / "empty.txt", ": s")
    written(tmp_path / "other.json", '{"loss": 1}')
    assert main(["similarity", "--run=run", *arguments]) == 2
    text = capsys.readouterr().err
    assert said in text and text.count("\n") == 1
    assert not (tmp_path / "run/similarity.json").exists()
