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

MODERN = str(ROOT / "experiments/pretrain/modern.py")
AWD = str(ROOT / "experiments/pretrain/awd_lstm.py")
BERT, GPT, ELMO, STATIC = (str(ROOT / f"experiments/pretrain/{family}.py") for family in ("bert", "gpt", "elmo", "static"))
STATEFUL = {"model.stateful": True, "data.format": "stream"}

# name: recipe, overrides, what the message must say
CASES = {
    "LTR on a bidirectional body": (
        f"{BERT}:objectives=ltr",
        {},
        r"objective ltr .*set config.model.direction='left-to-right'",
    ),
    "RTL on a bidirectional body": (
        f"{BERT}:objectives=rtl",
        {},
        r"objective rtl .*set config.model.direction='right-to-left'",
    ),
    "biLM on a transformer": (f"{GPT}:objectives=bilm", {}, r"objective rtl .*config.model.direction='left-to-right'.*elmo"),
    "MLM on GPT": (f"{GPT}:objectives=mlm", {}, r"objective mlm .*set config.model.direction='bidirectional'"),
    "MLM left to right": (
        f"{BERT}:objectives=mlm",
        {"model.direction": "left-to-right"},
        r"objective mlm .*set config.model.direction='bidirectional'",
    ),
    "RTL on half an ELMo": (
        ELMO,
        {"model.direction": "left-to-right"},
        r"objective rtl .*config.model.direction='right-to-left'",
    ),
    "NSP without pairs": (
        f"{BERT}:objectives=mlm+nsp",
        {"data.format": "full_sentences"},
        r"objective nsp needs sentence pairs.*set config.data.format='segment_pair'",
    ),
    "rows beyond the positions": (BERT, {"data.seq_len": 513}, r"config.data.seq_len=513 .* 512 .*config.model.max_positions"),
    "rows beyond own positions": (BERT, {"data.seq_len": 32, "model.max_positions": 16}, r"config.data.seq_len=32 .* 16 "),
    "rows too short": (BERT, {"data.seq_len": 4}, r"config.data.seq_len=4"),
    "a batch the mesh does not divide": (
        BERT,
        {"mesh.data": 8, "data.batch_size": 12},
        r"config.data.batch_size=12 .*config.mesh",
    ),
    "a batch the micro-batches do not divide": (
        BERT,
        {"train.micro_batches": 3},
        r"batch_size=8 .*config.train.micro_batches \(3\)",
    ),
    "a mesh larger than the machine": (
        BERT,
        {"mesh.data": 16, "data.batch_size": 16},
        r"config.mesh \(data=16, .* 16 devices and there are 8",
    ),
    "an empty mesh": (BERT, {"mesh.fsdp": 0}, r"config.mesh .*fsdp=0.*positive"),
    "no weight at all": (
        BERT,
        {"objectives.nsp.weight": 0.0, "objectives.mlm.weight": 0.0},
        r"every config.objectives.NAME.weight is 0 \(mlm, nsp\)",
    ),
    "less than no retries": (
        BERT,
        {"data.segment_pair.own_document_retries": -1},
        r"config.data.segment_pair.own_document_retries=-1 must be 0 or more",
    ),
    "negative weight": (BERT, {"objectives.nsp.weight": -0.5}, r"config.objectives.nsp.weight=-0.5"),
    "weight not a number": (BERT, {"objectives.nsp.weight": float("nan")}, r"config.objectives.nsp.weight=nan"),
    "all warm-up": (BERT, {"optimizer.warmup_steps": 20}, r"config.optimizer.warmup_steps=20 .*config.train.steps=20"),
    "unknown decay": (BERT, {"optimizer.decay": "step"}, r"config.optimizer.decay='step' .*linear, cosine"),
    "negative steps": (BERT, {"train.steps": -1}, r"config.train.steps=-1"),
    "unknown format": (BERT, {"data.format": "pairs"}, r"config.data.format='pairs' .*segment_pair, full_sentences"),
    "unknown family": (
        BERT,
        {"model.family": "bart"},
        r"config.model.family='bart' .*bert, gpt, modern, elmo, awd_lstm, static",
    ),
    "unknown size": (BERT, {"model.size": "huge"}, r"config.model.size='huge' .*tiny, mini"),
    "a size of another family": (ELMO, {"model.size": "base"}, r"config.model.size='base' .*original"),
    "unknown direction": (
        BERT,
        {"model.direction": "both"},
        r"config.model.direction='both' .*bidirectional, left-to-right, right-to-left",
    ),
    "unknown dtype": (BERT, {"model.dtype": "float16"}, r"config.model.dtype='float16' .*float32, bfloat16"),
    "heads that do not divide": (BERT, {"model.heads": 3}, r"config.model.width=16 .*config.model.heads=3"),
    "heads of an LSTM": (ELMO, {"model.heads": 2}, r"config.model.heads=2: elmo has no heads; leave it unset"),
    # Families, and the fields that models and objectives find in a batch.
    "a direction that a family does not read": (
        AWD,
        {"model.direction": "bidirectional"},
        r"config.model.direction='bidirectional': awd_lstm reads left-to-right or right-to-left",
    ),
    "skip-gram on a transformer": (
        f"{BERT}:objectives=skip_gram",
        {},
        r"objective skip_gram .*config.model.family='static'",
    ),
    "GloVe without counted pairs": (
        f"{STATIC}:objectives=glove",
        {"data.format": "full_sentences"},
        r"config.data.format='full_sentences' with objectives glove: format='cooccurrence' .*glove",
    ),
    "counted pairs without GloVe": (
        f"{STATIC}:objectives=skip_gram",
        {"data.format": "cooccurrence"},
        r"config.data.format='cooccurrence' with objectives skip_gram: .*glove",
    ),
    "counted pairs for MLM": (
        f"{BERT}:objectives=mlm",
        {"data.format": "cooccurrence"},
        r"config.data.format='cooccurrence' with objectives mlm: .*glove",
    ),
    "no window for pairs": (
        f"{STATIC}:objectives=glove",
        {"data.cooccurrence.window": 0},
        r"config.data.cooccurrence.window=0",
    ),
    "a character model without characters": (
        ELMO,
        {"model.token_encoder": "characters"},
        r"config.model.token_encoder='characters' reads characters; set config.data.characters=True",
    ),
    "characters of pieces": (
        ELMO,
        {"model.token_encoder": "characters", "data.characters": True, "data.tokenizer.kind": "bpe"},
        r"config.data.characters=True needs whole words, .*'bpe' cuts them; set config.data.tokenizer.kind='words'",
    ),
    "characters of pairs": (
        f"{STATIC}:objectives=glove",
        {"data.characters": True},
        r"config.data.characters=True has no use with config.data.format='cooccurrence'",
    ),
    "MLM on characters": (
        f"{ELMO}:objectives=mlm,tokens=characters",
        {"model.stateful": False},
        r"objective mlm changes tokens, .*characters; set config.model.token_encoder='ids'",
    ),
    "a character encoder in a transformer": (
        f"{BERT}:objectives=nsp",
        {"model.token_encoder": "characters", "data.characters": True, "data.tokenizer.kind": "words"},
        r"config.model.token_encoder=characters: bert has no token_encoder; leave it unset",
    ),
    "states of a transformer": (
        f"{GPT}",
        STATEFUL,
        r"config.model.stateful=True needs a recurrent family \(elmo, awd_lstm\) .* not gpt and 'stream'",
    ),
    "states of word vectors": (
        f"{STATIC}:objectives=skip_gram",
        STATEFUL,
        r"config.model.stateful=True needs a recurrent family .* not static and 'stream'",
    ),
    "states without a stream": (
        ELMO,
        {"model.stateful": True},
        r"config.model.stateful=True .*config.data.format='stream', not elmo and 'full_sentences'",
    ),
    "MLM on states": (
        f"{ELMO}:objectives=ltr+mlm",
        STATEFUL,
        r"objective mlm needs both directions .* one direction at a time; set config.model.stateful=False",
    ),
    "states read right to left on one stream": (
        ELMO,
        STATEFUL,
        r"objective rtl reads right to left; set config.data.stream.backward=True",
    ),
    "unknown wrap": (
        ELMO,
        {**STATEFUL, "data.stream.wrap": "line"},
        r"config.data.stream.wrap='line' .*document, sentence, none",
    ),
    "recomputing a lookup": (STATIC, {"model.remat": "full"}, r"config.model.remat=full: static has no remat; leave it none"),
    "unrolled LSTMs that are never in a loop": (
        AWD,
        {"model.scan_layers": False},
        r"config.model.scan_layers=False: awd_lstm has no scan_layers",
    ),
    # The optimiser.
    "unknown optimiser": (BERT, {"optimizer.name": "lion"}, r"config.optimizer.name='lion' .*adam, adagrad, sgd, lamb, muon"),
    "unknown correction": (
        BERT,
        {"optimizer.bias_correction": "yes"},
        r"config.optimizer.bias_correction='yes' .*none, moments, rate",
    ),
    "averaging Adam": (
        BERT,
        {"optimizer.average_after": 5, "optimizer.decay": "constant"},
        r"config.optimizer.average_after=5 .*name='adam' .*; set name='sgd' and decay='constant', or average_after=0",
    ),
    "averaging at a rate that falls": (
        BERT,
        {"optimizer.average_after": 5, "optimizer.name": "sgd"},
        r"config.optimizer.average_after=5 .*decay='linear'; set name='sgd' and decay='constant'",
    ),
    "momentum beyond 1": (BERT, {"optimizer.b1": 1.5}, r"config.optimizer.b1=1.5"),
}

