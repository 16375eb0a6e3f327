"""Exact floors: the loss of the best possible model on the synthetic language, for every objective that has one.

The language (bertlab/data/synthetic.py) is a hidden Markov chain with a topic for each document. For one topic, what is
seen before a position and its state have the joint probability that the forward recursion gives, what is seen
after it given its state the backward recursion's; their product, summed over topics, is the state's posterior, and its
mean over the emissions the best prediction of the word. Special tokens are steps at which nothing moves. A document
that begins is a step that forgets: topic and state are drawn anew, so rows may hold several.

Corruption is a channel P(shown | word). Where exactly n positions of a row are chosen, their choices depend on each
other; [MASK]s are seen, so how many others were chosen is known, and the messages count them: K counts
0 to K − 1 of positions so far that were chosen without becoming [MASK]. Of the other documents of a row nothing is seen; they
share its count, so any of their words may have been chosen. Where the text around a row's second
segment is not known (it follows, is random, or comes before: the two were swapped), each relation is a chain of its own, and
predictions are mixed by the relations' posterior probabilities.

A floor is conditioned on what the model sees and on nothing else, with the randomness of the very views that a run is
evaluated on, so that loss − floor is paired: its expectation is the model's divergence from the truth.
Special tokens to be predicted count as known, 0 nats: exact where every row is alike, a lower bound elsewhere.

Letters: T topics, S states, W words, V vocabulary, R rows, L length, P supervised positions, K counts.
Everything is NumPy float64; messages are scaled at each position, so nothing underflows.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bertlab.config import flatten
from bertlab.data.formats import format_class
from bertlab.data.synthetic import Language, language
from bertlab.errors import UserError
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.electra import ReplacedTokenDetection, unigram_probabilities
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program
from bertlab.objectives.span_boundary import SpanBoundary
from bertlab.train.build import Experiment, build_pretraining
from bertlab.train.checkpoint import load_params

Batch = Mapping[str, np.ndarray]

HOLD, MOVE, START = 0, 1, 2
_ROWS = 1024  # worked through at a time where each supervised position sees something else


class NoFloor(Exception):
    """An objective without an exact floor here; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """A language in the ids of a vocabulary.

    Attributes:
        start: P(topic) P(state | topic), of any stretch of a document.
        transition: P(next state | topic, state).
        emission: P(id | state); 0 for ids that are no word's.
    """

    start: Float[np.ndarray, "T S"]
    transition: Float[np.ndarray, "T S S"]
    emission: Float[np.ndarray, "S V"]


def chain_of(language: Language, vocab_size: int, ids: Int[np.ndarray, "W"]) -> Chain:
    """The language with words replaced by their ids; several words may share one ([UNK])."""
    emission = np.zeros((language.emission.shape[0], vocab_size))
    np.add.at(emission.T, np.asarray(ids), language.emission.T)
    return Chain(language.topic_prior[:, None] * language.initial, language.transition, emission)


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
    """What the two recursions say at every position; the scales are logs to be added.

    Attributes:
        before: joint probability of what is seen before a position, its topic and state, and the count until then.
        after: probability of what is seen after it, with the row's count reached, given topic, state and count at it.
        total: log probability of all that is seen.
    """

    before: Float[np.ndarray, "L T R K S"]
    after: Float[np.ndarray, "L T R K S"]
    before_scale: Float[np.ndarray, "R L"]
    after_scale: Float[np.ndarray, "R L"]
    total: Float[np.ndarray, "R"]

    @property
    def scale(self) -> Float[np.ndarray, "R L"]:
        """Log scale of `states`."""
        return self.before_scale + self.after_scale

    def states(self, counted: int = 0) -> Float[np.ndarray, "R L S"]:
        """Joint probability of each state and all that is seen elsewhere; the position itself counts for 0 or 1."""
        size = self.before.shape[3] - counted
        product = self.before[..., :size, :] * self.after[..., counted:, :]
        return product.sum(axis=(1, 3)).swapaxes(0, 1)


