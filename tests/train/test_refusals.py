"""What cannot be is refused before anything runs, with a message that names the key to change."""

import dataclasses
import sys
import types

import jax
import numpy as np
import pytest

from bertlab import objectives
from bertlab.config import add_objectives, base_config, load_config
from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from bertlab.train import loop
from bertlab.train.checks import check_config
from bertlab.transfer.finetune import finetune
from tests.conftest import ROOT
from tests.interop.published import write_tokenizer

FAMILIES = ("bert", "gpt", "modern", "elmo", "awd_lstm", "static")
BERT, GPT, MODERN, ELMO, AWD, STATIC = (str(ROOT / f"experiments/pretrain/{family}.py") for family in FAMILIES)
STATEFUL = {"model.stateful": True, "data.format": "stream"}
PALLAS = {"model.attention": "pallas", "model.dropout": 0.0}
CHARACTERS = {"model.token_encoder": "characters"}

# Recipe, overrides, and what the message must name. Every objective on every model and format is in
# contracts/test_models_and_objectives.py, the range of every key in test_keys.py; the first cases show that these come first.
CASES = [
    (f"{BERT}:objectives=ltr", {"model.direction": "bidirectional"}, "objective ltr .*config.model.direction='left-to-right'"),
    (f"{BERT}:objectives=ltr+mlm", {}, "objective ltr .*train prefix with .*prefix.max_share=0 instead of ltr$"),
    (f"{BERT}:objectives=diffusion+ltr", {}, "objective ltr .*train prefix with .*prefix.max_share=0 instead of ltr$"),
    (f"{BERT}:objectives=mlm+bilm", {}, "objective ltr .*no direction of bert suits ltr, mlm, rtl: use the recipe of elmo$"),
    (f"{BERT}:objectives=mlm", {"model.family": "awd_lstm"}, "objective mlm .*awd_lstm.* bert or .*modern"),
    (f"{BERT}:objectives=ltr+electra", {}, "objective ltr .*prefix.max_share=0 instead of ltr$"),
    (f"{BERT}:objectives=bilm+electra", {}, "objective ltr .*no model suits electra, ltr, rtl"),
    (MODERN, PALLAS | {"data.seq_len": 100}, "attention='pallas' needs rows .*128 .*, not 100;"),
    (f"{STATIC}:objectives=skip_gram+glove", {}, "objective skip_gram .*config.data.format='cooccurrence' .*'segment_pair'"),
    (f"{BERT}:objectives=skip_gram", {}, "objective skip_gram .*config.model.family='static'"),
    (f"{BERT}:objectives=mlm+nsp", {"data.format": "full_sentences"}, "objective nsp .*config.data.format='segment_pair'"),
    (
        f"{BERT}:objectives=mlm",
        {"data.format": "cooccurrence"},
        "objective mlm .*format='cooccurrence' .*'segment_pair'",
    ),
    (AWD, {"model.direction": "bidirectional"}, "config.model.direction='bidirectional'.*left-to-right or right-to-left"),
    (BERT, {"data.seq_len": 4}, "config.data.seq_len=4"),
    (BERT, {"objectives.nsp.weight": float("nan")}, "config.objectives.nsp.weight=nan"),
    # Sizes that do not fit each other.
    (BERT, {"data.seq_len": 513}, "config.data.seq_len=513 .* 512 .*config.model.max_positions"),
    (BERT, {"data.seq_len": 32, "model.max_positions": 16}, "config.data.seq_len=32 .* 16 "),
    (BERT, {"mesh.data": 8, "data.batch_size": 12}, "config.data.batch_size=12 .*config.mesh"),
    (BERT, {"train.micro_batches": 3}, r"batch_size=8 .*config.train.micro_batches \(3\)"),
    (BERT, {"mesh.data": 16, "data.batch_size": 16}, r"config.mesh \(data=16, .* 16 devices.* 8"),
    (f"{BERT}:objectives=mlm", {"mesh.sequence": 4}, "config.mesh.sequence=4 times .*tensor=1 does not .* 2 heads"),
    (GPT, {"mesh.sequence": 2, "mesh.tensor": 2}, "config.mesh.sequence=2 times config.mesh.tensor=2 does not .* 2 heads"),
    (GPT, {"mesh.sequence": 2, "data.seq_len": 31}, "config.mesh.sequence=2 does not divide rows of 31 positions"),
    (f"{BERT}:objectives=permutation", {"mesh.sequence": 2}, "sequence=2 .* 37 positions that objective permutation .* 32"),
    (ELMO, {"mesh.sequence": 2}, "config.mesh.sequence=2 .*'elmo' read a row one position after another"),
    (f"{STATIC}:objectives=glove", {"mesh.sequence": -1, "mesh.data": 1}, "config.mesh.sequence=-1 .*'static' have no states"),
    (BERT, {"optimizer.warmup_steps": 20}, "config.optimizer.warmup_steps=20 .*config.train.steps=20"),
    (BERT, {"model.heads": 3}, "config.model.width=16 .*config.model.heads=3"),
    # Objectives and data.
    (BERT, {"objectives.nsp.weight": 0.0, "objectives.mlm.weight": 0.0}, r"config.objectives.NAME.weight .*\(mlm, nsp\)"),
    (BERT, {"objectives.nsp.weight": -0.5}, "config.objectives.nsp.weight=-0.5"),
    (BERT, {"data.segment_pair.own_document_retries": -1}, "config.data.segment_pair.own_document_retries=-1"),
    (BERT, {"data.format": "pairs"}, "config.data.format='pairs' .*segment_pair, full_sentences"),
    (f"{STATIC}:objectives=glove", {"data.cooccurrence.window": 0}, "config.data.cooccurrence.window=0"),
    (f"{STATIC}:objectives=glove", {"data.characters": True}, "config.data.characters=True .*'cooccurrence'"),
    (ELMO, {**STATEFUL, "data.stream.wrap": "line"}, "config.data.stream.wrap='line' .*document, sentence, none"),
    # Families and what they lack.
    (BERT, {"model.family": "bart"}, f"config.model.family='bart' .*{', '.join(FAMILIES)}"),
    (BERT, {"model.size": "huge"}, "config.model.size='huge' .*tiny, mini"),
    (ELMO, {"model.size": "base"}, "config.model.size='base' .*original"),
    (ELMO, {"model.heads": 2}, "config.model.heads=2: elmo"),
    (STATIC, {"model.remat": "full"}, "config.model.remat=full: static"),
    (AWD, {"model.scan_layers": False}, "config.model.scan_layers=False: awd_lstm"),
    (BERT, {"model.rotary_base": 5.0}, "config.model.rotary_base=5.0"),
    (MODERN, {"model.local_window": 0, "model.global_every": 5}, "config.model.global_every=5"),
    (MODERN, {"model.max_positions": 64}, "config.model.max_positions=64"),
    (ELMO, {"model.clip": 0.0}, "config.model.clip=0.0"),
    # Characters.
    (BERT, CHARACTERS, "config.model.token_encoder=characters: bert"),
    (ELMO, CHARACTERS, "config.model.token_encoder='characters' .*config.data.characters=True"),
    (ELMO, {**CHARACTERS, "data.characters": True, "data.tokenizer.kind": "bpe"}, "'bpe' .*config.data.tokenizer.kind='words'"),
    (f"{ELMO}:objectives=mlm,tokens=characters", {"model.stateful": False}, "objective mlm .*config.model.token_encoder='ids'"),
    (f"{ELMO}:tokens=characters", {"model.tied": True}, "config.model.tied=True .*token_encoder='characters'"),
    (ELMO, {"model.highway_layers": 1}, "config.model.highway_layers=1"),
    # Carried states.
    (GPT, STATEFUL, "config.model.stateful=True .*elmo, awd_lstm.* gpt and 'stream'"),
    (f"{STATIC}:objectives=skip_gram", STATEFUL, "config.model.stateful=True .* static and 'stream'"),
    (ELMO, {"model.stateful": True}, "config.model.stateful=True .*config.data.format='stream'.*'full_sentences'"),
    (f"{ELMO}:objectives=ltr+mlm", STATEFUL, "objective mlm .*config.model.stateful=False"),
    (ELMO, STATEFUL, "objective rtl .*config.data.stream.backward=True"),
    (f"{ELMO}:tokens=characters,objectives=ar+tar", {}, "config.model.stateful=True .*ar, tar .*ltr or rtl"),
    # The optimiser.
    (BERT, {"optimizer.name": "lion"}, "config.optimizer.name='lion' .*adam, adagrad, sgd, lamb, muon"),
    (BERT, {"optimizer.decay_exclude": "("}, "config.optimizer.decay_exclude="),
    (AWD, {"train.eval_every": 0}, "config.optimizer.average_after=5 .*config.train.eval_every=0"),
]


