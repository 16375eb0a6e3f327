"""The seam: no code outside `bertlab.objectives` asks for an objective's name or type."""

import ast

from bertlab import objectives
from bertlab.objectives import REGISTRY, TOGETHER, Objective
from tests.conftest import ROOT

NAMES = {*REGISTRY, *TOGETHER}
OUTSIDE = sorted(file for file in (ROOT / "bertlab").rglob("*.py") if "objectives" not in file.relative_to(ROOT).parts)


def classes() -> set[str]:
    """Names of all objective classes of the package, bases too."""
    found, waiting = set(), [Objective]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("bertlab.objectives"):
            found.add(kind.__name__)
        waiting += kind.__subclasses__()
    return found - {"Objective"}


def questions(tree: ast.AST) -> list[int]:
    """Lines at which an objective's name or type is asked for."""
    kinds, found = classes(), []
    says_name = lambda node: any(isinstance(part, ast.Constant) and part.value in NAMES for part in ast.walk(node))
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                asked = any(map(says_name, [left, *others]))
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
                asked = any(isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part).split(".")[-1] in kinds
                            for part in ast.walk(kind))  # fmt: skip
            case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[key, *_]):
                asked = isinstance(key, ast.Constant) and key.value in NAMES
            case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                asked = key in NAMES
            case ast.MatchClass(cls=kind):
                asked = ast.unparse(kind).split(".")[-1] in kinds
            case ast.MatchValue(value=value):
                asked = says_name(value)
            case _:
                asked = False
        if asked:
            found.append(node.lineno)
    return found


def test_no_code_outside_asks_for_an_objectives_name_or_type():
    # Findings compare the labels of a study's variants, which people write.
    files = [file for file in OUTSIDE if file.name != "findings.py"]
    found = {str(file.relative_to(ROOT)): questions(ast.parse(file.read_text())) for file in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_attributes_are_few_and_known():
    """What an objective declares; everything else that tells it from others is a method."""
    declared = {name for name in vars(Objective)["__annotations__"]}
    assert declared == {"reads", "sees", "asks", "needs", "shows", "families"}
    assert all(kind.asks in objectives.ASKS for kind in REGISTRY.values())
