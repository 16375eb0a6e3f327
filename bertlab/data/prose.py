"""Prose in docstrings: which lines of a docstring are English sentences."""

import re

from bertlab.data.sentences import split_sentences

_UNDERLINE = re.compile(r"^\s*([=\-~^*#+`\"_.])\1{2,}\s*$")
_LIST_ITEM = re.compile(r"^\s*(?:[*+•-]|\(?\d{1,2}[.)]|\(?[a-z]\)|\.\.)\s+")
_FIELD = re.compile(r"^\s*(?::[^:`]+:|@\w+)\s*")
# "name: text", "name (type): text" and "*args: text", as parameters are described in Google's style.
_DESCRIBED = re.compile(r"^\s*\*{0,2}`{0,2}[\w.]+`{0,2}(?:\s*\([^()]*\))?\s*(?::|--)\s+(?=[A-Z])")
_ROLE = re.compile(r":(?:[a-z]+:){1,2}(?=`)")
_LINK = re.compile(r"`([^`<>]+?)\s*<[^<>`]+>`__?")
_SPACES = re.compile(r"\s+")

_QUOTED = re.compile(r"``.+?``|`[^`]+`")
_CODE = re.compile(r"[{}<>|\\@=]|\w\(\S*\)|::|\w\[|->|\b_\w|\w_\w|//|--|\.\.\.")
_WORD = re.compile(r"(?<!\S)[\"'(\[]*[A-Za-z][A-Za-z'’-]*[\"')\],.;:!?]*(?!\S)")
_START = re.compile(r"""["'“(\[`*]*[A-Z]|`|[\"“]\w""")
_END = re.compile(r"[.!?:][\"'”)\]`]*$")


def _paragraph_lines(docstring: str) -> list[list[str]]:
    """Groups lines that belong together: cut at blank lines, list items, fields, underlines and changes of indentation."""
    blocks, block, indentation, in_example, literal = [], [], 0, False, None

    def close():
        nonlocal block
        if block:
            blocks.append(block)
        block = []

    for line in docstring.expandtabs().split("\n"):
        stripped = line.strip()
        if not stripped:
            close()
            in_example = False
            continue
        indent = len(line) - len(line.lstrip())
        if literal is not None:
            if indent > literal:
                continue
            literal = None
        if stripped.startswith((">>>", "In [")) or in_example:
            close()
            in_example = True
            continue
        if _UNDERLINE.match(line):
            # An underlined line is a heading.
            if len(block) == 1:
                block = []
            close()
            continue
        item = _LIST_ITEM.match(line)
        field = _FIELD.match(line)
        if item or field or _DESCRIBED.match(line) or (block and indent != indentation):
            close()
        if not block:
            # Lines that go on below an item are indented as its text is.
            indentation = item.end() if item else indent
            stripped = line[(item or field).end() :].strip() if item or field else stripped
            stripped = _DESCRIBED.sub("", stripped)
        block.append(stripped)
        if line.rstrip().endswith("::"):
            literal = indent
            close()
    close()
    return blocks


def is_sentence(text: str) -> bool:
    """Whether `text` reads as an English sentence rather than code, a signature, a table row or a fragment.

    Code between back quotes is allowed anywhere; outside them there must be four plain words, most of all words must
    be plain, and nothing may look like code.
    """
    if not _START.match(text) or not _END.search(text) or not 20 <= len(text) <= 1000:
        return False
    prose = _QUOTED.sub("Code", text)
    if "`" in prose or _CODE.search(prose):
        return False
    words = prose.split()
    plain = len(_WORD.findall(prose))
    return plain >= 4 and plain >= 0.75 * len(words)


def paragraphs(docstring: str) -> list[tuple[str, ...]]:
    """Extracts the prose of a docstring.

    Doctest and literal blocks, headings, signatures and tables are left out. Parameter descriptions that are whole sentences
    stay, without the parameter's name. So does inline code in back quotes; reStructuredText roles and link targets go.

    Args:
      docstring: text without common indentation (`inspect.cleandoc`).

    Returns:
      For each paragraph with prose, its sentences.
    """
    found = []
    for lines in _paragraph_lines(docstring):
        text = _SPACES.sub(" ", " ".join(lines))
        if "`" in text:
            text = _LINK.sub(r"\1", _ROLE.sub("", text)).replace("`~", "`").replace("`_ ", "` ")
        sentences = tuple(sentence for sentence in split_sentences(text) if is_sentence(sentence))
        if sentences:
            found.append(sentences)
    return found
