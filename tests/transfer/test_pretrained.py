"""`bertlab.load`: hidden states and scores equal what the program computes on views made by hand."""

import json

import jax
import numpy as np
import pytest

import bertlab
from bertlab.cli import main
from bertlab.data.characters import character_ids
from bertlab.errors import UserError
from bertlab.interop import import_weights
from bertlab.interop.base import Imported, save_imported
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from tests.conftest import ROOT
from tests.interop import published
from tests.references import initial, log_softmax, quick_jit
from tests.tokenizer_files import plain_words

TEXTS = ["The with statement wraps a block.", "yield", "A class body is executed at once, is it not?"]
WORDS = [["The", "with", "statement"], ["unbelievably", "qqqzzz", "yield", "it"]]


def fresh_run(config, directory):
    """A run directory with fresh parameters, as an import makes it: no training step is compiled."""
    experiment = build_pretraining(config)
    params = initial(experiment.program, experiment.evaluations["valid"][0])
    save_imported(Imported(config, params, experiment.tokenizer), directory, "huggingface", "nowhere")
    return directory


@pytest.fixture
def opened(small_config, tmp_path):
    """A function (recipe, overrides) -> a model with fresh parameters, opened."""
    return lambda recipe, **overrides: bertlab.load(fresh_run(small_config(recipe, **overrides), tmp_path / "run"))


def view_of(model, text: str, length: int = 32) -> dict[str, np.ndarray]:
    """The view of one text by itself, special tokens around it."""
    tokenizer = model.tokenizer
    ids = [*tokenizer.prefix_ids, *tokenizer.encode(text), *tokenizer.suffix_ids]
    view = {name: np.zeros((1, length), np.int32) for name in ("tokens", "segments", "documents", "positions")}
    view["tokens"][0, : len(ids)], view["documents"][0, : len(ids)] = ids, 1
    view["positions"][0, : len(ids)] = np.arange(len(ids))
    return view


def states_of(model, text: str) -> np.ndarray:
    """[n, T, D] of one text, special tokens included."""
    view = view_of(model, text)
    _, layers = quick_jit(model.apply)(model.params, view).widest()
    return np.stack(layers)[:, 0, view["documents"][0] > 0]


@pytest.mark.parametrize("recipe", ["bert", "gpt", "elmo", "skip_gram"])
def test_encode_gives_every_layer_at_every_piece(recipe, opened):
    model = opened(recipe)
    embeddings = model.encode(TEXTS)
    whole = model.encode(TEXTS, layers=[-1, 0], special_tokens=True)
    before, after = len(model.tokenizer.prefix_ids), len(model.tokenizer.suffix_ids)
    for text, inner, outer in zip(TEXTS, embeddings, whole):
        expected = states_of(model, text)
        assert list(inner.tokens) == [model.tokenizer.pieces()[i] for i in model.tokenizer.encode(text)]
        assert len(outer.tokens) == len(inner.tokens) + before + after == expected.shape[1]
        # Rows of another length and company: float32 sums in another order.
        np.testing.assert_allclose(inner.states, expected[:, before : expected.shape[1] - after], atol=1e-5)
        np.testing.assert_allclose(outer.states, expected[[-1, 0]], atol=1e-5)


@pytest.mark.parametrize(("recipe", "piece"), [("bert", "first"), ("gpt", "last")])
def test_a_word_has_the_vector_of_its_first_piece_or_in_one_direction_its_last(recipe, piece, opened):
    model = opened(recipe)
    for words, embedding in zip(WORDS, model.encode(WORDS, pretokenized=True)):
        ids, starts = model.tokenizer.encode_words(words)
        assert words is WORDS[0] or len(ids) > len(words), "a word has several pieces"
        ends = [*starts[1:], len(ids)]
        places = starts if piece == "first" else [end - 1 for end in ends]
        expected = states_of(model, " ".join(words))[:, [len(model.tokenizer.prefix_ids) + p for p in places]]
        assert embedding.tokens == tuple(words)
        np.testing.assert_allclose(embedding.states, expected, atol=1e-5)


def test_layers_of_an_awd_lstm_are_filled_up_to_the_widest(opened):
    model = opened("awd_lstm", model__stateful=False)
    (embedding,) = model.encode(TEXTS[:1])
    _, layers = quick_jit(model.apply)(model.params, view_of(model, TEXTS[0])).widest()
    assert embedding.widths == (16, 24, 16) and embedding.states.shape == (3, len(embedding.tokens), 24)
    first = len(model.tokenizer.prefix_ids)
    for layer, filled in zip(layers, embedding.states):
        np.testing.assert_allclose(filled[:, : layer.shape[-1]], layer[0, first : first + len(filled)], atol=1e-5)
        assert not filled[:, layer.shape[-1] :].any()
    (last,) = model.encode(TEXTS[:1], layers=np.array([-1]))
    assert last.widths == (16,) and last.states.shape[-1] == 16


