"""The documentation of Python's standard library: the English prose that every Python installation carries.

Sources: the language reference in `pydoc_data.topics`, and the docstrings of the standard library's modules. Installed packages
are never read, and neither are modules that some distributions leave out (`_LEFT_OUT`), so the text depends only on Python's
version: 0.95 MB, 11,800 sentences, 155,000 words in 3.11. Files are parsed with `ast`, never imported. That takes some seconds,
so the result is kept in the cache directory, under a digest of the source files.

Most of the text is in a few long modules. Modules are cut into sections of about 200 words, and each section is a document, so
each split gets some text of every kind. Held-out text comes from the same modules as train, but never has the same paragraph.
"""

import ast
import hashlib
import itertools
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertlab import checksums
from bertlab.data.documents import Document
from bertlab.data.prose import paragraphs
from bertlab.errors import UserError
from bertlab.files import cache_directory, misfit

# Raise it with every change of the code that changes the text.
EXTRACTION_VERSION = 3

# Linux distributions put these into packages of their own, or change them.
_LEFT_OUT = frozenset("distutils ensurepip idlelib lib2to3 site sysconfig tkinter turtle turtledemo venv".split())
_SECTION_WORDS = 200
_TEST_FOLDERS = frozenset("test tests idle_test __pycache__".split())
_TOPICS = "pydoc_data.topics"
# The language reference sets code in straight quotes, and English words in curly ones.
_QUOTED_CODE = re.compile(r'"([^"`]+)"')
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Paragraph = tuple[str, ...]
"""Sentences."""


@dataclass(frozen=True)
class Section:
    """The prose of a module, of a topic of the language reference, or of a stretch of a long one.

    Attributes:
      name: `json.decoder`; `pydoc_data.topics:assert` for a topic; `ast#1`, `ast#2`, ... where there are several.
      docstrings: paragraphs of each docstring, in the order of the file. None is empty, and no docstring and no paragraph is
        given twice, in any section.
    """

    name: str
    docstrings: tuple[tuple[Paragraph, ...], ...]

    @property
    def package(self) -> str:
        """Top-level import name: `json`; `pydoc_data` of a topic."""
        return re.split(r"[.#]", self.name)[0]


def sections(directory: str = "") -> list[Section]:
    """All sections; modules are in the order of their names.

    Args:
      directory: the cache directory; "" as in `bertlab.files.cache_directory`.

    Raises:
      UserError: this installation has no source files.
    """
    return [
        Section(name, tuple(tuple(map(tuple, docstring)) for docstring in docstrings))
        for name, docstrings in _held(_extracted(directory))
    ]


class PydocsCorpus:
    """The documentation of the standard library: one document per section, nothing twice."""

    spec = "pydocs"
    share_read = None

    def __init__(self, directory: str = ""):
        """Args: directory: the cache directory; "" as in `bertlab.files.cache_directory`."""
        self._directory = directory

    def fingerprint(self) -> str:
        """Digest of the text. Raises: UserError: as `sections`."""
        return hashlib.blake2b(_extracted(self._directory).read_bytes(), digest_size=16).hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yields the documents. Raises: UserError: as `sections`."""
        for section in sections(self._directory):
            yield Document(section.name, tuple(sentences_of(section)))


def sentences_of(section: Section) -> Iterator[str]:
    """Every sentence of a section, in order."""
    return itertools.chain.from_iterable(itertools.chain.from_iterable(section.docstrings))


def _extracted(directory: str) -> Path:
    """A file of the cache, made if it is not there: JSON of [name, paragraphs by docstring] of each section."""
    sources = _sources()
    if not sources:
        raise UserError('config.data.corpus="pydocs": this Python installation has no source files; use text:GLOB.')
    digest = hashlib.blake2b(f"{EXTRACTION_VERSION} {sys.version_info[:3]}".encode(), digest_size=16)
    for name, source in sources.items():
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    path = cache_directory(directory) / f"pydocs-{digest.hexdigest()[:16]}.json"
    if not path.exists():
        checksums.write_cached(path, _extract(sources))
    return path


def _held(path: Path) -> list:
    """The content of that file. Raises: UserError: it is damaged."""
    held = checksums.read_cached(path)
    if wrong := misfit(held, [list]) or ("" if all(len(one) == 2 for one in held) else "a section has no two parts"):
        raise UserError(f"{path} is damaged: {wrong}; delete it, and it is made anew")
    return held


def _sources() -> dict[str, bytes]:
    """Dotted name -> source of each file of the standard library that may document something, by name."""
    root = sysconfig.get_paths()["stdlib"]
    found = {}
    for folder, subfolders, files in os.walk(root):
        if folder == root:
            subfolders[:] = [name for name in subfolders if _is_read(name)]
            files = [name for name in files if _is_read(name.removesuffix(".py"))]
        subfolders[:] = [name for name in subfolders if name not in _TEST_FOLDERS]
        for file in files:
            if not file.endswith(".py"):
                continue
            parts = os.path.relpath(os.path.join(folder, file), root).removesuffix(".py").split(os.sep)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            source = Path(folder, file).read_bytes()
            if name == _TOPICS or b'"""' in source or b"'''" in source:
                found[name] = source
    return dict(sorted(found.items()))


