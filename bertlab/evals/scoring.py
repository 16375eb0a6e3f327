"""How an objective's model predicts the tokens of a text: each answer is a distribution over the
vocabulary, whatever the model was trained for, so the scores of `code_length` are code lengths. And
what guessing costs.

Letters: B rows, L length, P asked positions per row, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import entr

from bertlab.models.base import View
from bertlab.objectives.autoregressive import OneDirection, PrefixLanguageModel
from bertlab.objectives.base import Model, Objective
from bertlab.objectives.choosing import at_positions
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import NEVER, PermutationLanguageModel, with_queries
from bertlab.objectives.span_corruption import SpanCorruption
from bertlab.objectives.word_vectors import ContinuousBagOfWords, SkipGram

HIDDEN = NEVER  # the rank of a token that the model may not see
NO_MASK = "with mask_share=0 it has never seen a [MASK]"

Predict = Callable[[Objective, Model, View, Int[Array, "B P"]], Float[Array, "B P V"]]
"""(objective, model, view, asked positions) -> logits of the tokens there. The view has the clean
tokens, and int32 [B, L] `ranks`: when each token becomes visible, from 0, or HIDDEN; tokens of a
rank become visible together."""


def by_class(default: Callable) -> Callable:
    """`functools.singledispatch` on an objective, but what is registered for a class applies to a
    subclass only if that overrides none of `view`, `loss` and `token_logits`."""
    dispatched = functools.singledispatch(default)

    @functools.wraps(default)
    def function(objective: Objective, *args, **settings):
        kind, registry = type(objective), dispatched.registry
        parent = next(parent for parent in kind.__mro__ if parent in registry)
        members = ("view", "loss", "token_logits")
        same = all(getattr(kind, name) is getattr(parent, name, None) for name in members)
        return registry[parent if same else object](objective, *args, **settings)

    function.register = dispatched.register
    return function


@dataclasses.dataclass(frozen=True)
class Scoring:
    """What a model can predict of a text; `reason` says why something is missing."""

    forward: Predict | None = None  # tokens, given all tokens before them, whatever `ranks` are
    backward: Predict | None = None  # tokens, given all tokens after them
    hidden: Predict | None = None  # hidden tokens, given the visible ones
    from_before: bool = False  # `hidden` reads the state before a token: not for a text's first
    in_order: bool = False  # `hidden` depends on the ranks' order, not only on what is visible
    reason: str = ""


@by_class
def scoring(objective: Objective) -> Scoring:
    """How a model of this objective scores a text. By default by the chain rule, if the loss reads
    one side of unchanged tokens, or with [MASK] in place of hidden tokens, if it has a view."""
    kind = type(objective)
    if kind.head is not Objective.head and kind.token_logits is Objective.token_logits:
        return Scoring(reason="its head makes the predictions, and it has no token_logits")
    if kind.view is not Objective.view:
        return Scoring(hidden=in_place)
    if kind.shares is None and objective.reads in ("forward", "backward"):
        return Scoring(**{objective.reads: from_neighbour})
    return Scoring(reason="it hides no tokens to predict them")


def from_neighbour(objective, model, view, at) -> Float[Array, "B P V"]:
    """By the state before each token (backward: after it)."""
    states = model.encode(view).output(objective.reads)
    neighbours = at + 1 if objective.reads == "backward" else at - 1
    return objective.token_logits(model, at_positions(states, neighbours), objective.reads)


def left_to_right(objective, model, view, at) -> Float[Array, "B P V"]:
    """By the state before each token, on a body that sees both sides and reads in order."""
    return from_neighbour(objective, model, {**view, "order": view["positions"]}, at)


def in_place(objective, model, view, at, before: int = 0) -> Float[Array, "B P V"]:
    """By the state at each [MASK] (it replaces all hidden tokens), or `before` positions before."""
    states = model.encode(masked(model, view)).output(objective.reads)
    return objective.token_logits(model, at_positions(states, at - before), objective.reads)


def masked(model: Model, view: View) -> View:
    """The view with [MASK] in place of hidden tokens."""
    mask_id = model.vocabulary.require_mask()
    return {**view, "tokens": jnp.where(view["ranks"] == HIDDEN, mask_id, view["tokens"])}


@scoring.register
def _(objective: OneDirection) -> Scoring:
    return Scoring(**{objective.reads: from_neighbour})


@scoring.register
def _(objective: PrefixLanguageModel) -> Scoring:
    if objective.min_share:
        return Scoring(reason=f"min_share={objective.min_share} never asks for first tokens")
    return Scoring(forward=left_to_right)


@scoring.register
def _(objective: MaskedLanguageModel) -> Scoring:
    return Scoring(hidden=in_place) if objective.mask_share else Scoring(reason=NO_MASK)


@scoring.register
def _(objective: MaskedNextToken) -> Scoring:
    causal, masked = objective.causal_share > 0, objective.causal_share < 1 and objective.mask_share
    return Scoring(
        forward=left_to_right if causal else None,
        hidden=functools.partial(in_place, before=1) if masked else None,
        from_before=True,
        reason="" if objective.mask_share else NO_MASK,
    )


@scoring.register
def _(objective: PermutationLanguageModel) -> Scoring:
    return Scoring(hidden=by_queries, in_order=objective.context_in_order)


def by_queries(objective, model, view, at) -> Float[Array, "B P V"]:
    """By queries at the asked positions, which see all visible tokens (and each other)."""
    ranks = view["ranks"]
    if not objective.context_in_order:
        ranks = jnp.where(ranks == HIDDEN, HIDDEN, -1)
    names = ("tokens", "segments", "documents", "positions")
    queries = {name: at_positions(view[name], at) for name in names}
    queries["order"] = jnp.full_like(at, HIDDEN - 1)
    asked = jnp.ones(at.shape, bool)
    longer = with_queries(view, ranks, queries, asked, model.vocabulary)
    states = model.encode(longer).output("both")[:, ranks.shape[1] :]
    return objective.token_logits(model, states, "both")


@scoring.register
def _(objective: ReplacedTokenDetection) -> Scoring:
    if not objective.trains_generator:
        return Scoring(reason=f"with generator={objective.generator} no network predicts tokens")
    return Scoring(hidden=by_generator)


def by_generator(objective, model, view, at) -> Float[Array, "B P V"]:
    """By ELECTRA's generator, with [MASK] in place of all hidden tokens."""
    return model.head.generator.logits({**masked(model, view), "masked_positions": at})


