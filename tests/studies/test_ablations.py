"""Every study of experiments/ablations passes a dry run at every scale."""

import dataclasses
from pathlib import Path

import jax
import pytest

from bertlab.config.load import SHIPPED
from bertlab.studies.plan import PRETRAIN, dry_run, make_plan
from bertlab.studies.study import load_study
from bertlab.train.build import build_pretraining
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import build_mesh
from bertlab.train.state import abstract_state, build_step, zero_carry

FOLDER = SHIPPED / "experiments" / "ablations"
SHARED = ("common", "scales", "published_tasks", "systems", "ulmfit")
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


@pytest.mark.nightly
@pytest.mark.parametrize("name", STUDIES)
def test_the_training_step_of_every_variant_can_be_traced(name, tmp_path):
    traced, arguments = set(), "seeds=1"
    if name == "repetition":
        arguments += ",readings=128+512"  # fewer need more text than pydocs
    study = load_study(f"{FOLDER}/{name}.py:{arguments}")
    for stages in make_plan(study, tmp_path).configs.values():
        config = stages.get(PRETRAIN)
        key = config and config.to_json_best_effort()
        if config is None or not config.train.steps or key in traced:
            continue
        traced.add(key)
        made, mesh = build_pretraining(config), build_mesh(config.mesh)
        optimizer = build_optimizer(
            config.optimizer, config.train.steps, made.program, made.example
        )
        for phase in made.phases:
            carry = zero_carry(phase.program, mesh, phase.rows)
            state = abstract_state(made.program, optimizer, mesh, made.example, carry)
            with jax.set_mesh(mesh):
                step = build_step(config, phase, optimizer, mesh, state)
                _, sums = jax.eval_shape(step, state, phase.batches(0))
            assert {f"{objective}/loss" for objective in phase.weights} <= sums.keys()


def test_a_plan_asks_for_no_devices(tmp_path):
    """It is made where there may be none; each run finds its own."""
    study = load_study(f"{FOLDER}/objectives.py:seeds=1")
    study = dataclasses.replace(study, overrides={**study.overrides, "mesh.fsdp": 64})
    assert dry_run(study, tmp_path / "study")["runs"]


def test_systems_are_equal_in_what_they_are_said_to_be_equal_in():
    from bertlab.studies.equal import cost, parameters

    study = load_study(f"{FOLDER}/four_systems.py:equal=parameters,select=off,seeds=1")
    counts = {run.variant: parameters(run.config, run.overrides) for run in study.runs()}
    assert counts["ELMo"] == pytest.approx(counts["BERT"], rel=0.02)
    assert counts["GPT"] == pytest.approx(counts["BERT"], rel=0.02)
    study = load_study(f"{FOLDER}/four_systems.py:equal=flops,select=off,seeds=1")
    costs = {run.variant: cost(run.config, run.overrides)[1] for run in study.runs()}
    assert costs["GPT"] == pytest.approx(costs["BERT"], rel=0.02)
