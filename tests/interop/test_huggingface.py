"""Transformers' directories: read as transformers computes them (recorded), refused where they are not whole, written back."""

import dataclasses
import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from ml_collections import ConfigDict
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from bertlab.config import base_config
from bertlab.data.tokenizers import load_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import export_weights, huggingface, import_weights
from bertlab.interop.base import Imported, load_run
from bertlab.interop.huggingface import kind_of, load, save
from bertlab.models.presets import model_shape
from tests.hostile_text import hostile_texts
from tests.interop import published
from tests.tokenizer_files import plain_words

RECORDED = Path(__file__).parent / "recorded"
MODERNBERT = {"family": "modern", "norm": "layer_norm", "first_norm": False}
MODELLING = Path(huggingface.__file__).with_name("modeling_bertlab.py")


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
    older = load(published.write_directory("bert", tmp_path / "older", hidden_act="gelu_python"))
    assert older.config.model.activation == "gelu_erf"
    assert objectives == {"bert": ["mlm", "nsp"], "roberta": ["mlm"], "openai-gpt": ["ltr"], "gpt2": ["ltr"]}


def old_names():
    """BERT's tensors without the prefix, with gamma and beta."""
    renamed = lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return {renamed(name).removeprefix("bert."): array for name, array in published.weights("bert").items()}


def test_names_that_files_have_had(tmp_path):
    """Old names, buffers and tied copies: the same parameters."""
    plain, old = published.weights("bert"), old_names()
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


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
DECODER = "cls.predictions.decoder.weight"
GAMMA = "encoder.layer.1.output.LayerNorm.gamma"


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({QUERY: None}, rf"lacks {QUERY} \(16, 16\)"),
        ({"cls.predictions.bias": None}, r"lacks cls.predictions.bias \(40,\)"),
        ({"bert.pooler.dense.bias": None}, "lacks bert.pooler.dense.bias"),
        ({DECODER: np.zeros((40, 16), np.float32)}, f"{DECODER} .* bert.embeddings.word_embeddings.weight"),
        # Names in messages are the file's.
        (old_names() | {GAMMA: np.zeros(3, np.float32)}, rf": {GAMMA}: expected \(16,\), found \(3,\)"),
        (old_names() | {GAMMA: None}, rf" lacks {GAMMA} \(16,\)"),
        (old_names() | {"classifier.bias": np.zeros(3, np.float32)}, r"classifier.bias \(3,\)"),
    ],
)
def test_what_is_not_whole_is_refused_by_name(tensors, message, tmp_path):
    tensors = tensors if "pooler.dense.weight" in tensors else published.weights("bert") | tensors
    tensors = {name: array for name, array in tensors.items() if array is not None}
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
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json .*model-00002-of-00002\.safetensors"):
        load(source)


