"""ELMo from its published file layout equals a NumPy reference over batches, and goes out as it came."""

import functools
import json

import h5py
import jax
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.data.tokenizers import WordsTokenizer, train_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import elmo
from bertlab.interop.base import Imported, body_shapes, export_weights, import_weights, load_run
from bertlab.models.characters import PUBLISHED_FILTERS
from bertlab.models.presets import build_body, model_shape
from tests.recurrent_references import bilm_side, encode_characters

WIDTH, CELL, WORDS = 6, 10, ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "down"]
APART = ["sat", "</S>", "the", "<S>", "cat", "down", "."]
LSTM = dict(dim=CELL, projection_dim=WIDTH, n_layers=2, cell_clip=3, proj_clip=3, use_skip_connections=True)
CHAR_CNN = dict(
    embedding=dict(dim=16),
    filters=[list(pair) for pair in PUBLISHED_FILTERS],
    n_highway=2,
    n_characters=262,
    max_characters_per_token=50,
    activation="relu",
)


def write_source(directory, characters, apart=False):
    """options.json and weights.hdf5 as bilm-tf's `dump_weights` names them.

    Apart: beside them what `dump_token_embeddings` makes, and the words as usage_token.py has them, without <UNK>.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape, scale=0.5: (scale * rng.standard_normal(shape)).astype(np.float32)
    directory.mkdir()
    with h5py.File(directory / "tiny_weights.hdf5", "w") as file:
        if characters or apart:
            file["char_embed"] = draw(261, 16)
            cnn = file.create_group("CNN")
            for i, (width, number) in enumerate(PUBLISHED_FILTERS):
                cnn[f"W_cnn_{i}"], cnn[f"b_cnn_{i}"] = draw(1, width, 16, number, scale=0.05), draw(number)
            for i in range(2):
                group = file.create_group(f"CNN_high_{i}")
                for gate in ("carry", "transform"):
                    group[f"W_{gate}"], group[f"b_{gate}"] = draw(2048, 2048, scale=2048**-0.5), draw(2048)
            file["CNN_proj/W_proj"], file["CNN_proj/b_proj"] = draw(2048, WIDTH, scale=2048**-0.5), draw(WIDTH)
        else:
            file["embedding"] = draw(len(WORDS), WIDTH)
        for direction in (0, 1):
            for layer in (0, 1):
                cell = file.create_group(f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell")
                cell["W_0"], cell["B"], cell["W_P_0"] = draw(2 * WIDTH, 4 * CELL), draw(4 * CELL, scale=2), draw(CELL, WIDTH)
    if apart:
        with h5py.File(directory / "elmo_token_embeddings.hdf5", "w") as file:
            file["embedding"] = draw(len(APART), WIDTH)
    options = {"lstm": LSTM} | ({"char_cnn": CHAR_CNN} if characters or apart else {})
    (directory / "tiny_options.json").write_text(json.dumps(options))
    if apart:
        (directory / "vocabulary.txt").write_text("\n".join(APART))
    elif not characters:
        (directory / "vocabulary.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return directory


def datasets(directory):
    """Every dataset of the directory's HDF5 files."""
    found = {}
    for path in directory.glob("*.hdf5"):
        with h5py.File(path) as file:
            keep = lambda name, item: found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None
            file.visititems(keep)
    return found


