"""What `config.evaluate` asks of a trained model: `bertlab evaluate`, and the end of training.

evaluation.json is {text: {metric: number}}; a text is "test" (the held-out split) or the path of a
file. The metrics of a model that predicts tokens:

    bits_per_byte/KIND, perplexity/KIND, tokens/KIND, bytes/KIND, ...            of "test" and texts
    above_truth/KIND (on the synthetic language, with evaluate.floors)           of "test"
    accuracy/KIND, accuracy/KIND/PHENOMENON, pairs                               of minimal pairs
    similarity/WAY, layer N, scored, pairs                                       of rated words
    analogies/WAY, layer N, answered, questions, answers                         of questions
    baseline/4-gram, baseline/gzip (with evaluate.bytes and evaluate.baselines)  of "test"
    OBJECTIVE/guessing, OBJECTIVE/floor, OBJECTIVE/above_floor, ...              of "test"

and standard_error/METRIC where it is known. With evaluate.bytes, "test" also has `by_document`,
{KIND: {"bytes": [...], "nats": [...]}}, so that intervals can be computed over documents.
"""

import dataclasses
import math
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from ml_collections import ConfigDict

from bertlab.data.batches import Batches
from bertlab.data.corpora.synthetic import SyntheticCorpus
from bertlab.data.corpora.text import read_lines, read_records
from bertlab.data.prepared import Prepared, load_prepared
from bertlab.errors import UserError
from bertlab.evals import floors, similarity
from bertlab.evals.code_length import Scorer, bits_per_byte, by_document, ratio
from bertlab.evals.questions import Text, encode_all, framed
from bertlab.evals.scoring import guessing
from bertlab.files import cache_directory
from bertlab.objectives.program import group_by_view
from bertlab.train.build import vocabulary_of
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.load import Pretrained, load

Metrics = dict[str, Any]

LONGEST = 480  # bytes of a held-out sentence: every tokenizer's pieces then fit into 512 positions
ROUNDING = 1e-5  # sums of float32 log-probabilities that differ by less are tied


def evaluate_run(
    directory: str | Path, settings: ConfigDict | None = None, step: int | None = None
) -> dict[str, Metrics]:
    """Measures what `config.evaluate` names (or `settings` in its place), at the last checkpoint or
    another, and writes it to evaluation.json (or evaluation-STEP.json), in place of what an earlier
    evaluation has of the same text."""
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
    asked = settings.sentences or settings.bytes or settings.floors
    if fingerprint and model.objectives and asked:
        prepared = find_prepared(model.config.data, fingerprint)
        if "test" in prepared.statistics:
            found["test"] = held_out(prepared, scorer, kinds, settings)
    if path := settings.minimal_pairs:
        found[path] = accuracies(scorer, read_pairs(Path(path), settings.pairs), kinds)
    if settings.words or settings.analogies:
        found |= similarity.word_scores(model, settings)
    name = "evaluation" if step is None else f"evaluation-{step}"
    if found := {text: metrics for text, metrics in found.items() if metrics}:
        run.write(name, run.read(name, {}) | found)  # all numbers of a text are of one evaluation
    return found


def code_lengths(scorer: Scorer, texts: Sequence[Text], kinds, most=None, chain=None) -> Metrics:
    """Bits per byte and perplexity by kind of score, with sums by document if the texts have
    documents. Pseudo-log-likelihoods, which take a pass per piece, score `most` random texts (None:
    all); `chain` is the language of the texts, if it is known."""
    found, unk_id = {}, scorer.model.tokenizer.unk_id
    order = np.random.default_rng(0).permutation(len(texts))
    drawn = [texts[number] for number in np.sort(order[:most])]
    for kind in kinds:
        if not (some := drawn if kind.startswith("pseudo") else texts):
            continue
        scores = scorer.score(some, kind)
        metrics = bits_per_byte(some, scores, unk_id)
        if some[0].document is not None:
            sums = by_document(some, -scores.log_probability).round(2).tolist()
            found.setdefault("by_document", {})[kind] = dict(zip(("bytes", "nats"), sums))
        if chain is not None and not kind.startswith("pseudo"):
            metrics |= above_truth(scorer, some, kind, chain)
        found |= {f"{name}/{kind}": value for name, value in metrics.items()}
    return found


