"""Arguments after the colon, `--config.` paths, and every recipe of the repository."""

import dataclasses
import itertools
import re

import pytest
from ml_collections import ConfigDict

from bertlab.config import (
    add_objectives,
    base_config,
    brought,
    flatten,
    load_config,
    parse_arguments,
    parse_override,
    set_key,
    split_list,
)
from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.objectives import REGISTRY
from bertlab.run import Run
from bertlab.train.checks import check_config
from tests.conftest import ROOT

RECIPES = sorted(path for path in (ROOT / "experiments" / "pretrain").glob("*.py") if path.stem != "continued")
BERT = str(ROOT / "experiments/pretrain/bert.py")


def test_arguments_take_the_types_of_their_defaults():
    defaults = dict(size="tiny", steps=10, rate=0.5, lower=False)
    assert parse_arguments(None, **defaults) == parse_arguments("", **defaults) == defaults
    values = parse_arguments("steps=20,rate=1,lower=True,size=a=b", **defaults)
    assert values == dict(size="a=b", steps=20, rate=1.0, lower=True)
    assert [type(value) for value in values.values()] == [str, int, float, bool]
    # A value goes on to the next key, so that globs may be joined by commas.
    values = parse_arguments("size=text:a.txt,b/*.txt,steps=20,", **defaults)
    assert (values["size"], values["steps"]) == ("text:a.txt,b/*.txt", 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=3", r"'depth' is not known; the arguments \(with defaults\) are size=tiny, steps=10, rate$"),
        ("sise=a", r"'sise' is not known; did you mean size\? If not, the arguments .*"),
        ("size", r"'size' has no value; write size=VALUE"),
        ("steps=many", r"steps=many: .*int.* steps=10"),
        ("size=a,,steps=2.5", r"steps=2.5: .*int"),
        ("size=a,steps=2,size=b,c", r"'size=a,steps=2,size=b,c': size is given twice"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_known(text, message):
    with pytest.raises(UserError, match=message):
        parse_arguments(text, size="tiny", steps=10, rate=0.0)


def test_a_list_has_each_value_once_and_none_that_is_empty():
    assert split_list("--x", " a,b ") == ["a", "b"] and split_list("--x", "0,-1", int) == [0, -1]
    for text, kind, message in [
        (",", str, "--x=,: expected names joined by commas"),
        ("a,", str, "--x=a,: expected names joined by commas"),
        ("0,x", int, "--x=0,x: expected names joined by commas"),
        ("00,1,0", int, "--x=00,1,0: 0 is given twice; give each once"),
    ]:
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            split_list("--x", text, kind, "names")


def test_unknown_argument_of_a_recipe_lists_its_arguments():
    with pytest.raises(
        UserError, match=r"'stride' .*size=tiny, objectives=mlm\+nsp, corpus=pydocs, steps, mask_rate$"
    ) as refusal:
        load_config(f"{BERT}:stride=2")
    assert "\n" not in str(refusal.value)


def test_overrides_from_the_command_line_take_the_keys_types():
    given = {"train.steps": "200", "model.layers": "3", "model.dropout": "0", "seed": "1", "model.direction": "left-to-right"}
    given |= {"objectives.mlm.weight": "2", "optimizer.coupled_decay": "true"}
    argv = ["--workdir=x", *(f"--config.{name}={text}" for name, text in given.items())]
    config = flatten(load_config(f"{BERT}:size=mini,objectives=mlm+nsp,corpus=text:a/*.txt", argv=argv))
    values = [200, 3, 0.0, 1, "left-to-right", 2.0, True]
    assert [config[name] for name in given] == values
    assert [type(config[name]) for name in given] == [type(value) for value in values]
    others = [config[name] for name in ("objectives.nsp.weight", "model.size", "data.corpus")]
    assert others == [1.0, "mini", "text:a/*.txt"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.train.stepz=3", r"--config.train.stepz: .*did you mean train.steps"),
        ("--config.batch_size=3", r"no key 'batch_size'; did you mean data.batch_size"),
        ("--config.optimizer.lr=1", r"no key 'optimizer.lr'; did you mean optimizer.learning_rate\?$"),
        ("--config.x=1", r"no key 'x'; its keys are data.\*, evaluate.\*, init_from, .*, seed, train.\*, writers$"),
        ("--config.objectives.ltr.weight=1", r"no key 'objectives.ltr.weight'"),
        ("--config.train.steps", r"write it as --config.train.steps=VALUE"),
        ("--config.train.steps=many", r"config.train.steps.*many"),
        ("--config.optimizer.coupled_decay=maybe", r"coupled_decay.*maybe"),
    ],
)
def test_wrong_overrides_are_refused(argument, message):
    with pytest.raises(UserError, match=message):
        load_config(BERT, argv=[argument])


def test_a_config_file_is_found_from_the_repositorys_root_and_here_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = load_config("experiments/pretrain/bert.py:size=mini", argv=["--config.train.steps=3"])
    assert flatten(elsewhere) == flatten(load_config(f"{BERT}:size=mini", {"train.steps": 3}))
    (tmp_path / "experiments/pretrain").mkdir(parents=True)
    own = "from bertlab.config import base_config\n\n\ndef get_config(arguments=None):\n    config = base_config()\n"
    (tmp_path / "experiments/pretrain/bert.py").write_text(f"{own}    config.seed = 17\n    return config\n")
    assert load_config("experiments/pretrain/bert.py").seed == 17


def test_missing_config_file_is_refused():
    with pytest.raises(UserError, match=rf"nowhere/bert.py is missing here and in {ROOT}; give the path"):
        load_config("nowhere/bert.py:size=tiny")


def test_an_override_takes_settings_of_what_it_replaces_with_it():
    spec = str(ROOT / "experiments/pretrain/elmo.py:tokens=characters")
    assert load_config(spec).data.stream.wrap == "sentence"
    replaced = load_config(spec, {"data.format": "full_sentences"}, ["--config.optimizer.name=adam"])
    assert (replaced.data.stream.wrap, replaced.data.stream.backward) == ("document", False)
    assert replaced.optimizer.initial_accumulator == 1.0
    with pytest.raises(UserError, match=r"config\.data\.stream\.wrap='sentence' has no effect"):
        check_config(load_config(spec, {"data.format": "full_sentences", "data.stream.wrap": "sentence"}))


def test_a_file_s_own_setting_without_effect_is_refused(tmp_path):
    own = "from bertlab.config import base_config\n\n\ndef get_config(arguments=None):\n    config = base_config()\n"
    (tmp_path / "mine.py").write_text(f"{own}    config.optimizer.muon_rate = 3.0\n    return config\n")
    with pytest.raises(UserError, match=r"config\.optimizer\.muon_rate=3\.0 has no effect"):
        check_config(load_config(str(tmp_path / "mine.py"), {"train.steps": 5}))


def test_a_config_file_is_run_once(tmp_path, monkeypatch):
    lines = ["from bertlab.config import base_config", "", "", "def get_config(arguments=None):", "    RAN.append(arguments)"]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "    return base_config()", ""]))
    ran = []
    monkeypatch.setattr("builtins.RAN", ran, raising=False)
    config = load_config(f"{tmp_path}/mine.py:size=tiny", {"seed": 3}, ["--config.train.steps=5"])
    assert (config.seed, config.train.steps, ran) == (3, 5, ["size=tiny"])
    brought(f"{tmp_path}/mine.py:size=tiny", config, ["--config.train.steps=5"])
    assert ran == ["size=tiny", None]  # once more without arguments, to see what they changed


