"""Every study of experiments/ablations passes a dry run at every scale."""

import dataclasses
from pathlib import Path

import pytest

from bertlab.config.load import SHIPPED
from bertlab.studies.plan import dry_run
from bertlab.studies.study import load_study

FOLDER = SHIPPED / "experiments" / "ablations"
SHARED = ("common", "scales", "published_tasks", "systems", "ulmfit", "gpt")
STUDIES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SHARED)
SCALES = ("mini", "small", "base", "paper")


def plan(name, scale, tmp_path):
    path = FOLDER / f"{name}.py" if name != "trials" else FOLDER.parent / "trials.py"
    return dry_run(load_study(f"{path}:scale={scale}"), tmp_path / "study")


def test_there_are_as_many_as_before():
    assert len(STUDIES) == 43


@pytest.mark.parametrize("name", [*STUDIES, "trials"])
def test_a_study_passes_a_dry_run(name, tmp_path):
    found = plan(name, "tiny", tmp_path)
    assert len(found["runs"]) > 1 and found["flops"] > 0
    assert not Path(tmp_path / "study").exists()


@pytest.mark.parametrize("name", ["objectives", "floors"])
def test_a_demo_passes_a_dry_run(name, tmp_path):
    assert plan(name, "demo", tmp_path)["flops"] < plan(name, "tiny", tmp_path)["flops"]


@pytest.mark.nightly
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in STUDIES if name != "floors"])
def test_a_study_passes_a_dry_run_at_larger_scales(name, scale, tmp_path):
    assert plan(name, scale, tmp_path)["runs"]


def test_a_plan_asks_for_no_devices(tmp_path):
    """It is made where there may be none; each run finds its own."""
    study = load_study(f"{FOLDER}/objectives.py:seeds=1")
    study = dataclasses.replace(study, overrides={**study.overrides, "mesh.fsdp": 64})
    assert dry_run(study, tmp_path / "study")["runs"]


def test_systems_are_equal_in_what_they_are_said_to_be_equal_in():
    from bertlab.studies.equal import flops, parameters

    study = load_study(f"{FOLDER}/four_systems.py:equal=parameters,select=off,seeds=1")
    counts = {run.variant: parameters(run.config, run.overrides) for run in study.runs()}
    assert counts["ELMo"] == pytest.approx(counts["BERT"], rel=0.02)
    assert counts["GPT"] == pytest.approx(counts["BERT"], rel=0.02)
    study = load_study(f"{FOLDER}/four_systems.py:equal=flops,select=off,seeds=1")
    costs = {run.variant: flops(run.config, run.overrides) for run in study.runs()}
    assert costs["GPT"] == pytest.approx(costs["BERT"], rel=0.02)
