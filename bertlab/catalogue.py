"""The output of `bertlab models` and `bertlab keys`: published sizes with exact parameter counts, and every config key."""

import fnmatch
from typing import Any

import jax
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from bertlab import objectives
from bertlab.config import base_config
from bertlab.console import Console
from bertlab.errors import UserError
from bertlab.keys import KEYS, settings_of
from bertlab.models.presets import FAMILIES, build_body, model_direction, model_shape
from bertlab.objectives.program import Program
from bertlab.transfer.finetune import KEYS as TRANSFER
from bertlab.transfer.heads import DERIVED
from bertlab.transfer.kinds import KINDS
from bertlab.transfer.tasks.base import KEYS as TASK_DATA

ALL_COLUMNS = 100  # of a terminal that shows the table of models whole; a narrower one lacks the vocabularies' names
UNSET = object()  # the default of a key that has none
# Vocabularies of the released models; unreleased models are counted with BERT's.
_BERT_UNCASED, _BERT_CASED, _GPT1, _GPT2, _MODERN, _ELMO = 30_522, 28_996, 40_478, 50_257, 50_368, 793_471
_PTB, _WIKITEXT_2, _WIKITEXT_103 = 10_000, 33_278, 267_735
_OBJECTIVES = {
    "bert": ("mlm", "nsp"),
    "gpt": ("ltr",),
    "modern": ("mlm",),
    "elmo": ("ltr", "rtl"),
    "awd_lstm": ("ltr",),
    "static": ("skip_gram",),
}


def _vocabularies(family: str, size: str) -> list[tuple[str, int]]:
    """(name, size) of the published ones."""
    uncased = ("uncased WordPiece", _BERT_UNCASED)
    if family == "bert":
        return [uncased, ("cased WordPiece", _BERT_CASED)]
    if family == "modern" and size in ("base", "large"):
        return [("byte-level BPE", _MODERN)]
    if family == "gpt" and size.startswith("gpt"):
        return [("BPE", _GPT1) if size == "gpt1" else ("byte-level BPE", _GPT2)]
    if family == "elmo" and size in ("small", "medium", "original"):
        return [("characters", _ELMO)]
    if family == "awd_lstm" and size == "original":
        return [("Penn Treebank", _PTB), ("WikiText-2", _WIKITEXT_2), ("WikiText-103", _WIKITEXT_103)]
    return [uncased]


def _count(family: str, size: str, tokens: str, vocab_size: int) -> tuple[str, int, int]:
    """(family, size, tokens, V) -> shape such as "12 x 768, 12 heads, 3072", and the numbers of parameters of body and whole.

    The body has BERT's pooler, but neither output layer nor heads; the whole has its paper's objectives. Nothing is allocated.
    """
    config = base_config()
    config.model.update(family=family, size=size)
    if tokens == "characters":
        config.model.token_encoder = "characters"
    shape = model_shape(config.model, vocab_size)
    vocabulary = objectives.Vocabulary(vocab_size, 0, 1, 2, 3, 4, counts=(1,) * vocab_size)
    asked = {name: objectives.find(name)() for name in _OBJECTIVES[family]}
    params = jax.eval_shape(Program(build_body(shape), asked, vocabulary).init, jax.random.key(0), _BATCH)
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    output = sum(leaf.size for leaf in jax.tree.leaves(params["body"].get("output", {})))
    body = sum(leaf.size for leaf in jax.tree.leaves(params["body"])) - output
    return _describe(shape, model_direction(config.model)), body, total


_BATCH = {name: np.zeros((1, 8), np.int32) for name in ("tokens", "segments", "documents", "positions")} | {
    "characters": np.zeros((1, 8, 50), np.int32),
    "pair_label": np.zeros(1, np.int32),
    "example_id": np.zeros((1, 2), np.int32),
}


def _describe(shape, direction: str) -> str:
    layers = f"{shape.layers} x " if hasattr(shape, "layers") else ""
    heads = f", {shape.heads} heads" if hasattr(shape, "heads") else ""
    hidden = f", {shape.hidden}" if hasattr(shape, "hidden") else ""
    two_ways = ", both ways" if direction == "bidirectional" and layers and not heads else ""
    return f"{layers}{shape.width}{heads}{hidden}{two_ways}"


