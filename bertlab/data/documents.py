"""Documents of sentences, a rule-based splitter for English-like text, and a corpus's contract."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

LONGEST_DOCUMENT = 100_000
"""In characters; a longer text becomes several documents."""
SECTION = 50_000
"""Characters in each of them: 8,000 to 9,000 English words."""

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


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
        id: stable name, which decides whether the document is train, valid or test.
        parts: its sentences, each but the first with the white space before it; none is empty.
        split: train, valid or test where the corpus publishes it.
    """

    id: str
    parts: tuple[str, ...]
    split: str = ""


class Corpus(Protocol):
    """A source of documents."""

    def fingerprint(self) -> str:
        """A digest that changes when the text may have changed."""

    def documents(self) -> Iterator[Document]:
        """Streams the documents, in the same order every time."""


def make_documents(document_id: str, text: str, joins_lines: bool = False) -> Iterator[Document]:
    """The document of a text, or its sections if it is longer than `LONGEST_DOCUMENT`.

    Sections follow each other, end with a sentence and have about `SECTION` characters. Each is a
    document, `ID#1`, `ID#2`, ..., and they may be in different splits: so a corpus of a few books
    has all splits, but held-out sections share authors and characters with train.
    """
    parts = split_text(text, joins_lines)
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

    A sentence never crosses a line end, so a line may be a paragraph or a single sentence.
    It ends after `.`, `!`, `?` or `…` (with closing quotes and brackets) before white space, unless
    a lower-case letter follows or the full stop belongs to an abbreviation or an initial.
    """
    sentences = []
    for line in text.split("\n"):
        start = 0
        for match in _BOUNDARY.finditer(line):
            if _is_inside(line, start, match):
                continue
            sentences.append(line[start : match.end()].strip())
            start = match.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def split_text(text: str, joins_lines: bool = False) -> list[str]:
    """The sentences of a text, each but the first with the white space before it.

    With `joins_lines` a single line end, as in a hard-wrapped paragraph, becomes a space.
    """
    parts, end = [], 0
    for sentence in split_sentences(text):
        begin = text.index(sentence, end)
        space = text[end:begin] if parts else ""
        is_wrapped = joins_lines and space.count("\n") == 1
        parts.append((" " if is_wrapped else space) + sentence)
        end = begin + len(sentence)
    return parts


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
