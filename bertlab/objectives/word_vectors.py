"""Static word vectors: skip-gram and CBOW with negative sampling (Mikolov et al. 2013b;
tmikolov/word2vec word2vec.c), and GloVe (Pennington et al. 2014; stanfordnlp/GloVe glove.c).

Letters: B batch, L length, W window, k negatives, D width, V vocabulary.

Special tokens are removed first, as word2vec.c removes unknown words. Windows reach across removed
tokens, but never past the end of a sentence ([SEP], like </s> in word2vec.c) or of a document.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.base import View
from bertlab.models.layers import param, uniform
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary
from bertlab.objectives.choosing import Ids, Mask


@dataclasses.dataclass(frozen=True)
class NegativeSampling(Objective):
    """Base of skip-gram and CBOW: the loss of one right word against a few drawn ones."""

    window: int = 5  # most words on each side; each centre draws its own number from 1 to this
    negatives: int = 5  # k, the drawn words for each right one
    subsample: float = 1e-3  # words above this frequency are dropped at random; 0: none are
    power: float = 0.75  # exponent of a word's count in the distribution of negatives

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with the kept words at the front of each row, [B, L] `sentences` (0: padding;
        windows stay within one), [B, L] `radius` and [B, L, ..., k] `negative_tokens`."""
        counts = word_counts(vocabulary)
        subsample_key, radius_key, negative_key = jax.random.split(key, 3)
        tokens, documents = batch["tokens"], batch["documents"]
        chance = jnp.asarray(keep_probability(counts, self.subsample), jnp.float32)[tokens]
        is_word = (documents > 0) & ~jnp.isin(tokens, jnp.array(special_ids(vocabulary)))
        keep = is_word & (jax.random.uniform(subsample_key, tokens.shape) < chance)
        # A number that changes at each document and [SEP].
        separators = jnp.cumsum(tokens == vocabulary.sep_id, axis=1)
        sentences = documents * (tokens.shape[1] + 1) + separators
        order = jnp.argsort(~keep, axis=1, stable=True)
        used = jnp.arange(tokens.shape[1]) < keep.sum(axis=1, keepdims=True)

        def compact(field, empty=0):
            return jnp.where(used, jnp.take_along_axis(field, order, axis=1), empty)

        weights = np.where(counts > 0, counts**self.power, 0.0)
        return {
            **batch,
            **{name: compact(batch[name]) for name in ("segments", "documents", "positions")},
            "tokens": compact(tokens, vocabulary.pad_id),
            "sentences": compact(sentences),
            "radius": jax.random.randint(radius_key, tokens.shape, 1, self.window + 1),
            "negative_tokens": draw_words(negative_key, weights, self.draws(*tokens.shape)),
        }

    def draws(self, rows: int, length: int) -> tuple[int, ...]:
        """Shape of `negative_tokens`."""
        return rows, length, self.negatives

    def offsets(self, length: int) -> list[int]:
        """Offsets of a centre's context words: −W … −1, 1 … W."""
        widest = min(self.window, length - 1)
        return [*range(-widest, 0), *range(1, widest + 1)]

    def compare(self, model: Model, hidden: Array, right: Array, drawn: Array, weights: Array):
        """Weighted sums of −log σ(u·v) − Σ log σ(−u·v') and of right words above all drawn ones.

        v is `hidden` [B, L, D], u are rows of the output layer; of `drawn` [B, L, k] those that
        equal the `right` word [B, L] do not count.
        """
        candidates = jnp.concatenate([right[..., None], drawn], axis=-1)
        logits = model.predict_tokens(hidden, "both", candidates)
        wrong, weights = drawn != right[..., None], weights.astype(jnp.float32)
        losses = -jax.nn.log_sigmoid(logits[..., 0])
        losses -= jnp.where(wrong, jax.nn.log_sigmoid(-logits[..., 1:]), 0.0).sum(-1)
        first = ((logits[..., :1] > logits[..., 1:]) | ~wrong).all(-1)
        return (losses * weights).sum(), (first * weights).sum()


@dataclasses.dataclass(frozen=True)
class SkipGram(NegativeSampling):
    """A context word predicts the centre c: −log σ(u_c · v_context) − Σ_k log σ(−u_k · v_context).

    Every pair has its own negatives. The direction is word2vec.c's, the opposite of the paper's.
    """

    def draws(self, rows: int, length: int) -> tuple[int, ...]:
        """Separate negatives for each offset."""
        return (rows, length, len(self.offsets(length)), self.negatives)

    def loss(self, model: Model, view: View) -> Metrics:
        """Sums over pairs; accuracy: the right word's product is above those of its negatives."""
        vectors, tokens = model.encode().both[0], view["tokens"]
        # The first use of the output layer makes its parameters; not inside the loop.
        model.predict_tokens(vectors[:1, :1], "both", tokens[:1, :1, None])

        # One offset at a time, forward and backward: all at once would be [B, L, 2W, k + 1, D].
        @jax.checkpoint
        def add(sums, inputs):
            offset, drawn = inputs
            is_pair = within(view, offset)
            context = jnp.roll(vectors, -offset, axis=1)
            loss, right = self.compare(model, context, tokens, drawn, is_pair)
            terms = (loss, right, is_pair.sum().astype(jnp.float32))
            return jax.tree.map(jnp.add, sums, terms), None

        offsets = jnp.array(self.offsets(tokens.shape[1]))
        drawn = jnp.moveaxis(view["negative_tokens"], 2, 0)
        zeros = (jnp.float32(0.0),) * 3
        (loss, right, pairs), _ = jax.lax.scan(add, zeros, (offsets, drawn))
        return {"loss": (loss, pairs), "accuracy": (right, pairs)}


