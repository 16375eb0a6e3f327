"""Tasks from the documentation of Python's standard library (`config.data.corpus=pydocs`). Each
document stays in its pretraining split, so a model is tested on text that it has never read."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bertlab.data.corpora.pydocs import PydocsCorpus, Section
from bertlab.data.documents import find_bounds, position
from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.base import SPLITS, Splits, Task

CHAPTERS = {
    "language": "pydoc_data",
    "types": "_collections_abc _pydatetime _pydecimal _pylong _strptime bisect calendar collections"
    " colorsys contextlib copy dataclasses datetime decimal enum fractions functools graphlib heapq"
    " numbers operator pprint random reprlib secrets statistics types typing weakref zoneinfo",
    "text": "argparse cmd codecs curses difflib encodings getopt getpass gettext locale logging"
    " optparse platform re shlex string stringprep textwrap",
    "files": "_pyio bz2 chunk configparser csv dbm filecmp fileinput fnmatch genericpath glob gzip"
    " io json linecache lzma ntpath os pathlib pickle pickletools plistlib posixpath shelve shutil"
    " sqlite3 stat tarfile tempfile tomllib xml zipfile",
    "concurrency": "_threading_local asyncio concurrent contextvars multiprocessing queue sched"
    " selectors signal subprocess threading",
    "internet": "base64 cgi cgitb email ftplib html http imaplib ipaddress mailbox mailcap"
    " mimetypes netrc nntplib poplib quopri smtplib socket socketserver ssl telnetlib urllib uuid"
    " webbrowser wsgiref xmlrpc",
    "development": "_py_abc _pyrepl abc ast bdb code codeop compileall ctypes dis doctest importlib"
    " inspect modulefinder pdb pkgutil profile pstats py_compile pyclbr pydoc rlcompleter runpy"
    " symtable tabnanny timeit token tokenize trace traceback tracemalloc unittest warnings zipapp"
    " zipimport",
}
"""Packages by chapter of the library's reference, roughly."""
CHAPTER_EXAMPLES = 1000  # at most
_CODE = re.compile(r"(``?)(.+?)\1")

Labelled = Iterator[tuple[str, tuple[str, ...], int | tuple[int, ...]]]
"""Section, its text or texts and a label; tagging: its words and a label for each."""


def pydocs_task(name: str, kind: str, labels: tuple, collect: Callable, metric: str) -> Task:
    """A task whose examples `collect` makes from the sections of the library and their splits."""

    def load(directory: Path | None, options: Mapping) -> Splits:
        settings = options["pretraining"]
        corpus = PydocsCorpus(settings["directory"])
        documents = list(corpus.documents())
        bounds = find_bounds(settings, [position(document.id) for document in documents])
        split_of = {document.id: bounds.split(document) for document in documents}
        examples: Splits = {split: [] for split in SPLITS}
        for section, texts, label in collect(corpus.sections, split_of):
            found = examples[split_of[section]]
            field = "words" if kind == "tagging" else "texts"
            found.append(Example(str(len(found)), section, label=label, **{field: texts}))
        return examples

    return Task(name, kind, metric, load, labels)


