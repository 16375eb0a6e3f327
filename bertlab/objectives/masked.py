"""Masked language modelling (Devlin et al. 2018, section 3.3.1 and A.1; masking as in create_pretraining_data.py)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Corruption, Metrics, NoFloor, Objective, Oracle, Scoring, Vocabulary, entropy
from bertlab.objectives.choosing import (
    at_positions,
    choose_spans,
    choose_tokens,
    choose_words,
    in_slots,
    inside_documents,
    put_at,
    span_edges,
    span_lengths,
    word_starts,
)

UNITS = ("token", "whole_word", "span")
PREDICT = ("chosen", "all")

# With exact=False, the probability that a row wants more predictions than it has slots is below this.
_OVERFLOW = 1e-6


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModel(Objective):
    """MLM: −Σ log p(x_t | x̃) over the chosen positions t, where x̃ is the text with those positions corrupted.

    In each row n = min(P, max(1, round(rate · length))) positions are chosen among all but [CLS], [SEP] and padding; length
    counts [CLS] and [SEP]. Packed examples share the n of their row, so an example may have none. A chosen token becomes
    [MASK] with `mask_share`, a uniform draw from the whole vocabulary with `random_share`, and stays otherwise. Logits are
    computed at the chosen positions only: [B, P, V], P = `slots(L)`.

    Attributes:
        rate: share of the positions that are chosen.
        final_rate: the rate changes linearly to this value during training; evaluation uses this value. 0: constant rate.
        exact: True: n positions, as in BERT's code. False: each position independently with probability `rate`, as in Hugging
            Face's collator; P is so large that fewer than one row in 10⁶ loses predictions.
        unit: what is chosen. "token": positions uniformly, without replacement. "whole_word": words (BERT's whole-word
            masking); words that would exceed n are skipped, and each piece becomes [MASK], random or neither independently.
            "span": spans of whole words (Joshi et al. 2020, section 3.1) with uniform starts and geometric lengths, until n
            positions are chosen; the last span is cut, if necessary within a word. [MASK], random or kept is drawn once per
            span. The first and last position of a document are not chosen.
        span_p: parameter of the geometric distribution of a span's length.
        longest_span: the longest span, in words.
        mask_share: share of the chosen tokens that become [MASK].
        random_share: share of the chosen tokens that become a random one.
        static: masks depend only on `static_seed`, `example_id` and `visit`, so with config.data.dupe_factor=10 they repeat
            like those of BERT's ten copies. Masks of a packed row depend on all its examples. False: new masks at each step
            (RoBERTa).
        static_seed: seed of static masks (create_pretraining_data.py's random_seed).
        max_predictions: P, the most in a row; 0: as many as the rate needs (BERT's 20 at 128 tokens and 77 at 512).
        predict: what is predicted. chosen: the chosen tokens. all: every token but [CLS], [SEP] and padding, as a denoising
            autoencoder reconstructs its whole input (Vincent et al. 2008); chosen tokens may differ from what is shown, others
            do not, and the model is not told which are chosen. ELECTRA's All-Tokens MLM is `electra` with task=all_tokens.
    """

    sees = "shared"

    rate: float = setting(0.15, least=0, most=1)
    final_rate: float = setting(0.0, least=0, most=1)
    exact: bool = True
    unit: str = setting("token", choices=UNITS)
    span_p: float = setting(0.2, above=0, most=1, only_with=("unit=span",))
    longest_span: int = setting(10, least=1, only_with=("unit=span",))
    mask_share: float = setting(0.8, least=0, most=1)
    random_share: float = setting(0.1, least=0, most=1)
    static: bool = False
    static_seed: int = setting(12345, least=0, only_with=("static",))
    max_predictions: int = setting(0, least=0)
    predict: str = setting("chosen", choices=PREDICT)

    def __post_init__(self):
        super().__post_init__()
        if not max(self.rate, self.final_rate):
            raise UserError(f"rate={self.rate} must be more than 0: without masked tokens the model has nothing to predict")
        if self.mask_share + self.random_share > 1:
            raise UserError(f"mask_share + random_share={self.mask_share + self.random_share} must be at most 1; lower one")
        if not self.exact and self.unit != "token":
            raise UserError(
                f"exact={self.exact} chooses each token independently: set unit=token, or exact=True for {self.unit}"
            )
        if self.static and self.final_rate:
            raise UserError(f"final_rate={self.final_rate} changes the masks, but static=True keeps them: set only one of them")

    def check(self, vocabulary: Vocabulary) -> None:
        vocabulary.require_mask("it masks tokens")

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The batch with corrupted tokens, and [B, P] `masked_positions`, `masked_labels`, `masked_weights`.

        unit="span" adds int32 [B, P] fields for the boundary objective: `span_left` and `span_right`, the positions beside the
        slot's span (s − 1 and e + 1), and `span_place`, i − s + 1, from 1; 0 in unused slots.
        """
        tokens, documents = batch["tokens"], batch["documents"]
        rows, length = tokens.shape
        slots = self.slots(length)
        draw = functools.partial(_draw, length=length, slots=slots, vocab_size=vocabulary.size)
        priority, extent, fate, drawn = jax.vmap(draw)(self._row_keys(batch)) if self.static else draw(key, rows=(rows,))

        candidates = (documents > 0) & ~vocabulary.is_special(tokens)
        if self.unit == "span":
            candidates &= inside_documents(documents)
        wanted = self._wanted((documents > 0).sum(axis=1), length, progress)
        if not self.exact:
            wanted = (candidates & (priority < self._rate(progress))).sum(axis=1)
        wanted = jnp.minimum(wanted, slots)
        starts = word_starts(tokens, documents, candidates, vocabulary.continues)
        if self.unit == "token":
            chosen = choose_tokens(candidates, priority, wanted)
        elif self.unit == "whole_word":
            chosen = choose_words(candidates, starts, priority, wanted)
        else:
            lengths = span_lengths(extent, self.span_p, self.longest_span)
            chosen = choose_spans(candidates, starts, priority, lengths, wanted)

        positions, used = in_slots(chosen, slots)
        labels = at_positions(tokens, positions)
        view = {**batch, "masked_positions": positions, "masked_labels": labels, "masked_weights": used}
        if self.unit == "span":
            left, right = (jnp.where(used, at_positions(edge, positions), 0) for edge in span_edges(chosen))
            view |= {"span_left": left, "span_right": right, "span_place": positions - left}
            # The positions of a span are in neighbouring slots and share the fate of the first one.
            fate = at_positions(fate, jnp.arange(slots) - jnp.maximum(positions - left - 1, 0))
        shown = jnp.where(fate < self.mask_share, vocabulary.mask_id, labels)
        shown = jnp.where((fate >= self.mask_share) & (fate < self.mask_share + self.random_share), drawn, shown)
        return {**view, "tokens": put_at(tokens, positions, used, shown)}

    def slots(self, length: int) -> int:
        """P, the most predictions in a row of L positions."""
        rate = max(self.rate, self.final_rate)
        room = rate * length
        if not self.exact:  # Bernstein's inequality for the upper tail of a binomial distribution
            third = -math.log(_OVERFLOW) / 3
            room += third + math.sqrt(third**2 + 6 * third * room * (1 - rate))
        return min(self.max_predictions or math.ceil(room), length)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy at the chosen positions, or of all tokens."""
        if self.predict == "all":
            original = put_at(view["tokens"], view["masked_positions"], view["masked_weights"], view["masked_labels"])
            words = (view["documents"] > 0) & ~model.vocabulary.is_special(original)
            return model.token_loss(model.encoded.output("both"), "both", original, words)
        chosen = at_positions(model.encoded.output("both"), view["masked_positions"])
        return model.token_loss(chosen, "both", view["masked_labels"], view["masked_weights"])

    def scoring(self) -> Scoring:
        """By masking each token in turn."""
        if not self.mask_share:
            return Scoring(lacks="mask_share=0 never shows the model a [MASK], but pseudo scores insert it")
        return Scoring(("at the mask",))

    def corruption(self, view: View, vocabulary: Vocabulary) -> Corruption:
        """[MASK], a random token of the whole vocabulary, or the same one."""
        draws = np.full(vocabulary.size, self.random_share / vocabulary.size)
        draws[vocabulary.mask_id] += self.mask_share
        keep_share, count = 1 - self.mask_share - self.random_share, view["masked_weights"].sum(axis=1)
        if draws[vocabulary.mask_id] == 1:  # the model sees which positions are chosen
            return Corruption(draws, keep_share, count)
        if self.unit == "span" or (self.unit == "whole_word" and any(vocabulary.continues or ())):
            raise NoFloor(
                f"with unit={self.unit} pieces are not corrupted independently; the floor is known only with mask_share=1"
            )
        if self.exact:
            return Corruption(draws, keep_share, count)
        if 0 < self.max_predictions < view["tokens"].shape[1]:
            raise NoFloor("max_predictions cuts off independent choices; set it to 0")
        return Corruption(draws, keep_share, rate=self.final_rate or self.rate)  # of evaluation

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """Of each predicted word, given the corrupted row; with predict=all it is not known which words were chosen."""
        known = self.predict == "chosen"
        nats = oracle.corrupted(view["tokens"], self.corruption(view, oracle.vocabulary), known=known)
        if not known:
            return nats, (batch["documents"] > 0) & ~oracle.vocabulary.is_special(batch["tokens"])
        return np.take_along_axis(nats, view["masked_positions"], axis=1), view["masked_weights"]

    def guessing_in_place(self, nats: float, shown: Objective | None = None) -> tuple[float, float]:
        """`nats` for what is masked or random; what stands there otherwise is the answer, but the model must tell that it is.

        Of the tokens that are not [MASK], at most the entropy of "random or not" is added; what is shown may tell some of it.
        """
        chosen = 1.0 if self.predict == "chosen" else self.final_rate or self.rate
        masked, random = chosen * self.mask_share, chosen * self.random_share
        kept = max(1 - masked - random, 0.0)
        telling = (kept + random) * entropy(np.array([kept, random])) if kept + random else 0.0
        least = (masked + random) * nats
        return least, min(least + telling, nats)

    def _rate(self, progress: Float[Array, ""]) -> Float[Array, ""]:
        return (1 - progress) * self.rate + progress * (self.final_rate or self.rate)

    def _wanted(self, filled: Int[Array, "B"], length: int, progress: Float[Array, ""]) -> Int[Array, "B"]:
        """max(1, round(rate · filled)), with halves rounded to even."""
        if self.final_rate:
            return jnp.maximum(1, jnp.round(self._rate(progress) * filled)).astype(jnp.int32)
        # Python's rounding of float64, like the original's; float32 differs at 190, 350, ...
        return jnp.array([max(1, round(n * self.rate)) for n in range(length + 1)], jnp.int32)[filled]

    def _row_keys(self, batch: View) -> Array:
        """A key for each row, [B], from `static_seed`, the row's examples and their visits (0 if the batch has none)."""
        if "example_id" not in batch:
            raise UserError("static=True needs the batch field example_id; every format of config.data.format provides it")
        visit = batch.get("visit", jnp.zeros_like(batch["example_id"][..., 0]))
        numbers = jnp.concatenate([batch["example_id"], visit[..., None]], axis=-1).reshape(len(visit), -1)
        return jax.vmap(lambda row: functools.reduce(jax.random.fold_in, row, jax.random.key(self.static_seed)))(numbers)


def _draw(key: Array, length: int, slots: int, vocab_size: int, rows: tuple[int, ...] = ()) -> tuple[Array, ...]:
    """All random numbers of masking: [*rows, L] priorities and span lengths, [*rows, P] fates and random tokens."""
    choose_key, fate_key, random_key = jax.random.split(key, 3)
    priority = jax.random.uniform(choose_key, (*rows, length))
    extent = jax.random.uniform(jax.random.fold_in(choose_key, 1), (*rows, length))
    fate = jax.random.uniform(fate_key, (*rows, slots))
    return priority, extent, fate, jax.random.randint(random_key, (*rows, slots), 0, vocab_size)
