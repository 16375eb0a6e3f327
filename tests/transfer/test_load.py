"""`bertlab.load`: hidden states equal what the program computes on views made by hand; what is opened, refused and written."""

import dataclasses
import functools
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

import bertlab
from bertlab import objectives
from bertlab.cli import main
from bertlab.data.text_rows import RowEncoder
from bertlab.errors import UserError
from bertlab.interop import import_weights
from tests.interop import published
from tests.references import quick_jit
from tests.tokenizer_files import plain_words
from tests.transfer.runs import fresh_run

TEXTS = ["The with statement wraps a block.", "yield", "A class body is executed at once, is it not?"]
WORDS = [["The", "with", "statement"], ["unbelievably", "qqqzzz", "yield", "it"]]


@pytest.fixture(scope="module")
def run_of(small_config, tmp_path_factory):
    """A function (recipe) -> the directory of a run with fresh parameters."""
    return functools.cache(lambda recipe: fresh_run(small_config(recipe), tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture
def opened(run_of):
    """A function (recipe) -> a model with fresh parameters, opened."""
    return lambda recipe: bertlab.load(run_of(recipe))


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


@pytest.mark.parametrize("recipe", ["bert", "elmo", "skip_gram"])
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
    model = opened("awd_lstm")
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
    row = RowEncoder(model.tokenizer, characters=True).words(words).padded(8, model.tokenizer.pad_id)
    assert (row["tokens"][row["documents"] > 0] == model.tokenizer.unk_id).sum() == 3
    view = {name: row[name][None] for name in ("tokens", "segments", "documents", "positions", "characters")}
    _, layers = quick_jit(model.apply)(model.params, view).widest()
    first = len(model.tokenizer.prefix_ids)
    np.testing.assert_allclose(embedding.states, np.stack(layers)[:, 0, first : first + 3], atol=1e-5)
    assert np.abs(embedding.states[:, 0] - embedding.states[:, 1]).max() > 1e-3


def test_sentence_vectors_are_pooled_by_hand(opened):
    model = opened("bert")
    texts = [*TEXTS, "a b " * 9]  # rows of several lengths in one batch: padding must not count
    by_hand = {"mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "first": lambda x: x[0], "last": lambda x: x[-1]}
    for layer in (0, -1):
        expected = [embedding.states[0] for embedding in model.encode(texts, layers=[layer], special_tokens=True)]
        for pooling, pooled in by_hand.items():
            found = model.sentence_vectors(texts, layer, pooling)
            assert found.shape == (4, 16) and found.dtype == np.float32
            np.testing.assert_allclose(found, [pooled(states) for states in expected], atol=1e-5)
    dense = model.params["body"]["pooler"]
    expected = np.tanh(np.stack([states[0] for states in expected]) @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(model.sentence_vectors(texts, pooling="pooler"), expected, atol=1e-5)
    words = model.sentence_vectors([text.split() for text in texts], pretokenized=True)
    np.testing.assert_allclose(words, model.sentence_vectors(texts), atol=1e-5)
    for layer, pooling, message in (
        (0, "pooler", "layer=0: "),
        (-1, "sum", "pooling='sum'"),
        (3, "mean", "layer 3 does not exist; .*to 2"),
    ):
        with pytest.raises(UserError, match=message):
            model.sentence_vectors(texts, layer, pooling)
    program = dataclasses.replace(model.program, objectives={"nsp": objectives.find("nsp")()})
    model.config.objectives.nsp.weight = 0.0
    with pytest.raises(UserError, match=r"pooling='pooler': this model's pooler is untrained"):
        dataclasses.replace(model, program=program).sentence_vectors(texts, pooling="pooler")


def test_a_model_without_pooler_or_special_tokens_says_so(tmp_path, monkeypatch):
    plain_words(monkeypatch)
    import_weights("huggingface", published.write_directory("gpt2", tmp_path / "source"), tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    with pytest.raises(UserError, match=r"text 1 has no tokens and so no vector; remove it"):
        model.sentence_vectors(["a b", ""])
    with pytest.raises(UserError, match=r"this model's pooler is untrained"):
        model.sentence_vectors(["a b"], pooling="pooler")
    assert model.lengths(["a b c", "a"]) == [3, 1] and model.longest == model.program.body.config.max_positions
    (states,) = model.encode(["a b c"])
    np.testing.assert_allclose(model.sentence_vectors(["a b c"], -1, "last")[0], states.states[-1, -1], atol=1e-5)


def test_what_cannot_be_encoded_or_scored_is_refused(opened, tmp_path):
    model = opened("bert")
    for texts, settings, message in (
        (["x"], {"layers": [0, 9]}, r"layers=\[0, 9\]: layer 9 does not exist; .*to 2"),
        (["x"], {"layers": -1}, "layers=-1: "),
        (["x"], {"layers": "last"}, "layers='last': "),
        (["x"], {"layers": []}, "layers is empty"),
        (["x", "with a block " * 400], {}, r"text 1 has \d+ tokens .*512 positions"),
        ("one text", {}, "texts is a single string"),
        ([["a", "b"]], {}, "text 0 is of type list and pretokenized=False"),
        (["a b"], {"pretokenized": True}, "text 0 is of type str and pretokenized=True"),
        (["a b"], {"pretokenized": True, "special_tokens": True}, "special_tokens: "),
    ):
        with pytest.raises(UserError, match=message):
            model.encode(texts, **settings)
    with pytest.raises(UserError, match=r"nowhere has no config.json; give the --workdir"):
        bertlab.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("phases", "weights", "kinds"),
    [
        ("", {"mlm": 0.0, "final": 1.0}, ("pseudo", "pseudo-within-word", "any-order")),
        ("0.5 objectives.mlm.weight=1; 0.5 data.seq_len=16", {"mlm": 0.0}, ("pseudo", "pseudo-within-word", "any-order")),
        ("0.5 objectives.mlm.weight=0; 0.5 objectives.mlm.weight=0 data.seq_len=16", {"mlm": 1.0}, ()),
    ],
)
def test_only_what_had_a_weight_in_some_phase_gives_scores(phases, weights, kinds, run_of, tmp_path):
    run = shutil.copytree(run_of("bert"), tmp_path / "run")
    saved = json.loads((run / "config.json").read_text())
    saved["objectives"]["mlm"] |= {"weight": weights["mlm"], "final_weight": weights.get("final")}
    saved["train"] |= {"phases": phases}
    (run / "config.json").write_text(json.dumps(saved))
    model = bertlab.load(run)
    assert model.kinds == kinds
    if not kinds:
        with pytest.raises(UserError, match="mlm: it had no weight"):
            model.score(["x"])


@pytest.mark.parametrize("kind", ["roberta", "openai-gpt"])
def test_an_imported_directory_is_opened_like_a_run(kind, tmp_path, monkeypatch):
    plain_words(monkeypatch)
    import_weights("huggingface", published.write_directory(kind, tmp_path / "source"), tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    (embedding,) = model.encode(["a b c"], special_tokens=True)
    assert embedding.states.shape == (3, len(embedding.tokens), 16) and np.isfinite(embedding.states).all()
    np.testing.assert_allclose(embedding.states, states_of(model, "a b c"), atol=1e-5)
    (score,) = model.score(["a b c"])
    assert score.tokens == (3 if kind == "roberta" else 2) and score.log_probability < 0


def test_embed_writes_one_array_a_line(run_of, tmp_path, capsys):
    run = run_of("elmo")
    lines = ["with a block", "", "yield it"]
    (tmp_path / "lines.txt").write_bytes("\r\n".join([*lines, ""]).encode())
    arguments = ["embed", f"--run={run}", f"--text={tmp_path / 'lines.txt'}", f"--out={tmp_path / 'o' / 'x.npz'}"]
    assert main([*arguments, "--pretokenized"]) == 0
    assert "3 lines, arrays [3 layers, tokens, 32], the first of 3 tokens" in capsys.readouterr().out
    model = bertlab.load(run)
    with np.load(tmp_path / "o" / "x.npz") as arrays:
        assert sorted(arrays) == ["0", "1", "2"] and arrays["1"].shape == (3, 0, 32)
        (expected,) = model.encode([["yield", "it"]], pretokenized=True)
        np.testing.assert_allclose(arrays["2"], expected.states, atol=1e-5)
    assert main([*arguments, "--layers=-1"]) == 0
    with np.load(tmp_path / "o" / "x.npz") as arrays:
        (expected,) = model.encode([lines[0]], layers=[-1])
        np.testing.assert_allclose(arrays["0"], expected.states, atol=1e-5)
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["x.npz"]


def test_embed_needs_no_module_of_an_objective(run_of, tmp_path):
    run, out = shutil.copytree(run_of("elmo"), tmp_path / "run"), tmp_path / "x.npz"
    config = json.loads((run / "config.json").read_text())
    config["objectives"] = {"Own": {"implementation": "not_on_this_machine:Own", "weight": 1.0}}
    (run / "config.json").write_text(json.dumps(config))
    (tmp_path / "lines.txt").write_text("yield it\n")
    assert main(["embed", f"--run={run}", f"--text={tmp_path / 'lines.txt'}", f"--out={out}"]) == 0 and out.exists()
    with pytest.raises(UserError, match="not_on_this_machine"):
        bertlab.load(run)
    with pytest.raises(UserError, match="checkpoint of step 7"):
        bertlab.load(run_of("elmo"), step=7)


def test_embed_writes_tables_safetensors_and_one_vector_a_line(run_of, tmp_path):
    model = bertlab.load(run := run_of("skip_gram"))
    lines = ["with a block", "", "yield it"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")

    def embed(name, *arguments):
        given = [f"--run={run}", f"--text={tmp_path / 'lines.txt'}", f"--out={tmp_path / 'o' / name}", *arguments]
        assert main(["embed", *given]) == 0
        assert [path.name for path in (tmp_path / "o").iterdir()] == [name]
        path = (tmp_path / "o" / name).rename(tmp_path / name)
        return safetensors.numpy.load_file(path) if name.endswith("s") else pd.read_csv(path, keep_default_na=False)

    expected, vectors = model.encode(lines), model.sentence_vectors(lines, 0, "max")
    arrays = embed("x.safetensors")
    assert sorted(arrays) == ["0", "1", "2"]
    for number, embedding in enumerate(expected):
        np.testing.assert_array_equal(arrays[str(number)], embedding.states)
    table = embed("x.csv")
    assert table.columns[:4].tolist() == ["text", "layer", "position", "token"]
    assert table.token.tolist() == [token for embedding in expected for token in embedding.tokens]
    of_last = table[table.text == 2].iloc[:, 4:].to_numpy()
    np.testing.assert_allclose(of_last, expected[2].states[0], rtol=1e-6)
    np.testing.assert_array_equal(embed("p.safetensors", "--pooling=max", "--layers=0")["vectors"], vectors)
    pooled = embed("p.csv", "--pooling=max")
    assert pooled.text.tolist() == [0, 1, 2] and pooled.columns[1] == "d0"
    np.testing.assert_allclose(pooled.iloc[:, 1:], vectors, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--pooling=mean", "--layers=0,1"], "--layers=[0, 1]: --pooling gives one vector per line; name one layer"),
        (["--pooling=mean", "--layers=all"], "--layers=all: --pooling gives one vector per line; name one layer"),
        (["--pooling=mean", "--special_tokens"], "--special_tokens: --pooling always includes them"),
        (["--pooling=sum"], "--pooling=sum is not known; choose one of mean, first, last, max, pooler"),
        (
            ["--out=x.npy"],
            "--out=x.npy: the output is a NumPy archive, a safetensors file or a table; choose a name that ends in .npz",
        ),
        (["--text=nothing.txt"], "--text=nothing.txt: "),
        (["--layers=last"], "--layers=last: expected all, or numbers joined by commas"),
        (["--run=nowhere"], "nowhere has no config.json"),
    ],
)
def test_embed_says_which_flag_is_wrong(given, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("a\n")
    flags = {"--run": "nowhere", "--text": "lines.txt", "--out": "x.npz"} | dict(
        flag.split("=") for flag in given if "=" in flag
    )
    switches = [flag for flag in given if "=" not in flag]
    assert main(["embed", *(f"{name}={value}" for name, value in flags.items()), *switches]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.np*"))
