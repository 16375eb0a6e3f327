"""Metrics of edge probing, as jiant reports them; each target may have any number of classes."""

import re
from collections.abc import Sequence

from bertlab.transfer.scorers import f1_of_sets


def micro_f1(gold: Sequence, predicted: Sequence, counts=bool) -> float:
    """F1 over all labels that count, over all targets together (Tenney et al. 2019)."""
    sides = [
        [set(filter(counts, target)) for sentence in side for target in sentence]
        for side in (gold, predicted)
    ]
    return f1_of_sets(*sides)


def core_role_f1(gold: Sequence, predicted: Sequence) -> float:
    """Micro F1 without references and continuations ("R-", "C-"): jiant's for semantic roles."""
    return micro_f1(gold, predicted, lambda label: not label.startswith(("R-", "C-")))


def relation_f1(gold: Sequence, predicted: Sequence) -> float:
    """Micro F1 without the class of no relation.

    Source: `is_positive_relation` of jiant's probing/analysis_edgeprobe_ICLR_camera_ready.ipynb.
    """
    none = re.compile(r"_.*|Other|no_relation", re.DOTALL)
    return micro_f1(gold, predicted, lambda label: not none.fullmatch(label))


def positive_f1(gold: Sequence, predicted: Sequence) -> float:
    """F1 of the label "1", as jiant reports it for OntoNotes' coreference."""
    return micro_f1(gold, predicted, lambda label: label == "1")


EDGE_METRICS = {
    metric.__name__: metric for metric in (micro_f1, core_role_f1, relation_f1, positive_f1)
}
