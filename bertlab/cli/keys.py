"""List every key of a config with its default and its meaning.

bertlab keys optimizer
"""

import io
import tokenize
from pathlib import Path

from bertlab.config import defaults


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("prefix", nargs="?", default="", help="only keys that begin with this")


def run(arguments, overrides):
    """Prints a line a key."""
    for name, default, meaning in read_keys():
        if name.startswith(arguments.prefix):
            print(f"{name}\t{default}\t{meaning}")


def read_keys() -> list[tuple[str, str, str]]:
    """(dotted name, default as text, comment) of every key, from the source of `defaults.py`."""
    source = Path(defaults.__file__).read_text(encoding="utf-8")
    source = source[source.index("DEFAULTS =") : source.index("\ndef base_config")]
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.removeprefix("#").strip()
    found, groups, above = [], [], []
    for number, line in enumerate(source.splitlines(), 1):
        name, equals, value = line.partition("=")
        if line.strip().startswith("#"):
            above.append(comments[number])
            continue
        if value.strip() == "dict(" and number > 1:
            groups.append(name.strip())
        elif line.strip() == "),":
            groups.pop()
        elif equals and number > 1:
            default = value.split("  #")[0].strip().removesuffix(",")
            meaning = " ".join([*above, comments.get(number, "")]).strip()
            found.append((".".join([*groups, name.strip()]), default, meaning))
        above = []
    return found
