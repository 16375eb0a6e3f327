"""Permutation language modelling (Yang et al. 2019, XLNet, sections 2.2 and 2.3, equations 3 to 6)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.base import HIDDEN, Bound, Metrics, Objective, Oracle, Scoring, Vocabulary
from bertlab.objectives.choosing import at_positions, from_slots


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModel(Objective):
    """Permutation LM: −Σ_{t > c} log p(x_{z_t} | x_{z_1} … x_{z_{t−1}}) in a random order z of a row's tokens (eq. 3, 5).

    Partial prediction (section 2.3): of a row of `length` tokens, [CLS] and [SEP] included, the last max(1, ⌊length / K⌋) of
    the order that are not special are predicted, K = `predict_one_in`. Documents do not see each other, so the order of a row
    orders each document. XLNet's relative positions, recurrence and spans are not part of this.

    The two streams (eq. 4) are one longer row with shared weights. Its first L positions are the content stream: the token of
    rank r sees ranks ≤ r. The next P = max(1, ⌊L / K⌋) positions are the query stream, at the targets only: [MASK] at the
    target's position and segment, which sees ranks < r and is seen by no other position. Unlike XLNet's, a query also sees its
    own mask vector, so the softmax of the first rank is not empty, and the mask vector is the embedding of [MASK], not a
    learned w.

    With `context_in_order` the tokens that are not targets see each other in the order (equation 4). Without it they all see
    each other and no target, as in XLNet's released code (data_utils.py, _local_perm, except [CLS] and [SEP]).

    Attributes:
        predict_one_in: K; one of so many tokens is predicted. 1: every token.
        context_in_order: tokens that are not targets see each other in the order; False: they all see each other.
    """

    sees = "own"
    families = ("bert", "gpt", "modern")

    predict_one_in: int = setting(6, least=1)
    context_in_order: bool = True

    def check(self, vocabulary: Vocabulary) -> None:
        vocabulary.require_mask("it asks for tokens with [MASK]")

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The doubled row of a random order; see `in_order`."""
        ranks = jnp.argsort(jax.random.uniform(key, batch["tokens"].shape), axis=1)
        return self.in_order(batch, ranks.astype(jnp.int32), vocabulary)

    def in_order(self, batch: View, ranks: Int[Array, "B L"], vocabulary: Vocabulary) -> View:
        """The batch as it is read in a given order.

        Args:
            batch: rows of L positions.
            ranks: a permutation of 0 … L − 1 in each row: when each position, padding included, is read.
            vocabulary: size and special ids.

        Returns:
            The batch with `tokens`, `segments`, `documents`, `positions`, `order` and `shown_at` [B, L + P], and [B, P]
            `permutation_labels` (int32) and `permutation_weights` (bool), by falling rank.
        """
        tokens, documents = batch["tokens"], batch["documents"]
        candidates = (documents > 0) & ~vocabulary.is_special(tokens)
        of_candidates = jnp.where(candidates, ranks, -1)
        # Not top_k: it would gather the rows of all devices on each.
        target = jnp.argsort(-of_candidates, axis=1)[:, : self.slots(tokens.shape[1])]
        rank = at_positions(of_candidates, target)
        wanted = jnp.maximum(1, jnp.sum(documents > 0, axis=1, keepdims=True) // self.predict_one_in)
        used = (jnp.arange(target.shape[1]) < wanted) & (rank >= 0)
        if not self.context_in_order:
            ranks = jnp.where(from_slots(target, used, tokens.shape[1]), ranks, -1)
        at_target = lambda field: at_positions(batch[field], target)
        queries = {name: at_target(name) for name in ("tokens", "segments", "documents", "positions")}
        view = _doubled(batch, ranks, queries | {"order": rank - 1}, used, vocabulary)
        return {**view, "permutation_labels": queries["tokens"], "permutation_weights": used}

    def slots(self, length: int) -> int:
        """P, the most targets in a row of L positions."""
        return max(1, length // self.predict_one_in)

    def extra_flops(self, shape, length: int) -> float:
        """The query stream: P more positions, and all positions attend to L + P."""
        doubled = length + self.slots(length)
        return doubled * shape.flops_per_token(doubled) - length * shape.flops_per_token(length)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the targets, from the query stream."""
        labels = view["permutation_labels"]
        queries = model.encoded.output("both")[:, -labels.shape[1] :]
        return model.token_loss(queries, "both", labels, view["permutation_weights"])

    def scoring(self) -> Scoring:
        """By the query stream, in any order."""
        return Scoring(("in any order",), shown_in_order=self.context_in_order)

    def hidden_logits(self, model: Bound, view: View, ranks: Int[Array, "B L"]) -> Float[Array, "B L V"]:
        """Of a query at each hidden position that sees all shown tokens; these see each other as in training."""
        hidden = ranks == HIDDEN
        if not self.context_in_order:
            ranks = jnp.where(hidden, ranks, -1)
        queries = {name: view[name] for name in ("tokens", "segments", "documents", "positions")}
        queries |= {"order": jnp.full_like(ranks, HIDDEN - 1)}
        doubled = _doubled(view, ranks, queries, hidden, model.vocabulary)
        states = model.encode(doubled).output("both")[:, ranks.shape[1] :]
        return self.token_logits(model, states, "both")

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """Of each target, given the tokens up to its rank in the order."""
        length = batch["tokens"].shape[1]
        rank = view["order"][:, length:, None]  # of the last token that a query sees
        shown_at = view["shown_at"][:, None, :length]
        return oracle.visible((shown_at == rank + 1).argmax(axis=-1), shown_at <= rank), view["permutation_weights"]


def _doubled(batch: View, ranks: Int[Array, "B L"], queries: View, used: Bool[Array, "B P"], vocabulary: Vocabulary) -> View:
    """The two streams in one row: content of these ranks, then [MASK] at the used queries; nobody sees a query but itself."""
    queries = {
        **queries,
        "tokens": jnp.where(used, vocabulary.mask_id, vocabulary.pad_id),
        "documents": jnp.where(used, queries["documents"], 0),
        "shown_at": jnp.full_like(queries["order"], HIDDEN),
    }
    content = {**batch, "order": ranks, "shown_at": ranks}
    return {**batch, **{name: jnp.concatenate([content[name], of_queries], axis=1) for name, of_queries in queries.items()}}