def collect_packages(sections: list[Section], split_of: Mapping[str, str]) -> Labelled:
    """Paragraphs of 6 to 60 words, each with the chapter of its package, but for those of which
    another section has a sentence."""
    chapter_of = {package: name for name, of in CHAPTERS.items() for package in of.split()}
    shared = shared_sentences(sections)
    texts: dict[str, dict[str, str]] = {name: {} for name in CHAPTERS}
    for section in sections:
        if chapter := chapter_of.get(re.split(r"[.#]", section.name)[0]):
            for paragraph in itertools.chain.from_iterable(section.docstrings):
                words = " ".join(paragraph).split()
                if 6 <= len(words) <= 60 and shared.isdisjoint(map(unmarked, paragraph)):
                    texts[chapter].setdefault(" ".join(words), section.name)
    for label, found in enumerate(texts.values()):
        items = list(found.items())
        count = min(len(items), CHAPTER_EXAMPLES)
        for text, section in (items[i * len(items) // count] for i in range(count)):
            yield section, (text,), label


def collect_code_spans(sections: list[Section], split_of: Mapping[str, str]) -> Labelled:
    """Sentences with some but not all words marked as code (`x` or ``x``), without the marks."""
    shared = shared_sentences(sections)
    before = set()
    for section in sections:
        for sentence in section.sentences:
            words, labels = split_marks(sentence)
            mixed = {0, 1} <= set(labels) and 5 <= len(words) <= 60
            if mixed and words not in before and unmarked(sentence) not in shared:
                before.add(words)
                yield section.name, words, labels


def collect_next_sentences(sections: list[Section], split_of: Mapping[str, str]) -> Labelled:
    """Pairs: the second sentence follows the first or, every second time, is from another section,
    the question of next-sentence prediction (Devlin et al. 2019, section 3.1)."""
    by_split: dict[str, list[tuple[str, str, str]]] = {}
    for pair in consecutive_sentences(sections):
        by_split.setdefault(split_of[pair[0]], []).append(pair)
    for pairs in by_split.values():
        for i, (section, first, second) in enumerate(pairs):
            other, _, elsewhere = pairs[(i + len(pairs) // 2) % len(pairs)]
            if i % 2 == 0:
                yield section, (first, second), 1
            elif other != section:
                yield section, (first, elsewhere), 0


def collect_sentence_orders(sections: list[Section], split_of: Mapping[str, str]) -> Labelled:
    """Two sentences that follow each other, every second pair swapped (Lan et al. 2020)."""
    for i, (section, first, second) in enumerate(consecutive_sentences(sections)):
        yield (section, (second, first), 0) if i % 2 else (section, (first, second), 1)


def consecutive_sentences(sections: list[Section]) -> Iterator[tuple[str, str, str]]:
    """(Section, sentence, the next one in its docstring), each of 4 to 20 words. Sentences that
    occur in several sections are left out; none is first or second twice."""
    shared = shared_sentences(sections)
    firsts, seconds = set(shared), set(shared)
    for section in sections:
        for docstring in section.docstrings:
            for pair in itertools.pairwise(itertools.chain.from_iterable(docstring)):
                first, second = map(unmarked, pair)
                fits = all(4 <= len(sentence.split()) <= 20 for sentence in pair)
                if fits and first not in firsts and second not in seconds:
                    firsts.add(first)
                    seconds.add(second)
                    yield section.name, *(" ".join(one.split()) for one in pair)


def shared_sentences(sections: list[Section]) -> set[str]:
    """Sentences that occur in several sections: pretraining may have read an example with one."""
    by_section = ({*map(unmarked, section.sentences)} for section in sections)
    counts = Counter(itertools.chain.from_iterable(by_section))
    return {sentence for sentence, count in counts.items() if count > 1}


def unmarked(sentence: str) -> str:
    """The sentence with single spaces and without code marks, in which copies may differ."""
    return " ".join(_CODE.sub(r"\2", sentence).split())


def split_marks(sentence: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Words without their code marks, and 1 for each that has a character inside marks."""
    # A NUL follows every character inside marks.
    marked = _CODE.sub(lambda match: re.sub(r"(\S)", "\\1\0", match[2]), sentence).split()
    words = tuple(word.replace("\0", "") for word in marked)
    return words, tuple(int("\0" in word) for word in marked)


_PAIRS, _ORDERS = ("random", "next"), ("swapped", "in order")
TASKS = (
    pydocs_task("package", "classification", tuple(CHAPTERS), collect_packages, "accuracy"),
    pydocs_task("code_spans", "tagging", ("prose", "code"), collect_code_spans, "f1"),
    pydocs_task("next_sentence", "classification", _PAIRS, collect_next_sentences, "accuracy"),
    pydocs_task("sentence_order", "classification", _ORDERS, collect_sentence_orders, "accuracy"),
)
