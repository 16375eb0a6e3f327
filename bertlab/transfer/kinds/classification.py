"""Classification: one class for a text or a pair."""

import dataclasses

from jaxtyping import Array, Float

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Bound
from bertlab.transfer.heads import LogitsHead
from bertlab.transfer.kinds.base import OneClass


@dataclasses.dataclass(frozen=True)
class ClassificationHead(LogitsHead):
    """−log p(class | text or pair), for rows with `label` [B] ≥ 0. It adds the vectors of a row's texts (GPT's two orders)."""

    classes: int = 2

    def logits(self, model: Bound, view: View) -> tuple[Float[Array, "B C"], Float[Array, ""]]:
        """Of the text vectors' sum."""
        vectors, penalty = self.vectors(model, view)
        return model.head.scores(vectors.sum(axis=1), model.deterministic, self.asked(view)), penalty


class Classification(OneClass):
    """A class for a text or a pair."""

    name = "classification"
    head = ClassificationHead
    metrics = ("accuracy", "f1", "macro_f1", "matthews", "group_exact_match")
    default_metrics = ("accuracy", "macro_f1")
    has_classes = True
    is_plain = True

    @classmethod
    def read_label(cls, field: str, where: str, words: tuple[str, ...] = ()) -> str:
        """The name of the class."""
        if not field.strip():
            raise UserError(f"{where}: the label is empty; give every example a label")
        return field.strip()
