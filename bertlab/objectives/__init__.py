"""Objectives by name. A name of the form `module:Class` is imported from outside the package."""

import dataclasses
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertlab.errors import UserError, did_you_mean
from bertlab.models.base import SIDES
from bertlab.objectives.activation import ActivationRegularisation, TemporalActivationRegularisation
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.base import Bound, Corruption, NoFloor, Objective, Oracle, Scoring, Vocabulary, cross_entropy
from bertlab.objectives.blame import blamed, line_in, said
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence, SentenceOrder
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.span_boundary import SpanBoundary
from bertlab.objectives.span_corruption import SpanCorruption
from bertlab.objectives.word_vectors import ContinuousBagOfWords, Glove, SkipGram

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

# Fields of an entry of `config.objectives` that are not settings of its class.
_OF_THE_CONFIG = ("weight", "final_weight", "implementation")

ASKS = ("tokens", "positions", "pairs", "other")

# Names of views, and values of `sees`.
_OF_A_VIEW = ("clean", "own", "shared", "any", *SIDES)

# Names of several objectives with their weights: ELMo's loss is the mean of its two directions.
TOGETHER = {"bilm": {"ltr": 0.5, "rtl": 0.5}}

__all__ = [
    "REGISTRY",
    "Bound",
    "Corruption",
    "NoFloor",
    "Objective",
    "Oracle",
    "Scoring",
    "Vocabulary",
    "asking",
    "build",
    "cross_entropy",
    "describe",
    "find",
    "guessing_in_place",
    "members",
    "scoring_objectives",
]


def members(names: str) -> dict[str, float]:
    """The objectives of "mlm+nsp" with their default weights; `bilm` stands for two.

    Raises:
        UserError: an objective is named twice.
    """
    found = {}
    for name in names.split("+"):
        for member, weight in TOGETHER.get(name, {name: 1.0}).items():
            if member in found:
                raise UserError(f"objectives={names}: '{member}' appears twice")
            found[member] = weight
    return found


def scoring_objectives() -> list[str]:
    """Registry names of the objectives whose models can score texts."""
    return [name for name, kind in REGISTRY.items() if kind().scoring().ways]


def asking(asks: str) -> list[str]:
    """Registry names of the objectives whose `asks` is this."""
    return [name for name, kind in REGISTRY.items() if kind.asks == asks]


