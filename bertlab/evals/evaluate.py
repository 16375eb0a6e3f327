"""What `config.evaluate` asks of a trained model; `bertlab evaluate`, and the end of a training.

evaluation.json is {text: {metric: number}}; a text is "test" (the held-out split) or the path of a
file. The metrics of a model that predicts tokens:

    bits_per_byte/KIND, perplexity/KIND, tokens/KIND, bytes, pieces, unknown     of "test" and texts
    accuracy/KIND, accuracy/KIND/PHENOMENON, pairs                               of minimal pairs
    similarity/WAY, layer N, scored, pairs                                       of rated words
    analogies/WAY, layer N, answered, questions, answers                         of questions
    OBJECTIVE/guessing, OBJECTIVE/floor, OBJECTIVE/above_floor, ...              of "test"

with standard_error/METRIC where it is known.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from bertlab.data.batches import Batches
from bertlab.data.corpora import open_corpus
from bertlab.data.corpora.text import read_lines
from bertlab.data.prepared import Prepared, load_prepared
from bertlab.errors import UserError
from bertlab.evals import floors, similarity
from bertlab.evals.code_length import Scorer, bits_per_byte
from bertlab.evals.guessing import guessing
from bertlab.evals.minimal_pairs import judge, read_pairs
from bertlab.evals.questions import Text, encode_all
from bertlab.files import cache_directory
from bertlab.objectives.program import group_by_view
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.load import Pretrained, load

LONGEST = 480
"""Bytes of a held-out sentence: every tokenizer's pieces fit into 512 positions."""

Metrics = dict[str, float | None]


def evaluate_run(
    directory: str | Path, settings: ConfigDict | None = None, step: int | None = None
) -> dict[str, Metrics]:
    """Measures what `config.evaluate` names (or `settings` in its place), at the last checkpoint or
    another, and adds it to evaluation.json (or evaluation-STEP.json).

    Returns:
        What was measured: text -> metric -> number.
    """
    run, model = RunDirectory(directory), load(directory, step)
    settings = model.config.evaluate if settings is None else settings
    scorer, found = Scorer(model), {}
    kinds = [kind for kind in settings.kinds.split(",") if kind] or list(scorer.kinds)
    if settings.text or settings.minimal_pairs:
        scorer.check_kind()
    if path := settings.text:
        texts = encode_all(model, [line for _, line in read_lines(Path(path)) if line.strip()])
        found[path] = code_lengths(scorer, texts, kinds)
    fingerprint = run.read("data", {}).get("fingerprint")
    if fingerprint and model.objectives and (settings.sentences or settings.floors):
        prepared = find_prepared(model.config.data, fingerprint)
        if "test" in prepared.statistics:
            found["test"] = held_out(prepared, scorer, kinds, settings)
    if path := settings.minimal_pairs:
        found[path] = accuracies(scorer, read_pairs(Path(path), settings.pairs), kinds)
    if settings.words or settings.analogies:
        found |= similarity.word_scores(model, settings)
    name = "evaluation" if step is None else f"evaluation-{step}"
    if found := {text: metrics for text, metrics in found.items() if metrics}:
        before = run.read(name, {})
        run.write(name, before | {text: before.get(text, {}) | of for text, of in found.items()})
    return found


def code_lengths(scorer: Scorer, texts: Sequence[Text], kinds: Sequence[str]) -> Metrics:
    """Bits per byte and perplexity by kind of score."""
    found = {}
    for kind in kinds:
        bits = bits_per_byte(texts, scorer.score(texts, kind), scorer.model.tokenizer.unk_id)
        for name, value in bits.items():
            of_texts = name in ("bytes", "pieces", "unknown")
            found[name if of_texts else f"{name}/{kind}"] = value
    return found


def accuracies(scorer: Scorer, pairs: pd.DataFrame, kinds: Sequence[str]) -> Metrics:
    """On minimal pairs, by kind of score and by phenomenon; without bounds if there are exact
    scores."""
    texts = encode_all(scorer.model, pairs[["good", "bad"]].to_numpy().ravel().tolist())
    found = {"pairs": len(pairs)}
    for kind in [kind for kind in kinds if kind != "any-order"] or kinds:
        judged = judge(pairs, scorer.score(texts, kind).log_probability)
        phenomena = judged.pop("phenomena")
        found |= {f"{name}/{kind}": value for name, value in judged.items()}
        found |= {f"accuracy/{kind}/{name}": value for name, value in phenomena.items()}
    return found


