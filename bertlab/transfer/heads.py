"""Task heads as objectives: fine-tuning and feature-based transfer run through the same loop as pretraining.

Every head reads a mix of the body's layers, runs a fresh biLSTM over it if it is asked to, and classifies: one vector a text
(classification, regression, choice, words in context), every word (tagging) or every position (span). Which parameters are
trained is the optimiser's business (`config.optimizer.thaw`, `frozen`), so that feature-based and fine-tuned use of a model
differ in nothing else. A row may hold several texts as its documents 1 to n: the choices of a question, or both orders of
a pair (Radford et al. 2018, section 3.3).

Letters: B rows, L positions, W words, D width, C classes, n texts of a row.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import Dense, Dropout, View, inside_documents, mean_state, summary
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft, neighbours
from bertlab.objectives.base import Bound, Metrics, Objective, check_share, cross_entropy
from bertlab.transfer.task_models import PLACES, BiLstmEncoder, Crf, LayerMix, Mlp, WordFeatures, concat_pool

NO_LABEL = -1
POOLINGS = ("mean", "pooler", "first", "last", "max", "concat")


class TaskModel(nn.Module):
    """What stands on the body's layers: their mix, a biLSTM if there is one, and the classifier.

    Attributes:
        head: the objective, whose settings say what is there.
        classes: C, outputs of the classifier.
        word_types: size of the table of word vectors (tagging).
    """

    head: "TaskHead"
    classes: int
    word_types: int = 0

    def setup(self):
        h = self.head
        places = 2 if h.place == "input_output" else 1
        self.mixes = [LayerMix(h.layers, h.mix_penalty, h.mix_norm, h.mix_dropout) for _ in range(places)]
        self.encoder = BiLstmEncoder(h.bilstm, h.hidden, h.dropout, h.place) if h.bilstm else None
        spelling = getattr(h, "spelling", False)
        if spelling or self.word_types:
            self.features = WordFeatures(self.word_types, getattr(h, "word_width", 0), filters=30 if spelling else 0)
        if getattr(h, "crf", False):
            self.crf = Crf(self.classes)
        elif getattr(h, "blocks", 0):
            self.classifier = Mlp(self.classes, (h.blocks,), (h.dropout, 0.1))
        else:
            self.dense = Dense(self.classes, ("embed", None))
        self.drop = Dropout(h.dropout)

    def states(
        self,
        layers: tuple[Float[Array, "B L D"], ...],
        documents: Int[Array, "B L"],
        deterministic: bool,
        view: View | None = None,
    ) -> tuple[Float[Array, "B L D"], Float[Array, ""]]:
        """Mixed layers (after the biLSTM, where there is one) and the penalty on the mixes' weights.

        Args:
            layers: embeddings first; all of one length.
            documents: 0 where a position holds nothing.
            deterministic: no dropout.
            view: holds `characters` and `word_ids`, where the head has features of its own.
        """
        mixed, penalties = zip(*(mix(layers, documents > 0, deterministic) for mix in self.mixes))
        if self.encoder is None:
            return mixed[0], penalties[0]
        words = self.features(view.get("spelling"), view.get("word_ids")) if hasattr(self, "features") else None
        return self.encoder(words, mixed, documents, deterministic), sum(penalties)

    def scores(self, x: Float[Array, "... D"], deterministic: bool) -> Float[Array, "... C"]:
        """Logits in float32."""
        if getattr(self.head, "blocks", 0):
            return self.classifier(x, deterministic)
        return self.dense(self.drop(x, deterministic)).astype(jnp.float32)

    def __call__(self, *arguments):
        """Runs `states` (for initialisation, use the methods)."""
        return self.states(*arguments)


@dataclasses.dataclass(frozen=True)
class TaskHead(Objective):
    """What all heads can be set to.

    `layers`: which of the body's (`LayerMix`: last, layer:K, sum_last_N, concat_last_N, weighted_sum, scalar_mix,
    hypercolumns); `mix_penalty` ELMo's λ, `mix_norm` its layer norm, `mix_dropout`. `bilstm`: layers of a fresh biLSTM on
    them (Devlin et al. 2018, table 5 and section 5.3), `hidden` wide each way, to which the mix goes at `place`. `dropout`:
    before the classifier, and of the biLSTM's inputs. `number`: of the task, where several are trained together.
    """

    reads: ClassVar[str] = "any"
    asks: ClassVar[str] = "other"

    layers: str = "last"
    mix_penalty: float = 0.0
    mix_norm: bool = False
    mix_dropout: float = 0.0
    bilstm: int = 0
    hidden: int = 128
    place: str = "input"
    dropout: float = 0.1
    number: int = 0

    def __post_init__(self):
        """Refuses settings that mean nothing."""
        check_share("dropout", self.dropout)
        check_share("mix_dropout", self.mix_dropout)
        for name, least in (("mix_penalty", 0), ("bilstm", 0), ("hidden", 1), ("blocks", 0), ("chunk", 0), ("word_width", 0)):
            if not getattr(self, name, least) >= least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.place not in PLACES:
            raise UserError(f"place={self.place!r} is not known; choose {', '.join(PLACES)}")
        if self.place not in ("input", "input_output") and not self._has_features:
            raise UserError(
                f"place={self.place!r} leaves the biLSTM without an input; set spelling=True (tagging), or place=input"
            )
        if self.place != "input" and not self.bilstm:
            raise UserError(f"place={self.place!r} says where states join a biLSTM; set bilstm=2, or place='input'")

    @property
    def _has_features(self) -> bool:
        return getattr(self, "spelling", False) or getattr(self, "word_width", 0) > 0

    def asked(self, view: View) -> Bool[Array, "B"]:
        """Which rows are this task's; those that only fill a batch are none's."""
        filled = (view["documents"] > 0).any(axis=1)
        return filled if "task" not in view else filled & (view["task"] == self.number)

    def layers_of(self, model: Bound, view: View) -> tuple[Float[Array, "B L D"], ...]:
        """The states that the head reads, embeddings first."""
        return model.encoded.widest()[1]


@dataclasses.dataclass(frozen=True)
class TextHead(TaskHead):
    """One vector a text. `pooling` says which.

    "mean", "max", "first", "last" of the states; "pooler", the state that has seen the whole text through the body's dense
    layer and tanh (BERT's [CLS]; a model that reads left to right has its last token there); "concat", [h_last; max; mean]
    (Howard and Ruder 2018, section 3.3). `blocks`: width of a ReLU layer before the classifier (ULMFiT: 50). `chunk`:
    positions through which a gradient flows back in a recurrent model (BPTT for classification, the same section); 0: all.
    `texts`: n.
    """

    pooling: str = "mean"
    blocks: int = 0
    chunk: int = 0
    texts: int = 1

    def __post_init__(self):
        """Refuses an unknown pooling, and a pooler beside a mix of layers that it would not see."""
        super().__post_init__()
        if self.pooling not in POOLINGS:
            raise UserError(f"pooling={self.pooling!r} is not known; choose {', '.join(POOLINGS)}")
        if self.pooling == "pooler" and (self.layers != "last" or self.bilstm or self.chunk):
            raise UserError(
                "pooling='pooler' reads the body's last layer and nothing else; choose another pooling beside layers, bilstm"
                " or chunk"
            )

    def layers_of(self, model: Bound, view: View) -> tuple[Float[Array, "B L D"], ...]:
        """The states, in chunks where gradients are to stop between them."""
        return (model.encode_chunks(view, self.chunk) if self.chunk else model.encoded).widest()[1]

    def vectors(self, model: Bound, view: View) -> tuple[Float[Array, "B n D"], Float[Array, ""]]:
        """One vector for each of a row's texts, and the penalty on the mix."""
        if self.pooling == "pooler":
            return model.pool(self.texts), jnp.zeros((), jnp.float32)
        layers = self.layers_of(model, view)
        x, penalty = model.head.states(layers, view["documents"], model.deterministic, view)
        return pooled(x, view, self.pooling, self.texts, self.reads_backward(model)), penalty

    @staticmethod
    def reads_backward(model: Bound) -> bool:
        """Whether the body reads right to left alone: what it read last is then a text's first token."""
        return getattr(model.body_config, "direction", "") == "right-to-left"


def pooled(x: Float[Array, "B L D"], view: View, pooling: str, texts: int, backward: bool = False) -> Float[Array, "B n D"]:
    """One vector a text of a row, padding left out.

    Args:
        x: states.
        view: `documents`, 1 to n.
        pooling: one of POOLINGS but "pooler".
        texts: n.
        backward: "last" is what was read last: the first token.
    """
    ends = {"first": "both", "last": "both" if backward else "forward"}
    if pooling in ends:
        return summary(x, ends[pooling], view, texts)
    if pooling == "mean":
        return mean_state(x, view, texts)
    inside = inside_documents(view, texts)
    first = jnp.argmax(inside, axis=1)
    joined = [concat_pool(x, inside[..., i], first[:, i] if backward else None) for i in range(texts)]
    joined = jnp.stack(joined, axis=1)
    return joined if pooling == "concat" else jnp.split(joined, 3, axis=-1)[1]


@dataclasses.dataclass(frozen=True)
class Classification(TextHead):
    """−log p(class | text or pair), for rows with `label` [B] ≥ 0; vectors of a row's texts are added (GPT's two orders)."""

    classes: int = 2

    def head(self, body: nn.Module) -> nn.Module:
        """The model on the layers."""
        return TaskModel(self, self.classes)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy."""
        logits, penalty = self._logits(model, view)
        known = (view["label"] >= 0) & self.asked(view)
        return penalised(cross_entropy(logits, jnp.maximum(view["label"], 0), known), penalty)

    def _logits(self, model, view):
        vectors, penalty = self.vectors(model, view)
        return model.head.scores(vectors.sum(axis=1), model.deterministic), penalty

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`logits` [B, C]."""
        return {"logits": self._logits(model, view)[0]}


@dataclasses.dataclass(frozen=True)
class Regression(TextHead):
    """(value − target)², for rows with a finite `target` [B]."""

    def head(self, body: nn.Module) -> nn.Module:
        """The model on the layers."""
        return TaskModel(self, 1)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Squared error."""
        value, penalty = self._value(model, view)
        known = jnp.isfinite(view["target"]) & self.asked(view)
        error = jnp.where(known, value - jnp.where(known, view["target"], 0), 0)
        return penalised({"loss": ((error**2).sum(), known.sum().astype(jnp.float32))}, penalty)

    def _value(self, model, view):
        vectors, penalty = self.vectors(model, view)
        return model.head.scores(vectors.sum(axis=1), model.deterministic)[:, 0], penalty

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`value` [B]."""
        return {"value": self._value(model, view)[0]}


@dataclasses.dataclass(frozen=True)
class Choice(TextHead):
    """−log p(right choice), a softmax over one score for each of a row's texts (SWAG: Devlin et al. 2018, section 4.4)."""

    texts: int = 4

    def head(self, body: nn.Module) -> nn.Module:
        """The model on the layers."""
        return TaskModel(self, 1)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy."""
        logits, penalty = self._logits(model, view)
        known = (view["label"] >= 0) & self.asked(view)
        return penalised(cross_entropy(logits, jnp.maximum(view["label"], 0), known), penalty)

    def _logits(self, model, view):
        vectors, penalty = self.vectors(model, view)
        there = inside_documents(view, self.texts).any(axis=1)
        scores = model.head.scores(vectors, model.deterministic)[..., 0]
        return jnp.where(there, scores, jnp.finfo(jnp.float32).min), penalty

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`logits` [B, n]."""
        return {"logits": self._logits(model, view)[0]}


@dataclasses.dataclass(frozen=True)
class WordPair(Classification):
    """Classes of [text vector; first word's state; second's]: words in context; `word_at` [B, 2] says where they are."""

    def _logits(self, model, view):
        layers = self.layers_of(model, view)
        x, penalty = model.head.states(layers, view["documents"], model.deterministic, view)
        words = jnp.take_along_axis(x, jnp.maximum(view["word_at"], 0)[..., None], axis=1).reshape(len(x), -1)
        if self.pooling == "pooler":
            text = model.pool(1)
        else:
            text = pooled(x, view, self.pooling, 1, self.reads_backward(model))
        return model.head.scores(jnp.concatenate([text[:, 0], words], -1), model.deterministic), penalty


@dataclasses.dataclass(frozen=True)
class Tagging(TaskHead):
    """Σ −log p(tag | word) over the words with `labels` [B, W] ≥ 0; a word's state is its labelled piece's (`word_at` [B, W]).

    That piece is the first, as in Devlin et al. 2018, section 5.3, or, in a model that reads left to right, the last, before
    which the word has not been seen. `crf`: one probability for all tags of a sentence (TagLM). `spelling`: a convolution over
    the word's characters beside the states, `word_width`: a table of trained word vectors, for the biLSTM.
    """

    crf: bool = False
    spelling: bool = False
    word_width: int = 0
    classes: int = 2
    word_types: int = 0

    def __post_init__(self):
        """Refuses features of words without a biLSTM to read them."""
        super().__post_init__()
        if self._has_features and not self.bilstm:
            raise UserError("spelling and word_width are the input of a biLSTM; set bilstm=2")

    def head(self, body: nn.Module) -> nn.Module:
        """The model on the layers."""
        return TaskModel(self, self.classes, self.word_types if self.word_width else 0)

    def _words(self, model, view):
        at = view["word_at"]
        layers = tuple(
            jnp.take_along_axis(layer, jnp.maximum(at, 0)[..., None], axis=1) for layer in self.layers_of(model, view)
        )
        return *model.head.states(layers, (at >= 0).astype(jnp.int32), model.deterministic, view), at >= 0

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy a word; with a CRF its likelihood, per word, and no accuracy."""
        x, penalty, there = self._words(model, view)
        labels = jnp.where(there & self.asked(view)[:, None], view["labels"], NO_LABEL)
        known = labels >= 0
        if not self.crf:
            logits = model.head.scores(x, model.deterministic)
            return penalised(cross_entropy(logits, jnp.maximum(labels, 0), known), penalty)
        x = model.head.drop(x, model.deterministic)
        likelihood = model.head.crf(x, there & known.any(axis=1)[:, None], labels)
        return penalised({"loss": (-likelihood.sum(), known.sum().astype(jnp.float32))}, penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`tags` [B, W], −1 beyond the words."""
        x, _, there = self._words(model, view)
        if self.crf:
            return {"tags": model.head.crf.decode(x, there)}
        tags = jnp.argmax(model.head.scores(x, model.deterministic), -1)
        return {"tags": jnp.where(there, tags, NO_LABEL)}


@dataclasses.dataclass(frozen=True)
class Span(TaskHead):
    """(−log p(start) − log p(end)) / 2 over the positions of a window (Devlin et al. 2018, section 4.2).

    `start`, `end` [B]: 0 ([CLS]) where the window does not hold the answer. run_squad.py's softmax goes over padding too, whose
    states depend on the text there and mean nothing; here padding sees no text, and has no part in it.
    """

    dropout: float = 0.0

    def head(self, body: nn.Module) -> nn.Module:
        """The model on the layers."""
        return TaskModel(self, 2)

    def _logits(self, model, view):
        x, penalty = model.head.states(self.layers_of(model, view), view["documents"], model.deterministic, view)
        logits = model.head.scores(x, model.deterministic)
        logits = jnp.where((view["documents"] > 0)[..., None], logits, jnp.finfo(jnp.float32).min)
        return logits[..., 0], logits[..., 1], penalty

    def loss(self, model: Bound, view: View) -> Metrics:
        """Mean of the two cross-entropies; accuracy: both right."""
        start, end, penalty = self._logits(model, view)
        known = (view["start"] >= 0) & self.asked(view)
        first = cross_entropy(start, jnp.maximum(view["start"], 0), known)
        last = cross_entropy(end, jnp.maximum(view["end"], 0), known)
        both = (jnp.argmax(start, -1) == view["start"]) & (jnp.argmax(end, -1) == view["end"]) & known
        loss = ((first["loss"][0] + last["loss"][0]) / 2, first["loss"][1])
        return penalised({"loss": loss, "accuracy": (both.sum().astype(jnp.float32), loss[1])}, penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`start` and `end` logits, [B, L] each."""
        start, end, _ = self._logits(model, view)
        return {"start": start, "end": end}


def penalised(metrics: Metrics, penalty: Float[Array, ""]) -> Metrics:
    """Metrics whose mean loss is higher by a penalty on parameters."""
    total, weight = metrics["loss"]
    return {**metrics, "loss": (total + penalty * weight, weight)}


@dataclasses.dataclass(frozen=True)
class AuxiliaryLanguageModel(Objective):
    """Language modelling of the task's own rows beside its loss (Radford et al. 2018, equation 5).

    The mean over texts of each text's mean loss, special tokens included, as in openai/finetune-transformer-lm, and not over
    tokens, as in Hugging Face's.

    Attributes:
        texts: in a row, at most: choices, and both orders of a pair, are texts of their own.
    """

    texts: int = 1

    reads: ClassVar[str] = "any"

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy of the next token (right to left: of the one before), a mean a text."""
        side, _ = model.encoded.widest()
        if side == "both":
            raise UserError(
                "a language model needs a body that reads one way; leave language_model out, or set its weight to 0"
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


OF_KIND = {
    "classification": Classification,
    "regression": Regression,
    "tagging": Tagging,
    "choice": Choice,
    "span": Span,
    "word_pair": WordPair,
}
"""A task's kind to its head."""