def above_truth(scorer: Scorer, texts: Sequence[Text], kind: str, chain: floors.Chain) -> Metrics:
    """Bits per byte above those of the language itself, unless the first pieces are free."""
    scores = scorer.score(texts, kind, special=False)
    if scores.tokens.sum() < sum(len(text.pieces) for text in texts):
        return {}
    truth = [floors.log_probability(chain, text.tokens[text.pieces]) for text in texts]
    sizes, nats = by_document(texts, truth - scores.log_probability)
    above, error = ratio(nats / math.log(2), sizes)
    return {"above_truth": above, "standard_error/above_truth": error}


def read_pairs(path: Path, limit: int = 0) -> pd.DataFrame:
    """The first `limit` minimal pairs of each paradigm (0: all) of JSON lines with BLiMP's fields
    (Warstadt et al. 2020): `good`, `bad`, `paradigm`, and `phenomenon`, which may be missing."""
    fields = ["sentence_good", "sentence_bad", "UID"]
    records = [record for _, record in read_records(path, *fields)]
    table = pd.DataFrame(records, columns=[*fields, "linguistics_term"], dtype=object).fillna("")
    table.columns = ["good", "bad", "paradigm", "phenomenon"]
    return table.groupby("paradigm").head(limit) if limit else table


def judge(pairs: pd.DataFrame, scores: Float[np.ndarray, "2N"]) -> dict[str, Any]:
    """How often the good sentence is the more likely one, by log p of the good and the bad one of
    each pair in turn, not divided by length (Warstadt et al. 2020, section 4): means over
    paradigms; a tie counts as half. The standard error over pairs is None without any spread."""
    difference = np.subtract(*np.reshape(scores, (-1, 2)).T)
    right = np.where(np.abs(difference) < ROUNDING, 0.5, difference > 0)
    paradigms = pairs.assign(right=right).groupby(["phenomenon", "paradigm"], sort=False)["right"]
    means, errors = paradigms.mean(), paradigms.sem()  # NaN for one pair
    phenomena = means.groupby("phenomenon", sort=False).mean().drop("", errors="ignore")
    error = math.hypot(*errors) / len(errors)
    return {
        "accuracy": float(means.mean()),
        "standard_error/accuracy": error if error > 0 else None,
        "phenomena": phenomena.to_dict(),
    }


def accuracies(scorer: Scorer, pairs: pd.DataFrame, kinds: Sequence[str]) -> Metrics:
    """Accuracies on minimal pairs, by kind of score and by phenomenon; without bounds if there are
    exact scores."""
    texts = encode_all(scorer.model, pairs[["good", "bad"]].to_numpy().ravel().tolist())
    found = {"pairs": len(pairs)}
    for kind in [kind for kind in kinds if kind != "any-order"] or kinds:
        judged = judge(pairs, scorer.score(texts, kind).log_probability)
        phenomena = judged.pop("phenomena")
        found |= {f"{name}/{kind}": value for name, value in judged.items()}
        found |= {f"accuracy/{kind}/{name}": value for name, value in phenomena.items()}
    return found


def held_out(prepared: Prepared, scorer: Scorer, kinds: Sequence[str], settings) -> Metrics:
    """Metrics on the test split of the run's own corpus: bits per byte, guessing and floors."""
    model, found = scorer.model, {}
    chain = language_of(model, prepared) if settings.floors else None
    if kinds and (settings.sentences or settings.bytes):
        if settings.bytes:
            texts = whole_documents(prepared, model, settings.bytes)
        else:
            texts = short_sentences(prepared, model, settings.sentences)
        found = code_lengths(scorer, texts, kinds, settings.sentences, chain)
        if settings.bytes and settings.baselines:
            baselines = pkgutil.resolve_name(settings.baselines)
            documents = np.unique([text.document for text in texts])
            added = baselines(prepared, model.config.data, documents)
            found |= added | {"by_document": found.get("by_document", {}) | added["by_document"]}
    batches = Batches(prepared, model.config.data, "test")
    batches = batches.evaluation(model.config.train.eval_batches)
    for view, names in group_by_view(model.objectives, model.program.stream).items():
        for name in names:
            viewed = model.objectives.get(view) if view != name else None
            nats = guessing(model.objectives[name], prepared.counts, batches, viewed)
            found |= {} if nats is None else {f"{name}/guessing": nats}
    if settings.floors:
        found |= floor_metrics(model, prepared, batches, scorer.params, chain)
    return found


