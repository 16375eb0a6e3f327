"""Reads configs: a Python file, the arguments after its colon, and overrides.

A config file defines `get_config(arguments: str | None) -> ConfigDict`. What follows the colon in
`--config=experiments/pretrain/bert.py:size=tiny,corpus=pydocs` is read by `parse_arguments`.
"""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from bertlab.errors import UserError

PACKAGE = Path(__file__).parent.parent
SHIPPED = PACKAGE if (PACKAGE / "experiments").is_dir() else PACKAGE.parent
"""Contains experiments/: the repository, or the package if a wheel was installed."""


def load_config(
    spec: str, overrides: Mapping[str, Any] | None = None, argv: Sequence[str] = ()
) -> ConfigDict:
    """The config of "FILE.py" or "FILE.py:key=value,key=value" (`find_file`), overridden as by
    `override`."""
    path, _, arguments = spec.partition(":")
    return override(import_file(path).get_config(arguments), argv, overrides or {})


def override(
    config: ConfigDict, argv: Sequence[str], values: Mapping[str, Any] | None = None
) -> ConfigDict:
    """A config with `--config.KEY=VALUE` and then dotted names to values applied.

    Raises:
        UserError: A key is unknown, or its value has another type.
    """
    try:
        if argv:  # defining the flags takes longer than all else, and a plan has many configs
            command, defined = ["bertlab", *argv], flags.FlagValues()
            config_flags.DEFINE_config_dict("config", config, flag_values=defined, sys_argv=command)
            defined(command)
        config.lock()
        config.update_from_flattened_dict(values or {})
    except (AttributeError, KeyError, TypeError, ValueError, flags.Error) as error:
        reason = str(error.args[0])
        if isinstance(error, AttributeError | KeyError):  # which may quote another error
            reason = reason.strip("'").replace("\\'", "'").replace("\\n", "; ")
            reason = f"no such key: {reason}"
        raise UserError(f"config: {' '.join(reason.split())}") from error
    return config


def import_file(path: str) -> ModuleType:
    """The module of a config or study, whose path is as in `find_file`."""
    file = find_file(path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_file(path: str) -> Path:
    """The config or study that a path means: in the working directory, else one of bertlab's."""
    for candidate in (Path(path), SHIPPED / path):
        if candidate.is_file():
            return candidate
    raise UserError(f"{path} is neither here nor in {SHIPPED}; give the path of a Python file")


def parse_pairs(text: str | None) -> dict[str, str]:
    """ "key=value,key=value" as a dict. A value extends to the next ",key=", so it may contain
    commas."""
    items = re.split(r",+(?=\w+=)", (text or "").strip(","))
    pairs = (item.partition("=") for item in items if item)
    return {key: value for key, _, value in pairs}


def parse_arguments(text: str | None, /, **defaults: Any) -> dict[str, Any]:
    """Reads what follows the colon of a config or study, with the types of the defaults."""
    values = dict(defaults)
    for key, value in parse_pairs(text).items():
        try:
            kind = type(defaults[key])
            values[key] = flags.BooleanParser().parse(value) if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise UserError(
                f"argument '{key}={value}' after the colon: write KEY=VALUE with one of"
                f" {', '.join(defaults)}, and a value of the default's type"
            ) from None
    return values


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names to leaf values, in the config's order."""
    flat = {}
    for key in config:
        value = config[key]
        if isinstance(value, Mapping | ConfigDict) and len(value):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