CASES |= {
    "tied characters": (
        f"{ELMO}:tokens=characters",
        {"model.tied": True},
        r"config.model.tied=True shares the token embeddings, and token_encoder='characters' has none; set tied=False",
    ),
    "states clipped to nothing": (ELMO, {"model.clip": 0.0}, r"config.model.clip=0.0 would make all states 0"),
    "highway layers without characters": (
        ELMO,
        {"model.highway_layers": 1},
        r"config.model.highway_layers=1",
    ),
    "an angle without rotation": (BERT, {"model.rotary_base": 5.0}, r"config.model.rotary_base=5.0"),
    "global layers among global ones": (
        MODERN,
        {"model.local_window": 0, "model.global_every": 5},
        r"config.model.global_every=5",
    ),
    "positions that nothing learns": (
        MODERN,
        {"model.max_positions": 64},
        r"config.model.max_positions=64",
    ),
    "averaging that never looks": (
        AWD,
        {"train.eval_every": 0},
        r"config.optimizer.average_after=5 .*config.train.eval_every=0",
    ),
    "a state that no language model carries": (
        f"{ROOT}/experiments/pretrain/elmo.py:tokens=characters,objectives=ar+tar",
        {},
        r"config.model.stateful=True .*ar, tar .*add ltr or rtl",
    ),
    "characters of a transformer": (
        BERT,
        {"model.token_encoder": "characters"},
        r"config.model.token_encoder=characters: bert has no token_encoder; leave it unset",
    ),
}