def infer(
    chain: Chain,
    steps: Int[np.ndarray, "R L"],
    evidence: Float[np.ndarray, "R L S"],
    chosen: Float[np.ndarray, "R L S"] | None = None,
    counts: Int[np.ndarray, "R"] | None = None,
) -> Messages:
    """Forward and backward recursion over rows of evidence, topics kept apart.

    Args:
        chain: the language.
        steps: HOLD, MOVE (the chain's next word) or START (a document's first word) before each position.
        evidence: P(what is seen at the position | state), and not chosen where choices are counted; 1 where nothing is seen.
        chosen: P(what is seen, and chosen | state).
        counts: how many positions of the row were chosen in this sense.
    """
    rows, length = steps.shape
    counts = np.zeros(rows, int) if counts is None else counts
    size = counts.max(initial=0) + 1
    evidence = evidence.transpose(1, 0, 2)[:, :, None]  # [L, R, 1, S]
    chosen = None if chosen is None else chosen.transpose(1, 0, 2)[:, :, None]
    start, steps = chain.start[:, None, None], steps.T[:, None, :, None, None]
    shape = (length, len(chain.start), rows, size, evidence.shape[-1])
    before, after, scales = np.empty(shape), np.empty(shape), np.zeros((2, length + 1, rows))

    def enter(message, step):
        begun = start * message.sum(axis=(0, 3), keepdims=True)
        moved = (message.reshape(shape[1], -1, shape[4]) @ chain.transition).reshape(shape[1:])
        return np.where(step == MOVE, moved, np.where(step == START, begun, message))

    def leave(message, step):
        begun = np.broadcast_to((start * message).sum(axis=(0, 3), keepdims=True), shape[1:])
        moved = (message.reshape(shape[1], -1, shape[4]) @ chain.transition.swapaxes(1, 2)).reshape(shape[1:])
        return np.where(step == MOVE, moved, np.where(step == START, begun, message))

    def scaled(message, log):
        top = message.max(axis=(0, 2, 3), keepdims=True)
        top = np.where(top > 0, top, 1.0)  # what cannot be stays zero
        return message / top, log + np.log(top[0, :, 0, 0])

    message = np.zeros(shape[1:])
    message[:, :, 0] = chain.start[:, None]
    for i in range(length):
        before[i], scales[0, i] = scaled(enter(message, steps[i]), scales[0, i - 1] if i else 0.0)
        message = before[i] * evidence[i]
        if chosen is not None:
            message[:, :, 1:] += before[i][:, :, :-1] * chosen[i]
    last = message[:, np.arange(rows), counts].sum(axis=(0, 2))
    message = np.zeros(shape[1:])
    message[:, np.arange(rows), counts] = 1.0
    for i in range(length - 1, -1, -1):
        after[i], scales[1, i] = scaled(message, scales[1, i + 1])
        seen = after[i] * evidence[i]
        if chosen is not None:
            seen[:, :, :-1] += after[i][:, :, 1:] * chosen[i]
        message = leave(seen, steps[i])
    with np.errstate(divide="ignore"):
        total = np.log(last) + scales[0, length - 1]
    return Messages(before, after, scales[0, :length].T, scales[1, :length].T, total)


# How rows are read as chains.


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """Rows as chains under one relation of their segments.

    Attributes:
        prior: probability of the relation.
        order: positions of the row in the order of the chain.
        place: where each position of the row is in that order.
        steps: HOLD, MOVE or START, in that order.
    """

    prior: float
    order: Int[np.ndarray, "R L"]
    place: Int[np.ndarray, "R L"]
    steps: Int[np.ndarray, "R L"]

    def infer(self, chain: Chain, evidence, chosen=None, counts=None) -> Messages:
        """`infer` of evidence given in the order of the row; the messages are in the chain's."""
        ordered = lambda array: None if array is None else np.take_along_axis(array, self.order[..., None], axis=1)
        return infer(chain, self.steps, ordered(evidence), ordered(chosen), counts)

    def as_row(self, array: np.ndarray) -> np.ndarray:
        """[R, L, ...] in the order of the chain, put into that of the row."""
        return np.take_along_axis(array, self.place.reshape(self.place.shape + (1,) * (array.ndim - 2)), axis=1)

    def rows(self, index: np.ndarray) -> "Reading":
        """The reading of chosen rows, which may repeat."""
        return Reading(self.prior, self.order[index], self.place[index], self.steps[index])


def words_of(batch: Batch, vocabulary) -> Bool[np.ndarray, "R L"]:
    """Where a row holds words: neither padding nor [CLS] nor [SEP]."""
    special = np.isin(batch["tokens"], [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id])
    return (batch["documents"] > 0) & ~special


