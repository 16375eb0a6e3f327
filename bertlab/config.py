"""Configs: the defaults every experiment starts from, arguments after the colon, and loading a config file.

A config file is Python with `get_config(arguments: str | None) -> ConfigDict`. What follows the colon in
`--config=experiments/pretrain/bert.py:size=tiny,corpus=pydocs` is read by `parse_arguments`.
"""

import ast
import contextlib
import copy
import difflib
import functools
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict

from bertlab import keys
from bertlab.errors import UserError, did_you_mean, similar_file
from bertlab.papers import SIZES

_PACKAGE = Path(__file__).parent
# Has experiments/: the repository, or, where a wheel was installed, the package.
SHIPPED = _PACKAGE if (_PACKAGE / "experiments").is_dir() else _PACKAGE.parent


class UnknownKey(UserError):
    """A config has no such key.

    Attributes:
        shown: The key as it was asked for, perhaps with something before it: "--config.train.stepz".
        key: Its dotted name: "train.stepz".
        near: Names of keys that may be meant.
        groups: The top-level groups of the config, listed if no key is near.
    """

    def __init__(self, shown: str, key: str, near: Sequence[str], groups: Sequence[str]):
        self.shown, self.key, self.near, self.groups = shown, key, near, groups
        hint = f"did you mean {', '.join(near)}?" if near else f"its keys are {', '.join(groups)}"
        super().__init__(f"{shown}: the config has no key '{key}'; {hint}")


def parse_arguments(text: str | None, /, **defaults: Any) -> dict[str, Any]:
    """Reads `key=value,key=value` into a dict with the types of the defaults; a value may hold commas, see `split_arguments`.

    Args:
        text: what follows the colon of a config or study path; None or "" for nothing.
        **defaults: every known argument with its default (str, int, float or bool).

    Raises:
        UserError: for an unknown argument or a value of the wrong type; it lists the known arguments.
    """
    values = dict(defaults)
    for item in split_arguments(text or ""):
        key, equals, value = item.partition("=")
        if key not in defaults or not equals:
            if key in defaults:
                raise UserError(f"argument '{key}' has no value; write {key}=VALUE")
            known = ", ".join(
                f"{k}={v}" if v else k for k, v in defaults.items()
            )  # mask_rate=0.0 would say that nothing is masked
            listed = did_you_mean(key, defaults, f"the arguments (with defaults) are {known}")
            raise UserError(f"argument '{key}' is not known; {listed}")
        kind = type(defaults[key])
        try:
            values[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            raise UserError(f"argument {key}={value}: expected {kind.__name__}, for example {key}={defaults[key]}") from None
    return values


def split_arguments(text: str) -> list[str]:
    """The `key=value` of "key=value,key=value"; a value extends to the next ",key=", so it may contain commas.

    Raises:
        UserError: a key is there twice.
    """
    items = [item for item in re.split(r",+(?=\w+=)", text.strip(",")) if item]
    names = [item.partition("=")[0] for item in items]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"'{text}': {twice[0]} is given twice; give each argument once")
    return items


def split_list(named: str, text: str, kind: Callable[[str], Any] = str, expected: str = "values") -> list:
    """The values of "value,value".

    Args:
        named: what it is the value of, for messages: "--kinds".
        text: with at least one value.
        kind: makes a value of its text, or raises ValueError.
        expected: what the values are, for messages.

    Raises:
        UserError: a value is empty, of another kind or there twice.
    """
    try:
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise ValueError
        values = [kind(part) for part in parts]
    except ValueError:
        raise UserError(f"{named}={text}: expected {expected} joined by commas") from None
    if twice := [value for value in values if values.count(value) > 1]:
        raise UserError(f"{named}={text}: {twice[0]} is given twice; give each once")
    return values


def base_config() -> ConfigDict:
    """A config with every key of `bertlab.keys.KEYS` at its default; recipes change some, `--config.KEY=VALUE` any."""
    config = {}
    for key in keys.KEYS:
        *groups, leaf = key.name.split(".")
        node = functools.reduce(lambda of, group: of.setdefault(group, {}), groups, config)
        node[leaf] = config_dict.placeholder(key.default) if key.unset else copy.copy(key.default)
    return ConfigDict(config)


