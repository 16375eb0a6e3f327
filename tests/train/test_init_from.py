"""A run that begins with another's parameters has its model and tokenizer too, and says what it begins afresh."""

import json

import jax
import numpy as np
import pytest

from bertlab.config import flatten, load_config
from bertlab.errors import UserError
from bertlab.interop import import_weights
from bertlab.run import Run
from bertlab.train import loop
from bertlab.train.build import begun_from, build_pretraining
from bertlab.train.checkpoint import load_params
from tests.conftest import ROOT
from tests.interop import published


def flat(params) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in jax.tree.leaves_with_path(params)}


def test_it_begins_with_the_parameters_and_the_tokenizer_of_a_run(small_config, tmp_path, capsys):
    loop.train(small_config("bert", train__steps=4, model__hidden=24), tmp_path / "first")
    recipe = f"{ROOT}/experiments/pretrain/bert.py:objectives=ltr"
    second = small_config(recipe, train__steps=0, model__direction="left-to-right", init_from=str(tmp_path / "first"))
    second.model.update(width=None, hidden=None)
    second.data.tokenizer.vocab_size = 380
    loop.train(second, tmp_path / "second")
    assert f"not in {tmp_path / 'first'}, so newly initialized" not in capsys.readouterr().out
    first, begun = flat(load_params(tmp_path / "first")), flat(load_params(tmp_path / "second"))
    assert begun.keys() < first.keys(), "the pooler and the sentence head have no part in the new objective"
    for name, array in begun.items():
        np.testing.assert_array_equal(array, first[name], err_msg=name)
    assert begun["body/token_embedding"].shape == (400, 16)


def test_it_says_what_the_other_run_does_not_have(small_config, tmp_path, capsys):
    without = small_config(f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm", train__steps=0)
    loop.train(without, tmp_path / "without")
    capsys.readouterr()
    loop.train(small_config("bert", train__steps=0, init_from=str(tmp_path / "without")), tmp_path / "with")
    assert f"not in {tmp_path / 'without'}, so newly initialized: " in (out := capsys.readouterr().out)
    assert "heads_nsp/kernel" in out and "token_embedding" not in out


@pytest.mark.slow
def test_continued_pretraining_goes_on_with_another_objective_in_its_direction(bert_run, tmp_path):
    """Everything else is the run's, the values with which it begins included."""
    recipe = f"{ROOT}/experiments/pretrain/continued.py:run="
    before = Run(bert_run).config.read()
    config = load_config(f"{recipe}{bert_run},objectives=ltr,steps=0")
    config.data.unique_tokens = 300
    assert begun_from(config).model.direction == "left-to-right" and list(config.objectives) == ["ltr"]
    assert json.loads(json.dumps(config.data.to_dict())) == before["data"] | {"unique_tokens": 300}
    same = flatten(before["optimizer"])
    assert same.pop("warmup_steps") == 0 and same.items() <= flatten(config.optimizer).items()
    loop.train(config, tmp_path / "ltr")
    first, begun = flat(load_params(bert_run)), flat(load_params(tmp_path / "ltr"))
    assert begun and all(np.array_equal(array, first[name]) for name, array in begun.items())
    again = load_config(f"{recipe}{tmp_path / 'ltr'},objectives=masked_next_token,corpus=text:other.txt,mask_rate=0.4")
    assert begun_from(again).model.direction == "bidirectional", "left to right, it would see no token that is to come"
    assert (again.data.corpus, again.objectives.masked_next_token.rate, again.train.steps) == ("text:other.txt", 0.4, 1000)
    assert again.data.unique_tokens == 0, "a limit was for the other text"
    Run(tmp_path / "import").config.write(before)
    Run(tmp_path / "import").imported.write({"from": "huggingface"})
    with pytest.raises(UserError, match="is an import, which has no text; add corpus="):
        load_config(f"{recipe}{tmp_path / 'import'}")
    Run(tmp_path / "tuned").config.write({"transfer": {}, "model": before["model"]})
    with pytest.raises(UserError, match="is a fine-tuning and has no pretraining objective"):
        load_config(f"{recipe}{tmp_path / 'tuned'}")
    Run(tmp_path / "exported").config.write({"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    with pytest.raises(UserError, match="exported is a directory of transformers; run `bertlab import --from=huggingface "):
        load_config(f"{recipe}{tmp_path / 'exported'}")
    Run(tmp_path / "other").config.write({"epochs": 3})
    with pytest.raises(UserError, match=r"config\.json is not the config of a model; give the --workdir of"):
        load_config(f"{recipe}{tmp_path / 'other'}")
    with pytest.raises(UserError, match="run= is missing"):
        load_config(recipe.removesuffix("run="))


@pytest.mark.parametrize(
    "kind", [pytest.param("roberta", marks=pytest.mark.slow), pytest.param("gpt2", marks=pytest.mark.nightly)]
)
def test_an_imported_model_is_trained_further(kind, small_config, tmp_path):
    import_weights("huggingface", published.write_directory(kind, tmp_path / "source"), tmp_path / "imported")
    recipe = {"gpt2": "gpt", "roberta": f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm"}[kind]
    config = small_config(recipe, train__steps=3, init_from=str(tmp_path / "imported"), data__seq_len=16)
    config.model.update(width=None, hidden=None)
    result = loop.train(config, tmp_path / "run")
    theirs, ours = flat(load_params(tmp_path / "imported")), flat(load_params(tmp_path / "run"))
    changes = {name: np.abs(ours[name] - theirs[name]).max() for name in ours if name in theirs}
    assert len(changes) == len(theirs)
    # Three steps at the recipe's rate move no weight far from where it was published.
    assert 0 < max(changes.values()) < 0.02
    assert np.isfinite(result["metrics"]["test"]["loss"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.family": "modern"}, r"'bert'.*config.model.family is 'modern'"),
        ({"model.activation": "relu"}, r"config.model.activation='relu' .*config.init_from=.* 'gelu_tanh'"),
        ({"model.layers": 3}, r"config.model.layers=3 .*config.init_from=.* 1"),
        ({"init_from": "nowhere"}, r"config.init_from=nowhere has no config.json; give the --workdir"),
    ],
)
def test_a_model_that_is_not_the_other_runs_is_refused(overrides, message, small_config, bert_run, tmp_path):
    config = small_config("bert", **{"init_from": str(bert_run)} | overrides)
    with pytest.raises(UserError, match=message):
        loop.train(config, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_another_vocabulary_is_refused(small_config, bert_run, tmp_path):
    build_pretraining(small_config("bert", data__tokenizer__vocab_size=380)).tokenizer.save(tmp_path / "other")
    config = small_config("bert", init_from=str(bert_run))
    config.data.tokenizer.path = str(tmp_path / "other")
    with pytest.raises(UserError, match=rf"another vocabulary; set config.data.tokenizer.path={bert_run}/tokenizer"):
        loop.train(config, tmp_path / "second")


def test_how_it_is_computed_stays_its_own(small_config, bert_run, tmp_path):
    recorded = json.loads((bert_run / "config.json").read_text())
    recorded["model"]["dropout"] = 0.3
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    config = small_config("bert", init_from=str(tmp_path), model__dtype="bfloat16", model__remat="full")
    begun = begun_from(config)
    assert (begun.model.dtype, begun.model.remat, begun.model.dropout) == ("bfloat16", "full", 0.3)
    config.model.dropout = 0.0
    assert begun_from(config).model.dropout == 0.0
    assert config.model.size == "tiny" and begun_from(small_config("bert")) is not None
