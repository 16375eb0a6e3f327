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
        (tmp_path / path).write_bytes(text if isinstance(text, bytes) else text.encode())

    bad = '"""This module must never be read by anyone."""\n'
    write("lib/zipfile.py", '"""The zipfile module explains archives well."""\nraise SystemExit("imported")\n')
    write(
        "lib/json/__init__.py",
        '"""The json package explains objects well."""\n'
        'if True:\n    def f():\n        """Nested things are documented here too."""\n',
    )
    write(
        "lib/pydoc_data/topics.py",
        r"""topics = {"assert": 'The assert statement checks "x\ny" and\nholds.\n\n   code here\n', "b": "x"}""",
    )
    write(
        "lib/ast.py",
        '"""Shared docstring  of many\npackages here."""\n'
        'def f():\n    """Alpha has a paragraph of its own.\n\n    One paragraph is found in two places.\n    """\n',
    )
    write(
        "lib/email/core.py",
        '"""Shared docstring of many packages here."""\nclass A:\n    r"""Escapes like \\d are fine in here."""\n',
    )
    write("lib/email/more.py", '"""Beta has a paragraph of its own.\n\nOne paragraph is found in two places.\n"""\n')
    write("lib/email/escapes.py", 'def f():\n    """Invalid escapes such as `\\d` only warn people."""\n')
    write("lib/email/old.py", '"""This is the syntax of Python two."""\nprint "x"\n')
    write("lib/email/nul.py", '"""This file has a \0 character in it."""\n')
    write("lib/email/latin.py", '# coding: latin-1\n"""The café is open on Mondays."""\n'.encode("latin-1"))
    for path in (
        "lib/test/a.py", "lib/email/test/b.py", "lib/unittest/tests/c.py", "lib/site-packages/numpy/d.py", "lib/numpy.py",
        "lib/_sysconfigdata__linux.py", "lib/sitecustomize.py", "lib/tkinter/__init__.py", "lib/idlelib/e.py",
        "lib/distutils/f.py", "lib/site.py", "lib/email/g.pyi", "site/numpy/h.py",
    ):  # fmt: skip
        write(path, bad)
    paths = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "site"), "platlib": str(tmp_path / "site")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    monkeypatch.setenv("BERTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_sections_are_the_standard_library_and_nothing_twice(installation):
    assert {section.name: section.docstrings for section in pydocs.sections()} == {
        "ast": (
            (("Shared docstring of many packages here.",),),
            (("Alpha has a paragraph of its own.",), ("One paragraph is found in two places.",)),
        ),
        "email.escapes": ((("Invalid escapes such as `\\d` only warn people.",),),),
        "email.latin": ((("The café is open on Mondays.",),),),
        "email.more": ((("Beta has a paragraph of its own.",),),),
        "json": ((("The json package explains objects well.",),), (("Nested things are documented here too.",),)),
        "pydoc_data.topics:assert": ((("The assert statement checks ``x y`` and holds.",),),),
        "zipfile": ((("The zipfile module explains archives well.",),),),
    }
    assert [section.package for section in pydocs.sections()] == "ast email email email json pydoc_data zipfile".split()


def test_documents_are_the_sections(installation):
    documents = list(open_corpus("pydocs").documents())
    assert [document.id for document in documents] == [section.name for section in pydocs.sections()]
    assert documents[4].sentences == ("The json package explains objects well.", "Nested things are documented here too.")


def test_long_modules_are_cut_at_ends_of_paragraphs(installation):
    def said(number):
        return f"This is the one sentence of the number {'abcdefghijkl'[number] * 5} here."  # ten words

    text = "\n\n".join(" ".join(said(i) for _ in range(10 if i < 6 else 1)) for i in range(7))
    (installation / "lib/zipfile.py").write_text(f'"""The first."""\nclass A:\n    """{text}"""\n', encoding="utf-8")
    found = {section.name: section for section in pydocs.sections() if section.package == "zipfile"}
    assert list(found) == [f"zipfile#{number}" for number in (1, 2, 3, 4)]
    # Six paragraphs of 100 words, and one of ten.
    assert [[len(docstring) for docstring in section.docstrings] for section in found.values()] == [[2], [2], [2], [1]]
    sentences = [sentence for section in found.values() for sentence in pydocs.sentences_of(section)]
    assert sentences == [said(i) for i in range(7) for _ in range(10 if i < 6 else 1)]


def test_text_and_fingerprint_depend_on_what_the_standard_library_says_only(installation, monkeypatch):
    corpus = open_corpus("pydocs")
    first, documents = corpus.fingerprint(), list(corpus.documents())
    for path in ("site/numpy/new.py", "lib/test/new.py", "lib/tkinter/new.py", "lib/turtle.py"):
        (installation / path).write_text('"""A new module is documented here."""\n')
    os.utime(installation / "lib/zipfile.py", (1, 1))
    source = (installation / "lib/json/__init__.py").read_text()
    (installation / "lib/json/__init__.py").write_text(source + "# patched by a distribution\n")
    (installation / "lib").rename(installation / "elsewhere")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(installation / "elsewhere")})
    assert corpus.fingerprint() == first and list(corpus.documents()) == documents
    (installation / "elsewhere/json/__init__.py").write_text(source.replace("explains", "describes"))
    changed = corpus.fingerprint()
    (installation / "elsewhere/zipfile.py").rename(installation / "elsewhere/zipapp.py")
    assert len({first, changed, corpus.fingerprint()}) == 3


def test_sources_are_parsed_once_for_a_cache(installation, monkeypatch):
    first = pydocs.sections()
    pydocs.PydocsCorpus(str(installation / "other")).fingerprint()
    monkeypatch.setattr(pydocs, "_extract", None)
    assert pydocs.sections() == first == pydocs.sections(str(installation / "other"))
    assert len(os.listdir(installation / "cache")) == len(os.listdir(installation / "other")) == 1


def test_installation_without_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UserError, match="has no source files; use text:GLOB"):
        list(open_corpus("pydocs").documents())


def test_this_installation(tmp_path, monkeypatch):
    """A part of the standard library (all of it takes too long for a test) has documents of real prose."""
    for name in ("json", "email", "pydoc_data"):
        shutil.copytree(f"{sysconfig.get_paths()['stdlib']}/{name}", tmp_path / name)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    documents = list(pydocs.PydocsCorpus(str(tmp_path / "cache")).documents())
    sentences = [sentence for document in documents for sentence in document.sentences]
    assert len(documents) == len({document.id for document in documents}) > 250
    assert max(len(" ".join(document.sentences).split()) for document in documents) < 700
    assert sum(map(len, sentences)) > 250_000
    assert all(is_sentence(sentence) for sentence in sentences)
    assert len(set(sentences)) > 0.95 * len(sentences)
    by_id = {document.id: document.sentences for document in documents}
    continues = "It continues with the next cycle of the nearest enclosing loop."
    assert any(sentence.endswith(continues) for sentence in by_id["pydoc_data.topics:continue"])
    assert any("``__getattr__()``" in sentence for document in documents for sentence in document.sentences)
    assert any("``obj``" in sentence for name, found in by_id.items() if name.startswith("json") for sentence in found)
