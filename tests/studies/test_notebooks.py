"""The notebooks' code runs from top to bottom, on the synthetic fixtures instead of a study that took minutes."""

import json
from pathlib import Path

import matplotlib
import pytest

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, study_directory, monkeypatch, capsys):
    matplotlib.use("Agg")
    monkeypatch.setenv("BERTLAB_STUDY", str(study_directory))
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown" and "?" in "".join(cells[0]["source"]), "it opens with its question"
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            # Lines with % are for the notebook's display alone.
            source = "".join(line for line in "".join(cell["source"]).splitlines(keepends=True) if not line.startswith("%"))
            exec(compile(source, f"{path.name}:{cell['id']}", "exec"), names)
    assert "package/accuracy: MLM+NSP is best" in capsys.readouterr().out


def test_there_are_notebooks():
    assert NOTEBOOKS
