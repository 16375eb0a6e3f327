"""Tables are read in both directions; what is not whole is refused, and nothing of it is left on disk."""

import json
import socket
import subprocess

import jax
import numpy as np
import pytest

from bertlab.errors import UserError, require
from bertlab.files import host, whole_directory, whole_file
from bertlab.interop import EXPORTERS, IMPORTERS, export_weights, import_weights
from bertlab.interop.base import Entry, _find, load_run, read, save_imported, transposed, write
from bertlab.interop.huggingface import load
from bertlab.train.checkpoint import load_params
from tests.interop import published

TABLE = [
    Entry(("words",), "body/token_embedding"),
    transposed("layer.{i}.w", "body/blocks/up/kernel"),
    Entry(
        ("layer.{i}.q", "layer.{i}.k"),
        "body/blocks/both",
        lambda arrays: np.stack(arrays, 1),
        lambda array: [array[:, 0], array[:, 1]],
    ),
    Entry(("pool",), "body/pooler/bias"),
]


SHAPES = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, np.float32),
    {"body": {"token_embedding": (5, 2), "blocks": {"up": {"kernel": (3, 2, 4)}, "both": (3, 2, 2)}}},
    is_leaf=lambda node: isinstance(node, tuple),
)


def tensors():
    rng = np.random.default_rng(0)
    shapes = {"words": (5, 2)} | {f"layer.{i}.{k}": s for i in range(3) for k, s in (("w", (4, 2)), ("q", (2,)), ("k", (2,)))}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_layers_are_stacked_and_matrices_turned_and_write_is_the_inverse():
    given = tensors()
    params = read(TABLE, given, SHAPES, "file")
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, SHAPES)  # no pooler is asked for, so none is missing
    np.testing.assert_array_equal(params["body"]["blocks"]["up"]["kernel"][2], given["layer.2.w"].T)
    np.testing.assert_array_equal(params["body"]["blocks"]["both"][1][:, 1], given["layer.1.k"])
    written = write(TABLE, params)
    jax.tree.map(np.testing.assert_array_equal, written, given)
    assert all(array.flags.c_contiguous for array in written.values())  # safetensors writes memory as it lies


def changed(**changes):
    given = tensors() | {name.replace("__", "."): array for name, array in changes.items()}
    return {name: array for name, array in given.items() if array is not None}


@pytest.mark.parametrize(
    "given, message",
    [
        (changed(layer__1__q=None, words=None), r"the-file lacks layer.1.q \(2,\), words \(5, 2\); nothing was written"),
        (changed(layer__3__w=np.zeros((4, 2))), r"layer.3.w \(4, 2\)"),
        (changed(layer__0__w=np.zeros((2, 4), np.float32)), r"layer.0.w: expected \(4, 2\), found \(2, 4\)"),
        (changed(words=np.zeros((5, 2))), "words is float64"),
        (changed(words=np.zeros((5, 2), np.int32)), "words is int32"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(UserError, match=message):
        read(TABLE, given, SHAPES, "the-file")


@pytest.mark.parametrize("registry", [IMPORTERS, EXPORTERS])
def test_every_importer_and_exporter_is_a_function_of_its_module(registry):
    assert all(callable(_find(kind, registry)) for kind in registry)


def test_an_imported_directory_is_whole_or_not_there(tmp_path, monkeypatch):
    imported = load(published.write_directory("bert", tmp_path / "source"))
    save_imported(imported, tmp_path / "run", "huggingface", "there")
    loaded = load_run(tmp_path / "run")
    assert loaded.config.to_dict() == json.loads(json.dumps(imported.config.to_dict()))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, imported.params)
    assert loaded.tokenizer.pieces() == imported.tokenizer.pieces()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("checkpoints", "config.json", "files.json", "imported.json", "tokenizer")
    }
    with pytest.raises(UserError, match="is not empty"):
        save_imported(imported, tmp_path / "run", "huggingface", "there")

    def broken(directory, params):
        (directory / "checkpoints").mkdir()
        raise OSError("no space left")

    monkeypatch.setattr("bertlab.interop.base.save_params", broken)
    with pytest.raises(OSError, match="no space left"):
        save_imported(imported, tmp_path / "second", "huggingface", "there")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "source"]
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "run"), imported.params)


def test_an_empty_directory_is_taken_and_a_file_is_not(tmp_path):
    (tmp_path / "empty").mkdir()
    with whole_directory(tmp_path / "empty") as directory:
        (directory / "x").write_text("1")
    assert (tmp_path / "empty/x").read_text() == "1"
    with pytest.raises(UserError, match="x is not empty"), whole_directory(tmp_path / "empty/x"):
        pass


def test_what_another_host_is_writing_is_left_alone_and_what_a_killed_process_left_is_not(tmp_path, monkeypatch):
    """Two containers on one volume: processes of both may have one number."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    of_here = tmp_path / f".run.part-{host()}-{ended.pid}"
    monkeypatch.setattr(socket, "gethostname", lambda: "other.example.org")
    elsewhere = tmp_path / f".run.part-{host()}-{ended.pid}"
    monkeypatch.undo()
    of_here.mkdir()
    elsewhere.mkdir()
    with whole_directory(tmp_path / "run") as directory, whole_file(tmp_path / "result.json") as here:
        monkeypatch.setattr(socket, "gethostname", lambda: "other.example.org")
        with whole_file(tmp_path / "result.json") as there:
            assert here != there and "." not in there.name.removeprefix("result.json.").removesuffix(".partial")
            for file, text in ((directory / "x", "1"), (here, "mine"), (there, "other")):
                file.write_text(text)
        assert (tmp_path / "result.json").read_text() == "other"
    assert (tmp_path / "result.json").read_text() == "mine"
    assert elsewhere.exists() and not of_here.exists() and (tmp_path / "run/x").exists()


def test_refusals(tmp_path):
    with pytest.raises(UserError, match=r"'keras'.* huggingface, google"):
        import_weights("keras", tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match=r"'google'.* huggingface"):
        export_weights("google", tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match=r"missing does not exist"):
        import_weights("huggingface", tmp_path / "missing", tmp_path / "run")
    with pytest.raises(UserError, match=r"has no config\.json; give the --workdir"):
        export_weights("huggingface", tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match=r"pip install -e '\.\[nothing\]'"):
        require("no_such_package", "nothing", "this")
