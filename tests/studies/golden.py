"""What every run of every study trains with, as text: `python -m tests.studies.golden` writes golden_configs/STUDY.txt anew.

golden_recipes.txt has what each recipe sets.

A file tells of the first run what differs from the defaults (of `base_config`, of the objectives, of the model's family), and
of each other run what differs from the one before it that is most like it. A value with no scale before it is that of all.
"""

import dataclasses
import functools
import json
from collections.abc import ItemsView, Mapping
from pathlib import Path
from typing import Any

from bertlab import objectives
from bertlab.config import base_config, flatten, load_config
from bertlab.models.presets import FAMILIES, model_shape
from bertlab.studies import worker
from bertlab.studies.settings import SCALES
from bertlab.studies.study import RATE, TASK_RATES, RunSpec, load_study
from bertlab.transfer.adapt import RECIPES as ADAPTATIONS
from bertlab.transfer.recipes import RECIPES, find_recipe
from bertlab.transfer.tasks import find_task
from tests.conftest import ROOT

GOLDEN = Path(__file__).parent / "golden_configs"
GOLDEN_RECIPES = Path(__file__).parent / "golden_recipes.txt"
# A task of each kind that recipes know.
TASKS = ("sst2", "mrpc", "stsb", "ner", "squad1", "squad2", "swag", "edges_srl")
STUDIES = sorted((ROOT / "experiments/ablations").glob("*.py"))
OTHER_SCALES = {"floors": ("demo", "tiny"), "objectives": ("demo", *SCALES)}
DEFAULT = "default"
ORDER = ("averages", "init_from", "data", "model", "objectives", "optimizer", "lora", "train", "evaluate", "mesh", "writers")
ORDER += ("transfer", "head", "language_model", "adapt", "finetune")
_BASE = {key: value for key, value in flatten(base_config()).items() if not key.startswith(("objectives", "model.", "seed"))}

Row = dict[str, dict[str, str]]  # scale -> what a run sets there: key -> value


def scales(study: str) -> tuple[str, ...]:
    """The scales that a study has."""
    return OTHER_SCALES.get(study, SCALES)


@functools.cache
def runs_of(path: Path, scale: str) -> list[RunSpec]:
    """A study's runs at a scale with one seed, at the first rate of fine-tuning; built once for all tests."""
    runs, rates = all_runs(path, scale), rates_of(path, scale)
    return [run for run in runs if run.labels.get(TASK_RATES, "") in ("", *rates[:1])]


@functools.cache
def all_runs(path: Path, scale: str) -> list[RunSpec]:
    """A study's runs at a scale with one seed."""
    return load_study(f"{path}:scale={scale},seeds=1").runs()


def rates_of(path: Path, scale: str) -> list[str]:
    """The rates of fine-tuning of which a study selects one."""
    return [rate for rate in dict.fromkeys(run.labels.get(TASK_RATES) for run in all_runs(path, scale)) if rate]


def described(path: Path) -> str:
    """The text of a study's file."""
    pretrainings: dict[str, dict[str, str]] = {}
    by_scale = {}
    for scale in scales(path.stem):
        by_scale[scale] = [(label(run), effective(run, pretrainings)) for run in runs_of(path, scale)]
        for run, (_, settings) in zip(runs_of(path, scale), by_scale[scale]):
            if run.labels.get(TASK_RATES):
                settings[f"finetune.{RATE}"] = " or ".join(rates_of(path, scale))
    # Runs of the same place belong together, as "half of the steps" does at each scale; or else those of the same label.
    aligned = len({len(runs) for runs in by_scale.values()}) == 1
    rows: dict[Any, tuple[dict[str, str], Row]] = {}
    for scale, runs in by_scale.items():
        for place, (name, settings) in enumerate(runs):
            names, row = rows.setdefault(place if aligned else name, ({}, {}))
            names[scale], row[scale] = name, settings
    found, before = [], []
    for names, row in rows.values():
        name = by_scales(names)
        averages = any("averages" in of for of in row.values())
        likes = [(like, changed(other, row)) for like, other in before if set(row) <= set(other) and not averages]
        like, settings = min(likes, key=lambda of: len(by_key(of[1])), default=("", unlike_defaults(row)))
        found.append("\n  ".join([f"{name} <- {like}" if like else name, *by_key(settings)]) + "\n")
        before.append((next(iter(names.values())), row))
    return "\n".join(found)


def recipes_described() -> str:
    """What each recipe of fine-tuning and of adaptation sets, with the tasks where it has different values."""
    tuned = {name: {task: find_recipe(name, find_task(task).kind) for task in TASKS} for name in RECIPES}
    adapted = {f"adapt {name}": {"": settings} for name, settings in ADAPTATIONS.items()}
    return "\n".join("\n  ".join([name, *by_key({"": of_tasks("", of)})]) + "\n" for name, of in (tuned | adapted).items())


def label(run: RunSpec) -> str:
    """A run's labels but the seeds' and the rate's of fine-tuning."""
    left_out = ("seed", "finetune.seed", TASK_RATES)
    return ", ".join(label for name, label in run.labels.items() if name not in left_out and label)


