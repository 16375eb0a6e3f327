"""Transformers' directories: read as transformers computes them (recorded), refused where they are not whole, written back."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.interop import export_weights, import_weights
from bertlab.interop.base import Imported, load_run
from bertlab.interop.huggingface import describe, load, save
from bertlab.models.presets import model_shape
from tests.interop import published

RECORDED = Path(__file__).parent / "recorded"


def same(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("kind", published.KINDS)
def test_it_computes_what_transformers_recorded(kind, tmp_path):
    """With padding, segments and packed rows; recorded by `python -m tests.parity.record`."""
    imported = load(published.write_directory(kind, tmp_path / kind))
    view = published.batch()
    published.assert_close(published.run(imported, view), dict(np.load(RECORDED / f"{kind}.npz")), view)


@pytest.mark.parametrize("kind", published.KINDS)
def test_there_and_back_is_bit_for_bit(kind, tmp_path):
    source = published.write_directory(kind, tmp_path / "source")
    description = import_weights("huggingface", source, tmp_path / "run")
    assert description["tensors"] == len(published.weights(kind)) and description["from"] == "huggingface"
    assert json.loads((tmp_path / "run/imported.json").read_text()) == description
    export_weights("huggingface", tmp_path / "run", tmp_path / "out")
    written = load_file(tmp_path / "out/model.safetensors")
    same(written, published.weights(kind))
    with safe_open(tmp_path / "out/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    theirs, ours = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out"))
    assert {key: ours[key] for key in theirs} == theirs
    import_weights("huggingface", tmp_path / "out", tmp_path / "again")
    first, second = load_run(tmp_path / "run"), load_run(tmp_path / "again")
    same(first.params, second.params)
    assert first.config.model == second.config.model and first.tokenizer.pieces() == second.tokenizer.pieces()


def test_config_of_an_import(tmp_path):
    """The shape's numbers are explicit, the objectives are those whose heads there are."""
    objectives = {}
    for kind in published.KINDS:
        imported = load(published.write_directory(kind, tmp_path / kind))
        objectives[kind] = list(imported.config.objectives)
        shape = model_shape(imported.config.model, published.VOCAB)
        assert (shape.layers, shape.width, shape.heads, shape.hidden) == (2, 16, 2, 64)
        assert shape.max_positions == published.POSITIONS and imported.config.data.seq_len == published.POSITIONS
        assert shape.position_offset == (2 if kind == "roberta" else 0)
        assert shape.activation == ("gelu_tanh" if "gpt" in kind else "gelu_erf")
        assert (shape.norm_placement, shape.final_norm) == (("pre", True) if kind == "gpt2" else ("post", False))
    assert objectives == {"bert": ["mlm", "nsp"], "roberta": ["mlm"], "openai-gpt": ["ltr"], "gpt2": ["ltr"]}


def test_names_that_files_have_had(tmp_path):
    """Without the prefix, with gamma and beta, buffers and tied copies: the same parameters."""
    plain = published.weights("bert")
    old = {}
    for name, array in plain.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[name.removeprefix("bert.")] = array
    old["embeddings.position_ids"] = np.arange(20)[None]
    old["cls.predictions.decoder.weight"] = plain["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    same(
        load(published.write_directory("bert", tmp_path / "old", old)).params,
        load(published.write_directory("bert", tmp_path / "new")).params,
    )
    gpt2 = {name.removeprefix("transformer."): array for name, array in published.weights("gpt2").items()}
    gpt2["h.1.attn.bias"] = np.tril(np.ones((1, 1, 20, 20), np.float32))
    gpt2["h.1.attn.masked_bias"] = np.array(-1e4, np.float32)
    gpt2["lm_head.weight"] = gpt2["wte.weight"]
    same(
        load(published.write_directory("gpt2", tmp_path / "bare", gpt2)).params,
        load(published.write_directory("gpt2", tmp_path / "full")).params,
    )


