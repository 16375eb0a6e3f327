"""The documentation of Python's standard library: prose that every Python installation has.

Sources: the language reference in `pydoc_data.topics`, and the docstrings of the standard library's
modules that no distribution leaves out. The text depends only on Python's version: 0.94 MB, 11,500
sentences, 153,000 words in 3.11. Modules are cut into sections of about 200 words, and each is a
document: held-out text is from the same modules as train, but shares no paragraph.
"""

import ast
import functools
import itertools
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertlab.data.corpora.text import digest
from bertlab.data.documents import Document, split_sentences
from bertlab.files import cache_directory, cached_json

# Raise it with every change that alters the text.
_VERSION = 5
# Linux distributions put these into separate packages, or change them.
_LEFT_OUT = frozenset(
    "distutils ensurepip idlelib lib2to3 site sysconfig tkinter turtle turtledemo venv".split()
)
_TEST_FOLDERS = frozenset("test tests idle_test".split())
_SECTION_WORDS = 200
_TOPICS = "pydoc_data.topics"
# The language reference sets code in straight quotes, and English words in curly ones.
_QUOTED_CODE = re.compile(r'"([^"`]+)"')
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_ROLE = re.compile(r":(?:[a-z]+:){1,2}(?=`)")
_QUOTED = re.compile(r"``.+?``|`[^`]+`")
_CODE = re.compile(r"[{}<>|\\@=]|\w\(\S*\)|::|\w\[|->|\b_\w|\w_\w|//|--|\.\.\.")
_WORD = re.compile(r"(?<!\S)[\"'(\[]*[A-Za-z][A-Za-z'’-]*[\"')\],.;:!?]*(?!\S)")
_START = re.compile(r"""["'“(\[`*]*[A-Z]|`|[\"“]\w""")
_END = re.compile(r"[.!?:][\"'”)\]`]*$")


class Section(NamedTuple):
    """The prose of a module, of a topic of the reference, or of a stretch of a long one."""

    name: str  # `json.decoder`; `pydoc_data.topics:assert`; `ast#1`, `ast#2`, ...
    # In the order of the file, each as paragraphs of sentences.
    docstrings: tuple[tuple[tuple[str, ...], ...], ...]

    @property
    def sentences(self) -> list[str]:
        return list(itertools.chain.from_iterable(itertools.chain.from_iterable(self.docstrings)))


class PydocsCorpus:
    """One document per section; they are extracted once into the cache, which takes seconds."""

    def __init__(self, directory: str = ""):
        self._directory = directory

    def fingerprint(self) -> str:
        return digest(repr(self.sections))

    def documents(self) -> Iterator[Document]:
        for section in self.sections:
            first, *others = section.sentences
            yield Document(section.name, (first, *(f" {sentence}" for sentence in others)))

    @functools.cached_property
    def sections(self) -> list[Section]:
        """All sections; modules are in the order of their names."""
        sources = _sources()
        sizes = [(name, path.stat().st_size) for name, path in sources.items()]
        settings = repr((_VERSION, sys.version_info[:3], sizes))
        folder = cache_directory(self._directory) / "pydocs"
        return [
            Section(name, tuple(tuple(map(tuple, docstring)) for docstring in docstrings))
            for name, docstrings in cached_json(folder, settings, lambda: list(_extract(sources)))
        ]


def _sources() -> dict[str, Path]:
    """Dotted name to file of each module of the standard library, by name."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), {}
    for package in sys.stdlib_module_names - _LEFT_OUT:
        for path in (root / f"{package}.py", *(root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if path.is_file() and _TEST_FOLDERS.isdisjoint(parts[:-1]):
                found[".".join(parts).removesuffix(".__init__")] = path
    return dict(sorted(found.items()))


def _extract(sources: dict[str, Path]) -> Iterator[tuple[str, list[list[tuple[str, ...]]]]]:
    """(Name, docstrings) of each section, which has `_SECTION_WORDS` or a few more; a repeated
    paragraph stays only in the first."""
    before: set[tuple[str, ...]] = set()
    for name, docstrings in _documented(sources):
        sections, words = [], _SECTION_WORDS
        for docstring in docstrings:
            new = [each for each in dict.fromkeys(paragraphs(docstring)) if each not in before]
            before.update(new)
            for number, paragraph in enumerate(new):
                if words >= _SECTION_WORDS:
                    sections.append([])
                    words = 0
                if not number or not sections[-1]:
                    sections[-1].append([])
                sections[-1][-1].append(paragraph)
                words += sum(len(sentence.split()) for sentence in paragraph)
        for number, section in enumerate(sections, 1):
            yield name if len(sections) == 1 else f"{name}#{number}", section


def _documented(sources: dict[str, Path]) -> Iterator[tuple[str, Iterable[str]]]:
    """(Name, docstrings) of each module and topic."""
    for name, path in sources.items():
        tree = ast.parse(path.read_bytes())
        if name != _TOPICS:
            yield name, _docstrings(tree)
            continue
        (topics,) = (node.value for node in tree.body if isinstance(node, ast.Assign))
        for topic, text in ast.literal_eval(topics).items():
            blocks = re.split(r"\n\s*\n", text.strip())
            marked = [_QUOTED_CODE.sub(r"``\1``", block) for block in blocks]
            yield f"{name}:{topic}", ["\n\n".join(marked)]


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings under `node`; only statements are visited, since most nodes are expressions."""
    if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
        yield docstring
    for block in ("body", "orelse", "finalbody", "handlers"):
        for child in getattr(node, block, ()):
            yield from _docstrings(child)


def paragraphs(docstring: str) -> Iterator[tuple[str, ...]]:
    """The sentences of each paragraph of prose, without code, headings, tables and fragments."""
    for block in re.split(r"\n\s*\n", docstring):
        if ">>>" not in block:
            text = _ROLE.sub("", " ".join(block.split()))
            if sentences := tuple(filter(is_sentence, split_sentences(text))):
                yield sentences


def is_sentence(text: str) -> bool:
    """Whether a text reads as an English sentence, not as code, a table row or a fragment: outside
    back quotes are four plain words, most of all words, and nothing looks like code."""
    if not _START.match(text) or not _END.search(text) or not 20 <= len(text) <= 1000:
        return False
    prose = _QUOTED.sub("Code", text)
    if "`" in prose or _CODE.search(prose):
        return False
    plain = len(_WORD.findall(prose))
    return plain >= 4 and plain >= 0.75 * len(prose.split())