def test_a_pickle_is_never_opened(tmp_path):
    source = published.write_directory("bert", tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pickle .*save_pretrained"):
        load(source)
    with pytest.raises(UserError, match=r"config.json is a file; give the directory"):
        load(source / "config.json")
    (source / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(UserError, match=r"model.safetensors cannot be read as safetensors"):
        load(source)


@pytest.mark.parametrize(
    "kind, config, message",
    [
        ("bert", {"model_type": "electra"}, "model_type='electra'"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("roberta", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ("bert", {"hidden_act": "quick_gelu"}, "activation 'quick_gelu'"),
        ("bert", {"hidden_act": ["gelu"]}, r"activation \['gelu'\]"),
        ("bert", {"model_type": ["bert"]}, r"model_type=\['bert'\]"),
        ("bert", {"hidden_dropout_prob": None}, "hidden_dropout_prob=None must be a number"),
        ("gpt2", {"attn_pdrop": "0.1"}, "attn_pdrop='0.1' must be a number"),
        ("bert", {"layer_norm_eps": None}, "layer_norm_eps=None must be a number"),
        ("bert", {"hidden_size": "wide"}, "hidden_size='wide'"),
        ("bert", {"vocab_size": 41}, "expected \\(41, 16\\), found \\(40, 16\\)"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt2", {"n_head": 3}, r"source: its config makes no model \(config\.model\.width=16 .*heads=3"),
        ("openai-gpt", {"n_positions": 2**63 - 1}, "n_positions=9223372036854775807 must be a positive whole number, below"),
    ],
)
def test_config_keys_that_cannot_be_honoured(kind, config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load(published.write_directory(kind, tmp_path / "source", **config))


@pytest.mark.parametrize(
    "model, kind",
    [
        ({}, "bert"),
        ({"direction": "left-to-right"}, "bert"),
        ({"direction": "right-to-left"}, "bertlab"),
        ({"gated": True}, "bertlab"),
        ({"final_norm": True}, "bertlab"),
        ({"segments": 0}, "bertlab"),
        ({"output_transform": False, "output_bias": False}, "bertlab"),
        ({"position_offset": 1, "activation": "gelu_erf"}, "roberta"),
        ({"position_offset": 1}, "bertlab"),
        ({"position_offset": 2, "activation": "gelu_erf"}, "bertlab"),
        ({"family": "gpt", "hidden": 64}, "openai-gpt"),
        ({"family": "gpt", "hidden": 64, "norm_placement": "pre"}, "bertlab"),
        ({"family": "gpt", "hidden": 99}, "bertlab"),
        ({"family": "gpt", "hidden": 64, "activation": "gelu_erf"}, "bertlab"),
        ({"family": "gpt", "size": "gpt2", "activation": "gelu_erf"}, "gpt2"),
        ({"family": "modern"}, "bertlab"),
        ({"family": "modern", "norm": "layer_norm"}, "bertlab"),
        (MODERNBERT, "modernbert"),
        (MODERNBERT | {"direction": "left-to-right"}, "bertlab"),
        (MODERNBERT | {"tied": False}, "bertlab"),
    ],
)
def test_the_kind_is_the_first_that_computes_the_same(model, kind, tmp_path):
    run = published.random_run(tmp_path / "bert", layers=1, **model)
    shape = model_shape(run.config.model, published.VOCAB)
    assert kind_of(shape, run.params, run.tokenizer) == kind
    pooler = {"body": run.params["body"] | {"pooler": {}}}  # from left to right it reads the last token
    expected = kind if shape.direction == "bidirectional" and kind != "modernbert" else "bertlab"
    assert kind_of(shape, pooler, run.tokenizer) == expected


@pytest.mark.parametrize(
    "model",
    [
        {"direction": "left-to-right"},
        {"family": "modern", "direction": "right-to-left", "local_window": 4},
        {"family": "gpt", "norm_placement": "pre", "tied": False, "init_stddev": 0.5},
        {"position_offset": 3, "segments": 3, "norm": "rms_norm", "output_transform": False, "output_bias": False},
        {"position_encoding": "disentangled", "position_buckets": 5},
    ],
)
def test_every_transformer_comes_back_bit_for_bit(model, tmp_path):
    """And with every number of its shape. Ours has a pooler; transformers' left-to-right BERT has none."""
    run = published.random_run(tmp_path / "bert", pools=len(model) > 1, layers=1, **model)
    (tmp_path / "out").mkdir()
    save(run, tmp_path / "out")
    again = load(tmp_path / "out")
    same(again.params, run.params)
    shapes = [model_shape(imported.config.model, published.VOCAB) for imported in (again, run)]
    unused = {"truncated_init", "scaled_residual_init"} if len(model) == 1 else set()
    values = [{name: value for name, value in vars(shape).items() if name not in unused} for shape in shapes]
    assert values[0] == values[1]
    assert list(again.config.objectives) == list(run.config.objectives)


@pytest.mark.parametrize(
    "objectives, settings, kind, architecture, again",
    [
        ("mlm", {}, "bert", "BertForMaskedLM", ["mlm"]),
        ("prefix", {}, "bertlab", "BertlabForCausalLM", ["prefix"]),
        ("mlm+prefix", {}, "bertlab", "BertlabForMaskedLM", ["mlm", "prefix"]),
        ("mlm+prefix", {"prefix.weight": 0.0}, "bert", "BertForMaskedLM", ["mlm"]),
        ("masked_next_token", {}, "bertlab", "BertlabForCausalLM", ["masked_next_token"]),
        ("masked_next_token", {"masked_next_token.causal_share": 0.0}, "bertlab", "BertlabForMaskedLM", ["masked_next_token"]),
        ("masked_next_token", {"masked_next_token.causal_share": 1.0}, "bertlab", "BertlabForCausalLM", ["prefix"]),
    ],
)
def test_a_body_that_learned_to_predict_in_order_opens_as_a_causal_model(
    objectives, settings, kind, architecture, again, tmp_path
):
    """transformers' own causal classes would show such a body the future; it comes back scored in the same ways."""
    run = published.random_run(tmp_path / "bert", objectives=objectives, layers=1)
    run.config.objectives.update_from_flattened_dict(settings)
    (tmp_path / "out").mkdir()
    save(run, tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["model_type"], written["architectures"]) == (kind, [architecture])
    returned = load(tmp_path / "out")
    assert list(returned.config.objectives) == again
    assert returned.ways() == run.ways() != set()
    same(returned.params, run.params)


@pytest.mark.parametrize(
    "objectives, settings", [("permutation", {}), ("span_corruption", {}), ("prefix", {"prefix.min_share": 0.3})]
)
def test_a_body_that_never_learned_to_fill_masks_comes_back_unscored(objectives, settings, tmp_path):
    """transformers' kinds have no name for what it learned, and masked scores would be numbers of nothing."""
    run = published.random_run(tmp_path / "bert", objectives=objectives, layers=1)
    run.config.objectives.update_from_flattened_dict(settings)
    (tmp_path / "out").mkdir()
    save(run, tmp_path / "out")
    returned = load(tmp_path / "out")
    assert not returned.ways() and not returned.config.objectives
    same(returned.params["body"], run.params["body"])


def test_an_export_of_diffusion_gives_mask_no_probability(tmp_path):
    """As its own logits do; beside another objective of masks the bias is that one's."""
    for objectives, is_out in (("diffusion", True), ("mlm", False), ("diffusion+mlm", False)):
        run = published.random_run(tmp_path / objectives, objectives=objectives, layers=1)
        out = tmp_path / f"{objectives}-out"
        out.mkdir()
        save(run, out)
        bias, ours = (of.params["body"]["output"]["bias"] for of in (load(out), run))
        mask = run.tokenizer.mask_id
        assert (bias[mask] == -1e4) == is_out and ours[mask] != -1e4
        np.testing.assert_array_equal(np.delete(bias, mask), np.delete(ours, mask))


def test_an_export_from_before_a_key_was_there_is_read(tmp_path):
    run = published.random_run(tmp_path / "bert", layers=1, position_encoding="relative")
    (tmp_path / "out").mkdir()
    save(run, tmp_path / "out")
    path = tmp_path / "out/config.json"
    config = json.loads(path.read_text())
    for later in ("base_width", "position_buckets"):
        del config[later]
    path.write_text(json.dumps(config))
    shapes = [model_shape(imported.config.model, published.VOCAB) for imported in (load(tmp_path / "out"), run)]
    assert shapes[0] == shapes[1]


def test_what_sentence_transformers_reads(tmp_path):
    run = published.random_run(tmp_path / "bert", norm_placement="pre")
    (tmp_path / "out").mkdir()
    save(run, tmp_path / "out")
    read = lambda name: json.loads((tmp_path / "out" / name).read_text())
    assert [(module["path"], module["type"].rpartition(".")[2]) for module in read("modules.json")] == [
        ("", "Transformer"), ("1_Pooling", "Pooling"),
    ]  # fmt: skip
    pooling = read("1_Pooling/config.json")
    assert pooling.pop("word_embedding_dimension") == 16
    assert [mode for mode, chosen in pooling.items() if chosen] == ["pooling_mode_mean_tokens"]
    assert read("sentence_bert_config.json")["max_seq_length"] == 512
    assert (tmp_path / "out/modeling_bertlab.py").read_bytes() == (
        Path(huggingface.__file__).with_name("modeling_bertlab.py")
    ).read_bytes()


OWN = {"norm_placement": "pre"}


@pytest.mark.parametrize(
    "model, change, message",
    [
        (OWN, {"layers": "wide"}, "layers='wide'"),
        (OWN, {"gated": 1}, "gated=1"),
        (OWN, {"norm": "batch_norm"}, "norm='batch_norm'"),
        (OWN, {"family": "elmo"}, "family='elmo'"),
        (OWN, {"tie_word_embeddings": None}, "tie_word_embeddings=None"),
        (OWN, {"ways": ["sideways"]}, "ways="),
        (MODERNBERT, {"mlp_bias": True}, "mlp_bias=True"),
        (MODERNBERT, {"classifier_activation": "relu"}, "classifier_activation='relu'"),
        (MODERNBERT, {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types="),
        (MODERNBERT, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type='yarn'"),
        (MODERNBERT, {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ],
)
def test_keys_of_a_config_that_bertlab_wrote_are_checked(model, change, message, tmp_path):
    run = published.random_run(tmp_path / "bert", **model)
    (tmp_path / "out").mkdir()
    save(run, tmp_path / "out")
    path = tmp_path / "out/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        load(tmp_path / "out")


@pytest.mark.parametrize("family, other", [("elmo", "elmo"), ("awd_lstm", "fastai"), ("static", "word2vec")])
def test_what_is_no_transformer_names_its_format(family, other, tmp_path):
    imported = load(published.write_directory("bert", tmp_path / "source"))
    imported.config.model = base_config().model
    imported.config.model.update(family=family, size="tiny")
    with pytest.raises(UserError, match=f"--to={other}"):
        save(imported, tmp_path)


def test_a_decoder_with_a_pooler_is_refused(tmp_path):
    with pytest.raises(UserError, match="is_decoder=True"):
        load(published.write_directory("bert", tmp_path / "source", is_decoder=True))


def test_other_heads_stay_behind_and_are_named(tmp_path, capsys):
    imported = load(published.write_directory("bert", tmp_path / "source"))
    body = {name: tree for name, tree in imported.params["body"].items() if name != "output"}
    params = {"body": body, "heads_task": {"kernel": np.zeros((16, 3), np.float32), "bias": np.zeros(3, np.float32)}}
    save(Imported(ConfigDict(imported.config), params, imported.tokenizer), tmp_path)
    assert "heads_task (2 tensors)" in capsys.readouterr().out
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    encoder = {name: array for name, array in published.weights("bert").items() if name.startswith("bert.")}
    same(load_file(tmp_path / "model.safetensors"), {name.removeprefix("bert."): array for name, array in encoder.items()})
    params = {**imported.params, "generator": {"bias": np.zeros(2, np.float32)}}
    with pytest.raises(UserError, match="no tensor for generator/bias"):
        save(Imported(ConfigDict(imported.config), params, imported.tokenizer), tmp_path)


@pytest.mark.parametrize(
    "kind, change, kept",
    [
        ("bert", {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.0}, 0.2),
        ("gpt2", {"resid_pdrop": 0.0, "attn_pdrop": 0.3}, 0.0),
    ],
)
def test_of_several_dropouts_the_hidden_one_is_taken(kind, change, kept, tmp_path, capsys):
    assert load(published.write_directory(kind, tmp_path / "source", **change)).config.model.dropout == kept
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and all(f"{key}={value}" in said for key, value in change.items())
    load(published.write_directory(kind, tmp_path / "even"))
    assert not capsys.readouterr().out


def test_a_tied_copy_that_is_not_finite_is_no_other_tensor(tmp_path):
    """What is wrong with the embedding is for `read` to say."""
    tensors = published.weights("gpt2")
    tensors["transformer.wte.weight"][3, 2] = np.nan
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()
    source = published.write_directory("gpt2", tmp_path / "source", tensors)
    with pytest.raises(UserError, match=r"NaN .*transformer\.wte\.weight"):
        load(source)


@pytest.mark.parametrize(
    "name, contents, message",
    [
        ("config.json", b"[1]", r"config.json holds \[1\]; expected a JSON object"),
        ("config.json", b"null", "config.json holds null; expected a JSON object"),
        ("model.safetensors.index.json", b"{}", "index.json: expected a weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 1}}', "index.json: expected a weight_map"),
        ("vocab.txt", b"[PAD]\n\xe9\n", r"vocab.txt.*UTF-8"),
        ("vocab.txt", "\n".join([*SPECIALS, *map(str, range(36))]).encode(), "tokenizer has 41 pieces and the model 40"),
    ],
)
def test_damaged_files(name, contents, message, tmp_path):
    source = published.write_directory("bert", tmp_path / "source")
    if "index" in name:
        (source / "model.safetensors").unlink()
    (source / name).write_bytes(contents)
    with pytest.raises(UserError, match=message):
        load(source)


def assert_same_tokenizer(first, second):
    of = lambda t: (t.kind, t.lowercase, t.pieces(), t.prefix_ids, t.suffix_ids, t.pad_id, t.unk_id, t.mask_id)
    assert of(first) == of(second)
    texts = hostile_texts(300, seed=11)
    assert first.encode_batch(texts) == second.encode_batch(texts)


def there_and_back(source, folder):
    """The tokenizers of an import, as a run keeps it, and of the import of its export."""
    imported = load(source)
    imported.tokenizer.save(folder / "run")
    kept = load_tokenizer(folder / "run")
    (folder / "out").mkdir()
    save(dataclasses.replace(imported, tokenizer=kept), folder / "out")
    return [kept, load(folder / "out").tokenizer]


@pytest.mark.parametrize("kind", published.KINDS)
def test_the_tokenizer_stays_the_same(kind, tmp_path, monkeypatch):
    plain_words(monkeypatch)
    source = published.write_directory_with_text(kind, tmp_path / "source")
    read = load_tokenizer(source)
    kinds = {"bert": ("json", 1, 1), "roberta": ("json", 1, 1), "openai-gpt": ("gpt1", 0, 0), "gpt2": ("json", 0, 0)}
    assert (read.kind, len(read.prefix_ids), len(read.suffix_ids)) == kinds[kind]
    for tokenizer in there_and_back(source, tmp_path):
        assert_same_tokenizer(read, tokenizer)


@pytest.mark.parametrize("kept", [(), ("vocab.json", "merges.txt")])
@pytest.mark.parametrize("one_string", [False, True])
def test_gpt1_as_transformers_saves_it(kept, one_string, tmp_path, monkeypatch):
    """Its tokenizer.json has BERT's words; the vocabulary and merges in it are GPT-1's."""
    plain_words(monkeypatch)
    source = published.write_directory_with_text("openai-gpt", tmp_path / "source")
    read = load_tokenizer(source)
    ids = {piece: index for index, piece in enumerate(read.pieces())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(ids, read.merges(), unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(["<unk>"])
    contents = json.loads(backend.to_str())
    if one_string:
        contents["model"]["merges"] = [" ".join(merge) for merge in read.merges()]
    (source / "tokenizer.json").write_text(json.dumps(contents))
    for name in {"vocab.json", "merges.txt"} - set(kept):
        (source / name).unlink()
    for tokenizer in there_and_back(source, tmp_path):
        assert_same_tokenizer(read, tokenizer)
        assert tokenizer.merges() == read.merges()
    assert {"vocab.json", "merges.txt"} < {path.name for path in (tmp_path / "out").iterdir()}


def write_bert_backend(source, added=(), **rules):
    """The tokenizer.json that goes with vocab.txt."""
    pieces = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer(**rules)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.add_special_tokens(pieces[:5])
    backend.add_tokens(list(added))
    backend.save(str(source / "tokenizer.json"))


@pytest.mark.parametrize(
    "settings, rules, text",
    [
        ({"do_lower_case": True}, {}, "É漢"),
        ({"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": True}, {}, "É漢"),
        ({}, {"lowercase": False}, "É漢"),
        ({"strip_accents": False}, {"strip_accents": False}, "É"),
        ({}, {"strip_accents": False}, "É"),
        ({"tokenize_chinese_chars": False}, {"handle_chinese_chars": False}, "漢a"),
        ({}, {"handle_chinese_chars": False}, "漢a"),
    ],
)
def test_berts_rules_are_those_of_its_files(settings, rules, text, tmp_path):
    source = published.write_directory_with_text("bert", tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    write_bert_backend(source, **rules)
    expected = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids
    for tokenizer in there_and_back(source, tmp_path):
        assert [*tokenizer.prefix_ids, *tokenizer.encode(text), *tokenizer.suffix_ids] == expected


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"do_basic_tokenize": False}, "do_basic_tokenize=False"),
        ({"added_tokens_decoder": {"70": {"content": "foo", "special": False}}}, "'foo' .*tokenizer.json"),
    ],
)
def test_other_rules_need_tokenizer_json(settings, message, tmp_path):
    source = published.write_directory_with_text("bert", tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True} | settings))
    with pytest.raises(UserError, match=message):
        load(source)


def test_berts_added_tokens(tmp_path):
    pieces = len((published.write_directory_with_text("bert", tmp_path / "plain") / "vocab.txt").read_text().splitlines())
    source = published.write_directory_with_text("bert", tmp_path / "source", rows=pieces + 1)
    (source / "added_tokens.json").write_text(json.dumps({"foo": pieces}))
    with pytest.raises(UserError, match=r"'foo' .*tokenizer\.json"):
        load(source)
    write_bert_backend(source, added=["foo"])
    for tokenizer in there_and_back(source, tmp_path):
        assert tokenizer.kind == "json" and tokenizer.encode("a foo a") == [5, pieces, 5]


@pytest.mark.parametrize("kind", published.KINDS)
def test_an_embedding_with_more_rows_than_pieces(kind, tmp_path, monkeypatch, capsys):
    """Rounded up, as is common: the rows come back, and no text is split into their pieces."""
    plain_words(monkeypatch)
    read = load_tokenizer(published.write_directory_with_text(kind, tmp_path / "plain"))
    rows = read.vocab_size + 7
    source = published.write_directory_with_text(kind, tmp_path / "source", rows)
    texts = [*hostile_texts(300, seed=13), f"a <unused_{rows - 1}> b<unused_{rows - 2}>"]
    loaded = there_and_back(source, tmp_path)
    assert capsys.readouterr().out.count("get names that no text contains") == 1
    for tokenizer in loaded:
        assert tokenizer.vocab_size == rows and len(set(tokenizer.pieces())) == rows
        assert tokenizer.encode_batch(texts) == read.encode_batch(texts)
    same(load_file(tmp_path / "out/model.safetensors"), published.weights(kind, rows))
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == rows


def test_names_of_unused_rows_that_are_taken(tmp_path):
    source = published.write_directory("bert", tmp_path / "source", published.weights("bert", 42), vocab_size=42)
    vocabulary = (source / "vocab.txt").read_text().replace("word0\n", "<unused_41>\n")
    (source / "vocab.txt").write_text(vocabulary)
    with pytest.raises(UserError, match="40 pieces and the model 42"):
        load(source)
