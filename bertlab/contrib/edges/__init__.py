"""Edge probing (Tenney et al. 2019): labels of spans, in the JSON lines of jiant's scripts.

    {"text": "Ian ate ice cream", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": "A0"}]}

A span [i, j) counts the words of `text` between white space from 0; a label is a text or a list.
OntoNotes needs a licence; jiant's probing/data/README.md explains how each file is made.
"""

from collections.abc import Iterator

from bertlab.contrib.edges.metrics import EDGE_METRICS
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.readers import json_task

METRICS.update(EDGE_METRICS)

KIND = "bertlab.contrib.edges.span_pair:SPAN_PAIR"


def edge_probing(name: str, *, spans: int = 2, metrics=("micro_f1",), **task) -> Task:
    """A task of span pairs. Its classes are those of all splits, as a rare one may be in test only.

    Args:
        name: the task's name.
        spans: spans per target; 1 reads only `span1`.
        metrics: the first selects and is reported.
        task: arguments of `file_task`.
    """

    def parse(record: dict, where: str) -> Iterator[Example]:
        words = tuple(record["text"].split())
        targets = [
            tuple((target[f"span{i}"][0], target[f"span{i}"][1]) for i in range(1, spans + 1))
            for target in record["targets"]
        ]
        for first, end in (span for target in targets for span in target):
            if not 0 <= first < end <= len(words):
                raise ValueError(f"the sentence has no words [{first}, {end})")
        labels = [target["label"] for target in record["targets"]]
        labels = [(label,) if isinstance(label, str) else dict.fromkeys(label) for label in labels]
        if targets:
            label = tuple(map(tuple, labels))
            yield Example("", where, words=words, spans=tuple(targets), label=label)

    return json_task(name, KIND, parse, every_label=True, metrics=metrics, **task)


_SHORT = {"train": "train", "valid": "dev", "test": "test"}
_LONG = {"train": "train", "valid": "development", "test": "test"}


def _ontonotes(prefix: str, ending: str = ".json") -> dict[str, tuple[str, ...]]:
    """Names in jiant's list of tasks, and as its scripts write them."""
    return {s: (f"{prefix}_{_SHORT[s]}{ending}", f"{_LONG[s]}.json") for s in _SHORT}


_EDGES = {
    split: (f"{x}.edges.json", f"edges.{x}.json", f"{x}.json", f"*-ud-{x}.json")
    for split, x in _SHORT.items()
}
_SRL_FILES = _EDGES | {"valid": (*_EDGES["valid"], "development.json")}
_SPR1_FILES = {split: f"spr1.{short}.json" for split, short in _SHORT.items()}
_SEMEVAL = {"train": ("train.0.85.json", "train.json"), "valid": "dev.json", "test": "test.json"}
_POS_FILES = _ontonotes("consts_ontonotes_en", ".pos.json")
_PHRASES = _ontonotes("consts_ontonotes_en", ".nonterminal.json")
_NAMES = _ontonotes("ner_ontonotes_en")
_COREF_FILES = _ontonotes("coref_conll_ontonotes_en") | {"folder": "ontonotes-coref-conll"}

# Folders and files as in jiant/tasks/edge_probing.py; metrics as in the paper's tables.
POS = edge_probing("edges_pos", spans=1, folder="ontonotes-constituents", **_POS_FILES)
CONSTITUENTS = edge_probing(
    "edges_constituents", spans=1, folder="ontonotes-constituents", **_PHRASES
)
DEPENDENCIES = edge_probing("edges_dependencies", folder="dep_ewt", **_EDGES)
ENTITIES = edge_probing("edges_entities", spans=1, folder="ontonotes-ner", **_NAMES)
SRL = edge_probing(
    "edges_srl", metrics=("core_role_f1", "micro_f1"), folder="srl_conll2012", **_SRL_FILES
)
COREF = edge_probing("edges_coref", metrics=("positive_f1", "micro_f1"), **_COREF_FILES)
SPR1 = edge_probing("edges_spr1", folder="spr1", **_SPR1_FILES)
SPR2 = edge_probing("edges_spr2", folder="spr2", **_EDGES)
DPR = edge_probing("edges_dpr", folder="dpr", **_EDGES)
RELATIONS = edge_probing(
    "edges_relations", metrics=("relation_f1", "micro_f1"), folder="semeval", **_SEMEVAL
)
