"""The package's own imports: they point one way, without circles, and few modules know outside libraries.

`python tests/contracts/test_imports.py [CHECKOUT]` prints the structure of a checkout: size, arrows and circles, and a drawing.
"""

import ast
import functools
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Each may import those of the lines above it, and within a line itself alone.
LAYERS = (
    ("alive", "console", "errors", "interrupts", "papers", "parent", "progress"),
    ("files", "compressed", "hosts"),
    ("checksums", "locks", "remote"),
    ("mirror",),
    ("keys",),
    ("models", "data"),
    ("objectives", "machine"),
    ("config",),
    ("run",),
    ("places",),
    ("train",),
    ("floors", "interop"),
    ("transfer",),
    ("studies",),
    ("catalogue", "completion", "own_project", "results", "bench"),
    ("cli",),
    ("__main__",),
)
ONLY_IN = {
    "flax": ("models", "objectives", "transfer"),
    "orbax": ("train",),
    "tensorflow_datasets": ("data",),
    "grain": ("data", "train", "transfer"),
}


def modules(root: Path) -> dict[str, Path]:
    """Dotted name to file of every module of the package."""
    # The rooms that are rebuilt in bertlab/spine have other arrows.
    files = sorted(file for file in (root / "bertlab").rglob("*.py") if "spine" not in file.parts)
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@functools.cache
def imported(file: Path) -> set[str]:
    """Every name that a file imports, inside functions too: "a.b" for `import a.b`, "a.b.c" for `from a.b import c`."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def arrows(root: Path) -> dict[str, set[str]]:
    """Module to the modules of the package that it imports."""
    known = modules(root)
    owner = lambda name: name if name in known else name.rpartition(".")[0]
    return {module: {owner(name) for name in imported(file)} & known.keys() - {module} for module, file in known.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        found, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    reach = {node: reached(node) for node in graph}
    groups = {tuple(sorted(other for other in graph if other in reach[node] and node in reach[other])) for node in graph}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def part(module: str) -> str:
    """The part of the package that a module belongs to: "train" of "bertlab.train.loop"."""
    return [*module.split("."), ""][1]


def parts_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same between parts."""
    parts = {part(module): set() for module in graph}
    for module, others in graph.items():
        parts[part(module)] |= {part(other) for other in others} - {part(module), ""}
    return {name: others for name, others in parts.items() if name}


def test_no_module_imports_itself_by_way_of_others():
    assert circles(arrows(ROOT)) == []


def test_arrows_between_parts_point_one_way():
    height = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    graph = parts_graph(arrows(ROOT))
    assert graph.keys() <= height.keys(), "name the new part in LAYERS"
    against = [f"{name} -> {other}" for name, others in graph.items() for other in others if height[other] >= height[name]]
    assert against == []


def test_few_parts_know_outside_libraries():
    for library, parts in ONLY_IN.items():
        users = {part(module) for module, file in modules(ROOT).items() if library in {n.split(".")[0] for n in imported(file)}}
        assert users <= set(parts), library


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    graph, sizes = arrows(root), {}
    for module, file in modules(root).items():
        sizes[part(module) or "(package)"] = sizes.get(part(module) or "(package)", 0) + len(file.read_text().splitlines())
    print(f"{sum(sizes.values())} lines in {len(graph)} modules; {sum(map(len, graph.values()))} imports between them")
    print(f"{sum(map(len, parts_graph(graph).values()))} arrows between {len(parts_graph(graph))} parts")
    print(f"circles: {circles(graph) or 'none'}")
    print("```mermaid\nflowchart BT")
    print("\n".join(f'  {name}["{name}<br>{lines}"]' for name, lines in sizes.items() if name != "(package)"))
    between = parts_graph(graph)
    below = lambda name: set().union(*(between[other] | below(other) for other in between[name]))
    for name, others in between.items():
        # An arrow that follows from two others is left out.
        direct = [other for other in sorted(others) if not any(other in below(third) for third in others)]
        print("\n".join(f"  {name} --> {other}" for other in direct))
    print("```")
