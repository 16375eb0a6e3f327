"""The names of AWD-LSTM's state dicts come down to one table, which goes both ways; what does not fit is refused."""

import json

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.interop import fastai
from bertlab.interop.base import read, write
from bertlab.interop.words import read_words, word_tokenizer
from bertlab.models.presets import body_shapes

V, D, F, LAYERS = 11, 4, 6, 3
WORDS = ["xxunk", "xxpad", "xxbos", "the", "cat", "sat", "n't", ".", "a", "b", "c"]


def plain(seed=0, bias=True):
    """A model under the short names: torch's shapes, out × in, four gates in the first axis."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape, np.float32)
    tensors = {"encoder.weight": draw(V, D)} | ({"decoder.bias": draw(V)} if bias else {})
    for i in range(LAYERS):
        inputs, cell = (D if i == 0 else F), (D if i == LAYERS - 1 else F)
        tensors |= {f"rnns.{i}.weight_ih_l0": draw(4 * cell, inputs), f"rnns.{i}.weight_hh_l0": draw(4 * cell, cell)}
        tensors |= {f"rnns.{i}.bias_ih_l0": draw(4 * cell), f"rnns.{i}.bias_hh_l0": draw(4 * cell)}
    return tensors


def salesforce(tensors):
    """awd-lstm-lm's names."""
    named = {"encoder.weight": tensors["encoder.weight"], "decoder.weight": tensors["encoder.weight"].copy()}
    for name, array in tensors.items():
        layer, _, leaf = name.removeprefix("rnns.").partition(".")
        if name.startswith("rnns."):
            raw = "_raw" if leaf == "weight_hh_l0" else ""
            named[f"rnns.{layer}.module.{leaf}{raw}"] = array
    return named | {k: v for k, v in tensors.items() if k == "decoder.bias"}


def fastai_names(tensors, embedding="encoder_with_dropout.embed", leftover=False):
    """fastai's: the first version's copy of the embedding, or the second's `encoder_dp.emb`."""
    named = {f"0.{embedding}.weight": tensors["encoder.weight"].copy(), "1.decoder.weight": tensors["encoder.weight"]}
    named["0.encoder.weight"] = tensors["encoder.weight"]
    for name, array in tensors.items():
        layer, _, leaf = name.removeprefix("rnns.").partition(".")
        if name.startswith("rnns."):
            named[f"0.rnns.{layer}." + ("weight_hh_l0_raw" if leaf == "weight_hh_l0" else f"module.{leaf}")] = array
            if leftover and leaf == "weight_hh_l0":
                named[f"0.rnns.{layer}.module.weight_hh_l0"] = array * 2  # as dropout left it
    return named | ({"1.decoder.bias": tensors["decoder.bias"]} if "decoder.bias" in tensors else {})


