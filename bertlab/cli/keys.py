"""List every key of a config with its default and its meaning.

bertlab keys optimizer
"""

import io
import signal
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
SOURCES = (
    ("config/defaults.py", "DEFAULTS", ""),
    ("transfer/finetune.py", "TRANSFER", "transfer."),  # of a fine-tuning
    ("transfer/tasks/base.py", "TASK_DATA", "task_data."),
)
"""(File, the dict of defaults in it, where it stands in a config)."""


def add_arguments(parser):
    """The command's own arguments."""
    parser.add_argument("prefix", nargs="?", default="", help="only keys that begin with this")


def run(arguments, overrides):
    """Prints a line a key."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `bertlab keys | head`
    for name, default, meaning in read_keys():
        if name.startswith(arguments.prefix):
            print(f"{name}\t{default}\t{meaning}")


def read_keys() -> list[tuple[str, str, str]]:
    """(dotted name, default as text, comment) of every key, from the sources of the defaults."""
    found = []
    for file, variable, prefix in SOURCES:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        start = text.index(f"{variable} = dict(\n")
        keys = read_dict(text[start : text.index("\n)\n", start) + 2])
        found += [(prefix + name, default, meaning) for name, default, meaning in keys]
    return found


def read_dict(source: str) -> list[tuple[str, str, str]]:
    """The keys of `NAME = dict(...)` with a key a line and comments above or beside it."""
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.removeprefix("#").strip()
    found, groups, above = [], [], []
    for number, line in enumerate(source.splitlines()[1:-1], 2):
        name, equals, value = line.partition("=")
        if line.strip().startswith("#"):
            above.append(comments[number])
            continue
        if value.strip() == "dict(":
            groups.append(name.strip())
        elif line.strip() == "),":
            groups.pop()
        elif equals:
            default = value.split("  #")[0].strip().removesuffix(",")
            meaning = " ".join([*above, comments.get(number, "")]).strip()
            found.append((".".join([*groups, name.strip()]), default, meaning))
        above = []
    return found