def test_a_model_of_characters_tells_words_apart_that_its_vocabulary_lacks(opened):
    model = opened("elmo on characters")
    words = ["zebra", "zebras", "don't"]
    (embedding,) = model.encode([words], pretokenized=True)
    assert embedding.states.shape == (3, 3, 32) and embedding.tokens == tuple(words)
    view = view_of(model, "")
    table = {"tokens": view["tokens"].copy(), "documents": view["documents"].copy(), "positions": view["positions"].copy()}
    ids = [*model.tokenizer.prefix_ids, *[model.tokenizer.unk_id] * 3, *model.tokenizer.suffix_ids]
    table["tokens"][0, : len(ids)], table["documents"][0, : len(ids)] = ids, 1
    table["characters"] = np.full((1, 32, 50), 260, np.int32)
    first, last = len(model.tokenizer.prefix_ids), len(ids) - len(model.tokenizer.suffix_ids)
    table["characters"][0, first:last] = character_ids(words)
    for place, id_ in enumerate(ids):
        if not first <= place < last:
            boundary = 256 if id_ == model.tokenizer.cls_id else 257  # begin and end of a sentence
            table["characters"][0, place, :3] = [258, boundary, 259]
    _, layers = quick_jit(model.apply)(model.params, table | {"segments": view["segments"]}).widest()
    np.testing.assert_allclose(embedding.states, np.stack(layers)[:, 0, first:last], atol=1e-5)
    assert np.abs(embedding.states[:, 0] - embedding.states[:, 1]).max() > 1e-3


@pytest.mark.parametrize(("recipe", "sides"), [("gpt", ["ltr"]), ("elmo", ["ltr", "rtl"]), ("awd_lstm backward", ["rtl"])])
def test_scores_of_one_direction_are_the_sums_of_the_objective(recipe, sides, opened):
    model = opened(recipe, model__stateful=False) if "awd" in recipe else opened(recipe)
    scores = model.score(TEXTS)
    kind = {"ltr": "left-to-right", "rtl": "right-to-left"}[sides[0]] if len(sides) == 1 else "both directions"
    for text, score in zip(TEXTS, scores):
        view = view_of(model, text)
        sums = []
        for side, name in (("forward", "ltr"), ("backward", "rtl")):
            if name in sides:
                hidden = quick_jit(model.apply)(model.params, view).output(side)
                chosen = log_softmax(np.float64(model.program.predict_tokens(model.params, hidden, side))[0])
                tokens, count = view["tokens"][0], int(view["documents"].sum())
                pairs = [(t, t + 1) if side == "forward" else (t + 1, t) for t in range(count - 1)]
                sums.append(sum(chosen[at, tokens[label]] for at, label in pairs))
        assert score.kind == kind and score.tokens == int(view["documents"].sum()) - 1
        assert score.log_probability == pytest.approx(np.mean(sums), rel=1e-5)


def test_pseudo_scores_mask_each_token_in_turn(opened):
    model = opened("bert")
    (score,) = model.score(["with a block"])
    view, total, apply = view_of(model, "with a block"), 0.0, quick_jit(model.apply)
    count = int(view["documents"].sum())
    for place in range(1, count - 1):
        tokens = view["tokens"].copy()
        tokens[0, place] = model.tokenizer.mask_id
        hidden = apply(model.params, {**view, "tokens": tokens}).both[-1]
        logits = np.float64(model.program.predict_tokens(model.params, hidden, "both"))[0]
        total += log_softmax(logits)[place, view["tokens"][0, place]]
    assert (score.kind, score.tokens) == ("pseudo", count - 2)
    assert score.log_probability == pytest.approx(total, rel=1e-5)


def test_what_cannot_be_encoded_or_scored_is_refused(opened, tmp_path):
    model = opened("bert", objectives__mlm__weight=1.0, model__max_positions=32)
    with pytest.raises(UserError, match=r"layers=\[0, 9\]: there is no layer 9; the model has 0 \(embeddings\) to 2"):
        model.encode(["x"], layers=[0, 9])
    for wrong, message in [(-1, "layers=-1: expected 'all' or a list"), ("last", "layers='last': "), ([], "layers is empty")]:
        with pytest.raises(UserError, match=message):
            model.encode(["x"], layers=wrong)
    with pytest.raises(UserError, match=r"text 1 has \d+ tokens, special ones included, and the model 32 positions"):
        model.encode(["x", "with a block " * 40])
    with pytest.raises(UserError, match=r"texts is one string; give a list"):
        model.encode("one text")
    with pytest.raises(UserError, match=r"text 0 is a list and pretokenized=False: .*set pretokenized=True"):
        model.encode([["a", "b"]])
    with pytest.raises(UserError, match=r"text 0 is a str and pretokenized=True: expected a list of words"):
        model.encode(["a b"], pretokenized=True)
    with pytest.raises(UserError, match=r"nowhere has no config.json; give the --workdir"):
        bertlab.load(tmp_path / "nowhere")


