"""Every recipe and every run of every study is a config that can be; what a docstring tells to type is not refused."""

import re

import pytest

from bertlab.config import load_config
from bertlab.models.presets import FAMILIES
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


@pytest.mark.parametrize("scale", ["demo", "tiny"])
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_can_be(study, scale):
    for run in load_study(f"{study}:scale={scale}").runs():
        load_checked(run.config, run.overrides | {"mesh.data": 1})
