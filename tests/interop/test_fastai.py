"""The names of AWD-LSTM's state dicts come down to one table, which goes both ways."""

import json

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.interop import fastai
from bertlab.interop.tensors import write

V, D, F, LAYERS = 11, 4, 6, 3
WORDS = ["xxunk", "xxpad", "xxbos", "the", "cat", "sat", "n't", ".", "a", "b", "c"]


def plain(seed=0):
    """A model under torch's names and in its shapes, four gates in the first axis."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape, np.float32)

    tensors = {"encoder.weight": draw(V, D), "decoder.bias": draw(V)}
    for i in range(LAYERS):
        inputs, cell = (F if i else D), (D if i == LAYERS - 1 else F)
        for name, width in (("ih", inputs), ("hh", cell)):
            tensors[f"rnns.{i}.weight_{name}_l0"] = draw(4 * cell, width)
            tensors[f"rnns.{i}.bias_{name}_l0"] = draw(4 * cell)
    return tensors


def fastai_names(tensors, embedding, leftover=False):
    """fastai's: the first version's copy of the embedding, or the second's `encoder_dp.emb`."""
    words = tensors["encoder.weight"]
    named = {f"0.{embedding}.weight": words, "1.decoder.weight": words, "0.encoder.weight": words}
    named["1.decoder.bias"] = tensors["decoder.bias"]
    for name, array in tensors.items():
        head, _, leaf = name.rpartition(".")
        if not head.startswith("rnns"):
            continue
        raw = leaf == "weight_hh_l0"
        named[f"0.{head}." + ("weight_hh_l0_raw" if raw else f"module.{leaf}")] = array
        if leftover and raw:
            named[f"0.{head}.module.weight_hh_l0"] = array * 2  # as dropout left it
    return named


FASTAI_2 = fastai_names(plain(), "encoder_dp.emb", leftover=True)
FORMS = {
    "fastai 1": fastai_names(plain(), "encoder_with_dropout.embed"),
    "fastai 2": FASTAI_2,
    "encoder": {k[2:]: v for k, v in FASTAI_2.items() if k.startswith("0.")},
}


def load(tensors, folder, name="lm.pth", monkeypatch=None):
    """The model of these tensors, as if torch had read them."""
    monkeypatch.setattr(fastai, "read_torch", lambda path: tensors)
    (folder / name).touch()
    (folder / "itos.json").write_text(json.dumps(WORDS))
    return fastai.load(folder / name)


@pytest.mark.parametrize("form", FORMS)
def test_state_dicts_come_back_bit_for_bit(form, tmp_path, monkeypatch):
    model, tensors = load(FORMS[form], tmp_path, monkeypatch=monkeypatch), plain()
    assert (model.config.model.layers, model.config.model.width) == (LAYERS, D)
    assert model.config.model.hidden == F and list(model.config.objectives) == ["ltr"]
    back, expected = write(fastai.table(LAYERS), model.params), fastai_names(tensors, "copy")
    missing = {"0.copy.weight", "1.decoder.weight"}
    missing |= {"1.decoder.bias"} if form == "encoder" else set()
    assert set(back) == set(expected) - missing
    for name, array in back.items():
        np.testing.assert_array_equal(array, expected[name])
    # Gate 2 (candidate), unit 3, input 1.
    expected = tensors["rnns.0.weight_ih_l0"][2 * F + 3, 1]
    assert model.params["body"]["layer_0"]["input_kernel"][1, 2, 3] == expected


def test_a_backward_model_reads_right_to_left(tmp_path, monkeypatch):
    model = load(FASTAI_2, tmp_path, "lm_bwd.pth", monkeypatch=monkeypatch)
    assert model.config.model.direction == "right-to-left"
    assert list(model.config.objectives) == ["rtl"]


def test_what_does_not_fit_is_refused_by_name(tmp_path, monkeypatch):
    untied = {**FASTAI_2, "1.decoder.weight": np.zeros((V, D), np.float32)}
    without = {k: v for k, v in FASTAI_2.items() if k != "0.rnns.1.module.bias_hh_l0"}
    narrow = FASTAI_2 | {"0.rnns.1.module.weight_ih_l0": np.zeros((24, 5), np.float32)}
    more = FASTAI_2 | {"1.layers.0.weight": np.zeros(3, np.float32)}
    for tensors, message in (
        (untied, "1.decoder.weight differs from 0.encoder.weight"),
        (without, "0.rnns.1.module.bias_hh_l0 is missing"),
        (narrow, r"0.rnns.1.module.weight_ih_l0 is \(24, 5\)"),
        (more, "layers.0.weight"),
    ):
        with pytest.raises(UserError, match=message):
            load(tensors, tmp_path, monkeypatch=monkeypatch)
    (tmp_path / "itos.json").unlink()
    monkeypatch.setattr(fastai, "read_torch", lambda path: FASTAI_2)
    with pytest.raises(UserError, match="the words in row order"):
        fastai.load(tmp_path)


def test_words_keep_their_rows_and_specials_their_roles(tmp_path):
    tokenizer = fastai.word_tokenizer(WORDS, tmp_path)
    assert tokenizer.pieces() == WORDS
    assert tokenizer.encode("the cat didn't n't .") == [3, 4, 0, 6, 7]
    assert (tokenizer.unk_id, tokenizer.pad_id, tokenizer.cls_id) == (0, 1, 2)
    assert tokenizer.sep_id == 2, "the start stands in for an end that the vocabulary lacks"
    assert tokenizer.mask_id is None
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((2,), ())
    with pytest.raises(UserError, match="a word twice"):
        fastai.word_tokenizer(["<unk>", "the", "the"], tmp_path)