def test_a_model_that_predicts_no_tokens_gives_no_scores(small_config, tmp_path):
    fresh_run(small_config(f"{ROOT}/experiments/pretrain/bert.py:objectives=nsp"), tmp_path / "run")
    with pytest.raises(UserError, match=r"predicts no tokens \(its objectives: nsp\); score\(\) needs ltr, rtl, mlm, "):
        bertlab.load(tmp_path / "run").score(["x"])


@pytest.mark.parametrize(
    ("phases", "weights", "kinds"),
    [
        ("", {"mlm": 0.0}, ()),
        ("", {"mlm": 0.0, "final": 1.0}, ("pseudo", "pseudo-within-word")),
        ("0.5 objectives.mlm.weight=1; 0.5 data.seq_len=16", {"mlm": 0.0}, ("pseudo", "pseudo-within-word")),
        ("0.5 objectives.mlm.weight=0; 0.5 objectives.mlm.weight=0 data.seq_len=16", {"mlm": 1.0}, ()),
    ],
)
def test_only_what_had_a_weight_in_some_phase_gives_scores(phases, weights, kinds, small_config, tmp_path):
    run = fresh_run(small_config(f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm+nsp"), tmp_path / "run")
    saved = json.loads((run / "config.json").read_text())
    saved["objectives"]["mlm"] |= {"weight": weights["mlm"], "final_weight": weights.get("final")}
    saved["train"] |= {"phases": phases}
    (run / "config.json").write_text(json.dumps(saved))
    model = bertlab.load(run)
    assert model.kinds == kinds
    if not kinds:
        with pytest.raises(UserError, match=r"cannot be scored: mlm had no weight in training; train ltr, prefix or mlm"):
            model.score(["x"])


@pytest.mark.parametrize("kind", published.KINDS)
def test_an_imported_directory_is_opened_like_a_run(kind, tmp_path, monkeypatch):
    plain_words(monkeypatch)
    import_weights("huggingface", published.write_directory(kind, tmp_path / "source"), tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    (embedding,) = model.encode(["a b c"], special_tokens=True)
    assert embedding.states.shape == (3, len(embedding.tokens), 16) and np.isfinite(embedding.states).all()
    np.testing.assert_allclose(embedding.states, states_of(model, "a b c"), atol=1e-5)
    (score,) = model.score(["a b c"])
    assert score.tokens == (3 if kind in ("bert", "roberta") else 2) and score.log_probability < 0


def test_a_loss_of_ones_own_is_differentiated_through_apply(opened):
    model = opened("gpt")
    loss = lambda params: model.apply(params, view_of(model, "a block")).forward[-1].var()
    gradient = quick_jit(jax.grad(loss))(model.params)
    assert jax.tree.structure(gradient) == jax.tree.structure(model.params)
    assert np.abs(gradient["body"]["token_embedding"]).max() > 0


def test_embed_writes_one_array_a_line(small_config, tmp_path, capsys):
    loop.train(small_config("elmo", train__steps=0), tmp_path / "run")
    lines = ["with a block", "", "yield it"]
    (tmp_path / "lines.txt").write_bytes("\r\n".join([*lines, ""]).encode())
    arguments = ["embed", f"--run={tmp_path / 'run'}", f"--text={tmp_path / 'lines.txt'}", f"--out={tmp_path / 'o' / 'x.npz'}"]
    assert main([*arguments, "--pretokenized"]) == 0
    assert "3 lines, arrays [3 layers, tokens, 32], the first of 3 tokens" in capsys.readouterr().out
    model = bertlab.load(tmp_path / "run")
    with np.load(tmp_path / "o" / "x.npz") as arrays:
        assert sorted(arrays) == ["0", "1", "2"] and arrays["1"].shape == (3, 0, 32)
        (expected,) = model.encode([["yield", "it"]], pretokenized=True)
        np.testing.assert_allclose(arrays["2"], expected.states, atol=1e-5)
    assert main([*arguments, "--layers=-1"]) == 0
    with np.load(tmp_path / "o" / "x.npz") as arrays:
        (expected,) = model.encode([lines[0]], layers=[-1])
        np.testing.assert_allclose(arrays["0"], expected.states, atol=1e-5)
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["x.npz"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--out=x.npy"], "--out=x.npy: the file is a NumPy archive; give it a name that ends in .npz"),
        (["--text=nothing.txt"], "--text=nothing.txt: "),
        (["--layers=last"], "--layers=last: expected all, or numbers joined by commas"),
        (["--run=nowhere"], "nowhere has no config.json"),
    ],
)
def test_embed_says_which_flag_is_wrong(given, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("a\n")
    flags = {"--run": "nowhere", "--text": "lines.txt", "--out": "x.npz"} | dict(flag.split("=") for flag in given)
    assert main(["embed", *(f"{name}={value}" for name, value in flags.items())]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.np*"))
