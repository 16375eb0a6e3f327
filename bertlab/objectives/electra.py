"""ELECTRA: replaced-token detection, and the objectives between it and MLM (Clark et al. 2020;
google-research/electra).

Letters: B batch, L length, P chosen positions per row, M positions that the loss is over (L or P),
D the body's width, G the generator's, V vocabulary.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.models.layers import ACTIVATIONS, Dense, OutputLayer
from bertlab.models.transformer import Transformer, TransformerShape
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy, restrict
from bertlab.objectives.choosing import Ids, Slots, at_positions, put_at
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.word_vectors import draw_words

TASKS = "discriminate discriminate_masked replace_mlm all_tokens"


@dataclasses.dataclass(frozen=True)
class ReplacedTokenDetection(Objective):
    """ELECTRA (section 2): a generator fills chosen positions m, the body detects replaced tokens.

        L_MLM(x)  = Σ_{t in m} −log p_G(x_t | x with m masked)
        L_Disc(x) = Σ_t −1[x'_t = x_t] log(1 − σ(z_t)) − 1[x'_t ≠ x_t] log σ(z_t)

    x' is x with each t in m replaced by a draw from p_G; a draw that equals the original counts as
    original. z_t is read from the body's states of x'; as in the original code, large z means
    "replaced". No gradient flows through the draw. Positions are chosen as in `mlm`. All become
    [MASK] for the generator, as in the paper (its code keeps 15 %).

    The loss is a sum over the positions that the body is asked about: with a small generator
    λ · L_Disc + L_MLM / rate over all tokens, or λ · L_Disc + L_MLM over m. Divided by its weight,
    this is the original code's λ · mean L_Disc + mean L_MLM, up to rounding of the number of chosen
    tokens. λ is 1 for other tasks and without a small generator.

    Attributes:
        task: The body's question about x' (section 3.4).
            discriminate: L_Disc over all tokens except padding, [CLS] and [SEP] included;
            discriminate_masked: L_Disc over m (ELECTRA 15 %);
            replace_mlm: Σ_{t in m} −log p(x_t | x') (Replace MLM);
            all_tokens: Σ_t −log p(x_t | x') with a copy mechanism, p(x_t) =
            D_t · 1[x_t = x'_t] + (1 − D_t) · softmax_t(x_t).
        generator: The source of the draws.
            small: a transformer, trained by L_MLM, with as many layers as the body. It reads the
            body's embeddings, projected, and its output is tied to them (section 3.2);
            unigram: the counts of the training text, fixed, so the best possible loss is known.
        generator_size: The small generator's width, heads and hidden units relative to the body's.
        rate: Share of the positions that are chosen.
        exact: A fixed number of positions per row, as in `mlm`.
        discriminator_weight: λ, the weight of L_Disc.
    """

    task: str = "discriminate"
    generator: str = "small"
    generator_size: float = 0.25
    rate: float = 0.15
    exact: bool = True
    discriminator_weight: float = 50.0

    def __post_init__(self):
        restrict(self, task=TASKS, generator="small unigram")

    @property
    def trains_generator(self) -> bool:
        """Whether the generator is a network."""
        return self.generator == "small"

    @property
    def discriminates(self) -> bool:
        """Whether the body predicts which tokens were replaced, rather than tokens."""
        return self.task in ("discriminate", "discriminate_masked")

    @property
    def covers_all(self) -> bool:
        """Whether the loss is over all tokens, rather than the chosen ones."""
        return self.task in ("discriminate", "all_tokens")

    def masking(self) -> MaskedLanguageModel:
        """How positions are chosen, and what the generator reads there."""
        return MaskedLanguageModel(self.rate, exact=self.exact, mask_share=1.0, random_share=0.0)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with `original_tokens` [B, L] and `mlm`'s [B, P] fields: with [MASK] at the
        chosen positions and float32 [B, P] `uniforms` to draw with, or with replaced tokens."""
        choose_key, draw_key = jax.random.split(key)
        view = dict(self.masking().view(batch, choose_key, vocabulary, progress))
        view["original_tokens"] = batch["tokens"]
        chosen = view["masked_positions"].shape
        if self.trains_generator:
            return {**view, "uniforms": jax.random.uniform(draw_key, chosen)}
        drawn = draw_words(draw_key, unigram_probabilities(vocabulary), chosen)
        return {**view, "tokens": replaced(view, drawn)}

    def head(self, body: nn.Module) -> nn.Module | None:
        if self.task == "replace_mlm" and not self.trains_generator:
            return None
        if not isinstance(body, Transformer):
            raise UserError("config.objectives.electra's own layers need a transformer's body")
        return Head(body, self)

    def loss(self, model: Model, view: View) -> Metrics:
        """The loss, the share of replaced tokens, and the losses of generator and body: the latter
        is `discriminator_loss` (with `recall`, the share of replaced tokens found) or `token_loss`.
        """
        generator = {}
        if self.trains_generator:
            logits = model.head.generator.logits(view)
            generator = cross_entropy(logits, view["masked_labels"], view["masked_weights"])
            drawn = draw_tokens(jax.lax.stop_gradient(logits), view["uniforms"])
            view = {**view, "tokens": replaced(view, drawn)}
        encoded = model.encode(view if self.trains_generator else None)
        hidden, tokens = encoded.output("both"), view["tokens"]
        original, asked = view["original_tokens"], view["documents"] > 0
        if not self.covers_all:
            positions = view["masked_positions"]
            hidden, tokens = at_positions(hidden, positions), at_positions(tokens, positions)
            original, asked = at_positions(original, positions), view["masked_weights"]
        if self.discriminates:
            body = detection(model.head.discriminate(hidden), tokens != original, asked)
        else:
            logits = model.predict_tokens(hidden, "both")
            if self.task == "all_tokens":
                logits = copy_mixture(logits, model.head.copy(hidden), tokens)
            body = cross_entropy(logits, original, asked)
        total, weight = body.pop("loss")
        metrics = {
            "discriminator_loss" if self.discriminates else "token_loss": (total, weight),
            **body,
            "replaced": (((tokens != original) & asked).sum(dtype=jnp.float32), weight),
        }
        if self.trains_generator:
            metrics |= {f"generator_{name}": value for name, value in generator.items()}
            if self.discriminates:
                total = self.discriminator_weight * total
            total = total + generator["loss"][0] / (self.rate if self.covers_all else 1.0)
        return {"loss": (total, weight), **metrics}


def unigram_probabilities(vocabulary: Vocabulary) -> Float[np.ndarray, "V"]:
    """The fixed generator's distribution, float64: the training text's counts, or equal ones if
    they are unknown. Padding, [CLS], [SEP] and [MASK] are never drawn."""
    counts = np.array(vocabulary.counts or [1] * vocabulary.size, np.float64)
    special = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    counts[[number for number in special if number is not None]] = 0
    return counts / counts.sum()


def draw_tokens(logits: Float[Array, "B P V"], uniforms: Float[Array, "B P"]) -> Slots:
    """A token from each softmax: the first at which the cumulative sum exceeds u."""
    cumulative = jnp.cumsum(jax.nn.softmax(logits), axis=-1)
    # u is scaled, since the float32 sum is not exactly 1.
    below = cumulative <= uniforms[..., None] * cumulative[..., -1:]
    return below.sum(-1, dtype=jnp.int32)


def replaced(view: View, drawn: Slots) -> Ids:
    """The original tokens, replaced by the drawn ones at the chosen positions."""
    positions, used = view["masked_positions"], view["masked_weights"]
    return put_at(view["original_tokens"], positions, used, drawn)


def detection(logits: Array, is_replaced: Array, asked: Array) -> Metrics:
    """Sums over [B, M] of −log p(answer) in nats and of right guesses; z = 0 is "original"."""
    count = functools.partial(jnp.sum, dtype=jnp.float32)
    losses = jax.nn.softplus(logits) - is_replaced * logits
    right = ((logits > 0) == is_replaced) & asked
    return {
        "loss": ((losses * asked).sum(), count(asked)),
        "accuracy": (count(right), count(asked)),
        "recall": (count(right & is_replaced), count(is_replaced & asked)),
    }


def copy_mixture(logits: Float[Array, "B M V"], copy_logits: Array, tokens: Array) -> Array:
    """log of D · 1[v = token] + (1 − D) · softmax(logits)_v, D = σ(copy_logits) (section 3.4)."""
    predicted = jax.nn.log_softmax(logits) + jax.nn.log_sigmoid(-copy_logits)[..., None]
    copied = jnp.logaddexp(predicted, jax.nn.log_sigmoid(copy_logits)[..., None])
    return jnp.where(jnp.arange(logits.shape[-1]) == tokens[..., None], copied, predicted)


def generator_shape(shape: TransformerShape, size: float) -> TransformerShape:
    """The body's shape with `size` times its heads, hidden units and width (in even heads)."""
    heads = max(1, round(shape.heads * size))
    return dataclasses.replace(
        shape,
        heads=heads,
        width=2 * heads * math.ceil(round(shape.width * size) / (2 * heads)),
        hidden=max(1, round(shape.hidden * size)),
        output_transform=True,
        tied=True,
        output_bias=True,
    )


class Generator(Transformer):
    """A narrower transformer that reads and predicts by the body's embeddings, projected."""

    body: Transformer

    def setup(self):
        shape = self.shape
        dense = (("embed", None), shape.initializer, shape.use_bias, shape.dtype)
        self.projection = Dense(shape.width, *dense)
        self.output = OutputLayer(shape, shape.initializer, self.body.shape)

    def logits(self, view: View) -> Float[Array, "B P V"]:
        """Logits at the chosen positions."""
        hidden = self.run_blocks(self.projection(self.body.embed(view)), view)[-1]
        chosen = at_positions(hidden, view["masked_positions"])
        return self.output(chosen, self.body.token_embedding, "both")


class Head(nn.Module):
    """The generator, and the layers that read the body's states (`discriminate`, `copy`)."""

    body: Transformer
    objective: ReplacedTokenDetection

    def setup(self):
        shape, objective = self.body.shape, self.objective
        # With biases even if the body's layers have none.
        dense = functools.partial(
            Dense, axes=("embed", None), initializer=shape.initializer, dtype=shape.dtype
        )
        if objective.trains_generator:
            small = generator_shape(shape, objective.generator_size)
            self.generator = Generator(small, body=self.body)
        if objective.discriminates:
            self.dense = dense(shape.width)
            self.to_logit = dense(1)
        if objective.task == "all_tokens":
            self.to_copy_logit = dense(1)

    def discriminate(self, hidden: Float[Array, "B M D"]) -> Float[Array, "B M"]:
        """Logits of "replaced", from two dense layers as in the original code."""
        hidden = ACTIVATIONS[self.body.shape.activation](self.dense(hidden))
        return self.to_logit(hidden)[..., 0].astype(jnp.float32)

    def copy(self, hidden: Float[Array, "B M D"]) -> Float[Array, "B M"]:
        """Logits of D: whether the input's token is the original."""
        return self.to_copy_logit(hidden)[..., 0].astype(jnp.float32)
