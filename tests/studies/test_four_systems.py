"""BERT, GPT, ELMo, ULMFiT and static vectors: what is equal between them, and how each is used."""

import dataclasses
import functools
import io

import pytest
from rich.console import Console

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.studies.equal import flops, parameters, sized, tokens
from bertlab.studies.study import load_study
from bertlab.studies.sweep import sweep
from bertlab.train.budget import parse_budget
from tests.conftest import ROOT
from tests.studies.golden import label

ABLATIONS = ROOT / "experiments/ablations"
STUDY = ABLATIONS / "four_systems.py"
SLOW_SCALES = [pytest.param(scale, marks=pytest.mark.slow) for scale in ("mini", "small", "base", "paper")]
SCALES = ["tiny", *SLOW_SCALES]
SHARED = [("BERT", "bert_table5", "BERT"), ("GPT", "gpt_table5", "full"), ("ELMo", "elmo_layers", "last only")]
SHARED += [("ULMFiT", "ulmfit_table4", "with pretraining")]


@functools.cache
def systems(arguments):
    """System -> its run, and the runs without pretraining: of BERT's body and of GPT's."""
    runs = {label(run): run for run in load_study(f"{STUDY}:seeds=1,{arguments}").runs()}
    nothing = [runs.pop("no pretraining"), runs.pop("no pretraining (GPT)")]
    return runs, nothing


def of_each(measure, arguments):
    return {name: measure(run.config, run.overrides) for name, run in systems(arguments)[0].items()}


@pytest.mark.parametrize("scale", SCALES)
def test_all_read_as_many_tokens(scale):
    found = of_each(tokens, f"scale={scale}")
    assert list(found) == ["BERT", "GPT", "ELMo", "ULMFiT", "static"]
    assert {name: count / found["BERT"] for name, count in found.items()} == pytest.approx(dict.fromkeys(found, 1.0), rel=1e-3)
    pretrained, nothing = systems(f"scale={scale}")
    [(unit, amount)] = {parse_budget(run.overrides["train.budget"]) for name, run in pretrained.items() if name != "BERT"}
    assert unit == "tokens" and amount == pytest.approx(found["BERT"], rel=1e-5), "the loop counts tokens without padding"
    configs = [load_config(run.config, run.overrides) for run in nothing]
    assert [(config.train.steps, config.train.budget) for config in configs] == [(0, ""), (0, "")]
    assert [config.model.family for config in configs] == ["bert", "gpt"]
    pieces = [load_config(run.config, run.overrides).data.tokenizer.to_dict() for run in pretrained.values()]
    assert len(set(map(str, pieces))) == 1


def test_bert_is_pretrained_as_in_its_table_5():
    [other] = [run for run in load_study(f"{ABLATIONS}/bert_table5.py:seeds=1").runs() if run.labels["pretraining"] == "BERT"]
    ours = systems("scale=tiny")[0]["BERT"]
    assert load_config(ours.config, ours.overrides) == load_config(other.config, other.overrides)


@pytest.mark.parametrize("system, study, row", SHARED, ids=[system for system, _, _ in SHARED])
def test_with_equal_steps_a_system_is_pretrained_as_in_its_paper_s_tables(system, study, row):
    """So `--store` trains each once."""
    [other] = [run for run in load_study(f"{ABLATIONS}/{study}.py:seeds=1").runs() if label(run) == row]
    ours = systems("equal=steps")[0][system]
    assert load_config(ours.config, ours.overrides) == load_config(other.config, other.overrides)


@pytest.mark.parametrize("scale", SCALES)
def test_models_have_as_many_parameters_as_bert(scale):
    arguments = f"scale={scale},equal=parameters"
    found, own = of_each(parameters, arguments), of_each(parameters, f"scale={scale}")
    assert found["BERT"] == own["BERT"]
    # A step of a width changes up to 1.5 % of ELMo's parameters at tiny.
    assert {name: count / own["BERT"] for name, count in found.items()} == pytest.approx(dict.fromkeys(found, 1.0), rel=0.02)
    assert max(abs(count / own["BERT"] - 1) for count in own.values()) > 0.4, "their own sizes differ"
    assert of_each(tokens, arguments) == of_each(tokens, f"scale={scale}")


