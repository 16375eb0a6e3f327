"""How likely a model finds a text, in each of the ways that its objectives allow, and all of them on one scale: bits per byte.

A text of T pieces x_1 … x_T stands between the special tokens that the tokenizer puts around it: [CLS] x_1 … x_T [SEP] for
BERT, nothing for GPT-2. What is added up (KINDS) is:

- "left-to-right": Σ log p(token | all before it), of every token but the first: in BERT's frame of x_1 … x_T and [SEP];
  without a frame of x_2 … x_T, so that x_1 is free. It is a code length: its exponential is the probability of the text (up
  to a free x_1), that it ends there included where a [SEP] says so. Models of `prefix` and `masked_next_token`, which can see
  both sides, are shown the tokens in order; one of prefixes has learnt a text's first tokens only from short prefixes, and not
  at all where `min_share` is above 0, so that it has no such score.
- "right-to-left": the same from the other end: of x_T … x_1 and [CLS]; without a frame x_T is free.
- "both directions": the mean of the two, for models that have both (biLM).
- "pseudo": pseudo-log-likelihood, Σ log p(x_t | the text with [MASK] in place of x_t) over the T pieces; special tokens are
  neither masked nor scored (Salazar et al. 2020, section 2). It is no probability of the text: each piece is predicted with
  both sides in sight, and is in sight when they are predicted; over all texts the exponentials do not add up to 1. As a rule
  it is nearer to 0 than a left-to-right score, which does not make the model better. It is biased towards words of several
  pieces, which give each other away. Of `masked_next_token` the state before a masked token predicts it, so without a frame
  x_1 is free here too. A model that has never been shown [MASK] (`mask_share=0`) has no pseudo score.
- "pseudo-within-word": the same with the later pieces of x_t's own word masked too (PLL-word-l2r, Kauf and Ivanova 2023),
  which removes that bias; it is no probability either. A word is what the tokenizer's `continues` says; where that is not
  known each piece is one, and the two pseudo kinds are equal.

So bits per byte of one kind compare models, whatever their tokenizers; left-to-right and right-to-left compare with each
other; pseudo compares with pseudo alone. Only what was trained counts: an objective without a weight has taught nothing.

Letters: B rows, L length of a row, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.data.text_rows import TextRow
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft, neighbours
from bertlab.objectives.base import Objective
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program
from bertlab.transfer.rows import Compiled, batches, padded_length, power_of_two, stacked

KINDS = ("both directions", "left-to-right", "right-to-left", "pseudo", "pseudo-within-word")
"""What `score` can mean; a model's default is the first of these that it allows."""

