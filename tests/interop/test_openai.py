"""OpenAI's flat arrays: the same model as transformers' OpenAI GPT, which is where it goes out."""

import json

import jax
import numpy as np
import pytest

from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError
from bertlab.interop import export_weights, import_weights
from bertlab.interop.openai import load
from bertlab.train.checkpoint import load_params
from tests.hostile_text import hostile_texts
from tests.interop import published
from tests.tokenizer_files import plain_words

D, V, P, LAYERS = 128, 40, 20, 2
LAYER = {
    "attn/c_attn/w": (1, D, 3 * D),
    "attn/c_attn/b": (3 * D,),
    "attn/c_proj/w": (1, D, D),
    "attn/c_proj/b": (D,),
    "ln_1/g": (D,),
    "ln_1/b": (D,),
    "mlp/c_fc/w": (1, D, 4 * D),
    "mlp/c_fc/b": (4 * D,),
    "mlp/c_proj/w": (1, 4 * D, D),
    "mlp/c_proj/b": (D,),
    "ln_2/g": (D,),
    "ln_2/b": (D,),
}
SHAPES = {"positions": (P, D), "tokens": (V, D)} | {f"h{i}/{name}": s for i in range(LAYERS) for name, s in LAYER.items()}


def write_model(path, leave_out=(), shapes=SHAPES):
    path.mkdir()
    drawn = published.draw(SHAPES)
    flat = np.concatenate([drawn[name].reshape(-1) for name in SHAPES])
    for part, array in enumerate(np.array_split(flat, 10)):
        if part not in leave_out:
            np.save(path / f"params_{part}.npy", array)
    (path / "params_shapes.json").write_text(json.dumps(list(shapes.values())))
    published.write_gpt1_vocabulary(path / "encoder_bpe_40000.json", path / "vocab_40000.bpe")
    return drawn


def test_arrays_lie_in_the_published_order(tmp_path):
    drawn = write_model(tmp_path / "model")
    imported = load(tmp_path / "model")
    body = imported.params["body"]
    same = np.testing.assert_array_equal
    same(body["position_embedding"], drawn["positions"])
    same(body["token_embedding"], drawn["tokens"])
    attention = body["blocks"]["attention"]
    for i in range(LAYERS):
        _, key, value = np.split(drawn[f"h{i}/attn/c_attn/w"][0], 3, axis=1)
        same(attention["qkv_kernel"][i, :, 1, 1], key[:, 64:])
        same(attention["qkv_kernel"][i, :, 2, 0], value[:, :64])
        same(attention["out_kernel"][i, 1], drawn[f"h{i}/attn/c_proj/w"][0, 64:])
        same(body["blocks"]["feed_forward_norm"]["scale"][i], drawn[f"h{i}/ln_2/g"])
        same(body["blocks"]["down"]["kernel"][i], drawn[f"h{i}/mlp/c_proj/w"][0])
    assert imported.config.model.heads == D // 64 and imported.config.model.norm_placement == "post"
    assert imported.tensors == len(SHAPES) and list(imported.config.objectives) == ["ltr"]


def test_it_goes_out_as_transformers_gpt_and_comes_back(tmp_path, monkeypatch):
    write_model(tmp_path / "model")
    import_weights("openai", tmp_path / "model", tmp_path / "run")
    export_weights("huggingface", tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_type"] == "openai-gpt" and config["afn"] == "gelu"
    import_weights("huggingface", tmp_path / "out", tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "run"), load_params(tmp_path / "again"))
    first, again = (load_tokenizer(tmp_path / folder / "tokenizer") for folder in ("run", "again"))
    assert first.kind == again.kind == "gpt1"
    assert (first.pieces(), first.merges()) == (again.pieces(), again.merges())
    plain_words(monkeypatch)
    texts = hostile_texts(300, seed=12)
    assert first.encode_batch(texts) == again.encode_batch(texts)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"leave_out": (3, 7)}, "lacks params_3.npy, params_7.npy"),
        ({"shapes": {k: s for k, s in SHAPES.items() if k != "h1/ln_2/b"}}, "lists 25 shapes; expected two .* and 12 a layer"),
        ({"shapes": SHAPES | {"tokens": (V + 1, D)}}, r"hold \d+ numbers, and params_shapes.json lists"),
        ({"shapes": SHAPES | {"tokens": (V, D // 2), "positions": (P + V // 2, D)}}, r"tokens: expected \(40, 128\)"),
    ],
)
def test_parts_that_do_not_fit(change, message, tmp_path):
    write_model(tmp_path / "model", **change)
    with pytest.raises(UserError, match=message):
        import_weights("openai", tmp_path / "model", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_vocabulary_shorter_than_the_embedding(tmp_path):
    drawn = write_model(tmp_path / "model")
    published.write_gpt1_vocabulary(tmp_path / "model/encoder_bpe_40000.json", tmp_path / "model/vocab_40000.bpe", size=37)
    imported = load(tmp_path / "model")
    assert imported.tokenizer.pieces()[-4:] == ["i</w>", "<unused_37>", "<unused_38>", "<unused_39>"]
    np.testing.assert_array_equal(imported.params["body"]["token_embedding"], drawn["tokens"])


@pytest.mark.parametrize(
    "name, contents, message",
    [
        ("params_4.npy", b"\x93NUMPY\x01\x00", "params_4.npy cannot be read as a NumPy array"),
        ("params_4.npy", b"", "params_4.npy cannot be read as a NumPy array"),
        ("params_9.npy", None, "params_9.npy cannot be read as a NumPy array"),
        ("params_shapes.json", b"null", "params_shapes.json: expected a list of shapes"),
        ("params_shapes.json", b'[[20, "128"]]', "params_shapes.json: expected a list of shapes"),
        ("vocab_40000.bpe", b"#version\n\xe9 a\n", "vocab_40000.bpe.*UTF-8"),
    ],
)
def test_damaged_files(name, contents, message, tmp_path):
    write_model(tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[:-100] if contents is None else contents)
    with pytest.raises(UserError, match=message):
        load(tmp_path / "model")
    with pytest.raises(UserError, match=rf"{name} is a file; give the directory"):
        load(path)
