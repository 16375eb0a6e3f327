"""Task heads as objectives: fine-tuning and feature-based transfer run through the same loop as pretraining.

Every head reads a mix of the body's layers, optionally runs a new biLSTM over it, and classifies. `bertlab.transfer.kinds` has
one head per kind of task. `config.optimizer` (`thaw`, `frozen`) sets which parameters are trained; this is the only difference
between feature-based use and fine-tuning. A row can hold several texts as its documents 1 to n: the choices of a question, or
both orders of a pair (Radford et al. 2018, section 3.3).

Letters: B rows, L positions, W words, D width, C classes, n texts of a row.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import Dense, Dropout, View, inside_documents, mean_state, summary
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft, neighbours
from bertlab.objectives.base import Bound, Metrics, Objective, cross_entropy
from bertlab.transfer.task_models import CELLS, NORMS, PLACES, Crf, LayerMix, Mlp, RecurrentEncoder, WordFeatures

NO_LABEL = -1
POOLINGS = ("mean", "pooler", "first", "last", "max", "concat")
DERIVED = ("classes", "texts", "word_types", "vector_rows", "vector_width", "number")
"""Fields of heads that follow from the task, so they are no settings."""


class TaskModel(nn.Module):
    """The mix of layers, an optional biLSTM and the classifier, with the settings of `head`."""

    head: "TaskHead"

    def setup(self):
        h = self.head
        places = 2 if h.place == "input_output" else 1
        self.mixes = [LayerMix(h.layers, h.mix_penalty, h.mix_norm, h.mix_dropout) for _ in range(places)]
        self.encoder = RecurrentEncoder(h.bilstm, h.hidden, h.dropout, h.place, h.cell) if h.bilstm else None
        self.features = None
        if h.has_features:
            self.features = WordFeatures(
                h.word_types if h.word_width else 0,
                h.word_width,
                h.speller if h.spelling else "",
                dropout=h.dropout,
                pretrained=(h.vector_rows, h.vector_width) if h.word_vectors else None,
            )
        if h.crf:
            self.crf = Crf(h.classes)
        elif h.blocks:
            self.classifier = Mlp(h.classes, h.blocks, (h.dropout, 0.1), h.norm, h.block_layers)
        else:
            self.dense = Dense(h.classes, ("embed", "classes"))
        self.drop = Dropout(h.dropout)

    def states(
        self,
        layers: tuple[Float[Array, "B L D"], ...],
        documents: Int[Array, "B L"],
        deterministic: bool,
        view: View | None = None,
    ) -> tuple[Float[Array, "B L D"], Float[Array, ""]]:
        """Mixed layers (after the biLSTM, if the head has one) and the penalty on the mixes' weights.

        Args:
            layers: embeddings first; all of the same length.
            documents: 0 at empty positions.
            deterministic: no dropout.
            view: holds `spelling`, `word_ids` and `vector_ids` if the head reads them.
        """
        mixed, penalties = zip(*(mix(layers, documents > 0, deterministic) for mix in self.mixes))
        if self.encoder is None:
            return mixed[0], penalties[0]
        ids = (view.get(name) for name in ("spelling", "word_ids", "vector_ids"))
        words = self.features(*ids, deterministic) if self.features else None
        return self.encoder(words, mixed, documents, deterministic), sum(penalties)

    def scores(
        self, x: Float[Array, "... D"], deterministic: bool, counted: Bool[Array, "..."] | None = None
    ) -> Float[Array, "... C"]:
        """Logits in float32; `counted` says which vectors batch normalisation is about (a head with `blocks` must say)."""
        if self.head.blocks:
            return self.classifier(x, counted, deterministic)
        return self.dense(self.drop(x, deterministic)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class TaskHead(Objective):
    """The settings that all heads share.

    Attributes:
        layers: which layers of the body are mixed, and how: last, layer:K, sum_last_N, concat_last_N, concat_first_last,
            weighted_sum, weighted_sum_last_N, scalar_mix or hypercolumns (`LayerMix`).
        mix_penalty: λ of the penalty λ‖w‖² on the mix's weights w.
        mix_norm: normalizes each layer first.
        mix_dropout: dropout of the mix.
        bilstm: layers of a new biLSTM; 0: none.
        cell: the biLSTM's cells; "gru" makes it a biGRU (TagLM's tagger of names), in torch's form (`recurrent.gru`).
        hidden: width of the biLSTM per direction.
        place: where the mix joins the biLSTM: "input"; "after_first", joined to its first layer's output; "output";
            "input_output", both.
        dropout: before the classifier, and on the biLSTM's inputs.
        number: the task's number, if several are trained together.
    """

    reads: ClassVar[str] = "any"
    asks: ClassVar[str] = "other"

    layers: str = "last"
    mix_penalty: float = setting(0.0, least=0)
    mix_norm: bool = False
    mix_dropout: float = setting(0.0, least=0, most=1)
    bilstm: int = setting(0, least=0)
    cell: str = setting("lstm", choices=tuple(CELLS), only_with=("bilstm",))
    hidden: int = setting(128, least=1)
    place: str = setting("input", choices=PLACES)
    dropout: float = setting(0.1, least=0, most=1)
    number: int = 0

    # Settings that some heads have; these stand for "off".
    blocks: ClassVar[int] = 0
    block_layers: ClassVar[int] = 1
    norm: ClassVar[str] = "layer_norm"
    chunk: ClassVar[int] = 0
    crf: ClassVar[bool] = False
    spelling: ClassVar[bool] = False
    speller: ClassVar[str] = "convolution"
    word_width: ClassVar[int] = 0
    word_vectors: ClassVar[str] = ""

    # What follows from the task for some heads: C, and the sizes of the tables of word vectors.
    classes: ClassVar[int] = 1
    word_types: ClassVar[int] = 0
    vector_rows: ClassVar[int] = 0
    vector_width: ClassVar[int] = 0

    def __post_init__(self):
        """Refuses settings that make no sense."""
        super().__post_init__()
        if self.place not in ("input", "input_output") and not self.has_features:
            raise UserError(f"place={self.place!r} gives the biLSTM no input; set spelling=True (tagging), or place=input")
        least = {"input": 0, "after_first": 2}.get(self.place, 1)
        if self.bilstm < least:
            raise UserError(f"place={self.place!r} applies only with a biLSTM; set bilstm={least} or more, or place='input'")

    @property
    def has_features(self) -> bool:
        """Whether the biLSTM reads features of the words themselves."""
        return self.spelling or self.word_width > 0 or bool(self.word_vectors)

    def head(self, body: nn.Module) -> nn.Module:
        """The module beside the body, with C outputs."""
        return TaskModel(self)

    def asked(self, view: View) -> Bool[Array, "B"]:
        """Which rows belong to this task; rows that pad a batch belong to none."""
        filled = (view["documents"] > 0).any(axis=1)
        return filled if "task" not in view else filled & (view["task"] == self.number)

    def layers_of(self, model: Bound, view: View) -> tuple[Float[Array, "B L D"], ...]:
        """The states that the head reads, embeddings first."""
        return model.encoded.widest()[1]


@dataclasses.dataclass(frozen=True)
class TextHead(TaskHead):
    """One vector per text, chosen by `pooling`.

    Attributes:
        pooling: "mean", "max", "first", "last" of the states; "pooler", the state that has seen the whole text, through the
            body's dense layer and tanh (BERT's [CLS]); "concat", [h_last; max; mean] (Howard and Ruder 2018, section 3.3).
        blocks: width of a ReLU layer before the classifier (ULMFiT: 50); 0: none.
        block_layers: how many such layers, one after the other (fastai's `lin_ftrs` has any number; ULMFiT: 1).
        norm: before each of these layers and the classifier. "batch_norm", ULMFiT's: in training with the mean and variance of
            the batch's texts, in evaluation with running ones (`BatchNorm`).
        chunk: gradients flow back through so many positions of a recurrent model, while its states go on and the pooling reads
            all of them (BPTT for classification: Howard and Ruder 2018, section 3.3); 0: through all. The dropouts of a row are
            the same in all chunks; fastai draws them for each.
        chunk_varies: in each training step the length of each chunk is drawn about `chunk`, as AWD-LSTM's
            (`papers.VARIED_LENGTHS`).
        texts: n.
    """

    pooling: str = setting("mean", choices=POOLINGS)
    blocks: int = setting(0, least=0)
    block_layers: int = setting(1, least=1, only_with=("blocks",))
    norm: str = setting("layer_norm", choices=NORMS, only_with=("blocks",))
    chunk: int = setting(0, least=0)
    chunk_varies: bool = setting(False, only_with=("chunk",))
    texts: int = 1

    def __post_init__(self):
        """Refuses settings that the pooler would ignore."""
        super().__post_init__()
        if self.pooling == "pooler" and (self.layers != "last" or self.bilstm or self.chunk):
            raise UserError(
                "pooling='pooler' reads the body's last layer and nothing else; choose another pooling beside layers, bilstm"
                " or chunk"
            )

    def layers_of(self, model: Bound, view: View) -> tuple[Float[Array, "B L D"], ...]:
        """The states, in chunks if gradients must stop between them."""
        return (model.encode_chunks(view, self.chunk, self.chunk_varies) if self.chunk else model.encoded).widest()[1]

    def vectors(self, model: Bound, view: View) -> tuple[Float[Array, "B n D"], Float[Array, ""]]:
        """One vector for each of a row's texts, and the penalty on the mix."""
        if self.pooling == "pooler":
            return model.pool(self.texts), jnp.zeros((), jnp.float32)
        layers = self.layers_of(model, view)
        x, penalty = model.head.states(layers, view["documents"], model.deterministic, view)
        return pooled(x, view, self.pooling, self.texts, self.reads_backward(model)), penalty

    @staticmethod
    def reads_backward(model: Bound) -> bool:
        """Whether the body reads only right to left, and so reads a text's first token last."""
        return getattr(model.body_config, "direction", "") == "right-to-left"


def pooled(x: Float[Array, "B L D"], view: View, pooling: str, texts: int, backward: bool = False) -> Float[Array, "B n D"]:
    """One vector per text of a row, without padding.

    Args:
        x: states.
        view: `documents`, 1 to n.
        pooling: one of POOLINGS but "pooler".
        texts: n.
        backward: "last" means the token read last, which is the first one.
    """
    ends = {"first": "both", "last": "both" if backward else "forward"}
    if pooling in ends:
        return summary(x, ends[pooling], view, texts)
    if pooling == "mean":
        return mean_state(x, view, texts)
    inside = inside_documents(view, texts)
    lowest = jnp.finfo(x.dtype).min
    highest = jnp.stack([jnp.where(inside[..., i, None], x, lowest).max(axis=1) for i in range(texts)], axis=1)
    highest = jnp.where(inside.any(axis=1)[..., None], highest, 0)
    if pooling == "max":
        return highest
    return jnp.concatenate([summary(x, ends["last"], view, texts), highest, mean_state(x, view, texts)], axis=-1)


class LogitsHead(TextHead):
    """−log p of the correct class or choice, for rows with `label` [B] ≥ 0."""

    @abc.abstractmethod
    def logits(self, model: Bound, view: View) -> tuple[Float[Array, "B C"], Float[Array, ""]]:
        """Logits, and the penalty on the mix."""

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy."""
        logits, penalty = self.logits(model, view)
        known = (view["label"] >= 0) & self.asked(view)
        return penalised(cross_entropy(logits, jnp.maximum(view["label"], 0), known), penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`logits` [B, C]."""
        return {"logits": self.logits(model, view)[0]}


def penalised(metrics: Metrics, penalty: Float[Array, ""]) -> Metrics:
    """Adds a penalty on parameters to the mean loss."""
    total, weight = metrics["loss"]
    return {**metrics, "loss": (total + penalty * weight, weight)}


@dataclasses.dataclass(frozen=True)
class AuxiliaryLanguageModel(Objective):
    """Language modelling of the task's own rows beside its loss (Radford et al. 2018, equation 5).

    It averages each text's mean loss over texts, special tokens included, as in openai/finetune-transformer-lm; Hugging Face
    averages over tokens.

    Attributes:
        texts: the most texts of a row; each choice, and each order of a pair, is one text.
    """

    texts: int = 1

    reads: ClassVar[str] = "any"

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy of the next token (right to left: of the previous one), averaged over each text."""
        side, _ = model.encoded.widest()
        if side == "both":
            raise UserError(
                "a language model needs a body that reads in one direction; omit language_model, or set its weight to 0"
            )
        of_side = {"forward": LeftToRight, "backward": RightToLeft}[side]
        labels = neighbours(view, of_side.reads)
        keep = slice(None, -1) if side == "forward" else slice(1, None)
        labels = labels[:, keep]
        logits = model.predict_tokens(model.encoded.output(side)[:, keep], side)
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        of_text = view["documents"][:, keep, None] == 1 + jnp.arange(self.texts)
        asked = jnp.where(labels[..., None] >= 0, of_text, False).astype(jnp.float32)
        count = asked.sum(axis=1)
        a_text = jnp.einsum("bl,blt->bt", loss, asked) / jnp.maximum(count, 1)
        return {"loss": (a_text.sum(), (count > 0).sum().astype(jnp.float32))}


BESIDE: dict[str, type[Objective]] = {"language_model": AuxiliaryLanguageModel}
"""Objectives that can be trained beside tasks, by name; no task has such a name."""