def test_set_key_and_parse_override():
    config = base_config()
    set_key(config, "optimizer.learning_rate", 1)
    set_key(config, "model.layers", 3)
    set_key(config, "data.tokenizer", {"kind": "bpe"})
    assert (config.optimizer.learning_rate, config.model.layers, config.data.tokenizer.kind) == (1.0, 3, "bpe")
    assert config.data.tokenizer.vocab_size == base_config().data.tokenizer.vocab_size
    with pytest.raises(UserError, match=r"'train.step'; did you mean train.steps"):
        set_key(config, "train.step", 3)
    with pytest.raises(UserError, match=r"'objectives.mlm.rat'; did you mean objectives.mlm.rate"):
        load_config(BERT, {"objectives": {"mlm": {"rat": 0.3}}})
    with pytest.raises(UserError, match=r"config.train.steps='many': "):
        set_key(config, "train.steps", "many")
    assert parse_override(config, "model.filters", "((1,8),(2,16))") == ((1, 8), (2, 16))
    with pytest.raises(UserError, match=r"--config.model.filters=8: expected a tuple"):
        parse_override(config, "model.filters", "8")
    with pytest.raises(UserError, match=r"--config.train.steps=1.5: expected a whole number"):
        parse_override(config, "train.steps", "1.5")


