"""Tiny models with random parameters, of the spine and of the old code."""

from types import SimpleNamespace

import numpy as np
from ml_collections import ConfigDict

from bertlab.config import base_config
from bertlab.models import presets as old_presets
from bertlab.objectives import REGISTRY as OLD_OBJECTIVES
from bertlab.objectives import Vocabulary as OldVocabulary
from bertlab.objectives.program import Program as OldProgram
from bertlab.models import presets
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program
from tests.references import random_params

TINY = {"width": 8, "layers": 1, "heads": 2, "hidden": 12}
IDS = {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4}
EMPTY = {name: np.zeros((2, 6), np.int32) for name in ("tokens", "segments", "positions")}
EMPTY |= {"documents": np.ones((2, 6), np.int32), "pair_label": np.zeros(2, np.int32)}
EMPTY |= {"example_id": np.zeros((2, 2), np.int32), "visit": np.zeros(2, np.int32)}


def programs(family: str, objectives: dict, size: int, **model) -> SimpleNamespace:
    """`new` and (if all objectives are the package's) `old` programs, their config and `params`.

    Args:
        family: Of the body.
        objectives: By name.
        size: Of the vocabulary.
        model: Settings.
    """
    config = base_config()
    sizes = old_presets.FAMILIES[family].sizes
    config.model.update({"family": family, "size": next(iter(sizes))})
    config.model.update({k: v for k, v in TINY.items() if k in sizes[config.model.size]})
    config.model.update(model)
    plain = {k: v for k, v in config.model.items() if k not in ("products", "output_rows")}
    counts = tuple(range(1, size + 1))
    body = presets.build_body(presets.model_shape(ConfigDict(plain), size))
    new = Program(body, objectives, Vocabulary(size, **IDS, counts=counts))
    old = None
    if all(name in OLD_OBJECTIVES for name in objectives):
        old_body = old_presets.build_body(old_presets.model_shape(config.model, size))
        built = {name: OLD_OBJECTIVES[name](**vars(of)) for name, of in objectives.items()}
        old = OldProgram(old_body, built, OldVocabulary(size, **IDS, counts=counts))
        config.objectives = {name: {"weight": 1.0} for name in objectives}
    return SimpleNamespace(new=new, old=old, config=config, params=random_params(new, EMPTY))