def reference(tensors):
    """The file's arrays in the shapes of the NumPy reference, without the code under test."""
    p = {}
    for side, direction in (("forward", 0), ("backward", 1)):
        cells = [f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/" for layer in (0, 1)]
        gates = lambda array: np.stack(np.split(array, 4, axis=-1), axis=-2)  # i, j, f, o, one block of columns each
        p[side] = {
            "input_kernel": np.stack([gates(tensors[c + "W_0"][:WIDTH]) for c in cells]),
            "recurrent_kernel": np.stack([gates(tensors[c + "W_0"][WIDTH:]) for c in cells]),
            "bias": np.stack([gates(tensors[c + "B"]) for c in cells]),
            "projection": np.stack([tensors[c + "W_P_0"] for c in cells]),
        }
    if "embedding" in tensors:
        return p | {"embedding": np.float64(tensors["embedding"])}
    p["characters"] = {"embedding": tensors["char_embed"]}
    for i in range(7):
        p["characters"][f"filter_{i}"] = {"kernel": tensors[f"CNN/W_cnn_{i}"][0], "bias": tensors[f"CNN/b_cnn_{i}"]}
    for i in range(2):
        names = {
            f"{gate}_{ours}": f"CNN_high_{i}/{k}_{gate}"
            for gate in ("carry", "transform")
            for ours, k in (("kernel", "W"), ("bias", "b"))
        }
        p["characters"][f"highway_{i}"] = {ours: tensors[theirs] for ours, theirs in names.items()}
    p["characters"]["projection"] = {"kernel": tensors["CNN_proj/W_proj"], "bias": tensors["CNN_proj/b_proj"]}
    return p


@pytest.mark.parametrize("form", ["characters", "embedding", "embedding apart"])
def test_imported_weights_give_the_reference_states_over_batches(form, tmp_path):
    source = write_source(tmp_path / "source", form == "characters", form == "embedding apart")
    described = import_weights("elmo", source, tmp_path / "run")
    tensors, run = datasets(source), load_run(tmp_path / "run")
    taken = [name for name in tensors if form != "embedding apart" or name.startswith(("embedding", "RNN"))]
    assert described["tensors"] == len(tensors) and described["parameters"] == sum(tensors[name].size for name in taken)
    config = model_shape(run.config.model, run.tokenizer.vocab_size)
    body, p, rng = build_body(config), reference(tensors), np.random.default_rng(1)
    encode = jax.jit(functools.partial(body.apply, method="encode"), static_argnums=2)
    for side in ("forward", "backward"):
        carry = config.initial_carry(2, (side,))
        begins = {row: [{"cell": np.zeros(CELL), "state": np.zeros(WIDTH)}] * 2 for row in range(2)}
        for _ in range(3):
            view = {
                "tokens": rng.integers(0, 7, (2, 4)).astype(np.int32),
                "characters": rng.integers(0, 261, (2, 4, 50)).astype(np.int32),
                "documents": np.ones((2, 4), np.int32),
                "continues": np.ones(2, np.int32),
            }
            encoded, carry = encode({"params": run.params["body"]}, view, True, carry)
            x = encode_characters(p["characters"], view["characters"]) if "characters" in p else p["embedding"][view["tokens"]]
            for row in range(2):
                expected, begins[row] = bilm_side(x[row], p[side], view["documents"][row], side == "backward", begins[row])
                for ours, theirs in zip(getattr(encoded, side), expected, strict=True):
                    np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("characters", [True, False])
def test_an_export_is_bit_for_bit_what_came_in(characters, tmp_path):
    source, out = write_source(tmp_path / "source", characters), tmp_path / "out"
    imported = elmo.load(source)
    out.mkdir()
    elmo.save(imported, out)
    ours, theirs = datasets(out), datasets(source)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_array_equal(ours[name], array)
    options = json.loads((out / "options.json").read_text())
    assert options["lstm"] == LSTM and options.get("char_cnn") == (CHAR_CNN if characters else None)
    if not characters:
        assert (out / "vocabulary.txt").read_bytes() == (source / "vocabulary.txt").read_bytes()
    again = elmo.load(out)
    jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)
    assert again.config.to_dict() == imported.config.to_dict() and again.tokenizer.pieces() == imported.tokenizer.pieces()
    assert again.files[-1] == "tokenizer"


