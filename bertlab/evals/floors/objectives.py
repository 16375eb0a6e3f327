"""The floor of every objective: the loss of the best possible model.

@floor.register
def _(objective: MyObjective, oracle, view, batch): ...
"""

import numpy as np
from jaxtyping import Array, Float

from bertlab.evals.floors.oracle import Batch, Corruption, NoFloor, Oracle
from bertlab.evals.scoring import by_class
from bertlab.objectives.autoregressive import OneDirection, PrefixLanguageModel, neighbours
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection, unigram_probabilities
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.span_corruption import SpanCorruption

Floors = tuple[Float[Array, "R P"], Float[Array, "R P"]]


@by_class
def floor(objective: Objective, oracle: Oracle, view: Batch, batch: Batch) -> Floors:
    """The loss of the best possible model on a view of clean rows (NumPy arrays): nats at every
    position, and how much each weighs in the loss; 0 where nothing is supervised."""
    raise NoFloor("not known for this objective")


@by_class
def corruption(objective: Objective, view: Batch, vocabulary: Vocabulary) -> Corruption:
    """How an objective's own view changes the words that it chooses."""
    raise NoFloor(f"the corruption of {type(objective).__name__} is not known")


@floor.register
def _(objective: OneDirection, oracle, view, batch) -> Floors:
    """By the chain rule, for every token except the first (backward: the last) of a document."""
    backward = objective.reads == "backward"
    known = neighbours(batch, "forward" if backward else "backward") >= 0
    return oracle.chain_rule(backward), np.asarray(known)


@corruption.register
def _(objective: MaskedLanguageModel, view, vocabulary) -> Corruption:
    """[MASK], a random token of the whole vocabulary, or the same one."""
    draws = np.full(vocabulary.size, objective.random_share / vocabulary.size)
    draws[vocabulary.mask_id] += objective.mask_share
    keep_share = 1 - objective.mask_share - objective.random_share
    sees_chosen = objective.mask_share == 1
    in_words = objective.unit == "whole_word" and any(vocabulary.continues or ())
    if not sees_chosen and (objective.unit == "span" or in_words):
        raise NoFloor(
            f"with unit={objective.unit} pieces are not corrupted independently; the floor is known"
            " only with mask_share=1"
        )
    counted = sees_chosen or objective.exact
    if not counted and 0 < objective.max_predictions < view["tokens"].shape[1]:
        raise NoFloor("max_predictions cuts off independent choices; set it to 0")
    count = view["masked_weights"].sum(axis=1) if counted else None
    rate = objective.final_rate or objective.rate  # the rate in evaluation
    return Corruption(draws, keep_share, count, rate)


@floor.register
def _(objective: MaskedLanguageModel, oracle, view, batch) -> Floors:
    """For each predicted word, given the corrupted row."""
    if objective.predict == "all":  # it is not known which words were chosen
        return of_corrupted(objective, oracle, view, chosen_only=False), oracle.words
    nats = of_corrupted(objective, oracle, view)
    return np.take_along_axis(nats, view["masked_positions"], axis=1), view["masked_weights"]


def of_corrupted(objective: Objective, oracle: Oracle, view: Batch, **question) -> np.ndarray:
    """[R, L] nats for every word, given the rows as the objective's view corrupts them."""
    channel = corruption(objective, view, oracle.vocabulary)
    return oracle.corrupted(view["tokens"], channel, **question)


@floor.register
def _(objective: SpanBoundary, oracle, view, batch) -> Floors:
    """As for mlm: the states next to the span see everything that the model is shown."""
    nats = of_corrupted(oracle.viewed, oracle, view)
    asked = view["masked_weights"] & (view["span_place"] <= objective.places)
    return np.take_along_axis(nats, view["masked_positions"], axis=1), asked


@floor.register
def _(objective: NextSentence, oracle, view, batch) -> Floors:
    """By the likelihood ratio of the two relations, given the row in the view."""
    (field,) = objective.needs
    other = "swapped" if field == "order_label" else "random"
    channel = Corruption(np.zeros(oracle.vocabulary.size))  # clean rows: nothing is chosen
    if oracle.viewed is not None:
        channel = corruption(oracle.viewed, view, oracle.vocabulary)
    nats = oracle.relation(other, batch[field], view["tokens"], channel)
    return nats[:, None], batch[field][:, None] >= 0


