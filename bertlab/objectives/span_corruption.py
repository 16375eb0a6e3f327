"""Span corruption (Raffel et al. 2020, T5, sections 3.1.4 and 3.3.4) and mixtures of denoisers (Tay
et al. 2022, UL2)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertlab.models.base import View
from bertlab.objectives.autoregressive import position_in_document
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy
from bertlab.objectives.choosing import Draws, Ids, Mask, at_positions, choose_tokens, in_slots

UL2 = {
    "R": ((0.15, 3.0), (0.15, 8.0)),
    "S": ((0.25, math.inf),),
    "X": ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0)),
}
"""(rate, mean span) of UL2's regular, sequential and extreme denoisers. S masks one span, the last
quarter of a text."""


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
    """T5's span corruption on one body: first the text without its spans, then the spans.

        first, seen by all           Thank you [MASK] me to your party [MASK]
        then, from left to right     [MASK] for inviting [MASK] last week [MASK]

    Every token of the second half but its first is predicted: the spans, and the sentinel that ends
    each of them (T5's figure 2). Its tokens see the first half and everything to their left.

    Masks are those of T5's random_spans_noise_mask, for each stretch of words between special
    tokens. Of its n words m = round(rate · n) are masked, at least 1 and at most n − 1, in
    s = max(1, round(m / mean_span)) spans. The m words and the n − m others are cut into s pieces
    each, uniformly among all cuts, and the pieces alternate, the others first. So spans never touch
    and the last word is always masked; with s = 1 this is a prefix LM.

    T5's numbered sentinels are 100 more ids. Here all are [MASK], and positions tell which span a
    sentinel means. The first half's positions are counted without the masked tokens, so they do not
    reveal how long a span is; a span's own tokens count up from its sentinel's position in the
    text, and its second sentinel is one before that. (position_encoding=relative counts indices.)

    A row of L tokens becomes one of L + 2 S, S = `slots(L)`: the tokens in their positions, the
    sentinels of the first half, and those of the second; `order` controls who sees whom. If a
    row has more than S spans, S of them are masked, chosen uniformly.

    Attributes:
        denoisers: "one": all rows have `rate` and `mean_span`. R, S, X, or several ("R+S+X"): each
            row draws one of UL2's with equal probability (its weights are not published).
        rate: Share of the words that are masked.
        mean_span: Mean length of a span.
        max_spans: S, the most spans in a row; 0: as many as a stretch of L words needs.
    """

    denoisers: str = "one"
    rate: float = 0.15
    mean_span: float = 3.0
    max_spans: int = 0

    @property
    def mixture(self) -> list[tuple[float, float]]:
        """(rate, mean span) of each denoiser that a row may have."""
        if self.denoisers == "one":
            return [(self.rate, self.mean_span)]
        return [denoiser for mode in self.denoisers.split("+") for denoiser in UL2[mode]]

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with `tokens`, `segments`, `documents`, `positions` and `order` of the longer
        row, and int32 [B, L + 2 S] `span_targets`: what each state predicts, −1 for nothing."""
        tokens, documents = batch["tokens"], batch["documents"]
        rows, length = tokens.shape
        slots, mask_id = self.slots(length), vocabulary.require_mask()
        index = jnp.arange(length)
        row_key, cut_key, drop_key = jax.random.split(key, 3)
        denoiser = jax.random.randint(row_key, (rows,), 0, len(self.mixture))
        rates, means = zip(*self.mixture)
        masked = alternating_spans(
            (documents > 0) & ~vocabulary.is_special(tokens),
            documents,
            jax.random.uniform(cut_key, tokens.shape),
            jnp.asarray(rates, jnp.float32)[denoiser],
            jnp.asarray(means, jnp.float32)[denoiser],
        )
        begins = masked & ~jnp.pad(masked, ((0, 0), (1, 0)))[:, :-1]
        first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)  # start of the latest span
        priority = jax.random.uniform(drop_key, tokens.shape)
        begins = choose_tokens(begins, priority, jnp.full(rows, slots))
        masked &= jnp.take_along_axis(begins, first, axis=1)

        # One position of each span stays as its sentinel.
        removed = jnp.cumsum(masked & ~begins, axis=1)
        start = index - position_in_document(documents)[0]
        before = jnp.take_along_axis(removed, start, axis=1)
        positions = batch["positions"] - (removed - before) + jnp.where(masked, index - first, 0)

        at, used = in_slots(begins, slots)
        content = {**batch, "positions": positions, "order": jnp.where(masked, 2 * index + 2, 0)}
        sentinel = {
            "tokens": jnp.where(used, mask_id, vocabulary.pad_id),
            "segments": at_positions(batch["segments"], at),
            "documents": jnp.where(used, at_positions(documents, at), 0),
            "positions": at_positions(positions, at),
            "order": jnp.zeros_like(at),
        }
        second_sentinel = sentinel | {
            "positions": jnp.maximum(sentinel["positions"] - 1, 0),
            "order": jnp.where(used, 2 * at + 1, 0),
        }
        longer = {
            name: jnp.concatenate([content[name], sentinel[name], second_sentinel[name]], axis=1)
            for name in sentinel
        }
        goes_on = jnp.pad(masked[:, 1:], ((0, 0), (0, 1)))
        after = jnp.where(goes_on, jnp.roll(tokens, -1, axis=1), mask_id)
        targets = [
            jnp.where(masked, after, -1),
            jnp.full_like(at, -1),
            jnp.where(used, at_positions(tokens, at), -1),
        ]
        return {**batch, **longer, "span_targets": jnp.concatenate(targets, axis=1)}

    def slots(self, length: int) -> int:
        """S, the most spans in a row of L positions."""
        needed = [math.ceil(math.ceil(rate * length) / mean) for rate, mean in self.mixture]
        return min(self.max_spans or max(1, *needed), length)

    def loss(self, model: Model, view: View) -> Metrics:
        # Logits at all positions: only the device knows what is masked.
        targets = view["span_targets"]
        logits = model.predict_tokens(model.encode().output("both"), "both")
        return cross_entropy(logits, jnp.maximum(targets, 0), targets >= 0)