@scoring.register
def _(objective: SpanCorruption | SkipGram | ContinuousBagOfWords) -> Scoring:
    return Scoring(reason="it does not predict every word of a text")


def entropy(counts) -> float:
    """Nats of counts or probabilities; `scipy.stats` has one too, but takes a second to import."""
    return float(entr(np.asarray(counts) / np.sum(counts)).sum())


@by_class
def guessing(
    objective: Objective, counts: Int[np.ndarray, "V"], batches: Sequence[View] = (), viewed=None
) -> float | None:
    """What guessing by frequency costs in nats (None: unknown): the loss of the best model that
    knows no context, only how often each answer occurs and what is at the predicted position.

    By default the entropy of the tokens' frequencies, if the objective's models predict tokens
    (`scoring`). `counts` say how often each id occurs in the training text, held-out `batches` have
    labels, and `viewed` is the objective whose view this one shares.
    """
    how = scoring(objective)
    return entropy(counts) if how.forward or how.backward or how.hidden else None


@guessing.register
def _(objective: MaskedLanguageModel, counts, batches=(), viewed=None) -> float:
    chosen = 1.0 if objective.predict == "chosen" else objective.final_rate or objective.rate
    return nats_in_place(counts, chosen * objective.mask_share, chosen * objective.random_share)


def nats_in_place(counts: Int[np.ndarray, "V"], mask_share: float, random_share: float) -> float:
    """H(token | input at its position), where these shares of the predicted tokens become [MASK] or
    random."""
    frequency, size = counts / counts.sum(), len(counts)
    kept = max(1 - mask_share - random_share, 0.0)
    other = random_share * frequency / size  # P(token, one other token in the input)
    same = kept * frequency + other
    marginal = kept * frequency + random_share / size  # P(token in the input)
    joint = entr(same).sum() + (size - 1) * entr(other).sum()
    # [MASK] reveals nothing; a random [MASK] counts as another token.
    return mask_share * entropy(counts) + float(joint - entr(marginal).sum())


@guessing.register
def _(objective: SpanBoundary, counts, batches=(), viewed=None) -> float:
    # The states next to a span have seen what is inside it.
    return nats_in_place(counts, viewed.mask_share, viewed.random_share)


@guessing.register
def _(objective: MaskedNextToken, counts, batches=(), viewed=None) -> float:
    masked = (1 - objective.causal_share) * (objective.final_rate or objective.rate)
    share = masked / (masked + objective.causal_share)  # of all predictions
    nats = nats_in_place(counts, objective.mask_share, objective.random_share)
    return (1 - share) * entropy(counts) + share * nats


guessing.register(ReplacedTokenDetection, lambda *_: None)


@guessing.register
def _(objective: NextSentence, counts, batches=(), viewed=None) -> float | None:
    (field,) = objective.needs
    labels = [batch[field][batch[field] >= 0] for batch in batches]
    numbers = sum(np.bincount(label, minlength=2) for label in labels)
    return entropy(numbers) if np.any(numbers) else None