def whole_documents(prepared: Prepared, model: Pretrained, size: int) -> list[Text]:
    """Random documents of `size` bytes in total, each cut where a training row would end."""
    split, tokenizer = prepared.split("test"), prepared.tokenizer
    special = len(tokenizer.prefix_ids + tokenizer.suffix_ids)
    order = np.random.default_rng(0).permutation(len(split.bytes))
    number = np.searchsorted(np.cumsum(split.bytes[order]), size) + 1
    bounds, width = split.token_bounds(), min(model.longest, model.config.data.seq_len) - special
    pairs = [bounds[[document, document + 1]] for document in np.sort(order[:number])]
    begins = np.concatenate([np.arange(begin, end, width) for begin, end in pairs])
    documents = np.searchsorted(bounds, begins, side="right") - 1
    ends = np.minimum(begins + width, bounds[documents + 1])
    return texts_between(prepared, model, begins, ends, documents)


def short_sentences(prepared: Prepared, model: Pretrained, number: int) -> list[Text]:
    """Random sentences, none of which has a document with others."""
    split, tokenizer = prepared.split("test"), prepared.tokenizer
    special = len(tokenizer.prefix_ids + tokenizer.suffix_ids)
    begins, lengths, bounds = split.sentences[:-1], np.diff(split.sentences), split.token_bounds()
    documents = np.searchsorted(bounds, begins, side="right") - 1
    sizes = split.bytes[documents] * lengths / np.diff(bounds)[documents]
    fit = (sizes <= LONGEST) & (lengths <= model.longest - special)
    order = np.random.default_rng(0).permutation(len(lengths))
    chosen = order[fit[order]][:number]
    begins, ends = begins[chosen], begins[chosen] + lengths[chosen]
    texts = texts_between(prepared, model, begins, ends, documents[chosen])
    return [text._replace(document=None) for text in texts]


def texts_between(prepared: Prepared, model: Pretrained, begins, ends, documents) -> list[Text]:
    """Texts of the test split, the same for all models of one tokenizer (whole documents: and one
    row length), from where they begin and end among its tokens, and their documents. Only the bytes
    of documents are known, so a text gets a share in proportion to its tokens: their sum is
    unbiased, exact for whole documents, and the same for all objectives."""
    split, texts = prepared.split("test"), []
    bytes_a_token = split.bytes / np.diff(split.token_bounds())
    for begin, end, document in zip(begins, ends, documents):
        pieces = np.int32(split.tokens[begin:end, None])
        if model.inputs.characters:
            pieces = np.hstack([pieces, prepared.characters[split.words[begin:end]]])
        size = float((end - begin) * bytes_a_token[document])
        texts.append(framed(model.inputs.framed([pieces]), size)._replace(document=document))
    return texts


def find_prepared(data: ConfigDict, fingerprint: str) -> Prepared:
    """The prepared corpus that a run has read."""
    cache = cache_directory(data.directory)
    for directory in cache.glob(f"*-{fingerprint[:16]}"):
        return load_prepared(directory)
    raise UserError(
        f"{cache} lacks the corpus {fingerprint[:16]} that the run has read; prepare it, or set"
        " config.evaluate.sentences=0"
    )


def language_of(model: Pretrained, prepared: Prepared) -> floors.Chain:
    """The synthetic language in the run's ids."""
    data = model.config.data
    if data.corpus != "synthetic" or not prepared.tokenizer.has_whole_words:
        raise UserError("config.evaluate.floors needs data.corpus=synthetic, tokenizer.kind=words")
    language = SyntheticCorpus(**data.synthetic).language
    ids = np.array(prepared.tokenizer.encode_words(language.words)[0])
    return floors.chain_of(language, prepared.tokenizer.vocab_size, ids)


def floor_metrics(model: Pretrained, prepared: Prepared, batches, params, chain) -> Metrics:
    """Exact floors on the synthetic language, and how far above them the model is."""
    vocabulary, metrics = vocabulary_of(prepared.tokenizer, prepared.counts), {}
    program = dataclasses.replace(model.program, vocabulary=vocabulary)
    try:
        relations = floors.relations_of(model.config.data)
        found = floors.floors(program, batches, chain, relations, params)
    except floors.NoFloor as reason:
        found = dict.fromkeys(program.objectives, str(reason))
    for name, of in found.items():
        if isinstance(of, str):
            print(f"{name}: no floor: {of}")
            continue
        metrics[f"{name}/floor" if of.exact else f"{name}/lower_bound"] = of.value
        metrics[f"{name}/above_floor"] = of.above
        metrics[f"standard_error/{name}/above_floor"] = of.above_standard_error
    return metrics
