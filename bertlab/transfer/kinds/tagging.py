"""Tagging: a class for each word of a sentence."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bertlab.data.characters import character_ids
from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, cross_entropy
from bertlab.transfer import crf
from bertlab.transfer.batches import NO_LABEL, Row
from bertlab.transfer.examples import Cut, Example
from bertlab.transfer.heads import TaskHead, derived
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line


@dataclasses.dataclass(frozen=True)
class TaggingHead(TaskHead):
    """−Σ log p(tag | word) over the words with `labels` [B, W] ≥ 0, each read at `word_at` [B, W]:
    its first piece (Devlin et al. 2018, section 5.3), or its last if the model reads one way."""

    crf: bool = False  # one probability for all tags of a sentence (TagLM)
    spelling: bool = False  # features of the word's characters for the biLSTM
    word_width: int = 0  # width of a table of trained word vectors for the biLSTM; 0: none
    word_vectors: str = ""  # a static run whose vectors the biLSTM reads too; they stay as is
    classes: int = derived(2)
    word_types: int = derived(0)
    vector_shape: tuple[int, int] = derived((0, 0))

    @property
    def reads_words(self) -> bool:
        return self.spelling or self.word_width > 0 or bool(self.word_vectors)

    def scores(self, model: Model, view: View) -> tuple[Float[Array, "B W C"], Bool[Array, "B W"]]:
        """Scores of each word's tags, and which words there are."""
        at, (_, layers) = view["word_at"], model.encode().widest()
        positions = jnp.maximum(at, 0)[..., None]
        layers = tuple(jnp.take_along_axis(layer, positions, axis=1) for layer in layers)
        words = model.head.features(view) if self.reads_words else None
        x = model.head.states(layers, (at >= 0).astype(jnp.int32), words)
        return model.head.scores(x), at >= 0

    def loss(self, model: Model, view: View) -> Metrics:
        """Cross-entropy and accuracy per word; with a CRF, negative log-likelihood per word."""
        scores, there = self.scores(model, view)
        # Numbers from `classes` up are tags that train lacks.
        has_label = there & self.is_own(view)[:, None] & (view["labels"] < self.classes)
        labels = jnp.where(has_label, view["labels"], NO_LABEL)
        weights = labels >= 0
        if not self.crf:
            metrics = cross_entropy(scores, jnp.maximum(labels, 0), weights)
            return model.head.penalised(metrics)
        there = there & weights.any(axis=1)[:, None]
        likelihood = crf.log_likelihood(scores, there, labels, model.head.crf())
        loss = -likelihood.sum(), weights.sum().astype(jnp.float32)
        return model.head.penalised({"loss": loss})

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        """`tags` [B, W], -1 beyond the words, and `probabilities` [B, W, C] (a CRF's marginals)."""
        scores, there = self.scores(model, view)
        if self.crf:
            between = model.head.crf()
            shares = crf.marginals(scores, there, between)
            return {"tags": crf.best_tags(scores, there, between), "probabilities": shares}
        tags = jnp.where(there, jnp.argmax(scores, -1), NO_LABEL)
        return {"tags": tags, "probabilities": jax.nn.softmax(scores)}


class Tagging(Kind):
    """A class for each word."""

    name = "tagging"
    head = TaggingHead

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """The words as one text; the words around them in the row have no label."""
        before, after = (), ()
        if inputs.document_context:
            room, at = inputs.seq_len, example.document_at
            before = example.document[max(at - room, 0) : at]
            after = example.document[at + len(example.words) :][:room]
        words = inputs.words(example.words, before, after)
        size, total = len(words.read_at), len(example.words)
        own = example.words[:size]
        labels = [NO_LABEL] * size if example.label is None else example.label[:size]
        row = inputs.row([words.document])
        row |= {"word_at": np.int32(words.read_at), "labels": np.array(labels, np.int32)}
        if inputs.spelling:
            row["spelling"] = character_ids(own)
        for name, numbers in (("word_ids", inputs.word_ids), ("vector_ids", inputs.vector_ids)):
            if numbers:
                row[name] = np.array([numbers.get(word, 0) for word in own], np.int32)
        return row, {"words": (total - size, total)}

    def line(self, example, labels, output) -> Line:
        """Tags by name, "" for a word that did not fit, and probabilities to four digits."""
        tags = output["tags"][: len(example.words)]
        tags = tags[tags != NO_LABEL]
        shares = output["probabilities"][: len(tags)].astype(np.float64)
        gold = None if example.label is None else [labels[tag] for tag in example.label]
        predicted = [labels[tag] for tag in tags] + [""] * (len(example.words) - len(tags))
        return {"gold": gold, "predicted": predicted, "probabilities": np.round(shares, 4).tolist()}
