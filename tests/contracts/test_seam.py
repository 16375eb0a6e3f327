"""The seams: objectives, formats and kinds of tasks say all about themselves; no code elsewhere asks which one it has.

A question is a comparison with a name or a class, a look-up in a table of names, or a test of a thing's type or attributes.
What a f-string says of a thing is no question.
"""

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator

import pytest

from bertlab import objectives
from bertlab.data.formats import FORMATS, Format
from bertlab.objectives import REGISTRY, TOGETHER, Objective
from bertlab.transfer.heads import BESIDE
from bertlab.transfer.kinds import KINDS, Kind
from tests.conftest import ROOT


@dataclasses.dataclass(frozen=True)
class Seam:
    """One of the three.

    Attributes:
        base: what all inherit from.
        names: by which configs call them.
        holds: a pattern of expressions that hold such things, or their names.
        section: of a config, which has the settings of each under its name.
        inside: where they may be asked for.
    """

    base: type
    names: frozenset[str]
    holds: str
    section: str
    inside: tuple[str, ...]


@functools.cache
def classes_of(base: type) -> frozenset[str]:
    """Names of all classes of the package that inherit from it."""
    own = {kind.__name__ for kind in base.__subclasses__() if kind.__module__.startswith("bertlab.")}
    return frozenset(own.union(*map(classes_of, base.__subclasses__())))


SEAMS = {
    "objective": Seam(
        Objective,
        frozenset({*REGISTRY, *TOGETHER, *BESIDE}),
        r"(.*\.)?(\w*objectives?|objectives\.build|check_config)",
        "objectives",
        ("objectives",),
    ),
    "format": Seam(Format, frozenset(FORMATS), r"(.*\.)?(format|format_of|FORMATS)", "data", ("data/formats",)),
    # The objectives have spans of their own.
    "kind": Seam(Kind, frozenset(KINDS), r".*task.*\.kind", "kinds", ("transfer/kinds", "objectives")),
}

# Who may ask, and why.
EXEMPT = {
    "bertlab/studies/findings.py: mlm_and_ltr": "labels that people write; the published comparison is of these two",
    "bertlab/studies/plots.py: line_styles": "labels that people write; common variants have the same colour in all studies",
    "bertlab/train/checks.py: _check_shared_view": "the objective that shares a view declares the settings that it needs there",
}

_SAME_THINGS = ("items", "values", "keys", "get", "pop", "copy")
_LISTED = ("sorted", "list", "tuple", "set", "dict", "enumerate", "zip", "iter", "next", "reversed")
_TESTS = ("startswith", "endswith", "casefold", "lower", "upper")
_STANDS_FOR_ONE = ("needs", "families", "shows")
_PATTERNS = ("match", "search", "fullmatch", "findall", "fnmatch", "fnmatchcase")


