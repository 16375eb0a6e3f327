import os
import shutil
import sysconfig

import pytest

from bertlab.data import pydocs
from bertlab.data.corpora import open_corpus
from bertlab.data.prose import is_sentence, paragraphs
from bertlab.errors import UserError

DOCSTRING = """Return the ``mean`` of `x`, as in "statistics".

This is the first sentence, which goes on
over a line; see :func:`~numpy.mean` for more.  The second sentence
uses `the guide <https://example.org/a_b>`_ as its source.

Heading That Is Not Prose.
--------------------------
Parameters
----------
x : array_like, optional
    Values to take the mean of. If None, all values are taken.
axis : int
dtype (DType): Type of the result that is computed here.
*names: More names than anybody could want here.

* An item of a list that is a sentence
  and goes on here.
- no sentence

The next lines are code::

    This looks like a sentence but it is code.

    So does this one after a blank line.

>>> mean([1, 2])
1.5
This line of output reads like a sentence.

mean(x, axis) -> float
====== ======
a      b
====== ======
A fragment without an end
It sets obj.value_of = 3 and so on.
lower case words do not start a sentence here.
"""


def test_paragraphs_of_a_docstring():
    assert paragraphs(DOCSTRING) == [
        ('Return the ``mean`` of `x`, as in "statistics".',),
        (
            "This is the first sentence, which goes on over a line; see `numpy.mean` for more.",
            "The second sentence uses the guide as its source.",
        ),
        ("Values to take the mean of.", "If None, all values are taken."),
        ("Type of the result that is computed here.",),
        ("More names than anybody could want here.",),
        ("An item of a list that is a sentence and goes on here.",),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The quick fox jumps over it.", True),
        ("`x` is the name of a thing.", True),
        ("Set ``a[i] = {b: c}`` before you call it.", True),
        ("He said that it works (mostly).", True),
        ("Set a[i] = {b: c} before you call it.", False),
        ("Too short this.", False),
        ("The function does not end", False),
        ("See numpy.linalg.norm, np.dot, f(x) and 1 2 3 4 5 6.", False),
        ("An unbalanced `quote makes it unsafe to use.", False),
        ("Word " * 300 + "end.", False),
    ],
)
def test_is_sentence(text, expected):
    assert is_sentence(text) is expected


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A small Python installation with what should and should not be read."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    bad = '"""This module must never be read by anyone."""\n'
    write("lib/zebra.py", '"""The zebra module explains stripes well."""\nraise SystemExit("imported")\n')
    write(
        "lib/json/__init__.py",
        '"""The json package explains objects well."""\n'
        'if True:\n    def f():\n        """Nested things are documented here too."""\n',
    )
    write(
        "lib/pydoc_data/topics.py",
        'topics = {"assert": "The assert statement checks what holds.\\n\\n   code here\\n", "b": "x"}',
    )
    write(
        "site/alpha.py",
        '"""Shared docstring  of many\npackages here."""\n'
        'def f():\n    """Alpha has a paragraph of its own.\n\n    One paragraph is found in two places.\n    """\n',
    )
    write(
        "site/beta/core.py",
        '"""Shared docstring of many packages here."""\nclass A:\n    r"""Escapes like \\d are fine in here."""\n',
    )
    write(
        "site/beta/more.py",
        '"""Beta has a paragraph of its own.\n\nOne paragraph is found in two places.\n"""\n'
        'add_newdoc("m", "f",\n    """Newdoc strings are documentation as well.\n    """)\n',
    )
    write("site/beta/escapes.py", 'def f():\n    """Invalid escapes such as \\d only warn people."""\n')
    write("site/beta/old.py", '"""This is the syntax of Python two."""\nprint "x"\n')
    write("site/beta/nul.py", '"""This file has a \0 character in it."""\n')
    write("site/beta/latin.py", "")
    (tmp_path / "site/beta/latin.py").write_bytes('# coding: latin-1\n"""The café is open on Mondays."""\n'.encode("latin-1"))
    for path in (
        "lib/test/a.py", "lib/site-packages/c.py", "site/beta/_vendor/d.py", "site/beta/tests/e.py", "site/beta/test_f.py",
        "site/bertlab/g.py", "site/__editable___bertlab_finder.py", "site/beta-1.0.dist-info/h.py", "site/beta/i.pyi",
        "site/beta/j_pb2.py",
    ):  # fmt: skip
        write(path, bad)
    write("site/beta/huge.py", bad + "#" * 2_000_000)
    paths = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "site"), "platlib": str(tmp_path / "site")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    return tmp_path


def test_modules(installation):
    found = list(pydocs.modules(workers=1))
    assert [(module.package, module.name, module.docstrings) for module in found] == [
        ("python", "json", ("The json package explains objects well.", "Nested things are documented here too.")),
        ("python", "pydoc_data.topics:assert", ("The assert statement checks what holds.\n\n   code here",)),
        ("python", "pydoc_data.topics:b", ("x",)),
        ("python", "zebra", ("The zebra module explains stripes well.",)),
        ("alpha", "alpha", (
            "Shared docstring  of many\npackages here.",
            "Alpha has a paragraph of its own.\n\nOne paragraph is found in two places.",
        )),
        ("beta", "beta.core", (r"Escapes like \d are fine in here.",)),
        ("beta", "beta.escapes", (r"Invalid escapes such as \d only warn people.",)),
        ("beta", "beta.latin", ("The café is open on Mondays.",)),
        ("beta", "beta.more", (
            "Beta has a paragraph of its own.\n\nOne paragraph is found in two places.",
            "Newdoc strings are documentation as well.",
        )),
    ]  # fmt: skip


def test_corpus_has_every_paragraph_once(installation):
    documents = {document.id: document.sentences for document in open_corpus("pydocs", workers=1).documents()}
    assert documents["alpha"] == (
        "Shared docstring of many packages here.",
        "Alpha has a paragraph of its own.",
        "One paragraph is found in two places.",
    )
    assert documents["beta.more"] == ("Beta has a paragraph of its own.", "Newdoc strings are documentation as well.")
    assert documents["pydoc_data.topics:assert"] == ("The assert statement checks what holds.",)
    assert "pydoc_data.topics:b" not in documents and "beta.core" not in documents


def test_result_does_not_depend_on_processes(installation, monkeypatch):
    alone = list(pydocs.modules(workers=1))
    documents = list(pydocs.PydocsCorpus(workers=1).documents())
    monkeypatch.setattr(pydocs, "_CHUNK_BYTES", 100)
    assert list(pydocs.modules(workers=2)) == alone
    assert list(pydocs.PydocsCorpus(workers=2).documents()) == documents


def test_documents_are_kept_after_a_whole_pass(installation, monkeypatch):
    corpus = pydocs.PydocsCorpus(workers=1)
    assert next(corpus.documents()).id == "json"
    documents = list(corpus.documents())
    assert len(documents) == 6
    monkeypatch.setattr(pydocs, "ordered_map", None)
    assert list(corpus.documents()) == documents


def test_fingerprint(installation):
    first = pydocs.PydocsCorpus().fingerprint()
    (installation / "site/bertlab/g.py").write_text("changed")
    (installation / "lib/test/new.py").write_text("new")
    assert pydocs.PydocsCorpus(workers=2).fingerprint() == first
    os.utime(installation / "lib/zebra.py", (1, 1))
    second = pydocs.PydocsCorpus().fingerprint()
    (installation / "lib/zebra.py").rename(installation / "lib/zebu.py")
    assert len({first, second, pydocs.PydocsCorpus().fingerprint()}) == 3


def test_installation_without_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path)))
    with pytest.raises(UserError, match="carries no source files; use text:GLOB"):
        list(open_corpus("pydocs").documents())


def test_this_installation(tmp_path, monkeypatch):
    """A part of the standard library (all of it takes too long for a test) has documents of real prose."""
    for name in ("json", "email", "pydoc_data"):
        shutil.copytree(f"{sysconfig.get_paths()['stdlib']}/{name}", tmp_path / name)
    paths = {"stdlib": str(tmp_path), "purelib": str(tmp_path / "none"), "platlib": str(tmp_path / "none")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    documents = list(pydocs.PydocsCorpus(workers=1).documents())
    sentences = [sentence for document in documents for sentence in document.sentences]
    assert len(documents) == len({document.id for document in documents}) > 60
    assert sum(map(len, sentences)) > 150_000
    assert all(is_sentence(sentence) for sentence in sentences)
    assert len(set(sentences)) > 0.95 * len(sentences)
    by_id = {document.id: document.sentences for document in documents}
    continues = "It continues with the next cycle of the nearest enclosing loop."
    assert any(sentence.endswith(continues) for sentence in by_id["pydoc_data.topics:continue"])
    assert any("``obj``" in sentence for sentence in by_id["json"])
