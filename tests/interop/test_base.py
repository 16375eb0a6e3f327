"""Tables are read in both directions; what is not whole is refused, and nothing of it is left on disk."""

import json

import jax
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError, require
from bertlab.interop import EXPORTERS, IMPORTERS, export_weights, import_weights
from bertlab.interop.base import (
    Entry,
    Imported,
    body_shapes,
    flatten_tree,
    load_run,
    nest,
    read,
    save_imported,
    transposed,
    whole_directory,
    write,
)
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


def shapes_of(flat):
    return nest({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in flat.items()})


SHAPES = shapes_of({"body/token_embedding": (5, 2), "body/blocks/up/kernel": (3, 2, 4), "body/blocks/both": (3, 2, 2)})


def tensors():
    rng = np.random.default_rng(0)
    shapes = {"words": (5, 2)} | {f"layer.{i}.{k}": s for i in range(3) for k, s in (("w", (4, 2)), ("q", (2,)), ("k", (2,)))}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_layers_are_stacked_and_matrices_turned():
    given = tensors()
    params = read(TABLE, given, SHAPES, "file")
    assert set(flatten_tree(params)) == set(flatten_tree(SHAPES))  # no pooler is asked for, so none is missing
    np.testing.assert_array_equal(params["body"]["blocks"]["up"]["kernel"][2], given["layer.2.w"].T)
    np.testing.assert_array_equal(params["body"]["blocks"]["both"][1][:, 1], given["layer.1.k"])


def test_write_is_the_inverse_of_read():
    given = tensors()
    written = write(TABLE, read(TABLE, given, SHAPES, "file"))
    assert set(written) == set(given)
    for name, array in given.items():
        np.testing.assert_array_equal(written[name], array)
        assert written[name].flags.c_contiguous  # safetensors writes memory as it lies


def test_a_parameter_without_a_place_is_refused():
    with pytest.raises(UserError, match="no tensor for body/gate"):
        write(TABLE, {"body": {"gate": np.zeros(2)}})


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
        (changed(words=np.zeros((5, 2), np.int8)), "words is int8"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(UserError, match=message):
        read(TABLE, given, SHAPES, "the-file")


def test_the_kinds_can_be_had():
    """Every importer and exporter is a function of its module."""
    from bertlab.interop.base import _find

    for registry in (IMPORTERS, EXPORTERS):
        for kind in registry:
            assert callable(_find(kind, registry))


def tiny(tmp_path) -> Imported:
    directory = published.write_directory("bert", tmp_path / "source")
    from bertlab.interop.huggingface import load

    return load(directory)


def test_an_imported_directory_is_whole_or_not_there(tmp_path, monkeypatch):
    imported = tiny(tmp_path)
    save_imported(imported, tmp_path / "run", "huggingface", "there")
    loaded = load_run(tmp_path / "run")
    assert loaded.config.to_dict() == json.loads(json.dumps(imported.config.to_dict()))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, imported.params)
    assert loaded.tokenizer.pieces() == imported.tokenizer.pieces()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        *("checkpoints", "config.json", "imported.json", "tokenizer"),
    ]
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


def test_refusals(tmp_path):
    with pytest.raises(UserError, match=r"'keras'.* huggingface, google"):
        import_weights("keras", tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match=r"'google'.* huggingface"):
        export_weights("google", tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match=r"missing does not exist"):
        import_weights("huggingface", tmp_path / "missing", tmp_path / "run")
    with pytest.raises(UserError, match=r"has no config\.json; give the --workdir"):
        export_weights("huggingface", tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match=r"pip install 'bertlab\[nothing\]'"):
        require("no_such_package", "nothing", "this")


def test_shapes_are_those_of_the_config():
    config = base_config()
    config.model.update({"layers": 3, "width": 8, "heads": 2, "hidden": 12, "max_positions": 16})
    bare = flatten_tree(body_shapes(config, 50, predicts=False))
    assert bare["body/blocks/attention/qkv_kernel"].shape == (3, 8, 3, 2, 4)
    full = set(flatten_tree(body_shapes(config, 50, pools=True))) - set(bare)
    assert {path.split("/")[1] for path in full} == {"output", "pooler"}