def test_flatten():
    config = ConfigDict({"a": {"b": 1, "c": {"d": "x"}}, "e": {}, "f": None})
    assert flatten(config) == {"a.b": 1, "a.c.d": "x", "e": {}, "f": None}
    assert flatten(config.to_dict()) == flatten(config)


def test_objectives_bring_their_settings():
    config = base_config()
    add_objectives(config, "bilm")
    settings = {"weight": 0.5, "final_weight": None, "negatives": 0}
    assert config.objectives.to_dict() == {"ltr": settings, "rtl": settings}
    config = base_config()
    add_objectives(config, "mlm+bertlab.objectives.next_sentence:NextSentence")
    assert config.objectives.NextSentence.to_dict() == {
        "weight": 1.0,
        "final_weight": None,
        "implementation": "bertlab.objectives.next_sentence:NextSentence",
    }
    fields = {field.name for field in dataclasses.fields(REGISTRY["mlm"])}
    assert fields | {"weight", "final_weight"} == set(config.objectives.mlm)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_with_every_size_of_its_family(path):
    family = load_config(str(path)).model.family
    for size, steps in itertools.product(FAMILIES[family].sizes, (12, 1_000_000)):
        config = load_config(f"{path}:size={size},corpus=text:x,steps={steps}")
        assert (config.model.size, config.data.corpus, config.train.steps) == (size, "text:x", steps)
        check_config(config)
    assert {path.stem for path in RECIPES} >= {"bert", "gpt", "elmo"}


@pytest.mark.parametrize("more", [{}, {"task": "next_sentence"}, {"task": "next_sentence", "transfer": {}}])
def test_a_run_from_before_a_refusal_did_what_the_defaults_do(more, tmp_path):
    """A whole number stands for a float too; an adaptation has a task and keeps its objectives, a fine-tuning has heads."""
    saved = load_config("experiments/pretrain/bert.py:objectives=mlm").to_dict() | more
    saved["optimizer"] |= {"decay": "constant", "decay_from_start": False, "ratio": 20}
    saved["objectives"]["mlm"]["static_seed"] = 7
    saved["objectives"]["package"] = {"weight": 1.0}  # a head, or what an objective is no longer called
    Run(tmp_path).config.write(saved)
    config = Run(tmp_path).config.read()
    assert (config["optimizer"]["decay_from_start"], config["optimizer"]["ratio"]) == (True, 32.0)
    assert config["objectives"]["mlm"]["static_seed"] == (7 if "transfer" in more else 12345)
    del config["objectives"]["package"]
    if not more:
        check_config(ConfigDict(config))


@pytest.mark.parametrize("names", ["ltr", "diffusion", "prefix+nsp"])
def test_a_mask_rate_that_no_objective_has_is_refused(names):
    with pytest.raises(UserError, match=f"mask_rate=0.3.*objectives={re.escape(names)} .*omit"):
        load_config(f"experiments/pretrain/bert.py:objectives={names},mask_rate=0.3")


@pytest.mark.parametrize("name", ["mlm", "electra", "masked_next_token"])
def test_mask_rate_is_that_of_every_masked_objective(name):
    config = load_config(f"experiments/pretrain/bert.py:objectives={name},mask_rate=0.4")
    assert config.objectives[name].rate == 0.4
