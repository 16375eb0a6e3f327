"""Prose in docstrings: which lines of a docstring are English sentences."""

import re

from bertlab.data.sentences import split_sentences

_UNDERLINE = re.compile(r"^\s*([=\-~^*#+`\"_.])\1{2,}\s*$")
_LIST_ITEM = re.compile(r"^\s*(?:[*+•-]|\(?\d{1,2}[.)]|\(?[a-z]\)|\.\.)\s+")
_FIELD = re.compile(r"^\s*(?::[^:`]+:|@\w+)\s*")
# "name: text", "name (type): text" and "*args: text", as Google's style describes parameters.
_DESCRIBED = re.compile(r"^\s*\*{0,2}`{0,2}[\w.]+`{0,2}(?:\s*\([^()]*\))?\s*(?::|--)\s+(?=[A-Z])")
_ROLE = re.compile(r":(?:[a-z]+:){1,2}(?=`)")
_LINK = re.compile(r"`([^`<>]+?)\s*<[^<>`]+>`__?")

_QUOTED = re.compile(r"``.+?``|`[^`]+`")
_CODE = re.compile(r"[{}<>|\\@=]|\w\(\S*\)|::|\w\[|->|\b_\w|\w_\w|//|--|\.\.\.")
_WORD = re.compile(r"(?<!\S)[\"'(\[]*[A-Za-z][A-Za-z'’-]*[\"')\],.;:!?]*(?!\S)")
_START = re.compile(r"""["'“(\[`*]*[A-Z]|`|[\"“]\w""")
_END = re.compile(r"[.!?:][\"'”)\]`]*$")


def paragraphs(docstring: str) -> list[tuple[str, ...]]:
    """The sentences of each paragraph with prose of a docstring.

    Doctest and literal blocks, headings, signatures and tables are left out. Descriptions of
    parameters that are whole sentences stay, without the parameter's name; so does code in back
    quotes. Roles and link targets of reStructuredText go.

    Args:
        docstring: text without common indentation (`inspect.cleandoc`).
    """
    found = []
    for lines in _blocks(docstring):
        text = " ".join(" ".join(lines).split())
        if "`" in text:
            text = _LINK.sub(r"\1", _ROLE.sub("", text)).replace("`~", "`").replace("`_ ", "` ")
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


def _blocks(docstring: str) -> list[list[str]]:
    """Lines that belong together.

    They are cut at blank lines, list items, fields, underlines and changes of indentation.
    """
    blocks, block, indentation, in_example, literal = [], [], 0, False, None
    for line in docstring.expandtabs().split("\n"):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped:
            blocks.append(block)
            block, in_example = [], False
            continue
        if literal is not None and indent > literal:
            continue
        literal = None
        if in_example or stripped.startswith((">>>", "In [")):
            blocks.append(block)
            block, in_example = [], True
            continue
        if _UNDERLINE.match(line):
            if len(block) != 1:  # one underlined line is a heading
                blocks.append(block)
            block = []
            continue
        item = _LIST_ITEM.match(line) or _FIELD.match(line)
        if item or _DESCRIBED.match(line) or (block and indent != indentation):
            blocks.append(block)
            block = []
        if not block:
            # Lines that go on below an item are indented as its text is.
            is_list_item = _LIST_ITEM.match(line)
            indentation = is_list_item.end() if is_list_item else indent
            stripped = _DESCRIBED.sub("", line[item.end() :].strip() if item else stripped)
        block.append(stripped)
        if line.rstrip().endswith("::"):
            literal = indent
            blocks.append(block)
            block = []
    return [block for block in (*blocks, block) if block]
