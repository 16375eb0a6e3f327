"""Documents: their sentences, by a rule-based splitter for English-like text, and their split.

A document's position is a hash of its id, in [0, 1): valid are those below the first bound, test
those below the second, train the others. The bounds are the fractions, unless that leaves valid or
test without a document: then it gets the document at the nearest position above.
"""

import hashlib
import itertools
import math
import re
from bisect import bisect
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "valid", "test")
LONGEST_DOCUMENT = 100_000  # in characters; a longer text becomes several documents
SECTION = 50_000  # characters in each of them: 8,000 to 9,000 English words

# Closing punctuation, closing quotes or brackets, then white space (none after CJK full stops).
_BOUNDARY = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+["'”’」』）]*\s*""")
_LAST_WORD = re.compile(r"[\w.&-]+$")
_OPENING = "\"'“‘«([`*_"

# Words after which a full stop does not end a sentence.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev hon st mt jr sr gen col capt lt sgt maj adm gov sen rep pres supt cmdr"
    " messrs mme mlle e.g i.e eg ie cf viz vs v etc al approx resp incl excl esp ca c fl b d r no"
    " nos vol vols pp p ch sec secs fig figs eq eqs ed eds trans repr dept univ assn bros inc ltd"
    " co corp est ave blvd rd jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k a.k.a w.r.t"
    " wrt".split()
)


class Document(NamedTuple):
    """One document, with a stable name that decides its split if the corpus publishes none."""

    id: str
    parts: tuple[str, ...]  # its sentences, none empty, with the white space between them in front
    split: str = ""  # as published: train, valid or test


def make_documents(document_id: str, text: str, joins_lines: bool = False) -> Iterator[Document]:
    """The document of a text, or its sections if it is longer than `LONGEST_DOCUMENT`. With
    `joins_lines` a single line end, as in a hard-wrapped paragraph, becomes a space.

    Sections have about `SECTION` characters and end with a sentence. Each is a document, `ID#1`,
    `ID#2`, ..., and they may be in different splits: so a corpus of a few books has all splits, but
    held-out sections share authors and characters with train.
    """
    parts, end = [], 0
    for sentence in split_sentences(text):
        begin = text.index(sentence, end)
        space = text[end:begin]
        is_wrapped = joins_lines and space.count("\n") == 1
        parts.append((" " if is_wrapped else space) + sentence)
        end = begin + len(sentence)
    starts = [0, *itertools.accumulate(len(part.lstrip()) for part in parts)]
    count = round(starts[-1] / SECTION) if starts[-1] > LONGEST_DOCUMENT else 1
    sections: dict[int, list[str]] = {}
    for start, part in zip(starts, parts):
        sections.setdefault(start * count // starts[-1], []).append(part)
    for number, (first, *others) in enumerate(sections.values(), 1):
        name = f"{document_id}#{number}" if len(sections) > 1 else document_id
        yield Document(name, (first.lstrip(), *others))


def split_sentences(text: str) -> list[str]:
    """Sentences without surrounding white space, none empty, in order.

    A sentence never crosses a line end. It ends after `.`, `!`, `?` or `…` (with closing quotes and
    brackets) before white space, unless a lower-case letter follows or the full stop belongs to an
    abbreviation or an initial.
    """
    sentences = []
    for line in text.split("\n"):
        start = 0
        for match in _BOUNDARY.finditer(line):
            if not _is_inside(line, start, match):
                sentences.append(line[start : match.end()].strip())
                start = match.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _is_inside(line: str, start: int, match: re.Match) -> bool:
    """Whether the punctuation is inside the sentence that begins at `start`."""
    mark, end = match.group(), match.end()
    if end == len(line) or mark[0] not in ".!?…":
        return False
    if line[end : end + 8].lstrip(_OPENING)[:1].islower():
        return True
    if mark.rstrip() != ".":
        return False
    before = line[max(start, match.start() - 40) : match.start()]
    last = _LAST_WORD.search(before.rpartition(" ")[2])  # the search is slow in a longer text
    word = last.group() if last else ""
    return (len(word) == 1 and word.isupper() and word != "I") or word.lower() in _ABBREVIATIONS


def position(document_id: str) -> float:
    """A hash of the id, in [0, 1]."""
    name = document_id.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") / 2**64


class Bounds(NamedTuple):
    """The positions at which valid and test end."""

    valid: float
    test: float

    def split(self, document: Document) -> str:
        """The split of a document: as published, or by its position."""
        return document.split or ("valid", "test", "train")[bisect(self, position(document.id))]


def find_bounds(data: Mapping, positions) -> Bounds:
    """The fractions' bounds, raised where valid or test would be empty, unless that leaves none
    for train. `positions` [D] are those of the documents without a published split."""
    plain = Bounds(data["valid_fraction"], data["valid_fraction"] + data["test_fraction"])
    valid, test = plain
    positions = np.asarray(positions)
    others = np.sort(positions[positions >= valid])[:3].tolist()
    if valid and others and (positions >= valid).all():
        valid = math.nextafter(others.pop(0), 2)
    if data["test_fraction"] and others and others[0] >= test:
        test = math.nextafter(others.pop(0), 2)
    return Bounds(valid, max(valid, test)) if others else plain
