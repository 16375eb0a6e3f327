"""Masked language modelling (Devlin et al. 2018, section 3.3.1 and A.1; masking as in create_pretraining_data.py)."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, Objective, Vocabulary, check_share, cross_entropy


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModel(Objective):
    """MLM: −Σ log p(x_t | x̃) over the chosen positions t, where x̃ is the text with those positions corrupted.

    In each row n = min(P, max(1, round(rate · length))) positions are chosen uniformly among all but
    [CLS], [SEP] and padding; length counts [CLS] and [SEP]. A chosen token becomes [MASK] with `mask_share`, a
    uniform draw from the whole vocabulary with `random_share`, and stays otherwise. Logits are computed at the
    chosen positions only: [B, P, V], P = `slots(L)`.
    """

    reads: ClassVar[str] = "both"
    sees: ClassVar[str] = "own"

    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    max_predictions: int = 0  # a row; 0: rate · L rounded up, which is BERT's 20 at 128 tokens and 77 at 512

    def __post_init__(self):
        """Refuses settings that are no probabilities."""
        check_share("rate", self.rate)
        check_share("mask_share", self.mask_share)
        check_share("random_share", self.random_share)
        check_share("mask_share + random_share", self.mask_share + self.random_share)
        if self.max_predictions < 0:
            raise UserError(f"max_predictions={self.max_predictions} must be 0 (rate · L) or more")

    def check(self, vocabulary: Vocabulary) -> None:
        """Refuses to mask with a tokenizer that has nothing to mask with."""
        if vocabulary.mask_id is None:
            raise UserError(
                "it masks tokens, and this tokenizer has no piece for that; name one with [MASK] in"
                " config.data.tokenizer.path, or train one with config.data.tokenizer.kind"
            )

    def view(self, batch: View, key: Array, vocabulary: Vocabulary) -> View:
        """The batch with corrupted tokens, and [B, P] `masked_positions`, `masked_labels`, `masked_weights`."""
        tokens = batch["tokens"]
        choose_key, fate_key, random_key = jax.random.split(key, 3)
        candidates = (batch["documents"] > 0) & ~vocabulary.is_special(tokens)
        length = jnp.sum(batch["documents"] > 0, axis=1)
        # Python's own rounding of float64, as the original's: float32 lands on the other side of a half at 190, 350, ...
        wanted = jnp.array([max(1, round(n * self.rate)) for n in range(tokens.shape[1] + 1)], jnp.int32)[length]
        positions, weights = choose(candidates, wanted, self.slots(tokens.shape[1]), choose_key)
        labels = jnp.take_along_axis(tokens, positions, axis=1)
        fate = jax.random.uniform(fate_key, labels.shape)
        drawn = jax.random.randint(random_key, labels.shape, 0, vocabulary.size)
        shown = jnp.where(fate < self.mask_share, vocabulary.mask_id, labels)
        shown = jnp.where((fate >= self.mask_share) & (fate < self.mask_share + self.random_share), drawn, shown)
        # Adding differences leaves unused slots (weight 0, all at position 0) without effect.
        change = jnp.where(weights, shown - labels, 0)
        rows = jnp.arange(tokens.shape[0])[:, None]
        corrupted = tokens.at[rows, positions].add(change)
        return {
            **batch,
            "tokens": corrupted,
            "masked_positions": positions,
            "masked_labels": labels,
            "masked_weights": weights,
        }

    def slots(self, length: int) -> int:
        """P, the most predictions that a row of L positions can have."""
        return min(self.max_predictions or math.ceil(self.rate * length), length)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy at the chosen positions."""
        hidden = model.encoded.output("both")
        chosen = jnp.take_along_axis(hidden, view["masked_positions"][:, :, None], axis=1)
        logits = model.predict_tokens(chosen, "both")
        return cross_entropy(logits, view["masked_labels"], view["masked_weights"])


def choose(
    candidates: Bool[Array, "B L"], wanted: Int[Array, "B"], slots: int, key: Array
) -> tuple[Int[Array, "B P"], Bool[Array, "B P"]]:
    """Uniform choice without replacement of `wanted` candidates a row, at most `slots` (P) of them.

    Returns:
        Positions in ascending order, unused slots last with position 0; and which slots are used.
    """
    length = candidates.shape[1]
    order = jnp.where(candidates, jax.random.uniform(key, candidates.shape), 2.0)
    rank = jnp.argsort(order, axis=1)[:, :slots]
    count = jnp.minimum(wanted, candidates.sum(axis=1))[:, None]
    used = jnp.arange(slots) < count
    positions = jnp.sort(jnp.where(used, rank, length), axis=1)
    return jnp.where(used, positions, 0), used
