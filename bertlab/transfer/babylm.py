"""`bertlab evaluate --suite=babylm`: BabyLM's zero-shot tasks, scored by a model's own likelihood.

Rules, and the names of folders and fields, are those of babylm/evaluation-pipeline-2025's code; its data files themselves: not
verified. A back end of the pipeline is a kind of score here: `causal` is "left-to-right", `mlm` and `mntp` (masked next token)
are "pseudo". Only a completion's pieces are scored, the rest of its text is given. "any-order" is then the bound of its code
length, for models without the others.

| task | file's fields | score |
|---|---|---|
| blimp, blimp_supplement | sentence_good, sentence_bad; UID, or the file's name | accuracy, mean over paradigms |
| ewok | Context1, Target1, Target2, Domain | the same, of the target after Context1; mean over domains |
| entity_tracking | input_prefix, options (the first is right), numops | of the options; mean over files of means over numops |
| comps | prefix_acceptable, prefix_unacceptable, property_phrase | of the phrase after either prefix; mean over files |
| wug_adj, wug_past | sentences (two, a tab between), ratio | Spearman's ρ of log p(first) − log p(second) and ratio |
| reading_eye_tracking, reading_self_paced | reading_data.csv | see `explained` |

Where we differ from the pipeline:

- Ties, up to rounding: k equally likely best answers count 1/k each. The pipeline takes the first, which is always the right
  one. Entries have the number of `ties`.
- wug: its softmax saturates in float32, which makes ties of its own; our differences do not.
- Texts longer than the model's positions lose the beginning of their context; entries have their number, `cut`.
- Words of several pieces (reading): the pipeline decodes the pieces and encodes the text again, which changes them unless the
  tokenizer is byte-level; we append the pieces.
- `special_tokens`: "pipeline" scores a completion's pieces alone and, left to right, shows the closing token before the word
  whose surprisal is asked for; "bertlab" also scores the closing token (for "any-order": the number of pieces), as `Pretrained.
  score` does, and does not show it before a word. This matters only to tokenizers that put special tokens around a text.

Back ends for encoder-decoders, age of acquisition and images are not here, nor is a search for the best temperature.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from bertlab.data.text_rows import RowEncoder, TextRow
from bertlab.errors import UserError, reason_of
from bertlab.files import parse_json
from bertlab.run import BOUNDS
from bertlab.train.processes import is_first
from bertlab.transfer.completions import completion, fitted
from bertlab.transfer.evaluate import check_request, credit, known_orders, mean_accuracy, tied, write_merged
from bertlab.transfer.evaluations import read_evaluations, text_hash
from bertlab.transfer.load import Pretrained, load, read_lines
from bertlab.transfer.scorers import spearman

KINDS = ("left-to-right", "pseudo", "pseudo-within-word", "any-order")
"""The kinds that can score the end of a text given its beginning."""

SPECIAL_TOKENS = ("pipeline", "bertlab")

MASKS = 3
"""[MASK]s that stand for a word and what follows it (Samuel 2024), to ask a masked model for the next word."""

EYE_TRACKING = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
SELF_PACED = "self_paced_reading_time"
_OWN = ("Subtlex_log10", "length", "context_length")
_SPILLOVER = ("prev_length", "prev_pred")


class Item(NamedTuple):
    """One question.

    Attributes:
        texts: the answers with their contexts; the first is right.
        starts: the character at which each answer begins.
        paradigm: what it is averaged with.
        ratio: the share of people who chose the first; NaN for other tasks.
    """

    texts: tuple[str, ...]
    starts: tuple[int, ...]
    paradigm: str
    ratio: float = math.nan


def _blimp(record: Mapping, file: str) -> Item:
    return Item((record["sentence_good"], record["sentence_bad"]), (0, 0), record["UID"] if "field" in record else file)


def _ewok(record: Mapping, _: str) -> Item:
    context = record["Context1"]
    return _completions(context, (f"{context} {record[target]}" for target in ("Target1", "Target2")), record["Domain"])


def _entity_tracking(record: Mapping, file: str) -> Item:
    context = record["input_prefix"]
    return _completions(context, (context + option for option in record["options"]), f"{file}_{record['numops']}_ops")


def _completions(context: str, texts: Iterator[str], paradigm: str) -> Item:
    texts = tuple(texts)
    return Item(texts, (len(context),) * len(texts), paradigm)


def _comps(record: Mapping, file: str) -> Item:
    contexts = [record[f"prefix_{judged}"] + " " for judged in ("acceptable", "unacceptable")]
    texts = tuple(context + record["property_phrase"] for context in contexts)
    return Item(texts, tuple(map(len, contexts)), file.removeprefix("comps_"))


def _wug(record: Mapping, file: str) -> Item:
    first, second = record["sentences"].split("\t")
    return Item((first, second), (0, 0), file, float(record["ratio"]))


Values = Sequence[Float[np.ndarray, "n"]]
"""log p of each answer of each item."""


def _accuracy(items: Sequence[Item], values: Values, split_of: Callable[[str], str] = lambda name: "") -> dict[str, Any]:
    found = mean_accuracy([credit(of) for of in values], [item.paradigm for item in items], split_of)
    paradigms = {name: of["accuracy"] for name, of in found["paradigms"].items()}
    ties = sum(int(tied(of).sum() > 1) for of in values)
    return {"score": found["accuracy"], "standard_error": found["standard_error"], "ties": ties, "paradigms": paradigms}


def _by_file(items: Sequence[Item], values: Values) -> dict[str, Any]:
    return _accuracy(items, values, lambda name: name.rsplit("_", 2)[0])


def _correlation(items: Sequence[Item], values: Values) -> dict[str, Any]:
    preferences = [of[0] - of[1] for of in values]
    return {"score": float(spearman([item.ratio for item in items], preferences)), "standard_error": None}


class Task(NamedTuple):
    """A task of .jsonl files: where they are (full and fast evaluation), what a record asks, and the score."""

    folders: tuple[str, ...]
    item: Callable[[Mapping, str], Item]
    judge: Callable[[Sequence[Item], Values], dict[str, Any]]


TASKS = {
    "blimp": Task(("blimp_filtered", "blimp_fast"), _blimp, _accuracy),
    "blimp_supplement": Task(("supplement_filtered", "supplement_fast"), _blimp, _accuracy),
    "ewok": Task(("ewok_filtered", "ewok_fast"), _ewok, _accuracy),
    "entity_tracking": Task(("entity_tracking", "entity_tracking_fast"), _entity_tracking, _by_file),
    "comps": Task(("comps",), _comps, _accuracy),
    "wug_adj": Task(("wug_adj_nominalization",), _wug, _correlation),
    "wug_past": Task(("wug_past_tense",), _wug, _correlation),
}

READING = "reading/reading_data.csv"


def evaluate_babylm(
    run: Path,
    data: Path,
    kinds: Sequence[str] = (),
    limit: int = 0,
    out: Path | None = None,
    step: int | None = None,
    orders: int | None = None,
    special_tokens: str = "pipeline",
    together: bool = False,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores a run on every task whose files are there, prints a table and adds the scores to evaluation.json.

    Args:
        run, out, step, orders, together: as for `bertlab.transfer.evaluate.evaluate`.
        data: the folder with BabyLM's evaluation files: `full_eval` or `fast_eval`.
        kinds: some of KINDS; () for all that the model allows, the bound "any-order" only if it allows no other.
        limit: most items of each paradigm, from the start; 0: all. Reading times are always read whole.
        special_tokens: one of SPECIAL_TOKENS.

    Returns:
        {task: {kind: {"score", "standard_error", "items", "cut", "special_tokens", "text_hash", ...}}}; scores are at most 1.
        A standard error is over items within their paradigms. It is None, "–" in the table, for correlations and reading times,
        and where nothing tells it: a paradigm has one item, or all items of each are right, or all wrong.

    Raises:
        UserError: a file cannot be read, there is none, or the model cannot be scored this way.
    """
    if special_tokens not in SPECIAL_TOKENS:
        raise UserError(f"--special_tokens={special_tokens} is not known; choose one of {', '.join(SPECIAL_TOKENS)}")
    out = check_request(run, step, out, limit, orders)
    asked = {name: items for name, task in TASKS.items() if (items := read_items(data, task, limit))}
    table = read_reading(data / READING) if (data / READING).is_file() else None
    if not asked and table is None:
        folders = ", ".join(folder for task in TASKS.values() for folder in task.folders)
        raise UserError(f"--data={data} has none of {folders}, {READING}; give BabyLM's evaluation_data/full_eval or fast_eval")
    if out.is_file():
        read_evaluations(out)
    model = load(run, step, together=together)
    allowed = [kind for kind in model.kinds if kind in KINDS]
    kinds = kinds or [kind for kind in allowed if kind not in BOUNDS] or allowed
    for kind in kinds or [None]:
        if model.check_kind(kind) not in KINDS:
            raise UserError(f"--suite=babylm: {kind or model.kinds[0]} cannot score a text's end alone; use {', '.join(KINDS)}")
    orders = known_orders(orders, kinds)
    found: dict[str, dict[str, dict[str, Any]]] = {}

    def note(name: str, kind: str, entry: Mapping[str, Any], of: Any) -> None:
        # Scores by different rules are not to be compared either.
        entry = {**entry, "special_tokens": special_tokens, "text_hash": text_hash([special_tokens, *of])}
        found.setdefault(name, {})[kind] = entry
        error = "–" if entry["standard_error"] is None else f"{100 * entry['standard_error']:.1f}"
        ties, cut = (f"{entry.get(key, 0):,}" for key in ("ties", "cut"))
        print(f"{name:<22}{kind:<20}{100 * entry['score']:>8.2f}{error:>8}{entry['items']:>10,}{ties:>8}{cut:>8}")

    print(f"{data}: BabyLM's tasks, % (accuracy, ρ or variance explained); special tokens as in {special_tokens}")
    print(f"{'task':<22}{'kind':<20}{'score':>8}{'s.e.':>8}{'items':>10}{'ties':>8}{'cut':>8}")
    for kind in kinds:
        for name, items in asked.items():
            values, cut = answer_scores(model, items, kind, orders, special_tokens)
            note(name, kind, {"items": len(items), "cut": cut} | TASKS[name].judge(items, values), items)
        # Of several hidden pieces only the next is asked for, so the two pseudo kinds are one, and a bound is none.
        if table is not None and kind in ("left-to-right", "pseudo") and model.config.model.token_encoder != "characters":
            scored = with_surprisals(model, table, kind, special_tokens)
            of = [*map(str, table.astype(str).itertuples(index=False, name=None))]
            common = {"standard_error": None, "items": len(table)}
            note("reading_eye_tracking", kind, common | {"score": eye_tracking(scored)}, of)
            note("reading_self_paced", kind, common | {"score": self_paced(scored)}, of)
    if not together or is_first():
        write_merged(out, {"babylm": found})
    print(f"{out}: {', '.join(found)}")
    return found