@pytest.fixture
def nothing_runs(monkeypatch):
    """Reading text, composing a model and running fail the test."""

    def ran(*arguments, **keywords):
        raise AssertionError("something ran")

    monkeypatch.setattr("bertlab.train.build.prepare", ran)
    monkeypatch.setattr("bertlab.train.loop.run", ran)


@pytest.mark.parametrize("case", CASES)
def test_combination_is_refused_before_anything_runs(case, small_config, nothing_runs, tmp_path):
    recipe, overrides, message = CASES[case]
    config = small_config(recipe, **overrides)
    with pytest.raises(UserError, match=message) as refusal:
        loop.train(config, tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_the_same_config_without_the_mistake_goes_on_to_the_data(small_config, nothing_runs, tmp_path):
    glove = f"{STATIC}:objectives=glove"
    for recipe in (BERT, GPT, ELMO, "awd_lstm", "awd_lstm backward", "elmo on characters", STATIC, glove):
        with pytest.raises(AssertionError, match="something ran"):
            loop.train(small_config(recipe), tmp_path / "run")
    for recipe, overrides in ((f"{ELMO}:objectives=ltr", STATEFUL), (ELMO, {**STATEFUL, "data.stream.backward": True})):
        with pytest.raises(AssertionError, match="something ran"):
            loop.train(small_config(recipe, **overrides), tmp_path / "run")


def test_masking_with_a_tokenizer_that_has_no_mask_is_refused_before_anything_runs(small_config, monkeypatch, tmp_path):
    """Its special pieces are known once it is read, and by then the text is prepared; no model is made."""

    def ran(*arguments, **keywords):
        raise AssertionError("something ran")

    monkeypatch.setattr("bertlab.train.loop.run", ran)
    monkeypatch.setattr("bertlab.train.build.build_body", ran)
    (tmp_path / "gpt2").mkdir()
    write_tokenizer("gpt2", tmp_path / "gpt2")
    config = small_config(f"{BERT}:objectives=mlm", data__tokenizer__path=str(tmp_path / "gpt2"))
    with pytest.raises(
        UserError, match=r"objective mlm: it masks tokens, .*name one with \[MASK\] in config.data.tokenizer.path"
    ):
        loop.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # GPT itself asks for no mask.
    with pytest.raises(AssertionError, match="something ran"):
        loop.train(small_config(GPT, data__tokenizer__path=str(tmp_path / "gpt2")), tmp_path / "run")


def test_no_objective_is_refused(small_config, nothing_runs, tmp_path):
    config = small_config(BERT)
    config.objectives = type(config)()
    with pytest.raises(UserError, match=r"config.objectives is empty; .*objectives=mlm"):
        loop.train(config, tmp_path / "run")


def test_unknown_setting_of_an_objective_is_refused(small_config, nothing_runs, tmp_path):
    config = small_config(BERT)
    with config.unlocked():
        config.objectives.mlm.share = 0.5
    with pytest.raises(UserError, match=r"config.objectives.mlm.share is not a setting .*known: rate, final_rate, exact"):
        loop.train(config, tmp_path / "run")


@dataclasses.dataclass(frozen=True)
class Own(objectives.Objective):
    """An objective from outside the package, with a setting."""

    strength: float = 2.0

    def loss(self, model, view):
        return {"loss": (model.encoded.both[-1].sum() * self.strength, view["tokens"].size)}


def made(
    settings: str, body: str = "    def loss(self, model, view): pass", decorator: str = "@d.dataclass(frozen=True)"
) -> type:
    """An objective class from source, for mistakes in it."""
    space = {"d": dataclasses, "Objective": objectives.Objective}
    exec(f"{decorator}\nclass Made(Objective):\n    {settings}\n{body}\n", space)
    return space["Made"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (lambda: made("rate: float = 0.5", body=""), r"has no method loss\(self, model, view\)"),
        (lambda: made("rate: float"), r"setting 'rate' needs a plain default"),
        (lambda: made("rate: list = d.field(default_factory=list)"), r"setting 'rate' needs a plain default"),
        (lambda: made("weight: float = 3.0"), r"setting 'weight' .* a name other than weight"),
        (lambda: made("reads = 'left'"), r"reads='left'.*forward, backward, both, any"),
        (lambda: made("sees = 3"), r"sees=3.*clean, own, shared, any"),
        (lambda: made("rate: float = 0.5", decorator=""), r"must be a frozen dataclass"),
    ],
)
def test_mistakes_in_an_own_objective_are_named(kind, message, monkeypatch):
    module = types.ModuleType("own_objectives")
    module.Made = kind()
    monkeypatch.setitem(sys.modules, "own_objectives", module)
    with pytest.raises(UserError, match=r"objective 'own_objectives:Made'.*" + message):
        objectives.find("own_objectives:Made")