class Finder:
    """Finds the questions in one scope: the nodes of a function, or of a module without its functions."""

    def __init__(self, seam: Seam, scope: list[ast.AST], tables: frozenset[str]):
        self.seam, self.scope, self.classes = seam, scope, classes_of(seam.base)
        self.tables = tables | tables_of(seam, scope, derived=False)
        self.held = self._held()

    def lines(self) -> list[int]:
        """Where the scope asks for a name or a type."""
        said = {id(part) for node in self.scope if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        return sorted({node.lineno for node in self.scope if id(node) not in said and self._asks(node)})

    def _held(self) -> set[str]:
        """Local names of such things and of their names."""
        base = rf"\b{self.seam.base.__name__}\b"
        parameters = [node for node in self.scope if isinstance(node, ast.arg) and node.annotation]
        held = {node.arg for node in parameters if re.search(base, ast.unparse(node.annotation))}
        while True:
            self.held, before = held, len(held)
            for node in self.scope:
                match node:
                    case ast.Assign(targets=targets, value=value):
                        pass
                    case ast.NamedExpr(target=target, value=value) | ast.AnnAssign(target=target, value=value):
                        targets = [target]
                    case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                        targets = [target]
                    case _:
                        continue
                if value is not None and self._holds(value):
                    held = held | {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            if len(held) == before:
                return held

    def _holds(self, node: ast.AST) -> bool:
        """Whether an expression is such a thing, its name, or a collection of them."""
        match node:
            case ast.Name(id=name):
                return name in self.held or bool(re.fullmatch(self.seam.holds, name))
            case ast.Attribute(value=value, attr=attr):
                return (attr == "name" and self._holds(value)) or bool(re.fullmatch(self.seam.holds, ast.unparse(node)))
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _SAME_THINGS:
                return self._holds(value)
            case ast.Call(func=ast.Name(id=function), args=arguments) if function in _LISTED:
                return any(map(self._holds, arguments))
            case ast.Call(func=function):
                return self._holds(function)
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.NamedExpr(value=value):
                return self._holds(value)
        return False

    def _asks(self, node: ast.AST) -> bool:
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = (left, *others)
                attributes = [side for side in sides if isinstance(side, ast.Attribute)]
                constant = any(isinstance(part, ast.Constant) for side in sides for part in ast.walk(side))
                return (
                    (isinstance(left, ast.Constant) and isinstance(node.ops[0], ast.In | ast.NotIn) and self._holds(others[0]))
                    or any(self._says(side) or self._is_table(side) or self._is_class(side) for side in sides)
                    or any(side.attr == "name" and self._holds(side) for side in attributes)
                    or (constant and any(side.attr in _STANDS_FOR_ONE and self._holds(side.value) for side in attributes))
                )
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[asked, kind]):
                return self._holds(asked) or any(map(self._is_class, ast.walk(kind)))
            case ast.Call(func=ast.Name(id="hasattr" | "getattr" | "vars" | "type"), args=[asked, *_]):
                return self._holds(asked)
            case ast.Call(func=ast.Attribute(value=asked, attr=attr), args=arguments) if attr in _TESTS:
                return self._holds(asked) or any(map(self._says, arguments))
            case ast.Call(func=ast.Attribute(attr=attr) | ast.Name(id=attr), args=arguments) if attr in _PATTERNS:
                return any(self._holds(part) or self._says(part) for part in arguments)
            case ast.Call(func=ast.Attribute(value=table, attr="get" | "pop"), args=[key, *_]):
                return self._says(key) or self._is_table(table)
            case ast.Subscript(value=table, slice=key, ctx=ast.Load()):
                return self._says(key) or self._is_table(table)
            case ast.Attribute(value=asked, attr="__class__"):
                return self._holds(asked)
            case ast.Attribute(value=ast.Name(id=section) | ast.Attribute(attr=section), attr=attr, ctx=ast.Load()):
                return section == self.seam.section and attr in self.seam.names
            case ast.MatchClass(cls=kind):
                return self._is_class(kind)
            case ast.MatchValue(value=value):
                return self._says(value)
        return False

    def _says(self, node: ast.AST) -> bool:
        return any(says_name(self.seam, part) for part in ast.walk(node))

    def _is_class(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).split(".")[-1] in self.classes

    def _is_table(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Dict | ast.Set):
            return self._says(node)
        return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).split(".")[-1] in self.tables


def says_name(seam: Seam, node: ast.AST) -> bool:
    """Whether a constant is a name, or a key or metric with one in it: "mlm", "objectives.mlm.rate", "mlm/loss"."""
    value = node.value if isinstance(node, ast.Constant) else None
    words = re.split(r"\W+", value) if isinstance(value, str) and not re.search(r"\s", value) else ()
    return not seam.names.isdisjoint(words) or value in classes_of(seam.base)


