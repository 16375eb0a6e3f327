"""No file of data can run code: what bertlab never calls. Configs, studies and tasks that are Python are code (SECURITY.md)."""

import ast

import pytest

from tests.conftest import ROOT

# Called by name or as an attribute: pickle.load, marshal.loads, yaml.load, joblib.load, dill, shelve, eval and exec.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml"}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"extractall", "system", "popen"}
# Files that run Python which the user names as Python.
RUNS_PYTHON = {"bertlab/transfer/tasks/__init__.py", "bertlab/studies/study.py"}


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
