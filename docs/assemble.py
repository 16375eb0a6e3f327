"""Assembles the folder that Sphinx reads: `python docs/assemble.py FOLDER`.

The pages in docs/ are plain Markdown that can be read in the repository too. In the folder they are at the top. Every other
file that a page links to stands under `repository/`, with its own links followed: Markdown and notebooks as pages, source as
a page that shows it, a folder as a list. Three parts of the reference are written from the code: each command's --help, the
public names' docstrings, and the navigation.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = {".py": "python", ".sh": "bash", ".toml": "toml", ".txt": "text", ".lock": "text", ".j2": "html", ".tsv": "text"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)
# What the side bar lists, part by part; a name is a page of docs/, and `*` lists the pages that are made from the code.
NAVIGATION = {
    "Tutorials": [
        f"tutorials/{name}" for name in ("first-run", "first-study", "own-objective", "own-task", "own-corpus", "notebooks")
    ],
    "Notebooks": ["repository/notebooks/*"],
    "How to": [
        f"how-to/{name}"
        for name in (
            "choose-a-scale",
            "read-a-report",
            "resume-and-move",
            "cluster",
            "gpu-and-tpu",
            "model-and-mesh",
            "prepare-once",
            "weights",
            "look-inside",
            "dashboards",
            "publish",
            "babylm",
        )
    ],
    "Reference": [
        *(f"reference/{name}" for name in ("commands", "help", "most-used-keys")),
        "keys",
        *(
            f"reference/{name}"
            for name in ("text", "objectives", "models", "tasks", "studies", "run-directory", "speed", "names")
        ),
        "python/*",
    ],
    "Explanation": [
        *(f"explanation/{name}" for name in ("seam", "views", "fairness", "one-scale", "floors", "statistics", "determinism")),
        "guarantees",
        "comparison",
        "papers",
        "corrections",
    ],
    "Help": ["troubleshooting"],
    "Contributing": ["architecture", "decisions/*", "structure", "dependencies"],
}


def assemble(target: Path) -> None:
    """Writes the folder anew."""
    shutil.rmtree(target, ignore_errors=True)
    waiting = sorted((ROOT / "docs").rglob("*.md"))
    done = set(waiting)
    while waiting:
        source = waiting.pop()
        for linked in _write(source, target):
            if linked not in done:
                done.add(linked)
                waiting.append(linked)
    _write_help(target / "reference/help.md")
    _write_names(target)
    _write_navigation(target)


def _place(path: Path) -> Path:
    """Where a file or folder of the repository stands in the assembled folder, relative to it."""
    inside = path.relative_to(ROOT)
    place = Path(*inside.parts[1:]) if inside.parts[0] == "docs" else Path("repository", inside)
    if path.is_dir():
        return place / "files.md"
    return place.with_name(place.name + ".md") if path.suffix in SHOWN or not path.suffix else place


def _write(source: Path, target: Path) -> list[Path]:
    """Writes one file or folder and returns the files and folders that it links to."""
    place = target / _place(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    name = source.relative_to(ROOT)
    if source.is_dir():
        tracked = subprocess.run(["git", "ls-files", str(source)], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        place.write_text(f"---\norphan: true\n---\n\n# {name}/\n\n```text\n{tracked}```\n", encoding="utf-8")
        return []
    if source.suffix in SHOWN or not source.suffix:
        text = source.read_text(encoding="utf-8")
        fence = "`" * 6
        language = SHOWN.get(source.suffix, "make" if source.name == "Makefile" else "text")
        place.write_text(
            f"---\norphan: true\n---\n\n# {source.name}\n\n`{name}`\n\n{fence}{language}\n{text}\n{fence}\n", encoding="utf-8"
        )
        return []
    if source.suffix != ".md":
        shutil.copyfile(source, place)
        return []
    text, linked = source.read_text(encoding="utf-8"), []

    def follow(match: re.Match) -> str:
        address, _, anchor = match.group(2).partition("#")
        if not address or "://" in address or address.startswith("mailto:"):
            return match.group(0)
        path = (source.parent / address).resolve()
        if path.is_dir() and (path / "README.md").exists():
            path /= "README.md"
        linked.append(path)
        there = os.path.relpath(_place(path), _place(source).parent)
        return f"{match.group(1)}{there}{'#' + anchor if anchor else ''}{match.group(3)}"

    # A fenced block is no prose: its brackets are not links.
    parts = FENCE.split(text)
    text = "".join(part if part.startswith("```") else LINK.sub(follow, part) for part in parts)
    # GitHub draws mermaid's diagrams; the site shows their source, since a script from elsewhere would have to draw them.
    text = text.replace("```mermaid", "```text")
    if name.parts[0] != "docs":
        text = f"---\norphan: true\n---\n\n{text}"
    place.write_text(text, encoding="utf-8")
    return linked


def _write_help(place: Path) -> None:
    """Writes every command's --help as a page."""
    os.environ["COLUMNS"] = "100"
    from bertlab.cli import build_parser

    commands = next(action for action in build_parser()._actions if action.dest == "command").choices
    parts = ["# Help of each command", "What `bertlab COMMAND --help` prints; made from the code."]
    parts += [f"## {name}\n\n```text\n{parser.format_help()}```" for name, parser in sorted(commands.items())]
    place.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _write_names(target: Path) -> None:
    """Writes a page for each module of docs/reference/names.md, with the docstrings of its names."""
    (target / "python").mkdir()
    for module, names in re.findall(
        r"^\| `(bertlab[\w.]*)` \| (.*?) \|$", (ROOT / "docs/reference/names.md").read_text(), re.MULTILINE
    ):
        lines = [f"{module}\n{'=' * len(module)}\n"]
        for name in re.findall(r"`(\w+)`", names):
            kind = "class" if name[0].isupper() else "function"
            lines.append(f".. auto{kind}:: {module}.{name}\n")
        (target / f"python/{module}.rst").write_text("\n".join(lines), encoding="utf-8")


def _write_navigation(target: Path) -> None:
    """Adds the side bar's lists to the front page."""
    page = target / "index.md"
    parts = [page.read_text(encoding="utf-8")]
    for title, names in NAVIGATION.items():
        listed = "\n".join(f"/{name}" for name in names)
        glob = ":glob:\n" if any("*" in name for name in names) else ""
        parts.append(f"```{{toctree}}\n:caption: {title}\n:hidden:\n:maxdepth: 1\n{glob}\n{listed}\n```")
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