def held_out(prepared: Prepared, scorer: Scorer, kinds: Sequence[str], settings) -> Metrics:
    """Of the test split of the run's own corpus: bits per byte, guessing and floors."""
    model, found = scorer.model, {}
    if settings.sentences and kinds:
        texts = held_out_sentences(prepared, settings.sentences, model)
        found |= code_lengths(scorer, texts, kinds)
    batches = Batches(prepared, model.config.data, "test")
    batches = batches.evaluation(model.config.train.eval_batches)
    for view, names in group_by_view(model.objectives, model.program.stream).items():
        for name in names:
            viewed = model.objectives.get(view) if view != name else None
            nats = guessing(model.objectives[name], prepared.counts, batches, viewed)
            found |= {} if nats is None else {f"{name}/guessing": nats}
    if settings.floors:
        found |= floor_metrics(model, prepared, batches, scorer.params)
    return found


def find_prepared(data: ConfigDict, fingerprint: str) -> Prepared:
    """The prepared corpus that a run has read."""
    cache = cache_directory(data.directory)
    for directory in cache.glob(f"*-{fingerprint[:16]}"):
        return load_prepared(directory)
    raise UserError(
        f"{cache} has no corpus {fingerprint[:16]}, which the run has read; prepare it again with"
        " `bertlab prepare`, or set config.evaluate.sentences=0"
    )


def held_out_sentences(prepared: Prepared, number: int, model: Pretrained) -> list[Text]:
    """Sentences of the test split, the same for all models of one tokenizer.

    Only documents' bytes are known, so a sentence has those of its document in proportion to its
    tokens: the sum estimates the text's bytes without bias, and is one factor for all objectives.
    """
    split, tokenizer = prepared.split("test"), prepared.tokenizer
    before, after = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    table = prepared.characters if model.config.model.token_encoder == "characters" else None
    begins, lengths = split.sentences[:-1], np.diff(split.sentences)
    documents = np.searchsorted(split.documents, np.arange(len(lengths)), side="right") - 1
    sizes = split.bytes[documents] * lengths / np.diff(split.token_bounds())[documents]
    fit = (sizes <= LONGEST) & (len(before) + lengths + len(after) <= model.longest)
    order, texts = np.random.default_rng(0).permutation(len(lengths)), []
    for sentence in order[fit[order]][:number].tolist():
        inside = slice(begins[sentence], begins[sentence] + lengths[sentence])
        tokens = np.array([*before, *split.tokens[inside], *after], np.int32)
        pieces = len(before) + np.arange(lengths[sentence])
        characters = None if table is None else table[[*before, *split.words[inside], *after]]
        texts.append(Text(tokens, pieces, float(sizes[sentence]), characters))
    return texts


def floor_metrics(model: Pretrained, prepared: Prepared, batches, params) -> Metrics:
    """Exact floors on the synthetic language, and how far above them the model is."""
    data, found = model.config.data, {}
    if data.corpus != "synthetic" or not prepared.tokenizer.has_whole_words:
        raise UserError(
            "config.evaluate.floors needs config.data.corpus=synthetic and tokenizer.kind=words"
        )
    language = open_corpus(data).language
    ids = np.array(prepared.tokenizer.encode_words(language.words)[0])
    chain = floors.chain_of(language, prepared.tokenizer.vocab_size, ids)
    try:
        relations = floors.relations_of(data)
    except floors.NoFloor as reason:
        print(f"no floors: {reason}")
        return {}
    counts = tuple(prepared.counts.tolist())
    vocabulary = dataclasses.replace(model.program.vocabulary, counts=counts)
    program = dataclasses.replace(model.program, vocabulary=vocabulary)
    for name, of in floors.floors(program, batches, chain, relations, params).items():
        if isinstance(of, str):
            print(f"{name}: no floor: {of}")
            continue
        found[f"{name}/floor" if of.exact else f"{name}/lower_bound"] = of.value
        found[f"{name}/above_floor"] = of.above
        found[f"standard_error/{name}/above_floor"] = of.above_standard_error
    return found
