"""Multiple choice: the right one of several continuations."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertlab.models.base import View, inside_documents
from bertlab.objectives.base import Model
from bertlab.transfer.batches import Row
from bertlab.transfer.cut import Cut
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import TextHead, derived
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import OneClass

# Devlin et al. 2018, section 4.4
SETTINGS = {"data.batch_size": 16, "optimizer.learning_rate": 2e-5}


@dataclasses.dataclass(frozen=True)
class ChoiceHead(TextHead):
    """−log p(right choice): a softmax of a score a text (Devlin et al. 2018, section 4.4)."""

    texts: int = derived(4)

    def logits(self, model: Model, view: View) -> tuple[Float[Array, "B n"], Float[Array, ""]]:
        """One for each text; the lowest float where a row lacks it."""
        vectors, penalty = self.vectors(model, view)
        there = inside_documents(view, self.texts).any(axis=1)
        scores = model.head.scores(vectors, there & self.is_own(view)[:, None])[..., 0]
        return jnp.where(there, scores, jnp.finfo(jnp.float32).min), penalty


class Choice(OneClass):
    """The right one of several continuations of a text."""

    name = "choice"
    head = ChoiceHead
    recipes: ClassVar = {"bert": SETTINGS, "bert_paper": SETTINGS}

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """The text with each choice, as the row's documents."""
        documents = [inputs.document((*example.texts, choice)) for choice in example.choices]
        lost, total = map(sum, zip(*(document.cut for document in documents)))
        return inputs.row(documents) | self.label_fields(example), {"pieces": (lost, total)}
