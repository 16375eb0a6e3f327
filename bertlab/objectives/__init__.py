"""Objectives by name. A name of the form `module:Class` is imported from outside the package."""

import dataclasses
import pkgutil

from bertlab.errors import UserError
from bertlab.objectives.autoregressive import (
    ActivationRegularisation,
    LeftToRight,
    PrefixLanguageModel,
    RightToLeft,
    TemporalActivationRegularisation,
)
from bertlab.objectives.base import Objective, Vocabulary, cross_entropy
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence, SentenceOrder
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.span_corruption import SpanCorruption
from bertlab.objectives.word_vectors import ContinuousBagOfWords, Glove, SkipGram

__all__ = [
    "REGISTRY",
    "Objective",
    "Vocabulary",
    "build",
    "cross_entropy",
    "default_settings",
    "find",
    "members",
]

REGISTRY: dict[str, type[Objective]] = {
    "mlm": MaskedLanguageModel,
    "sbo": SpanBoundary,
    "electra": ReplacedTokenDetection,
    "ltr": LeftToRight,
    "rtl": RightToLeft,
    "prefix": PrefixLanguageModel,
    "span_corruption": SpanCorruption,
    "masked_next_token": MaskedNextToken,
    "permutation": PermutationLanguageModel,
    "diffusion": MaskedDiffusion,
    "nsp": NextSentence,
    "sop": SentenceOrder,
    "ar": ActivationRegularisation,
    "tar": TemporalActivationRegularisation,
    "skip_gram": SkipGram,
    "cbow": ContinuousBagOfWords,
    "glove": Glove,
}

SEVERAL = {"bilm": {"ltr": 0.5, "rtl": 0.5}}
"""Names for several objectives, with their weights: ELMo's loss is the mean of both directions."""

CONFIG_FIELDS = ("weight", "final_weight", "implementation")
"""Keys of an entry of `config.objectives` that are not settings of its class."""


def members(names: str) -> dict[str, float]:
    """The objectives of "mlm+nsp" with their default weights; "bilm" stands for two."""
    found = {}
    for name in names.split("+"):
        found |= SEVERAL.get(name, {name: 1.0})
    return found


def find(name: str) -> type[Objective]:
    """The class of a registry name or of `module:Class`."""
    if name in REGISTRY:
        return REGISTRY[name]
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        choices = ", ".join([*REGISTRY, *SEVERAL])
        raise UserError(
            f"objective '{name}': {error}; choose from {choices}, or your own as module:Class"
        ) from None
    # Without a decorator of its own a subclass has its base's settings.
    if not issubclass(found, Objective) or "__dataclass_fields__" not in vars(found):
        raise UserError(
            f"objective '{name}' must be a subclass of Objective with its own"
            " @dataclasses.dataclass(frozen=True)"
        )
    return found


def default_settings(name: str) -> tuple[str, dict]:
    """The key of an objective in `config.objectives`, and its settings with their defaults."""
    settings = {field.name: field.default for field in dataclasses.fields(find(name))}
    if ":" in name:
        return name.partition(":")[2], {"implementation": name, **settings}
    return name, settings


def build(config) -> dict[str, Objective]:
    """The objectives of `config.objectives`, by their keys."""
    if not len(config):
        raise UserError("config.objectives is empty; write objectives=mlm after the config's colon")
    built = {}
    for key, entry in config.items():
        kind = find(entry.get("implementation", key))
        settings = {name: value for name, value in entry.items() if name not in CONFIG_FIELDS}
        try:
            built[key] = kind(**settings)
        except (TypeError, UserError) as error:
            raise UserError(f"config.objectives.{key}: {error}") from None
    return built
