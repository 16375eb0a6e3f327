"""Tagging: a class for each word of a sentence."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bertlab.data.characters import PADDING, WORD_LENGTH, character_ids
from bertlab.data.rows import Row
from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, cross_entropy
from bertlab.transfer.cut import Lost
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import NO_LABEL, TaskHead, penalised
from bertlab.transfer.inputs import Inputs, Layout
from bertlab.transfer.kinds.base import Kind, Line, filled, of_each
from bertlab.transfer.task_models import SPELLERS


@dataclasses.dataclass(frozen=True)
class TaggingHead(TaskHead):
    """Σ −log p(tag | word) over the words with `labels` [B, W] ≥ 0; a word is read at one of its pieces (`word_at` [B, W]).

    This is the first piece, as in Devlin et al. 2018, section 5.3, or, in a model that reads left to right, the last: only
    there has the model seen the whole word.

    Attributes:
        crf: one probability for all tags of a sentence (TagLM).
        spelling: features of the word's characters for the biLSTM.
        speller: what reads the characters: "convolution"; "gru" or "lstm", cells in both directions, with the head's dropout on
            their inputs (TagLM's tagger of names has GRUs).
        word_width: width of a table of trained word vectors for the biLSTM; 0: none.
        word_vectors: a static run, trained or imported (`bertlab import --from=glove`), whose vectors of the words the biLSTM
            reads too (ELMo, TagLM; `bertlab.transfer.word_vectors`); empty: none.
        word_vectors_trained: train them with the head; otherwise they stay as they are.
        classes: C.
        word_types: size of the table of trained word vectors.
        vector_rows, vector_width: size of the table of pretrained ones.
    """

    crf: bool = False
    spelling: bool = False
    speller: str = setting("convolution", choices=SPELLERS, only_with=("spelling",))
    word_width: int = setting(0, least=0)
    word_vectors: str = ""
    word_vectors_trained: bool = setting(False, only_with=("word_vectors",))
    classes: int = 2
    word_types: int = 0
    vector_rows: int = 0
    vector_width: int = 0

    def __post_init__(self):
        """Refuses word features without a biLSTM to read them."""
        super().__post_init__()
        if self.has_features and not self.bilstm:
            raise UserError("spelling, word_width and word_vectors are inputs of a biLSTM; set bilstm=2")

    def _words(self, model, view):
        at = view["word_at"]
        layers = tuple(
            jnp.take_along_axis(layer, jnp.maximum(at, 0)[..., None], axis=1) for layer in self.layers_of(model, view)
        )
        return *model.head.states(layers, (at >= 0).astype(jnp.int32), model.deterministic, view), at >= 0

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy per word; with a CRF the negative log-likelihood per word, without accuracy."""
        x, penalty, there = self._words(model, view)
        can_be_known = there & self.asked(view)[:, None] & (view["labels"] < self.classes)  # others are tags that train lacks
        labels = jnp.where(can_be_known, view["labels"], NO_LABEL)
        known = labels >= 0
        if not self.crf:
            logits = model.head.scores(x, model.deterministic)
            return penalised(cross_entropy(logits, jnp.maximum(labels, 0), known), penalty)
        x = model.head.drop(x, model.deterministic)
        likelihood = model.head.crf(x, there & known.any(axis=1)[:, None], labels)
        return penalised({"loss": (-likelihood.sum(), known.sum().astype(jnp.float32))}, penalty)

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`tags` [B, W], −1 beyond the words, and `probabilities` of each word's tags [B, W, C].

        With a CRF the tags are the most likely sequence, and the probabilities are those of each word by itself, summed over
        the tags of the other words.
        """
        x, _, there = self._words(model, view)
        if self.crf:
            return {"tags": model.head.crf.decode(x, there), "probabilities": model.head.crf.marginals(x, there)}
        logits = model.head.scores(x, model.deterministic)
        tags = jnp.where(there, jnp.argmax(logits, -1), NO_LABEL)
        return {"tags": tags, "probabilities": jax.nn.softmax(logits)}


class Tagging(Kind):
    """A class for each word."""

    name = "tagging"
    head = TaggingHead
    metrics = ("accuracy", "f1", "macro_f1", "entity_f1", "entity_precision", "entity_recall")
    default_metrics = ("accuracy",)
    unknown: ClassVar = {"labels": NO_LABEL, "word_at": NO_LABEL}
    has_classes = True
    of_words = True
    is_plain = True

    @classmethod
    def read_label(cls, field: str, where: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """One tag per word, separated by spaces."""
        tags = tuple(field.split())
        if not words or len(tags) != len(words):
            raise UserError(f"{where}: {len(words)} words but {len(tags)} tags; give each word one tag")
        return tags

    def row(self, inputs: Inputs, number: int, example: Example, texts: int) -> tuple[Row, Lost]:
        """The words as one text; what is around them in the row has no label and is not predicted."""
        layout = inputs.layout
        text = inputs.words(example)
        row = text.padded(layout.seq_len, inputs.tokenizer.pad_id, (number, 0))
        places = text.first if layout.first_piece else text.last
        lost = {"words": (len(example.words) - len(places), len(example.words))}
        return row | word_fields(example, places, layout), lost

    def stored_fields(self, example: Example, size: int, layout: Layout) -> Row:
        """The fields of the words; each word has one stored state."""
        return word_fields(example, np.arange(size), layout)

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """Tags by name, with the probabilities of all tags in four digits.

        A word that did not fit into the row has "", which is wrong and no part of an entity, and no probabilities.
        """
        lines = []
        for example, tags, shares in zip(examples, outputs["tags"], outputs["probabilities"], strict=True):
            tags = tags[: len(example.words)]
            tags = tags[tags != NO_LABEL]
            shown = [labels[tag] for tag in tags] + [""] * (len(example.words) - len(tags))
            gold = None if example.label is None else [labels[tag] for tag in example.label]
            rounded = np.round(shares[: len(tags)].astype(np.float64), 4).tolist()
            lines.append({"id": example.id, "gold": gold, "predicted": shown, "probabilities": rounded})
        return lines

    def average(self, lines, labels) -> Line:
        """For each word the tag with the highest mean probability over the runs whose rows hold the word.

        A run with a CRF takes part with each word's own probabilities. The average is no sequence of a CRF, so a pair of its
        tags may be one that no run would give.
        """
        runs, predicted = of_each(lines, "probabilities"), list(lines[0]["predicted"])
        for i in range(len(predicted)):
            if shares := [of_run[i] for of_run in runs if i < len(of_run)]:
                predicted[i] = labels[np.argmax(np.mean(shares, axis=0))]
        return {**lines[0], "predicted": predicted}

    def most_frequent(self, train, labels, lines) -> list[Line]:
        """The most frequent tag of `train` for every word."""
        counts = Counter(itertools.chain.from_iterable(example.label for example in train))
        answer = labels[counts.most_common(1)[0][0]]
        return [{"id": line["id"], "gold": line["gold"], "predicted": [answer] * len(line["predicted"])} for line in lines]


def word_fields(example: Example, places: Int[np.ndarray, "n"], layout: Layout) -> Row:
    """The fields [W] of a row whose first n words are at the given positions.

    These are `word_at` and `labels`, −1 beyond the words, and `spelling` [W, 50], `word_ids` and `vector_ids` if the layout has
    them.
    """
    length, words = layout.seq_len, example.words[: len(places)]
    labels = np.full(len(words), NO_LABEL) if example.label is None else np.asarray(example.label, np.int32)[: len(words)]
    row = {"word_at": filled(places, length), "labels": filled(labels, length)}
    if layout.spelling:
        row["spelling"] = np.full((length, WORD_LENGTH), PADDING, np.int32)
        row["spelling"][: len(words)] = character_ids(words)
    if layout.words is not None:
        row["word_ids"] = np.zeros(length, np.int32)
        row["word_ids"][: len(words)] = [layout.words.get(word, 0) for word in words]
    if layout.vectors is not None:
        row["vector_ids"] = np.zeros(length, np.int32)
        row["vector_ids"][: len(words)] = [layout.vectors.rows[word] for word in words]
    return row
