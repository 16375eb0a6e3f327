"""List every key of a config with its default and its meaning.

bertlab keys optimizer
"""

import signal
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
SOURCES = (
    ("config/defaults.py", "DEFAULTS", ""),
    ("transfer/finetune.py", "TRANSFER", "transfer."),  # in a fine-tuning
    ("transfer/tasks/base.py", "TASK_DATA", "task_data."),
)
"""(File, the name of its dict of defaults, the prefix of its keys in a config)."""


def add_arguments(parser):
    parser.add_argument("prefix", nargs="?", default="", help="only keys that begin with this")


def run(arguments, overrides):
    """Prints one line per key."""
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
    """The keys of `NAME = dict(...)` with one key per line and comments above or next to it."""
    found, groups, above = [], [], []
    for line in source.splitlines()[1:-1]:
        code, _, comment = line.strip().partition("  # ")
        name, equals, value = code.partition("=")
        if code.startswith("# ---"):
            continue  # the heading of a group
        if code.startswith("#"):
            above.append(code.removeprefix("# "))
            continue
        if value == "dict(":
            groups.append(name)
        elif code == "),":
            groups.pop()
        elif equals:
            default = "unset" if value.startswith("placeholder(") else value.removesuffix(",")
            found.append((".".join([*groups, name]), default, " ".join([*above, comment]).strip()))
        above = []
    return found