def test_names_that_collide_are_refused(own_module):
    config = base_config()
    with pytest.raises(UserError, match="'mlm' is named twice"):
        add_objectives(config, "mlm+mlm")
    sys.modules["own_objectives"].mlm = Own
    with pytest.raises(UserError, match="mlm is a name of bertlab's own; rename the class"):
        objectives.describe("own_objectives:mlm")


def test_syntax_error_in_an_own_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "slip_objectives.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"slip_objectives.py, line 2"):
        objectives.find("slip_objectives:Own")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3.0, "must return a dict with the key 'loss', got float"),
        ({"accuracy": (1.0, 1.0)}, "must return a dict with the key 'loss'"),
        ({"loss": 3.0}, r"loss\(\)\['loss'\] must be \(weighted sum, weight\), two scalars"),
        ({"loss": (np.zeros(3), 1.0)}, r"must be \(weighted sum, weight\), two scalars"),
    ],
)
def test_what_a_loss_returns_is_checked(returned, message, monkeypatch, packed_batch):
    monkeypatch.setattr(Own, "loss", lambda self, model, view: returned)
    vocabulary = objectives.Vocabulary(50, 0, 1, 2, 3, 4)
    config = base_config()
    config.model.update(width=8, hidden=8)
    program = Program(build_body(model_shape(config.model, 50)), {"Own": Own()}, vocabulary)
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
        ("optimizer.learning_rate", -1.0),
        ("optimizer.decay_exclude", "("),
        ("model.layers", 0),
        ("model.width", 0),
        ("train.eval_every", -3),
        ("data.seed", -1),
    ],
)
def test_values_out_of_range_are_refused(key, value):
    with pytest.raises(UserError, match=key.rpartition(".")[2]):
        check_config(load_config(BERT, {key: value}))


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_objectives")
    module.Own, module.Plain, module.Other = Own, type("Plain", (), {}), 3
    monkeypatch.setitem(sys.modules, "own_objectives", module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "clm",
            r"objective 'clm' is not known; choose from mlm, sbo, electra, ltr, .*glove, bilm, or .*module:Class",
        ),
        ("mlm+", r"objective '' is not known"),
        ("nowhere_objectives:Own", r"there is no module nowhere_objectives; put its folder on PYTHONPATH"),
        ("own_objectives:Missing", r"module own_objectives has no Missing"),
        ("own_objectives:Plain", r"must be a frozen dataclass that inherits from bertlab.objectives.Objective"),
        ("own_objectives:Other", r"must be a frozen dataclass"),
    ],
)
def test_objective_that_is_none_is_refused(name, message, own_module):
    with pytest.raises(UserError, match=message):
        load_config(f"{BERT}:objectives={name}")


def test_own_objective_is_found_with_its_settings(own_module):
    config = load_config(f"{BERT}:objectives=own_objectives:Own", {"objectives.Own.strength": 3})
    assert objectives.build(config.objectives) == {"Own": Own(strength=3.0)}


def test_broken_import_inside_an_own_module_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_objectives.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"broken_objectives.py, line 1: No module named 'not_installed_anywhere'"):
        objectives.find("broken_objectives:Own")


def test_finetuning_of_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nowhere has no config.json; give the --workdir of a `bertlab train`"):
        finetune(tmp_path / "nowhere", "package", tmp_path / "out")
    assert not (tmp_path / "out").exists()