@floor.register
def _(objective: PrefixLanguageModel, oracle, view, batch) -> Floors:
    """By the chain rule, for every token after the prefix."""
    return oracle.chain_rule(), following(view["prefix_targets"] >= 0)


def following(predicting: np.ndarray) -> np.ndarray:
    """[R, L] the positions after those whose states predict the next token."""
    return np.pad(predicting[:, :-1], ((0, 0), (1, 0)))


@corruption.register
def _(objective: MaskedNextToken, view, vocabulary) -> Corruption:
    """As for mlm, in masked rows."""
    as_mlm = {"tokens": view["tokens"], "masked_weights": view["masked"]}
    return corruption(objective.masking(), as_mlm, vocabulary)


@floor.register
def _(objective: MaskedNextToken, oracle, view, batch) -> Floors:
    """By the chain rule in causal rows, as for mlm in masked rows."""
    masked = of_corrupted(objective, oracle, view)
    nats = np.where(view["causal"][:, None], oracle.chain_rule(), masked)
    return nats, following(view["next_token_targets"] >= 0)


@floor.register
def _(objective: PermutationLanguageModel, oracle, view, batch) -> Floors:
    """For each target, given the tokens up to its rank in the order."""
    length = batch["tokens"].shape[1]
    rank = view["order"][:, length:, None]  # rank of the last token that a query sees
    visible_at = view["shown_at"][:, None, :length]
    target = (visible_at == rank + 1).argmax(axis=-1)
    return oracle.visible(target, visible_at <= rank), view["permutation_weights"]


@corruption.register
def _(objective: MaskedDiffusion, view, vocabulary) -> Corruption:
    """[MASK], with the probability of the row's time."""
    return Corruption(np.eye(vocabulary.size)[vocabulary.mask_id], rate=view["masked_share"])


@floor.register
def _(objective: MaskedDiffusion, oracle, view, batch) -> Floors:
    """For each masked word, given the others, times w(t)."""
    nats = view["masked_weight"][:, None] * of_corrupted(objective, oracle, view)
    return np.where(view["masked"], nats, 0.0), view["words"]


@corruption.register
def _(objective: ReplacedTokenDetection, view, vocabulary) -> Corruption:
    """Chosen words are replaced by draws from the training text's counts."""
    if objective.trains_generator:
        raise NoFloor("its generator learns; the floor is known only with generator=unigram")
    count = view["masked_weights"].sum(axis=1) if objective.exact else None
    return Corruption(unigram_probabilities(vocabulary), count=count, rate=objective.rate)


@floor.register
def _(objective: ReplacedTokenDetection, oracle, view, batch) -> Floors:
    """For the original word, or for whether each token is the original, at all positions or the
    chosen ones."""
    ask, covers_all = "original" if objective.discriminates else "word", objective.covers_all
    nats = of_corrupted(objective, oracle, view, ask=ask, chosen_only=not covers_all)
    if covers_all:
        return nats, batch["documents"] > 0
    return np.take_along_axis(nats, view["masked_positions"], axis=1), view["masked_weights"]


@floor.register
def _(objective: SpanCorruption, oracle, view, batch) -> Floors:
    """For each masked word, given those that stay and those before it; a sentinel that ends a span
    of one word is certain."""
    if objective.denoisers != "one" or objective.mean_span > 1 or objective.rate >= 0.5:
        raise NoFloor(
            "span lengths are hidden; the floor is known only with mean_span=1 and rate < 0.5"
        )
    length = batch["tokens"].shape[1]
    masked = view["order"][:, :length] > 0
    earlier = np.tri(length, k=-1, dtype=bool)
    target = np.broadcast_to(np.arange(length), masked.shape)
    nats = oracle.visible(target, ~masked[:, None] | earlier)
    return np.hstack([nats, np.zeros_like(nats)]), np.hstack([masked, masked])
