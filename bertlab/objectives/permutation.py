"""Permutation language modelling (Yang et al. 2019, XLNet, sections 2.2 and 2.3)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy
from bertlab.objectives.choosing import Ids, UsedSlots, at_positions, from_slots

NEVER = jnp.iinfo(jnp.int32).max
"""The rank of a token that no other position sees."""


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModel(Objective):
    """Permutation LM: −Σ_{t > c} log p(x_{z_t} | x_{z_1} … x_{z_{t−1}}) in a random order z of a
    row's tokens (equations 3 and 5).

    Partial prediction (section 2.3): in a row of `length` tokens, [CLS] and [SEP] included, the
    last max(1, ⌊length / K⌋) of the order that are not special are predicted, K =
    `predict_one_in`. Documents do not see each other. XLNet's relative positions, recurrence and
    spans are left out.

    The two streams (equation 4) are one longer row with shared weights. Its first L positions are
    the content stream: the token of rank r sees ranks ≤ r. The next P = max(1, ⌊L / K⌋) positions
    are the query stream, at the targets only: [MASK] at the target's position and segment, which
    sees ranks < r and is seen by no other position. Unlike XLNet's, a query also sees its own mask
    vector, so the softmax of the first rank is not empty, and the mask vector is the embedding of
    [MASK], not a learned w.

    Attributes:
        predict_one_in: K; one token in this many is predicted. 1: every token.
        context_in_order: Tokens that are not targets see each other in the order (equation 4).
            False: they all see each other and no target, as in XLNet's code (data_utils.py,
            _local_perm, except [CLS] and [SEP]).
    """

    predict_one_in: int = 6
    context_in_order: bool = True

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """As `in_order`, in a random one."""
        ranks = jnp.argsort(jax.random.uniform(key, batch["tokens"].shape), axis=1)
        return self.in_order(batch, ranks.astype(jnp.int32), vocabulary)

    def in_order(self, batch: View, ranks: Ids, vocabulary: Vocabulary) -> View:
        """The batch with [B, L + P] `tokens`, `segments`, `documents`, `positions`, `order` and
        `shown_at`, and [B, P] `permutation_labels` and `permutation_weights`, by falling rank.

        `ranks` say when each position, padding included, is read: a permutation of 0 … L − 1.
        """
        tokens, documents = batch["tokens"], batch["documents"]
        candidates = (documents > 0) & ~vocabulary.is_special(tokens)
        candidate_ranks = jnp.where(candidates, ranks, -1)
        # Not top_k: it would gather all rows on every device.
        target = jnp.argsort(-candidate_ranks, axis=1)[:, : self.slots(tokens.shape[1])]
        rank = at_positions(candidate_ranks, target)
        length = jnp.sum(documents > 0, axis=1, keepdims=True)
        number = jnp.maximum(1, length // self.predict_one_in)
        used = (jnp.arange(target.shape[1]) < number) & (rank >= 0)
        if not self.context_in_order:
            ranks = jnp.where(from_slots(target, used, tokens.shape[1]), ranks, -1)
        names = ("tokens", "segments", "documents", "positions")
        queries = {name: at_positions(batch[name], target) for name in names}
        view = with_queries(batch, ranks, {**queries, "order": rank - 1}, used, vocabulary)
        return {**view, "permutation_labels": queries["tokens"], "permutation_weights": used}

    def slots(self, length: int) -> int:
        """P, the most targets in a row of L positions."""
        return max(1, length // self.predict_one_in)

    def loss(self, model: Model, view: View) -> Metrics:
        labels = view["permutation_labels"]
        queries = model.encode().output("both")[:, -labels.shape[1] :]
        logits = model.predict_tokens(queries, "both")
        return cross_entropy(logits, labels, view["permutation_weights"])


def with_queries(
    batch: View, ranks: Ids, queries: View, used: UsedSlots, vocabulary: Vocabulary
) -> View:
    """The two streams in one row: the batch, read at these ranks, then [MASK] at the used queries;
    others become padding.

    `queries` have [B, P] `segments`, `documents`, `positions` and `order`: the last rank that each
    sees. No other position sees a query.
    """
    queries = {
        **queries,
        "tokens": jnp.where(used, vocabulary.require_mask(), vocabulary.pad_id),
        "documents": jnp.where(used, queries["documents"], 0),
        "shown_at": jnp.full_like(queries["order"], NEVER),
    }
    content = {**batch, "order": ranks, "shown_at": ranks}
    longer = {name: jnp.concatenate([content[name], queries[name]], axis=1) for name in queries}
    return {**batch, **longer}
