"""transformers' directories: computed as recorded, back bit for bit, and refused by a name."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertlab.errors import UserError
from bertlab.interop import huggingface
from bertlab.interop.base import Model, export_weights, import_weights
from bertlab.models.presets import model_shape
from bertlab.transfer.load import load
from tests.interop import published

RECORDED = Path(__file__).parent / "recorded"
MODERNBERT = {"family": "modern", "norm": "layer_norm", "first_norm": False}


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("kind", published.PUBLISHED)
def test_it_computes_what_transformers_recorded(kind, tmp_path):
    """With padding, segments and packed rows; recorded by `python -m tests.parity.opened`."""
    source, view = published.write_directory(kind, tmp_path / kind), published.rows()
    model = published.module_of(kind).load(source)
    recorded = dict(np.load(RECORDED / f"{kind}.npz"))
    published.assert_close(published.compute(model, view), recorded, view)


@pytest.mark.parametrize("kind", published.PUBLISHED)
def test_there_and_back_is_bit_for_bit(kind, tmp_path):
    source = published.write_directory(kind, tmp_path / "source")
    module = published.module_of(kind).__name__
    import_weights(f"{module}:load", source, tmp_path / "run")
    export_weights(f"{module}:save", tmp_path / "run", tmp_path / "out")
    assert_same(load_file(tmp_path / "out/model.safetensors"), published.weights(kind))
    theirs, ours = (json.loads((d / "config.json").read_text()) for d in (source, tmp_path / "out"))
    assert {key: ours[key] for key in theirs} == theirs
    import_weights(f"{module}:load", tmp_path / "out", tmp_path / "again")
    first, second = load(tmp_path / "run"), load(tmp_path / "again")
    assert_same(first.params, second.params)
    assert first.config.model == second.config.model
    assert first.tokenizer.pieces() == second.tokenizer.pieces()
    expected = {"bert": ["mlm", "nsp"], "gpt2": ["ltr"], "openai-gpt": ["ltr"]}
    assert list(first.config.objectives) == expected.get(kind, ["mlm"])


def test_names_that_files_have_had(tmp_path):
    """Old names, buffers and tied copies: the same parameters."""
    plain, old = published.weights("bert"), {}
    for name, array in plain.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta").removeprefix("bert.")] = array
    old["embeddings.position_ids"] = np.arange(20)[None]
    old["cls.predictions.decoder.weight"] = plain["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    gpt2 = {k.removeprefix("transformer."): v for k, v in published.weights("gpt2").items()}
    gpt2["h.1.attn.bias"] = np.tril(np.ones((1, 1, 20, 20), np.float32))
    gpt2["lm_head.weight"] = gpt2["wte.weight"]
    for kind, tensors in (("bert", old), ("gpt2", gpt2)):
        source = published.write_directory(kind, tmp_path / kind, tensors)
        plain = published.write_directory(kind, tmp_path / f"{kind}-new")
        assert_same(huggingface.load(source).params, huggingface.load(plain).params)


@pytest.mark.parametrize(
    ("left_out", "objectives", "heads"),
    [
        (("cls.",), [], {"pooler"}),
        (("cls.", "bert.pooler"), [], set()),
        (("cls.seq",), ["mlm"], {"pooler", "output"}),
    ],
)
def test_heads_may_be_absent(left_out, objectives, heads, tmp_path):
    weights = published.weights("bert")
    tensors = {name: array for name, array in weights.items() if not name.startswith(left_out)}
    architectures = ["BertForMaskedLM" if objectives else "BertModel"]
    source = tmp_path / "source"
    published.write_directory("bert", source, tensors, architectures=architectures)
    model = huggingface.load(source)
    assert list(model.config.objectives) == objectives and "heads_nsp" not in model.params
    assert {"pooler", "output"} & set(model.params["body"]) == heads
    huggingface.save(model, tmp_path / "out")
    assert_same(load_file(tmp_path / "out/model.safetensors"), tensors)
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["architectures"] == architectures


def test_half_precision_is_exact_and_shards_are_joined(tmp_path):
    whole = published.weights("gpt2")
    for number, dtype in enumerate((np.float16, ml_dtypes.bfloat16)):
        tensors = {name: array.astype(dtype) for name, array in whole.items()}
        source = published.write_directory("gpt2", tmp_path / str(number), tensors)
        (source / "model.safetensors").unlink()
        names, places = sorted(tensors), {}
        for shard in (names[::2], names[1::2]):
            file = f"model-{shard[0]}.safetensors"
            save_file({name: tensors[name] for name in shard}, source / file)
            places |= dict.fromkeys(shard, file)
        index = source / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
        found = huggingface.load(source).params["body"]["token_embedding"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.float32(tensors["transformer.wte.weight"]))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ({}, "bert"),
        ({"direction": "left-to-right"}, "bertlab"),
        ({"gated": True}, "bertlab"),
        ({"final_norm": True}, "bertlab"),
        ({"segments": 0}, "bertlab"),
        ({"base_width": 8}, "bertlab"),
        ({"output_transform": False, "output_bias": False}, "bertlab"),
        ({"position_offset": 1, "activation": "gelu_erf"}, "bertlab"),
        ({"family": "gpt", "hidden": 64}, "bertlab"),
        ({"family": "gpt", "hidden": 64, "norm_placement": "pre"}, "bertlab"),
        ({"family": "gpt", "size": "gpt2", "activation": "gelu_erf"}, "gpt2"),
        ({"family": "modern"}, "bertlab"),
        (MODERNBERT, "modernbert"),
        (MODERNBERT | {"direction": "left-to-right"}, "bertlab"),
        (MODERNBERT | {"tied": False}, "bertlab"),
    ],
)
def test_the_kind_is_the_first_that_computes_the_same(model, kind, tmp_path):
    run = published.random_model(tmp_path / "bert", layers=1, **model)
    assert published.type_of(run) == kind
    # transformers' GPT-2 and ModernBERT have no pooler.
    pooled = published.random_model(tmp_path / "pooled", pools=True, layers=1, **model)
    assert published.type_of(pooled) == (kind if kind == "bert" else "bertlab")


@pytest.mark.parametrize(
    "model",
    [
        {"direction": "left-to-right"},
        {"family": "modern", "direction": "right-to-left", "local_window": 4},
        {"family": "gpt", "norm_placement": "pre", "tied": False, "init_stddev": 0.5},
        {"position_offset": 3, "segments": 3, "norm": "rms_norm", "output_transform": False},
        {"position_encoding": "relative", "base_width": 8},
    ],
)
def test_every_transformer_comes_back_bit_for_bit(model, tmp_path):
    """And with every number of its shape."""
    run = published.random_model(tmp_path / "bert", pools=len(model) > 1, layers=1, **model)
    huggingface.save(run, tmp_path / "out")
    published.write_tokenizer("bert", tmp_path / "out")
    again = huggingface.load(tmp_path / "out")
    assert_same(again.params, run.params)
    shapes = [model_shape(one.config.model, published.VOCAB) for one in (again, run)]
    assert shapes[0] == shapes[1]
    assert list(again.config.objectives) == list(run.config.objectives)


@pytest.mark.parametrize(
    ("objectives", "settings", "kind", "architecture"),
    [
        ("mlm", {}, "bert", "BertForMaskedLM"),
        ("permutation", {}, "bert", "BertForMaskedLM"),
        ("prefix", {}, "bertlab", "BertlabForCausalLM"),
        ("mlm+prefix", {}, "bertlab", "BertlabForMaskedLM"),
        ("masked_next_token", {}, "bertlab", "BertlabForCausalLM"),
        (
            "masked_next_token",
            {"masked_next_token.causal_share": 0.0},
            "bertlab",
            "BertlabForMaskedLM",
        ),
    ],
)
def test_a_body_that_learned_to_predict_in_order_opens_as_a_causal_model(
    objectives, settings, kind, architecture, tmp_path
):
    """transformers' own causal classes would show it the future; it comes back with its
    objectives."""
    source = tmp_path / "bert"
    run = published.random_model(source, objectives=objectives, settings=settings, layers=1)
    huggingface.save(run, tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["model_type"], written["architectures"]) == (kind, [architecture])
    again = huggingface.load(tmp_path / "out")
    assert again.config.objectives.to_dict() == run.config.objectives.to_dict()
    assert_same(again.params, run.params)


@pytest.mark.parametrize(
    ("objectives", "is_out"), [("diffusion", True), ("mlm", False), ("diffusion+mlm", False)]
)
def test_an_export_of_diffusion_gives_mask_no_probability(objectives, is_out, tmp_path):
    """As its own logits do; beside another objective of masks the bias is that one's."""
    run = published.random_model(tmp_path / "bert", objectives=objectives, layers=1)
    huggingface.save(run, tmp_path / "out")
    bias = load_file(tmp_path / "out/model.safetensors")["cls.predictions.bias"]
    ours, mask = run.params["body"]["output"]["bias"], run.tokenizer.mask_id
    assert (bias[mask] == -1e4) == is_out and ours[mask] != -1e4
    np.testing.assert_array_equal(np.delete(bias, mask), np.delete(ours, mask))


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_padded_embedding_gets_pieces_that_no_text_has(kind, tmp_path):
    weights = published.weights(kind, published.VOCAB + 3)
    rows = published.VOCAB + 3
    model = huggingface.load(
        published.write_directory(kind, tmp_path / "source", weights, vocab_size=rows)
    )
    plain = huggingface.load(published.write_directory(kind, tmp_path / "plain")).tokenizer
    assert model.tokenizer.pieces() == [*plain.pieces(), *(f"<unused_{i}>" for i in (40, 41, 42))]
    for text in ("a b", "<unused_41> z"):
        assert model.tokenizer.encode(text) == plain.encode(text)


