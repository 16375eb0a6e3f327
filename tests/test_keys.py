"""The table of config keys: its page is current, its choices are the code's, and values out of range are refused by name."""

import contextlib
import json
import re

import pytest

from bertlab.catalogue import key_table
from bertlab.cli import main
from bertlab.config import add_objectives, base_config, flatten, set_key
from bertlab.data.formats import FORMATS, NEGATIVES
from bertlab.data.tokenizers import TRAINED_KINDS
from bertlab.errors import UserError
from bertlab.keys import BY_NAME, KEYS, check, drop_without_effect, has, settings_of
from bertlab.models.attention import BACKENDS
from bertlab.models.base import ACTIVATIONS
from bertlab.models.presets import FAMILIES
from bertlab.objectives import REGISTRY
from bertlab.train.checks import check_config
from bertlab.transfer.finetune import KEYS as FINETUNING
from bertlab.transfer.finetune import finetune_config
from bertlab.transfer.heads import DERIVED, POOLINGS
from bertlab.transfer.kinds import KINDS
from bertlab.transfer.tasks.base import KEYS as TASK_DATA
from tests.conftest import ROOT


def test_a_config_has_exactly_the_tables_keys():
    assert set(flatten(base_config())) == {key.name for key in KEYS}
    assert len(BY_NAME) == len(KEYS)
    check(base_config())


def test_every_key_of_a_fine_tuning_is_listed():
    config = base_config()
    add_objectives(config, "mlm")
    listed = {name for name, *_ in key_table()} | {"objectives.TASK.weight", "objectives.TASK.final_weight", "task", "recipe"}
    for task in ("sst2", "ner", "squad1", "swag", "stsb", "wic"):
        keys = {key.replace(f".{task}", ".TASK") for key in flatten(finetune_config(ROOT, task, pretrained=config.to_dict()))}
        assert {key for key in keys - listed if not key.startswith("task_data.pretraining.")} == set(), task


def test_choices_are_those_of_the_code():
    assert BY_NAME["model.activation"].choices == tuple(ACTIVATIONS)
    assert BY_NAME["model.attention"].choices == ("auto", *BACKENDS)
    assert BY_NAME["model.family"].choices == tuple(FAMILIES)
    assert BY_NAME["data.format"].choices == tuple(FORMATS)
    assert BY_NAME["data.tokenizer.kind"].choices == TRAINED_KINDS
    assert BY_NAME["data.segment_pair.negatives"].choices == tuple(NEGATIVES) == BY_NAME["data.sentence_pair.negatives"].choices
    assert all(key.group in (f"data.{name}" for name in FORMATS) for key in KEYS if "data.format=" in "".join(key.conditions))


def test_every_key_says_what_it_means_and_its_default_is_allowed():
    for name, _, values, meaning in key_table():
        assert values and meaning, name
        assert not re.search(r"[.;,]$|: $|\n", meaning), name


def outside(key):
    """Values that a key cannot have."""
    found = [key.least - 1] if key.least is not None else []
    found += [key.most + 1] if key.most is not None else []
    found += [bound for bound in (key.above, key.below) if bound is not None]
    found += [10**20] if (key.default if key.unset else type(key.default)) is int else []
    found += ["no such thing"] if key.choices else []
    return [value for value in found if value not in key.besides]


TABLE = [*KEYS, *FINETUNING, *TASK_DATA]
CLASSES = [*REGISTRY.values(), *(kind.head for kind in KINDS.values())]
SETTINGS = [(kind, key) for kind in CLASSES for key in settings_of(kind) if key.name not in DERIVED]


def test_every_number_has_a_least_value():
    table = TABLE + [key for _, key in SETTINGS]
    numbers = [key for key in table if (key.default if key.unset else type(key.default)) in (int, float)]
    unbounded = {key.name for key in numbers if key.least is None and key.above is None}
    assert unbounded == {"transfer.null_threshold"}  # a difference of scores


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in TABLE for value in outside(key)], ids=str)
def test_a_value_that_a_key_cannot_have_is_refused_by_name(key, value):
    with pytest.raises(UserError, match=rf"config\.{re.escape(key.name)}="):
        key.check(value, {})
    if key in KEYS:
        config = base_config()
        add_objectives(config, "mlm")
        set_key(config, key.name, value)
        with pytest.raises(UserError, match=rf"config\.{re.escape(key.name)}=") as refusal:
            check_config(config)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("kind", "key", "value"), [(kind, key, value) for kind, key in SETTINGS for value in outside(key)])
