"""Task heads as objectives. A head reads a mix of the body's layers, perhaps through a new biLSTM,
and classifies. A row can hold several texts as its documents 1 to n.
Letters: B rows, L positions, W words, D width, C classes, n texts per row."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View, inside_documents, mean_state, summary
from bertlab.models.flops import flops_per_prediction
from bertlab.models.layers import Dense, Dropout, Norm
from bertlab.objectives import flops
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import Metrics, Model, Objective, cross_entropy, restrict
from bertlab.transfer.crf import Transitions
from bertlab.transfer.features import PLACES, LayerMix, RecurrentEncoder, WordFeatures

POOLINGS = ("mean", "pooler", "first", "last", "max", "concat")
LANGUAGE_MODEL = "language_model"  # name of `AuxiliaryLanguageModel` among the objectives


def derived(default: Any) -> Any:
    """A field of a head that follows from its task, so it is not a setting."""
    return dataclasses.field(default=default, metadata={"derived": True})


class TaskModel(nn.Module):
    """The modules that a head's settings ask for; `backward`: the body reads only right to left."""

    head: "TaskHead"
    backward: bool = False

    def setup(self):
        h = self.head
        mixes = 2 if h.place == "input_output" else 1
        self.mixes = [LayerMix(h.layers, h.mix_dropout) for _ in range(mixes)]
        if h.bilstm:
            self.encoder = RecurrentEncoder(h.bilstm, h.hidden, h.dropout, h.place)
        if h.reads_words:
            self.features = WordFeatures(h.spelling, h.word_types, h.word_width, h.vector_shape)
        if h.blocks:
            self.classifier = Blocks(h.classes, h.blocks, (h.dropout, 0.1))
        else:
            self.dense = Dense(h.classes, ("embed", "classes"))
            self.dropout = Dropout(h.dropout)
        if h.crf:
            self.crf = Transitions(h.classes)

    def states(
        self, layers: tuple[Float[Array, "B L D"], ...], documents: Int[Array, "B L"], words=None
    ) -> Float[Array, "B L D"]:
        """Mixed layers, or a biLSTM's states over them and features of `words` [B, L, E]."""
        mixed = [mix(layers) for mix in self.mixes]
        return self.encoder(words, mixed, documents) if self.head.bilstm else mixed[0]

    def penalised(self, metrics: Metrics) -> Metrics:
        """Adds λ‖w‖² of the mixes, if they have weights w, to the mean loss."""
        found = [nn.meta.unbox(mix.get_variable("params", "weights", 0.0)) for mix in self.mixes]
        penalty = sum(self.head.mix_penalty * jnp.sum(weights**2) for weights in found)
        total, weight = metrics["loss"]
        return {**metrics, "loss": (total + penalty * weight, weight)}

    def scores(self, x: Float[Array, "... D"]) -> Float[Array, "... C"]:
        """Logits in float32."""
        if self.head.blocks:
            return self.classifier(x)
        return self.dense(self.dropout(x)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class TaskHead(Objective):
    """The settings of all heads; their `outputs` are arrays [B, ...] by name for `Kind.predict`."""

    reads: ClassVar[str] = "any"
    classes: ClassVar[int] = 1
    blocks: ClassVar[int] = 0
    crf: ClassVar[bool] = False
    reads_words: ClassVar[bool] = False  # the biLSTM reads features of the words themselves

    layers: str = "last"  # the layers that are read, and how (`LayerMix`)
    # λ of λ‖w‖²: 1 keeps the mix's weights w near their mean, 0.001 lets them differ.
    mix_penalty: float = 0.0
    mix_dropout: float = 0.0
    bilstm: int = 0  # layers of a new biLSTM; 0: none
    hidden: int = 128  # its width in each direction
    place: str = "input"  # where the mix joins it (`RecurrentEncoder`)
    dropout: float = 0.1  # before the classifier, and on the biLSTM's inputs
    number: int = derived(0)  # the task's among those that are trained together

    def __post_init__(self):
        restrict(self, place=" ".join(PLACES))
        if (self.place != "input" or self.reads_words) and not self.bilstm:
            raise UserError("config.head.place and word features are for a biLSTM (head.bilstm=2)")
        if self.place in ("output", "after_first") and not self.reads_words:
            raise UserError(f"config.head.place={self.place} needs head.spelling or word_width")

    def head(self, body: nn.Module) -> nn.Module:
        return TaskModel(self, backward=body.shape.direction == "right-to-left")

    def is_own(self, view: View) -> Bool[Array, "B"]:
        """Which rows belong to this task; padding rows belong to none."""
        is_filled = (view["documents"] > 0).any(axis=1)
        return is_filled & (view.get("task", self.number) == self.number)


@dataclasses.dataclass(frozen=True)
class TextHead(TaskHead):
    """−log p of the right class, for rows with `label` [B] ≥ 0, from one vector per text."""

    # "mean", "max", "first", "last" of the states; "pooler", the state that has seen the whole text
    # through the body's dense layer and tanh (BERT's [CLS]); "concat", [h_last; max; mean] (Howard
    # and Ruder 2018, section 3.3)
    pooling: str = "mean"
    blocks: int = 0  # width of a ReLU layer before the classifier (ULMFiT: 50); 0: none
    # Gradients flow back through this many positions of a recurrent body, whose states continue and
    # are all pooled (BPTT for classification: ibid.); 0: all.
    chunk: int = 0
    texts: int = derived(1)  # n

    def __post_init__(self):
        super().__post_init__()
        restrict(self, pooling=" ".join(POOLINGS))
        if self.pooling == "pooler" and (self.layers != "last" or self.bilstm or self.chunk):
            raise UserError("config.head.pooling='pooler' only reads the last layer, in one chunk")

    def encoded(self, model: Model, view: View) -> tuple[str, tuple[Float[Array, "B L D"], ...]]:
        """The side that has seen the most, and its layers, embeddings first."""
        if not self.chunk:
            return model.encode().widest()
        tokens = view["tokens"]
        starts = jnp.arange(tokens.shape[1]) % self.chunk == 0  # in the order of reading
        starts = starts[::-1] if model.head.backward else starts
        return model.encode({**view, "cut": jnp.broadcast_to(starts, tokens.shape)}).widest()

    def vectors(self, model: Model, view: View) -> Float[Array, "B n D"]:
        """A vector for each text of a row."""
        if self.pooling == "pooler":
            return model.pool(self.texts)
        side, layers = self.encoded(model, view)
        x = model.head.states(layers, view["documents"])
        return pooled(x, view, self.pooling, self.texts, side == "backward")

    def logits(self, model: Model, view: View) -> Float[Array, "B C"]:
        """Of the sum of a row's texts (GPT's two orders)."""
        return model.head.scores(self.vectors(model, view).sum(axis=1))

    def loss(self, model: Model, view: View) -> Metrics:
        label, weights = view["label"], (view["label"] >= 0) & self.is_own(view)
        metrics = cross_entropy(self.logits(model, view), jnp.maximum(label, 0), weights)
        return model.head.penalised(metrics)

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        return {"logits": self.logits(model, view)}


def pooled(
    x: Float[Array, "B L D"], view: View, pooling: str, texts: int, backward: bool = False
) -> Float[Array, "B n D"]:
    """One vector for each text of a row, without padding; "last" is the token read last."""
    last = summary(x, "both" if backward else "forward", view, texts)
    if pooling == "last":
        return last
    if pooling == "first":
        return summary(x, "both", view, texts)
    mean = mean_state(x, view, texts)
    if pooling == "mean":
        return mean
    inside = inside_documents(view, texts)
    lowest = jnp.finfo(x.dtype).min
    # One text at a time: together they would take n times the memory of the states.
    each = [jnp.where(inside[..., i, None], x, lowest).max(axis=1) for i in range(texts)]
    highest = jnp.where(inside.any(axis=1)[..., None], jnp.stack(each, axis=1), 0)
    return {"max": highest, "concat": jnp.concatenate([last, highest, mean], axis=-1)}[pooling]


class Blocks(nn.Module):
    """ULMFiT's classifier (Howard and Ruder 2018, section 3.3): norm, dropout, dense, ReLU, again;
    with layer norm in place of batch normalisation."""

    classes: int
    hidden: int  # width between the two blocks
    dropouts: tuple[float, float]  # of the two (the released script: 0.4 and 0.1)

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... C"]:
        """Logits in float32."""
        x = x.astype(jnp.float32)
        for number, (width, axis) in enumerate(((self.hidden, None), (self.classes, "classes"))):
            x = Norm(1e-5, name=f"norm_{number}")(x)
            x = Dropout(self.dropouts[number])(x)
            init = nn.initializers.lecun_normal()
            x = Dense(width, ("embed", axis), init, name=f"dense_{number}")(x)
            x = x if number else jax.nn.relu(x)
        return x


@dataclasses.dataclass(frozen=True)
class AuxiliaryLanguageModel(Objective):
    """Language modelling of a task's own rows (Radford et al. 2018, equation 5). Each text's mean
    loss counts the same, special tokens included, as in openai/finetune-transformer-lm."""

    reads: ClassVar[str] = "any"

    texts: int = derived(1)

    def loss(self, model: Model, view: View) -> Metrics:
        """Cross-entropy of the next token (right to left: of the one before)."""
        encoded = model.encode()
        side, _ = encoded.widest()
        keep = slice(None, -1) if side == "forward" else slice(1, None)
        labels = neighbours(view, side)[:, keep]
        log_shares = jax.nn.log_softmax(model.predict_tokens(encoded.output(side)[:, keep], side))
        loss = -jnp.take_along_axis(log_shares, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
        documents = view["documents"][:, keep, None] == 1 + jnp.arange(self.texts)
        weights = (documents & (labels >= 0)[..., None]).astype(jnp.float32)
        count = weights.sum(axis=1)
        means = jnp.einsum("bl,bln->bn", loss, weights) / jnp.maximum(count, 1)
        return {"loss": (means.sum(), (count > 0).sum().astype(jnp.float32))}


flops.objective_flops.register(TaskHead, lambda *_: 0.0)


@flops.objective_flops.register
def _(objective: AuxiliaryLanguageModel, shape, rows, length, predictions):
    return rows * length * flops_per_prediction(shape)