def read_items(data: Path, task: Task, limit: int = 0) -> list[Item]:
    """The items of a task's files, in the order of their names; [] if it has no folder.

    Raises:
        UserError: a line is not a record of the task, or a file has none; names file and line.
    """
    folder = next((data / name for name in task.folders if (data / name).is_dir()), None)
    items, taken = [], {}
    for path in sorted(folder.glob("*.jsonl")) if folder else ():
        lines = [(number, line) for number, line in enumerate(read_lines(path, "--data"), 1) if line.strip()]
        if not lines:
            raise UserError(f"{path} is empty; restore it, or delete it to leave it out")
        for number, line in lines:
            try:
                item = task.item(parse_json(line), path.stem)
                if not all(isinstance(text, str) and text for text in (*item.texts, item.paradigm)):
                    raise TypeError("a text is empty or not a string")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UserError(
                    f"{path}:{number}: not a record of BabyLM's {folder.name} ({reason_of(error)}); see"
                    " bertlab/transfer/babylm.py for its fields"
                ) from None
            taken[item.paradigm] = taken.get(item.paradigm, 0) + 1
            if not limit or taken[item.paradigm] <= limit:
                items.append(item)
    return items


def answer_scores(
    model: Pretrained, items: Sequence[Item], kind: str, orders: int, special_tokens: str
) -> tuple[list[Float[np.ndarray, "n"]], int]:
    """log p of each answer given its context, and the number of texts that were cut."""
    encoder = RowEncoder(model.tokenizer, model.config.model.token_encoder == "characters")
    rows, cut = [], 0
    for item in items:
        for text, start in zip(item.texts, item.starts):
            row, pieces = completion(text, start, model, encoder)
            rows.append(row)
            cut += pieces > 0
    scores = model.scorer.score(rows, kind, orders, closing=special_tokens == "bertlab")
    values = np.array([score.log_probability for score in scores])
    return np.split(values, np.cumsum([len(item.texts) for item in items])[:-1]), cut