def test_a_value_that_a_setting_cannot_have_is_refused_by_name(kind, key, value):
    with pytest.raises(UserError, match=rf"^{key.name}="):
        kind(**{key.name: value})


def test_values_besides_the_range_are_allowed():
    config = base_config()
    for axis, size in (("data", 3), ("fsdp", -1), ("tensor", 2)):
        set_key(config, f"mesh.{axis}", size)
    check(config)


@pytest.mark.parametrize("name", ["optimizer.learning_rate", "data.valid_fraction", "objectives.mlm.rate"])
def test_a_number_that_is_not_finite_is_refused(name):
    config = base_config()
    add_objectives(config, "mlm")
    set_key(config, name, float("nan"))
    with pytest.raises(UserError, match=rf"config\.{re.escape(name)}=nan"):
        check(config)


EFFECTS = [
    ("optimizer.cooldown_steps", 5, {"optimizer.decay": "constant"}),
    ("optimizer.cut_fraction", 0.2, {"optimizer.decay": "slanted_triangular"}),
    ("optimizer.ratio", 8.0, {"optimizer.decay": "slanted_triangular"}),
    ("optimizer.initial_accumulator", 0.5, {"optimizer.name": "adagrad"}),
    ("optimizer.muon_momentum", 0.5, {"optimizer.name": "muon"}),
    ("optimizer.muon_scale", "spectral", {"optimizer.name": "muon"}),
    ("optimizer.muon_rate", 2.0, {"optimizer.name": "muon"}),
    ("optimizer.thaw_steps", 5, {"optimizer.thaw": "chain"}),
    ("optimizer.average_after", 5, {"optimizer.name": "sgd", "optimizer.decay": "constant"}),
    ("optimizer.average_again", 9, {"optimizer.average_after": 5, "optimizer.name": "sgd", "optimizer.decay": "constant"}),
    ("data.tokenizer.split", "whitespace", {"data.tokenizer.kind": "words"}),
    ("lora.alpha", 2.0, {"lora.rank": 4}),
    ("lora.targets", "x", {"lora.rank": 4}),
    ("data.pack_examples", 2, {"data.pack_length": 256}),
    ("data.stream.wrap", "none", {"data.format": "stream"}),
    ("data.cooccurrence.window", 3, {"data.format": "cooccurrence"}),
    ("data.sentence_pair.negatives", "swapped", {"data.format": "sentence_pair"}),
    ("data.full_sentences.document_separator", False, {"data.format": "full_sentences"}),
    ("data.synthetic.topics", 2, {"data.corpus": "synthetic"}),
    ("data.tfds.field", "words", {"data.corpus": "tfds:wiki40b/en"}),
    ("evaluate.pairs", 5, {"evaluate.minimal_pairs": "blimp.jsonl"}),
    ("init_step", 5, {"init_from": "runs/x"}),
]


@pytest.mark.parametrize(("name", "value", "needed"), EFFECTS, ids=[name for name, *_ in EFFECTS])
def test_a_value_without_effect_is_refused_and_the_condition_is_named(name, value, needed):
    config = base_config()
    set_key(config, name, value)
    with pytest.raises(UserError, match=rf"config\.{re.escape(name)}=.*config\.{next(iter(needed))}"):
        check(config)
    for other, of in needed.items():
        set_key(config, other, of)
    check(config)


@pytest.mark.parametrize(
    ("name", "value", "other", "without", "needed"),
    [
        ("optimizer.decay_from_start", False, "optimizer.decay", "constant", "cosine"),
        ("optimizer.decay_from_start", False, "optimizer.decay", "warmup_linear", "linear"),
        ("data.segment_pair.own_document_retries", 3, "data.segment_pair.negatives", "swapped", "random"),
        ("data.segment_pair.force_random_if_single", False, "data.segment_pair.negatives", "swapped", "random"),
        ("data.sentence_pair.own_document_retries", 3, "data.sentence_pair.negatives", "swapped", "random"),
        ("data.sentence_pair.force_random_if_single", True, "data.sentence_pair.negatives", "swapped", "random"),
    ],
)
def test_a_value_is_refused_where_another_key_takes_its_effect(name, value, other, without, needed):
    config = base_config()
    config.data.format = name.split(".")[1] if name.startswith("data.") else config.data.format
    set_key(config, other, without)
    check(config)
    set_key(config, name, value)
    with pytest.raises(UserError, match=rf"config\.{re.escape(name)}=.*config\.{re.escape(other)}="):
        check(config)
    set_key(config, other, needed)
    check(config)