_POSITIONS = 4096  # of masked copies, worked through at a time


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely a model finds a text.

    Attributes:
        log_probability: sum over the scored tokens, in nats.
        tokens: how many those are.
        kind: one of KINDS: see `bertlab.transfer.likelihood`. The pseudo kinds are no probability of the text.
    """

    log_probability: float
    tokens: int
    kind: str


@dataclasses.dataclass(frozen=True)
class BitsPerByte:
    """−Σ log2 p / Σ bytes over texts: sums of scores, so the kind says what it means and how it is biased.

    The bytes are those of the whole texts in UTF-8, as they were given. What is not predicted is counted in them all the same,
    and makes a number too low: what normalisation loses (capitals, accents, kinds of white space), what [UNK] stands for, and
    a first token that is free. In the other direction, [SEP] or [CLS] at the end is predicted and is no byte.

    Attributes:
        value: bits per byte.
        standard_error: of `value` as a ratio of sums over independent texts; None for a single text.
        kind: one of KINDS.
        texts, bytes: how many.
        tokens: scored ones, as in `Score`.
        pieces: the texts' own tokens; where fewer are scored, one of each text is free.
        unknown: share of the pieces that are [UNK]; above 0 the value does not compare with other tokenizers'.
        lowercase: the tokenizer drops capitals, which other tokenizers may have to predict.
    """

    value: float
    standard_error: float | None
    kind: str
    texts: int
    bytes: int
    tokens: int
    pieces: int
    unknown: float
    lowercase: bool


def predictions_of(objectives: Mapping[str, Objective]) -> frozenset[str]:
    """How a model of these objectives has learnt to predict a token of a text.

    Returns:
        Of "forward" and "backward", by the states of that side; "in order", by states that see both sides, shown the tokens
        in order; "at the mask", by the state of a [MASK] in its place; "before the mask", by the state one position earlier.
    """
    return frozenset(learnt for objective in objectives.values() for learnt in _predictions(objective))


def _predictions(objective: Objective) -> list[str]:
    if isinstance(objective, LeftToRight):
        return ["forward"]
    if isinstance(objective, RightToLeft):
        return ["backward"]
    if isinstance(objective, PrefixLanguageModel) and not objective.min_share:
        return ["in order"]
    if isinstance(objective, MaskedLanguageModel) and objective.mask_share:
        return ["at the mask"]
    if isinstance(objective, MaskedNextToken):
        masked = objective.causal_share < 1 and objective.mask_share > 0
        return ["in order"] * (objective.causal_share > 0) + ["before the mask"] * masked
    return []


def kinds_of(objectives: Mapping[str, Objective]) -> tuple[str, ...]:
    """The kinds that trained objectives allow, the default first; () where none of them is of use."""
    learnt = predictions_of(objectives)
    pseudo = learnt & {"at the mask", "before the mask"}
    both, forward = learnt >= {"forward", "backward"}, learnt & {"forward", "in order"}
    allowed = (both, forward, "backward" in learnt, pseudo, pseudo)
    return tuple(kind for kind, is_allowed in zip(KINDS, allowed) if is_allowed)


def check_kind(kind: str | None, objectives: Mapping[str, Objective], trained: Collection[str]) -> str:
    """The kind, or the model's default for None.

    Args:
        kind: one of KINDS, or None.
        objectives: all that the model has.
        trained: names of those that had a weight.

    Raises:
        UserError: there is no such kind, or the model was not trained for it.
    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"kind={kind!r} is not known; choose one of {', '.join(KINDS)}")
    kinds = kinds_of({name: objectives[name] for name in trained})
    reasons = [reason for name, objective in objectives.items() if (reason := _lacks(name, objective, name in trained))]
    names = ", ".join(objectives) or "none"
    if not kinds and reasons:
        raise UserError(
            f"this model cannot be scored: {'; '.join(reasons)}; train ltr, prefix or mlm beside it, or compare it on a task"
            " (bertlab finetune)"
        )
    if not kinds:
        raise UserError(
            f"this model predicts no tokens (its objectives: {names}); score() needs ltr, rtl, mlm, prefix or masked_next_token"
        )
    if kind is not None and kind not in kinds:
        raise UserError(
            f"kind={kind!r}: this model was not trained for it ({'; '.join([f'its objectives: {names}', *reasons])}); choose"
            f" {' or '.join(kinds)}"
        )
    return kind or kinds[0]


