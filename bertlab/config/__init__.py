"""What config files use: the defaults, the arguments after the colon, and what recipes share."""

import importlib
from typing import Any

from bertlab.config.defaults import base_config
from bertlab.config.load import load_config, parse_arguments

RECIPES = ("add_objectives", "take_published", "train_on")

__all__ = ["base_config", "load_config", "parse_arguments", *RECIPES]


def __getattr__(name: str) -> Any:
    """A function of `recipes`, which imports JAX: a command that only reads keys is quick."""
    if name in RECIPES:
        return getattr(importlib.import_module("bertlab.config.recipes"), name)
    raise AttributeError(name)
