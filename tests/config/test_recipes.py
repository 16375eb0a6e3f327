"""What ships can be trained, with the papers' values; what cannot be trained is refused."""

import pytest
from ml_collections import ConfigDict

from bertlab.config import base_config, load_config, parse_arguments
from bertlab.errors import UserError
from bertlab.train.build import check_config, check_devices
from bertlab.train.phases import phase_configs

RECIPES = {
    "bert": {},
    "bert:objectives=sop+mlm": {"data.segment_pair.negatives": "swapped"},
    "bert:objectives=ltr": {"model.direction": "left-to-right"},
    "bert:objectives=mlm+sbo,mask_rate=0.3": {"objectives.mlm.rate": 0.3},
    "bert:size=base": {"train.steps": 1_000_000, "optimizer.warmup_steps": 10_000},
    "bert:size=large,steps=2000": {"train.steps": 2000, "optimizer.warmup_steps": 200},
    "bert:corpus=synthetic": {"data.tokenizer.vocab_size": 69, "data.format": "sentence_pair"},
    "gpt": {"data.format": "full_sentences", "optimizer.decay": "cosine"},
    "gpt:size=gpt1": {"data.tokenizer.vocab_size": 40_478, "optimizer.learning_rate": 2.5e-4},
    "gpt:size=gpt2,steps=5000": {"train.steps": 5000, "optimizer.warmup_steps": None},
    "gpt:size=gpt2-xl": {"data.batch_size": 512},
    "modern:size=base": {"data.seq_len": 128},
    "elmo": {"model.direction": None, "objectives.rtl.weight": 0.5},
    "elmo:tokens=characters,size=original": {
        "objectives.ltr.negatives": 8192,
        "optimizer.gradient_scale": 20.0,
        "data.batch_size": 384,
    },
    "awd_lstm:direction=backward": {"data.stream.backward": True, "objectives.ar.weight": 2.0},
    "awd_lstm:size=original": {"train.eval_every": 373, "data.stream.wrap": "none"},
    "static:objectives=glove": {"data.format": "cooccurrence", "model.output_init": "uniform"},
    "static:objectives=cbow": {"optimizer.gradient_scale": 32 * 128.0},
}


@pytest.mark.parametrize("spec", RECIPES)
def test_recipes_can_be_trained_and_have_the_papers_values(spec):
    name, colon, arguments = spec.partition(":")
    config = load_config(f"experiments/pretrain/{name}.py{colon}{arguments}")
    phase_configs(config)
    check_config(config)
    for key, value in RECIPES[spec].items():
        node = config
        for part in key.split("."):
            node = node[part]
        assert node == value, key


def test_overrides_come_last_and_references_follow_them():
    argv = ["--config.data.seq_len=40", "--config.data.buckets=(8,16)"]
    config = load_config("experiments/pretrain/static.py", {"data.batch_size": 2}, argv)
    assert config.optimizer.gradient_scale == 80 and config.data.buckets == (8, 16)
    values = parse_arguments("a=x,y,b=3,c=true", a="", b=1, c=False, d=0.5)
    assert values == {"a": "x,y", "b": 3, "c": True, "d": 0.5}


def test_a_changed_config_changes_no_other():
    """Placeholders are objects: two configs must not share them."""
    changed = base_config()
    changed.optimizer.warmup_steps = 3
    assert base_config().optimizer.warmup_steps is None


@pytest.mark.parametrize(
    "spec, overrides, message",
    [
        ("nowhere.py", {}, "nowhere.py is neither here"),
        ("experiments/pretrain/bert.py:length=3", {}, "argument 'length=3' after the colon"),
        ("experiments/pretrain/bert.py:steps=many", {}, "argument 'steps=many' after the colon"),
        ("experiments/pretrain/bert.py", {"data.seq_length": 3}, "seq_length"),
        ("experiments/pretrain/bert.py", {"data.seq_len": "long"}, "seq_len"),
        ("experiments/pretrain/gpt.py:objectives=glow", {}, "objective 'glow': No module"),
    ],
)
def test_mistakes_in_files_and_arguments(spec, overrides, message):
    with pytest.raises(UserError, match=message):
        load_config(spec, overrides)


REFUSED = {
    "data.format='rows' is not one of": {"data.format": "rows"},
    r"data.pack_length=64 \(seq_len=128 or more\)": {"data.pack_length": 64},
    "are for rows with padding": {"data.format": "stream", "data.pack_length": 512},
    r"data.buckets=\(256,\) \(lengths up to": {"data.buckets": (256,)},
    "seq_len=600 is more than config.model.max_positions=512": {"data.seq_len": 600},
    "batch_size=30 must be a multiple of 8": {"data.batch_size": 30},
    "objective nsp needs pair_label": {"data.format": "full_sentences"},
    "mlm reads both states": {"model.direction": "left-to-right"},
    "model.stateful=True needs": {"model.stateful": True},
    "token_encoder": {"model.token_encoder": "characters"},
    "weight must be 0 or more": {"objectives.mlm.weight": -1.0},
    "average_after needs": {"optimizer.average_after": 3, "train.eval_every": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_configs_that_would_train_something_else(message):
    config = load_config("experiments/pretrain/bert.py")
    config.update_from_flattened_dict(REFUSED[message])
    with pytest.raises(UserError, match=message):
        check_config(config)
        check_devices(config)


def test_nothing_is_trained_without_weights():
    config = base_config()
    config.objectives = ConfigDict({"mlm": {"weight": 0.0}})
    with pytest.raises(UserError, match="above 0 for one NAME"):
        check_config(config)