FORMS = {
    "plain": lambda t: t,
    "salesforce": salesforce,
    "fastai 1": fastai_names,
    "fastai 2": lambda t: fastai_names(t, "encoder_dp.emb", leftover=True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_state_dicts_come_back_bit_for_bit(form, bias):
    tensors = plain(bias=bias)
    found = fastai.plain_names(FORMS[form](tensors), "lm.pth")
    config = fastai.config_of(found, False, "lm.pth")
    assert (config.model.layers, config.model.width, config.model.hidden) == (LAYERS, D, F)
    assert config.model.output_bias is bias and list(config.objectives) == ["ltr"]
    params = read(fastai.table(LAYERS), found, body_shapes(config, V), "lm.pth")
    back = write(fastai.table(LAYERS), params)
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(back[name], array)
    out = fastai.fastai_names(back)
    assert out.keys() == fastai_names(tensors, "encoder_dp.emb").keys()
    for name, array in fastai.plain_names(out, "lm.pth").items():
        np.testing.assert_array_equal(tensors[name], array)
    # Gate 2 (candidate), unit 3, input 1.
    assert params["body"]["layer_0"]["input_kernel"][1, 2, 3] == tensors["rnns.0.weight_ih_l0"][2 * F + 3, 1]
    assert params["body"]["layer_2"]["recurrent_bias"][3, 1] == tensors["rnns.2.bias_hh_l0"][3 * D + 1]


def test_a_backward_model_reads_right_to_left():
    config = fastai.config_of(plain(), True, "lm_bwd.pth")
    assert config.model.direction == "right-to-left" and list(config.objectives) == ["rtl"]


def test_what_does_not_fit_is_refused_by_name():
    untied = salesforce(plain())
    untied["decoder.weight"] = untied["decoder.weight"] + 1
    with pytest.raises(UserError, match=r"decoder.weight differs from encoder.weight"):
        fastai.plain_names(untied, "lm.pth")

    def take(tensors):
        found = fastai.plain_names(tensors, "lm.pth")
        config = fastai.config_of(found, False, "lm.pth")
        return read(fastai.table(config.model.layers), found, body_shapes(config, V), "lm.pth")

    tensors = plain()
    for name in ("rnns.1.bias_hh_l0", "rnns.2.weight_ih_l0", "rnns.1.weight_hh_l0", "encoder.weight"):
        with pytest.raises(UserError, match=name):
            take({k: v for k, v in tensors.items() if k != name})
    with pytest.raises(UserError, match=r"rnns.1.weight_ih_l0.*expected \(24, 6\), found \(24, 5\)"):
        take({**tensors, "rnns.1.weight_ih_l0": tensors["rnns.1.weight_ih_l0"][:, :5]})
    with pytest.raises(UserError, match=r"1\.layers\.0\.weight"):
        take({**tensors, "1.layers.0.weight": np.zeros(3, np.float32)})


def test_words_keep_their_rows_and_specials_their_roles(tmp_path):
    tokenizer = word_tokenizer(WORDS, tmp_path / "itos.txt")
    assert tokenizer.pieces() == WORDS and tokenizer.vocab_size == V
    assert tokenizer.encode("the cat didn't n't .") == [3, 4, 0, 6, 7]
    assert (tokenizer.unk_id, tokenizer.pad_id, tokenizer.cls_id, tokenizer.mask_id) == (0, 1, 2, None)
    assert tokenizer.sep_id == 2, "the start stands in for an end that the vocabulary lacks"
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((2,), ())
    bilm = word_tokenizer(["<S>", "</S>", "<UNK>", "the"], tmp_path / "vocab.txt")
    assert (bilm.cls_id, bilm.sep_id, bilm.unk_id, bilm.pad_id) == (0, 1, 2, 1)
    assert (bilm.prefix_ids, bilm.suffix_ids) == ((0,), (1,))
    ours = word_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "."], tmp_path / "vocab.txt")
    assert ours.kind == "words" and ours.encode("the.") == [5, 6]
    small = word_tokenizer(["<S>", "the", "</S>"], tmp_path / "vocab.txt")
    assert small.encode("the dog") == [1, 2] and (small.unk_id, small.sep_id) == (2, 2), "the end stands in for the unknown"
    with pytest.raises(UserError, match="'the' twice"):
        word_tokenizer(["<unk>", "the", "the"], tmp_path / "itos.txt")
    with pytest.raises(UserError, match="no piece for unknown words"):
        word_tokenizer(["the", "cat"], tmp_path / "itos.txt")


def test_word_files_are_lines_or_a_list(tmp_path):
    (tmp_path / "itos.txt").write_bytes("<unk>\na\n\u2028\n\r\nb\rc\n".encode())
    (tmp_path / "itos.json").write_text(json.dumps(["<unk>", "a\n"]))
    assert read_words(tmp_path / "itos.txt") == ["<unk>", "a", "\u2028", "\r", "b\rc"], "no other line breaks"
    assert read_words(tmp_path / "itos.json") == ["<unk>", "a\n"]
    (tmp_path / "itos.txt").write_bytes("<unk>\né\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"itos\.txt: byte 6 \(line 2\) is not UTF-8"):
        read_words(tmp_path / "itos.txt")
    (tmp_path / "itos.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"itos\.json: "):
        read_words(tmp_path / "itos.json")


def test_a_pickled_vocabulary_is_not_read(tmp_path):
    (tmp_path / "itos.pkl").write_bytes(b"")
    (tmp_path / "lm.pth").write_bytes(b"")
    with pytest.raises(UserError, match=r"itos\.pkl is a pickle"):
        fastai.load(tmp_path)