def read_reading(path: Path) -> pd.DataFrame:
    """The words of De Varda et al. (2023) with their contexts (`item`), controls and reading times.

    As in the pipeline, pandas decides what is missing: a missing context is the word "None"; a missing `prev_item` stays so.

    Raises:
        UserError: the file is no table, or lacks a column.
    """
    texts = ("item", "word", "prev_item", "prev_word")
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(texts, str))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; give BabyLM's reading_data.csv") from None
    needed = (*texts, *EYE_TRACKING, SELF_PACED, *_OWN, "prev_length")
    if missing := [name for name in needed if name not in table]:
        raise UserError(f"{path} lacks the column {missing[0]}; give BabyLM's reading_data.csv")
    for name in needed[len(texts) :]:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise UserError(f"{path}: the column {name} has a value that is no number; correct it")
    if table["word"].isna().any():
        raise UserError(f"{path}: the column word is empty in row {int(table['word'].isna().argmax()) + 2}; fill it")
    return table.assign(item=table["item"].fillna("None"))


def with_surprisals(model: Pretrained, table: pd.DataFrame, kind: str, special_tokens: str) -> pd.DataFrame:
    """The table with `pred` and `prev_pred`: −log p of the word and of the one before it, each given its context, in nats.

    A masked model is asked for the first of MASKS [MASK]s after the context.
    """
    has_previous = table["prev_item"].notna() & table["prev_word"].notna()
    pairs = list(zip(table["item"], table["word"]))
    previous = list(zip(table["prev_item"][has_previous], table["prev_word"][has_previous]))
    tokenizer, rows, owners = model.tokenizer, [], []
    distinct = list(dict.fromkeys([*pairs, *previous]))
    for number, (context, word) in enumerate(distinct):
        given, pieces = tokenizer.encode(context), tokenizer.encode(word)
        for place, piece in enumerate(pieces):
            shown = [*tokenizer.prefix_ids, *given, *pieces[:place]]
            if kind == "left-to-right":
                after, shown = [], shown + [*tokenizer.suffix_ids] * (special_tokens == "pipeline")
            else:
                after = [tokenizer.mask_id] * (MASKS - 1) + [*tokenizer.suffix_ids]
            at = np.array([len(shown)])
            rows.append(fitted(TextRow(np.array([*shown, piece, *after], np.int32), (word,), at, at, None), model))
            owners.append(number)
    surprisals = np.zeros(len(distinct))
    np.subtract.at(surprisals, owners, [s.log_probability for s in model.scorer.score(rows, kind, closing=False)])
    of = dict(zip(distinct, surprisals))
    table = table.assign(pred=[of[pair] for pair in pairs], prev_pred=np.nan)
    table.loc[has_previous, "prev_pred"] = [of[pair] for pair in previous]
    return table


