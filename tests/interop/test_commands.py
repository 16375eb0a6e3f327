"""`bertlab import` and `bertlab export`, and what an imported directory is good for."""

import json

import numpy as np
from safetensors.numpy import load_file

import bertlab
from bertlab.cli.main import main
from tests.interop import published


def test_import_embed_and_export(tmp_path, capsys):
    source, run, out = (tmp_path / name for name in ("source", "run", "out"))
    published.write_directory("bert", source)
    assert main(["import", "--from=huggingface", str(source), f"--workdir={run}"]) == 0
    description = json.loads((run / "imported.json").read_text())
    weights = published.weights("bert")
    assert description["parameters"] == sum(array.size for array in weights.values())
    model = bertlab.load(run)
    (text,) = model.embed(["a b c"])
    assert text.tokens == ("a", "b", "c") and text.states.shape == (3, 3, published.WIDTH)
    assert main(["export", str(run), "--to=huggingface", str(out)]) == 0
    found = load_file(out / "model.safetensors")
    assert all(np.array_equal(found[name], array) for name, array in weights.items())
    assert (out / "tokenizer").is_dir()
    assert main(["export", str(run), "--to=huggingface", str(out)]) == 2
    assert main(["export", str(run), "--to=fastai", str(tmp_path / "lm")]) == 2
    assert not (tmp_path / "lm").exists()
    assert "exists; give a new name" in capsys.readouterr().err
