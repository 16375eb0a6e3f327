"""Cosines of word vectors against human ratings, and analogies; nothing is trained.

A word has one vector on each layer: in a static model its row of the table (GloVe: w + w̃), or the
mean of its pieces' rows ("table"); in any other the mean of its pieces' states in a text of only
this word ("alone"; Bommasani et al. 2020: decontextualized).

Letters: N words, Q questions, V possible answers, n layers (0: the embeddings), D width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from bertlab.data.corpora.text import read_lines
from bertlab.errors import UserError
from bertlab.transfer.load import Pretrained
from bertlab.transfer.scorers import spearman

VOCABULARY = 30_000  # most frequent words among the answers: compute-accuracy.c's usual threshold
ROUNDING = 1e-9  # error of cosines in float64
BLOCK = 256  # texts whose states are in memory

Vectors = Mapping[str, Float[np.ndarray, "n D"]]
Rating = tuple[str, str, float]  # two words and their similarity
Question = tuple[str, str, str, str, str]  # a section; a is to b as c is to d
Results = tuple[dict[str, int], dict[str, list[float]]]  # counts, and each layer's scores, by name


def read_ratings(path: Path) -> list[Rating]:
    """Lines "word word rating", as in Faruqui and Dyer's collection (2014)."""
    pairs = []
    for number, line in read_lines(path):
        try:
            if fields := line.split():
                first, second, rating = fields
                pairs.append((first, second, float(rating)))
        except ValueError:
            raise UserError(f"{path}:{number}: expected two words and a number") from None
    return pairs


def read_questions(path: Path) -> list[Question]:
    """word2vec's questions-words.txt: four words per line, under lines ": section"."""
    questions, section = [], ""
    for number, line in read_lines(path):
        fields = line.split()
        if fields[:1] == [":"]:
            section = " ".join(fields[1:])
        elif fields and (len(fields) != 4 or not section):
            raise UserError(f"{path}:{number}: expected four words under a line ': section'")
        elif fields:
            questions.append((section, *fields))
    return questions


def word_scores(model: Pretrained, settings) -> dict[str, dict[str, float]]:
    """`config.evaluate`'s rated words and analogies: file -> metric and layer -> number."""
    way = "table" if model.config.model.family == "static" else "alone"
    ratings = {path: read_ratings(Path(path)) for path in settings.words.split(",") if path}
    words = [word for pairs in ratings.values() for pair in pairs for word in pair[:2]]
    if settings.analogies:
        questions = read_questions(Path(settings.analogies))
        answers = possible_answers(model, questions)
        words += answers
    vectors = word_vectors(model, list(dict.fromkeys(words)))
    results = {path: rate_words(pairs, vectors) for path, pairs in ratings.items()}
    if settings.analogies:
        results[settings.analogies] = answer_questions(questions, answers, vectors)
    found = {}
    for path, (counts, scores) in results.items():
        found[path] = dict(counts)
        for name, layers in scores.items():
            found[path] |= {f"{name}/{way}, layer {n}": x for n, x in enumerate(layers)}
    return found


def word_vectors(model: Pretrained, words: Sequence[str]) -> Vectors:
    """The mean of the states of a word's pieces, for each word made of pieces that the model has
    (with a vocabulary of words, each word in it)."""
    whole, unknown = model.tokenizer.has_whole_words, model.tokenizer.unk_id
    reads_characters = model.config.model.token_encoder == "characters"
    ids = [model.tokenizer.encode(word) for word in words]
    blocks = (words[first : first + BLOCK] for first in range(0, len(words), BLOCK))
    # Narrower layers end in zeros, which no cosine sees.
    states = (embedding.states for block in blocks for embedding in model.embed(block))
    found = {}
    for word, of_word, of_pieces in zip(words, ids, states):
        in_vocabulary = unknown not in of_word and (len(of_word) == 1 or not whole)
        if of_word and (reads_characters or in_vocabulary):
            found[word] = of_pieces.mean(axis=1)
    return found


def rate_words(pairs: Sequence[Rating], vectors: Vectors) -> Results:
    """Counts of pairs and of those with vectors; Spearman's correlation of the cosines and ratings
    of these (none for fewer than two)."""
    scored = [pair for pair in pairs if pair[0] in vectors and pair[1] in vectors]
    counts = {"pairs": len(pairs), "scored": len(scored)}
    if len(scored) < 2:
        return counts, {}
    *words, ratings = zip(*scored)
    first, second = (unit(np.stack([vectors[word] for word in side], axis=1)) for side in words)
    cosines = (first * second).sum(axis=-1)
    return counts, {"similarity": [spearman(ratings, layer) for layer in cosines]}


def unit(vectors: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
    """Vectors scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(np.asarray(vectors, np.float64), axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def possible_answers(model: Pretrained, questions: Sequence[Question]) -> list[str]:
    """The words among which an answer is sought, the most frequent first: a vocabulary of words, or
    else those of the questions (far fewer to choose from than in published results)."""
    tokenizer = model.tokenizer
    if tokenizer.has_whole_words:
        pieces = enumerate(tokenizer.pieces())
        words = [piece for index, piece in pieces if index not in tokenizer.special_ids]
    else:
        asked = [word for question in questions for word in question[1:]]
        words = dict.fromkeys(word.lower() if tokenizer.lowercase else word for word in asked)
    return list(words)[:VOCABULARY]


def answer_questions(
    questions: Sequence[Question], words: Sequence[str], vectors: Vectors
) -> Results:
    """Counts of questions, of words with vectors, and of questions of such words; the shares of
    right answers, also of semantic and of syntactic questions (sections that begin with "gram").

    By the rules of word2vec's compute-accuracy.c: words are equal if their upper-case forms are;
    of several such words the first, the most frequent, stands for a question's word, and the others
    may still be answers.
    """
    words = [word for word in words if word in vectors]
    capitals = np.array([word.upper() for word in words])
    row = {word: number for number, word in reversed([*enumerate(capitals.tolist())])}
    answered = [q for q in questions if all(word.upper() in row for word in q[1:])]
    counts = {"questions": len(questions), "answers": len(words), "answered": len(answered)}
    if not answered:
        return counts, {}
    is_syntactic = np.array([question[0].startswith("gram") for question in answered])
    asked = np.array([[row[word.upper()] for word in question[1:]] for question in answered])
    layers = np.stack([vectors[word] for word in words], axis=1)
    solved = np.array([solve(layer, asked[:, :3]) for layer in layers])
    right = capitals[solved] == capitals[asked[:, 3]]  # [n, Q]
    scores = {"analogies": right.mean(axis=1).tolist()}
    for name, group in (("semantic", ~is_syntactic), ("syntactic", is_syntactic)):
        if group.any():
            scores[f"analogies ({name})"] = right[:, group].mean(axis=1).tolist()
    return counts, scores


def solve(vectors: Float[np.ndarray, "V D"], asked: Int[np.ndarray, "Q 3"]) -> list[int]:
    """The d of "a is to b as c is to d" with the highest cos(d, b) − cos(d, a) + cos(d, c), among
    all words but a, b and c (3CosAdd, Levy and Goldberg 2014); of equal ones the first."""
    units, answers = unit(vectors), []
    for a, b, c in asked:
        scores = units @ (units[b] - units[a] + units[c])
        scores[[a, b, c]] = -np.inf
        answers.append(int(np.argmax(scores >= scores.max() - ROUNDING)))
    return answers