def tables_of(seam: Seam, scope: list[ast.AST], derived: bool = True) -> frozenset[str]:
    """Names of collections of names, and of dictionaries by name; if `derived`, also of what is made from any of them.

    A registry, whose values are the classes, is none.
    """
    tables, holders, classes = set(), set(), classes_of(seam.base)
    for node in scope:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.AST):
            continue
        value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if isinstance(value, ast.Dict) and all(isinstance(of, ast.Name) and of.id in classes for of in value.values):
            continue
        of_table = value.keys if isinstance(value, ast.Dict) else [value] if is_literal(value) else []
        if any(says_name(seam, part) for top in of_table if top for part in ast.walk(top)):
            tables |= names
        elif derived and any(isinstance(part, ast.Name) and part.id in tables | holders for part in ast.walk(value)):
            tables |= names
        elif isinstance(value, ast.Dict) and any(
            says_name(seam, p) for of in value.values if is_literal(of) for p in ast.walk(of)
        ):
            holders |= names
    return frozenset(tables)


def is_literal(node: ast.AST) -> bool:
    """A text, or a tuple, list or set as it is written, perhaps inside frozenset(...)."""
    match node:
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "list"), args=[inner]):
            return is_literal(inner)
        case ast.Constant():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return all(isinstance(part, ast.Name | ast.Starred) or is_literal(part) for part in parts)
    return False


def scopes(tree: ast.Module) -> Iterator[tuple[str, list[ast.AST]]]:
    """Each outermost function or method by its name with all its nodes, and the rest of the module as ""."""
    inside = set()

    def functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, list[ast.AST]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes = list(ast.walk(child))
                inside.update(map(id, nodes))
                yield prefix + child.name, nodes
            elif isinstance(child, ast.ClassDef):
                yield from functions(child, f"{prefix}{child.name}.")

    yield from functions(tree, "")
    yield "", [node for node in ast.walk(tree) if id(node) not in inside]


def questions(seam: Seam, trees: dict[str, ast.Module]) -> dict[str, list[int]]:
    """ "FILE: FUNCTION" to the lines at which it asks."""
    tables = frozenset().union(*(tables_of(seam, tree.body) for tree in trees.values()))
    found = {}
    for file, tree in trees.items():
        for function, scope in scopes(tree):
            if lines := Finder(seam, scope, tables).lines():
                found[f"{file}: {function}"] = lines
    return found


@pytest.fixture(scope="module")
def found():
    """What is asked of each of the three outside its package."""
    files = [file for file in sorted((ROOT / "bertlab").rglob("*.py")) if "spine" not in file.parts]
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}
    inside = {word: tuple(f"bertlab/{place}/" for place in seam.inside) for word, seam in SEAMS.items()}
    outside = {word: {file: trees[file] for file in trees if not file.startswith(inside[word])} for word in SEAMS}
    return {word: questions(seam, outside[word]) for word, seam in SEAMS.items()}


@pytest.mark.parametrize("word", SEAMS)
def test_no_code_outside_asks_for_a_name_or_type(word, found):
    assert {place: lines for place, lines in found[word].items() if place not in EXEMPT} == {}


def test_every_exemption_is_needed(found):
    assert EXEMPT.keys() <= set().union(*found.values())


