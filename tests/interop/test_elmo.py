"""ELMo from its published file layout equals a NumPy reference over batches, and goes out as it came."""

import functools
import itertools
import json
import sys

import h5py
import jax
import numpy as np
import pytest

import bertlab
from bertlab.config import base_config
from bertlab.data.tokenizers import WordsTokenizer, train_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import elmo
from bertlab.interop.base import Imported, export_weights, import_weights, load_run
from bertlab.models.characters import PUBLISHED_FILTERS
from bertlab.models.presets import body_shapes, build_body, model_shape
from tests.recurrent_references import bilm_side, encode_characters

WIDTH, CELL, WORDS = 6, 10, ["<S>", "</S>", "<UNK>", "the", "cat", "sat", "down"]
APART = ["sat", "</S>", "the", "<S>", "cat", "down", "."]
FILTERS = ((1, 4), (2, 5), (7, 8))
GATES = ("carry", "transform")
LSTM = dict(dim=CELL, projection_dim=WIDTH, n_layers=2, cell_clip=3, proj_clip=3, use_skip_connections=True)
CHAR_CNN = dict(
    embedding=dict(dim=16),
    filters=[list(pair) for pair in FILTERS],
    n_highway=2,
    n_characters=262,
    max_characters_per_token=50,
    activation="relu",
)