def print_models() -> list[dict[str, str | int]]:
    """All families and sizes with their exact parameter counts, as a table on standard output.

    Returns:
        Of each row, `family`, `size`, `shape`, `vocabulary`, `vocab_size`, and the parameters of the `body` and in `all`.
    """
    console, found = Console(), []
    console = console if console.is_terminal else Console(width=140)
    narrow = console.width < ALL_COLUMNS
    table = Table(
        title="config.model.family, config.model.size and exact parameter counts", title_justify="left",
        box=SIMPLE_HEAD, show_edge=False, padding=0,
    )  # fmt: skip
    names = ("family", "size", "layers x width, heads, hidden", "vocabulary", "V", "body", "with output")
    shown_of = lambda row: [text for name, text in zip(names, row) if not (narrow and name == "vocabulary")]
    for name in shown_of(names):
        folds = name == names[2]
        table.add_column(name, justify="right" if name in names[-3:] else "left", no_wrap=not folds)
    for family, kind in FAMILIES.items():
        table.add_section()
        shown = family
        for size in kind.sizes:
            for tokens, vocab_size in _vocabularies(family, size):
                shape, body, total = _count(family, size, tokens, vocab_size)
                table.add_row(*shown_of((shown, size, shape, tokens, f"{vocab_size:,}", f"{body:,}", f"{total:,}")))
                shown = ""
                found.append({"family": family, "size": size, "shape": shape, "vocabulary": tokens})
                found[-1] |= {"vocab_size": vocab_size, "body": body, "all": total}
    console.print(table)
    return found


def key_table(pattern: str = "") -> list[tuple[str, Any, str, str]]:
    """(name, default, values, meaning) of every config key whose name or meaning contains the pattern or matches it as a glob.

    The default is `UNSET` of a key that has none.
    Of "module:Class", an objective from outside, the settings are listed, by the keys that set them.

    The settings of each objective follow the table of keys, then the keys of fine-tuning and the settings of task heads.
    """
    only = lambda key: f"; only with {' and '.join(key.conditions)}" if key.conditions else ""
    row = lambda key, prefix="": (
        prefix + key.name, UNSET if key.unset else key.default, key.values(), key.meaning + only(key)
    )  # fmt: skip
    rows = [row(key) for key in KEYS if key.name != "objectives"]
    rows += [("objectives.NAME.weight", 1.0, "number at least 0", "weight of the objective in the loss")]
    final = "its weight at the last step, reached linearly; unset: weight"
    rows += [("objectives.NAME.final_weight", UNSET, "number at least 0", final)]
    if ":" in pattern:
        own = pattern.removeprefix("objectives.")
        name, _ = objectives.describe(own)
        return [row(key, f"objectives.{name}.") for key in settings_of(objectives.find(own))]
    for name, kind in objectives.REGISTRY.items():
        rows += [row(key, f"objectives.{name}.") for key in settings_of(kind)]
    rows += [row(key) for key in (*TASK_DATA, *TRANSFER)]
    rows += [("metrics.TASK", UNSET, "text", "metric by which fine-tuning reports a task; unset: the task's first")]
    heads = {}
    for kind in KINDS.values():
        for key in settings_of(kind.head):
            if key.name not in DERIVED:
                heads.setdefault(row(key, "objectives.TASK."), []).append(kind.name)
    for (*columns, meaning), kinds in heads.items():
        rows.append((*columns, meaning if len(kinds) == len(KINDS) else f"{', '.join(kinds)}: {meaning}"))
    asked = pattern.removeprefix("--").removeprefix("config.").lower()
    fits = lambda text: asked in text.lower() or fnmatch.fnmatchcase(text.lower(), asked)
    return [row for row in rows if fits(row[0]) or fits(row[3])]


def print_keys(pattern: str = "", markdown: bool = False) -> list[dict[str, Any]]:
    """Prints `key_table`: a table on a terminal, tab-separated lines elsewhere, or Markdown.

    Returns:
        Of each row, `key`, `default` (as it is in a config; None for a key without one), `values` and `meaning`.

    Raises:
        UserError: no key matches.
    """
    table = key_table(pattern)
    if not table:
        raise UserError(f"no config key matches {pattern!r}; list all with: bertlab keys")
    headings = ("Key", "Default", "Values", "Meaning")
    found = [dict(zip(map(str.lower, headings), (name, None if of is UNSET else of, *rest))) for name, of, *rest in table]
    shown = lambda default: "" if default is UNSET else default if isinstance(default, str) else repr(default)
    rows = [(name, shown(default), *rest) for name, default, *rest in table]
    if markdown:
        print(KEYS_PAGE, end="")
        code = lambda text: f"`{text}`".replace("|", "\\|") if text else "–"
        lines = [headings, ["---"] * 4, *([code(name), code(default), *rest] for name, default, *rest in rows)]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return found
    console = Console()
    if not console.is_terminal:
        print("\n".join("\t".join(row) for row in rows))
        return found
    drawn = Table()
    for heading in headings:
        drawn.add_column(heading, overflow="fold", no_wrap=heading == "Key")
    for row in rows:
        drawn.add_row(*map(escape, row))
    console.print(drawn)
    return found


KEYS_PAGE = """# Config keys

Every key of a config, made by `bertlab keys --markdown`. Set one with `--config.KEY=VALUE`. A key without a default takes the
value of the model's family and size (`bertlab/models/presets.py`), or the one its meaning names.
Only fine-tuning has `task_data`, `transfer`, `metrics` and `objectives.TASK`; `head.SETTING` sets `objectives.TASK.SETTING` of
each task.

"""