def _lacks(name: str, objective: Objective, trained: bool) -> str:
    """Why an objective gives fewer kinds than it might; "" where it does not."""
    if not trained:
        return f"{name} had no weight in training" if _predictions(objective) else ""
    if isinstance(objective, PermutationLanguageModel):
        return "it was trained by permutation, whose predictions come from a query stream that score() does not run"
    if isinstance(objective, MaskedLanguageModel | MaskedNextToken) and not objective.mask_share:
        return f"{name} with mask_share=0 has never shown it the [MASK] that pseudo scores put in"
    if isinstance(objective, PrefixLanguageModel) and objective.min_share:
        return f"{name} with min_share={objective.min_share} has never asked it for a text's first tokens"
    return ""


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores of rows.

    Attributes:
        compiled: program and parameters.
        tokenizer: what makes the rows.
        longest: positions of the model.
        learnt: `predictions_of` its trained objectives.
    """

    compiled: Compiled
    tokenizer: Tokenizer
    longest: int
    learnt: frozenset[str]

    def score(self, rows: Sequence[TextRow], kind: str) -> list[Score]:
        """The score of each row; `kind` is one of `kinds_of` the trained objectives."""
        if kind.startswith("pseudo"):
            return self._masked(rows, kind)
        directions = {"left-to-right": ["forward"], "right-to-left": ["backward"]}.get(kind, ["forward", "backward"])
        # Without ltr it is a body that sees both sides, and is shown the tokens in the order in which they stand.
        ordered = kind == "left-to-right" and "forward" not in self.learnt
        scores = {}
        for indices, view in batches(rows, self.longest, self.tokenizer.pad_id):
            view = view | {"order": view["positions"]} if ordered else view
            asked = [(direction, "both" if ordered else direction) for direction in directions]
            sums = np.mean([self.compiled(_score_neighbours, view, *settings) for settings in asked], axis=0)
            scores |= {index: Score(float(total), round(float(n)), kind) for index, total, n in zip(indices, *sums)}
        return [scores[index] for index in range(len(rows))]

    def _masked(self, rows: Sequence[TextRow], kind: str) -> list[Score]:
        """One masked copy for each piece of each row; copies of about the same length are worked through together."""
        # Masked-next-token prediction names a masked token one position before it: without [CLS] the first is free.
        shift = 0 if "at the mask" in self.learnt else 1
        continues = self.tokenizer.continues() if kind == "pseudo-within-word" else None
        copies = [
            (index, place, end)
            for index, row in enumerate(rows)
            for place, end in masked_spans(row, continues)
            if place >= shift
        ]
        lengths = np.array([padded_length(len(rows[index].tokens), self.longest) for index, _, _ in copies])
        totals, counts = np.zeros(len(rows)), np.zeros(len(rows), int)
        for length in np.unique(lengths).tolist():
            alike = np.array(copies)[lengths == length]
            size = power_of_two(min(len(alike), max(1, _POSITIONS // length)))
            for start in range(0, len(alike), size):
                owners, places, ends = alike[start : start + size].T
                view = stacked([rows[owner] for owner in owners], length, self.tokenizer.pad_id, size)
                np.add.at(totals, owners, self._at(view, places, ends, shift))
                np.add.at(counts, owners, 1)
        return [Score(float(total), int(count), kind) for total, count in zip(totals, counts)]

    def _at(self, view: View, places: Int[np.ndarray, "C"], ends: Int[np.ndarray, "C"], shift: int) -> Float[np.ndarray, "C"]:
        """log p of the token at one place of each of the first C rows, with those from it up to `end` masked."""
        count, (size, length) = len(places), view["tokens"].shape
        at = np.arange(length)
        hidden = (at >= places[:, None]) & (at < ends[:, None])
        tokens, labels, asked = view["tokens"].copy(), np.zeros(size, np.int32), np.zeros(size, np.int32)
        labels[:count], asked[:count] = tokens[np.arange(count), places], places - shift
        tokens[:count][hidden] = self.tokenizer.mask_id
        found = self.compiled(_score_at, view | {"tokens": tokens, "labels": labels, "asked": asked})
        return np.asarray(found, np.float64)[:count]


def masked_spans(row: TextRow, continues: Sequence[bool] | None) -> Iterator[tuple[int, int]]:
    """(place, end) of each piece of a text: what is masked to score it is [place, end).

    Args:
        row: of a text (not of words).
        continues: by id, whether a piece goes on with the word before it, to mask the rest of a word too; or None.
    """
    goes_on = [continues is not None and continues[token] for token in row.tokens[row.first]]
    end = 0
    for index in reversed(range(len(row.first))):
        place = int(row.first[index])
        # The last piece of a word: the next one does not go on with it.
        if index + 1 == len(row.first) or not goes_on[index + 1]:
            end = place + 1
        yield place, end


def bits_per_byte(texts: Sequence[str], rows: Sequence[TextRow], scores: Sequence[Score], tokenizer: Tokenizer) -> BitsPerByte:
    """Sums scores of texts to bits per byte.

    Raises:
        UserError: the texts are empty, or none of their tokens is scored.
    """
    bits = np.array([score.log_probability for score in scores]) / -np.log(2)
    sizes = np.array([len(text.encode()) for text in texts], float)
    tokens = sum(score.tokens for score in scores)
    if not tokens or not sizes.sum():
        raise UserError("the texts have no token that is scored; give longer ones")
    value = bits.sum() / sizes.sum()
    deviations = bits - value * sizes
    error = np.sqrt(len(texts) / (len(texts) - 1) * (deviations**2).sum()) / sizes.sum() if len(texts) > 1 else None
    pieces = np.concatenate([row.tokens[row.first] for row in rows])
    return BitsPerByte(
        value=float(value),
        standard_error=None if error is None else float(error),
        kind=scores[0].kind,
        texts=len(texts),
        bytes=int(sizes.sum()),
        tokens=tokens,
        pieces=len(pieces),
        unknown=float(np.mean(pieces == tokenizer.unk_id)),
        lowercase=tokenizer.lowercase,
    )


def _score_neighbours(program: Program, direction: str, side: str, params, view: View) -> Float[Array, "2 B"]:
    """Σ log p of each row's neighbouring tokens in one direction, by the states of one side, and how many there are."""
    hidden = program.encode(params, view).output(side)
    labels = neighbours(view, direction)
    asked = labels >= 0
    chosen = _log_probability(program.predict_tokens(params, hidden, side), jnp.maximum(labels, 0))
    return jnp.stack([jnp.where(asked, chosen, 0.0).sum(axis=1), asked.sum(axis=1).astype(jnp.float32)])


def _score_at(program: Program, params, view: View) -> Float[Array, "B"]:
    """log p of one label a row by one of its states."""
    hidden = jnp.take_along_axis(program.encode(params, view).output("both"), view["asked"][:, None, None], axis=1)[:, 0]
    return _log_probability(program.predict_tokens(params, hidden, "both"), view["labels"])


def _log_probability(logits: Float[Array, "... V"], labels: Int[Array, "..."]) -> Float[Array, "..."]:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
