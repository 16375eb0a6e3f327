"""The English prose that every Python installation carries.

Sources: the language reference in `pydoc_data.topics`, and the docstrings of the standard library and the installed packages.
Files are parsed with `ast`, never imported. `modules()` gives the docstrings as written; `PydocsCorpus` gives documents of
sentences, one per module or topic, without code and tables.
"""

import ast
import hashlib
import inspect
import itertools
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertlab.data.documents import Document
from bertlab.data.parallel import grouped, ordered_map
from bertlab.data.prose import paragraphs
from bertlab.errors import UserError

# Changed with every change of the code that changes the text.
EXTRACTION_VERSION = 2

# Tests are not documentation; copies of other packages would be read twice.
_SKIPPED_FOLDERS = frozenset(
    "test tests testing _test _tests idle_test lib2to3 turtledemo site-packages dist-packages node_modules __pycache__ "
    "_vendor vendor vendored _vendored _vendored_packages extern externals _externals third_party _bundled bertlab".split()
)
_SKIPPED_ENDINGS = ("_test.py", "_tests.py", "_pb2.py", "_pb2_grpc.py")
_SKIPPED_STARTS = ("test_", "conftest.py", "__editable__", "bertlab")
_LARGEST_FILE = 2_000_000
_CHUNK_BYTES = 1_000_000
_TOPICS = "pydoc_data.topics"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """The docstrings of one module, or one topic of the language reference.

    Attributes:
      name: dotted name, such as `json.decoder`; `pydoc_data.topics:assert` for a topic.
      package: top-level import name; `python` for the standard library and the topics.
      docstrings: in the order of the file, indentation removed (PEP 257); none is empty or given twice anywhere.
    """

    name: str
    package: str
    docstrings: tuple[str, ...]


@dataclass(frozen=True)
class _SourceFile:
    path: str
    name: str
    package: str
    size: int
    modified: int


def _source_files() -> list[_SourceFile]:
    """Python files of the standard library, then of each installed package in alphabetical order."""
    paths = sysconfig.get_paths()
    roots = [(paths["stdlib"], "python")]
    roots += [(root, None) for root in sorted({paths["purelib"], paths["platlib"]})]
    files = []
    for root, package in roots:
        found = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS and name.isidentifier()]
            for name in names:
                if not name.endswith(".py") or name.startswith(_SKIPPED_STARTS) or name.endswith(_SKIPPED_ENDINGS):
                    continue
                path = os.path.join(folder, name)
                parts = os.path.relpath(path, root).removesuffix(".py").split(os.sep)
                if parts[-1] == "__init__" and len(parts) > 1:
                    parts.pop()
                status = os.stat(path)
                if status.st_size <= _LARGEST_FILE:
                    dotted = ".".join(parts)
                    found.append(_SourceFile(path, dotted, package or parts[0], status.st_size, status.st_mtime_ns))
        files.extend(sorted(found, key=lambda file: (file.package.lower(), file.name, file.path)))
    return files


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings under `node` in the order of the file, and texts attached with `add_newdoc`."""
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = getattr(node.value.func, "id", None) or getattr(node.value.func, "attr", "")
        if called.startswith("add_newdoc"):
            for argument in node.value.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and "\n" in argument.value:
                    yield inspect.cleandoc(argument.value).strip()
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


def _read_modules(files: list[_SourceFile]) -> list[Module]:
    """Parses files. Files that this Python cannot parse, such as templates or old syntax, document nothing."""
    found = []
    for file in files:
        source = Path(file.path).read_bytes()
        if file.name != _TOPICS and b'"""' not in source and b"'''" not in source:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source, filename=file.path)
            if file.name == _TOPICS:
                found += [Module(f"{file.name}:{topic}", file.package, (text,)) for topic, text in _topics(tree)]
            else:
                found.append(Module(file.name, file.package, tuple(_docstrings(tree))))
        except (SyntaxError, ValueError, RecursionError):
            continue
    return found


def _key(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.split()).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _read_prose(files: list[_SourceFile]) -> list[tuple[str, list[tuple[bytes, list[tuple[str, ...]]]]]]:
    """For each module its name and, for each docstring, the docstring's key and the sentences of its paragraphs."""
    return [
        (module.name, [(_key(docstring), paragraphs(docstring)) for docstring in module.docstrings])
        for module in _read_modules(files)
    ]


def _in_processes(read: Callable[[list[_SourceFile]], list], workers: int) -> Iterator[Any]:
    """What `read` returns of all files, in their order."""
    chunks = grouped(_source_files(), lambda file: file.size, _CHUNK_BYTES)
    return itertools.chain.from_iterable(ordered_map(read, chunks, workers=workers))


def _unseen(items: Iterable[Any], key: Callable[[Any], bytes], seen: set[bytes]) -> list[Any]:
    """The items whose keys were not seen; they are now."""
    kept = []
    for item in items:
        if (found := key(item)) not in seen:
            seen.add(found)
            kept.append(item)
    return kept


def modules(workers: int = 0) -> Iterator[Module]:
    """Yields every documented module: topics and standard library first, then packages in alphabetical order.

    A docstring that several modules share is given to the first of them only.

    Args:
      workers: number of processes that parse; 0 means one per core. The result does not depend on it.
    """
    seen = set()
    for module in _in_processes(_read_modules, workers):
        if kept := _unseen(module.docstrings, _key, seen):
            yield Module(module.name, module.package, tuple(kept))


class PydocsCorpus:
    """The prose of the installation: one document per module or topic, nothing twice."""

    spec = "pydocs"

    def __init__(self, workers: int = 0):
        """Args: workers: number of processes that parse; 0 means one per core. The text does not depend on it."""
        self._workers = workers
        self._documents: tuple[Document, ...] | None = None

    def fingerprint(self) -> str:
        """Digest of Python's version and of the names, sizes and modification times of the source files."""
        digest = hashlib.blake2b(f"pydocs {EXTRACTION_VERSION} {sys.version}".encode(), digest_size=16)
        for file in _source_files():
            digest.update(f"{file.name}\0{file.size}\0{file.modified}\0".encode())
        return digest.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yields the documents. After one complete pass this object keeps them (about 10 MB) for the next.

        Raises:
          UserError: if this installation has no source files.
        """
        if self._documents is None:
            documents = []
            for document in self._extract():
                documents.append(document)
                yield document
            if not documents:
                raise UserError('config.data.corpus="pydocs": this Python installation carries no source files; use text:GLOB.')
            self._documents = tuple(documents)
        else:
            yield from self._documents

    def _extract(self) -> Iterator[Document]:
        seen_docstrings, seen_blocks = set(), set()
        for name, docstrings in _in_processes(_read_prose, self._workers):
            blocks = itertools.chain.from_iterable(b for _, b in _unseen(docstrings, lambda pair: pair[0], seen_docstrings))
            if kept := _unseen(blocks, lambda block: _key(" ".join(block)), seen_blocks):
                yield Document(name, tuple(itertools.chain.from_iterable(kept)))
