"""Tasks with real labels from real text, the documentation of Python's standard library.

They come from the text of `config.data.corpus=pydocs`. Each document stays in its pretraining split, so a model is tested on
text that it has never read.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bertlab import checksums
from bertlab.data.pydocs import PydocsCorpus, Section, sections, sentences_of
from bertlab.data.splits import splits_of
from bertlab.errors import UserError
from bertlab.files import cache_directory, misfit
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Classification, Kind, Tagging
from bertlab.transfer.tasks.assemble import check_task
from bertlab.transfer.tasks.base import SPLITS, Task, TaskData

# Raise it with every change of the code below that changes the examples.
VERSION = 6
PARTS = {
    "language": "pydoc_data",
    "types": "_collections_abc _pydatetime _pydecimal _pylong _strptime bisect calendar collections colorsys contextlib "
    "copy dataclasses datetime decimal enum fractions functools graphlib heapq numbers operator pprint random "
    "reprlib secrets statistics types typing weakref zoneinfo",
    "text": "argparse cmd codecs curses difflib encodings getopt getpass gettext locale logging optparse platform re "
    "shlex string stringprep textwrap",
    "files": "_pyio bz2 chunk configparser csv dbm filecmp fileinput fnmatch genericpath glob gzip io json linecache "
    "lzma ntpath os pathlib pickle pickletools plistlib posixpath shelve shutil sqlite3 stat tarfile tempfile "
    "tomllib xml zipfile",
    "concurrency": "_threading_local asyncio concurrent contextvars multiprocessing queue sched selectors signal subprocess "
    "threading",
    "internet": "base64 cgi cgitb email ftplib html http imaplib ipaddress mailbox mailcap mimetypes netrc nntplib poplib "
    "quopri smtplib socket socketserver ssl telnetlib urllib uuid webbrowser wsgiref xmlrpc",
    "development": "_py_abc _pyrepl abc ast bdb code codeop compileall ctypes dis doctest importlib inspect modulefinder pdb "
    "pkgutil profile pstats py_compile pyclbr pydoc rlcompleter runpy symtable tabnanny timeit token tokenize "
    "trace traceback tracemalloc unittest warnings zipapp zipimport",
}
"""Parts of the standard library, near the chapters of its reference: name -> packages."""
EXAMPLES_PER_PART = 1000
_CODE = re.compile(r"(``?)(.+?)\1")

Labelled = tuple[str, list[str], int | list[int]]
"""Document id, then the text or texts and a label; tagging: the words and a label for each."""

Split = Callable[[str], str]
"""Document id -> the split that it is in."""

Collect = Callable[[Sequence[Section], Split], tuple[list[str], list[Labelled]]]
"""(Sections, split) -> class names and labelled examples; what an example has of other documents is of the same split."""


def pydocs_task(name: str, kind: Kind, metrics: tuple[str, ...], collect: Collect) -> Task:
    """A task with examples from the standard library, collected once and stored next to the prepared corpora.

    A document is in the same split as in pretraining (`config.task_data.pretraining`), so pretraining never reads test
    examples.

    Args:
        name, kind, metrics: of the task; kind is classification or tagging.
        collect: makes the examples.
    """
    return check_task(Task(name, kind, metrics, functools.partial(_load, name, kind, collect)))


def _load(name: str, kind: Kind, collect: Collect, directory: Path | None, options: Mapping) -> TaskData:
    """Raises: UserError: you give a directory, or a split has no examples."""
    if directory is not None or options["directory"]:
        raise UserError(f"config.task_data.directory='{options['directory']}': task '{name}' reads no files; leave it empty")
    pretraining = options["pretraining"]
    cache = pretraining["directory"]
    fractions = (pretraining["valid_fraction"], pretraining["test_fraction"])
    key = f"{name}-{VERSION}-{PydocsCorpus(cache).fingerprint()[:16]}-{fractions[0]}-{fractions[1]}"
    path = cache_directory(cache) / "tasks" / f"{key}.json"
    if not path.exists():
        found = sections(cache)
        place = splits_of((section.name for section in found), pretraining).of
        labels, collected = collect(found, place)
        examples = {split: [] for split in SPLITS}
        for labelled in collected:
            examples[place(labelled[0])].append(labelled)
        if empty := [split for split in SPLITS if not examples[split]]:
            raise UserError(
                f"task '{name}' has no {empty[0]} examples; raise the pretraining run's config.data.{empty[0]}_fraction"
            )
        checksums.write_cached(path, {"labels": labels, "examples": examples})
    held = checksums.read_cached(path)
    if wrong := misfit(held, {"labels": [str], "examples": {split: [list] for split in SPLITS}}):
        raise UserError(f"{path} is damaged: {wrong}; delete it, and it is made anew")
    examples = {
        split: [_example(kind, str(number), *labelled) for number, labelled in enumerate(held["examples"][split])]
        for split in SPLITS
    }
    return TaskData(tuple(held["labels"]), examples)


def _example(kind: Kind, id: str, document: str, texts: list[str], label: int | list[int]) -> Example:
    if kind.of_words:
        return Example(id=id, where=document, words=tuple(texts), label=tuple(label))
    return Example(id=id, where=document, texts=tuple(texts), label=label)


def collect_packages(found: Sequence[Section], _: Split) -> tuple[list[str], list[Labelled]]:
    """Paragraphs of 6 to 60 words, each with the part of the standard library (`PARTS`) that its package belongs to.

    The classes are parts, not packages, because most packages have one or two modules, too few for a class in each split. It
    skips a paragraph if another section has one of its sentences.
    """
    part_of = {package: part for part, packages in PARTS.items() for package in packages.split()}
    shared = shared_sentences(found)
    of_part: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for section in found:
        if part := part_of.get(section.package):
            for paragraph in itertools.chain.from_iterable(section.docstrings):
                words = " ".join(paragraph).split()
                if 6 <= len(words) <= 60 and shared.isdisjoint(map(plain, paragraph)):
                    of_part[part].setdefault(" ".join(words), section.name)
    return list(PARTS), [
        (section, [text], label)
        for label, texts in enumerate(of_part.values())
        for text, section in spread(list(texts.items()), EXAMPLES_PER_PART)
    ]


def collect_code_spans(found: Sequence[Section], _: Split) -> tuple[list[str], list[Labelled]]:
    """Sentences of only one section with some but not all words marked as code (`x` or ``x``); the marks are removed."""
    shared = shared_sentences(found)
    examples = {}
    for section in found:
        for sentence in sentences_of(section):
            words, labels = unmark(sentence)
            if 1 in labels and 0 in labels and 5 <= len(words) <= 60 and plain(sentence) not in shared:
                examples.setdefault(" ".join(words), (section.name, words, labels))
    return ["prose", "code"], list(examples.values())


def collect_next_sentences(found: Sequence[Section], split: Split) -> tuple[list[str], list[Labelled]]:
    """Pairs of sentences: the second follows the first or, every second time, comes from another section of the same split.

    This asks the question of next-sentence prediction (Devlin et al. 2019, section 3.1) about held-out sentences.
    """
    of_split: dict[str, list[tuple[str, str, str]]] = {}
    for section, first, second in consecutive_sentences(found):
        of_split.setdefault(split(section), []).append((section, first, second))
    examples = []
    for pairs in of_split.values():
        for i, (section, first, second) in enumerate(pairs):
            other, _, elsewhere = pairs[(i + len(pairs) // 2) % len(pairs)]
            if i % 2 == 0:
                examples.append((section, [first, second], 1))
            elif other != section:
                examples.append((section, [first, elsewhere], 0))
    return ["random", "next"], examples


def collect_sentence_orders(found: Sequence[Section], _: Split) -> tuple[list[str], list[Labelled]]:
    """Two sentences that follow each other, every second pair with its sentences swapped (Lan et al. 2020, section 3.1)."""
    return ["swapped", "in order"], [
        (section, [second, first], 0) if i % 2 else (section, [first, second], 1)
        for i, (section, first, second) in enumerate(consecutive_sentences(found))
    ]


def consecutive_sentences(found: Sequence[Section]) -> list[tuple[str, str, str]]:
    """(Section, sentence, the next one of its docstring), each of 4 to 20 words.

    It skips sentences of several sections. No sentence is first twice or second twice.
    """
    shared = shared_sentences(found)
    seen, pairs = (set(), set()), []
    for section in found:
        for docstring in section.docstrings:
            for pair in itertools.pairwise(itertools.chain.from_iterable(docstring)):
                known = [plain(sentence) for sentence in pair]
                fits = all(4 <= len(sentence.split()) <= 20 for sentence in pair) and shared.isdisjoint(known)
                if fits and not any(sentence in before for sentence, before in zip(known, seen)):
                    for sentence, before in zip(known, seen):
                        before.add(sentence)
                    pairs.append((section.name, *(" ".join(sentence.split()) for sentence in pair)))
    return pairs


def shared_sentences(found: Sequence[Section]) -> set[str]:
    """The sentences (after `plain`) that several sections have.

    Sections are in different splits, so pretraining may have read an example with such a sentence.
    """
    first, shared = {}, set()
    for section in found:
        for sentence in map(plain, sentences_of(section)):
            if first.setdefault(sentence, section.name) != section.name:
                shared.add(sentence)
    return shared


def plain(sentence: str) -> str:
    """The sentence without extra white space and code marks, for finding copies: their marks may differ."""
    return " ".join(_CODE.sub(r"\2", sentence).split())


def spread(items: list, most: int) -> list:
    """At most so many of the items, evenly spaced over the collection."""
    if len(items) <= most:
        return items
    return [items[i * len(items) // most] for i in range(most)]


def unmark(sentence: str) -> tuple[list[str], list[int]]:
    """Words without their code marks, and 1 for each word that has a character inside marks."""
    words, labels = [], []
    characters, inside, last = "", [], 0
    for match in _CODE.finditer(sentence):
        plain = sentence[last : match.start()]
        characters += plain + match.group(2)
        inside += [0] * len(plain) + [1] * len(match.group(2))
        last = match.end()
    characters += sentence[last:]
    inside += [0] * (len(sentence) - last)
    for word in re.finditer(r"\S+", characters):
        words.append(word.group())
        labels.append(max(inside[word.start() : word.end()]))
    return words, labels


TASKS = (
    pydocs_task("package", Classification(), ("accuracy",), collect_packages),
    pydocs_task("code_spans", Tagging(), ("f1",), collect_code_spans),
    pydocs_task("next_sentence", Classification(), ("accuracy",), collect_next_sentences),
    pydocs_task("sentence_order", Classification(), ("accuracy",), collect_sentence_orders),
)
