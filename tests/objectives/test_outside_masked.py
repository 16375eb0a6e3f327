"""Masked objectives from outside the package (cloze.py, diffusion.py) are trained, scored, given floors and reported like mlm.

The loss of the second weighs its positions differently, and it masks another share of each row.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import bertlab
from bertlab import floors
from bertlab.data.synthetic import language
from bertlab.objectives import REGISTRY, Objective, Vocabulary, build, find
from bertlab.objectives.program import Program
from bertlab.run import Run
from bertlab.studies.doctor import Finding, examine, read_facts
from bertlab.studies.report import report
from bertlab.train.build import build_pretraining
from bertlab.train.checks import check_config
from bertlab.transfer.pretrain import measure, pretrain
from tests.objectives.cloze import Cloze
from tests.objectives.diffusion import Diffusion
from tests.references import views_of

SETTINGS = {
    "data__corpus": "synthetic",
    "data__format": "sentence_pair",
    "data__seq_len": 19,
    "model__layers": 1,
    "data__tokenizer__kind": "words",
    "data__tokenizer__vocab_size": 13,
    "train__steps": 6,
    "train__log_every": 3,
    "train__eval_every": 0,
    "evaluate__sentences": 3,
}
FILES = {"Cloze": "cloze.py", "Diffusion": "diffusion.py"}


@pytest.fixture(scope="module", params=FILES)
def own(request, small_config, tmp_path_factory):
    """The objective's name, and its config beside nsp, with the objective in a file that only PYTHONPATH knows."""
    place, name = tmp_path_factory.mktemp("outside"), request.param
    module = f"outside_{name.lower()}"
    shutil.copy(Path(__file__).parent / FILES[name], place / f"{module}.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        config = small_config(f"experiments/pretrain/bert.py:objectives={module}:{name}+nsp", **SETTINGS)
        config.data.synthetic.update(documents=60, vocab_size=8, topics=2, states=3)
        config.data.synthetic.update(sentence_words=(8, 8), document_sentences=(4, 4))
        directory = tmp_path_factory.mktemp("run") / name
        yield SimpleNamespace(name=name, config=config, directory=directory, result=pretrain(config, directory))


@pytest.mark.parametrize("file", FILES.values())
def test_it_is_one_short_file_of_public_names(file):
    lines = (Path(__file__).parent / file).read_text().splitlines()
    imports = [line for line in lines if "import" in line and "bertlab" in line]
    assert len(lines) <= 50 and imports == ["from bertlab.objectives import Corruption, Objective, Scoring"]


def test_it_trains_and_others_share_its_view(own):
    assert Program(None, build(own.config.objectives), None).groups == {own.name: (own.name, "nsp")}
    assert check_config(own.config)[own.name].has_view
    lines = [json.loads(line) for line in (own.directory / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert train[-1]["step"] == 6 and train[-1][f"{own.name}/loss"] < train[0][f"{own.name}/loss"]
    assert own.result["supervised"] > 0


def test_it_is_scored(own):
    model = bertlab.load(own.directory)
    assert model.kinds == ("pseudo", "pseudo-within-word", "any-order")
    [score] = model.score(["w1 w2 w3"])
    assert score.tokens == 3 and score.log_probability < 0
    measured = json.loads((own.directory / "evaluation.json").read_text())["bits_per_byte"]["test split"]
    assert set(measured) == {"pseudo", "pseudo-within-word", "any-order"} and 0 < measured["pseudo"]["value"] < 8
    assert 0 < measured["any-order"]["value"] < 9 and measured["any-order"]["order_error"] > 0


def test_it_has_a_floor_and_its_loss_lies_above(own):
    found = json.loads((own.directory / "floor.json").read_text())
    assert set(found) == {own.name, "nsp"}
    for name, floor in found.items():
        assert floor["value"] + floor["above"] == pytest.approx(own.result["metrics"]["test"][f"{name}/loss"], rel=1e-5)
        assert floor["above"] > -3 * floor["above_standard_error"]
    facts = json.loads((own.directory / "data.json").read_text())
    assert facts["objectives"][own.name]["asks"] == "tokens"
    assert facts["objectives"][own.name]["guessing"] == pytest.approx(facts["corpus"]["unigram_entropy"])
    assert facts["objectives"]["nsp"]["guessing"] == pytest.approx(np.log(2), abs=0.05)


def test_its_floor_weighs_each_position_as_its_loss_does(own, monkeypatch):
    experiment = build_pretraining(own.config)
    keys = [jax.random.fold_in(jax.random.key(0), index) for index in range(len(experiment.evaluations["test"]))]
    views = [experiment.program.views(batch, key)[own.name] for batch, key in zip(experiment.evaluations["test"], keys)]
    found = json.loads((own.directory / "floor.json").read_text())[own.name]
    assert found["positions"] == sum(int(view["chosen"].sum()) for view in views)
    # In place of its nats, the share of its row that is masked.
    kind, kept = find(own.config.objectives[own.name].implementation), []
    floor = kind.floor

    def of_shares(self, oracle, view, batch):
        share = np.broadcast_to(view["chosen"].mean(axis=1, keepdims=True), view["chosen"].shape)
        kept.append((share, np.asarray(floor(self, oracle, view, batch)[1], float)))
        return kept[-1]

    monkeypatch.setattr(kind, "floor", of_shares)
    value = floors.floors(experiment)[own.name].value
    nats, weights = map(np.concatenate, zip(*kept))
    assert value == pytest.approx((nats * weights).sum() / weights.sum())
    monkeypatch.setattr(kind, "floor", lambda self, oracle, view, batch: (0.0 * view["chosen"], 0.0 * view["chosen"]))
    assert isinstance(floors.floors(experiment)[own.name], str)


def test_it_is_examined(own):
    found = examine(read_facts(own.directory))
    assert found["loss not below its floor"] is None and found["loss not next to nothing"] is None
    assert {own.name, "nsp"} == set(read_facts(own.directory).objectives)
    floor = json.loads((own.directory / "floor.json").read_text())
    leaking = dataclasses.replace(read_facts(own.directory), floor=floor | {own.name: floor[own.name] | {"above": -1.0}})
    assert isinstance(examine(leaking)["loss not below its floor"], Finding)


MISTAKES = {
    "floor": lambda self, oracle, view, batch: view["nowhere"],
    "floor of other rows": lambda self, oracle, view, batch: (np.zeros((1, 19)), np.ones((1, 19))),
    "floor without weights": lambda self, oracle, view, batch: None,
    "floor with one value": lambda self, oracle, view, batch: np.zeros((2, *view["chosen"].shape)),
    "floor with negative weights": lambda self, oracle, view, batch: (view["chosen"], -1.0 * view["chosen"]),
    "corruption": lambda self, view, vocabulary: view["nowhere"],
    "corruption of another type": lambda self, view, vocabulary: 0.3,
    "scoring": lambda self: self.nowhere,
    "token_logits": lambda self, model, hidden, side: self.nowhere,
    "token_logits of another shape": lambda self, model, hidden, side: hidden,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_its_judging_is_recorded_once_with_its_line(own, mistake, tmp_path, monkeypatch, capsys):
    method, kind = mistake.split()[0], find(own.config.objectives[own.name].implementation)
    part = "evaluation" if method in ("scoring", "token_logits") else "floor"
    run = shutil.copytree(own.directory, tmp_path / "run")
    for file in ("measured.json", f"{part}.json", "files.json"):
        (run / file).unlink()
    if method == "corruption":  # asked by nsp, which shares the view
        monkeypatch.setattr(kind, "floor", Objective.floor)
    monkeypatch.setattr(kind, method, MISTAKES[mistake])
    measure(run)
    reason = Run(run).measured.read()[part]
    line = MISTAKES[mistake].__code__.co_firstlineno
    assert reason.startswith(f"objective {own.name}: {__file__}, line {line}: ") and f"in {method}()" in reason
    assert f"no {part}: {reason}" in capsys.readouterr().out
    measure(run)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("ours", [Cloze(rate=0.4), Diffusion(least=0.3)])
def test_its_floor_is_that_of_mlm_on_the_same_view(ours):
    model = language(vocab_size=8, topics=2, states=3, seed=0, sentence_words=(8, 8), document_sentences=(4, 4))
    tokens = np.random.default_rng(0).integers(5, 13, (6, 8)).astype(np.int32)
    batch = {name: np.zeros_like(tokens) for name in ("segments", "positions")}
    batch |= {"tokens": tokens, "documents": np.ones_like(tokens)}
    vocabulary = Vocabulary(13, 0, 1, 2, 3, 4)
    view = views_of(Program(None, {"own": ours}, vocabulary), batch)["own"]
    theirs = REGISTRY["mlm"](rate=0.4, exact=False, mask_share=1.0, random_share=0.0)
    everywhere = np.tile(np.arange(8), (6, 1))
    as_mlm = {**view, "masked_positions": everywhere, "masked_weights": view["chosen"]}
    chain = floors.chain_of(model, 13, np.arange(5, 13))
    oracle = floors.ExactOracle(chain, batch, vocabulary, {"follows": 1.0}, view)
    nats, weights = floors.floor(ours, oracle)
    assert 0 < (weights > 0).sum() < weights.size
    np.testing.assert_allclose(nats, floors.floor(theirs, dataclasses.replace(oracle, view=as_mlm))[0], rtol=1e-10)


def test_it_is_reported(own, capsys):
    report(own.directory)
    capsys.readouterr()
    page = (own.directory / "report.html").read_text()
    assert f"{own.name}/loss" in page and "bits per byte" in page.lower()
