"""Multiple choice: find the correct one of several continuations."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertlab.data.rows import Row
from bertlab.errors import UserError
from bertlab.models.base import View, inside_documents
from bertlab.objectives.base import Bound
from bertlab.transfer.cut import Lost
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import LogitsHead
from bertlab.transfer.inputs import Inputs, Layout
from bertlab.transfer.kinds.base import OneClass


@dataclasses.dataclass(frozen=True)
class ChoiceHead(LogitsHead):
    """−log p(right choice), a softmax over one score for each of a row's texts (SWAG: Devlin et al. 2018, section 4.4)."""

    texts: int = 4

    def logits(self, model: Bound, view: View) -> tuple[Float[Array, "B n"], Float[Array, ""]]:
        """One per text; the lowest float if a row lacks that text."""
        vectors, penalty = self.vectors(model, view)
        there = inside_documents(view, self.texts).any(axis=1)
        scores = model.head.scores(vectors, model.deterministic, there & self.asked(view)[:, None])[..., 0]
        return jnp.where(there, scores, jnp.finfo(jnp.float32).min), penalty


class Choice(OneClass):
    """Choose the correct one of several continuations of a text."""

    name = "choice"
    head = ChoiceHead
    # f1 scores class 1, but the number of a choice is no class.
    metrics = ("accuracy", "macro_f1", "matthews")
    default_metrics = ("accuracy",)
    # Devlin et al. 2018, section 4.4
    recipes: ClassVar = {name: {"data.batch_size": 16, "optimizer.learning_rate": 2e-5} for name in ("bert", "bert_paper")}

    def texts(self, examples: Sequence[Example], layout: Layout) -> int:
        """The number of choices.

        Raises:
            UserError: two examples have different numbers of choices.
        """
        count = len(examples[0].choices) if examples else 1
        if odd := next((e for e in examples if len(e.choices) != count), None):
            raise UserError(
                f"{odd.where}: {len(odd.choices)} choices, but {examples[0].where} has {count}; give all the same number"
            )
        return count

    def row(self, inputs: Inputs, number: int, example: Example, texts: int) -> tuple[Row, Lost]:
        """The text with each choice, as the row's documents."""
        documents = [inputs.document((*example.texts, choice)) for choice in example.choices]
        lost = {"pieces": tuple(sum(of) for of in zip(*(document.lost for document in documents)))}
        return inputs.packed(documents, texts, number) | self.label_fields(example), lost