def write_source(directory, form, **char_cnn):
    """options.json and weights.hdf5 as bilm-tf's `dump_weights` names them; "characters", "ids" or "apart".

    `char_cnn` replaces options of CHAR_CNN.

    Apart: beside them what `dump_token_embeddings` makes, and the words as usage_token.py has them, without <UNK>.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape, scale=0.5: (scale * rng.standard_normal(shape)).astype(np.float32)
    char_cnn = CHAR_CNN | char_cnn
    character, filtered = char_cnn["embedding"]["dim"], sum(number for _, number in char_cnn["filters"])
    tensors = {"embedding": draw(len(WORDS), WIDTH)} if form == "ids" else {"char_embed": draw(261, character)}
    square = lambda columns: draw(filtered, columns, scale=filtered**-0.5)
    if form != "ids":
        for i, (width, number) in enumerate(char_cnn["filters"]):
            tensors |= {f"CNN/W_cnn_{i}": draw(1, width, character, number), f"CNN/b_cnn_{i}": draw(number)}
        for i, gate in itertools.product(range(char_cnn["n_highway"]), GATES):
            tensors |= {f"CNN_high_{i}/W_{gate}": square(filtered), f"CNN_high_{i}/b_{gate}": draw(filtered)}
        if filtered > WIDTH:
            tensors |= {"CNN_proj/W_proj": square(WIDTH), "CNN_proj/b_proj": draw(WIDTH)}
    for direction, layer in np.ndindex(2, 2):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        tensors |= {
            f"{cell}/W_0": draw(2 * WIDTH, 4 * CELL),
            f"{cell}/B": draw(4 * CELL, scale=2),
            f"{cell}/W_P_0": draw(CELL, WIDTH),
        }
    directory.mkdir()
    write_datasets(directory / "tiny_weights.hdf5", tensors)
    if form == "apart":
        write_datasets(directory / "elmo_token_embeddings.hdf5", {"embedding": draw(len(APART), WIDTH)})
        (directory / "vocabulary.txt").write_text("\n".join(APART))
    elif form == "ids":
        (directory / "vocabulary.txt").write_text("".join(f"{word}\n" for word in WORDS))
    options = {"lstm": LSTM} if form == "ids" else {"lstm": LSTM, "char_cnn": char_cnn}
    (directory / "tiny_options.json").write_text(json.dumps(options))
    return directory


def write_datasets(path, tensors):
    with h5py.File(path, "a") as file:
        for name, array in tensors.items():
            file[name] = array


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
    for i in range(sum(name.startswith("CNN/W_cnn_") for name in tensors)):
        p["characters"][f"filter_{i}"] = {"kernel": tensors[f"CNN/W_cnn_{i}"][0], "bias": tensors[f"CNN/b_cnn_{i}"]}
    for i in range(sum(name.endswith("/W_carry") for name in tensors)):
        names = {f"{gate}_{ours}": f"CNN_high_{i}/{k}_{gate}" for gate in GATES for ours, k in (("kernel", "W"), ("bias", "b"))}
        p["characters"][f"highway_{i}"] = {ours: tensors[theirs] for ours, theirs in names.items()}
    if "CNN_proj/W_proj" in tensors:
        p["characters"]["projection"] = {"kernel": tensors["CNN_proj/W_proj"], "bias": tensors["CNN_proj/b_proj"]}
    return p


# bilm-tf's own tests/fixtures/model; one highway layer and tanh; as many filters as the width, so no projection.
FIXTURE = dict(embedding=dict(dim=4), filters=[[1, 4], [2, 8], [3, 16], [4, 32], [5, 64]])
ONE_HIGHWAY = dict(embedding=dict(dim=7), filters=[[3, 9]], n_highway=1, activation="tanh")
UNPROJECTED = dict(filters=[[1, 2], [2, WIDTH - 2]], n_highway=0)


@pytest.mark.parametrize(
    ("form", "char_cnn"),
    [("characters", {}), ("ids", {}), ("apart", {}), *(("characters", of) for of in (FIXTURE, ONE_HIGHWAY, UNPROJECTED))],
)
def test_imported_weights_give_the_reference_states_over_batches(form, char_cnn, tmp_path):
    source = write_source(tmp_path / "source", form, **char_cnn)
    described = import_weights("elmo", source, tmp_path / "run")
    tensors, run = datasets(source), load_run(tmp_path / "run")
    taken = [name for name in tensors if form != "apart" or name.startswith(("embedding", "RNN"))]
    added = WIDTH * WIDTH + WIDTH if char_cnn == UNPROJECTED else 0
    assert described["tensors"] == len(tensors)
    assert described["parameters"] == added + sum(tensors[name].size for name in taken)
    config = model_shape(run.config.model, run.tokenizer.vocab_size)
    body, p, rng = build_body(config), reference(tensors), np.random.default_rng(1)
    characters = lambda ids: encode_characters(p["characters"], ids, char_cnn.get("activation", "relu"))
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
            x = characters(view["characters"]) if "characters" in p else p["embedding"][view["tokens"]]
            for row in range(2):
                expected, begins[row] = bilm_side(x[row], p[side], view["documents"][row], side == "backward", begins[row])
                for ours, theirs in zip(getattr(encoded, side), expected, strict=True):
                    np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)


def test_encode_carries_states_from_text_to_text(tmp_path):
    """As bilm-tf's `dump_bilm_embeddings`, which reads one sentence after the other: <S> words </S>, both ends cut off."""
    source = write_source(tmp_path / "source", "ids")
    import_weights("elmo", source, tmp_path / "run")
    texts, model, p = ["the cat sat down", "cat", "the cat"], bertlab.load(tmp_path / "run"), reference(datasets(source))
    begins = {side: [{"cell": np.zeros(CELL), "state": np.zeros(WIDTH)}] * 2 for side in ("forward", "backward")}
    for text, found in zip(texts, model.encode(texts, carry=True), strict=True):
        ids = [WORDS.index(word) for word in ("<S>", *text.split(), "</S>")]
        sides = []
        for side in begins:
            layers, begins[side] = bilm_side(p["embedding"][ids], p[side], np.ones(len(ids)), side == "backward", begins[side])
            sides.append(layers)
        expected = np.concatenate(sides, -1)[:, 1:-1]
        np.testing.assert_allclose(found.states, expected, rtol=1e-5, atol=1e-5)
    alone = model.encode(texts)
    np.testing.assert_array_equal(model.encode(texts[::-1])[-1].states, alone[0].states)
    assert np.abs(found.states - alone[-1].states)[1:].max() > 1e-3


