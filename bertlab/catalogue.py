"""What `bertlab models` prints: every family and size with its published vocabulary and its exact number of parameters."""

import dataclasses

import jax
import numpy as np

from bertlab import objectives
from bertlab.config import base_config
from bertlab.models.presets import FAMILIES, build_body, model_direction, model_shape
from bertlab.objectives.program import Program

# Vocabularies of the released models; what was never released is counted with BERT's.
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


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        family, size: as in `config.model`.
        tokens: what the vocabulary is.
        vocab_size: its size.
        shape: "12 x 768, 12 heads, 3072".
        body: parameters without output layer and objectives' heads (BERT's pooler is in the body).
        total: parameters of the pretraining model with its paper's objectives.
    """

    family: str
    size: str
    tokens: str
    vocab_size: int
    shape: str
    body: int
    total: int


def catalogue() -> list[Entry]:
    """All families and sizes; nothing is allocated."""
    return [
        _count(family, size, tokens, vocab_size)
        for family, kind in FAMILIES.items()
        for size in kind.sizes
        for tokens, vocab_size in _vocabularies(family, size)
    ]


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


def _count(family: str, size: str, tokens: str, vocab_size: int) -> Entry:
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
    return Entry(family, size, tokens, vocab_size, _describe(shape, model_direction(config.model)), body, total)


_BATCH = {name: np.zeros((1, 8), np.int32) for name in ("tokens", "segments", "documents", "positions")} | {
    "characters": np.zeros((1, 8, 50), np.int32),
    "pair_label": np.zeros(1, np.int32),
    "example_id": np.zeros((1, 2), np.int32),
}


def _describe(shape, direction: str) -> str:
    layers = f"{shape.layers} x " if hasattr(shape, "layers") else ""
    heads = f", {shape.heads} heads" if hasattr(shape, "heads") else ""
    hidden = f", {shape.hidden}" if hasattr(shape, "hidden") else ""
    two_ways = ", both ways" if direction == "bidirectional" and heads == "" and layers else ""
    return f"{layers}{shape.width}{heads}{hidden}{two_ways}"


def print_models() -> None:
    """The catalogue as a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="config.model.family, config.model.size and exact parameter counts", title_justify="left")
    for column in ("family", "size", "layers x width, heads, hidden", "vocabulary"):
        table.add_column(column, no_wrap=True)
    for column in ("V", "body", "with its objectives' output"):
        table.add_column(column, justify="right", no_wrap=True)
    before = None
    for e in catalogue():
        if before not in (None, e.family):
            table.add_section()
        numbers = (f"{e.vocab_size:,}", f"{e.body:,}", f"{e.total:,}")
        table.add_row(e.family if e.family != before else "", e.size, e.shape, e.tokens, *numbers)
        before = e.family
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(table)
