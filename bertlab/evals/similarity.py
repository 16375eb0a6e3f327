"""Cosines of word vectors against human ratings, and analogies; nothing is trained.

A word has one vector on each layer. How a model gives it:

    table       a static model: its row of the table (w + w̃ of GloVe), or the mean of its pieces'
    alone       the mean of its pieces' states in a text of this word (Bommasani et al. 2020:
                decontextualized)
    in context  the mean over its occurrences in a text, each the mean of its pieces' states
                (Bommasani et al. 2020: aggregated)

Letters: N words, Q questions, V possible answers, n layers (0: the embeddings), D width.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.data.corpora.text import read_lines
from bertlab.errors import UserError
from bertlab.objectives.word_vectors import Glove
from bertlab.transfer.load import Pretrained
from bertlab.transfer.offsets import piece_offsets
from bertlab.transfer.scorers import spearman

CONTEXTS = 50
"""Most occurrences of a word."""

VOCABULARY = 30_000
"""Answers are among so many of the most frequent words: compute-accuracy.c's usual threshold."""

ROUNDING = 1e-9  # of cosines in float64
AT_A_TIME = 256  # texts whose states are in memory

WORD = re.compile(r"\w+(?:[-'’]\w+)*")


class Rated(NamedTuple):
    """Two words with a human rating of their similarity."""

    first: str
    second: str
    rating: float


class Question(NamedTuple):
    """An analogy: a is to b as c is to `answer`."""

    section: str
    a: str
    b: str
    c: str
    answer: str


def read_ratings(path: Path) -> list[Rated]:
    """Lines "word word rating", as in Faruqui and Dyer's collection (2014)."""
    pairs = []
    for number, line in read_lines(path):
        fields = line.split()
        try:
            if fields:
                first, second, rating = fields
                pairs.append(Rated(first, second, float(rating)))
        except ValueError:
            raise UserError(
                f"{path}:{number}: expected two words and a number, such as 'old new 1.58'"
            ) from None
    return pairs


def read_questions(path: Path) -> list[Question]:
    """word2vec's questions-words.txt: four words a line, under lines ": section"."""
    questions, section = [], ""
    for number, line in read_lines(path):
        fields = line.split()
        if fields[:1] == [":"]:
            section = " ".join(fields[1:])
        elif fields and (len(fields) != 4 or not section):
            raise UserError(f"{path}:{number}: expected four words under a line ': section'")
        elif fields:
            questions.append(Question(section, *fields))
    return questions


def fold(model: Pretrained, word: str) -> str:
    """The word as the tokenizer distinguishes it from others."""
    return word.lower() if model.tokenizer.lowercase else word


def word_vectors(
    model: Pretrained, words: Sequence[str], lines: Sequence[str] = ()
) -> tuple[Bool[np.ndarray, "N"], dict[str, Float[np.ndarray, "n N D"]]]:
    """Which words have a vector in every way that the model allows, and the vectors by way.

    Args:
        model: From `bertlab.load`.
        words: Without white space.
        lines: Sentences, for "in context"; then only words that occur in them have a vector.
    """
    is_static = model.config.model.family == "static"
    has_vector, vectors = alone(model, words)
    ways = {"table" if is_static else "alone": vectors}
    if lines and is_static:
        occurring = {fold(model, word) for line in lines for word in WORD.findall(line)}
        has_vector &= np.array([fold(model, word) in occurring for word in words])
    elif lines:
        counts, ways["in context"] = in_context(model, words, lines)
        has_vector &= counts > 0
    return has_vector, ways


def alone(
    model: Pretrained, words: Sequence[str]
) -> tuple[Bool[np.ndarray, "N"], Float[np.ndarray, "n N D"]]:
    """Whether each word is made of pieces that the model has (with a vocabulary of words, is one of
    them), and the mean of their states."""
    whole, unknown = model.tokenizer.has_whole_words, model.tokenizer.unk_id
    reads_characters = model.config.model.token_encoder == "characters"
    has_vector, vectors = [], []
    for word, states in zip(words, states_of(model, words)):
        ids = model.tokenizer.encode(word)
        in_vocabulary = unknown not in ids and (len(ids) == 1 or not whole)
        has_vector.append(len(ids) > 0 and (reads_characters or in_vocabulary))
        vectors.append(states.sum(axis=1) / max(states.shape[1], 1))
    return np.array(has_vector), np.stack(vectors, axis=1)


