"""What guessing by frequency costs: the loss of a model that has learned no context."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from bertlab.spine.evals.by_class import by_class
from bertlab.spine.evals.scoring import scoring
from bertlab.spine.models.base import View
from bertlab.spine.objectives.base import Objective
from bertlab.spine.objectives.electra import ReplacedTokenDetection
from bertlab.spine.objectives.masked import MaskedLanguageModel
from bertlab.spine.objectives.masked_next_token import MaskedNextToken
from bertlab.spine.objectives.next_sentence import NextSentence
from bertlab.spine.objectives.prefix import PrefixLanguageModel
from bertlab.spine.objectives.span_boundary import SpanBoundary

Limits = tuple[float, float]
"""(least, most) nats: a view that leaves some predicted tokens as they are tells a part of the
answers without any context, and how much a model makes of it is not known exactly."""


@by_class
def guessing(
    objective: Objective,
    counts: Int[np.ndarray, "V"] | None,
    batches: Sequence[View] = (),
    viewed: Objective | None = None,
) -> Limits | None:
    """Limits of the loss of a model that only knows how often each answer occurs, and what stands
    at the predicted position; None: unknown.

    By default the entropy of the tokens' frequencies, of an objective whose models predict tokens
    (`scoring`).

    Args:
        objective: Any.
        counts: How often each id occurs in the training text.
        batches: Held-out batches, for labels.
        viewed: The objective whose view it shares, if it does.
    """
    how = scoring(objective)
    return of_tokens(counts) if how.forward or how.backward or how.hidden else None


def of_tokens(counts: Int[np.ndarray, "V"] | None) -> Limits | None:
    """Of tokens that do not stand at the predicted position."""
    return None if counts is None else (entropy(counts), entropy(counts))


def entropy(counts: np.ndarray) -> float:
    """−Σ p log p in nats, p in proportion to the counts."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@guessing.register
def _(objective: PrefixLanguageModel, counts, batches=(), viewed=None) -> Limits | None:
    return of_tokens(counts)


@guessing.register
def _(objective: MaskedLanguageModel, counts, batches=(), viewed=None) -> Limits | None:
    chosen = 1.0 if objective.predict == "chosen" else objective.final_rate or objective.rate
    return of_masked(objective, counts, chosen)


def of_masked(objective: MaskedLanguageModel, counts, chosen: float) -> Limits | None:
    """What is masked or random costs the entropy; of the tokens that are not [MASK] at most the
    entropy of "random or not" is added.

    Args:
        objective: With its shares.
        counts: Of the training text.
        chosen: Share of the predicted tokens that are chosen.
    """
    if counts is None:
        return None
    masked, random = chosen * objective.mask_share, chosen * objective.random_share
    kept = max(1 - masked - random, 0.0)
    which = (kept + random) * entropy(np.array([kept, random])) if kept + random else 0.0
    least = (masked + random) * entropy(counts)
    return least, min(least + which, entropy(counts))


@guessing.register
def _(objective: SpanBoundary, counts, batches=(), viewed=None) -> Limits | None:
    # The states next to a span have seen what stands in it.
    if isinstance(viewed, MaskedLanguageModel):
        return of_masked(viewed, counts, chosen=1.0)
    return of_tokens(counts)


@guessing.register
def _(objective: MaskedNextToken, counts, batches=(), viewed=None) -> Limits | None:
    if counts is None:
        return None
    masked = (1 - objective.causal_share) * (objective.final_rate or objective.rate)
    share = masked / (masked + objective.causal_share)  # of all predictions
    causal = (1 - share) * entropy(counts)
    least, most = of_masked(objective.masking(), counts, chosen=1.0)
    return causal + share * least, causal + share * most


@guessing.register
def _(objective: ReplacedTokenDetection, counts, batches=(), viewed=None) -> None:
    return None


@guessing.register
def _(objective: NextSentence, counts, batches=(), viewed=None) -> Limits | None:
    (field,) = objective.needs
    labels = [batch[field][batch[field] >= 0] for batch in batches]
    numbers = sum(np.bincount(label, minlength=2) for label in labels)
    return (entropy(numbers), entropy(numbers)) if np.any(numbers) else None
