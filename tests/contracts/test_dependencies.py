"""Dependencies: each is listed with its licence and reason, has a lowest version, and is pinned for the tests' environment."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
# (Package, extra, requirement); "" for what is always installed.
DIRECT = [
    (one.name, extra, one)
    for extra, requirements in EXTRAS.items()
    for one in map(Requirement, requirements)
    if one.name not in ("bertlab", "jax") or not extra
]
ROWS = re.findall(
    r"^\| `([^`]+)` \| ([^|]+?) \| ([^|]+?) \| [^|]+ \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE
)
# What the metadata of older packages say, instead of an SPDX expression.
WORDS = {"Apache-2.0": "apache", "BSD-3-Clause": "bsd", "MIT": "mit", "PSF-2.0": "python software foundation", "MPL-2.0": "mpl"}
LOCK = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements-test.lock").read_text(), re.MULTILINE))
# Each environment looks at the packages that it has: that of `make parity` at others than that of `make test`.
INSTALLED = {canonicalize_name(of.name) for of in importlib.metadata.distributions()}


def test_every_dependency_is_in_the_table():
    named = {(package, extra) for package, extras, _ in ROWS for extra in extras.replace("always", "").split(", ")}
    assert named == {(package, extra) for package, extra, _ in DIRECT} and len(ROWS) == len({row[0] for row in ROWS})


@pytest.mark.parametrize(
    ("package", "licence"), [(package, licence) for package, _, licence in ROWS if canonicalize_name(package) in INSTALLED]
)
def test_the_licence_is_the_one_that_the_package_names(package, licence):
    metadata = importlib.metadata.metadata(package)
    if expression := metadata.get("License-Expression"):
        assert licence == expression
    else:
        classifiers = [name for name in metadata.get_all("Classifier") or () if name.startswith("License")]
        said = " ".join([metadata.get("License") or "", *classifiers]).lower()
        assert not said or WORDS[licence] in said


def test_every_dependency_has_a_lowest_version():
    """`make test-lowest` tests it; jax's extras have that of jax."""
    bounds = {(package, extra): {of.operator for of in one.specifier} for package, extra, one in DIRECT}
    without = [of for of, operators in bounds.items() if not operators & {">=", "=="}]
    assert without == [("sentencepiece", "parity")], "it has the one that is always installed"


def test_the_lock_pins_what_the_tests_need_and_names_no_place():
    text = (ROOT / "requirements-test.lock").read_text()
    assert not re.search(r"://|--index|--find-links|file:|^/", text, re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in LOCK.items()}
    needed = [one for _, extra, one in DIRECT if extra in ("", "test", "ray", "slurm", "tensorboard")]
    for one in needed:
        assert one.specifier.contains(pins[canonicalize_name(one.name)]), one
