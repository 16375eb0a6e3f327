"""The package as others install it: a wheel and an sdist, in an environment and a folder outside the repository."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import bertlab
from bertlab.cli import main
from tests.conftest import ROOT

SHIPPED = ("ablations", "own_project", "pretrain", "transfer")


def shipped_files() -> set[str]:
    """The Python files that the wheel brings along, relative to the repository."""
    return {str(path.relative_to(ROOT)) for name in SHIPPED for path in (ROOT / "experiments" / name).glob("*.py")}


def run(command: list, folder: Path, **more: str) -> str:
    """A command's standard output, in a folder, without this repository on Python's path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment | more)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist of this checkout and the wheel that the sdist gives."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder, "-t"]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run([*build, "sdist"], ROOT, **path)
    [source] = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    run([*build, "wheel"], folder / source.name.removesuffix(".tar.gz"), **path)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The Python of an environment with the wheel; all other packages are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(ours) + "\n")
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # what pip does with a wheel of pure Python, without asking an index
        archive.extractall(packages)
    return folder / "bin/python"


@pytest.mark.slow
def test_the_wheel_has_all_that_the_commands_read(built):
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
        metadata = next(archive.read(name).decode() for name in names if name.endswith("METADATA"))
        entry_points = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert f"Version: {bertlab.__version__}\n" in metadata and "bertlab = bertlab.__main__:command" in entry_points
    suffixes = (".py", ".j2", ".js", ".css", ".typed")
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "bertlab").rglob("*") if path.suffix in suffixes}
    assert own <= names and {f"bertlab/{name}" for name in shipped_files()} <= names
    assert {name.split("/")[0] for name in names} == {"bertlab", f"bertlab-{bertlab.__version__}.dist-info"}
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile", "tests/conftest.py", "docs/keys.md"} <= held
    assert own | shipped_files() <= held and not any(name.startswith("experiments/results") for name in held)
    assert wheel.stat().st_size < 3e6 and source.stat().st_size < 8e6


@pytest.mark.nightly
def test_a_stranger_s_first_project(installed, tmp_path):
    """In an empty folder outside the repository: a project, its test, and two steps of a published recipe."""
    where = run([installed, "-c", "import bertlab; print(bertlab.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent.parent)
    bertlab_command = [installed, "-m", "bertlab"]
    run([*bertlab_command, "init", "own"], tmp_path)
    own = tmp_path / "own"
    originals = (path.name for path in (ROOT / "experiments/own_project").iterdir() if path.is_file())
    assert {path.name for path in own.iterdir()} == {*originals}
    said = run([installed, "-m", "pytest", "-q", "-p", "no:cacheprovider"], own)
    assert "3 passed" in said
    few = {"train.steps": 2, "data.batch_size": 4, "data.tokenizer.vocab_size": 512, "data.directory": tmp_path / "cache"}
    few |= {"train.eval_batches": 1, "evaluate.sentences": 0, "model.width": 16, "model.hidden": 24}
    options = [f"--config.{key}={value}" for key, value in few.items()]
    said = run([*bertlab_command, "train", "--config=experiments/pretrain/bert.py", "--workdir=runs/x", *options], tmp_path)
    assert "step 2/2" in said and (tmp_path / "runs/x/result.json").exists()
    study = "--study=experiments/ablations/bert_table5.py:scale=tiny"
    assert "checking 30 runs" in run([*bertlab_command, "sweep", study, "--workdir=runs/study", "--dry_run"], tmp_path)


def test_init_refuses_a_folder_that_is_not_empty(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert f"{tmp_path} is not an empty directory" in output.err and output.out == ""
    assert main(["init", str(tmp_path / "mine.txt")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert main(["init", str(tmp_path / "new/own")]) == 0
    assert (tmp_path / "new/own/study.py").exists()


def test_the_folders_that_the_wheel_brings_along_exist():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert all((ROOT / name).exists() for name in build["only-include"])
    assert {"bertlab", *(f"experiments/{name}" for name in SHIPPED)} <= {*build["only-include"]}


def versions_agree(version: str, changelog: str, citation: str) -> bool:
    """Whether a package of that version may have this changelog and this citation."""
    released = re.findall(r"^## (\d+\.\d+\.\d+) – (\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    [cited], [day] = re.findall(r"^version: (\S+)$", citation, re.M), re.findall(r'^date-released: "(\S+)"$', citation, re.M)
    unreleased = re.search(r"^## Unreleased$(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    has_entries = unreleased is not None and re.search(r"^- ", unreleased[1], re.MULTILINE) is not None
    numbers = lambda text: tuple(map(int, re.match(r"(\d+)\.(\d+)\.(\d+)", text).groups()))
    is_next = "dev" in version and numbers(version) > numbers(cited)
    return (cited, day) == released[0] and (is_next or (version == cited and not has_entries))


def test_the_versions_of_changelog_and_citation_agree():
    """The newest released version is cited; the package is that one or, once a change is unreleased, on the way to the next."""
    changelog, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    assert versions_agree(bertlab.__version__, changelog, citation)


@pytest.mark.parametrize(
    "version, unreleased, expected",
    [("1.2.3", "", True), ("1.2.3", "- new\n", False), ("1.3.0.dev0", "- new\n", True), ("1.2.3.dev0", "- new\n", False)],
)
def test_unreleased_changes_need_a_version_of_development(version, unreleased, expected):
    changelog = f"# Changelog\n\n## Unreleased\n\n{unreleased}\n## 1.2.3 – 2026-01-02\n\n- first\n"
    assert versions_agree(version, changelog, 'version: 1.2.3\ndate-released: "2026-01-02"\n') == expected


def test_no_word_that_decides_the_example_project_s_test_occurs_in_its_training_sentences():
    """Else a model of random values solves the task, and the study of `bertlab init` shows nothing."""
    rows = {}
    for part in ("train", "test"):
        lines = (ROOT / f"experiments/own_project/{part}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        rows[part] = [
            (set(re.findall(r"\w+", sentence.lower())), label) for sentence, label in (line.split("\t") for line in lines)
        ]
    known = set().union(*(words for words, _ in rows["train"]))
    assert all(len(words - known) == 2 for words, _ in rows["test"]), "the adjective and the noun"
    for part, number in (("train", 240), ("test", 160)):
        assert [label for _, label in rows[part]].count("right") == number // 2 == len(rows[part]) / 2
