"""Edge probing (Tenney et al. 2019): labels of spans in a sentence, in the JSON lines that jiant's scripts write.

    {"text": "Ian ate ice cream", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": "A0"}, ...]}

A span [i, j) counts the words of `text` between white space from 0. A label is a text or a list of texts, possibly empty.
Other keys are ignored, and so are sentences without targets, as in jiant. OntoNotes needs a licence; jiant's
probing/data/README.md says how each file is made from the published corpora.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import SpanPair
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import field, read_records


def edge_probing(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    spans: int = 2,
    metrics: tuple[str, ...] = (),
    folder: str = "",
) -> Task:
    """A span_pair task. Its classes are the labels of all its files, because a rare one may be in a test set alone.

    Args:
        name, train, valid, test, folder: as in `bertlab.transfer.tasks.table`.
        spans: of a target: 1 reads only `span1`.
        metrics: () for micro F1.

    Raises:
        UserError: when loading: a line is not in this format, a span is empty or not in its sentence, or a label is missing
            (in a test file all labels may be).
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        for number, (where, record) in enumerate(read_records(path)):
            words = tuple(field(record, "text", str, where).split())
            targets = [(f"{where}: target {i}", of) for i, of in enumerate(field(record, "targets", list, where), 1)]
            if not targets:
                continue
            hidden = split == "test" and not any(isinstance(of, dict) and "label" in of for _, of in targets)
            yield Example(
                id=str(number),
                where=where,
                words=words,
                spans=tuple(tuple(_span(of, f"span{i}", words, place) for i in range(1, spans + 1)) for place, of in targets),
                label=None if hidden else tuple(_labels(of, place) for place, of in targets),
            )

    return file_task(name, SpanPair(), metrics, read, (train, valid, test), folder=folder, every_label=True)


def _span(target: Any, key: str, words: tuple[str, ...], where: str) -> tuple[int, int]:
    span = field(target, key, list, where)
    if len(span) != 2 or not all(isinstance(end, int) for end in span) or not 0 <= span[0] < span[1] <= len(words):
        raise UserError(f"{where}: {key} is {span}, but must be [i, j] with 0 <= i < j <= {len(words)}, the number of words")
    return span[0], span[1]


def _labels(target: dict, where: str) -> tuple[str, ...]:
    given = target.get("label")
    labels = [given] if isinstance(given, str) else given
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"{where}: 'label' must be a text or a list of texts; give the file as jiant's scripts write it")
    return tuple(dict.fromkeys(labels))


def _ontonotes(prefix: str, ending: str = ".json") -> dict[str, tuple[str, ...]]:
    """The files' names in jiant's list of tasks, and as its scripts write them."""
    splits = {"train": "train", "valid": "dev", "test": "test"}
    written = {"train": "train.json", "valid": "development.json", "test": "test.json"}
    return {split: (f"{prefix}_{short}{ending}", written[split]) for split, short in splits.items()}


_EDGES = {
    split: (f"{short}.edges.json", f"edges.{short}.json", f"{short}.json", f"*-ud-{short}.json")
    for split, short in (("train", "train"), ("valid", "dev"), ("test", "test"))
}
_SRL = {**_EDGES, "valid": (*_EDGES["valid"], "development.json")}
_SPR1 = {"train": "spr1.train.json", "valid": "spr1.dev.json", "test": "spr1.test.json"}
_SEMEVAL = {"train": ("train.0.85.json", "train.json"), "valid": "dev.json", "test": "test.json"}
_CONSTITUENTS = "ontonotes-constituents"

# Folders and files as in jiant/tasks/edge_probing.py. Its README says which metrics the paper's tables have of roles and
# coreference, its notebook of the ICLR paper that relations lack "Other"; of definite pronouns they have the micro F1.
TASKS = (
    edge_probing("edges_pos", **_ontonotes("consts_ontonotes_en", ".pos.json"), spans=1, folder=_CONSTITUENTS),
    edge_probing("edges_constituents", **_ontonotes("consts_ontonotes_en", ".nonterminal.json"), spans=1, folder=_CONSTITUENTS),
    edge_probing("edges_dependencies", **_EDGES, folder="dep_ewt"),
    edge_probing("edges_entities", **_ontonotes("ner_ontonotes_en"), spans=1, folder="ontonotes-ner"),
    edge_probing("edges_srl", **_SRL, metrics=("core_role_f1", "micro_f1"), folder="srl_conll2012"),
    edge_probing(
        "edges_coref",
        **_ontonotes("coref_conll_ontonotes_en"),
        metrics=("positive_f1", "micro_f1"),
        folder="ontonotes-coref-conll",
    ),
    edge_probing("edges_spr1", **_SPR1, folder="spr1"),
    edge_probing("edges_spr2", **_EDGES, folder="spr2"),
    edge_probing("edges_dpr", **_EDGES, folder="dpr"),
    edge_probing("edges_relations", **_SEMEVAL, metrics=("relation_f1", "micro_f1"), folder="semeval"),
)
