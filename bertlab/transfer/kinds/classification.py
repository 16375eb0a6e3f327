"""Classification: one class for a text or a pair."""

import dataclasses

from jaxtyping import Array, Float

from bertlab.models.base import View
from bertlab.objectives.base import Model
from bertlab.transfer.heads import LogitsHead, derived
from bertlab.transfer.kinds.base import OneClass


@dataclasses.dataclass(frozen=True)
class ClassificationHead(LogitsHead):
    """−log p(class | text or pair); the vectors of a row's texts (GPT's two orders) are added."""

    classes: int = derived(2)

    def logits(self, model: Model, view: View) -> tuple[Float[Array, "B C"], Float[Array, ""]]:
        vectors, penalty = self.vectors(model, view)
        return model.head.scores(vectors.sum(axis=1), self.is_own(view)), penalty


class Classification(OneClass):
    """A class for a text or a pair."""

    name = "classification"
    head = ClassificationHead
