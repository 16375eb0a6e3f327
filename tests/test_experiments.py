"""Every recipe and every run of every study is a config that can be; what a docstring tells to type is not refused."""

import dataclasses
import re

import pytest

from bertlab.config import base_config, load_config
from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES, model_shape
from bertlab.models.transformer import TransformerConfig
from bertlab.studies.settings import SCALES
from bertlab.studies.study import load_study
from bertlab.studies.sweep import load_checked
from tests.conftest import RECIPES, ROOT

PRETRAIN = sorted((ROOT / "experiments/pretrain").glob("*.py"))
STUDIES = sorted((ROOT / "experiments/ablations").glob("*.py"))
COMMANDS = [
    command
    for path in PRETRAIN
    for command in re.findall(r"--config=(\S+)", path.read_text().replace("\\\n", "").replace("'", ""))
]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_every_recipe_is_among_those_that_the_tests_train():
    assert {path.name for path in PRETRAIN} == {re.search(r"(\w+\.py)", recipe).group(1) for recipe in RECIPES.values()}


@pytest.mark.parametrize("recipe", RECIPES.values())
def test_a_recipe_can_be_in_every_size(recipe):
    path, _, arguments = recipe.partition(":")
    family = load_config(recipe).model.family
    for size in FAMILIES[family].sizes:
        load_checked(f"{path}:{','.join(filter(None, [arguments, f'size={size}']))}", {"mesh.data": 1})


@pytest.mark.parametrize("spec", COMMANDS)
def test_a_command_of_a_recipes_docstring_can_be(spec):
    load_checked(spec, {"mesh.data": 1})


@pytest.mark.parametrize("scale", ["demo", *SCALES])
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_can_be(study, scale):
    if scale not in {"floors": ("demo", "tiny"), "objectives": ("demo", *SCALES)}.get(study.stem, SCALES):
        with pytest.raises(UserError, match=f"scale={scale}: choose one of"):
            load_study(f"{study}:scale={scale}")
        return
    runs = load_study(f"{study}:scale={scale},seeds=1").runs()
    for run in (run for run in runs if not (run.shares or run.averages)):
        load_checked(run.config, run.overrides | {"mesh.data": 1})
    if study.stem != "floors":
        assert {run.labels["seed"] for run in load_study(f"{study}:scale={scale},seeds=3").runs()} == {"1", "2", "3"}


@pytest.mark.parametrize(
    "study", [path for path in STUDIES if path.stem not in ("floors", "objectives")], ids=lambda path: path.stem
)
def test_a_study_says_what_it_stands_on_and_how_to_run_it(study):
    text = study.read_text()
    assert re.search(r"(19|20)\d\d|on the same text", text.split("\n")[0]), "a paper in its first line"
    command = rf"--study=experiments/ablations/{re.escape(study.name)}:scale=tiny,(task\w+=\w+,)?corpus=pydocs,seeds=2"
    assert re.search(command, text) and "bertlab report runs/" in text
    published = load_study(str(study)).published
    if published:
        assert published.source and all(len(row) == len(published.columns) for row in published.rows.values())


def test_every_value_of_a_transformer_is_a_key_of_the_config():
    """Between any two published shapes there is a way of switches."""
    derived = {"vocab_size", "output"}
    names = {field.name for field in dataclasses.fields(TransformerConfig)} - derived
    assert names | {"output_transform", "tied", "output_bias"} <= set(base_config().model)


@pytest.mark.parametrize(("start", "goal"), [("bert", "modern"), ("gpt", "bert"), ("bert", "gpt")])
def test_switches_lead_from_one_transformer_to_another(start, goal):
    config, expected = base_config().model, base_config().model
    expected.update(family=goal, size="tiny")
    wanted = {**dataclasses.asdict(model_shape(expected, 100))}
    wanted |= {key: value for key, value in zip(("output_transform", "tied", "output_bias"), wanted.pop("output").values())}
    config.update(family=start, size="tiny")
    for key, value in wanted.items():
        if key in config and key not in ("dtype", *INERT[goal]):
            config[key] = value
    assert dataclasses.replace(model_shape(config, 100), **inert_of(expected, goal)) == model_shape(expected, 100)


# Keys that have no effect in a shape may not be set there.
INERT = {
    "bert": ("rotary_base", "rotary_base_local", "global_every"),
    "gpt": ("rotary_base", "rotary_base_local", "global_every"),
    "modern": ("max_positions", "position_offset"),
}


def inert_of(model, family) -> dict:
    return {key: getattr(model_shape(model, 100), key) for key in INERT[family]}
