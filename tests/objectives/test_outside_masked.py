"""A masked objective from outside the package (cloze.py) is trained, scored, held against its floor and reported like mlm."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bertlab
from bertlab import floors
from bertlab.data.synthetic import language
from bertlab.objectives import REGISTRY, Vocabulary, build
from bertlab.objectives.program import Program
from bertlab.studies.report import report
from bertlab.train.checks import check_config
from bertlab.transfer.pretrain import pretrain
from tests.objectives.cloze import Cloze
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


@pytest.fixture(scope="module")
def config(small_config, tmp_path_factory):
    """Its config beside nsp, with the objective in a file that only PYTHONPATH knows."""
    place = tmp_path_factory.mktemp("outside")
    shutil.copy(Path(__file__).parent / "cloze.py", place / "outside_cloze.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        config = small_config("experiments/pretrain/bert.py:objectives=outside_cloze:Cloze+nsp", **SETTINGS)
        config.data.synthetic.update(documents=60, vocab_size=8, topics=2, states=3)
        config.data.synthetic.update(sentence_words=(8, 8), document_sentences=(4, 4))
        yield config


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "cloze"
    return directory, pretrain(config, directory)


def test_it_is_one_short_file_of_public_names():
    lines = (Path(__file__).parent / "cloze.py").read_text().splitlines()
    imports = [line for line in lines if "import" in line and "bertlab" in line]
    assert len(lines) <= 40 and imports == ["from bertlab.objectives import Corruption, Objective, Scoring"]


def test_it_trains_and_others_share_its_view(config, run):
    directory, result = run
    assert Program(None, build(config.objectives), None).groups == {"Cloze": ("Cloze", "nsp")}
    assert check_config(config)["Cloze"].has_view
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert train[-1]["step"] == 6 and train[-1]["Cloze/loss"] < train[0]["Cloze/loss"]
    assert result["supervised"] > 0


def test_it_is_scored(run):
    directory, _ = run
    model = bertlab.load(directory)
    assert model.kinds == ("pseudo", "pseudo-within-word")
    [score] = model.score(["w1 w2 w3"])
    assert score.tokens == 3 and score.log_probability < 0
    measured = json.loads((directory / "evaluation.json").read_text())["bits_per_byte"]["test split"]
    assert set(measured) == {"pseudo", "pseudo-within-word"} and 0 < measured["pseudo"]["value"] < 8


def test_it_has_a_floor_and_its_loss_lies_above(run):
    directory, result = run
    found = json.loads((directory / "floor.json").read_text())
    assert set(found) == {"Cloze", "nsp"}
    for name, floor in found.items():
        assert floor["value"] + floor["above"] == pytest.approx(result["metrics"]["test"][f"{name}/loss"], rel=1e-5)
        assert floor["above"] > -3 * floor["above_standard_error"]
    facts = json.loads((directory / "data.json").read_text())
    assert facts["objectives"]["Cloze"]["asks"] == "tokens"
    assert facts["objectives"]["Cloze"]["guessing"] == pytest.approx(facts["corpus"]["unigram_entropy"])
    assert facts["objectives"]["nsp"]["guessing"] == pytest.approx(np.log(2), abs=0.05)


def test_its_floor_is_that_of_mlm_on_the_same_view():
    model = language(vocab_size=8, topics=2, states=3, seed=0, sentence_words=(8, 8), document_sentences=(4, 4))
    tokens = np.random.default_rng(0).integers(5, 13, (6, 8)).astype(np.int32)
    batch = {name: np.zeros_like(tokens) for name in ("segments", "positions")}
    batch |= {"tokens": tokens, "documents": np.ones_like(tokens)}
    vocabulary, ours = Vocabulary(13, 0, 1, 2, 3, 4), Cloze(rate=0.4)
    view = views_of(Program(None, {"own": ours}, vocabulary), batch)["own"]
    theirs = REGISTRY["mlm"](rate=0.4, exact=False, mask_share=1.0, random_share=0.0)
    everywhere = np.tile(np.arange(8), (6, 1))
    as_mlm = {**view, "masked_positions": everywhere, "masked_weights": view["chosen"]}
    chain = floors.chain_of(model, 13, np.arange(5, 13))
    oracle = floors.ExactOracle(chain, batch, vocabulary, {"follows": 1.0}, view)
    nats, weights = floors.floor(ours, oracle)
    assert 0 < weights.sum() < weights.size
    np.testing.assert_allclose(nats, floors.floor(theirs, dataclasses.replace(oracle, view=as_mlm))[0], rtol=1e-10)


def test_it_is_reported(run, capsys):
    directory, _ = run
    report(directory)
    capsys.readouterr()
    page = (directory / "report.html").read_text()
    assert "Cloze/loss" in page and "bits per byte" in page.lower()