def find(name: str) -> type[Objective]:
    """The class of a registry name or of `module:Class`.

    Raises:
        UserError: the name is unknown, or does not name an Objective dataclass.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = [*REGISTRY, *TOGETHER]
        listed = f"choose from {', '.join(known)}, or name your own as module:Class"
        raise UserError(f"objective '{name}' is not known; {did_you_mean(name, known, listed)}")
    found = getattr(_imported(name, module), attribute, None)
    if found is None:
        meant = did_you_mean(attribute, dir(sys.modules[module]), "write the class's name")
        raise UserError(f"objective '{name}': module {module} has no {attribute}; {meant}")
    _check_class(name, found)
    return found


def _imported(name: str, module: str):
    """The module of an objective from outside; an exception in it becomes a UserError with file and line."""
    try:
        return importlib.import_module(module)
    except SyntaxError as error:
        raise UserError(f"objective '{name}': {error.filename}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.split(".")[0]):
            here = [file.stem for file in Path().glob("*.py")]
            meant = did_you_mean(module, here, "add its folder to PYTHONPATH")
            raise UserError(f"objective '{name}': module {module} was not found; {meant}") from None
        spec = importlib.util.find_spec(module)
        where = f"{spec.origin}, line {line_in(spec.origin, error)}"
        raise UserError(f"objective '{name}': {where}: {said(error)} ({type(error).__name__} as it is imported)") from error


def _check_class(name: str, found) -> None:
    """Refuses a class that breaks the contract."""
    # A subclass without a decorator of its own would lose its settings: it inherits its base's fields.
    decorated = isinstance(found, type) and issubclass(found, Objective) and "__dataclass_fields__" in vars(found)
    if not decorated or not found.__dataclass_params__.frozen:
        raise UserError(
            f"objective '{name}' must be a frozen dataclass that inherits from bertlab.objectives.Objective,"
            " with @dataclasses.dataclass(frozen=True) above the class itself"
        )
    if found.reads not in (*SIDES, "any") or not isinstance(found.sees, str):
        raise UserError(
            f"objective '{name}': reads={found.reads!r}, sees={found.sees!r}; reads is one of {', '.join(SIDES)} or any,"
            " and sees one of clean, own, shared, any, or the name of another objective to share its view"
        )
    if found.view is not Objective.view and found.sees in ("clean", "any"):
        raise UserError(f"objective '{name}': sees={found.sees!r} never calls its view(); set sees to 'own' or 'shared'")
    if found.asks not in ASKS:
        raise UserError(f"objective '{name}': asks={found.asks!r} must be one of {', '.join(ASKS)}")
    if not isinstance(found.needs, tuple):
        raise UserError(f"objective '{name}': needs={found.needs!r} must be a tuple of batch fields, as in ('pair_label',)")
    if found.loss is Objective.loss:
        raise UserError(f"objective '{name}' has no method loss(self, model, view)")
    for field in dataclasses.fields(found):
        if field.default is dataclasses.MISSING or field.name in _OF_THE_CONFIG:
            raise UserError(
                f"objective '{name}': setting '{field.name}' needs a plain default,"
                f" and a name other than {', '.join(_OF_THE_CONFIG)}"
            )


def describe(name: str) -> tuple[str, dict]:
    """The key of an objective in `config.objectives`, and its settings with their defaults."""
    settings = {f.name: f.default for f in dataclasses.fields(find(name))}
    if ":" not in name:
        return name, settings
    key = name.partition(":")[2]
    if key in (*REGISTRY, *_OF_A_VIEW):
        raise UserError(f"objective '{name}': bertlab itself uses the name {key}; rename the class")
    return key, {"implementation": name, **settings}


def guessing_in_place(entries: Mapping[str, Mapping[str, Any]], name: str, nats: float) -> tuple[float, float]:
    """`Objective.guessing_in_place` of an objective of a saved config.

    Nothing is imported to read a run: of an objective from outside both limits are `nats`.

    Args:
        entries: `objectives` of config.json; without the objective, both limits are `nats`.
        name: Its key.
        nats: As for the method.
    """
    built = {}
    for key, entry in entries.items():
        if kind := REGISTRY.get(entry.get("implementation") or key):
            fields = {field.name for field in dataclasses.fields(kind)}
            built[key] = kind(**{field: value for field, value in entry.items() if field in fields})
    own = built.get(name)
    return own.guessing_in_place(nats, built.get(own.sees)) if own else (nats, nats)


def build(config) -> dict[str, Objective]:
    """The objectives of `config.objectives`, by their keys.

    Raises:
        UserError: the config has no objective, or a setting is unknown.
    """
    if not len(config):
        raise UserError("config.objectives is empty; name at least one, for example objectives=mlm after the config's colon")
    built = {}
    for key, entry in config.items():
        settings = {k: v for k, v in entry.items() if k not in _OF_THE_CONFIG}
        kind = find(entry.get("implementation", key))
        known = [f.name for f in dataclasses.fields(kind)]
        for name in settings:
            if name not in known:
                raise UserError(
                    f"config.objectives.{key}.{name} is not a setting of {kind.__name__}; known: {', '.join(known)}"
                )
        with blamed(key, kind, "loss" if kind.__post_init__ is Objective.__post_init__ else "__post_init__"):
            try:
                built[key] = kind(**settings)
                built[key].check_settings()  # its own __post_init__ may not
            except UserError as error:
                raise UserError(f"config.objectives.{key}: {error}") from None
    return built


def has_mask_rate(kind: type[Objective]) -> bool:
    """Whether an objective's setting `rate` is a share of corrupted tokens: it is if the class says what its corruption is."""
    return kind.corruption is not Objective.corruption and any(field.name == "rate" for field in dataclasses.fields(kind))
