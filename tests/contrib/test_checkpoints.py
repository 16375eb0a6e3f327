"""Google's and OpenAI's arrays under their published names: the same models as transformers'."""

import json

import jax
import numpy as np
import pytest

from bertlab.contrib import checkpoints, roberta_gpt1
from bertlab.errors import UserError
from bertlab.interop import huggingface
from tests.interop import published

pytestmark = pytest.mark.nightly


def google_variables():
    """From transformers' tensors, by the rules of its conversion script, backwards."""
    named = {}
    for name, array in published.weights("bert").items():
        name = name.replace("encoder.layer.", "encoder/layer_")
        name = name.replace("cls.predictions.bias", "cls/predictions/output_bias")
        name = name.replace("seq_relationship.", "seq_relationship/output_")
        name = name.replace("LayerNorm.weight", "LayerNorm/gamma")
        name = name.replace("LayerNorm.bias", "LayerNorm/beta")
        name = name.replace("output_weight", "output_weights")
        if "embeddings" in name:
            name = name.removesuffix(".weight")
        elif name.endswith(".weight"):
            name, array = name.removesuffix(".weight") + "/kernel", array.T
        named[name.replace(".", "/")] = array
    return named


def google_directory(path):
    path.mkdir()
    settings = published.CONFIGS["bert"] | {"hidden_dropout_prob": 0.2}
    settings = {k: v for k, v in settings.items() if k not in ("architectures", "layer_norm_eps")}
    settings |= {"attention_probs_dropout_prob": 0.2}
    (path / "bert_config.json").write_text(json.dumps(settings))
    published.write_tokenizer("bert", path)
    return path


def test_google_s_variables_are_the_model_that_transformers_has(tmp_path):
    variables = google_variables()
    assert {
        "bert/embeddings/word_embeddings",
        "bert/embeddings/LayerNorm/gamma",
        "bert/encoder/layer_0/attention/self/query/kernel",
        "bert/pooler/dense/kernel",
        "cls/predictions/output_bias",
        "cls/predictions/transform/LayerNorm/beta",
        "cls/seq_relationship/output_weights",
    } < set(variables)
    slots = {"global_step": np.int64(7), "bert/pooler/dense/bias/adam_m": np.zeros(16)}
    model = checkpoints.from_variables(variables | slots, google_directory(tmp_path / "google"))
    dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    directory = published.write_directory(
        "bert", tmp_path / "theirs", hidden_act="gelu_new", **dropout
    )
    theirs = huggingface.load(directory)
    jax.tree.map(np.testing.assert_array_equal, model.params, theirs.params)
    assert model.config.model == theirs.config.model
    assert list(model.config.objectives) == list(theirs.config.objectives) == ["mlm", "nsp"]


def write_openai(path, tensors):
    """Ten parts of one array, in the order of finetune-transformer-lm's train.py."""
    path.mkdir()
    layers, parts = ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2"), []
    for name in ("positions_embed", "tokens_embed"):
        parts.append(tensors[f"transformer.{name}.weight"])
    for number in range(published.LAYERS):
        for layer in layers:
            weight, bias = (
                tensors[f"transformer.h.{number}.{layer}.{kind}"] for kind in ("weight", "bias")
            )
            parts += [weight if layer.startswith("ln") else weight[None], bias]
    flat = np.concatenate([part.ravel() for part in parts])
    for number, part in enumerate(np.array_split(flat, 10)):
        np.save(path / f"params_{number}.npy", part)
    (path / "params_shapes.json").write_text(json.dumps([part.shape for part in parts]))
    pieces = ["<unk>", *"abc", "a</w>", "b</w>", "c</w>", "ab</w>"]
    pieces += [f"x{i}" for i in range(published.VOCAB - len(pieces))]
    ids = {piece: index for index, piece in enumerate(pieces)}
    (path / "encoder_bpe_40000.json").write_text(json.dumps(ids))
    (path / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\n")
    return path


def test_openai_s_arrays_are_the_model_that_transformers_has(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "HEAD_WIDTH", published.WIDTH // published.HEADS)
    tensors = published.weights("openai-gpt")
    source = write_openai(tmp_path / "model", tensors)
    model = checkpoints.openai(source)
    theirs = roberta_gpt1.load(published.write_directory("openai-gpt", tmp_path / "theirs"))
    jax.tree.map(np.testing.assert_array_equal, model.params, theirs.params)
    assert model.config.model == theirs.config.model and list(model.config.objectives) == ["ltr"]
    pieces = model.tokenizer.pieces()
    ids = model.tokenizer.encode("AB abc")
    assert [pieces[index] for index in ids] == ["ab</w>", "a", "b", "c</w>"]
    np.save(source / "params_9.npy", np.zeros(3, np.float32))
    with pytest.raises(UserError, match=r"params_shapes\.json lists .* arrays"):
        checkpoints.openai(source)