def alternating_spans(
    words: Mask, documents: Ids, priority: Draws, rate: Float[Array, "B"], mean: Float[Array, "B"]
) -> Mask:
    """Which words are masked, as `SpanCorruption` describes it.

    In each stretch of n words, the first n − m positions stand for the words that stay, in their
    order, and the last m for those that are masked. Both are cut before the s − 1 positions of
    lowest priority. Sorted by the number of their piece, the positions alternate.
    """
    index = jnp.arange(words.shape[1])
    after_word = jnp.pad(words, ((0, 0), (1, 0)))[:, :-1]
    begins = words & ~(after_word & (jnp.diff(documents, axis=1, prepend=-1) == 0))
    # What lies between two stretches has a number too.
    stretch = jnp.cumsum(begins | (after_word & ~words), axis=1)
    position, size = position_in_document(stretch)
    number = jnp.clip(jnp.round(rate[:, None] * size).astype(jnp.int32), 1, size - 1)
    spans = jnp.round(number / mean[:, None]).astype(jnp.int32)
    spans = jnp.clip(spans, 1, jnp.minimum(number, size - number))
    to_mask = position >= size - number
    position = position - to_mask * (size - number)
    first = index - position
    priority = jnp.where(position == 0, -1.0, priority)
    order = jnp.lexsort((priority, 2 * stretch + to_mask), axis=1)
    cut = jnp.argsort(order, axis=1) - first < spans
    cuts = jnp.cumsum(cut, axis=1)
    piece = cuts - jnp.take_along_axis(cuts, first, axis=1)
    alternating = jnp.lexsort((2 * piece + to_mask, stretch), axis=1)
    return words & jnp.take_along_axis(to_mask, alternating, axis=1)