@pytest.fixture
def nothing_runs(monkeypatch):
    """Reading text, composing a model and running fail the test."""

    def ran(*arguments, **keywords):
        raise AssertionError("something ran")

    monkeypatch.setattr("bertlab.train.build.prepare", ran)
    monkeypatch.setattr("bertlab.train.loop.run", ran)


@pytest.mark.parametrize(("recipe", "overrides", "message"), CASES)
def test_combination_is_refused_before_anything_runs(recipe, overrides, message, small_config, nothing_runs, tmp_path):
    config = small_config(recipe, **overrides)
    with pytest.raises(UserError, match=message) as refusal:
        loop.train(config, tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_the_same_config_without_the_mistake_goes_on_to_the_data(small_config, nothing_runs, tmp_path):
    states = [(f"{ELMO}:objectives=ltr", STATEFUL), (ELMO, {**STATEFUL, "data.stream.backward": True})]
    for recipe, overrides in [(BERT, {}), ("awd_lstm", {}), (f"{STATIC}:objectives=glove", {}), *states]:
        with pytest.raises(AssertionError, match="something ran"):
            loop.train(small_config(recipe, **overrides), tmp_path / "run")


def test_masking_with_a_tokenizer_that_has_no_mask_is_refused_before_anything_runs(small_config, nothing_runs, tmp_path):
    (tmp_path / "gpt2").mkdir()
    write_tokenizer("gpt2", tmp_path / "gpt2")
    path = {"data__tokenizer__path": str(tmp_path / "gpt2")}
    with pytest.raises(UserError, match=r"objective mlm: .*config.data.tokenizer.path"):
        loop.train(small_config(f"{BERT}:objectives=mlm", **path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(AssertionError, match="something ran"):  # GPT itself asks for no mask
        loop.train(small_config(GPT, **path), tmp_path / "run")


def test_objectives_that_are_none_or_have_unknown_settings_are_refused(small_config):
    config = small_config(BERT)
    with config.unlocked():
        config.objectives.mlm.share = 0.5
    with pytest.raises(UserError, match=r"config.objectives.mlm.share .*known: rate, final_rate, exact"):
        check_config(config)
    config.objectives = type(config)()
    with pytest.raises(UserError, match=r"config.objectives is empty"):
        check_config(config)


@dataclasses.dataclass(frozen=True)
class Own(objectives.Objective):
    """An objective from outside the package, with a setting."""

    strength: float = 2.0

    def loss(self, model, view):
        return {"loss": (model.encoded.both[-1].sum() * self.strength, view["tokens"].size)}


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_objectives")
    module.Own, module.mlm, module.Plain, module.Other = Own, Own, type("Plain", (), {}), 3
    monkeypatch.setitem(sys.modules, "own_objectives", module)
    return module


LOSS = "    def loss(self, model, view): pass"


@pytest.mark.parametrize(
    ("decorator", "setting", "body", "message"),
    [
        ("@d.dataclass(frozen=True)", "rate: float = 0.5", "", r"has no method loss\(self, model, view\)"),
        ("@d.dataclass(frozen=True)", "rate: float", LOSS, "setting 'rate'"),
        ("@d.dataclass(frozen=True)", "rate: list = d.field(default_factory=list)", LOSS, "setting 'rate'"),
        ("@d.dataclass(frozen=True)", "weight: float = 3.0", LOSS, "setting 'weight'"),
        ("@d.dataclass(frozen=True)", "reads = 'left'", LOSS, "reads='left'.*forward, backward, both or any"),
        ("@d.dataclass(frozen=True)", "sees = 3", LOSS, "sees=3.*clean, own, shared, any"),
        ("", "rate: float = 0.5", LOSS, "frozen dataclass"),
    ],
)
def test_mistakes_in_an_own_objective_are_named(decorator, setting, body, message, own_module):
    space = {"d": dataclasses, "Objective": objectives.Objective}
    exec(f"{decorator}\nclass Made(Objective):\n    {setting}\n{body}\n", space)
    own_module.Made = space["Made"]
    with pytest.raises(UserError, match="objective 'own_objectives:Made'.*" + message):
        objectives.find("own_objectives:Made")


def test_names_that_collide_are_refused(own_module):
    with pytest.raises(UserError, match="'mlm' appears twice"):
        add_objectives(base_config(), "mlm+mlm")
    with pytest.raises(UserError, match="bertlab itself uses the name mlm"):
        objectives.describe("own_objectives:mlm")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef f(:\n", "slip_objectives.py, line 2"),
        ("import not_installed_anywhere\n", "slip_objectives.py, line 1: .*'not_installed_anywhere'"),
    ],
)
def test_an_error_inside_an_own_module_is_named_with_its_line(source, message, tmp_path, monkeypatch):
    (tmp_path / "slip_objectives.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slip_objectives", raising=False)
    with pytest.raises(UserError, match=message):
        objectives.find("slip_objectives:Own")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3.0, "key 'loss', got float"),
        ({"accuracy": (1.0, 1.0)}, "key 'loss'"),
        ({"loss": 3.0}, r"loss\(\)\['loss'\] .*two scalars"),
        ({"loss": (np.zeros(3), 1.0)}, "two scalars"),
    ],
)
def test_what_a_loss_returns_is_checked(returned, message, monkeypatch, packed_batch):
    monkeypatch.setattr(Own, "loss", lambda self, model, view: returned)
    config = base_config()
    config.model.update(width=8, hidden=8)
    program = Program(build_body(model_shape(config.model, 50)), {"Own": Own()}, objectives.Vocabulary(50, 0, 1, 2, 3, 4))
    with pytest.raises(UserError, match="objective Own: .*" + message):
        jax.eval_shape(program.init, jax.random.key(0), packed_batch())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("objectives.mlm.rate", 1.5),
        ("objectives.mlm.mask_share", 2.0),
        ("objectives.mlm.random_share", 0.5),
        ("objectives.mlm.max_predictions", -1),
        ("data.segment_pair.short_probability", 5.0),
    ],
)
def test_values_out_of_range_are_refused(key, value):
    with pytest.raises(UserError, match=key.rpartition(".")[2]):
        check_config(load_config(BERT, {key: value}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clm", "objective 'clm' .*mlm, sbo, electra, ltr, .*glove, bilm, .*module:Class"),
        ("mlm+", "objective ''"),
        ("nowhere_objectives:Own", "module nowhere_objectives was not found; .*PYTHONPATH"),
        ("own_objectives:Missing", "own_objectives has no Missing"),
        ("own_objectives:Plain", "inherits from bertlab.objectives.Objective"),
        ("own_objectives:Other", "frozen dataclass"),
    ],
)
def test_objective_that_is_none_is_refused(name, message, own_module):
    with pytest.raises(UserError, match=message):
        load_config(f"{BERT}:objectives={name}")


def test_own_objective_is_found_with_its_settings(own_module):
    config = load_config(f"{BERT}:objectives=own_objectives:Own", {"objectives.Own.strength": 3})
    assert objectives.build(config.objectives) == {"Own": Own(strength=3.0)}


def test_finetuning_of_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nowhere has no config.json"):
        finetune(tmp_path / "nowhere", "package", tmp_path / "out")
    assert not (tmp_path / "out").exists()