@pytest.mark.parametrize("scale", SCALES)
def test_models_compute_as_much_as_bert(scale):
    arguments = f"scale={scale},equal=flops"
    pretrained, _ = systems(arguments)
    found = {name: flops(run.config, run.overrides) for name, run in pretrained.items() if name != "static"}
    # Steps are whole, and made-up masks are drawn for one batch.
    assert {name: count / found["BERT"] for name, count in found.items()} == pytest.approx(dict.fromkeys(found, 1.0), rel=0.01)
    budgets = {name: run.overrides.get("train.budget") for name, run in pretrained.items()}
    units = {name: budget and parse_budget(budget)[0] for name, budget in budgets.items()}
    assert units == dict.fromkeys(found, "flops") | {"BERT": None, "static": "tokens"}
    own, read = (of_each(tokens, of) for of in (f"scale={scale}", arguments))
    assert read["BERT"] == own["BERT"] and abs(read["ELMo"] / own["ELMo"] - 1) > 0.05


def test_a_size_is_found_where_parameters_are_linear_in_it_and_where_they_are_quadratic():
    recipe = f"{ROOT}/experiments/pretrain/static.py:objectives=skip_gram"
    overrides = {"data.tokenizer.vocab_size": 100}
    width = lambda width: {"model.width": width}
    assert sized(recipe, overrides, width, 2 * 100 * 37, 8) == {"model.width": 37}
    elmo = f"{ROOT}/experiments/pretrain/elmo.py"
    both = lambda width: {"model.width": width, "model.hidden": 2 * width}
    assert sized(elmo, overrides, both, parameters(elmo, {**overrides, **both(21)}), 8) == both(21)


def test_each_system_is_used_as_its_paper_uses_it():
    pretrained, nothing = systems("scale=tiny")
    use = {name: run.downstream["package"] for name, run in pretrained.items()}
    recipes = {name: of["recipe"] for name, of in use.items()}
    assert recipes == {"BERT": "bert", "GPT": "gpt", "ELMo": "elmo", "ULMFiT": "ulmfit", "static": "elmo"}
    assert {name for name, run in pretrained.items() if run.adapt} == {"ULMFiT"}
    assert use["ULMFiT"]["optimizer.thaw"] == "gradual"
    assert [run.downstream["package"] for run in nothing] == [use["BERT"], use["GPT"]]
    objectives = {name: "+".join(load_config(run.config, run.overrides).objectives) for name, run in pretrained.items()}
    assert objectives == {"BERT": "mlm+nsp", "GPT": "ltr", "ELMo": "ltr+rtl", "ULMFiT": "ar+ltr+tar", "static": "skip_gram"}


@pytest.mark.parametrize("arguments", ["equal=time", "static=fasttext"])
def test_what_it_cannot_be_is_refused(arguments):
    with pytest.raises(UserError, match=f"^{arguments}: choose one of"):
        load_study(f"{STUDY}:{arguments}")


@pytest.mark.parametrize("scale", SCALES)
def test_it_says_what_it_would_cost(scale, words_task, tmp_path, monkeypatch):
    """All stages of all systems compose; the task stands for a text's and has no files elsewhere."""
    monkeypatch.chdir(ROOT)
    study, out = load_study(f"{STUDY}:scale={scale},seeds=1,task_steps=20,select=off"), io.StringIO()
    study = dataclasses.replace(study, downstream={"words": study.tasks["package"] | {"task": words_task}})
    study = dataclasses.replace(study, overrides={**study.overrides, "mesh.data": 1})
    assert sweep(study, tmp_path, dry_run=True, console=Console(file=out, width=10_000)) == 0
    *_, total = out.getvalue().splitlines()
    assert total.startswith("four_systems: 7 runs, 7 to do: ") and " 0 FLOPs" not in total
