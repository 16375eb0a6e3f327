"""The notebooks run from top to bottom, and keep the outputs of a run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUICKEST = "explore_results"
# Of a machine: "/home/..." and "C:\\...", but not "a/b" or "https://...".
MACHINE_PATH = re.compile(r"(?<![\w./:<])/(home|root|Users|tmp|var|mnt|opt)/|[A-Z]:\\\\")


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=getattr(pytest.mark, mark))
        for path in NOTEBOOKS
        for mark in ["slow" if path.stem == QUICKEST else "nightly"]
    ],
)
def test_notebook_runs(path, tmp_path):
    lines = [line for cell in code_cells(path) for line in [*cell["source"], "\n"]]
    source = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    source = re.sub("^%.*$", "", source, flags=re.MULTILINE)
    environment = {**os.environ, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)}
    environment |= {"PYTHONPATH": str(ROOT), "BERTLAB_CACHE": str(tmp_path / "cache")}
    environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)  # it trains for minutes
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=path.parent, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_clean_outputs(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and not [o for o in outputs if "ename" in o or o.get("name") == "stderr"]
    assert not MACHINE_PATH.search(json.dumps(outputs, ensure_ascii=False))
    assert path.stat().st_size < 300_000