def train_on(config: ConfigDict, corpus: str, objectives: str, mask_rate: float = 0.0) -> None:
    """Sets a recipe's corpus and objectives, and every other config key that they require.

    The synthetic language needs a tokenizer with its words and a format with known floors. An objective needs a body that
    provides what it `reads` and a format that provides what it `needs`. Call this after you set the rest of the recipe: it
    keeps whatever already fits. `--config.KEY=VALUE` comes later and takes precedence.

    Args:
        config: changed in place.
        corpus: for `config.data.corpus`.
        objectives: for `add_objectives`.
        mask_rate: the `rate` of every objective that has a mask rate; 0: their own.

    Raises:
        UserError: an objective is unknown, or `mask_rate` is given and none has one.
    """
    from bertlab.data.formats import FORMATS, NEGATIVES, format_of
    from bertlab.data.vocabularies import SPECIALS
    from bertlab.models.presets import directions_with, model_direction
    from bertlab.objectives import find

    data = config.data
    data.corpus = corpus
    if corpus == "synthetic":
        data.tokenizer.kind = "words"
        data.tokenizer.vocab_size = data.synthetic.get_oneway_ref("vocab_size") + len(SPECIALS)
    add_objectives(config, objectives)
    if mask_rate:
        masked = with_mask_rate(config)
        if not masked:
            raise UserError(f"mask_rate={mask_rate}: objectives={objectives} has no rate of masked tokens; omit mask_rate")
        for name in masked:
            config.objectives[name].rate = mask_rate
    kinds = [find(entry.get("implementation", name)) for name, entry in config.objectives.items()]
    directions = directions_with({kind.reads for kind in kinds} - {"any"}, config.model.family)
    if directions and model_direction(config.model) not in directions:
        config.model.direction = directions[0]
    needs = {field for kind in kinds for field in kind.needs}
    has_floors = lambda name: not FORMATS[name].gathers_sentences
    suits = lambda name: needs <= {*FORMATS[name].makes} and (corpus != "synthetic" or has_floors(name))
    data.format = next(filter(suits, (data.format, *FORMATS)), data.format)
    for negatives, label in NEGATIVES.items():
        if label in needs and format_of(data).has_pairs:
            data[data.format].negatives = negatives


def with_mask_rate(config: ConfigDict) -> list[str]:
    """Names of the config's objectives that have a mask rate."""
    from bertlab.objectives import find, has_mask_rate

    return [name for name, entry in config.objectives.items() if has_mask_rate(find(entry.get("implementation", name)))]