@dataclasses.dataclass(frozen=True)
class ContinuousBagOfWords(NegativeSampling):
    """The mean h of context words predicts the centre c: −log σ(u_c · h) − Σ_k log σ(−u_k · h).

    As in word2vec.c, each context word gets the whole gradient of h, not an n-th of it.
    """

    def loss(self, model: Model, view: View) -> Metrics:
        """Sums over centres with a context; accuracy as for skip-gram."""
        vectors, tokens = model.encode().both[0].astype(jnp.float32), view["tokens"]
        total, number = jnp.zeros_like(vectors), jnp.zeros(tokens.shape, jnp.float32)
        for offset in self.offsets(tokens.shape[1]):
            is_context = within(view, offset)
            context = jnp.roll(vectors, -offset, axis=1)
            total = total + jnp.where(is_context[:, :, None], context, 0.0)
            number = number + is_context
        mean = total / jnp.maximum(number, 1.0)[:, :, None]
        hidden = total + jax.lax.stop_gradient(mean - total)  # the mean, with the sum's gradient
        centres = (number > 0).astype(jnp.float32)
        loss, right = self.compare(model, hidden, tokens, view["negative_tokens"], centres)
        return {"loss": (loss, centres.sum()), "accuracy": (right, centres.sum())}


def within(view: View, offset: int | Array) -> Mask:
    """Where t + offset is the position of a context word of the centre t."""
    sentences = view["sentences"]
    neighbour = jnp.arange(sentences.shape[1]) + offset
    inside = (neighbour >= 0) & (neighbour < sentences.shape[1])
    same = (jnp.roll(sentences, -offset, axis=1) == sentences) & (sentences > 0)
    return inside & same & (jnp.abs(offset) <= view["radius"])


def special_ids(vocabulary: Vocabulary) -> list[int]:
    """Ids that are never a centre, a context or a negative."""
    ids = [vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id]
    return ids if vocabulary.mask_id is None else [*ids, vocabulary.mask_id]


def word_counts(vocabulary: Vocabulary) -> Float[np.ndarray, "V"]:
    """float64 counts of the words in the training text, 0 for special tokens."""
    counts = np.array(vocabulary.counts, np.float64)
    counts[special_ids(vocabulary)] = 0
    return counts


def keep_probability(counts: Float[np.ndarray, "V"], subsample: float) -> Float[np.ndarray, "V"]:
    """min(1, (√(f/t) + 1) · t/f) for a word of frequency f in the training text (word2vec.c)."""
    if not subsample:
        return np.ones_like(counts)
    frequency = np.maximum(counts, 1e-9) / counts.sum()
    return np.minimum((np.sqrt(frequency / subsample) + 1) * subsample / frequency, 1.0)


def draw_words(key: Array, weights: np.ndarray, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Independent draws in proportion to the weights, exact to 2^-32 of their sum."""
    ids = np.flatnonzero(weights)
    share = np.cumsum(weights[ids]) / weights.sum()
    borders = np.minimum(np.round(share * 2.0**32), 2.0**32 - 1).astype(np.uint32)[:-1]
    bits = jax.random.bits(key, shape, jnp.uint32)
    return jnp.asarray(ids, jnp.int32)[jnp.searchsorted(jnp.asarray(borders), bits, side="right")]


@dataclasses.dataclass(frozen=True)
class Glove(Objective):
    """GloVe: ½ f(X)(w·w̃ + b + b̃ − log X)² over pairs, f(X) = min(1, X/x_max)^power (equation 8).

    X is how often two words occur near each other (the batch's `counts`), w is the body's vector
    and w̃ a row of its output matrix. The published vector of a word is w + w̃; ½ is from the code.
    """

    needs = ("counts",)

    x_max: float = 100.0  # a pair that occurs this often has full weight
    power: float = 0.75

    def head(self, body: nn.Module) -> nn.Module:
        return Biases(body.shape.vocab_size, body.shape.width)

    def loss(self, model: Model, view: View) -> Metrics:
        words, contexts, counts = view["tokens"], view["contexts"], view["counts"]
        is_pair = (view["documents"] > 0) & (counts > 0)
        counts = jnp.where(is_pair, counts.astype(jnp.float32), 1.0)
        hidden = model.encode().both[0]
        product = model.predict_tokens(hidden, "both", contexts[:, :, None])[:, :, 0]
        weights = jnp.minimum(1.0, counts / self.x_max) ** self.power * is_pair
        errors = product + model.head(words, contexts) - jnp.log(counts)
        total = 0.5 * (weights * errors * errors).sum()
        return {"loss": (total, is_pair.sum().astype(jnp.float32))}


def word_table(body, objectives: Iterable[str]) -> Float[np.ndarray, "V D"]:
    """The vectors of a static model with these parameters; GloVe's are w + w̃ (section 4.2)."""
    vectors = np.asarray(body["token_embedding"], np.float32)
    return vectors + np.asarray(body["output"]["kernel"]) if "glove" in objectives else vectors


def with_word_table(body: Mapping, objectives: Iterable[str]) -> dict:
    """The parameters of a static body that looks up `word_table`."""
    return {**body, "token_embedding": word_table(body, objectives)}


class Biases(nn.Module):
    """b and b̃ of GloVe, initialised like the vectors."""

    vocab_size: int
    width: int

    @nn.compact
    def __call__(self, words: Ids, contexts: Ids) -> Float[Array, "B L"]:
        init = param(uniform(0.5 / self.width), "vocab")
        word = self.param("word_bias", init, (self.vocab_size,))
        context = self.param("context_bias", init, (self.vocab_size,))
        return word[words] + context[contexts]
