"""Metrics of edge probing, as jiant reports them."""

import re
from collections.abc import Callable, Sequence

from bertlab.transfer.scorers import micro_f1


def _some_f1(gold: Sequence, predicted: Sequence, counts: Callable[[str], bool]) -> float:
    """Micro F1 of the labels that count."""
    sides = [
        [[list(filter(counts, target)) for target in sentence] for sentence in side]
        for side in (gold, predicted)
    ]
    return micro_f1(*sides)


def core_role_f1(gold: Sequence, predicted: Sequence) -> float:
    """Micro F1 without references and continuations ("R-", "C-"): jiant's of semantic roles."""
    return _some_f1(gold, predicted, lambda label: not label.startswith(("R-", "C-")))


def relation_f1(gold: Sequence, predicted: Sequence) -> float:
    """Micro F1 without the class of no relation.

    Source: `is_positive_relation` of jiant's probing/analysis_edgeprobe_ICLR_camera_ready.ipynb.
    """
    none = re.compile(r"_.*|Other|no_relation", re.DOTALL)
    return _some_f1(gold, predicted, lambda label: not none.fullmatch(label))


def positive_f1(gold: Sequence, predicted: Sequence) -> float:
    """F1 of the label "1", as jiant reports it for OntoNotes' coreference."""
    return _some_f1(gold, predicted, lambda label: label == "1")


EDGE_METRICS = {metric.__name__: metric for metric in (core_role_f1, relation_f1, positive_f1)}