def take_published(config: ConfigDict, steps: int = 0) -> None:
    """Sets what the paper of the config's size has, a table of `bertlab.papers`; nothing if no paper has the size.

    Args:
        config: changed in place; it has its family and size.
        steps: steps instead of the paper's; its warm-up then takes at most a tenth of them. 0: the paper's.
    """
    published = SIZES.get((config.model.family, config.model.size))
    for name, value in published.values.items() if published else ():
        set_key(config, name, value)
    if steps:
        config.train.steps = steps
        if config.optimizer.warmup_steps:
            config.optimizer.warmup_steps = min(config.optimizer.warmup_steps, steps // 10)
        config.train.phases = config.train.phases if steps >= 100 else ""  # too short for phases


def add_objectives(config: ConfigDict, names: str) -> None:
    """Fills `config.objectives` from "mlm+nsp", with every objective's own settings and weight.

    If an objective shares another's view, this adds the other one too, with the settings that the first requires.

    Args:
        config: changed in place.
        names: for `bertlab.objectives.members`: registry names, `bilm` or `module:Class`, joined by "+".

    Raises:
        UserError: for an unknown name.
    """
    from bertlab import objectives

    members = objectives.members(names)
    shown = {kind.sees: kind.shows for kind in map(objectives.find, members) if kind.sees in objectives.REGISTRY}
    for name, weight in (dict.fromkeys(shown, 1.0) | members).items():
        key, settings = objectives.describe(name)
        if key in config.objectives:
            raise UserError(f"objectives={names}: '{key}' appears twice; give your two classes different names")
        final_weight = config_dict.placeholder(float)  # where it ends, changed linearly over the run; None: `weight`
        config.objectives[key] = ConfigDict({"weight": weight, "final_weight": final_weight, **settings, **shown.get(name, {})})


def load_config(spec: str, overrides: Mapping[str, Any] | None = None, argv: list[str] | None = None) -> ConfigDict:
    """Runs a config file and applies overrides.

    Args:
        spec: "path/to/file.py" or "path/to/file.py:key=value,key=value"; the path as for `find_file`.
        overrides: dotted names to values, as in `{"train.steps": 200}`. If they replace a part (such as the format), the file's
            settings of that part return to their defaults.
        argv: command-line arguments; only those of the form `--config.KEY=VALUE` are applied, before `overrides`.

    Raises:
        UserError: the file does not exist, has no `get_config`, or an override names an unknown key.
    """
    config = _read(spec)
    mistakes = keys.without_effect(config)  # of the file itself: they stay, to be refused
    given = {}
    for argument in argv or ():
        if argument.startswith("--config."):
            name, equals, text = argument.removeprefix("--config.").partition("=")
            if not equals:
                raise UserError(f"{argument}: write it as {argument}=VALUE")
            given[name] = parse_override(config, name, text)
    given |= overrides or {}
    for name, value in given.items():
        set_key(config, name, value)
    keys.drop_without_effect(config, {*mistakes, *flatten(given)})
    return config


def as_saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as JSON values, with settings without effect (but those of config.model) at their defaults.

    `Run.config` reads every config.json so: a new run is refused for such a setting, and a run from before the refusal did what
    the default does.
    """
    data = config.get("data", {})
    seedless = {key: value for key, value in config.items() if key != "seed"}
    if "seed" in data:
        seedless["data"] = {key: value for key, value in data.items() if key != "seed"}
    saved = json.loads(_as_saved(json.dumps(seedless)))  # a study's runs differ in seeds: the rest is worked out once
    if "seed" in data:
        saved["data"] = {key: data["seed"] if key == "seed" else saved["data"][key] for key in data}
    return {key: config["seed"] if key == "seed" else saved[key] for key in config}


@functools.lru_cache(maxsize=1024)
def _as_saved(text: str) -> str:
    from bertlab.objectives import REGISTRY

    config = json.loads(text)
    keys.drop_without_effect(config, ())
    for name, entry in config.get("objectives", {}).items() if not is_finetuning(config) else ():
        # A file of data imports nothing: objectives from outside are found where they are built.
        kind = REGISTRY.get(entry.get("implementation") or name)
        for key in keys.settings_of(kind) if kind else ():
            if key.without_effect(entry.get(key.name), entry):
                entry[key.name] = key.default
    return json.dumps(config)


def not_default(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pretraining's config that are not at their defaults, flattened, as JSON values.

    A key that bertlab did not have when the config was saved changes nothing here.
    """
    from bertlab.objectives import describe

    default = flatten(base_config())
    for name, entry in config["objectives"].items():
        default |= flatten(describe(entry.get("implementation") or name)[1], f"objectives.{name}.")
    saved = lambda values: json.loads(json.dumps(values, default=list))
    default = saved(default)
    return {key: value for key, value in saved(flatten(config)).items() if key not in default or value != default[key]}


def is_finetuning(config: Mapping[str, Any]) -> bool:
    """Whether it is a fine-tuning's config, whose `objectives` are the heads of its tasks; an adaptation's is not."""
    return "transfer" in config


def _read(spec: str) -> ConfigDict:
    """Runs a config file with the arguments after its colon."""
    config = run_file(spec, "config", "get_config")
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"--config={spec}: get_config() returned {type(config).__name__}, expected an ml_collections.ConfigDict"
        )
    return config


def run_file(spec: str, option: str, function: str, *without_colon: Any) -> Any:
    """What a function of the user's Python file returns for the text after the colon.

    Args:
        spec: "path.py" or "path.py:arguments"; the path as for `find_file`.
        option: "config" or "study", for messages.
        function: its name in the file.
        *without_colon: what it is called with if there is none.

    Raises:
        UserError: the file is missing, is not Python, or does not define the function; or it raises an error, which is named
            with its line.
    """
    name, colon, arguments = spec.partition(":")
    path = find_file(name, f"--{option}={spec}")
    found = importlib.util.spec_from_file_location(f"{option}_{Path(path).stem}", path)
    if found is None:
        raise UserError(f"--{option}={spec}: {name} is not a Python file (.py)")
    module = importlib.util.module_from_spec(found)
    with _blaming(path, found.origin, option):
        sys.modules[found.name] = module  # dataclasses look up annotations here
        found.loader.exec_module(module)
        if not callable(getattr(module, function, None)):
            raise UserError(f"--{option}={spec}: {name} does not define {function}(arguments)")
        return getattr(module, function)(*([arguments] if colon else without_colon))