def unlike_defaults(row: Row) -> Row:
    """A run's settings without those that are defaults at all scales."""
    kept = {key for of in row.values() for key, value in of.items() if key not in _BASE or value != text(_BASE[key])}
    return {scale: {key: value for key, value in of.items() if key in kept} for scale, of in row.items()}


def changed(other: Row, row: Row) -> Row:
    """What a run has otherwise than another at any scale."""
    keys = dict.fromkeys(key for scale, of in row.items() for key in (*of, *other[scale]))
    value = lambda of, key: of.get(key, DEFAULT)
    kept = [key for key in keys if any(value(of, key) != value(other[scale], key) for scale, of in row.items())]
    return {scale: {key: value(of, key) for key in kept} for scale, of in row.items()}


def by_key(row: Row) -> list[str]:
    """Lines of `key: value`."""
    keys = sorted({key for of in row.values() for key in of}, key=lambda key: (ORDER.index(key.partition(".")[0]), key))
    return [f"{key}: " + by_scales({scale: of.get(key, DEFAULT) for scale, of in row.items()}) for key in keys]


def by_scales(values: Mapping[str, str]) -> str:
    """A value, or each with its scales."""
    found = groups(values)
    return " | ".join(f"{', '.join(of)}: {value}" for value, of in found) if len(found) > 1 else next(iter(found))[0]


def effective(run: RunSpec, pretrainings: dict[str, dict[str, str]]) -> dict[str, str]:
    """All that a run trains with: key -> value; keys of later stages begin with the stage's name.

    Args:
        run: the run.
        pretrainings: those that were read already, by what they are made of.
    """
    if run.averages:
        return {"averages": ", ".join(run.averages)}
    made_of = json.dumps([run.config, run.overrides])
    if made_of not in pretrainings:
        config = load_config(run.config, run.overrides)
        flat = flatten(config)
        pretrainings[made_of] = {key: text(flat[key]) for key in _BASE} | of_objectives(config) | of_model(config)
    adapt = of_tasks("adapt", {task: of_adaptation(run, task) for task in run.downstream if run.adapt})
    finetune = of_tasks("finetune", {task: of_finetuning(run, task) for task in run.downstream})
    return pretrainings[made_of] | adapt | finetune


def of_objectives(config: Any) -> dict[str, str]:
    """The names of the objectives, and their settings that are no defaults."""
    found = {"objectives": "+".join(config.objectives)}
    for name, settings in config.objectives.items():
        defaults = {"weight": 1.0, "final_weight": None, **objectives.describe(name)[1]}
        found |= {f"objectives.{name}.{key}": text(value) for key, value in settings.items() if value != defaults[key]}
    return found


def of_model(config: Any) -> dict[str, str]:
    """The model's family, and what its shape has beside the family's values."""
    family = FAMILIES[config.model.family]
    shape = dataclasses.asdict(model_shape(config.model, config.data.tokenizer.vocab_size))
    shape |= dict(zip(("output_transform", "tied", "output_bias", "output_rows"), shape.pop("output").values(), strict=True))
    shape |= {key: config.model[key] for key in ("stateful", "scan_layers")}  # the second, where unset, is the machine's
    defaults = {**family.values, "direction": family.directions[0], "stateful": False, "remat": "none"}
    defaults |= {"scan_layers": None, "output_rows": None}
    ours = {key: value for key, value in shape.items() if key not in ("vocab_size", "dtype")}
    found = {f"model.{key}": text(value) for key, value in ours.items() if value != defaults.get(key, DEFAULT)}
    return {"model.family": config.model.family, **found}


def of_adaptation(run: RunSpec, task: str) -> dict[str, Any]:
    """What an adaptation's recipe and the study set."""
    arguments = worker.adaptation(run, task)
    return {**ADAPTATIONS[arguments["recipe"]], **arguments["overrides"], "epochs": arguments["epochs"]}


def of_finetuning(run: RunSpec, task: str) -> dict[str, Any]:
    """What a fine-tuning's recipe and the study set, of heads' settings those of the task's."""
    arguments = worker.finetuning(run, task)
    kind = find_task(arguments["task"]).kind
    settings = {**find_recipe(arguments["recipe"], kind), **arguments["overrides"]}
    has = lambda key: not key.startswith("head.") or key.removeprefix("head.") in kind.settings()
    return {key: value for key, value in settings.items() if has(key)}


def of_tasks(stage: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Settings of a stage, with the tasks where they have different values."""
    found, prefix = {}, stage and f"{stage}."
    for key in dict.fromkeys(key for of in settings.values() for key in of):
        by_value = groups({task: text(of[key]) if key in of else DEFAULT for task, of in settings.items()})
        several = (f"{value} ({', '.join(of)})" for value, of in by_value)
        found[f"{prefix}{key}"] = ", ".join(several) if len(by_value) > 1 else next(iter(by_value))[0]
    return found


def groups(values: Mapping[str, str]) -> ItemsView[str, list[str]]:
    """(value, those that have it), in order."""
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found.items()


def text(value: Any) -> str:
    """A value in few digits."""
    return f"{value:.6g}" if isinstance(value, float) else f"{value}" or "(none)"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for path in STUDIES:
        (GOLDEN / f"{path.stem}.txt").write_text(described(path), encoding="utf-8")
    GOLDEN_RECIPES.write_text(recipes_described(), encoding="utf-8")
