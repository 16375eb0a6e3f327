"""docs/reference/names.md: its names are there, typed and on the site, and what people are shown to write uses no others."""

import ast
import importlib
import importlib.util
import inspect
import re
from functools import cached_property
from pathlib import Path
from types import FunctionType

import pytest

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = sorted((ROOT / "experiments/own_project").glob("*.py"))
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def public_names() -> set[str]:
    """The stable names: "bertlab.results.load", ..."""
    page = (ROOT / "docs/reference/names.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(bertlab[\w.]*)` \| (.*?) \|$", page, flags=re.MULTILINE)
    return {f"{module}.{name}" for module, names in rows for name in re.findall(r"`(\w+)`", names)}


def found(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def imported(source: str) -> set[str]:
    """What a program imports from bertlab: "bertlab.results", "bertlab.results.load"."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "bertlab"}


def test_they_are_there():
    assert len(public_names()) > 50
    for name in public_names():
        assert callable(found(name)), name


def test_each_and_each_method_says_what_it_does():
    for name in public_names():
        assert inspect.getdoc(found(name)), name
        for key, member in list(vars(found(name)).items()) if inspect.isclass(found(name)) else ():
            is_field = key in inspect.get_annotations(found(name))
            if not key.startswith("_") and not is_field and isinstance(member, FunctionType | property | cached_property):
                assert inspect.getdoc(member), f"{name}.{key}"


def test_each_is_checked_with_its_types():
    source = (ROOT / "tests/types/public_names.py").read_text(encoding="utf-8")
    shown = imported(source) | {f"bertlab.{path}" for path in re.findall(r"\b(results\.\w+)", source)}
    shown |= set(re.findall(r"\b(bertlab\.load)\(", source))
    assert public_names() - shown == set()


@pytest.mark.parametrize("path", [*PAGES, *PROJECT], ids=lambda path: str(path.relative_to(ROOT)))
def test_what_people_are_shown_uses_no_other(path: Path):
    text = path.read_text(encoding="utf-8")
    sources = PYTHON.findall(text) if path.suffix == ".md" else [text]
    for source in sources:
        assert imported(source) - public_names() - {"bertlab", "bertlab.results"} == set()


def test_the_site_has_a_page_for_each(tmp_path):
    spec = importlib.util.spec_from_file_location("assemble", ROOT / "docs/assemble.py")
    assemble = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(assemble)
    assemble._write_names(tmp_path)
    pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "python").iterdir())
    drawn = {name: kind for kind, name in re.findall(r"^\.\. auto(\w+):: (\S+)$", pages, re.MULTILINE)}
    assert drawn == {name: "class" if inspect.isclass(found(name)) else "function" for name in public_names()}
