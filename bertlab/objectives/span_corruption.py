"""Span corruption (Raffel et al. 2020, T5, sections 3.1.4 and 3.3.4) and mixtures of denoisers (Tay et al. 2022, UL2)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, NoFloor, Objective, Oracle, Scoring, Vocabulary
from bertlab.objectives.choosing import at_positions, choose_tokens, in_slots
from bertlab.objectives.prefix import place_in_document

UL2 = {
    "R": ((0.15, 3.0), (0.15, 8.0)),
    "S": ((0.25, math.inf),),
    "X": ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0)),
}
"""(rate, mean span) of UL2's regular, sequential and extreme denoisers. S masks one span, the last quarter of a text."""

DENOISERS = ("one", "R", "S", "X", "R+S", "R+X", "S+X", "R+S+X")


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
    """T5's span corruption on one body: a prefix shows the text without its spans, and the spans follow, left to right.

        shown first, to all          Thank you [MASK] me to your party [MASK]
        then, from left to right     [MASK] for inviting [MASK] last week [MASK]

    Every token of the second part is predicted but its first: the spans, and the sentinel that ends each of them (T5's figure
    2). The tokens of the first part see each other; those of the second see the first part and what is left of them.

    Masks are those of T5's random_spans_noise_mask, for each stretch of words between special tokens. Of its n words
    m = round(rate · n) are masked, at least 1 and at most n − 1, in s = max(1, round(m / mean_span)) spans. The m words and
    the n − m others are cut into s parts each, uniformly among all ways to do so, and the parts alternate, the others first.
    So spans never touch and the last word is always masked; with s = 1 this is a prefix LM. No span crosses a document.

    T5 numbers its sentinels, with 100 more ids. Here all are [MASK], so all objectives share one vocabulary, and positions
    say which span a sentinel means. Shown tokens are counted without the masked ones, so positions do not tell how long a span
    is; a span's own tokens count on from its sentinel's position in the text, and its second sentinel is one before that. A
    body with position_encoding=relative or disentangled counts indices, so there the sentinels' distances are not those.

    A row of L tokens becomes one of L + 2 S, S = `slots(L)`: the tokens in their places, the sentinels of the first part, and
    those of the second. `order` says who sees whom. With more spans than S in a row, S of them are masked, any with the same
    probability. Only the device knows what is masked, so logits are computed at all positions.

    UL2 puts a mode token before a text that says which kind of denoiser follows. Here it takes the place of the text's [CLS],
    which is otherwise the same everywhere: [CLS] stays for R, [SEP] stands for S and [MASK] for X. So it needs no new ids, and
    a task that shows [CLS] asks for mode R. UL2's table of denoisers is verified from a transcription only, and how it weights
    them is not verified: each row draws one of those allowed, all with the same probability.

    A trained model has no code length for a text. The first word of a stretch is always shown and at most a share `rate` is
    masked, so nothing trains the model to say how a text begins. It could spell a whole text as one span, which is a code,
    but would measure how it copes with masks that it never saw.

    Attributes:
        denoisers: one: all rows have `rate` and `mean_span`. R, S, X, or several: each row has one of UL2's (`UL2`).
        rate: share of the words that are masked.
        mean_span: mean length of a span.
        mode_tokens: whether a text's [CLS] says which of UL2's denoisers its row has.
        max_spans: S, the most spans in a row; 0: as many as one stretch of L words needs.
    """

    sees = "own"
    families = ("bert", "gpt", "modern")

    denoisers: str = setting("one", choices=DENOISERS)
    rate: float = setting(0.15, above=0, below=1, only_with=("denoisers=one",))
    mean_span: float = setting(3.0, least=1, only_with=("denoisers=one",))
    mode_tokens: bool = setting(False, only_with=(f"denoisers={' or '.join(DENOISERS[1:])}",))
    max_spans: int = setting(0, least=0)

    @property
    def mixture(self) -> tuple[tuple[float, float], ...]:
        """(rate, mean span) of each denoiser that a row may have."""
        if self.denoisers == "one":
            return ((self.rate, self.mean_span),)
        return tuple(denoiser for name in self.denoisers.split("+") for denoiser in UL2[name])

    def check(self, vocabulary: Vocabulary) -> None:
        vocabulary.require_mask("it replaces spans by [MASK]")
        if self.mode_tokens and len({vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id}) < 3:
            raise UserError("mode_tokens=True needs a tokenizer with [CLS], [SEP] and [MASK], as BERT's; set it to False")

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The longer row.

        Returns:
            The batch with `tokens`, `segments`, `documents`, `positions` and `order` [B, L + 2 S], and int32 [B, L + 2 S]
            `span_targets`: what each state predicts, −1 for nothing.
        """
        tokens, documents = batch["tokens"], batch["documents"]
        rows, length = tokens.shape
        index = jnp.arange(length)
        row_key, cut_key, drop_key = jax.random.split(key, 3)
        drawn = jax.random.randint(row_key, (rows,), 0, len(self.mixture))
        rates, means = jnp.asarray(self.mixture, jnp.float32)[drawn].T
        words = (documents > 0) & ~vocabulary.is_special(tokens)
        masked = alternating_spans(words, documents, jax.random.uniform(cut_key, tokens.shape), rates, means)
        begins = masked & ~jnp.pad(masked, ((0, 0), (1, 0)))[:, :-1]
        first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)  # of the last span so far
        begins = choose_tokens(begins, jax.random.uniform(drop_key, tokens.shape), jnp.full(rows, self.slots(length)))
        masked &= jnp.take_along_axis(begins, first, axis=1)

        # One position of each span stays, for its sentinel.
        hidden = jnp.cumsum(masked & ~begins, axis=1)
        before = jnp.take_along_axis(hidden, index - place_in_document(documents)[0], axis=1)
        positions = batch["positions"] - (hidden - before) + jnp.where(masked, index - first, 0)

        at, used = in_slots(begins, self.slots(length))
        of_span = lambda field: at_positions(field, at)
        sentinel = {
            "tokens": jnp.where(used, vocabulary.mask_id, vocabulary.pad_id),
            "segments": of_span(batch["segments"]),
            "documents": jnp.where(used, of_span(documents), 0),
            "positions": of_span(positions),
            "order": jnp.zeros_like(at),
        }
        asking = sentinel | {
            "positions": jnp.maximum(sentinel["positions"] - 1, 0),
            "order": jnp.where(used, 2 * at + 1, 0),
        }
        content = {**batch, "positions": positions, "order": jnp.where(masked, 2 * index + 2, 0)}
        if self.mode_tokens:
            ids = {"R": vocabulary.cls_id, "S": vocabulary.sep_id, "X": vocabulary.mask_id}
            modes = jnp.array([ids[name] for name in self.denoisers.split("+") for _ in UL2[name]])[drawn]
            content["tokens"] = jnp.where(tokens == vocabulary.cls_id, modes[:, None], tokens)
        goes_on = jnp.pad(masked[:, 1:], ((0, 0), (0, 1)))
        after = jnp.where(goes_on, jnp.roll(tokens, -1, axis=1), vocabulary.mask_id)
        nothing = jnp.full_like(at, -1)
        targets = [jnp.where(masked, after, -1), nothing, jnp.where(used, of_span(tokens), -1)]
        longer = {name: jnp.concatenate([content[name], sentinel[name], asking[name]], axis=1) for name in sentinel}
        return {**batch, **longer, "span_targets": jnp.concatenate(targets, axis=1)}

    def slots(self, length: int) -> int:
        """S, the most spans in a row of L positions."""
        needed = max(1, *(math.ceil(math.ceil(rate * length) / mean) for rate, mean in self.mixture))
        return min(self.max_spans or needed, length)

    def flops_per_prediction(self, shape) -> float:
        return 0.0  # `extra_flops` counts logits

    def extra_flops(self, shape, length: int) -> float:
        """The sentinels' 2 S positions, and logits at all positions."""
        longer = length + 2 * self.slots(length)
        logits = longer * shape.flops_per_prediction()
        return longer * shape.flops_per_token(longer) + logits - length * shape.flops_per_token(length)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the spans and of the sentinels that end them."""
        targets = view["span_targets"]
        return model.token_loss(model.encoded.output("both"), "both", jnp.maximum(targets, 0), targets >= 0)

    def scoring(self) -> Scoring:
        """Not at all."""
        return Scoring(lacks="the first word of a text is never masked in training, and a code length needs all words")

    def guessing(self, counts, batches) -> None:
        """Not known: the counts of the text lack the sentinels."""

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """Of each masked word, given those shown and those before it; a sentinel that ends a span of one word is certain."""
        if self.denoisers != "one" or self.mean_span > 1 or self.rate >= 0.5:
            raise NoFloor("how long spans are is hidden; the floor is known only with mean_span=1 and rate below 0.5")
        length = batch["tokens"].shape[1]
        masked = view["order"][:, :length] > 0
        earlier = np.tri(length, k=-1, dtype=bool)
        target = np.broadcast_to(np.arange(length), masked.shape)
        nats = oracle.visible(target, ~masked[:, None] | earlier)
        return np.concatenate([nats, np.zeros_like(nats)], axis=1), np.concatenate([masked, masked], axis=1)


def alternating_spans(
    words: Bool[Array, "B L"],
    documents: Int[Array, "B L"],
    priority: Float[Array, "B L"],
    rate: Float[Array, "B"],
    mean: Float[Array, "B"],
) -> Bool[Array, "B L"]:
    """Which words are masked, as `SpanCorruption` says.

    Of each stretch of n words the first n − m places stand for the words that stay, in their order, and the last m for those
    that are masked. Both are cut before the s − 1 places of lowest priority. Sorted by the number of their part, the places
    alternate.

    Args:
        words: what may be masked; a stretch ends with its document.
        priority: random, in [0, 1).
        rate, mean: of each row.
    """
    index = jnp.arange(words.shape[1])
    after_word = jnp.pad(words, ((0, 0), (1, 0)))[:, :-1]
    begins = words & ~(after_word & (jnp.diff(documents, axis=1, prepend=-1) == 0))
    stretch = jnp.cumsum(begins | (after_word & ~words), axis=1)  # what lies between two of them has a number too
    place, size = place_in_document(stretch)
    number = jnp.clip(jnp.round(rate[:, None] * size).astype(jnp.int32), 1, size - 1)
    spans = jnp.clip(jnp.round(number / mean[:, None]).astype(jnp.int32), 1, jnp.minimum(number, size - number))
    to_mask = place >= size - number
    place = place - to_mask * (size - number)
    first = index - place
    order = jnp.lexsort((jnp.where(place == 0, -1.0, priority), 2 * stretch + to_mask), axis=1)
    cut = jnp.argsort(order, axis=1) - first < spans
    cuts = jnp.cumsum(cut, axis=1)
    part = cuts - jnp.take_along_axis(cuts, first, axis=1)
    return words & jnp.take_along_axis(to_mask, jnp.lexsort((2 * part + to_mask, stretch), axis=1), axis=1)