def test_heads_of_tasks_are_left_out_by_name(tmp_path, capsys):
    run = published.random_model(tmp_path / "bert", layers=1)
    params = {**run.params, "heads_task": {"kernel": np.zeros((16, 3), np.float32)}}
    huggingface.save(Model(run.config, params, run.tokenizer), tmp_path / "out")
    assert "heads_task" in capsys.readouterr().out
    assert not [k for k in load_file(tmp_path / "out/model.safetensors") if "task" in k]


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
ROPE = {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}


@pytest.mark.parametrize(
    ("kind", "config", "tensors", "message"),
    [
        ("bert", {}, {QUERY: None}, f"{QUERY} is missing"),
        ("bert", {}, {QUERY: np.zeros((16, 3))}, rf"{QUERY} is \(16, 3\)"),
        ("bert", {}, {"classifier.bias": np.zeros(3)}, "classifier.bias"),
        ("bert", {}, {"cls.predictions.decoder.weight": np.zeros((40, 16))}, "bertlab ties them"),
        ("bert", {"vocab_size": 41}, {}, r"word_embeddings.weight is \(40, 16\)"),
        ("bert", {"model_type": "electra"}, {}, "model_type='electra'"),
        ("bert", {"position_embedding_type": "relative_key"}, {}, "position_embedding_type="),
        ("bert", {"is_decoder": True}, {}, "is_decoder=True"),
        ("bert", {"hidden_act": "quick_gelu"}, {}, "hidden_act='quick_gelu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, {}, "scale_attn_by_inverse"),
        ("gpt2", {"n_head": 3}, {}, "heads=3"),
        ("modernbert", {"mlp_bias": True}, {}, "mlp_bias=True"),
        ("modernbert", {"classifier_activation": "relu"}, {}, "classifier_activation='relu'"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 3}, {}, "layer_types="),
        ("modernbert", ROPE, {}, "rope_type 'default'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(kind, config, tensors, message, tmp_path):
    weights = published.weights(kind) | tensors
    weights = {k: np.float32(v) for k, v in weights.items() if v is not None}
    source = published.write_directory(kind, tmp_path / "source", weights, **config)
    with pytest.raises(UserError, match=message):
        import_weights("huggingface", source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_refusals(tmp_path):
    source = published.write_directory("bert", tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"a pickle .* can run code"):
        huggingface.load(source)
    with pytest.raises(UserError, match=r"no config\.json"):
        huggingface.load(tmp_path)
    run = published.random_model(tmp_path / "bert", layers=1)
    run.config.model.update(
        family="static", **dict.fromkeys(("heads", "hidden", "layers", "epsilon"))
    )
    with pytest.raises(UserError, match="'static' is not a transformer"):
        huggingface.save(run, tmp_path / "out")
    with pytest.raises(UserError, match="format='tf' is not one of"):
        import_weights("tf", source, tmp_path / "run")
    with pytest.raises(UserError, match="exists; give a new name"):
        import_weights("huggingface", source, source)