@pytest.mark.parametrize("leaf", ["b1", "b2", "epsilon", "bias_correction"])
def test_settings_of_adam_are_refused_for_optimizers_without_moments(leaf):
    value = "moments" if leaf == "bias_correction" else 0.5
    for name, allowed in {"adam": True, "lamb": True, "muon": True, "sgd": False, "adagrad": False}.items():
        config = base_config()
        config.optimizer.name = name
        config.optimizer[leaf] = value
        with contextlib.nullcontext() if allowed else pytest.raises(UserError, match=rf"config\.optimizer\.{leaf}="):
            check(config)


def test_a_default_is_never_refused_and_every_condition_is_a_key():
    for key in KEYS:
        for default in (key.default, json.loads(json.dumps(None if key.unset else key.default))):  # as config.json has it
            key.check(None if key.unset else default, {other.name: "" for other in KEYS})
        assert {condition.partition("=")[0] for condition in key.conditions} <= set(BY_NAME)


def test_conditions_on_the_model_need_its_family():
    local = BY_NAME["model.rotary_base_local"]
    local.check(1e4, {"model.position_encoding": "rotary", "model.local_window": 8})
    for encoding, window in (("learned", 8), ("rotary", 0)):
        with pytest.raises(UserError, match="rotary_base_local"):
            local.check(1e4, {"model.position_encoding": encoding, "model.local_window": window})


def test_a_config_made_from_another_leaves_what_no_longer_has_an_effect():
    config = base_config()
    config.optimizer.update(b2=0.98, muon_rate=2.0, name="sgd", initial_accumulator=0.5)
    drop_without_effect(config, {"optimizer.muon_rate"})
    assert (config.optimizer.b2, config.optimizer.muon_rate, config.optimizer.initial_accumulator) == (0.999, 2.0, 1.0)


def test_what_may_change_when_a_run_is_resumed():
    free = {key.name for key in KEYS if key.on_resume}
    assert free >= {"mesh.data", "writers", "profile", "model.remat", "train.checkpoint_every", "evaluate.pairs"}
    assert "train.micro_batches" in free
    assert not free & {"seed", "train.steps", "data.seq_len", "model.width", "optimizer.learning_rate"}
    assert not has("on_resume", "objectives.mlm.rate")


def test_the_page_is_current(capsys):
    assert main(["keys", "--markdown"]) == 0
    assert (ROOT / "docs/keys.md").read_text() == capsys.readouterr().out, "bertlab keys --markdown > docs/keys.md"


def test_keys_by_name_by_glob_and_by_meaning(capsys, monkeypatch):
    def names(*pattern):
        assert main(["keys", *pattern]) == 0
        return [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]

    assert names("optimizer.thaw*") == [f"optimizer.{leaf}" for leaf in ("thaw", "thaw_steps", "thaw_stages", "thaw_restarts")]
    assert names("config.optimizer.ratio") == ["optimizer.ratio"]
    assert "optimizer.average_after" in names("NT-ASGD")
    assert "objectives.mlm.rate" in names("mlm")
    assert names("task_data.*") == [key.name for key in TASK_DATA]
    assert names("transfer.*") == [key.name for key in FINETUNING]
    assert names("objectives.TASK.crf") == ["objectives.TASK.crf"]
    assert "transfer.epochs" in names("epochs")
    (pooling,) = [row for row in key_table("pooling") if row[0] == "objectives.TASK.pooling"]
    assert pooling[1:3] == ("mean", ", ".join(POOLINGS))
    assert len({name for name, *_ in key_table()}) == len(key_table()) - 1  # `dropout` has two defaults
    assert len(names()) > len(KEYS)
    monkeypatch.syspath_prepend(ROOT / "tests/objectives")
    assert names("cloze:Cloze") == names("objectives.cloze:Cloze") == ["objectives.Cloze.rate"], "the key that sets it"
    assert main(["keys", "no such key"]) == 2
    assert "'no such key'" in capsys.readouterr().err
