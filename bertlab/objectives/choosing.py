"""Which positions of a row are masked: single tokens, whole words or spans.

Random numbers in [0, 1) are arguments, one per position, so rows do not depend on each other.
Letters: B batch, L length, P slots (the most positions of a row that can be masked), V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Ids = Int[Array, "B L"]
Mask = Bool[Array, "B L"]
Draws = Float[Array, "B L"]
Number = Int[Array, "B"]
Slots = Int[Array, "B P"]
UsedSlots = Bool[Array, "B P"]


def choose_tokens(candidates: Mask, priority: Draws, number: Number) -> Mask:
    """The `number` candidates of lowest priority: a uniform choice without replacement."""
    order = jnp.argsort(jnp.where(candidates, priority, 2.0), axis=1)
    taken = jnp.arange(candidates.shape[1]) < number[:, None]
    return candidates & _put_back(taken, order)


def word_starts(
    tokens: Ids, documents: Ids, candidates: Mask, continues: tuple[bool, ...] | None
) -> Mask:
    """Which candidates begin a word; others join the candidate before them in the same document,
    even with a [SEP] between the two, as in create_pretraining_data.py. `continues`: by id, whether
    a piece continues a word; None: every piece is a word."""
    if continues is None:
        return candidates
    last_document = jax.lax.cummax(jnp.where(candidates, documents, 0), axis=1)
    before = jnp.pad(last_document, ((0, 0), (1, 0)))[:, :-1]
    return candidates & ~(jnp.asarray(np.asarray(continues))[tokens] & (before == documents))


def choose_words(candidates: Mask, starts: Mask, priority: Draws, number: Number) -> Mask:
    """Words by the priority of their first piece, until `number` pieces are chosen; a word with
    more pieces than are left to choose is skipped (create_pretraining_data.py)."""
    first_piece = jax.lax.cummax(jnp.where(starts, jnp.arange(candidates.shape[1]), 0), axis=1)
    rows = jnp.arange(len(candidates))[:, None]
    sizes = jnp.zeros(candidates.shape, jnp.int32).at[rows, first_piece].add(candidates)
    order = jnp.argsort(jnp.where(starts, priority, 2.0), axis=1)
    taken = _all_that_fit(jnp.take_along_axis(sizes, order, axis=1), number)
    return candidates & jnp.take_along_axis(_put_back(taken, order), first_piece, axis=1)


def _put_back(values: Mask, order: Ids) -> Mask:
    """Each value at the position that `order` names for it."""
    return jax.vmap(lambda row, at: jnp.zeros_like(row).at[at].set(row))(values, order)


def _all_that_fit(sizes: Ids, budget: Number) -> Mask:
    """Which sizes fit the rest of the budget, taken in order.

    Each round takes everything up to the first size that does not fit. The largest size that fits
    falls with every round, so there are few rounds.
    """

    def fitting(taken):
        left = (budget - jnp.where(taken, sizes, 0).sum(axis=1))[:, None]
        return ~taken & (sizes > 0) & (sizes <= left), left

    def another_round(taken):
        fits, left = fitting(taken)
        return taken | (fits & (jnp.cumsum(jnp.where(fits, sizes, 0), axis=1) <= left))

    none = jnp.zeros(sizes.shape, bool)
    return jax.lax.while_loop(lambda taken: fitting(taken)[0].any(), another_round, none)


def span_lengths(chance: Float[Array, "..."], p: float, longest: int) -> Int[Array, "..."]:
    """Lengths ℓ = 1 … longest with probability ∝ p (1 − p)^(ℓ − 1): longer draws are drawn again,
    not shortened. The mean for p = .2 and 10 is 3.8, as in SpanBERT's section 3.1. With p = 0 the
    probability is ∝ 1/ℓ."""
    distribution = (1 - p) ** np.arange(longest) if p else 1 / np.arange(1, longest + 1)
    cumulative = np.cumsum(distribution)[:-1] / distribution.sum()
    return 1 + jnp.searchsorted(jnp.asarray(cumulative, jnp.float32), chance, side="right")


def choose_spans(
    candidates: Mask, starts: Mask, priority: Draws, lengths: Ids, number: Number
) -> Mask:
    """Spans of whole words (Joshi et al. 2020, section 3.1), until `number` positions are chosen;
    the last span is cut there.

    A span begins at the unchosen word of lowest priority. `lengths` at its first piece is its
    number of words; it ends earlier at a position that is not a candidate, and may run into an
    earlier span. A candidate right after a position that is not a candidate begins a word.
    """
    starts |= candidates & jnp.pad(~candidates, ((0, 0), (1, 0)))[:, :-1]
    words = jnp.cumsum(starts, axis=1)
    stretches = jnp.cumsum(~candidates, axis=1)

    def missing(chosen):
        return (number - chosen.sum(axis=1))[:, None]

    def free(chosen):
        return starts & ~chosen & (missing(chosen) > 0)

    def another_span(chosen):
        first = jnp.argmin(jnp.where(free(chosen), priority, 2.0), axis=1)[:, None]
        word, stretch, length, is_free = (
            jnp.take_along_axis(x, first, axis=1) for x in (words, stretches, lengths, free(chosen))
        )
        ahead = words - word
        covered = candidates & (stretches == stretch) & (ahead >= 0) & (ahead < length)
        new = covered & ~chosen & is_free
        return chosen | (new & (jnp.cumsum(new, axis=1) <= missing(chosen)))

    none = jnp.zeros_like(candidates)
    return jax.lax.while_loop(lambda chosen: free(chosen).any(), another_span, none)


def inside_documents(documents: Ids) -> Mask:
    """Where both neighbours of a position are in its document."""
    same = documents[:, 1:] == documents[:, :-1]
    return jnp.pad(same, ((0, 0), (1, 0))) & jnp.pad(same, ((0, 0), (0, 1))) & (documents > 0)


def in_slots(chosen: Mask, slots: int) -> tuple[Slots, UsedSlots]:
    """The chosen positions, ascending, with unused slots last, as 0; and which slots are used."""
    length = chosen.shape[1]
    positions = jnp.sort(jnp.where(chosen, jnp.arange(length), length), axis=1)[:, :slots]
    used = positions < length
    return jnp.where(used, positions, 0), used


def from_slots(positions: Slots, used: UsedSlots, length: int) -> Mask:
    """The positions of the used slots, as a mask."""
    none = jnp.zeros(length, bool)
    return jax.vmap(lambda at, is_used: none.at[at].max(is_used))(positions, used)


def at_positions(x: Array, positions: Slots) -> Array:
    """The entries [B, P, ...] of x [B, L, ...] at some positions of each row."""
    dtype = x.dtype
    if jnp.issubdtype(dtype, jnp.floating):  # gradients are added up in float32, as in `lookup`
        x = x.astype(jnp.float32)
    return jax.vmap(lambda row, at: row[at])(x, positions).astype(dtype)


def put_at(tokens: Ids, positions: Slots, used: UsedSlots, values: Slots) -> Ids:
    """The tokens with other values at the positions of used slots."""
    # Adding differences leaves unused slots (all at position 0) without effect. Row by row, the
    # compiler can divide this over devices; with row indices it would gather all of their rows.
    change = jnp.where(used, values - at_positions(tokens, positions), 0)
    return jax.vmap(lambda row, at, by: row.at[at].add(by))(tokens, positions, change)


def span_edges(chosen: Mask) -> tuple[Ids, Ids]:
    """For each position, the nearest unchosen ones before and after it, itself included: s − 1 and
    e + 1 of a chosen position's span (s, e). Touching spans count as one, as in SpanBERT's code."""
    index = jnp.arange(chosen.shape[1])
    before = jax.lax.cummax(jnp.where(chosen, 0, index), axis=1)
    after = jax.lax.cummin(jnp.where(chosen, chosen.shape[1], index), axis=1, reverse=True)
    return before, after
