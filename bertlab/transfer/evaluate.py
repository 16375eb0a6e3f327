"""`bertlab evaluate`: bits per byte of held-out text, and accuracy on minimal pairs, each by the model's own likelihood."""

import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from bertlab import checksums
from bertlab.data.corpora import corpus_of
from bertlab.data.documents import Document
from bertlab.data.prepare import cache_directory
from bertlab.data.splits import Splits, read_in_splits
from bertlab.errors import UserError
from bertlab.files import misfit, parse_json, read_json
from bertlab.locks import alone
from bertlab.places import require_json_name
from bertlab.run import BOUNDS, JsonFile, Run
from bertlab.train.processes import first_before_others, is_first
from bertlab.transfer.evaluations import BIASES, TEST_SPLIT, biases_of, read_evaluations, text_hash
from bertlab.transfer.likelihood import ORDERS, Score, check_orders
from bertlab.transfer.load import Pretrained, load, read_lines

SAMPLE = 200  # sentences of the held-out split

# Sentences of the sample, in UTF-8: every tokenizer's pieces of these fit into 512 positions.
_LONGEST = 480

_ROUNDING = 1e-5  # nats, of a sum of float32 log-probabilities

_MEANING = {
    "both directions": "the mean of the two code lengths",
    "left-to-right": "code length of the text",
    "right-to-left": "code length of the text",
    "pseudo": "no code length: both sides are seen, other pieces of the same word too",
    "pseudo-within-word": "no code length: both sides are seen, but not the later pieces of the same word",
    "any-order": "upper bound of the code length, the mean over orders; s.e. of the orders alone {:.4f}",
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A minimal pair (Warstadt et al. 2020): `good` should be more likely than `bad`.

    Attributes:
        good, bad: Two sentences.
        paradigm: BLiMP's UID.
        phenomenon: BLiMP's linguistics_term, which several paradigms share; "" if the file has none.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str = ""


def evaluate(
    run: Path,
    text: Path | None = None,
    minimal_pairs: Path | None = None,
    kinds: Sequence[str] = (),
    limit: int = 0,
    out: Path | None = None,
    step: int | None = None,
    orders: int | None = None,
    closing: bool = True,
    together: bool = False,
) -> dict[str, Any]:
    """Scores texts or minimal pairs by a run's own likelihood, prints tables and writes the results to a file.

    Args:
        run: run or imported directory.
        text: a UTF-8 file, one text per line (.gz and .xz too). Without `text` and `minimal_pairs`, a sample of the run's
            held-out test split is scored.
        minimal_pairs: as for `read_pairs`.
        kinds: some of `bertlab.transfer.likelihood.KINDS`; () for all that the model allows, for minimal pairs without bounds
            if it allows others.
        limit: score only so many texts, and pairs per paradigm, from the start; 0: all of a file, or `SAMPLE` sentences of the
            split.
        out: a JSON file (`bertlab.transfer.evaluations`); None: `run`/evaluation.json, or evaluation-STEP.json for a step other
            than the last. Entries for other kinds and other texts stay.
        step: of the checkpoint; None: the last one.
        orders: random orders of each text, for the kind "any-order"; None: ORDERS.
        closing: score where each text ends too, as for `Pretrained.score`. Without it the entries' `text_hash` is another one.
        together: all processes call it and share the texts; the first writes the file.

    Returns:
        {"bits_per_byte": {source: {kind: {"value", "standard_error", ...}}}, "minimal_pairs": {source: {kind: {"accuracy",
        ...}}}}: the new measurements. A source is "test split" or the path of a file, as given.

    Raises:
        UserError: a file cannot be read, held-out text or the checkpoint is missing, or the model cannot be scored this way.
    """
    out = check_request(run, step, out, limit, orders)
    # Files are read first: a mistake in them is found before a model is compiled.
    pairs = read_pairs(minimal_pairs, limit) if minimal_pairs else []
    lines, source = (_read_texts(text, limit), str(text)) if text else ({}, TEST_SPLIT)
    texts = [*lines.values()]
    if out.is_file():
        read_evaluations(out)
    model = load(run, step, together=together)
    of_pairs = kinds or [kind for kind in model.kinds if kind not in BOUNDS] or model.kinds
    kinds = [model.check_kind(kind) for kind in kinds or model.kinds or (None,)]
    scored = ({*kinds} if text or not minimal_pairs else set()) | ({*of_pairs} if minimal_pairs else set())
    orders = known_orders(orders, scored)
    for number, length in zip(lines, model.lengths(texts)):
        if length > model.longest:
            raise UserError(
                f"{text}:{number}: the line has {length} tokens including special ones, but the model has {model.longest}"
                " positions; split it into several"
            )
    if not (text or minimal_pairs):
        with first_before_others("the held-out text is read") if together else contextlib.nullcontext():
            texts = held_out_sentences(run, limit or SAMPLE)
    found: dict[str, Any] = {}
    if texts:
        found["bits_per_byte"] = {source: _bits_per_byte(model, texts, source, kinds, orders, closing)}
    if pairs:
        found["minimal_pairs"] = {
            str(minimal_pairs): _minimal_pairs(model, pairs, str(minimal_pairs), of_pairs, orders, closing)
        }
    if not together or is_first():
        write_merged(out, found)
    print(f"{out}: {', '.join(found)} of {', '.join(kinds if texts else of_pairs)}")
    return found


def check_request(run: Path, step: int | None, out: Path | None, limit: int, orders: int | None) -> Path:
    """Where an evaluation is written: `out`, or the run's own file. Raises: UserError: one of the arguments is wrong."""
    if limit < 0:
        raise UserError(f"--limit={limit} must be 1 or more, or 0 for the default")
    if orders is not None:
        check_orders(orders, "--orders")
    Run(run).require_step(step)
    out = out or Run(run).evaluation_at(step).path
    require_json_name(out)
    return out


def known_orders(orders: int | None, kinds: Collection[str]) -> int:
    """The random orders of a text, ORDERS for None. Raises: UserError: they are given, and no kind is scored over orders."""
    if orders is not None and "any-order" not in kinds:
        raise UserError(
            f"--orders={orders} has no effect: what is scored is {', '.join(sorted(kinds))}, and only any-order draws orders;"
            " omit it"
        )
    return ORDERS if orders is None else orders


def check_kept(out: Path, measures: Collection[str], what: str) -> None:
    """Checks an output file, and what it holds of earlier calls.

    Args:
        out: the file.
        measures: names that it may have.
        what: they are, for the error.

    Raises:
        UserError: the name does not end in .json, or the file holds something else.
    """
    require_json_name(out)
    kept = read_json(out) if out.is_file() else {}
    if not isinstance(kept, dict) or not kept.keys() <= set(measures):
        raise UserError(f"{out}: this file does not hold {what}; name another with --out=FILE.json")


def write_merged(out: Path, found: dict[str, Any]) -> None:
    """Writes what was measured beside what the file holds of other texts and kinds, even if another process adds to it."""
    with alone(out, wait=True):
        kept = read_json(out) if out.is_file() else {}
        for measure, by_source in found.items():
            for source, by_kind in by_source.items():
                kept.setdefault(measure, {}).setdefault(source, {}).update(by_kind)
        JsonFile(out).write(kept)


def held_out_sentences(run: Path, limit: int) -> list[str]:
    """A fixed sample of sentences of the test split, unchanged.

    It depends only on the corpus and its splits. It takes the sentences of at most 480 bytes with the lowest hashes of document
    and number, so a smaller sample is the start of a larger one.

    Args:
        run: a directory of `bertlab train`; its corpus must not have moved. Runs that share a cache read the corpus once.
        limit: at most so many sentences.

    Raises:
        UserError: `run` is an imported directory or has no test split, or the corpus is missing.
    """
    if Run(run).imported.exists():
        raise UserError(f"{run} was imported and has no held-out text; give --text=FILE or --minimal_pairs=FILE")
    data = Run(run).config.read()["data"]
    if not data["test_fraction"]:
        raise UserError(f"{run} was trained with config.data.test_fraction=0 and has no held-out text; give --text=FILE")

    def choose(documents: Iterator[Document], splits: Splits) -> list[str]:
        sentences = (
            (hashlib.blake2b(f"{document.id}\0{number}".encode("utf-8", "surrogateescape"), digest_size=8).digest(), sentence)
            for document in documents
            if splits.of(document.id) == "test"
            for number, sentence in enumerate(document.sentences)
            if len(sentence.encode()) <= _LONGEST
        )
        return [sentence for _, sentence in heapq.nsmallest(most, sentences)]

    corpus, most = corpus_of(data), max(limit, SAMPLE)
    key = repr((corpus.fingerprint(), data["valid_fraction"], data["test_fraction"]))
    file = cache_directory(data["directory"]) / "held_out" / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.json"
    kept = checksums.read_cached(file) if file.exists() else {"sample": 0, "sentences": []}
    if wrong := misfit(kept, {"sample": int, "sentences": [str]}):
        raise UserError(f"{file} is damaged: {wrong}; delete it, and it is made anew")
    if kept["sample"] < most:
        chosen, _ = read_in_splits(corpus, data, choose)
        checksums.write_cached(file, kept := {"sample": most, "sentences": chosen})
    chosen = kept["sentences"][:limit]
    if not chosen:
        raise UserError(f"the test split of {data['corpus']} has no sentence of at most {_LONGEST} bytes; give --text=FILE")
    return chosen


def read_pairs(path: Path, limit: int = 0, key: str = "--minimal_pairs") -> list[Pair]:
    """Reads minimal pairs in BLiMP's format: JSON lines with `sentence_good`, `sentence_bad` and `UID`.

    `linguistics_term` is the phenomenon, if it is there. Other keys are ignored.

    Args:
        path: .jsonl, plain or compressed (.gz, .xz).
        limit: read only the first so many pairs of each paradigm; 0: all.
        key: the flag or config key that names the file.

    Raises:
        UserError: the file cannot be read, or a line is not such a record; names file and line.
    """
    pairs, taken = [], {}
    for number, line in enumerate(read_lines(path, key), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON ({error}); each line is one pair") from None
        for key in ("sentence_good", "sentence_bad", "UID"):
            if not isinstance(record, dict) or not isinstance(record.get(key), str) or not record[key]:
                raise UserError(
                    f'{path}, line {number}: expected a JSON object with a string "{key}", as in BLiMP; add it or remove the'
                    " line out"
                )
        taken[record["UID"]] = taken.get(record["UID"], 0) + 1
        if not limit or taken[record["UID"]] <= limit:
            phenomenon = str(record.get("linguistics_term") or "")
            pairs.append(Pair(record["sentence_good"], record["sentence_bad"], record["UID"], phenomenon))
    if not pairs:
        raise UserError(f"{key}={path} has no pairs; give JSON lines like BLiMP's")
    return pairs


def judge_pairs(pairs: Sequence[Pair], score: Callable[[list[str]], list[Score]]) -> dict[str, Any]:
    """How often the good sentence is more likely than the bad one (Warstadt et al. 2020, section 4).

    A tie, up to rounding, counts as half. Scores are likelihoods of whole sentences, not divided by length.

    Args:
        pairs: from any number of paradigms.
        score: maps texts to their scores.

    Returns:
        `accuracy` (the mean over paradigms), its `standard_error` over pairs, the number of `pairs`, and the same for each of
        `paradigms` and of `phenomena` (the mean over its paradigms). A standard error is None if nothing tells it: a
        paradigm has one pair, or all pairs of each are right, or all wrong.
    """
    scores = score([text for pair in pairs for text in (pair.good, pair.bad)])
    right = [credit(pair) for pair in np.array([score.log_probability for score in scores]).reshape(-1, 2)]
    phenomena = {}
    for name in dict.fromkeys(pair.phenomenon for pair in pairs if pair.phenomenon):
        own = [(value, pair.paradigm) for value, pair in zip(right, pairs, strict=True) if pair.phenomenon == name]
        judged = mean_accuracy(*zip(*own))
        phenomena[name] = {key: value for key, value in judged.items() if key != "paradigms"}
    return mean_accuracy(right, [pair.paradigm for pair in pairs]) | {"phenomena": phenomena}


def credit(values: Sequence[float]) -> float:
    """1 if the first value is the highest, 1/k if it ties with k − 1 others, otherwise 0."""
    best = tied(values)
    return float(best[0]) / int(best.sum())


def tied(values: Sequence[float]) -> Bool[np.ndarray, "n"]:
    """Which log-probabilities are the highest, up to rounding."""
    return np.max(values) - np.asarray(values) < _ROUNDING


def mean_accuracy(
    right: Sequence[float], names: Sequence[str], split_of: Callable[[str], str] = lambda name: ""
) -> dict[str, Any]:
    """The accuracy as the mean over splits of the means over their paradigms, in the form of `judge_pairs`.

    Args:
        right: 1 or 0 for each item, or between them for a tie.
        names: the paradigm of each item.
        split_of: the split of a paradigm.
    """
    paradigms, errors, right = {}, [], np.asarray(right)
    for name in dict.fromkeys(names):
        own = right[[name == other for other in names]]
        spread = float(own.std(ddof=1)) if np.ptp(own) > 0 else 0.0
        errors.append(spread / math.sqrt(len(own)) if len(own) > 1 else None)
        # No spread, of pairs that are all right or all wrong, does not say that the next one would be too.
        paradigms[name] = {"accuracy": float(own.mean()), "standard_error": errors[-1] or None, "pairs": len(own)}
    splits = [split_of(name) for name in paradigms]
    weights = [1 / len({*splits}) / splits.count(split) for split in splits]
    is_known = None not in errors and any(errors)
    return {
        "accuracy": sum(w * paradigm["accuracy"] for w, paradigm in zip(weights, paradigms.values())),
        "standard_error": math.hypot(*(w * error for w, error in zip(weights, errors))) if is_known else None,
        "pairs": len(right),
        "paradigms": paradigms,
    }


def _bits_per_byte(
    model: Pretrained, texts: list[str], source: str, kinds: Sequence[str], orders: int, closing: bool
) -> dict[str, Any]:
    """Measures; prints a table that explains each number and its biases."""
    found = {kind: dataclasses.asdict(model.bits_per_byte(texts, kind, orders, closing)) for kind in kinds}
    some, hashed = found[kinds[0]], text_hash(_marked(texts, closing))
    print(
        f"{source}: {len(texts):,} texts, {some['bytes']:,} bytes, {some['pieces']:,} pieces; {some['unknown']:.2%} are [UNK]"
    )
    print(f"{'kind':<20}{'bits/byte':>10}{'s.e.':>8}{'scored':>10}  what it is")
    for kind, bits in found.items():
        value = f"{'≤ ' if kind in BOUNDS else ''}{bits['value']:.4f}"
        meaning = _MEANING[kind].format(bits["order_error"])
        print(f"{kind:<20}{value:>10}{_error(bits['standard_error'])}{bits['tokens']:>10,}  {meaning}")
    if ends := [f"{kind} {bits['closing']:.4f}" for kind, bits in found.items() if bits["closing"]]:
        print(f"of which bits per byte for where each text ends: {', '.join(ends)} (--noclosing leaves them out)")
    for name in biases_of(found.values()):
        print(BIASES[name])
    return {kind: {k: v for k, v in bits.items() if k != "kind"} | {"text_hash": hashed} for kind, bits in found.items()}


def _marked(texts: Sequence[Any], closing: bool) -> list[Any]:
    """What the hash is of: numbers without the ends of texts do not compare with numbers that have them."""
    return [*texts] if closing else ["closing=False", *texts]


def _minimal_pairs(
    model: Pretrained, pairs: Sequence[Pair], source: str, kinds: Sequence[str], orders: int, closing: bool
) -> dict[str, Any]:
    """Measures; prints accuracy and standard error in percent by kind: of each paradigm, each phenomenon and all."""
    found = {kind: judge_pairs(pairs, lambda texts, kind=kind: model.score(texts, kind, orders, closing)) for kind in kinds}
    of_first = found[kinds[0]]
    rows = [("paradigms", name) for name in of_first["paradigms"]] + [("phenomena", name) for name in of_first["phenomena"]]
    label = lambda group, name: f"all {name}" if group == "phenomena" else name
    total = f"mean of {len(of_first['paradigms'])}"
    width = max(len(label(*row)) for row in [*rows, ("", total)]) + 2
    print(f"{source}: {len(pairs):,} pairs; the good sentence more likely, % (s.e.); chance is 50")
    print(" " * width + "".join(f"{kind:>21}" for kind in found) + f"{'pairs':>8}")
    for group, name in [*rows, ("", total)]:
        judged = [kind[group][name] if group else kind for kind in found.values()]
        cells = [f"{100 * j['accuracy']:>13.1f}{_error(j['standard_error'], 100)}" for j in judged]
        print(f"{label(group, name):<{width}}" + "".join(cells) + f"{judged[0]['pairs']:>8,}")
    hashed = text_hash([(pair.good, pair.bad, pair.paradigm) for pair in pairs])
    return {kind: judged | {"text_hash": hashed} for kind, judged in found.items()}


def _error(value: float | None, scale: float = 1) -> str:
    return f"{'–':>8}" if value is None else f"{value * scale:>8.{1 if scale > 1 else 4}f}"


def _read_texts(path: Path, limit: int) -> dict[int, str]:
    """The texts by the numbers of their lines, from 1."""
    if str(path) == TEST_SPLIT:
        raise UserError(f"--text={path}: evaluation.json uses this name for the held-out sentences; rename the file")
    texts = {number: line for number, line in enumerate(read_lines(path, "--text"), 1) if line.strip()}
    if not texts:
        raise UserError(f"--text={path} is empty; give one text per line")
    return dict(itertools.islice(texts.items(), limit or None))