def eye_tracking(table: pd.DataFrame) -> float:
    """The mean over four measures of what the word's surprisal explains."""
    return float(np.mean([explained(table, outcome, _OWN) for outcome in EYE_TRACKING]))


def self_paced(table: pd.DataFrame) -> float:
    """What it explains of self-paced reading times, with the word before as a control too (spillover)."""
    return explained(table, SELF_PACED, (*_OWN, *_SPILLOVER))


def explained(table: pd.DataFrame, outcome: str, controls: Sequence[str]) -> float:
    """The share of an outcome's variance that `pred` explains of what the controls leave: (R² − R₀²) / (1 − R₀²).

    R₀² is of the least squares regression on the controls and the product of each two, R² of the same with `pred`. Rows that
    lack a value are left out.

    Raises:
        UserError: no more rows than coefficients.
    """
    rows = table[[outcome, *controls, "pred"]].dropna().to_numpy(np.float64)
    # Standardised controls and their products span the same space, and better conditioned.
    scaled = (rows - rows.mean(0)) / np.where(rows.std(0) > 0, rows.std(0), 1)
    of, pred, target = scaled[:, 1:-1].T, scaled[:, -1], scaled[:, 0]
    products = [of[i] * of[j] for i in range(len(of)) for j in range(i)]
    base = np.stack([np.ones(len(rows)), *of, *products], axis=1)
    if len(rows) <= base.shape[1] + 1:
        raise UserError(f"{READING}: {len(rows)} rows have {outcome} and its controls; {base.shape[1] + 2} are needed")
    left = [np.sum((target - x @ np.linalg.lstsq(x, target)[0]) ** 2) for x in (base, np.column_stack([base, pred]))]
    return float(1 - left[1] / left[0]) if left[0] else 0.0
