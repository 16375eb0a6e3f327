"""Exact floors: the loss of the best possible model on the synthetic language
(bertlab/data/corpora/synthetic.py), a hidden Markov chain with a topic for each document.

`oracle` is the best possible model; `floor` asks it an objective's questions. `floors` compares a
run's loss with its floor on the same views, so loss − floor is a paired difference; its expectation
is the model's divergence from the language.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from bertlab.evals.code_length import ratio
from bertlab.evals.floors.oracle import Batch, Chain, Corruption, NoFloor, Oracle, words_of
from bertlab.evals.floors.oracle import chain_of as chain_of
from bertlab.evals.floors.oracle import log_probability as log_probability
from bertlab.evals.scoring import by_class
from bertlab.objectives.autoregressive import OneDirection, PrefixLanguageModel, neighbours
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection, unigram_probabilities
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.program import Program, group_by_view
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
        raise NoFloor(f"with unit={objective.unit} the floor is known only with mask_share=1")
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
    return corruption(objective.masking(), {**view, "masked_weights": view["masked"]}, vocabulary)


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
        raise NoFloor("span lengths are hidden; give mean_span=1 and rate < 0.5 for a known floor")
    length = batch["tokens"].shape[1]
    masked = view["order"][:, :length] > 0
    earlier = np.tri(length, k=-1, dtype=bool)
    target = np.broadcast_to(np.arange(length), masked.shape)
    nats = oracle.visible(target, ~masked[:, None] | earlier)
    return np.hstack([nats, np.zeros_like(nats)]), np.hstack([masked, masked])


class Floor(NamedTuple):
    """The Bayes-optimal loss on some rows in nats per supervised position, weighted like the loss;
    the standard errors are over rows (None for one)."""

    value: float
    standard_error: float | None
    exact: bool  # a model can reach the value; otherwise it is a lower bound
    loss: float | None = None  # a run's on the same rows; None without a run, like the two below
    above: float | None = None  # loss − value
    above_standard_error: float | None = None  # from the differences row by row


def floors(
    program: Program, batches: Sequence[Batch], chain: Chain, relations, params: Any = None
) -> dict[str, Floor | str]:
    """The floor of every objective on held-out batches (NumPy arrays), or why it has none; with the
    parameters of a run, also its loss on the same rows."""

    def losses(params, view):
        return program.metrics(params, jax.tree.map(lambda x: x[None], view))[0]

    losses_by_row, make_views = jax.jit(jax.vmap(losses, (None, 0))), jax.jit(program.views)
    groups = group_by_view(program.objectives, program.stream)
    view_of = {name: view for view, names in groups.items() for name in names}
    # As in `bertlab.train.loop.build_evaluation`.
    keys = [jax.random.fold_in(jax.random.key(0), index) for index in range(len(batches))]
    views = [make_views(batch, key) for batch, key in zip(batches, keys)]
    sums = [] if params is None else jax.device_get([losses_by_row(params, x) for x in views])
    views, same, found = jax.device_get(views), alike(batches, program.vocabulary), {}
    for name, objective in program.objectives.items():
        view = view_of[name]
        viewed = program.objectives.get(view) if view != name else None
        oracles = [Oracle(chain, batch, program.vocabulary, relations, viewed) for batch in batches]
        try:
            rows = [row_sums(objective, oracle, x[view]) for oracle, x in zip(oracles, views)]
            nats, weights = np.hstack(rows)
            if not weights.any():
                raise NoFloor("nothing is supervised in these rows")
        except NoFloor as reason:
            found[name] = str(reason)
            continue
        value, error = ratio(nats, weights)
        of = Floor(value, error, same or not any(oracle.bound for oracle in oracles))
        if sums:
            loss, loss_weights = np.hstack([of_batch[f"{name}/loss"] for of_batch in sums])
            if not np.allclose(loss_weights, weights, rtol=1e-4):  # sums of float32
                raise ValueError(f"{name}: its floor and its loss must weigh each row alike")
            above, above_error = ratio(loss - nats, weights)
            of = of._replace(loss=value + above, above=above, above_standard_error=above_error)
        found[name] = of
    return found


def row_sums(objective, oracle: Oracle, view: Batch) -> list[Float[np.ndarray, "R"]]:
    """Σ nats · weight and Σ weight of each row."""
    nats, weights = (np.asarray(x, float) for x in floor(objective, oracle, view, oracle.batch))
    nats = np.where(weights > 0, nats, 0.0)
    if not np.isfinite(nats).all():
        raise ValueError(f"{type(objective).__name__}: the language cannot produce these rows")
    return [array.sum(axis=1) for array in (nats * weights, weights)]


def alike(batches: Sequence[Batch], vocabulary: Vocabulary) -> bool:
    """Whether all rows have special tokens and the ends of documents at the same positions."""
    signs = [np.where(words_of(batch, vocabulary), 1, -1) for batch in batches]
    layouts = np.concatenate([s * batch["documents"] for s, batch in zip(signs, batches)])
    layouts = layouts[layouts.any(axis=1)]
    return bool((layouts == layouts[:1]).all())


def relations_of(data) -> dict[str, float]:
    """Probability of each relation of a row's segments; {"follows": 1} without pairs."""
    name, settings = data.format, data.get(data.format)
    shortest, longest = data.synthetic.sentence_words
    if name in ("stream", "cooccurrence"):
        raise NoFloor(f"rows of config.data.format={name} continue or are no text")
    if data.pack_length:
        raise NoFloor("a row holds several texts; set config.data.pack_length=0")
    if name == "full_sentences" and settings.attend_across_documents:
        raise NoFloor("attend_across_documents=True hides where documents begin")
    if name not in ("segment_pair", "sentence_pair"):
        return {"follows": 1.0}
    most, other = data.seq_len - 3, "swapped" if settings.negatives == "swapped" else "random"
    cut = shortest != longest or most % longest
    if name == "segment_pair" and (other == "random" or cut):
        raise NoFloor(
            "lengths reveal how segments are related; use sentence_pair, or doc_sentences where no"
            " objective asks about pairs, or set segment_pair.negatives=swapped and"
            " synthetic.sentence_words=(n, n) with n dividing seq_len − 3"
        )
    if name == "sentence_pair" and 2 * longest > most:
        raise NoFloor(f"pairs are cut; set config.data.seq_len to {2 * longest + 3} or more")
    if other == "random" and settings.force_random_if_single:
        raise NoFloor(f"set config.data.{name}.force_random_if_single=False")
    share = settings.random_next_probability
    relations = {"follows": 1 - share, other: share}
    return {relation: prior for relation, prior in relations.items() if prior}