def read(batch: Batch, vocabulary, relations: Mapping[str, float]) -> list[Reading]:
    """The chains that a batch's rows may be: "follows", "random" (segments of two documents), "swapped"."""
    words, documents, segments = words_of(batch, vocabulary), batch["documents"], batch["segments"]
    readings = []
    for relation, prior in relations.items():
        first = segments == 1 if relation == "swapped" else np.ones_like(words)
        order = np.argsort(~(first & words), axis=1, kind="stable")
        place = np.argsort(order, axis=1)
        ordered = lambda array, order=order: np.take_along_axis(array, order, axis=1)
        # A stretch is what one chain runs through.
        stretch = documents * 2 + (segments if relation == "random" else 0)
        word, stretch = ordered(words), ordered(stretch)
        held = np.maximum.accumulate(np.where(word, np.arange(word.shape[1]), -1), axis=1)
        held = np.concatenate([np.full((len(word), 1), -1), held[:, :-1]], axis=1)  # the word before
        same = (held >= 0) & (np.take_along_axis(stretch, np.maximum(held, 0), axis=1) == stretch)
        steps = np.where(word, np.where(same, MOVE, START), HOLD)
        readings.append(Reading(prior, order, place, steps))
    return readings


def _mixed(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """−log Σ w·right / Σ w·every over relations, from (log w, right, every)."""
    logs, right, every = (np.stack(x) for x in zip(*parts))
    weights = np.exp(logs - logs.max(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.log((weights * right).sum(axis=0) / (weights * every).sum(axis=0))


def _seen(chain: Chain, tokens: np.ndarray, words: np.ndarray) -> Float[np.ndarray, "R L S"]:
    """Evidence of uncorrupted words, 1 elsewhere."""
    return np.where(words[..., None], chain.emission.T[tokens], 1.0)


def forward_nats(chain, batch, vocabulary, relations, backward: bool = False) -> Float[np.ndarray, "R L"]:
    """−log p(word | the words before it), or after it, at every word; 0 at special tokens."""
    words, tokens = words_of(batch, vocabulary), batch["tokens"]
    if "swapped" in relations:  # what is before in the row is not before in the chain
        length = tokens.shape[1]
        earlier = np.tri(length, k=-1, dtype=bool)
        targets = np.broadcast_to(np.arange(length), tokens.shape)
        visible = np.broadcast_to(earlier.T if backward else earlier, (len(tokens), length, length))
        return np.where(words, visible_nats(chain, batch, vocabulary, relations, targets, visible), 0.0)
    evidence, emission = _seen(chain, tokens, words), chain.emission.T[tokens]
    parts = []
    for reading in read(batch, vocabulary, relations):
        messages = reading.infer(chain, evidence)
        if backward:
            states = np.einsum("ts,ltrs->rls", chain.start, messages.after[:, :, :, 0])
            scale = messages.after_scale
        else:
            states, scale = messages.before[:, :, :, 0].sum(axis=1).swapaxes(0, 1), messages.before_scale
        states, scale = reading.as_row(states), reading.as_row(scale)
        parts.append((np.log(reading.prior) + scale, (states * emission).sum(-1), states.sum(-1)))
    return np.where(words, _mixed(parts), 0.0)


def visible_nats(
    chain, batch, vocabulary, relations, targets: Int[np.ndarray, "R P"], visible: Bool[np.ndarray, "R P L"]
) -> Float[np.ndarray, "R P"]:
    """−log p(word at a target | the words that are visible to it)."""
    words, tokens = words_of(batch, vocabulary), batch["tokens"]
    rows, number = targets.shape
    readings, nats = read(batch, vocabulary, relations), np.empty(rows * number)
    for first in range(0, rows * number, _ROWS):
        flat = np.arange(first, min(first + _ROWS, rows * number))
        row, target = flat // number, targets.reshape(-1)[flat]
        shown = visible.reshape(rows * number, -1)[flat] & words[row]
        shown[np.arange(len(flat)), target] = False
        evidence, label = _seen(chain, tokens[row], shown), tokens[row, target]
        parts = []
        for reading in (reading.rows(row) for reading in readings):
            messages, at = reading.infer(chain, evidence), reading.place[np.arange(len(row)), target]
            at = (np.arange(len(row)), at)
            states = messages.states()[at]
            log = np.log(reading.prior) + messages.scale[at]
            parts.append((log, (states * chain.emission.T[label]).sum(-1), states.sum(-1)))
        nats[flat] = _mixed(parts)
    return nats.reshape(rows, number)


@dataclasses.dataclass(frozen=True, eq=False)
class Channel:
    """How positions are chosen among a row's words, and what a chosen word becomes.

    Attributes:
        keep_share: probability that a chosen word stays, whatever else would be drawn.
        draws: probability that it becomes each id; with `keep_share` they sum to 1.
        count: how many are chosen in each row; None: each word by itself, with `rate`.
        rate: used where `count` is None.
    """

    keep_share: float
    draws: Float[np.ndarray, "V"]
    count: Int[np.ndarray, "R"] | None = None
    rate: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Corrupted:
    """What corrupted rows say: evidence in the sense of `infer`, and its parts.

    Attributes:
        own: P(shown | state) where a word was not chosen.
        drawn: P(shown) of a draw.
        certain: where a word is seen to be chosen: no word is spelled so ([MASK]).
        evidence, chosen, counts: for `infer`.
    """

    own: Float[np.ndarray, "R L S"]
    drawn: Float[np.ndarray, "R L 1"]
    certain: Bool[np.ndarray, "R L"]
    evidence: Float[np.ndarray, "R L S"]
    chosen: Float[np.ndarray, "R L S"] | None
    counts: Int[np.ndarray, "R"] | None


def masking(vocabulary, mask_share: float, random_share: float, count=None, rate: float = 0.0) -> Channel:
    """BERT's channel; a random token is drawn from the whole vocabulary, special ids included."""
    draws = np.full(vocabulary.size, random_share / vocabulary.size)
    draws[vocabulary.mask_id] += mask_share
    return Channel(1 - mask_share - random_share, draws, count, rate)


def observe(
    chain: Chain,
    words: Bool[np.ndarray, "R L"],
    shown: Int[np.ndarray, "R L"],
    channel: Channel,
    visible: Bool[np.ndarray, "R L"] | None = None,
) -> Corrupted:
    """What the rows shown say of the states behind them.

    Args:
        chain: the language.
        words: the positions among which some were chosen.
        shown: the corrupted tokens.
        channel: how they were corrupted.
        visible: the words that are seen at all; None: all of them. Others may have been chosen, too.
    """
    unseen = np.zeros_like(words) if visible is None else words & ~visible
    own, drawn = chain.emission.T[shown], channel.draws[shown][..., None]
    certain = words & ~unseen & ~own.any(axis=-1)
    says = (words & ~unseen & ~certain)[..., None]  # what is surely drawn says nothing
    if channel.count is None:
        mixed = (1 - channel.rate) * own + channel.rate * (channel.keep_share * own + drawn)
        return Corrupted(own, drawn, certain, np.where(says, mixed, 1.0), None, None)
    counts = channel.count - certain.sum(axis=1)
    if (counts < 0).any():
        raise ValueError("more words are seen to be replaced than were chosen")
    chosen = np.where(says, channel.keep_share * own + drawn, unseen[..., None].astype(float))
    return Corrupted(own, drawn, certain, np.where(says, own, 1.0), chosen, counts)


def corrupted_nats(
    chain, batch, vocabulary, relations, shown: Int[np.ndarray, "R L"], channel: Channel, ask: str, known: bool
) -> Float[np.ndarray, "R L"]:
    """−log of the right answer's probability at every word of corrupted rows; 0 at special tokens.

    Args:
        batch: the clean rows.
        shown: the corrupted tokens.
        channel: how they were corrupted.
        ask: "word", or "original": whether the word is the one shown.
        known: only positions that were chosen are asked, so it is known that they were; elsewhere the numbers mean nothing.
    """
    words, documents = words_of(batch, vocabulary), batch["documents"]
    if channel.count is None:
        return _corrupted_nats(chain, batch, vocabulary, relations, shown, channel, ask, known, words)
    nats = np.zeros(words.shape)
    for document in range(
        1, documents.max(initial=1) + 1
    ):  # each sees itself alone, and shares the row's count with the others
        visible = words & (documents == document)
        nats += _corrupted_nats(chain, batch, vocabulary, relations, shown, channel, ask, known, visible)
    return nats


def _corrupted_nats(chain, batch, vocabulary, relations, shown, channel: Channel, ask: str, known: bool, visible):
    """`corrupted_nats` at the words that are visible, given these alone."""
    words, tokens = words_of(batch, vocabulary), batch["tokens"]
    seen = observe(chain, words, shown, channel, visible)
    same, label = shown == tokens, chain.emission.T[tokens]
    parts = []
    for reading in read(batch, vocabulary, relations):
        messages = reading.infer(chain, seen.evidence, seen.chosen, seen.counts)
        states = reading.as_row(messages.states())
        if seen.counts is None:
            unchosen, chosen = states * (1 - channel.rate), states * channel.rate
        else:
            counted = reading.as_row(messages.states(counted=1))
            unchosen, chosen = states, np.where(seen.certain[..., None], states, counted)
        unchosen = (unchosen * (0.0 if known else seen.own)).sum(-1)  # jointly with what is shown, not chosen
        if ask == "word":
            likelihood = channel.keep_share * same + seen.drawn[..., 0]  # P(shown | label, chosen)
            right = unchosen * same + (chosen * label).sum(-1) * likelihood
            every = unchosen + (chosen * (channel.keep_share * seen.own + seen.drawn)).sum(-1)
        else:
            stays = unchosen + (chosen * seen.own * (channel.keep_share + seen.drawn)).sum(-1)
            leaves = (chosen * (1 - seen.own) * seen.drawn).sum(-1)
            right, every = np.where(same, stays, leaves), stays + leaves
        parts.append((np.log(reading.prior) + reading.as_row(messages.scale), right, every))
    return np.where(visible, _mixed(parts), 0.0)


def relation_nats(
    chain, batch, vocabulary, relations, truth: Sequence[str], shown: Int[np.ndarray, "R L"], channel: Channel | None
) -> Float[np.ndarray, "R"]:
    """−log p(relation | the rows shown), by likelihood ratio.

    Args:
        batch: the clean rows.
        relations: their prior probabilities.
        truth: the relation of each row.
        shown: the tokens that are seen.
        channel: how they were corrupted; None: not at all.
    """
    words = words_of(batch, vocabulary)
    if channel is None:
        evidence = (_seen(chain, shown, words), None, None)
    else:
        seen = observe(chain, words, shown, channel)
        evidence = (seen.evidence, seen.chosen, seen.counts)
    names, readings = list(relations), read(batch, vocabulary, relations)
    totals = [np.log(reading.prior) + reading.infer(chain, *evidence).total for reading in readings]
    right = np.array(totals)[[names.index(name) for name in truth], np.arange(len(truth))]
    return np.logaddexp.reduce(totals, axis=0) - right


# Objectives.


def floor(
    objective: Objective,
    view: Batch,
    batch: Batch,
    chain: Chain,
    vocabulary: Vocabulary,
    relations: Mapping[str, float],
    shown_by: Objective | None = None,
) -> tuple[Float[np.ndarray, "R P"], Float[np.ndarray, "R P"]]:
    """−log of the Bayes-optimal probability of each right answer, in nats, and the positions' weights in the loss.

    Args:
        objective: what is asked.
        view: what the model is shown, from the objective's `view` or, where it shares one, from `shown_by`'s.
        batch: the clean rows.
        chain: the language in the vocabulary's ids.
        vocabulary: of the run.
        relations: what the segments of a row may be to each other, with prior probabilities (`relations_of`).
        shown_by: whose view it is; None: the objective's own, or the batch as it is.

    Raises:
        NoFloor: there is none.
    """
    given = (chain, batch, vocabulary, relations)
    documents, tokens = batch["documents"], batch["tokens"]
    match objective:
        case LeftToRight() | RightToLeft():
            step = 1 if isinstance(objective, LeftToRight) else -1
            nats = forward_nats(*given, backward=step == -1)
            asked = (np.roll(documents, step, axis=1) == documents) & (documents > 0)
            asked[:, 0 if step == 1 else -1] = False
        case PrefixLanguageModel():
            nats, asked = forward_nats(*given), _after(view["prefix_targets"] >= 0)
        case PermutationLanguageModel():
            length = tokens.shape[1]
            rank = view["order"][:, length:, None]  # of the last token that a query sees
            shown_at = view["shown_at"][:, None, :length]
            asked = view["permutation_weights"]
            nats = visible_nats(*given, (shown_at == rank + 1).argmax(axis=-1), shown_at <= rank)
        case MaskedLanguageModel() | SpanBoundary():
            channel = channel_of(shown_by or objective, view, batch, vocabulary)
            nats = corrupted_nats(*given, view["tokens"], channel, "word", known=True)
            nats, asked = np.take_along_axis(nats, view["masked_positions"], axis=1), view["masked_weights"]
            if isinstance(objective, SpanBoundary):
                asked = asked & (view["span_place"] <= objective.places)
        case MaskedNextToken():
            asked, causal = _after(view["next_token_targets"] >= 0), view["causal"]
            chosen = {"masked_weights": asked & ~causal[:, None]}
            channel = channel_of(objective.masking, chosen, batch, vocabulary)
            masked = corrupted_nats(*given, view["tokens"], channel, "word", known=True)
            nats = np.where(causal[:, None], forward_nats(*given), masked)
        case ReplacedTokenDetection():
            channel = channel_of(objective, view, batch, vocabulary)
            ask = "original" if objective.task.startswith("discriminate") else "word"
            known = objective.task in ("discriminate_masked", "replace_mlm")
            nats, asked = corrupted_nats(*given, view["tokens"], channel, ask, known), documents > 0
            if known:
                nats, asked = np.take_along_axis(nats, view["masked_positions"], axis=1), view["masked_weights"]
        case NextSentence():
            (field,) = objective.needs
            other = "random" if field == "pair_label" else "swapped"
            if other not in relations:
                raise NoFloor(f"it asks whether a segment is {other}, and the format makes none")
            if shown_by is not None and not isinstance(shown_by, (MaskedLanguageModel, ReplacedTokenDetection)):
                raise NoFloor(f"it shares the view of {type(shown_by).__name__}")
            channel = None if shown_by is None else channel_of(shown_by, view, batch, vocabulary)
            truth = [other if label == 1 else "follows" for label in batch[field]]
            nats, asked = relation_nats(*given, truth, view["tokens"], channel)[:, None], batch[field][:, None] >= 0
        case _:
            raise NoFloor("not known for this objective")
    weights = asked.astype(np.float64)
    nats = np.where(asked, nats, 0.0)
    if not np.isfinite(nats).all():
        raise ValueError(f"{type(objective).__name__}: rows that the language cannot have made, or another channel than theirs")
    return nats, weights


def _after(asked: Bool[np.ndarray, "R L"]) -> Bool[np.ndarray, "R L"]:
    """From the states that predict to the tokens that they predict."""
    return np.pad(asked[:, :-1], ((0, 0), (1, 0)))


def channel_of(objective: Objective, view: Batch, batch: Batch, vocabulary: Vocabulary) -> Channel:
    """How an objective corrupts its view; `masked_weights` says how many positions were chosen.

    Raises:
        NoFloor: the channel has no such form.
    """
    if isinstance(objective, ReplacedTokenDetection):
        if objective.generator != "unigram":
            raise NoFloor("its generator learns; with generator=unigram there is a floor")
        channel = Channel(0.0, unigram_probabilities(vocabulary), rate=objective.rate)
        unit, room = "token", 0
    else:
        rate = objective.final_rate or objective.rate  # evaluation is where the rate ends
        channel = masking(vocabulary, objective.mask_share, objective.random_share, rate=rate)
        unit, room = objective.unit, objective.max_predictions
        if unit == "whole_word" and not any(vocabulary.continues or ()):
            unit = "token"
    if channel.draws[vocabulary.mask_id] == 1:  # what is chosen is seen, however it was
        return dataclasses.replace(channel, count=view["masked_weights"].sum(axis=1))
    if unit != "token":
        raise NoFloor(
            f"with unit={unit} what was kept or drawn at random is not independent; with mask_share=1 there is a floor"
        )
    if not objective.exact:
        if 0 < room < batch["tokens"].shape[1]:
            raise NoFloor("max_predictions cuts off independent choices; set it to 0")
        return channel
    return dataclasses.replace(channel, count=view["masked_weights"].sum(axis=1))


def relations_of(data: ConfigDict) -> dict[str, float]:
    """What the segments of a row may be to each other, with probabilities; {"follows": 1} without pairs.

    Args:
        data: `config.data`, of the synthetic corpus.

    Raises:
        NoFloor: the probabilities depend on lengths, or what a row is cut out of is not known from it.
    """
    if data.format in ("stream", "cooccurrence"):
        raise NoFloor(f"rows of config.data.format={data.format} go on from batch to batch or are no text; use doc_sentences")
    if not format_class(data.format).has_pairs:
        if data.format == "full_sentences" and data.full_sentences.attend_across_documents:
            raise NoFloor("config.data.full_sentences.attend_across_documents hides where documents begin; set it to False")
        return {"follows": 1.0}
    settings, (shortest, longest) = data[data.format], data.synthetic.sentence_words
    room, swapped = data.seq_len - 3, settings.negatives == "swapped"
    if data.format == "segment_pair":
        if not swapped:
            raise NoFloor("lengths tell segments that follow from random ones; use config.data.format=sentence_pair")
        if shortest != longest or room % longest:
            raise NoFloor(
                "segments are truncated, and their lengths tell which was first; set"
                " config.data.synthetic.sentence_words=(n, n) with n dividing config.data.seq_len − 3"
            )
    elif 2 * longest > room:
        raise NoFloor(f"pairs are truncated; set config.data.seq_len to {2 * longest + 3} or more")
    if not swapped and settings.force_random_if_single:
        raise NoFloor(f"how often B is random is not known; set config.data.{data.format}.force_random_if_single=False")
    share = settings.random_next_probability
    return {k: p for k, p in (("follows", 1 - share), ("swapped" if swapped else "random", share)) if p}


# Runs.


@dataclasses.dataclass(frozen=True)
class Floor:
    """The Bayes-optimal loss on some rows, and a run's loss on the same.

    Attributes:
        value: nats a supervised position, weighted as the loss.
        standard_error: of `value` as an estimate for all such text, over documents: positions of one are dependent.
        positions: supervised ones.
        exact: whether a model can reach it; else it is a lower bound.
        note: why it is not exact.
        loss: the run's; None without a run, as the two below.
        above: loss − value.
        above_standard_error: standard error of `above`, of the differences row by row.
    """

    value: float
    standard_error: float
    positions: int
    exact: bool
    note: str = ""
    loss: float | None = None
    above: float | None = None
    above_standard_error: float | None = None


def floors(experiment: Experiment | ConfigDict, split: str = "test", params=None) -> dict[str, Floor | str]:
    """The floor of every objective of an experiment on the very views on which a run is evaluated, or why there is none.

    Args:
        experiment: or its config.
        split: "valid" or "test"; `config.train.eval_batches` of it.
        params: of a run of it; then its loss and nats above the floor are found on the same rows.

    Raises:
        UserError: the text is not the synthetic language, one token a word.
    """
    require_synthetic(experiment if isinstance(experiment, ConfigDict) else experiment.config)
    if isinstance(experiment, ConfigDict):
        experiment = build_pretraining(experiment)
    if experiment.tokenizer.kind != "words":
        raise UserError(f"{_WORDS}, not {experiment.tokenizer.kind}")
    config, program = experiment.config, experiment.program
    names, batches = program.objectives, experiment.evaluations[split]
    try:
        relations = relations_of(config.data)
    except NoFloor as reason:
        return dict.fromkeys(names, str(reason))
    settings = {key: value for key, value in config.data.synthetic.items() if key != "documents"}
    model = language(**settings)
    chain = chain_of(model, program.vocabulary.size, experiment.tokenizer.encode_words(model.words)[0])
    make_views = jax.jit(program.views)
    row_losses = jax.jit(functools.partial(_row_losses, program))
    found = {name: [] for name in names}
    for index, batch in enumerate(batches):
        views = make_views(batch, jax.random.fold_in(jax.random.key(0), index))  # as build_eval_step's
        losses = None if params is None else jax.device_get(row_losses(params, views))
        views = jax.device_get(views)
        for view_name, members in program.groups.items():
            for name in members:
                if isinstance(found[name], str):
                    continue
                try:
                    nats, weights = floor(
                        names[name], views[view_name], batch, chain, program.vocabulary, relations, names.get(view_name)
                    )
                except NoFloor as reason:
                    found[name] = str(reason)
                    continue
                rows = np.stack([nats.sum(axis=1), weights.sum(axis=1)], axis=1)
                if losses is not None:
                    loss, loss_weights = losses[f"{name}/loss"]
                    np.testing.assert_allclose(loss_weights, rows[:, 1], err_msg=f"positions that {name} supervises")
                    rows = np.concatenate([rows, loss[:, None]], axis=1)
                found[name].append(rows)
    documents = np.concatenate([batch["example_id"][:, 0] for batch in batches])
    alike, packed = _alike(batches, program.vocabulary), any((batch["documents"] > 1).any() for batch in batches)
    return {name: rows if isinstance(rows, str) else _summary(names[name], np.concatenate(rows), documents, alike, packed)
            for name, rows in found.items()}  # fmt: skip


def _row_losses(program: Program, params, views):
    """{name: (sum, weight)} as `Program.metrics`, each [R]."""
    return jax.vmap(lambda view: program.metrics(params, jax.tree.map(lambda x: x[None], view)))(views)


def _alike(batches: Sequence[Batch], vocabulary: Vocabulary) -> bool:
    """Whether special tokens and documents' ends lie at the same places in all rows."""
    layouts = np.concatenate([np.where(words_of(b, vocabulary), b["documents"], -b["documents"]) for b in batches])
    layouts = layouts[layouts.any(axis=1)]
    return bool((layouts == layouts[:1]).all())


def _summary(objective: Objective, rows: Float[np.ndarray, "R n"], documents: np.ndarray, alike: bool, packed: bool) -> Floor:
    nats, weights = rows[:, 0], rows[:, 1]
    value, error = ratio(nats, weights, documents)
    note = ""
    if not alike and isinstance(objective, (LeftToRight, RightToLeft, PrefixLanguageModel, MaskedNextToken)):
        note = "rows differ in length: special tokens count as known"
    elif not alike and packed and getattr(objective, "exact", False) and getattr(objective, "mask_share", 0) < 1:
        note = "rows differ in length: how many positions are chosen in a row counts as known to its documents"
    run = {}
    if rows.shape[1] == 3:
        above, above_standard_error = ratio(rows[:, 2] - nats, weights, documents)
        run = {"loss": float(rows[:, 2].sum() / weights.sum()), "above": above, "above_standard_error": above_standard_error}
    return Floor(value, error, round(weights.sum()), not note, note, **run)


def ratio(
    sums: Float[np.ndarray, "R"], weights: Float[np.ndarray, "R"], documents: Int[np.ndarray, "R"]
) -> tuple[float, float]:
    """Σ sums / Σ weights and its standard error, where rows of one document are dependent.

    The ratio's first-order error with clusters: √(n/(n−1) · Σ_document (sum − ratio · weight)²) / Σ weight.
    """
    total = weights.sum()
    value = sums.sum() / total
    real = weights > 0
    names, cluster = np.unique(documents[real], return_inverse=True)
    residuals = np.bincount(cluster, (sums - value * weights)[real])
    number = len(names)
    error = np.sqrt(number / (number - 1) * (residuals**2).sum()) / total if number > 1 else np.inf
    return float(value), float(error)


_WORDS = "a floor is known for config.data.tokenizer.kind='words' alone, one token a word"


def require_synthetic(config: ConfigDict) -> None:
    """Refuses, with a UserError, text whose probabilities are not known."""
    if config.data.corpus != "synthetic":
        raise UserError(f"a floor is known for config.data.corpus='synthetic' alone, not for {config.data.corpus!r}")
    if not config.data.tokenizer.path and config.data.tokenizer.kind != "words":
        raise UserError(f"{_WORDS}; set it and config.data.tokenizer.vocab_size={config.data.synthetic.vocab_size + 5}")


def config_of_run(run: Path) -> ConfigDict:
    """The config of a run directory. Raises: UserError: it is none."""
    if not (run / "config.json").is_file():
        raise UserError(f"{run} has no config.json; give the --workdir of a `bertlab train`")
    return ConfigDict(json.loads((run / "config.json").read_text()))


def print_floors(config: ConfigDict | None, run: Path | None = None, split: str = "test") -> None:
    """The floors as a table on standard output, with a run's loss beside them.

    Raises:
        UserError: neither is given, or the config is another than the run's.
    """
    if run is not None:
        theirs = config_of_run(run)
        given = {} if config is None else flatten(json.loads(json.dumps(config.to_dict())))
        known = flatten(theirs)
        differ = [k for k, v in given.items() if k.startswith(("data.", "model.", "objectives.")) and known.get(k) != v]
        if differ := [k for k in differ if k not in ("data.directory", "data.workers")]:
            raise UserError(f"--run={run} was trained with another {differ[0]} than --config says; leave --config out")
        config = theirs
    if config is None:
        raise UserError("give --config=FILE.py, or --run=RUN for that run's config and its loss beside the floors")
    require_synthetic(config)
    params = None if run is None else load_params(run)
    found = floors(config, split, params)
    columns = ("objective", "floor, nats", "standard error", "positions", "exact")
    if run is not None:
        columns += ("loss", "above the floor", "standard error", "excess")
    table = Table(title=f"Bayes-optimal losses, {split} split", title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("objective", "exact") else "right")
    reasons = []
    for name, of_one in found.items():
        if isinstance(of_one, str):
            table.add_row(name, "–")
            reasons.append(f"{name}: no floor: {of_one}")
            continue
        cells = [name, f"{of_one.value:.4f}", f"{of_one.standard_error:.4f}", f"{of_one.positions:,}"]
        cells.append("yes" if of_one.exact else "lower bound")
        if of_one.note:
            reasons.append(f"{name}: {of_one.note}")
        if run is not None:
            excess = f"{of_one.above / of_one.value:+.2%}" if of_one.value > 0 else "–"
            cells += [f"{of_one.loss:.4f}", f"{of_one.above:+.4f}", f"{of_one.above_standard_error:.4f}", excess]
        table.add_row(*cells)
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(table)
    for reason in reasons:
        console.print(reason, highlight=False, markup=False, soft_wrap=True)
