"""Static word vectors: skip-gram and CBOW with negative sampling (Mikolov et al. 2013b; tmikolov/word2vec word2vec.c), and
GloVe (Pennington et al. 2014; stanfordnlp/GloVe glove.c).

Letters: B batch, L length, W window, k negatives, D width, V vocabulary.

Special tokens are removed first, as word2vec.c removes unknown words. Windows reach over removed tokens, but never past the
end of a sentence ([SEP], like </s> in word2vec.c) or of a document.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View, param
from bertlab.objectives.base import Bound, Metrics, Objective, Vocabulary, WordDraws


@dataclasses.dataclass(frozen=True)
class _NegativeSampling(Objective):
    """Shared by skip-gram and CBOW: the view, and the loss of one correct word against a few drawn ones.

    Attributes:
        window: most words on each side; each centre draws its own number from 1 to this.
        negatives: k, the drawn words for each correct one.
        subsample: words above this frequency are dropped at random; 0: none are.
        power: exponent of a word's count in the distribution of negatives.
    """

    sees = "own"
    families = ("static",)
    asks = "other"  # a few products per position, no row of logits

    window: int = setting(5, least=1)
    negatives: int = setting(5, least=1)
    subsample: float = setting(1e-3, least=0)
    power: float = setting(0.75, least=0)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The kept words at the front of each row, and the draws for each of them.

        Returns:
            The batch with [B, L] `tokens`, `segments`, `documents` and `positions` of the kept words, [B, L] `sentences` (0:
            padding; windows stay within one), [B, L] `radius` and [B, L, ..., k] `negative_tokens`.

        Raises:
            UserError: the vocabulary has no counts of its words.
        """
        draws = self.word_draws(vocabulary)
        subsample_key, radius_key, negative_key = jax.random.split(key, 3)
        tokens, documents = batch["tokens"], batch["documents"]
        chance = draws.keep[tokens]
        is_word = (documents > 0) & ~jnp.isin(tokens, jnp.array(special_ids(vocabulary)))
        keep = is_word & (jax.random.uniform(subsample_key, tokens.shape) < chance)
        # A number that changes at each document and [SEP].
        sentences = documents * (tokens.shape[1] + 1) + jnp.cumsum(tokens == vocabulary.sep_id, axis=1)
        order = jnp.argsort(~keep, axis=1, stable=True)
        used = jnp.arange(tokens.shape[1]) < keep.sum(axis=1, keepdims=True)
        compact = lambda field, empty: jnp.where(used, jnp.take_along_axis(field, order, axis=1), empty)
        return {
            **batch,
            **{name: compact(batch[name], 0) for name in ("segments", "documents", "positions")},
            "tokens": compact(tokens, vocabulary.pad_id),
            "sentences": compact(sentences, 0),
            "radius": jax.random.randint(radius_key, tokens.shape, 1, self.window + 1),
            "negative_tokens": draw_words(negative_key, draws.weights, self._draws(tokens.shape)),
        }

    def word_draws(self, vocabulary: Vocabulary) -> WordDraws:
        """Negatives by count^power, and subsampling."""
        counts = word_counts(vocabulary)
        weights = np.where(counts > 0, counts**self.power, 0.0)
        return WordDraws(self.negatives, weights, keep_probability(counts, self.subsample))

    def flops_per_prediction(self, shape) -> float:
        """The right word's product and those of the negatives, forward and backward."""
        return 6.0 * (1 + self.negatives) * shape.width

    def _draws(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Shape of `negative_tokens`."""
        return (*shape, self.negatives)

    def _offsets(self, length: int) -> list[int]:
        """Offsets of a centre's context words: −W … −1, 1 … W."""
        return [o for o in range(-self.window, self.window + 1) if o and abs(o) < length]

    def _terms(self, model: Bound, hidden: Float[Array, "B L D"], right, drawn, weights) -> tuple[Array, Array]:
        """Weighted sums of −log σ(u·v) − Σ log σ(−u·v') and of right words above all drawn ones.

        Drawn words that equal the correct word do not count.
        """
        candidates = jnp.concatenate([right[..., None], drawn], axis=-1)
        logits = model.predict_tokens(hidden, "both", among=candidates)
        wrong, weights = drawn != right[..., None], weights.astype(jnp.float32)
        losses = -jax.nn.log_sigmoid(logits[..., 0])
        losses -= jnp.where(wrong, jax.nn.log_sigmoid(-logits[..., 1:]), 0.0).sum(-1)
        first = ((logits[..., :1] > logits[..., 1:]) | ~wrong).all(-1)
        return (losses * weights).sum(), (first * weights).sum()


@dataclasses.dataclass(frozen=True)
class SkipGram(_NegativeSampling):
    """Each context word's vector predicts the centre: −log σ(u_centre · v_context) − Σ_k log σ(−u_k · v_context).

    Every pair has its own k negatives. The direction is that of word2vec.c; the paper's is the opposite, with the same pairs.
    """

    def _draws(self, shape):
        return (*shape, len(self._offsets(shape[1])), self.negatives)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Sums over pairs of centre and context; accuracy: the right word's product is above those of its negatives."""
        vectors, tokens = model.encoded.both[0], view["tokens"]
        # The first use of the output layer makes its parameters; this must not happen inside the loop.
        model.predict_tokens(vectors[:1, :1], "both", among=tokens[:1, :1, None])

        # One offset at a time, forward and backward: all candidates together would be [B, L, 2W, k + 1, D].
        @jax.checkpoint
        def add(sums, inputs):
            offset, drawn = inputs
            is_pair = within(view, offset)
            terms = self._terms(model, jnp.roll(vectors, -offset, axis=1), tokens, drawn, is_pair)
            return jax.tree.map(jnp.add, sums, (*terms, is_pair.sum().astype(jnp.float32))), None

        offsets = jnp.array(self._offsets(tokens.shape[1]))
        drawn = jnp.moveaxis(view["negative_tokens"], 2, 0)
        (loss, right, pairs), _ = jax.lax.scan(add, (jnp.float32(0.0),) * 3, (offsets, drawn))
        return {"loss": (loss, pairs), "accuracy": (right, pairs)}


@dataclasses.dataclass(frozen=True)
class ContinuousBagOfWords(_NegativeSampling):
    """The mean of the context words' vectors predicts the centre: −log σ(u_centre · h) − Σ_k log σ(−u_k · h).

    As in word2vec.c, each context word gets the whole gradient of h, not its n-th part.
    """

    def loss(self, model: Bound, view: View) -> Metrics:
        """Sums over centres with a context; accuracy: the right word's product is above those of its negatives."""
        vectors, tokens = model.encoded.both[0].astype(jnp.float32), view["tokens"]
        total, number = jnp.zeros_like(vectors), jnp.zeros(tokens.shape, jnp.float32)
        for offset in self._offsets(tokens.shape[1]):
            is_context = within(view, offset)
            total = total + jnp.where(is_context[:, :, None], jnp.roll(vectors, -offset, axis=1), 0.0)
            number = number + is_context
        mean = total / jnp.maximum(number, 1.0)[:, :, None]
        hidden = total + jax.lax.stop_gradient(mean - total)  # the mean, with the gradient of the sum
        has_context = (number > 0).astype(jnp.float32)
        loss, right = self._terms(model, hidden, tokens, view["negative_tokens"], has_context)
        return {"loss": (loss, has_context.sum()), "accuracy": (right, has_context.sum())}


def within(view: View, offset: int | Int[Array, ""]) -> Bool[Array, "B L"]:
    """Where position t + offset holds a context word of the centre t: in its sentence and its window."""
    sentences = view["sentences"]
    places = jnp.arange(sentences.shape[1]) + offset
    inside = (places >= 0) & (places < sentences.shape[1])
    same = (jnp.roll(sentences, -offset, axis=1) == sentences) & (sentences > 0)
    return inside & same & (jnp.abs(offset) <= view["radius"])


def special_ids(vocabulary: Vocabulary) -> list[int]:
    """Ids that are never a centre, a context or a negative."""
    ids = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    return [i for i in ids if i is not None]


def word_counts(vocabulary: Vocabulary) -> np.ndarray:
    """[V] float64 counts of the words in the training text, 0 for special tokens.

    Raises:
        UserError: the counts are unknown, or the vocabulary has no word.
    """
    if vocabulary.counts is None:
        raise UserError(
            "skip_gram and cbow draw words by their frequency in the training text, and this tokenizer came without"
            " counts; train on a corpus that `bertlab prepare` or `bertlab train` has prepared"
        )
    counts = np.array(vocabulary.counts, np.float64)
    counts[special_ids(vocabulary)] = 0
    if not counts.any():
        raise UserError("skip_gram and cbow: the training text has only special tokens; use more text")
    return counts


def keep_probability(counts: np.ndarray, subsample: float) -> Float[Array, "V"]:
    """min(1, (√(f/t) + 1) · t/f) for a word of frequency f in the training text (word2vec.c); 1 if f = 0."""
    frequency = np.maximum(counts, 1e-9) / counts.sum()
    chance = (np.sqrt(frequency / subsample) + 1) * subsample / frequency if subsample else np.ones_like(counts)
    return jnp.asarray(np.minimum(chance, 1.0), jnp.float32)


def draw_words(key: Array, weights: np.ndarray, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Independent draws in proportion to the weights [V], exact to 2^-32 of their sum."""
    ids = np.flatnonzero(weights)
    share = np.cumsum(weights[ids]) / weights.sum()
    borders = np.minimum(np.round(share * 2.0**32), 2.0**32 - 1).astype(np.uint32)[:-1]
    drawn = jnp.searchsorted(jnp.asarray(borders), jax.random.bits(key, shape, jnp.uint32), side="right")
    return jnp.asarray(ids, jnp.int32)[drawn]


class _Biases(nn.Module):
    """b and b̃ of GloVe: a number for each word and each context word, initialized like the vectors."""

    @nn.compact
    def __call__(self, words: Int[Array, "B L"], contexts: Int[Array, "B L"], size: int, width: int) -> Float[Array, "B L"]:
        uniform = lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -0.5, 0.5) / width
        word = self.param("word_bias", param(uniform, "vocab"), (size,))
        context = self.param("context_bias", param(uniform, "vocab"), (size,))
        return word[words] + context[contexts]


@dataclasses.dataclass(frozen=True)
class Glove(Objective):
    """GloVe: ½ f(X)(w·w̃ + b + b̃ − log X)² over pairs of words, f(X) = min(1, X/x_max)^power (equation 8; code's ½).

    X is how often the two occur near each other, w is the body's vector and w̃ a row of its output matrix. The exported
    vector of a word is w + w̃ (`bertlab.interop.glove.save`).

    Attributes:
        x_max: a pair that occurs so often has the full weight.
        power: exponent of X / x_max in the weight of a rarer pair.
    """

    needs = ("counts",)
    families = ("static",)
    asks = "other"  # one product per pair, no row of logits

    x_max: float = setting(100.0, above=0)
    power: float = setting(0.75, least=0)

    def head(self, body: nn.Module) -> nn.Module:
        """The two biases."""
        return _Biases()

    def flops_per_prediction(self, shape) -> float:
        """A pair's product, forward and backward."""
        return 6.0 * shape.width

    def word_vectors(self, inputs, outputs):
        """w + w̃."""
        return inputs + outputs

    def loss(self, model: Bound, view: View) -> Metrics:
        """Sum over the pairs, and their number; `contexts` and float32 `counts` are [B, L] like `tokens`."""
        words, contexts, counts = view["tokens"], view["contexts"], view["counts"].astype(jnp.float32)
        is_pair = (view["documents"] > 0) & (counts > 0)
        counts = jnp.where(is_pair, counts, 1.0)
        hidden = model.encoded.both[0]
        product = model.predict_tokens(hidden, "both", among=contexts[:, :, None])[:, :, 0]
        biases = model.head(words, contexts, model.vocabulary.size, hidden.shape[-1])
        weights = jnp.minimum(1.0, counts / self.x_max) ** self.power * is_pair
        errors = product + biases - jnp.log(counts)
        return {"loss": (0.5 * (weights * errors * errors).sum(), is_pair.sum().astype(jnp.float32))}
