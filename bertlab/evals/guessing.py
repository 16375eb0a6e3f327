"""What guessing by frequency costs: the loss of the best model that knows no context, only how
often each answer occurs and what is at the predicted position."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from scipy.special import entr

from bertlab.evals.scoring import by_class, scoring
from bertlab.models.base import View
from bertlab.objectives.autoregressive import PrefixLanguageModel
from bertlab.objectives.base import Objective
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence


@by_class
def guessing(
    objective: Objective,
    counts: Int[np.ndarray, "V"],
    batches: Sequence[View] = (),
    viewed: Objective | None = None,
) -> float | None:
    """Nats; None: unknown. By default the entropy of the tokens' frequencies, if the objective's
    models predict tokens (`scoring`). `counts` say how often each id occurs in the training text,
    held-out `batches` have labels, and `viewed` is the objective whose view this one shares."""
    how = scoring(objective)
    return entropy(counts) if how.forward or how.backward or how.hidden else None


def entropy(counts: Int[np.ndarray, "V"]) -> float:
    """−Σ p log p, p in proportion to the counts."""
    return float(entr(counts / counts.sum()).sum())


@guessing.register
def _(objective: PrefixLanguageModel, counts, batches=(), viewed=None) -> float:
    return entropy(counts)  # no matter what `scoring` needs


@guessing.register
def _(objective: MaskedLanguageModel, counts, batches=(), viewed=None) -> float:
    chosen = 1.0 if objective.predict == "chosen" else objective.final_rate or objective.rate
    return in_place(counts, chosen * objective.mask_share, chosen * objective.random_share)


def in_place(counts: Int[np.ndarray, "V"], mask_share: float, random_share: float) -> float:
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
    return in_place(counts, viewed.mask_share, viewed.random_share)


@guessing.register
def _(objective: MaskedNextToken, counts, batches=(), viewed=None) -> float:
    masked = (1 - objective.causal_share) * (objective.final_rate or objective.rate)
    share = masked / (masked + objective.causal_share)  # of all predictions
    nats = in_place(counts, objective.mask_share, objective.random_share)
    return (1 - share) * entropy(counts) + share * nats


@guessing.register
def _(objective: ReplacedTokenDetection, counts, batches=(), viewed=None) -> None:
    return None


@guessing.register
def _(objective: NextSentence, counts, batches=(), viewed=None) -> float | None:
    (field,) = objective.needs
    labels = [batch[field][batch[field] >= 0] for batch in batches]
    numbers = sum(np.bincount(label, minlength=2) for label in labels)
    return entropy(numbers) if np.any(numbers) else None