def in_context(
    model: Pretrained, words: Sequence[str], lines: Sequence[str], most: int = CONTEXTS
) -> tuple[Int[np.ndarray, "N"], Float[np.ndarray, "n N D"]]:
    """How many occurrences of each word were used, at most `most`, from the lines in a random
    order; and their mean, zeros for a word that does not occur.

    Lines that the model cannot read as they are, because they are too long or their pieces do not
    follow the words, are left out.
    """
    keys = list(dict.fromkeys(fold(model, word) for word in words))
    numbers, left = {key: number for number, key in enumerate(keys)}, np.full(len(keys), most)
    texts, occurrences = [], []
    for number in np.random.default_rng(0).permutation(len(lines)):
        line = " ".join(lines[number].split())
        found = [(numbers.get(fold(model, word[0])), *word.span()) for word in WORD.finditer(line)]
        found = [(key, *span) for key, *span in found if key is not None and left[key]]
        ids, offsets = piece_offsets(line, model.tokenizer) if found else ((), None)
        if not found or list(ids) != model.tokenizer.encode(line) or len(ids) + 2 > model.longest:
            continue
        texts.append(line)
        occurrences.append([])
        for key, begin, end in found:
            pieces = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
            if left[key] and len(pieces):
                left[key] -= 1
                occurrences[-1].append((key, pieces))
    totals = None
    for states, spots in zip(states_of(model, texts), occurrences):
        if totals is None:
            totals = np.zeros((len(states), len(keys), states.shape[-1]))
        for key, pieces in spots:
            totals[:, key] += states[:, pieces].mean(axis=1)
    if totals is None:
        raise UserError(f"none of the {len(keys)} words occurs in the text (case counts)")
    order = [numbers[fold(model, word)] for word in words]
    counts = (most - left)[order]
    return counts, totals[:, order] / np.maximum(counts, 1)[:, None]


def states_of(model: Pretrained, texts: Sequence[str]) -> Iterator[Float[np.ndarray, "n T D"]]:
    """The states of each text's pieces; narrower layers end with zeros, which no cosine sees."""
    body = model.params["body"]
    if any(isinstance(objective, Glove) for objective in model.objectives.values()):
        table = np.asarray(body["token_embedding"]) + np.asarray(body["output"]["kernel"])
        yield from (table[model.tokenizer.encode(text)][None] for text in texts)
        return
    for first in range(0, len(texts), AT_A_TIME):
        for embedding in model.embed(list(texts[first : first + AT_A_TIME])):
            yield embedding.states


def rate_words(
    pairs: Sequence[Rated], row: Mapping[str, int], vectors: Float[np.ndarray, "n N D"]
) -> tuple[int, list[float]]:
    """How many pairs have vectors, and Spearman's correlation of their cosines and ratings on each
    layer (NaN for fewer than two).
    """
    scored = [pair for pair in pairs if pair.first in row and pair.second in row]
    if len(scored) < 2:
        return len(scored), [math.nan] * len(vectors)
    first, second = ([row[pair[side]] for pair in scored] for side in (0, 1))
    ratings, units = [pair.rating for pair in scored], unit(vectors)
    cosines = (units[:, first] * units[:, second]).sum(axis=-1)
    return len(scored), [spearman(ratings, of_layer) for of_layer in cosines]


def unit(vectors: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
    """Vectors of length 1; zeros stay zeros."""
    length = np.linalg.norm(np.asarray(vectors, np.float64), axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def possible_answers(
    model: Pretrained, questions: Sequence[Question], lines: Sequence[str] = ()
) -> list[str]:
    """The words among which an answer is sought, the most frequent first: those of the lines, else
    those of a vocabulary of words, in its order, else those of the questions (far fewer to choose
    from than in published results)."""
    if lines:
        counts = collections.Counter(fold(model, w) for line in lines for w in WORD.findall(line))
        words = sorted(counts, key=lambda word: (-counts[word], word))
    elif model.tokenizer.has_whole_words:
        special = model.tokenizer.special_ids
        pieces = enumerate(model.tokenizer.pieces())
        words = [piece for index, piece in pieces if index not in special]
    else:
        words = dict.fromkeys(fold(model, word) for question in questions for word in question[1:])
    return list(words)[:VOCABULARY]


def answer_questions(
    questions: Sequence[Question], words: Sequence[str], vectors: Float[np.ndarray, "n V D"]
) -> tuple[int, list[dict[str, float]]]:
    """How many questions have their four words among `words`, and on each layer the share of right
    answers: `all`, `semantic`, `syntactic` (sections that begin with "gram").

    By the rules of word2vec's compute-accuracy.c: words are equal if they are in capitals; of
    several such words the first, so the most frequent, stands for a question's word, and the others
    may still be answers.
    """
    capitals = [word.upper() for word in words]
    row = {word: number for number, word in reversed([*enumerate(capitals)])}
    answered = [q for q in questions if all(word.upper() in row for word in q[1:])]
    asked = np.array([[row[word.upper()] for word in q[1:4]] for q in answered], int).reshape(-1, 3)
    syntactic = np.array([q.section.startswith("gram") for q in answered], bool)
    groups = {"all": syntactic | ~syntactic, "semantic": ~syntactic, "syntactic": syntactic}
    layers = []
    for answers in (solve(of_layer, asked) for of_layer in vectors):
        right = np.array([capitals[a] == q.answer.upper() for a, q in zip(answers, answered)], bool)
        layers.append({name: float(right[of].mean()) for name, of in groups.items() if of.any()})
    return len(answered), layers


def solve(vectors: Float[np.ndarray, "V D"], asked: Int[np.ndarray, "Q 3"]) -> list[int]:
    """The d of "a is to b as c is to d" with the highest cos(d, b) − cos(d, a) + cos(d, c), among
    all words but a, b and c (3CosAdd, Levy and Goldberg 2014); of equal ones the first. `asked` are
    rows of the vectors.
    """
    units, answers = unit(vectors), []
    for a, b, c in asked:
        scores = units @ (units[b] - units[a] + units[c])
        scores[[a, b, c]] = -np.inf
        answers.append(int(np.argmax(scores >= scores.max() - ROUNDING)))
    return answers
