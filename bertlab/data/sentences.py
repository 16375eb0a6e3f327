"""A small rule-based sentence splitter for English-like text."""

import re

# A boundary: closing punctuation, closing quotes or brackets, then white space (none is needed after CJK full stops).
_BOUNDARY = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+["'”’」』）]*\s*""")
_LAST_WORD = re.compile(r"[\w.&-]+$")
_OPENING = "\"'“‘«([`*_"

# Words after which a full stop does not end a sentence.
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev hon st mt jr sr gen col capt lt sgt maj adm gov sen rep pres supt cmdr messrs mme mlle "
    "e.g i.e eg ie cf viz vs v etc al approx resp incl excl esp ca c fl b d r no nos vol vols pp p ch sec secs fig figs "
    "eq eqs ed eds trans repr dept univ assn bros inc ltd co corp est ave blvd rd jan feb mar apr jun jul aug sep sept "
    "oct nov dec u.s u.k a.k.a w.r.t wrt".split()
)


def _ends_sentence(before: str, after: str) -> bool:
    """Whether the full stop at the end of `before` (punctuation removed) closes a sentence that `after` follows."""
    if after[:1].islower():
        return False
    match = _LAST_WORD.search(before.rpartition(" ")[2])  # no word has a space, and searching takes time for every character
    word = match.group() if match else ""
    if len(word) == 1 and word.isupper() and word != "I":
        return False
    return word.lower() not in _ABBREVIATIONS


def split_sentences(text: str) -> list[str]:
    """Splits text into sentences.

    A sentence never crosses a line end, so one paragraph per line and one sentence per line (BERT's input format) both work. Of
    a paragraph with line breaks, each line is a sentence or more.
    It ends after `.`, `!`, `?` or `…` (with closing quotes and brackets) before white space, unless a lower-case letter
    follows or the full stop belongs to a known abbreviation or an initial.

    Args:
      text: any text.

    Returns:
      Sentences without surrounding white space, none empty, in order.
    """
    sentences = []
    for line in text.split("\n"):
        start = 0
        for match in _BOUNDARY.finditer(line):
            end = match.end()
            mark = match.group()
            if end < len(line) and mark[0] in ".!?…":
                after = line[end : end + 8].lstrip(_OPENING)
                if mark.rstrip() == ".":
                    if not _ends_sentence(line[max(start, match.start() - 40) : match.start()], after):
                        continue
                elif after[:1].islower():
                    continue
            sentence = line[start:end].strip()
            if sentence:
                sentences.append(sentence)
            start = end
        rest = line[start:].strip()
        if rest:
            sentences.append(rest)
    return sentences
