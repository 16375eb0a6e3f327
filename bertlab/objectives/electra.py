"""ELECTRA: replaced-token detection, and the objectives between it and MLM (Clark et al. 2020; google-research/electra).

Letters: B batch, L length, P chosen positions of a row, M positions that the loss is over (L or P), D the body's width,
G the generator's, V vocabulary.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import ACTIVATIONS, Dense, Norm, OutputConfig, TokenPrediction, View, flattened, rows_apart
from bertlab.models.transformer import Transformer, TransformerConfig
from bertlab.objectives.base import (
    HIDDEN,
    Bound,
    Corruption,
    Metrics,
    NoFloor,
    Objective,
    Oracle,
    Scoring,
    Vocabulary,
    cross_entropy,
)
from bertlab.objectives.choosing import at_positions, put_at
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.word_vectors import draw_words

TASKS = ("discriminate", "discriminate_masked", "replace_mlm", "all_tokens")
GENERATORS = ("small", "unigram")


@dataclasses.dataclass(frozen=True)
class ReplacedTokenDetection(Objective):
    """ELECTRA (section 2): a generator fills the chosen positions m, and the body says which tokens are not the original ones.

        L_MLM(x)  = Σ_{t in m} −log p_G(x_t | x with m masked)
        L_Disc(x) = Σ_t −1[x'_t = x_t] log(1 − σ(z_t)) − 1[x'_t ≠ x_t] log σ(z_t)

    x' is x with each t in m replaced by a draw from p_G; a draw that equals the original counts as original. z_t is read
    from the body's states of x'; as in the original code, large z means "replaced". No gradient flows through the draw.
    Positions are chosen as in `mlm`. All become [MASK] for the generator, as in the paper (its code keeps 15 %).

    The loss is a sum over the positions that the body is asked about. With a small generator it is λ · L_Disc + L_MLM / rate
    over all tokens, or λ · L_Disc + L_MLM over m. Divided by its weight, this is the original code's λ · mean L_Disc + mean
    L_MLM, up to rounding of the number of chosen tokens. λ = `discriminator_weight` with a small generator that discriminates,
    and 1 otherwise.

    Attributes:
        task: the body's question about x' (section 3.4).
            discriminate: L_Disc over all tokens except padding, [CLS] and [SEP] included;
            discriminate_masked: L_Disc over m (ELECTRA 15 %);
            replace_mlm: Σ_{t in m} −log p(x_t | x') (Replace MLM);
            all_tokens: Σ_t −log p(x_t | x') with a copy mechanism, p(x_t) = D_t · 1[x_t = x'_t] + (1 − D_t) · softmax_t(x_t).
        generator: the source of the draws.
            small: a transformer in the head, trained by L_MLM, with as many layers as the body. It reads the body's
            embeddings, projected, and its output is tied to them (section 3.2);
            unigram: the counts of the training text (`unigram_probabilities`), fixed. Only the body is trained, and the
            Bayes-optimal loss can be computed.
        generator_size: the small generator's width, heads and hidden units over the body's.
        rate: share of the positions that are chosen.
        exact: a fixed number of positions per row, like `mlm`'s.
        discriminator_weight: λ, the weight of L_Disc.
    """

    sees = "own"
    families = ("bert", "modern")
    asks = "positions"  # rows of logits are in `extra_flops`: how many depends on task and generator

    task: str = setting("discriminate", choices=TASKS)
    generator: str = setting("small", choices=GENERATORS)
    generator_size: float = setting(0.25, above=0, most=1, only_with=("generator=small",))
    rate: float = setting(0.15, above=0, most=1)
    exact: bool = True
    discriminator_weight: float = setting(50.0, above=0, only_with=("generator=small", "task=discriminate*"))

    @property
    def trains_generator(self) -> bool:
        """Whether the generator is a network."""
        return self.generator == "small"

    @property
    def discriminates(self) -> bool:
        """Whether the body says which tokens were replaced."""
        return self.task.startswith("discriminate")

    @property
    def _is_weighted(self) -> bool:
        return self.trains_generator and self.discriminates

    @property
    def _asks_all(self) -> bool:
        return self.task in ("discriminate", "all_tokens")

    @property
    def _masking(self) -> MaskedLanguageModel:
        """How positions are chosen, and what the generator sees there."""
        return MaskedLanguageModel(rate=self.rate, exact=self.exact, mask_share=1.0, random_share=0.0)

    def check(self, vocabulary: Vocabulary) -> None:
        self._masking.check(vocabulary)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """What the generator reads, or what the body reads if the generator is fixed.

        Returns:
            The batch with `original_tokens` [B, L] and `mlm`'s [B, P] fields. For a small generator `tokens` have [MASK] at
            the chosen positions, and float32 `uniforms` [B, P] in [0, 1) are there to draw with. Otherwise `tokens` are
            replaced.
        """
        choose_key, draw_key = jax.random.split(key)
        view = {**self._masking.view(batch, choose_key, vocabulary, progress), "original_tokens": batch["tokens"]}
        chosen = view["masked_positions"].shape
        if self.trains_generator:
            return {**view, "uniforms": jax.random.uniform(draw_key, chosen)}
        return {**view, "tokens": replaced(view, draw_words(draw_key, unigram_probabilities(vocabulary), chosen))}

    def head(self, body: nn.Module) -> nn.Module | None:
        """The generator and the layers that read the body's states; None without both."""
        if self.task == "replace_mlm" and not self.trains_generator:
            return None
        return _Head(body, self)

    def scoring(self) -> Scoring:
        """By the generator, in any order; the body is not asked."""
        return Scoring(("in any order",), shown_in_order=False) if self.trains_generator else Scoring()

    def hidden_logits(self, model: Bound, view: View, ranks: Int[Array, "B L"]) -> Float[Array, "B L V"]:
        """The generator's, with [MASK] at all hidden tokens."""
        places = jnp.broadcast_to(jnp.arange(ranks.shape[1]), ranks.shape)
        masked = jnp.where(ranks == HIDDEN, model.vocabulary.mask_id, view["tokens"])
        return model.head.generator.logits({**view, "tokens": masked, "masked_positions": places}, True)

    def corruption(self, view: View, vocabulary: Vocabulary) -> Corruption:
        """Chosen words are replaced by draws from the training text's counts."""
        if self.trains_generator:
            raise NoFloor("its generator learns; the floor is known only with generator=unigram")
        count = view["masked_weights"].sum(axis=1) if self.exact else None
        return Corruption(unigram_probabilities(vocabulary), count=count, rate=self.rate)

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """Of the original word, or of whether each word is the original, at all or at the chosen positions."""
        ask = "original" if self.discriminates else "word"
        known = not self._asks_all
        nats = oracle.corrupted(view["tokens"], self.corruption(view, oracle.vocabulary), ask, known)
        if known:
            return np.take_along_axis(nats, view["masked_positions"], axis=1), view["masked_weights"]
        return nats, batch["documents"] > 0

    def loss(self, model: Bound, view: View) -> Metrics:
        """The loss, the share of replaced tokens, and the losses of generator and body in nats per position.

        The body's is `discriminator_loss` (with `recall`, the share of replaced tokens that are found) or `token_loss`.
        """
        generator = {}
        if self.trains_generator:
            logits = model.head.generator.logits(view, model.deterministic)
            generator = cross_entropy(logits, view["masked_labels"], view["masked_weights"])
            view = {**view, "tokens": replaced(view, draw_tokens(jax.lax.stop_gradient(logits), view["uniforms"]))}
        hidden = (model.encode(view) if self.trains_generator else model.encoded).output("both")
        shown, original, asked = view["tokens"], view["original_tokens"], view["documents"] > 0
        if not self._asks_all:
            hidden, shown, original = (at_positions(x, view["masked_positions"]) for x in (hidden, shown, original))
            asked = view["masked_weights"]
        if self.discriminates:
            body = detection(model.head.discriminate(hidden), shown != original, asked)
        else:
            logits = model.predict_tokens(hidden, "both")
            if self.task == "all_tokens":
                logits = copy_mixture(logits, model.head.copy(hidden), shown)
            body = cross_entropy(logits, original, asked)
        total, weight = body.pop("loss")
        metrics = {
            "discriminator_loss" if self.discriminates else "token_loss": (total, weight),
            **body,
            "replaced": (((shown != original) & asked).sum(dtype=jnp.float32), weight),
        }
        if self._is_weighted:
            total = self.discriminator_weight * total
        if generator:
            total = total + generator["loss"][0] / (self.rate if self._asks_all else 1.0)
        return {"loss": (total, weight), **metrics, **{f"generator_{name}": value for name, value in generator.items()}}

    def extra_flops(self, shape: TransformerConfig, length: int) -> float:
        """The FLOPs of the generator with its logits, and of the layers that read the body's states."""
        chosen = self._masking.slots(length)
        asked = length if self._asks_all else chosen
        flops = 0.0
        if self.trains_generator:
            small = generator_config(shape, self.generator_size)
            projection = 6 * shape.width * small.width
            prediction = projection + 6 * shape.width * shape.vocab_size
            flops += length * (small.flops_per_token(length) + projection) + chosen * prediction
        if self.discriminates:
            return flops + asked * 6 * shape.width * (shape.width + 1)
        copying = 6 * shape.width if self.task == "all_tokens" else 0
        return flops + asked * (shape.flops_per_prediction() + copying)

    def extra_flops_outside_windows(self, shape: TransformerConfig, length: int) -> float:
        """The generator's: it has the body's local layers."""
        if not self.trains_generator:
            return 0.0
        return length * generator_config(shape, self.generator_size).flops_outside_windows(length)


def unigram_probabilities(vocabulary: Vocabulary) -> Float[np.ndarray, "V"]:
    """The fixed generator's distribution, float64: the training text's counts, or equal counts if they are not known.

    Padding, [CLS], [SEP] and [MASK] are never drawn.

    Raises:
        UserError: the training text has no other tokens.
    """
    counts = np.array(vocabulary.counts if vocabulary.counts is not None else np.ones(vocabulary.size), np.float64)
    special = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    counts[[i for i in special if i is not None]] = 0
    if not counts.any():
        raise UserError("generator='unigram' has nothing to draw: the training text has only special tokens")
    return counts / counts.sum()


def draw_tokens(logits: Float[Array, "B P V"], uniforms: Float[Array, "B P"]) -> Int[Array, "B P"]:
    """A token from each softmax by its inverse distribution function: the first at which the cumulative sum exceeds u."""
    cumulative = jnp.cumsum(jax.nn.softmax(logits), axis=-1)
    # u is scaled, since the float32 sum is not exactly 1.
    return (cumulative <= uniforms[..., None] * cumulative[..., -1:]).sum(-1, dtype=jnp.int32)


def replaced(view: View, drawn: Int[Array, "B P"]) -> Int[Array, "B L"]:
    """The original tokens, replaced by the drawn ones at the chosen positions."""
    return put_at(view["original_tokens"], view["masked_positions"], view["masked_weights"], drawn)


def detection(logits: Float[Array, "B M"], is_replaced: Bool[Array, "B M"], asked: Bool[Array, "B M"]) -> Metrics:
    """Sums of −log p(right answer) in nats and of right guesses, for all tokens and for replaced ones; z = 0 is "original"."""
    losses = jax.nn.softplus(logits) - is_replaced * logits
    right = ((logits > 0) == is_replaced) & asked
    count = lambda where: where.sum(dtype=jnp.float32)
    return {
        "loss": ((losses * asked).sum(), count(asked)),
        "accuracy": (count(right), count(asked)),
        "recall": (count(right & is_replaced), count(is_replaced & asked)),
    }


def copy_mixture(
    logits: Float[Array, "... V"], copy_logits: Float[Array, "..."], shown: Int[Array, "..."]
) -> Float[Array, "... V"]:
    """log of D · 1[v = shown] + (1 − D) · softmax(logits)_v, where D = σ(copy_logits) (section 3.4, All-Tokens MLM)."""
    predicted = jax.nn.log_softmax(logits) + jax.nn.log_sigmoid(-copy_logits)[..., None]
    copied = jnp.logaddexp(predicted, jax.nn.log_sigmoid(copy_logits)[..., None])
    return jnp.where(jnp.arange(logits.shape[-1]) == shown[..., None], copied, predicted)


def generator_config(shape: TransformerConfig, size: float) -> TransformerConfig:
    """The body's shape with `size` times its heads, hidden units and width (rounded up to whole, even heads)."""
    heads = max(1, round(shape.heads * size))
    width = 2 * heads * math.ceil(round(shape.width * size) / (2 * heads))
    output = OutputConfig(transform=True, tied=True, bias=True)
    return dataclasses.replace(shape, width=width, heads=heads, hidden=max(1, round(shape.hidden * size)), output=output)


class _Generator(Transformer):
    """A narrower transformer that reads the body's embeddings, projected, and whose output is tied to them."""

    body: Transformer

    def setup(self):
        c, wide = self.config, self.body.config
        self.projection = Dense(c.width, ("embed", None), c.init, c.use_bias, c.dtype)
        self._setup_distances()
        if c.final_norm:
            self.final_norm = Norm(c.epsilon, c.norm, c.use_bias)
        self.output = TokenPrediction(
            c.output, c.vocab_size, wide.width, c.epsilon, c.init, c.dtype, c.norm, c.use_bias, c.activation, wide.times_base
        )

    def logits(self, view: View, deterministic: bool) -> Float[Array, "B P V"]:
        """Logits at the chosen positions."""
        c, embedded = self.config, self.body.embed(view, deterministic)
        hidden = self._blocks(rows_apart(flattened(self.projection(embedded))), view, deterministic)[-1]
        hidden = (self.final_norm(hidden) if c.final_norm else hidden).reshape(*embedded.shape[:2], c.width)
        return self.output(at_positions(hidden, view["masked_positions"]), self.body.token_embedding, "both")


class _Head(nn.Module):
    """The generator, and the layers that read the body's states (`discriminate`, `copy`)."""

    body: Transformer
    objective: ReplacedTokenDetection

    def setup(self):
        c, asked = self.body.config, self.objective
        # With a bias even if the body's layers have none.
        dense = lambda width: Dense(width, ("embed", None), c.init, dtype=c.dtype)
        if asked.trains_generator:
            self.generator = _Generator(generator_config(c, asked.generator_size), self.body)
        if asked.discriminates:
            self.dense, self.to_logit = dense(c.width), dense(1)
        if asked.task == "all_tokens":
            self.to_copy_logit = dense(1)

    def discriminate(self, hidden: Float[Array, "B M D"]) -> Float[Array, "B M"]:
        """Logits of "replaced": a dense layer, the body's activation and a dense layer, as in the original code."""
        hidden = ACTIVATIONS[self.body.config.activation](self.dense(hidden))
        return self.to_logit(hidden)[..., 0].astype(jnp.float32)

    def copy(self, hidden: Float[Array, "B M D"]) -> Float[Array, "B M"]:
        """Logits of D: the token shown is the original."""
        return self.to_copy_logit(hidden)[..., 0].astype(jnp.float32)