# Expressions that ask, and below some that do not; each is put into the function of TABLES.
PLANTED = {
    "objective": [
        "objective.name == 'mlm'",
        "'glove' in config.objectives",
        "name in ('mlm', 'electra')",
        "key == 'objectives.mlm.weight'",
        "losses['mlm/loss']",
        "config.objectives.get('mlm')",
        "config.objectives.mlm.rate",
        "config.get('objectives.mlm.rate')",
        "isinstance(objective, MaskedLanguageModel)",
        "isinstance(x, (int, objectives.Glove))",
        "isinstance(objective, Other)",
        "issubclass(find(name), Glove)",
        "type(objective) is MaskedLanguageModel",
        "type(x) is Glove",
        "type(objective).__name__ == text",
        "type(x).__name__ == 'Glove'",
        "objective.__class__ == x",
        "hasattr(objective, 'rate')",
        "getattr(built['x'], 'rate', 0)",
        "vars(objective)",
        "[name for name in config.objectives if name.startswith('m')]",
        "[1 for name, o in sorted(built.items()) if name.endswith('x')]",
        "text.startswith('mlm')",
        "[re.match(text, name) for name in config.objectives]",
        "re.fullmatch('mlm|ltr', text)",
        "[fnmatch.fnmatch(name, 'm*') for name in built]",
        "[hasattr(o, 'rate') for o in built.values()]",
        "['rate' in entry for entry in config.objectives.values()]",
        "'rate' not in config.objectives[x]",
        "(o := program.objectives['x']) and hasattr(o, 'rate')",
        "x in MASKED",
        "x not in FROZEN",
        "WEIGHTS[x]",
        "WEIGHTS.get(x, 1.0)",
        "COLOURS[x]",
        "text == DEFAULT",
        "{'mlm': 1}[x]",
        "{'mlm': 1}.get(x)",
        "'counts' in objective.needs",
        "objective.families == ('static',)",
    ],
    "format": [
        "data.format == 'stream'",
        "data.format in ('segment_pair', 'sentence_pair')",
        "data.format.startswith('s')",
        "data.stream.backward",
        "format_of(data).name == x",
        "isinstance(format_of(data), Stream)",
        "type(format_of(data)) is x",
        "hasattr(format_of(data), 'window')",
        "WEIGHTS[x]",
        "[kind for kind in FORMATS.values() if hasattr(kind, 'window')]",
    ],
    "kind": [
        "task.kind.name == x",
        "find_task(name).kind.name in kinds",
        "task.kind.name.startswith('t')",
        "isinstance(task.kind, x)",
        "x is Tagging",
        "kind == 'tagging'",
        "{'span': 1}[x]",
        "WEIGHTS[x]",
        "getattr(task.kind, x)",
    ],
}
TABLES = """
MASKED = ({0!r}, 'other')
FROZEN = frozenset({{{0!r}}})
WEIGHTS = {{{0!r}: 2.0}}
GROUPS = {{1: ({0!r}, 'other')}}
COLOURS = {{name: colour for colour, names in GROUPS.items() for name in names}}
DEFAULT = {0!r}

def f(config, data, built: Mapping[str, Objective], x):
    return {1}
"""
INNOCENT = {
    "objective": [
        "objective.asks == 'tokens' and objective.reads in ('forward', 'both')",
        "config.objectives[name].weight",
        "[losses[f'{name}/loss'] for name in built]",
        "name in config.objectives and objective.sees in built",
        "find(name) and REGISTRY[name]",
        "{*objective.needs} <= {*made}",
        "f'{type(objective).__name__} cannot'",
        "name.removesuffix('/loss')",
        "GROUPS[x]",
        "text.startswith('body/')",
        "getattr(shape, x)",
    ],
    "format": ["format_of(data).is_stream", "data[data.format]", "FORMATS.get(x)", "data.format in FORMATS"],
    "kind": ["task.kind.of_words", "'blocks' in task.kind.settings()", "KINDS[x](symmetric=True)", "stage.kind == 'finetune'"],
}


def asked(word: str, text: str) -> list[int]:
    """The lines of a small module with that expression in a function."""
    source = TABLES.format(min(SEAMS[word].names), text)
    return [line for lines in questions(SEAMS[word], {"x.py": ast.parse(source)}).values() for line in lines]


@pytest.mark.parametrize(("word", "text"), [(word, text) for word, texts in PLANTED.items() for text in texts])
def test_each_form_of_the_question_is_found(word, text):
    assert asked(word, text) == [10]


@pytest.mark.parametrize(("word", "text"), [(word, text) for word, texts in INNOCENT.items() for text in texts])
def test_what_is_no_question_is_left_alone(word, text):
    assert asked(word, text) == []


def test_attributes_are_few_and_known():
    """What an objective declares; everything else that tells it from others is a method."""
    declared = {name for name in vars(Objective)["__annotations__"]}
    assert declared == {"reads", "sees", "asks", "needs", "shows", "families"}
    assert all(kind.asks in objectives.ASKS for kind in REGISTRY.values())