def test_words_of_a_model_that_reads_characters(tmp_path):
    source = write_source(tmp_path / "source", characters=True)
    assert elmo.load(source).tokenizer.pieces() == list(SPECIALS)
    (source / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    imported = elmo.load(source)
    assert imported.tokenizer.kind == "words" and imported.tokenizer.pieces() == [*SPECIALS, "the"]
    assert imported.config.data.characters and list(imported.config.objectives) == []


def test_refusals_name_the_file_and_write_nothing(tmp_path):
    source = write_source(tmp_path / "source", characters=False)
    (source / "vocabulary.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(UserError, match=r"3 words.* tiny_weights\.hdf5's dataset embedding .*7 rows"):
        import_weights("elmo", source, tmp_path / "run")
    (source / "vocabulary.txt").unlink()
    with pytest.raises(UserError, match=r" vocabulary\.txt or vocab\.txt"):
        import_weights("elmo", source, tmp_path / "run")
    with h5py.File(source / "tiny_weights.hdf5", "a") as file:
        del file["embedding"]
    with pytest.raises(UserError, match=r"options\.json .*char_cnn.* tiny_weights\.hdf5"):
        import_weights("elmo", source, tmp_path / "run")
    (source / "tiny_weights.hdf5").write_bytes(b"no HDF5")
    with pytest.raises(UserError, match=r"tiny_weights\.hdf5 .*HDF5"):
        import_weights("elmo", source, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_export_through_the_registry(tmp_path):
    source = write_source(tmp_path / "source", characters=False)
    import_weights("elmo", source, tmp_path / "run")
    export_weights("elmo", tmp_path / "run", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "options.json",
        "tokenizer",
        "vocabulary.txt",
        "weights.hdf5",
    ]


def add_dataset(path, name):
    with h5py.File(path, "a") as file:
        file[name] = np.zeros(3, np.float32)


def test_words_beside_separate_embeddings(tmp_path):
    source = write_source(tmp_path / "source", characters=False, apart=True)
    tokenizer = elmo.load(source).tokenizer
    assert tokenizer.pieces() == APART and tokenizer.encode("the dog sat .") == [2, 1, 0, 6], "</S> for what is not there"
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((3,), (1,))
    assert "<UNK>" not in APART and not elmo.load(source).config.data.characters


@pytest.mark.parametrize("name", ["CNN_high_2/W_carry", "CNN/W_cnn_7", "softmax/W"])
def test_only_the_characters_of_the_options_are_passed_over(name, tmp_path):
    source = write_source(tmp_path / "source", characters=False, apart=True)
    add_dataset(source / "tiny_weights.hdf5", name)
    with pytest.raises(UserError, match=f"{name}"):
        elmo.load(source)


def test_an_embedding_is_in_one_file_only(tmp_path):
    source = write_source(tmp_path / "source", characters=False, apart=True)
    add_dataset(source / "tiny_weights.hdf5", "embedding")
    with pytest.raises(UserError, match=r"elmo_token_embeddings\.hdf5 has \['embedding'\]"):
        elmo.load(source)


def exported(directory, tokenizer, **model):
    """A run with parameters of zero, as it goes out."""
    config = base_config()
    config.model.update(family="elmo", size="tiny", **model)
    config.data.characters = model.get("token_encoder") == "characters"
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), body_shapes(config, tokenizer.vocab_size))
    directory.mkdir()
    elmo.save(Imported(config, zeros, tokenizer), directory)
    return directory


def test_a_run_on_subwords_keeps_its_tokenizer(tmp_path):
    texts = ["the cat sat on the mat", "a cat and a dog sat down"] * 20
    subwords = train_tokenizer("bpe", texts, 300, seed=0)
    out = exported(tmp_path / "out", subwords, width=4, hidden=6)
    tokenizer = elmo.load(out).tokenizer
    assert tokenizer.kind == "bpe" and tokenizer.encode("the catalogue") == subwords.encode("the catalogue")
    with h5py.File(out / "weights.hdf5", "a") as file:
        rows = file["embedding"][1:]
        del file["embedding"]
        file["embedding"] = rows
    with pytest.raises(UserError, match=r"tokenizer has 300 words.* weights\.hdf5's dataset embedding .*299 rows"):
        elmo.load(out)


def test_a_run_on_characters_keeps_its_words(tmp_path):
    words = WordsTokenizer([*SPECIALS, "the", "cat"], lowercase=True)
    source = write_source(tmp_path / "source", characters=True)
    imported = elmo.load(source)
    (tmp_path / "out").mkdir()
    elmo.save(Imported(imported.config, imported.params, words), tmp_path / "out")
    tokenizer = elmo.load(tmp_path / "out").tokenizer
    assert tokenizer.pieces() == words.pieces() and tokenizer.encode("The cat") == [5, 6]
    train_tokenizer("bpe", ["the cat sat"] * 9, 270, seed=0).save(tmp_path / "out" / "tokenizer")
    with pytest.raises(UserError, match=r"tokenizer .*'bpe'"):
        elmo.load(tmp_path / "out")


def test_filters_of_a_run_go_out(tmp_path):
    words = WordsTokenizer([*SPECIALS, "the"], lowercase=False)
    out = exported(tmp_path / "out", words, width=64, hidden=80, token_encoder="characters")
    options = json.loads((out / "options.json").read_text())
    assert options["char_cnn"]["filters"] == [[1, 8], [2, 16], [3, 32], [4, 72]]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (dict(token_encoder="ids"), r"config\.model\.hidden is 128.*config\.model\.hidden larger"),
        (dict(token_encoder="characters", hidden=256), r"character filters is 128.*config\.model\.width smaller"),
    ],
)
def test_what_readers_would_not_project_is_refused(model, said, tmp_path):
    with pytest.raises(UserError, match=said):
        exported(tmp_path / "out", WordsTokenizer([*SPECIALS, "the"], lowercase=False), **model)


def test_filters_of_ones_own_come_back(tmp_path):
    words = WordsTokenizer([*SPECIALS, "the"], lowercase=False)
    out = exported(tmp_path / "out", words, width=64, hidden=80, token_encoder="characters")
    import_weights("elmo", out, tmp_path / "run")
    run = load_run(tmp_path / "run")
    shape = model_shape(run.config.model, run.tokenizer.vocab_size)
    assert shape.filters == ((1, 8), (2, 16), (3, 32), (4, 72)) and hash(shape)
    assert run.params["body"]["characters"]["filter_3"]["kernel"].shape == (4, 16, 72)