@pytest.mark.parametrize(("form", "changed"), [("characters", {}), ("characters", ONE_HIGHWAY), ("ids", {})])
def test_an_export_is_bit_for_bit_what_came_in(form, changed, tmp_path):
    source, out = write_source(tmp_path / "source", form, **changed), tmp_path / "out"
    import_weights("elmo", source, tmp_path / "run")
    export_weights("elmo", tmp_path / "run", out)
    names = {"README.md", "options.json", "tokenizer", "weights.hdf5"} | ({"vocabulary.txt"} if form == "ids" else set())
    assert {path.name for path in out.iterdir()} == names
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), datasets(out), datasets(source))
    options = json.loads((out / "options.json").read_text())
    assert options["lstm"] == LSTM and options.get("char_cnn") == (CHAR_CNN | changed if form == "characters" else None)
    if form == "ids":
        assert (out / "vocabulary.txt").read_bytes() == (source / "vocabulary.txt").read_bytes()
    imported, again = elmo.load(source), elmo.load(out)
    jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)
    assert again.config.to_dict() == imported.config.to_dict() and again.tokenizer.pieces() == imported.tokenizer.pieces()
    assert again.files[-1] == "tokenizer"


def test_words_of_a_model_that_reads_characters(tmp_path):
    source = write_source(tmp_path / "source", "characters")
    assert elmo.load(source).tokenizer.pieces() == list(SPECIALS)
    (source / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    imported = elmo.load(source)
    assert imported.tokenizer.kind == "words" and imported.tokenizer.pieces() == [*SPECIALS, "the"]
    assert imported.config.data.characters and list(imported.config.objectives) == []


def test_words_beside_separate_embeddings(tmp_path):
    imported = elmo.load(write_source(tmp_path / "source", "apart"))
    tokenizer = imported.tokenizer
    assert tokenizer.pieces() == APART and tokenizer.encode("the dog sat .") == [2, 1, 0, 6], "</S> for what is not there"
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((3,), (1,)) and not imported.config.data.characters


def test_refusals_name_the_file_and_write_nothing(tmp_path):
    source = write_source(tmp_path / "source", "ids")

    def refused(message):
        with pytest.raises(UserError, match=message):
            import_weights("elmo", source, tmp_path / "run")

    (source / "vocabulary.txt").write_text("<S>\n</S>\n<UNK>\n")
    refused(r"3 words.* tiny_weights\.hdf5's dataset embedding .*7 rows")
    (source / "vocabulary.txt").unlink()
    refused(r" vocabulary\.txt or vocab\.txt")
    with h5py.File(source / "tiny_weights.hdf5", "a") as file:
        del file["embedding"]
    refused(r"options\.json .*char_cnn.* tiny_weights\.hdf5")
    (tmp_path / "secret").write_bytes(bytes(64))
    for dataset in ("external", "virtual"):
        with h5py.File(source / "tiny_weights.hdf5", "w") as file:
            if dataset == "external":
                file.create_dataset("embedding", shape=(64,), dtype="u1", external=[(str(tmp_path / "secret"), 0, 64)])
            else:
                layout = h5py.VirtualLayout(shape=(64,), dtype="u1")
                layout[:] = h5py.VirtualSource(str(tmp_path / "secret"), "x", shape=(64,))
                file.create_virtual_dataset("embedding", layout)
            file["linked"] = h5py.ExternalLink(str(tmp_path / "secret"), "x")  # is not followed
        refused(r"tiny_weights\.hdf5: the numbers of embedding lie in another file")
    (tmp_path / "secret").unlink()
    (source / "tiny_weights.hdf5").write_bytes(b"no HDF5")
    refused(r"tiny_weights\.hdf5 .*HDF5")
    (source / "b_options.json").write_text("{}")
    refused(r"b_options\.json and tiny_options\.json")
    (source / "tiny_weights.hdf5").unlink()
    (source / "b_options.json").unlink()
    refused(r"\*weights\.hdf5, found none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CNN_high_2/W_carry", "CNN_high_2/W_carry"),
        ("CNN/W_cnn_3", "CNN/W_cnn_3"),
        ("softmax/W", "softmax/W"),
        ("embedding", r"elmo_token_embeddings\.hdf5 has \['embedding'\]"),
    ],
)
def test_beside_separate_embeddings_only_the_characters_of_the_options_are_passed_over(name, message, tmp_path):
    source = write_source(tmp_path / "source", "apart")
    write_datasets(source / "tiny_weights.hdf5", {name: np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=message):
        elmo.load(source)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    tensors = datasets(write_source(tmp_path / "source", "ids"))
    config, root = elmo.config_of({"lstm": LSTM}, "options.json"), "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell"
    read = lambda changed: elmo.params_of(changed, config, 7, "weights.hdf5")
    for name in (f"{root}/W_0", f"{root}/B", "embedding"):
        with pytest.raises(UserError, match=f"lacks.*{name}"):
            read({k: v for k, v in tensors.items() if k != name})
        with pytest.raises(UserError, match=name):
            read({**tensors, name: tensors[name][1:]})
    for name in ("char_embed", "RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B"):
        with pytest.raises(UserError, match=name):
            read({**tensors, name: np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("lstm", "proj_clip", 5),
        ("lstm", "cell_clip", None),
        ("lstm", "projection_dim", CELL),
        ("char_cnn", "filters", [[1, 32, 3]]),
        ("char_cnn", "filters", [[51, 32]]),
        ("char_cnn", "filters", None),
        ("char_cnn", "activation", "gelu"),
        ("char_cnn", "embedding", {}),
        ("char_cnn", "n_characters", 60),
        ("char_cnn", "max_characters_per_token", 17),
    ],
)
def test_options_that_the_model_does_not_have_are_refused(group, key, value):
    options = {"lstm": dict(LSTM), "char_cnn": dict(CHAR_CNN)}
    options[group][key] = value
    with pytest.raises(UserError, match=f"options.json has {group}.{key}|{group}.proj_clip"):
        elmo.config_of(options, "options.json")


def test_options_become_the_config():
    characters = CHAR_CNN | {"n_highway": 1, "filters": [list(pair) for pair in PUBLISHED_FILTERS]}
    model = elmo.config_of({"lstm": LSTM | {"use_skip_connections": False}, "char_cnn": characters}, "options.json").model
    shape = model_shape(model, 9)
    assert (shape.layers, shape.width, shape.hidden, shape.clip, shape.highway_layers) == (2, WIDTH, CELL, 3.0, 1)
    assert shape.skip_connections is False and shape.direction == "bidirectional" and shape.token_encoder == "characters"
    assert model.filters is None and shape.filters == PUBLISHED_FILTERS
    assert model_shape(elmo.config_of({"lstm": LSTM}, "options.json").model, 9).token_encoder == "ids"


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    source = write_source(tmp_path / "source", "ids")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"-e '\.\[elmo\]'"):
        elmo.load(source)


def exported(directory, tokenizer, **model):
    """A run with parameters of zero, and with an output layer that the format does not have, as it goes out."""
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


def test_a_run_on_characters_keeps_its_words_and_filters(tmp_path):
    words = WordsTokenizer([*SPECIALS, "the", "cat"], lowercase=True)
    out = exported(tmp_path / "out", words, width=64, hidden=80, token_encoder="characters")
    imported = elmo.load(out)
    assert imported.tokenizer.pieces() == words.pieces() and imported.tokenizer.encode("The cat") == [5, 6]
    assert model_shape(imported.config.model, 7).filters == ((1, 8), (2, 16), (3, 32), (4, 72)), "those of the size"
    train_tokenizer("bpe", ["the cat sat"] * 9, 270, seed=0).save(out / "tokenizer")
    with pytest.raises(UserError, match=r"tokenizer .*'bpe'"):
        elmo.load(out)


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
