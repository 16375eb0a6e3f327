"""Google's BERT variables, injected under their published names: the same model as transformers' tensors."""

import json

import jax
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.interop.google import from_variables, load
from bertlab.interop.huggingface import load as load_huggingface
from tests.interop import published

CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 20,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 40,
}


def variables() -> dict[str, np.ndarray]:
    """Google's variables, from transformers' tensors by the rules of its conversion script."""
    named = {}
    for name, array in published.weights("bert").items():
        name = name.replace("encoder.layer.", "encoder/layer_").replace("cls.predictions.bias", "cls/predictions/output_bias")
        name = name.replace("seq_relationship.", "seq_relationship/output_").replace("LayerNorm.weight", "LayerNorm/gamma")
        name = name.replace("LayerNorm.bias", "LayerNorm/beta").replace("output_weight", "output_weights")
        if "embeddings" in name:
            name = name.removesuffix(".weight")
        elif name.endswith(".weight"):
            name, array = name.removesuffix(".weight") + "/kernel", array.T
        named[name.replace(".", "/")] = array
    return named


def directory(path, **config):
    path.mkdir()
    (path / "bert_config.json").write_text(json.dumps(CONFIG | config))
    published.write_tokenizer("bert", path)
    return path


def test_the_names_are_the_published_ones():
    assert {
        "bert/embeddings/word_embeddings",
        "bert/embeddings/LayerNorm/gamma",
        "bert/encoder/layer_0/attention/self/query/kernel",
        "bert/encoder/layer_1/attention/output/LayerNorm/beta",
        "bert/encoder/layer_1/intermediate/dense/bias",
        "bert/pooler/dense/kernel",
        "cls/predictions/output_bias",
        "cls/predictions/transform/dense/kernel",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/seq_relationship/output_weights",
        "cls/seq_relationship/output_bias",
    } < set(variables())


def test_it_is_the_model_that_transformers_has(tmp_path):
    """The same parameters; only GELU is the tanh approximation here, as in modeling.py."""
    slots = {
        "global_step": np.int64(7),
        "bert/pooler/dense/bias/adam_m": np.zeros(16, np.float32),
        "bert/pooler/dense/bias/adam_v": np.zeros(16, np.float32),
    }
    dropout = {"hidden_dropout_prob": 0.2}
    imported = from_variables(variables() | slots, directory(tmp_path / "google", **dropout), "bert_model.ckpt")
    theirs = load_huggingface(published.write_directory("bert", tmp_path / "theirs", hidden_act="gelu_new", **dropout))
    jax.tree.map(np.testing.assert_array_equal, imported.params, theirs.params)
    assert imported.config.to_dict() == theirs.config.to_dict()
    assert imported.tensors == len(variables())


def test_an_encoder_alone(tmp_path):
    encoder = {name: array for name, array in variables().items() if not name.startswith("cls/")}
    imported = from_variables(encoder, directory(tmp_path / "google"), "bert_model.ckpt")
    assert len(imported.config.objectives) == 0 and "output" not in imported.params["body"]


def test_a_head_is_whole_or_absent(tmp_path):
    given = {name: array for name, array in variables().items() if name != "cls/seq_relationship/output_bias"}
    with pytest.raises(UserError, match=r"bert_model.ckpt lacks cls/seq_relationship/output_bias \(2,\)"):
        from_variables(given, directory(tmp_path / "google"), "bert_model.ckpt")


@pytest.mark.parametrize(
    "config, message",
    [
        ({"hidden_act": "swish"}, "hidden_act='swish' is not one of gelu, relu"),
        ({"hidden_act": ["gelu"]}, r"hidden_act=\['gelu'\] is not one of"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0 must be below 1"),
        ({"num_attention_heads": "two"}, "num_attention_heads='two' must be a positive whole number"),
        ({"num_hidden_layers": 1}, "bert/encoder/layer_1/"),
    ],
)
def test_configs_that_do_not_fit(config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        from_variables(variables(), directory(tmp_path / "google", **config), "bert_model.ckpt")


def test_which_checkpoint(tmp_path):
    source = directory(tmp_path / "google")
    with pytest.raises(UserError, match=r"one checkpoint .* found none"):
        load(source)
    with pytest.raises(UserError, match=r"vocab.txt is a file; give the directory"):
        load(source / "vocab.txt")
    for name in ("model.ckpt-1.index", "model.ckpt-2.index"):
        (source / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"found model.ckpt-1.index and model.ckpt-2.index"):
        load(source)
