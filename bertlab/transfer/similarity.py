"""`bertlab similarity`: cosines of word and sentence vectors against human ratings, and analogies; nothing is trained.

    word similarity      lines "word word rating", as in Faruqui and Dyer's collection (2014): Spearman's correlation
    analogies            word2vec's questions-words.txt (Mikolov et al. 2013), "Athens Greece Cairo Egypt" under ": section"
                         lines: 3CosAdd and 3CosMul (Levy and Goldberg 2014)
    sentence similarity  GLUE's STS-B, dev.tsv: Spearman's and Pearson's correlation

A word has one vector on each layer. The ways to get it:

    table       a static model: its row of the table (w + w̃ of GloVe), or the mean of its pieces' rows
    alone       the mean of its pieces' states in a text of this word only (Bommasani et al. 2020: decontextualized). Special
                tokens are around it, but do not count
    in context  the mean over its occurrences in a text, each the mean of its pieces' states (Bommasani et al. 2020: aggregated)

A sentence's vector is the mean over all its positions, special tokens included, as in `Pretrained.sentence_vectors`.

Letters: N words, P pairs, Q questions, V possible answers, n layers (0: the embeddings), T pieces of a text, D width.
"""

import collections
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.objectives.blame import blamed
from bertlab.run import Run
from bertlab.transfer.evaluate import check_kept, write_merged
from bertlab.transfer.evaluations import text_hash
from bertlab.transfer.geometry import unit
from bertlab.transfer.kinds.regression import Regression
from bertlab.transfer.load import Pretrained, load, read_lines
from bertlab.transfer.offsets import piece_offsets
from bertlab.transfer.scorers import pearson, spearman
from bertlab.transfer.tasks.table import read_rows

CONTEXTS = 50
VOCABULARY = 30_000
"""compute-accuracy.c's usual threshold."""

KINDS = ("semantic", "syntactic", "all")
"""Of analogies; a section is syntactic if its name begins with "gram"."""

MEASURES = ("word_similarity", "analogies", "sentence_similarity")

SENTENCE = "mean with special tokens"
"""The one way to get a sentence's vector."""

_EPSILON = 1e-3  # of 3CosMul: the paper's; gensim has 1e-6

_ROUNDING = 1e-9  # of cosines in float64

# Texts whose states are in memory at a time.
_AT_A_TIME = 256

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")


class Rated(NamedTuple):
    """Two words or sentences with a human rating of their similarity."""

    first: str
    second: str
    rating: float


class Question(NamedTuple):
    """An analogy: a is to b as c is to `answer`. Its section is syntactic if the name begins with "gram"."""

    section: str
    a: str
    b: str
    c: str
    answer: str


