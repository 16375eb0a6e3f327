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
    """Executes a config file and applies overrides.

    Args:
        spec: "path/to/file.py" or "path/to/file.py:key=value,key=value"; the path as in
            `find_file`.
        overrides: Dotted names to values, such as {"train.steps": 200}.
        argv: Command-line arguments of the form `--config.KEY=VALUE`; applied first.

    Raises:
        UserError: The file does not exist, or an override names an unknown key or has another type.
    """
    path, _, arguments = spec.partition(":")
    return override(import_file(path).get_config(arguments), argv, overrides or {})


def override(
    config: ConfigDict, argv: Sequence[str], values: Mapping[str, Any] | None = None
) -> ConfigDict:
    """A config with `--config.KEY=VALUE` and then dotted names to values applied.

    Raises:
        UserError: A key is unknown, or its value has another type.
    """
    command, flag_values = ["bertlab", *argv], flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=flag_values, sys_argv=command)
        flag_values(command)
        for name, value in (values or {}).items():
            set_key(config, name, value)
    except (AttributeError, KeyError) as error:
        # ml_collections quotes the text of one error in another.
        reason = str(error.args[0]).strip("'").replace("\\'", "'").replace("\\n", "; ")
        raise UserError(f"the config has no such key: {reason}") from error
    except (flags.Error, TypeError, ValueError) as error:
        raise UserError(" ".join(str(error).split())) from error
    return config


def import_file(path: str) -> ModuleType:
    """The module of a config or study, whose path is as in `find_file`."""
    file = find_file(path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_file(path: str) -> Path:
    """The config or study that a path means: in the working directory, else one of bertlab's own.

    Raises:
        UserError: There is no such file.
    """
    for candidate in (Path(path), SHIPPED / path):
        if candidate.is_file():
            return candidate
    raise UserError(f"{path} is neither here nor in {SHIPPED}; give the path of a Python file")


def parse_arguments(text: str | None, /, **defaults: Any) -> dict[str, Any]:
    """Reads "key=value,key=value" into a dict with the types of the defaults.

    A value extends to the next ",key=", so it may contain commas.

    Args:
        text: What follows the colon of a config or study; None or "" for nothing.
        **defaults: Every argument with its default (str, int, float or bool).

    Raises:
        UserError: An argument is unknown, or its value has another type.
    """
    values = dict(defaults)
    for item in filter(None, re.split(r",+(?=\w+=)", (text or "").strip(","))):
        key, equals, value = item.partition("=")
        if key not in defaults or not equals:
            choices = ", ".join(defaults)
            raise UserError(
                f"argument '{item}' after the colon: write KEY=VALUE with one of {choices}"
            )
        kind = type(defaults[key])
        try:
            values[key] = flags.BooleanParser().parse(value) if kind is bool else kind(value)
        except ValueError:
            raise UserError(f"argument {item}: expected {kind.__name__}") from None
    return values


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names to leaf values, in the config's order."""
    flat = {}
    for key in config:
        value = config[key]
        if isinstance(value, Mapping | ConfigDict) and len(value):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def set_key(config: ConfigDict, name: str, value: Any) -> None:
    """Sets an existing dotted key."""
    *groups, leaf = name.split(".")
    for group in groups:
        config = config[group]
    config[leaf] = value
