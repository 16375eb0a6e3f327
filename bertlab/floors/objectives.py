"""The floor of each objective: which probability its loss asks for, of what, given what.

Conditioned on what the model sees and on nothing else. Special tokens to be predicted count as known, 0 nats: exact where every
row is alike, a lower bound elsewhere.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float
from ml_collections import ConfigDict

from bertlab.data.formats import format_class
from bertlab.floors.chain import Batch, Chain, forward_nats, visible_nats
from bertlab.floors.channel import Channel, corrupted_nats, masking, relation_nats
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.electra import ReplacedTokenDetection, unigram_probabilities
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.span_boundary import SpanBoundary


class NoFloor(Exception):
    """An objective without an exact floor here; the message says why."""


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
            channel = channel_of(objective.masking, {"masked_weights": view["masked"]}, batch, vocabulary)
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
    elif not isinstance(objective, MaskedLanguageModel):
        raise NoFloor(f"it shares the view of {type(objective).__name__}")
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
    if data.pack_length:
        raise NoFloor("a row is several texts; set config.data.pack_length=0")
    if not format_class(data.format).has_pairs:
        if data.format == "full_sentences" and data.full_sentences.attend_across_documents:
            raise NoFloor("config.data.full_sentences.attend_across_documents hides where documents begin; set it to False")
        return {"follows": 1.0}
    settings, (shortest, longest) = data[data.format], data.synthetic.sentence_words
    room, swapped = data.seq_len - 3, settings.negatives == "swapped"
    if data.format == "segment_pair":
        if not swapped:
            raise NoFloor(
                "lengths tell segments that follow from random ones; use config.data.format=sentence_pair, or doc_sentences"
                " where no objective asks about pairs"
            )
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