def _is_read(package: str) -> bool:
    return package in sys.stdlib_module_names and package not in _LEFT_OUT


def _extract(sources: dict[str, bytes]) -> list[tuple[str, list[list[Paragraph]]]]:
    """(Name, paragraphs of each docstring) of each section; a docstring or paragraph is given to the first that has it."""
    found, seen_docstrings, seen_paragraphs = [], set(), set()
    for name, texts in _documented(sources):
        new = (paragraphs(text) for text in texts if _is_new(text, seen_docstrings))
        kept = [[sentences for sentences in docstring if _is_new(" ".join(sentences), seen_paragraphs)] for docstring in new]
        stretches = [stretch for stretch in _cut(kept) if stretch]
        for number, stretch in enumerate(stretches, 1):
            found.append((name if len(stretches) == 1 else f"{name}#{number}", stretch))
    return found


def _cut(docstrings: list[list[Paragraph]]) -> Iterator[list[list[Paragraph]]]:
    """Cuts at the ends of paragraphs into stretches of `_SECTION_WORDS` or a few more; the last has the rest."""
    stretch, words = [], 0
    for docstring in docstrings:
        part = []
        for paragraph in docstring:
            part.append(paragraph)
            words += sum(len(sentence.split()) for sentence in paragraph)
            if words >= _SECTION_WORDS:
                yield [*stretch, part]
                stretch, part, words = [], [], 0
        if part:
            stretch.append(part)
    yield stretch


def _is_new(text: str, seen: set[str]) -> bool:
    """Whether this text is new, except for white space; marks it as seen."""
    plain = " ".join(text.split())
    if plain in seen:
        return False
    seen.add(plain)
    return True


def _documented(sources: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """(Name, docstrings) of each module and topic. Files that Python cannot parse document nothing."""
    for name, source in sources.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        if name == _TOPICS:
            for topic, text in _topics(tree):
                yield f"{name}:{topic}", [_mark_code(text)]
        else:
            yield name, list(_docstrings(tree))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings under `node` in the order of the file."""
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    # Only statements are visited: most nodes of a tree are expressions.
    for block in ("body", "orelse", "finalbody", "handlers"):
        for child in getattr(node, block, ()):
            yield from _docstrings(child)


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for statement in tree.body:
        dictionary = getattr(statement, "value", None)
        if isinstance(dictionary, ast.Dict):
            for key, value in zip(dictionary.keys, dictionary.values, strict=True):
                yield ast.literal_eval(key), ast.literal_eval(value).strip()


def _mark_code(text: str) -> str:
    """A topic's text with its code between back quotes, as in docstrings."""
    return "\n\n".join(_QUOTED_CODE.sub(r"``\1``", paragraph) for paragraph in re.split(r"\n\s*\n", text))
