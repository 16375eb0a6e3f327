"""The notebooks run from top to bottom in fast mode, ask a question and answer it, and keep the outputs of a real run."""

import ast
import itertools
import json
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

import jax
import matplotlib.pyplot as plt
import pytest
from conftest import InThisProcess

from bertlab.data.documents import make_document
from bertlab.data.pydocs import PydocsCorpus, Section
from bertlab.studies import launchers
from bertlab.transfer.tasks import pydocs
from tests.conftest import ROOT
from tests.contracts.test_public_names import public_names

pytestmark = pytest.mark.usefixtures("quick_compilation")

OFTEN = ("first_look",)  # the others run in `make test-nightly` alone
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 1_500_000  # bytes, all together
# Paths of a machine: "/home/..." and "C:\\...", but not "a/b" or "https://...".
MACHINE_PATH = re.compile(r"(?<![\w./:<])/(?:home|root|Users|tmp|usr|opt|var|mnt|work|private)/|[A-Z]:\\\\")


def read(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source_of(cell: dict, magics: bool = False) -> str:
    """A cell's source, by default without lines that begin with %."""
    return "".join(line for line in "".join(cell["source"]).splitlines(keepends=True) if magics or not line.startswith("%"))


def code_of(path: Path) -> list[dict]:
    return [cell for cell in read(path) if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """The cache of prepared text that all notebooks share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def in_fast_mode(cache, tmp_path, monkeypatch):
    """A copy of the repository's layout to run in, with a small part of Python's documentation."""
    texts = {name: " ".join(topics[name].split()) for name in sorted(topics)[:60]}
    sentences = [
        s for text in texts.values() for s in make_document("", text).sentences if re.fullmatch(r"[A-Z][a-z ]{40,}\.", s)
    ]
    packages = itertools.cycle(packages.split()[0] for packages in pydocs.PARTS.values())
    sections = [Section(f"{package}#{i}", (((s,),),)) for i, (package, s) in enumerate(zip(packages, sentences))]
    monkeypatch.setattr(PydocsCorpus, "documents", lambda self: iter([make_document(*item) for item in texts.items()]))
    monkeypatch.setattr(pydocs, "sections", lambda directory: sections)
    monkeypatch.setattr(launchers, "Local", InThisProcess)
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *backend: devices)
    monkeypatch.setenv("BERTLAB_FAST", "1")
    monkeypatch.setenv("BERTLAB_CACHE", str(cache))
    monkeypatch.setenv("PYTHONPATH", "")  # one notebook adds to these two
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr(plt, "show", lambda: None)
    before = plt.get_backend()
    plt.switch_backend("Agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in OFTEN else pytest.mark.nightly)
        for path in NOTEBOOKS
    ],
)
def test_runs_from_top_to_bottom(path: Path, in_fast_mode, capsys):
    names = {"__name__": "__main__"}
    for number, cell in enumerate(code_of(path)):
        capsys.readouterr()
        exec(compile(source_of(cell), f"{path.name}, code cell {number}", "exec"), names)
    answer = capsys.readouterr().out
    assert len(answer.split()) > 30, f"the answer is: {answer}"
    assert not re.search(r"\bnan\b", answer.lower())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_opens_with_its_question_and_ends_with_its_answer(path: Path):
    cells = read(path)
    title = "".join(cells[0]["source"]).splitlines()[0]
    assert cells[0]["cell_type"] == "markdown" and re.fullmatch(r"# .+\?", title)
    headings = [line for cell in cells if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines()]
    assert [line for line in headings if line.startswith("#")][-1] == "## Answer"
    assert cells[-1]["cell_type"] == "code" and "print(" in source_of(cells[-1]), "the answer is computed"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_keeps_the_outputs_of_a_real_run(path: Path):
    cells = code_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "executed once, in order"
    for cell in cells:
        source, tree = source_of(cell, magics=True), ast.parse(source_of(cell))
        called = {ast.unparse(node.func).split(".")[-1] for node in ast.walk(tree) if isinstance(node, ast.Call)}
        last = tree.body[-1]
        is_shown = isinstance(last, ast.Expr) and not source.rstrip().endswith((";", "mkdir(parents=True, exist_ok=True)"))
        if "%%capture" not in source and (is_shown or called & {"print", "subplots", "imshow", "plot"}):
            assert cell["outputs"], f"no output of: {source}"
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr", source
            texts = [*output.get("text", ()), *(output.get("data", {}).get("text/plain", ()))]
            texts += output.get("data", {}).get("text/html", ())
            assert not MACHINE_PATH.search("".join(texts)) and "Traceback" not in "".join(texts), source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_uses_the_public_interface_alone(path: Path):
    for cell in code_of(path):
        for node in ast.walk(ast.parse(source_of(cell))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_"), f"{node.attr} in: {source_of(cell)}"
            public = {*public_names(), "bertlab", "bertlab.results"}
            unknown = [name for name in names if name.split(".")[0] == "bertlab" and name not in public]
            assert not unknown, f"{unknown[0]} is not in docs/reference/names.md: {source_of(cell)}"


def test_they_are_all_there_and_small():
    assert len(NOTEBOOKS) == 9
    assert sum(path.stat().st_size for path in NOTEBOOKS) < LARGEST
