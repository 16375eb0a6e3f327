"""BabyLM's reading times (De Varda et al. 2023): how much of them a word's surprisal explains.

In the pipeline, as here, a masked model is asked for the first of three [MASK]s after the context
(Samuel 2024), and a model that reads left to right sees the closing token before the word. Words of
several pieces: the pipeline decodes the pieces before and encodes the text again, which changes
them unless the tokenizer is byte-level; here they are appended.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bertlab.contrib.zero_shot import fitted
from bertlab.errors import UserError
from bertlab.evals.code_length import Scorer
from bertlab.evals.questions import Text
from bertlab.transfer.load import Pretrained

READING = "reading/reading_data.csv"
KINDS = ("left-to-right", "pseudo")
"""Kinds of score that can ask for a next word."""

MASKS = 3

EYE_TRACKING = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
SELF_PACED = "self_paced_reading_time"
CONTROLS = ("Subtlex_log10", "length", "context_length")
SPILLOVER = ("prev_length", "prev_pred")
TEXTS = ("item", "word", "prev_item", "prev_word")


def read_reading(path: Path) -> pd.DataFrame:
    """The words with their contexts (`item`), controls and reading times.

    As in the pipeline, pandas decides what is missing: a missing context is the word "None"; a
    missing `prev_item` stays missing.

    Raises:
        UserError: The file lacks a column, or a column is not numeric.
    """
    table = pd.read_csv(path, dtype=dict.fromkeys(TEXTS, str))
    numbers = (*EYE_TRACKING, SELF_PACED, *CONTROLS, "prev_length")
    for name in (*TEXTS, *numbers):
        if name not in table:
            raise UserError(f"{path} lacks the column {name}; give BabyLM's reading_data.csv")
    for name in numbers:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise UserError(f"{path}: the column {name} has a value that is not a number")
    if table["word"].isna().any():
        row = int(table["word"].isna().argmax()) + 2
        raise UserError(f"{path}: the column word is empty in row {row}")
    return table.assign(item=table["item"].fillna("None"))


def with_surprisals(scorer: Scorer, table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The table with `pred` and `prev_pred`: −log p of the word and of the one before it, each
    given its context, in nats."""
    has_previous = table["prev_item"].notna() & table["prev_word"].notna()
    pairs = list(zip(table["item"], table["word"]))
    previous = list(zip(table["prev_item"][has_previous], table["prev_word"][has_previous]))
    distinct = list(dict.fromkeys([*pairs, *previous]))
    texts, owners = [], []
    for number, (context, word) in enumerate(distinct):
        for text in word_questions(scorer.model, context, word, kind):
            texts.append(text)
            owners.append(number)
    surprisals = np.zeros(len(distinct))
    scores = scorer.score(texts, kind, special=False)
    np.subtract.at(surprisals, owners, scores.log_probability)
    found = dict(zip(distinct, surprisals))
    table = table.assign(pred=[found[pair] for pair in pairs], prev_pred=np.nan)
    table.loc[has_previous, "prev_pred"] = [found[pair] for pair in previous]
    return table


def word_questions(model: Pretrained, context: str, word: str, kind: str) -> list[Text]:
    """One text per piece of a word, in which that piece is scored."""
    tokenizer, texts = model.tokenizer, []
    context_ids, pieces = tokenizer.encode(context), tokenizer.encode(word)
    suffix = list(tokenizer.suffix_ids)
    for index, piece in enumerate(pieces):
        visible, after = [*tokenizer.prefix_ids, *context_ids, *pieces[:index]], []
        if kind == "left-to-right":
            visible += suffix
        else:
            after = [tokenizer.mask_id] * (MASKS - 1) + suffix
        tokens = np.array([*visible, piece, *after], np.int32)
        texts.append(fitted(Text(tokens, np.array([len(visible)]), 0.0), model))
    return texts


def eye_tracking(table: pd.DataFrame) -> float:
    """The mean over four measures of what the word's surprisal explains."""
    return float(np.mean([explained(table, outcome, CONTROLS) for outcome in EYE_TRACKING]))


def self_paced(table: pd.DataFrame) -> float:
    """What it explains of self-paced reading times, with the word before as a control too."""
    return explained(table, SELF_PACED, (*CONTROLS, *SPILLOVER))


def explained(table: pd.DataFrame, outcome: str, controls: Sequence[str]) -> float:
    """The share that `pred` explains of the variance that the controls leave, (R² − R₀²) / (1 −
    R₀²).

    R₀² is that of the least squares regression on the controls and their pairwise products, R² that
    of the same with `pred`. Rows that lack a value are left out.

    Raises:
        UserError: There are no more rows than coefficients.
    """
    rows = table[[outcome, *controls, "pred"]].dropna().to_numpy(np.float64)
    # Standardised controls and their products span the same space, but are better conditioned.
    scaled = (rows - rows.mean(0)) / np.where(rows.std(0) > 0, rows.std(0), 1)
    target, columns, pred = scaled[:, 0], scaled[:, 1:-1].T, scaled[:, -1]
    products = [columns[i] * columns[j] for i in range(len(columns)) for j in range(i)]
    base = np.stack([np.ones(len(rows)), *columns, *products], axis=1)
    if len(rows) <= base.shape[1] + 1:
        raise UserError(f"{READING}: {len(rows)} rows with {outcome} are too few for a regression")
    designs = base, np.column_stack([base, pred])
    left = [np.sum((target - x @ np.linalg.lstsq(x, target)[0]) ** 2) for x in designs]
    return float(1 - left[1] / left[0]) if left[0] else 0.0