@contextlib.contextmanager
def _blaming(path: str, origin: str, what: str) -> Iterator[None]:
    """Turns whatever a user's file raises into one sentence that names its line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the file is the user's code
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == origin]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == origin else None
        where = next((f":{number}" for number in (line, frames[-1].lineno if frames else None) if number), "")
        said = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
        raise UserError(f"{path}{where}: the {what} cannot be read ({type(error).__name__}: {said}); correct it") from error


def brought(spec: str, config: ConfigDict, argv: Sequence[str] = ()) -> dict[str, Any]:
    """The keys that a config file's arguments set in addition to those they name, such as `model.direction` for objectives=ltr.

    Args:
        spec: as for `load_config`.
        config: what that gave.
        argv: as for `load_config`; keys that it sets are left out.

    Returns:
        Dotted names to values. Empty without arguments, and for a file that requires them.
    """
    from bertlab import objectives

    path, _, own = spec.partition(":")
    named = {item.partition("=")[2] for item in split_arguments(own)}
    if not named:
        return {}
    try:
        without = {key: value for key, value in flatten(load_config(path)).items() if not key.startswith("objectives.")}
    except UserError:
        return {}
    for name, entry in config.objectives.items():
        without |= flatten(objectives.describe(entry.get("implementation", name))[1], f"objectives.{name}.")
    overridden = {argument.removeprefix("--config.").partition("=")[0] for argument in argv}
    changed = {key: value for key, value in flatten(config).items() if key in without and without[key] != value}
    return {key: value for key, value in changed.items() if key not in overridden and str(value) not in named}


def find_file(path: str, given: str) -> str:
    """The config or study that a path means: from the working directory, else one of the experiments that bertlab brings along.

    Args:
        path: such as "experiments/pretrain/bert.py", which so works in every directory.
        given: the option, for the message.

    Raises:
        UserError: there is no such file.
    """
    for candidate in (path, os.path.join(SHIPPED, path)):
        if os.path.isfile(candidate):
            return candidate
    meant = similar_file(path) or similar_file(path, SHIPPED)
    raise UserError(f"{given}: {path} is missing here and in {SHIPPED}{meant or '; give the path of a Python file'}")


def set_key(config: ConfigDict, name: str, value: Any) -> None:
    """Sets an existing dotted key, and converts an int to a float if the key holds one."""
    _require_key(config, name, name)
    parent, _, leaf = name.rpartition(".")
    node = _node(config, parent)
    if isinstance(value, Mapping):
        for key, of_key in value.items():
            set_key(config, f"{name}.{key}", of_key)
        return
    try:
        node[leaf] = value
    except TypeError:
        expected, given = node.get_type(leaf).__name__, type(value).__name__
        raise UserError(f"config.{name}={value!r}: expected {expected}, not {given}") from None


def parse_override(config: ConfigDict, name: str, text: str) -> Any:
    """The value of `--config.NAME=TEXT`, in the type of the key."""
    _require_key(config, name, f"--config.{name}")
    parent, _, leaf = name.rpartition(".")
    node = _node(config, parent)
    if isinstance(node[leaf], ConfigDict):
        raise UserError(
            f"--config.{name}={text}: {name} is a group of keys; set one of them, such as --config.{name}.KEY=VALUE"
        )
    kind = node.get_type(leaf)
    if kind is str or kind is type(None):
        return text
    try:
        if kind in (tuple, list):
            return kind(ast.literal_eval(text))
        return flags.BooleanParser().parse(text) if kind is bool else kind(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # the last two of text that nests deeply
        known = keys.BY_NAME.get(name)
        expected = known.values() if known else kind.__name__
        example = node.get(leaf)
        such = f", such as {example!r}" if example is not None else ""
        raise UserError(f"--config.{name}={text}: expected {'' if kind is bool else 'a '}{expected}{such}") from None


def _node(config: ConfigDict, name: str) -> ConfigDict:
    for part in filter(None, name.split(".")):
        config = config[part]
    return config


def _require_key(config: ConfigDict, name: str, shown: str) -> None:
    node = config
    for part in name.split("."):
        node = node[part] if isinstance(node, (ConfigDict, Mapping)) and part in node else None
    if node is not None:
        return
    known = flatten(config)
    groups = {".".join(k.split(".")[:i]) for k in known for i in range(1, k.count(".") + 1)}
    if name in known or name in groups:
        return
    leaf_of = lambda key: key.rpartition(".")[2]
    initials = lambda key: "".join(word[:1] for word in leaf_of(key).split("_"))
    short = [key for key in known if len(leaf_of(name)) > 1 and initials(key) == leaf_of(name)]  # "lr"
    near = short[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    raise UnknownKey(shown, name, near, [f"{key}.*" if key in groups else key for key in config])


def flatten(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names to leaf values, in the config's order."""
    flat = {}
    for key in config:
        value = config[key]
        if isinstance(value, (ConfigDict, Mapping)) and len(value):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = dict(value) if isinstance(value, (ConfigDict, Mapping)) else value
    return flat
