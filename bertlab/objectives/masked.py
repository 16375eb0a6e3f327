"""Masked language modelling (Devlin et al. 2018, sections 3.3.1 and A.1; masking as in
create_pretraining_data.py), and SpanBERT's boundary objective."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.models.layers import Dense, Norm, param, truncated_normal
from bertlab.objectives import choosing
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy, restrict
from bertlab.objectives.choosing import Slots, at_positions, put_at

OVERFLOW = 1e-6
"""With exact=False, the probability that a row has more predictions than slots is below this."""


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModel(Objective):
    """MLM: −Σ log p(x_t | x̃) over chosen positions t, where x̃ is the text with these corrupted.

    In each row n = min(P, max(1, round(rate · length))) positions are chosen among all but [CLS],
    [SEP] and padding; length counts [CLS] and [SEP]. Packed examples share the n of their row. A
    chosen token becomes [MASK] with `mask_share`, a uniform draw from the vocabulary with
    `random_share`, and stays otherwise. Logits are computed only at the chosen positions.

    Attributes:
        rate: Share of the positions that are chosen.
        final_rate: The rate changes linearly to this value, used in evaluation; 0: constant rate.
        exact: n positions, as in BERT's code. False: each position independently with probability
            `rate`, as in Hugging Face's collator.
        unit: What is chosen. "token": positions. "whole_word": words; those that would exceed n are
            skipped, and each piece becomes [MASK], random or neither independently. "span": spans
            of whole words (Joshi et al. 2020, section 3.1) until n positions are chosen, the last
            one cut; what it becomes is drawn once per span. A document's first and last position
            are not chosen.
        span_p: Parameter of the geometric distribution of a span's length in words; 0 and a
            longest_span of 3: ALBERT's n-grams (Lan et al. 2020, section 4.1).
        longest_span: Most words in a span.
        mask_share: Share of the chosen tokens that become [MASK].
        random_share: Share of the chosen tokens that become a random one.
        static: Masks depend only on `static_seed`, `example_id` and `visit`, so with
            config.data.dupe_factor=10 they repeat like those of BERT's ten copies. False: new masks
            at each step (RoBERTa).
        static_seed: create_pretraining_data.py's random_seed.
        max_predictions: P; 0: as many as the rate needs (BERT: 20 at 128 tokens and 77 at 512).
        predict: "chosen" tokens, or "all" but [CLS], [SEP] and padding, as a denoising autoencoder
            reconstructs its input (Vincent et al. 2008), without being told which were chosen.
    """

    rate: float = 0.15
    final_rate: float = 0.0
    exact: bool = True
    unit: str = "token"
    span_p: float = 0.2
    longest_span: int = 10
    mask_share: float = 0.8
    random_share: float = 0.1
    static: bool = False
    static_seed: int = 12345
    max_predictions: int = 0
    predict: str = "chosen"

    def __post_init__(self):
        restrict(self, unit="token whole_word span", predict="chosen all")
        rate, share = max(self.rate, self.final_rate), self.mask_share + self.random_share
        if not 0 < rate <= 1 or share > 1:
            raise UserError(
                f"the larger of rate and final_rate ({rate}) must be above 0 and at most 1, and"
                f" mask_share + random_share ({share}) at most 1"
            )
        if (self.unit != "token" and not self.exact) or (self.static and self.final_rate):
            raise UserError(
                f"unit={self.unit!r} needs exact=True, and final_rate changes the masks that"
                " static=True keeps"
            )

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with corrupted tokens, and [B, P] `masked_positions`, `masked_labels` and
        `masked_weights`; with unit="span" also `span_left` and `span_right`, the positions before
        and after the slot's span (s − 1 and e + 1), and `span_place`, i − s + 1, from 1; these are
        0 in unused slots."""
        tokens, documents = batch["tokens"], batch["documents"]
        rows, length = tokens.shape
        slots = self.slots(length)
        draw = functools.partial(_draw, length=length, slots=slots, vocab_size=vocabulary.size)
        draws = jax.vmap(draw)(self._row_keys(batch)) if self.static else draw(key, rows=(rows,))
        priority, extent, fate, random_tokens = draws

        candidates = (documents > 0) & ~vocabulary.is_special(tokens)
        if self.unit == "span":
            candidates &= choosing.inside_documents(documents)
        if self.exact:
            number = self._exact_number((documents > 0).sum(axis=1), length, progress)
        else:
            number = (candidates & (priority < self._rate(progress))).sum(axis=1)
        number = jnp.minimum(number, slots)
        starts = choosing.word_starts(tokens, documents, candidates, vocabulary.continues)
        if self.unit == "token":
            chosen = choosing.choose_tokens(candidates, priority, number)
        elif self.unit == "whole_word":
            chosen = choosing.choose_words(candidates, starts, priority, number)
        else:
            lengths = choosing.span_lengths(extent, self.span_p, self.longest_span)
            chosen = choosing.choose_spans(candidates, starts, priority, lengths, number)

        positions, used = choosing.in_slots(chosen, slots)
        labels = at_positions(tokens, positions)
        slots_of = {"masked_positions": positions, "masked_labels": labels, "masked_weights": used}
        view = {**batch, **slots_of}
        if self.unit == "span":
            edges = choosing.span_edges(chosen)
            left, right = (jnp.where(used, at_positions(edge, positions), 0) for edge in edges)
            view |= {"span_left": left, "span_right": right, "span_place": positions - left}
            # The positions of a span are in adjacent slots and share the fate of the first one.
            fate = at_positions(fate, jnp.arange(slots) - jnp.maximum(positions - left - 1, 0))
        changed = jnp.where(fate < self.mask_share, vocabulary.require_mask(), random_tokens)
        changed = jnp.where(fate < self.mask_share + self.random_share, changed, labels)
        return {**view, "tokens": put_at(tokens, positions, used, changed)}

    def slots(self, length: int) -> int:
        """P, the most predictions in a row of L positions."""
        rate = max(self.rate, self.final_rate)
        most = rate * length
        if not self.exact:  # Bernstein's inequality for the upper tail of a binomial distribution
            third = -math.log(OVERFLOW) / 3
            most += third + math.sqrt(third**2 + 6 * third * most * (1 - rate))
        return min(self.max_predictions or math.ceil(most), length)

    def loss(self, model: Model, view: View) -> Metrics:
        """Cross-entropy and accuracy at the chosen positions, or of all tokens."""
        hidden = model.encode().output("both")
        labels, weights = view["masked_labels"], view["masked_weights"]
        if self.predict == "chosen":
            hidden = at_positions(hidden, view["masked_positions"])
        else:
            labels = put_at(view["tokens"], view["masked_positions"], weights, labels)
            weights = (view["documents"] > 0) & ~model.vocabulary.is_special(labels)
        return cross_entropy(model.predict_tokens(hidden, "both"), labels, weights)

    def _rate(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        return (1 - progress) * self.rate + progress * (self.final_rate or self.rate)

    def _exact_number(self, filled: Int[Array, "B"], length: int, progress: Array):
        """[B] max(1, round(rate · filled)), with halves rounded to even."""
        if self.final_rate:
            return jnp.maximum(1, jnp.round(self._rate(progress) * filled)).astype(jnp.int32)
        # Python's rounding of float64, like the original's; float32 differs at 190, 350, ...
        numbers = [max(1, round(number * self.rate)) for number in range(length + 1)]
        return jnp.array(numbers, jnp.int32)[filled]

    def _row_keys(self, batch: View) -> Array:
        """[B] keys from `static_seed`, the row's examples and their visits."""
        numbers = jnp.concatenate([batch["example_id"], batch["visit"][..., None]], axis=-1)
        numbers = numbers.reshape(len(batch["tokens"]), -1)
        seed = jax.random.key(self.static_seed)
        return jax.vmap(lambda row: functools.reduce(jax.random.fold_in, row, seed))(numbers)


def _draw(key: Array, length: int, slots: int, vocab_size: int, rows: tuple[int, ...] = ()):
    """All random numbers of masking: [*rows, L] priorities and span lengths, [*rows, P] fates and
    random tokens."""
    choose_key, fate_key, random_key = jax.random.split(key, 3)
    priority = jax.random.uniform(choose_key, (*rows, length))
    extent = jax.random.uniform(jax.random.fold_in(choose_key, 1), (*rows, length))
    fate = jax.random.uniform(fate_key, (*rows, slots))
    return priority, extent, fate, jax.random.randint(random_key, (*rows, slots), 0, vocab_size)


States = Float[Array, "B P D"]


@dataclasses.dataclass(frozen=True)
class SpanBoundary(Objective):
    """SBO: −Σ log p(x_i | y_i) over the positions i of each masked span (s, e), from the states
    next to the span (Joshi et al. 2020, section 3.2).

        h_0 = [x_{s−1}; x_{e+1}; p_{i−s+1}],  h_1 = LayerNorm(GeLU(W_1 h_0)),
        y_i = LayerNorm(GeLU(W_2 h_1))

    It shares mlm's view and forward pass, with mlm's unit="span". As in the paper, the body's
    output layer predicts the tokens "exactly like the MLM objective"; SpanBERT's code multiplies
    y_i by the embeddings directly, with its own bias.
    """

    shares = "mlm"

    places: int = 20  # later positions of a span are not predicted; as in SpanBERT's code
    place_width: int = 200  # of the embeddings p_1 … p_places

    def head(self, body: nn.Module) -> nn.Module:
        return FromBoundaries(self.places, self.place_width, body.shape.dtype)

    def loss(self, model: Model, view: View) -> Metrics:
        if "span_place" not in view:
            raise UserError(
                "config.objectives.sbo predicts masked spans: train it together with mlm, with"
                " config.objectives.mlm.unit=span"
            )
        hidden = model.encode().output("both")
        left = at_positions(hidden, view["span_left"])
        right = at_positions(hidden, view["span_right"])
        weights = view["masked_weights"] & (view["span_place"] <= self.places)
        logits = model.predict_tokens(model.head(left, right, view["span_place"]), "both")
        return cross_entropy(logits, view["masked_labels"], weights)


class FromBoundaries(nn.Module):
    """y of the equations, as wide as the states, so the body's output layer can read it."""

    places: int
    place_width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, left: States, right: States, relative: Slots) -> States:
        width = left.shape[-1]
        init = param(truncated_normal(0.02), None, None)
        table = self.param("places", init, (self.places, self.place_width)).astype(self.dtype)
        # Unused slots (0) and positions beyond the last have no weight in the loss.
        own = table[jnp.clip(relative - 1, 0, self.places - 1)]
        h = jnp.concatenate([left, right, own], axis=-1)
        for name, axes in (("first", (None, "embed")), ("second", ("embed", None))):
            h = jax.nn.gelu(Dense(width, axes, dtype=self.dtype, name=name)(h))
            h = Norm(1e-12, name=f"{name}_norm")(h)
        return h