def similarity(
    run: Path,
    words: Sequence[Path] = (),
    analogies: Path | None = None,
    sts: Path | None = None,
    text: Path | None = None,
    contexts: int = CONTEXTS,
    vocabulary: int = VOCABULARY,
    out: Path | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Measures every layer of a run, prints tables and writes the results to a file.

    Args:
        run: run or imported directory.
        words: files of rated pairs of words, as for `read_ratings`.
        analogies: a file of questions, as for `read_questions`.
        sts: a file of rated sentences, as for `read_sentences`.
        text: a UTF-8 file, one sentence per line, for the way "in context". Only its words count then, in every way, so that
            all ways score the same pairs and questions; it also decides which words may be answers (`possible_answers`).
        contexts: most occurrences of each word.
        vocabulary: the answers are among so many of the most frequent words; 0: all.
        out: a JSON file; None: `run`/similarity.json, or similarity-STEP.json for a step other than the last. Entries of other
            files and ways stay.
        step: of the checkpoint; None: the last one.

    Returns:
        {"word_similarity": {file: {way: {"layers": {layer: correlation}, "pairs", "scored", "text_hash", ...}}}, "analogies":
        ..., "sentence_similarity": ...}: the new measurements. You can compare the numbers of entries with equal `text_hash`:
        the same pairs were scored, or the same questions answered with the same words to choose from. A number is None if
        nothing could be scored.

    Raises:
        UserError: a file cannot be read, a number is out of range, the checkpoint is missing, or a sentence is too long.
    """
    if not (words or analogies or sts):
        raise UserError("nothing to measure; give --words=FILE, --analogies=FILE or --sts=FILE")
    if contexts < 1 or vocabulary < 0:
        raise UserError(f"--contexts={contexts} must be 1 or more, and --vocabulary={vocabulary} 0 (all words) or more")
    Run(run).require_step(step)
    out = out or Run(run).similarity_at(step).path
    check_kept(out, {*MEASURES}, "similarities")
    # Files are read first: a mistake in them is found before a model is compiled.
    ratings = {str(path): read_ratings(path) for path in words}
    questions = read_questions(analogies) if analogies else []
    sentences = read_sentences(sts) if sts else []
    lines = read_lines(text, "--text") if text else []
    model = load(run, step)
    answers, source = possible_answers(model, questions, lines, vocabulary) if questions else ([], "")
    wanted = list(dict.fromkeys([word for pairs in ratings.values() for pair in pairs for word in pair[:2]] + answers))
    known, ways, about = _word_vectors(model, wanted, lines, contexts) if wanted else (np.zeros(0, bool), {}, {})
    place = {word: number for number, word in enumerate(wanted) if known[number]}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if ratings:
        found["word_similarity"] = {
            file: {way: rate_words(pairs, place, vectors) | about[way] for way, vectors in ways.items()}
            for file, pairs in ratings.items()
        }
    if questions:
        answers = [word for word in answers if word in place]
        rows = [place[word] for word in answers]
        facts = {"answers_from": str(text or source)}
        by_way = {way: answer_questions(questions, answers, of[:, rows]) | facts | about[way] for way, of in ways.items()}
        found["analogies"] = {str(analogies): by_way}
    if sentences:
        found["sentence_similarity"] = {str(sts): {SENTENCE: rate_sentences(model, sentences)}}
    _print(found)
    if text:
        for measure in found.keys() - {"sentence_similarity"}:
            for file, by_way in found[measure].items():
                found[measure][file] = {f"{way}; words of {text}": entry for way, entry in by_way.items()}
    write_merged(out, found)
    print(f"{out}: {', '.join(found)}")
    return found


def read_ratings(path: Path, key: str = "--words") -> list[Rated]:
    """Pairs of words, one a line with its rating; white space separates the three.

    Args:
        path: the file.
        key: the flag or config key that names it.

    Raises:
        UserError: the file cannot be read or has no pairs, or a line is not such a pair; names file and line.
    """
    pairs = []
    for number, line in enumerate(read_lines(path, key), 1):
        if not (fields := line.split()):
            continue
        try:
            pairs.append(Rated(fields[0], fields[1], float(fields[2])))
        except (ValueError, IndexError):
            pairs.append(Rated("", "", math.nan))
        if len(fields) != 3 or not math.isfinite(pairs[-1].rating):
            raise UserError(f"{path}:{number}: expected two words and a number, such as 'old new 1.58', found {line[:60]!r}")
    if not pairs:
        raise UserError(f"{key}={path} is empty; give lines with two words and a number")
    return pairs


def read_questions(path: Path, key: str = "--analogies") -> list[Question]:
    """Analogy questions: four words a line, under lines ": section".

    Args:
        path: the file.
        key: the flag or config key that names it.

    Raises:
        UserError: the file cannot be read or has no questions, or a line is neither; names file and line.
    """
    questions, section = [], ""
    for number, line in enumerate(read_lines(path, key), 1):
        fields = line.split()
        if fields[:1] == [":"]:
            section = " ".join(fields[1:])
        elif fields and (len(fields) != 4 or not section):
            raise UserError(f"{path}:{number}: expected four words under a line ': section', found {line[:60]!r}")
        elif fields:
            questions.append(Question(section, *fields))
    if not questions:
        raise UserError(f"{key}={path} has no questions; give word2vec's questions-words.txt or a file like it")
    return questions


def read_sentences(path: Path) -> list[Rated]:
    """Pairs of sentences: a table with the columns sentence1, sentence2 and score, as GLUE's STS-B.

    Raises:
        UserError: the file is no such table; names file and line.
    """
    if not path.is_file():
        raise UserError(f"--sts={path}: there is no such file; give GLUE's STS-B/dev.tsv or a table like it")
    rows = read_rows(path, ("sentence1", "sentence2", "score"), quoted=False)
    pairs = [Rated(row["sentence1"], row["sentence2"], Regression.read_label(row["score"], where)) for where, row in rows]
    if not pairs:
        raise UserError(f"--sts={path} has no rows; give GLUE's STS-B/dev.tsv or a table like it")
    return pairs


def possible_answers(
    model: Pretrained, questions: Sequence[Question], lines: Sequence[str] = (), most: int = VOCABULARY
) -> tuple[list[str], str]:
    """The words among which a question's answer is sought, the most frequent first.

    Args:
        model: from `bertlab.load`.
        questions: the analogies.
        lines: sentences. If there are none, a model with a vocabulary of words has its own, in its order (word2vec's files,
            and vocabularies trained here, begin with the most frequent word), and any other model the words of the questions:
            far fewer to choose from than in published results.
        most: at most so many; 0: all.

    Returns:
        The words, and where they are from.
    """
    fold = _fold(model)
    if lines:
        counts = collections.Counter(fold(word) for line in lines for word in _WORD.findall(line))
        words, source = sorted(counts, key=lambda word: (-counts[word], word)), "the text"
    elif model.tokenizer.has_whole_words:
        words, source = [piece for piece in model.tokenizer.pieces() if piece not in SPECIALS], "the run's vocabulary"
    else:
        words, source = list(dict.fromkeys(fold(word) for question in questions for word in question[1:])), "the questions"
    return words[: most or None], source


def _fold(model: Pretrained):
    return str.lower if model.tokenizer.lowercase else str


def _word_vectors(
    model: Pretrained, words: list[str], lines: Sequence[str], contexts: int
) -> tuple[Bool[np.ndarray, "N"], dict[str, Float[np.ndarray, "n N D"]], dict[str, dict[str, Any]]]:
    """Which words have vectors in every way, the vectors in each way that the model allows, and facts about each way."""
    known, sizes, vectors = alone(model, words)
    is_static, fold = model.config.model.family == "static", _fold(model)
    ways, facts = {"table" if is_static else "alone": vectors}, {}
    if lines and is_static:
        there = {fold(word) for line in lines for word in _WORD.findall(line)}
        known &= np.array([fold(word) in there for word in words])
    elif lines:
        counts, left_out, ways["in context"] = in_context(model, words, lines, contexts)
        known &= counts > 0
        facts = {"contexts": contexts, "mean_contexts": float(counts[known].mean()), "lines_left_out": left_out}
    if not known.any():
        raise UserError(f"none of the {len(words)} words has a vector in this run{' and occurs in --text' if lines else ''}")
    pieces = {"pieces_per_word": float(sizes[known].mean())}
    return known, ways, {way: pieces | (facts if way == "in context" else {}) for way in ways}


def alone(
    model: Pretrained, words: Sequence[str]
) -> tuple[Bool[np.ndarray, "N"], Int[np.ndarray, "N"], Float[np.ndarray, "n N D"]]:
    """The mean of each word's pieces in a text of that word only; for a static model, of their rows of the table.

    A word is unknown if a piece of it is [UNK]; with a vocabulary of words, if it is not in there. A model that reads
    characters knows every word.

    Returns:
        Whether the model knows the word, its number of pieces, and the vectors.
    """
    whole = model.tokenizer.has_whole_words
    texts = [[word] for word in words] if whole else list(words)
    own = [row.tokens[row.first[0] : row.last[-1] + 1] if len(row.first) else [] for row in model.rows(texts, whole)]
    if model.config.model.token_encoder == "characters":
        known = [True] * len(words)
    else:
        known = [len(ids) > 0 and model.tokenizer.unk_id not in ids and (len(ids) == 1 or not whole) for ids in own]
    vectors = np.stack([of.sum(1) / max(of.shape[1], 1) for of in _states(model, texts, whole)], axis=1)
    return np.array(known), np.array([len(ids) for ids in own]), vectors


def in_context(
    model: Pretrained, words: Sequence[str], lines: Sequence[str], most: int = CONTEXTS, seed: int = 0
) -> tuple[Int[np.ndarray, "N"], int, Float[np.ndarray, "n N D"]]:
    """The mean over occurrences of each word, each the mean of its pieces (Bommasani et al. 2020: aggregated).

    Case counts unless the tokenizer drops it. A hyphen or an apostrophe inside joins two parts to one word.

    Args:
        model: from `bertlab.load`.
        words: without white space.
        lines: sentences.
        most: occurrences of each word; they are taken from the lines in random order.
        seed: of the order.

    Returns:
        The number of occurrences of each word that were used, the number of lines left out because they are longer than the
        model's positions or their pieces do not follow the words, and the vectors; zeros for a word that does not occur.
    """
    fold, tokenizer = _fold(model), model.tokenizer
    keys = {key: number for number, key in enumerate(dict.fromkeys(map(fold, words)))}
    left, left_out = np.full(len(keys), most), 0
    chosen: list[tuple[str, list[tuple[int, np.ndarray]]]] = []
    for line in (" ".join(lines[number].split()) for number in np.random.default_rng(seed).permutation(len(lines))):
        found = [(keys[key], *match.span()) for match in _WORD.finditer(line) if (key := fold(match[0])) in keys]
        if not any(left[key] for key, *_ in found):
            continue
        ids, offsets = piece_offsets(line, tokenizer)
        size = len(tokenizer.prefix_ids) + len(ids) + len(tokenizer.suffix_ids)
        if size > model.longest or ids.tolist() != tokenizer.encode(line):
            left_out += 1
            continue
        spots = []
        for key, begin, end in found:
            pieces = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
            if left[key] and len(pieces):
                left[key] -= 1
                spots.append((key, pieces))
        chosen.append((line, spots))
    totals: dict[int, Float[np.ndarray, "n D"]] = {}
    for (_, spots), states in zip(chosen, _states(model, [line for line, _ in chosen])):
        for key, pieces in spots:
            totals[key] = totals.get(key, 0) + states[:, pieces].mean(1)
    if not totals:
        raise UserError(f"none of the {len(keys)} words occurs in the text (case counts, unless the tokenizer drops it)")
    counts, none = most - left, np.zeros_like(next(iter(totals.values())))
    vectors = np.stack([totals.get(key, none) / max(counts[key], 1) for key in range(len(keys))], axis=1)
    places = [keys[fold(word)] for word in words]
    return counts[places], left_out, vectors[:, places]


def rate_words(pairs: Sequence[Rated], place: Mapping[str, int], vectors: Float[np.ndarray, "n N D"]) -> dict[str, Any]:
    """Spearman's correlation of cosines and ratings on each layer.

    Args:
        pairs: all pairs of a file.
        place: the number of each word that has a vector; pairs with another word are not scored.
        vectors: of the words.
    """
    scored = [pair for pair in pairs if pair.first in place and pair.second in place]
    first, second = ([place[pair[side]] for pair in scored] for side in (0, 1))
    ratings = [pair.rating for pair in scored]
    layers = {str(n): _correlation(spearman, ratings, cosines(of[first], of[second])) for n, of in enumerate(vectors)}
    return {"pairs": len(pairs), "scored": len(scored), "layers": layers, "text_hash": text_hash(scored)}


def rate_sentences(model: Pretrained, pairs: Sequence[Rated]) -> dict[str, Any]:
    """Spearman's and Pearson's correlation of cosines and ratings on each layer, each pair's vectors being means of states.

    Args:
        model: from `bertlab.load`.
        pairs: sentences.

    Raises:
        UserError: a sentence is longer than the model's positions, or has no tokens.
    """
    texts = list(dict.fromkeys(text for pair in pairs for text in pair[:2]))
    rows = model.rows(texts)
    if empty := [text for text, row in zip(texts, rows) if not len(row.tokens)]:
        raise UserError(f"the sentence {empty[0]!r} has no tokens and so no vector; remove it")
    vectors = np.stack([states.mean(1) for states in _states(model, texts, special_tokens=True)], axis=1)
    place = {text: number for number, text in enumerate(texts)}
    first, second = ([place[pair[side]] for pair in pairs] for side in (0, 1))
    ratings, layers = [pair.rating for pair in pairs], {}
    for number, of in enumerate(vectors):
        values = cosines(of[first], of[second])
        layers[str(number)] = {way.__name__: _correlation(way, ratings, values) for way in (spearman, pearson)}
    unknown = np.concatenate([row.tokens == model.tokenizer.unk_id for row in rows])
    reads_ids = model.config.model.token_encoder != "characters"
    return {
        "pairs": len(pairs),
        "unknown": float(unknown.mean()) if reads_ids else 0.0,
        "layers": layers,
        "text_hash": text_hash(pairs),
    }


def cosines(first: Float[np.ndarray, "P D"], second: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P"]:
    """Of each pair of rows; 0 with a vector of zeros."""
    return np.einsum("pd,pd->p", unit(first), unit(second))


def _correlation(measure: Callable, ratings: Sequence[float], values: Float[np.ndarray, "P"]) -> float | None:
    return float(measure(ratings, values)) if len(values) > 1 else None


def answer_questions(
    questions: Sequence[Question], words: Sequence[str], vectors: Float[np.ndarray, "n V D"]
) -> dict[str, Any]:
    """The share of correct answers on each layer, by the rules of word2vec's compute-accuracy.c.

    Words are equal if they are in capitals; of several such words the first, so the most frequent, stands for a question's
    word, and the others may still be answers. A question is answered if its four words are among `words`.

    Args:
        questions: all questions of a file.
        words: the V possible answers, the most frequent first.
        vectors: of these words.

    Returns:
        For each layer and measure the shares of answered questions: `semantic`, `syntactic`, `all`, and of each of `sections`;
        the numbers of questions, answered ones and words.
    """
    capitals = [word.upper() for word in words]
    place = {word: number for number, word in reversed([*enumerate(capitals)])}
    answered = [question for question in questions if all(word.upper() in place for word in question[1:])]
    asked = np.array([[place[word.upper()] for word in question[1:4]] for question in answered], int).reshape(-1, 3)
    groups = {"all": np.ones(len(answered), bool)}
    groups["syntactic"] = np.array([question.section.startswith("gram") for question in answered], bool)
    groups["semantic"] = ~groups["syntactic"]
    sections = {name: np.array([q.section == name for q in answered]) for name in dict.fromkeys(q.section for q in answered)}
    share = lambda right, of: float(right[of].mean()) if of.any() else None
    layers: dict[str, Any] = {}
    for number, of_layer in enumerate(vectors):
        layers[str(number)] = {}
        for measure, answers in solve(of_layer, asked).items():
            right = np.array([capitals[a] == q.answer.upper() for a, q in zip(answers, answered)], bool)
            shares = {name: share(right, groups[name]) for name in KINDS}
            layers[str(number)][measure] = shares | {"sections": {name: share(right, of) for name, of in sections.items()}}
    of_section = lambda of: collections.Counter(question.section for question in of)
    totals, seen = of_section(questions), of_section(answered)
    return {
        "questions": len(questions),
        "answered": len(answered),
        "words": len(words),
        "layers": layers,
        "sections": {name: {"questions": of, "answered": seen[name]} for name, of in totals.items()},
        "text_hash": text_hash([answered, words]),
    }


def solve(vectors: Float[np.ndarray, "V D"], asked: Int[np.ndarray, "Q 3"]) -> dict[str, Int[np.ndarray, "Q"]]:
    """The d of "a is to b as c is to d" among all words but a, b and c (Levy and Goldberg 2014).

        3CosAdd  argmax cos(d, b) − cos(d, a) + cos(d, c)
        3CosMul  argmax cos(d, b) · cos(d, c) / (cos(d, a) + 0.001), with cosines moved from [−1, 1] to [0, 1]

    Args:
        vectors: of all words; of equally good words, up to rounding, the first is the answer.
        asked: the rows of a, b and c.
    """
    unique, of_unique = np.unique(asked, return_inverse=True)
    unit_vectors = unit(vectors)
    cosine = unit_vectors[unique] @ unit_vectors.T
    found = {"3CosAdd": [], "3CosMul": []}
    for excluded, (a, b, c) in zip(asked, of_unique.reshape(-1, 3)):
        near = lambda row: (1 + cosine[row]) / 2
        scores = cosine[b] - cosine[a] + cosine[c], near(b) * near(c) / (near(a) + _EPSILON)
        for answers, score in zip(found.values(), scores):
            score[excluded] = -np.inf
            answers.append(int(np.argmax(score >= score.max() - _ROUNDING)))
    return {measure: np.array(answers, int) for measure, answers in found.items()}


def _states(
    model: Pretrained, texts: list[str] | list[list[str]], pretokenized: bool = False, special_tokens: bool = False
) -> Iterator[Float[np.ndarray, "n T D"]]:
    """The states of each text's pieces on every layer; narrower layers end in zeros, which no cosine sees."""
    if model.config.model.family == "static":
        table = _table(model)
        for row in model.rows(texts, pretokenized):
            yield table[row.tokens if special_tokens else row.tokens[row.first]][None]
        return
    for start in range(0, len(texts), _AT_A_TIME):
        some = texts[start : start + _AT_A_TIME]
        for embedding in model.encode(some, pretokenized=pretokenized, special_tokens=special_tokens):
            yield embedding.states


def _table(model: Pretrained) -> Float[np.ndarray, "V D"]:
    """The rows that `bertlab export` writes."""
    body = model.params["body"]
    table = body["token_embedding"]
    for name, objective in model.program.objectives.items():
        with blamed(name, objective, "word_vectors"):
            table = objective.word_vectors(table, body["output"]["kernel"])
    return np.asarray(table, np.float32)


def _print(found: Mapping[str, Any]) -> None:
    """A table for each measure, with a line for each way and layer, after what its numbers are about."""
    facts: dict[str, dict[str, Any]] = {}
    if by_file := found.get("word_similarity"):
        cells = collections.defaultdict(dict)
        for file, by_way in by_file.items():
            entry = next(iter(by_way.values()))
            print(f"{file}: {entry['scored']:,} of {entry['pairs']:,} pairs have a vector for both words")
            for way, layer, of in _of_layers(by_way):
                cells[way, layer][Path(file).stem] = of
        _print_table("Spearman's correlation of cosines and ratings", cells)
        facts |= by_way
    for file, by_way in found.get("analogies", {}).items():
        entry = next(iter(by_way.values()))
        print(
            f"{file}: {entry['answered']:,} of {entry['questions']:,} questions have all four words among the possible answers"
        )
        cells = {
            (way, layer): {f"{measure}, {kind}": shares[kind] for measure, shares in of.items() for kind in KINDS}
            for way, layer, of in _of_layers(by_way)
        }
        _print_table(f"Share of correct answers, among {entry['words']:,} words of {entry['answers_from']}", cells)
        facts |= by_way
    for way, of in facts.items():
        mean = f"; the mean of {of['mean_contexts']:.1f} occurrences, at most {of['contexts']}" if "contexts" in of else ""
        out = f"; {of['lines_left_out']:,} lines left out" if of.get("lines_left_out") else ""
        print(f"{way}: a word has {of['pieces_per_word']:.2f} pieces on average{mean}{out}")
    for file, by_way in found.get("sentence_similarity", {}).items():
        entry = by_way[SENTENCE]
        print(f"{file}: {entry['pairs']:,} pairs of sentences; {entry['unknown']:.2%} of their tokens are [UNK]")
        cells = {(way, layer): of for way, layer, of in _of_layers(by_way)}
        _print_table("Correlations of cosines and ratings", cells)


def _of_layers(by_way: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """(Way, layer, what was measured) of each."""
    return [(way, layer, of) for way, entry in by_way.items() for layer, of in entry["layers"].items()]


def _print_table(title: str, cells: Mapping[tuple[str, str], Mapping[str, float | None]]) -> None:
    frame = pd.DataFrame([*cells.values()], [f"{way}, layer {layer}" for way, layer in cells], dtype=float)
    print(f"{title}:\n{frame.to_string(float_format='{:.3f}'.format, na_rep='–')}")
