"""Permutation language modelling (Yang et al. 2019, XLNet, sections 2.2 and 2.3, equations 3 to 6)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, Objective, Oracle, Scoring, Vocabulary

# Later in an order than anything: what is shown then is shown to nobody.
_NEVER = jnp.iinfo(jnp.int32).max


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModel(Objective):
    """Permutation LM: −Σ_{t > c} log p(x_{z_t} | x_{z_1} … x_{z_{t−1}}) in a random order z of a row's tokens (eq. 3, 5).

    Partial prediction (section 2.3): of a row of `length` tokens, [CLS] and [SEP] counted, the last
    max(1, ⌊length / K⌋) in the order that are neither are predicted, K = `predict_one_in`. Documents do not see each other,
    so a row's order is an order of each document. XLNet's relative positions, recurrence and spans are not part of this.

    The two streams (eq. 4) are written as one doubled row with shared weights. Its first L positions are the content
    stream: the token of rank r is shown at r and sees ranks ≤ r. Then come P = max(1, ⌊L / K⌋) positions, the query stream at
    the targets alone: [MASK] at the target's position and segment, which sees ranks < r and which nobody sees. Unlike XLNet's,
    a query also sees its own mask vector, which keeps the softmax of the first in the order from being empty; and the mask
    vector is the embedding of [MASK], where XLNet learns another, w.

    With `context_in_order` the tokens that are no targets see each other in the order, as equation 4 has it; without it
    they all see each other and no target, as in XLNet's released code (data_utils.py, _local_perm, [CLS] and [SEP] apart).
    """

    reads: ClassVar[str] = "both"
    sees: ClassVar[str] = "own"
    families: ClassVar[tuple[str, ...]] = ("bert", "gpt", "modern")

    predict_one_in: int = 6
    context_in_order: bool = True

    def __post_init__(self):
        """Refuses to predict more than everything."""
        if self.predict_one_in < 1:
            raise UserError(f"predict_one_in={self.predict_one_in} must be 1 (every token) or more")

    def check(self, vocabulary: Vocabulary) -> None:
        """Refuses a tokenizer that has nothing to ask with."""
        if vocabulary.mask_id is None:
            raise UserError(
                "it asks for tokens with [MASK], and this tokenizer has no piece for that; name one with [MASK] in"
                " config.data.tokenizer.path, or train one with config.data.tokenizer.kind"
            )

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The doubled row of a random order; see `in_order`."""
        ranks = jnp.argsort(jax.random.uniform(key, batch["tokens"].shape), axis=1)
        return self.in_order(batch, ranks.astype(jnp.int32), vocabulary)

    def in_order(self, batch: View, ranks: Int[Array, "B L"], vocabulary: Vocabulary) -> View:
        """The batch as it is read in a given order.

        Args:
            batch: rows of L positions.
            ranks: a permutation of 0 … L − 1 a row: when each position's token is read. Padding may lie anywhere in it.
            vocabulary: size and special ids.

        Returns:
            The batch with `tokens`, `segments`, `documents`, `positions`, `order` and `shown_at` [B, L + P], and [B, P]
            `permutation_labels` (int32) and `permutation_weights` (bool), last in the order first.
        """
        tokens, documents = batch["tokens"], batch["documents"]
        candidates = (documents > 0) & ~vocabulary.is_special(tokens)
        of_candidates = jnp.where(candidates, ranks, -1)
        # Sorted, not by top_k, for which rows that lie on several devices would be gathered on each.
        target = jnp.argsort(-of_candidates, axis=1)[:, : self.slots(tokens.shape[1])]
        rank = jnp.take_along_axis(of_candidates, target, axis=1)
        wanted = jnp.maximum(1, jnp.sum(documents > 0, axis=1, keepdims=True) // self.predict_one_in)
        used = (jnp.arange(target.shape[1]) < wanted) & (rank >= 0)
        if not self.context_in_order:
            is_target = jax.vmap(lambda at, asked: jnp.zeros_like(candidates[0]).at[at].max(asked))(target, used)
            ranks = jnp.where(is_target, ranks, -1)
        at_target = lambda field: jnp.take_along_axis(batch[field], target, axis=1)
        queries = {
            "tokens": jnp.where(used, vocabulary.mask_id, vocabulary.pad_id),
            "segments": at_target("segments"),
            "documents": jnp.where(used, at_target("documents"), 0),
            "positions": at_target("positions"),
            "order": rank - 1,
            "shown_at": jnp.full_like(rank, _NEVER),
        }
        content = {**batch, "order": ranks, "shown_at": ranks}
        return {
            **batch,
            **{name: jnp.concatenate([content[name], values], axis=1) for name, values in queries.items()},
            "permutation_labels": at_target("tokens"),
            "permutation_weights": used,
        }

    def slots(self, length: int) -> int:
        """P, the most targets that a row of L positions can have."""
        return max(1, length // self.predict_one_in)

    def extra_flops(self, shape, length: int) -> float:
        """The query stream's: P positions more, and all of them attend to L + P."""
        doubled = length + self.slots(length)
        return doubled * shape.flops_per_token(doubled) - length * shape.flops_per_token(length)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the targets, from the query stream."""
        labels = view["permutation_labels"]
        queries = model.encoded.output("both")[:, -labels.shape[1] :]
        return model.token_loss(queries, "both", labels, view["permutation_weights"])

    def scoring(self) -> Scoring:
        """Not at all so far."""
        return Scoring(lacks="its predictions come from a query stream that scoring does not run")

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """Of each target, given the tokens up to its rank in the order."""
        length = batch["tokens"].shape[1]
        rank = view["order"][:, length:, None]  # of the last token that a query sees
        shown_at = view["shown_at"][:, None, :length]
        return oracle.visible((shown_at == rank + 1).argmax(axis=-1), shown_at <= rank), view["permutation_weights"]
