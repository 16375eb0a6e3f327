"""No file of data can run code: what bertlab never calls. Configs, studies and tasks that are Python are code (SECURITY.md)."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from bertlab.data.prepared import PreparedSource
from bertlab.data.tfds_datasets import TfdsCorpus
from bertlab.errors import UserError
from bertlab.objectives import build
from bertlab.run import Run
from bertlab.studies.findings import verdicts
from bertlab.transfer.average import average
from tests.conftest import ROOT

# Called by name or as an attribute: pickle.load, marshal.loads, yaml.load, joblib.load, dill, shelve, eval and exec.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"extractall", "system", "popen"}
# Files that run Python which the user names as Python.
RUNS_PYTHON = {"bertlab/transfer/tasks/__init__.py", "bertlab/config.py"}


def offences(source):
    """(line, what) for each call in a source that could run what it reads, and each import that is for such calls."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [(node.lineno, f"import {name}") for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        called = ast.unparse(node.func)
        name = called.rsplit(".", 1)[-1]
        if called in FORBIDDEN_NAMES or (name in FORBIDDEN_METHODS and called != name):
            found.append((node.lineno, called))
        if keywords.get("shell") == "True" or keywords.get("allow_pickle") == "True":
            found.append((node.lineno, f"{called} with shell=True or allow_pickle=True"))
        if called == "torch.load" and keywords.get("weights_only") != "True":
            found.append((node.lineno, "torch.load without weights_only=True"))
        if name == "exec_module":
            found.append((node.lineno, "exec_module"))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import load",
        "eval(text)",
        "import yaml as y",
        "archive.extractall(folder)",
        "os.system(line)",
        "subprocess.run(line, shell=True)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "spec.loader.exec_module(module)",
    ],
)
def test_it_would_be_seen(source):
    assert offences(source)


def test_no_file_of_data_can_run_code():
    found = {}
    for file in sorted((ROOT / "bertlab").rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        for _, what in offences(file.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(what)
    assert found == {file: ["exec_module"] for file in RUNS_PYTHON}


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A folder `downloaded` of data that brings evil.py, in the working directory; (): whether its code ran."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nraise OSError\n"
    (folder / "evil.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    return (tmp_path / "ran").exists


def has_evil(place):
    """Writes the config of a run with an objective from outside."""
    place.mkdir(exist_ok=True)
    Run(place).config.path.write_text(json.dumps({"objectives": {"mlm": {"implementation": "downloaded.evil:X", "rate": 0.1}}}))
    return Run(place).config


def test_a_saved_config_imports_no_objective(ran):
    """Not even one that lies beside the run: only what builds the model does."""
    assert has_evil(Path("run")).read()["objectives"]["mlm"]["rate"] == 0.1 and not ran()
    with pytest.raises(UserError, match="OSError"):
        build(ConfigDict(Run("run").config.read()["objectives"]))
    assert ran(), "evil.py is what it seems"


@pytest.mark.parametrize("package", [True, False])
@pytest.mark.parametrize("run", ["downloaded", "downloaded/run"])
def test_a_run_or_a_study_that_brings_its_objective_along_is_refused(ran, run, package):
    if package:
        Path("downloaded/__init__.py").write_text(Path("downloaded/evil.py").read_text())
    Path("downloaded/study.json").touch()
    with pytest.raises(UserError, match=r"config\.json names the objective 'downloaded\.evil:X', whose code is .*/downloaded/"):
        has_evil(Path(run)).read()
    assert not ran()


def test_your_objective_beside_a_run_is_yours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    Path("downloaded").mkdir()
    Path("downloaded.py").touch()
    assert has_evil(Path("downloaded")).read()


def test_a_fine_tuning_s_config_runs_no_task(ran):
    for run in map(Path, "ab"):
        (run / "predictions").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"task": "downloaded/evil.py", "task_data": {}}))
        (run / "predictions" / "test.jsonl").write_text('{"id": "0", "gold": "a", "predicted": "a"}\n')
    for given in ("", "other.py"):
        with pytest.raises(UserError, match=r"names the task downloaded/evil\.py.*--task=downloaded/evil\.py$"):
            average([Path("a"), Path("b")], "test", given)
    assert not ran()
    with pytest.raises(UserError, match="OSError"):
        average([Path("a"), Path("b")], "test", "downloaded/../downloaded/evil.py")
    assert ran()


def test_a_study_s_findings_run_no_task(ran):
    claim = {"higher": "a", "lower": "b", "kinds": ["span"]}
    study = {"claims": [claim], "runs": [{"downstream": {"own": {"task": "downloaded/evil.py"}}}]}
    assert [verdict.measure for verdict in verdicts(SimpleNamespace(study=study), [])] == [None] and not ran()


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "downloaded.evil.Features"},
        {"python_class_name": "downloaded.evil.Features"},
        {"type": "downloaded.evil.Features", "content": {}},
        {
            "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
            "featuresDict": {"features": {"a": {"pythonClassName": "downloaded.evil.Features"}}},
        },
    ],
)
def test_a_data_set_s_features_import_nothing(ran, tmp_path, monkeypatch, features):
    info = {"name": "some", "version": "1.0.0", "fileFormat": "array_record", "splits": []}
    for folder in ("corpus/dataset", "sets/some/1.0.0"):
        Path(folder).mkdir(parents=True)
        Path(folder, "features.json").write_text(json.dumps(features))
        Path(folder, "dataset_info.json").write_text(json.dumps(info))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    with pytest.raises(UserError, match=r'"downloaded\.evil\.Features".*would run its code'):
        len(PreparedSource("corpus", "train", ""))
    for name in (str(tmp_path / "sets" / "some" / "1.0.0"), "some", "some:1.0.0"):
        with pytest.raises(UserError, match=r'"downloaded\.evil\.Features".*would run its code'):
            TfdsCorpus(name)
    assert not ran()