@pytest.mark.parametrize(
    "left_out, objectives, heads",
    [(("cls.",), [], {"pooler"}), (("cls.", "bert.pooler"), [], set()), (("cls.seq",), ["mlm"], {"pooler", "output"})],
)
def test_heads_may_be_absent(left_out, objectives, heads, tmp_path):
    tensors = {name: array for name, array in published.weights("bert").items() if not name.startswith(left_out)}
    imported = load(published.write_directory("bert", tmp_path / "source", tensors))
    assert list(imported.config.objectives) == objectives
    assert {"pooler", "output"} & set(imported.params["body"]) == heads and "heads_nsp" not in imported.params
    save(imported, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    same(written, {name if objectives else name.removeprefix("bert."): array for name, array in tensors.items()})


def spoiled(name, change):
    tensors = published.weights("bert")
    change(tensors, name)
    return tensors


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    "tensors, message",
    [
        (spoiled(QUERY, lambda t, n: t.pop(n)), rf"lacks {QUERY} \(16, 16\)"),
        (spoiled("cls.predictions.bias", lambda t, n: t.pop(n)), r"lacks cls.predictions.bias \(40,\)"),
        (spoiled("bert.pooler.dense.bias", lambda t, n: t.pop(n)), r"lacks bert.pooler.dense.bias"),
        (spoiled("classifier.weight", lambda t, n: t.update({n: np.zeros(3)})), r"no place for: bert.classifier.weight \(3,\)"),
        (spoiled(QUERY, lambda t, n: t.update({n: t[n][:, :-1]})), rf"{QUERY}: expected \(16, 16\), found \(16, 15\)"),
        (spoiled(QUERY, lambda t, n: t.update({n: np.int32(t[n])})), rf"{QUERY} is int32"),
        (
            spoiled("cls.predictions.decoder.weight", lambda t, n: t.update({n: np.zeros((40, 16), np.float32)})),
            "cls.predictions.decoder.weight is not bert.embeddings.word_embeddings.weight",
        ),
    ],
)
def test_what_is_not_whole_is_refused_by_name(tensors, message, tmp_path):
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    source = published.write_directory("bert", tmp_path / "source", tensors)
    with pytest.raises(UserError, match=message):
        import_weights("huggingface", source, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_half_precision_is_exact(tmp_path):
    for number, dtype in enumerate((np.float16, ml_dtypes.bfloat16)):
        tensors = {name: array.astype(dtype) for name, array in published.weights("gpt2").items()}
        loaded = load(published.write_directory("gpt2", tmp_path / str(number), tensors)).params
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(loaded))
        np.testing.assert_array_equal(loaded["body"]["token_embedding"], np.float32(tensors["transformer.wte.weight"]))


def test_shards(tmp_path):
    whole = load(published.write_directory("bert", tmp_path / "whole"))
    source = published.write_directory("bert", tmp_path / "shards")
    (source / "model.safetensors").unlink()
    tensors = published.weights("bert")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, source / file)
    places = {name: file for file, part in parts.items() for name in part}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    sharded = load(source)
    same(sharded.params, whole.params)
    assert sharded.files == ("config.json", *parts)
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"names model-00002-of-00002\.safetensors, which is not a file beside it"):
        load(source)


def test_a_pickle_is_never_opened(tmp_path):
    source = published.write_directory("bert", tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pickle .* convert it .*save_pretrained"):
        load(source)
    (source / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(UserError, match=r"model.safetensors cannot be read as safetensors"):
        load(source)


@pytest.mark.parametrize(
    "kind, config, message",
    [
        ("bert", {"model_type": "electra"}, "model_type='electra'"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ("bert", {"hidden_act": "quick_gelu"}, "activation 'quick_gelu'"),
        ("bert", {"attention_probs_dropout_prob": 0.0}, "attention_probs_dropout_prob=0.0 differ"),
        ("bert", {"hidden_size": "wide"}, "hidden_size='wide'"),
        ("bert", {"vocab_size": 41}, "expected \\(41, 16\\), found \\(40, 16\\)"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt2", {"n_head": 3}, "heads"),
    ],
)
def test_config_keys_that_cannot_be_honoured(kind, config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load(published.write_directory(kind, tmp_path / "source", **config))


def test_a_vocabulary_of_another_model(tmp_path):
    source = published.write_directory("bert", tmp_path / "source")
    with (source / "vocab.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(UserError, match="tokenizer has 41 pieces and the model 40"):
        load(source)


@pytest.mark.parametrize(
    "model, message",
    [
        ({"family": "modern"}, "config.model.norm='rms_norm'"),
        ({"family": "elmo"}, "config.model.family"),
        ({"direction": "left-to-right"}, "config.model.embedding_norm=True"),
        ({"direction": "right-to-left"}, "config.model.direction='right-to-left'"),
        ({"gated": True}, "config.model.gated=True"),
        ({"position_encoding": "rotary"}, "config.model.position_encoding='rotary'"),
        ({"final_norm": True}, "config.model.final_norm=True"),
        ({"segments": 0}, "config.model.segments=0"),
        ({"position_offset": 2, "activation": "gelu_erf"}, "config.model.position_offset=2"),
        ({"family": "gpt", "hidden": 99}, "config.model.hidden=99"),
        ({"family": "gpt", "activation": "gelu_erf"}, "config.model.activation='gelu_erf'"),
        ({"family": "gpt", "norm_placement": "pre"}, "config.model.final_norm=False"),
    ],
)
def test_what_transformers_cannot_express_is_not_exported(model, message, tmp_path):
    tokenizer = load(published.write_directory("bert", tmp_path / "source")).tokenizer
    config = base_config()
    config.model.update(model)
    with pytest.raises(UserError, match=message):
        describe(model_shape(config.model, published.VOCAB), {"body": {"output": {}}}, tokenizer)


def test_an_objectives_own_head_is_not_dropped_in_silence(tmp_path):
    imported = load(published.write_directory("bert", tmp_path / "source"))
    params = {**imported.params, "heads_sop": {"kernel": np.zeros((16, 2), np.float32)}}
    with pytest.raises(UserError, match="no tensor for heads_sop/kernel"):
        save(Imported(ConfigDict(imported.config), params, imported.tokenizer), tmp_path)
