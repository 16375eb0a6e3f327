"""Prose in docstrings: which stretches of a docstring are English sentences."""

import re

from bertlab.data.sentences import split_sentences

_ROLE = re.compile(r":(?:[a-z]+:){1,2}(?=`)")
_QUOTED = re.compile(r"``.+?``|`[^`]+`")
_CODE = re.compile(r"[{}<>|\\@=]|\w\(\S*\)|::|\w\[|->|\b_\w|\w_\w|//|--|\.\.\.")
_WORD = re.compile(r"(?<!\S)[\"'(\[]*[A-Za-z][A-Za-z'’-]*[\"')\],.;:!?]*(?!\S)")
_START = re.compile(r"""["'“(\[`*]*[A-Z]|`|[\"“]\w""")
_END = re.compile(r"[.!?:][\"'”)\]`]*$")


def paragraphs(docstring: str) -> list[tuple[str, ...]]:
    """The sentences of each paragraph with prose, without code, headings, tables and fragments.

    Args:
        docstring: text without common indentation (`inspect.cleandoc`).
    """
    found = []
    for block in re.split(r"\n\s*\n", docstring):
        if ">>>" not in block:
            text = _ROLE.sub("", " ".join(block.split()))
            found.append(tuple(filter(is_sentence, split_sentences(text))))
    return [sentences for sentences in found if sentences]


def is_sentence(text: str) -> bool:
    """Whether a text reads as an English sentence, not as code, a table row or a fragment.

    Code between back quotes is allowed anywhere; outside them there must be four plain words, most
    of all words must be plain, and nothing may look like code.
    """
    if not _START.match(text) or not _END.search(text) or not 20 <= len(text) <= 1000:
        return False
    prose = _QUOTED.sub("Code", text)
    if "`" in prose or _CODE.search(prose):
        return False
    plain = len(_WORD.findall(prose))
    return plain >= 4 and plain >= 0.75 * len(prose.split())
