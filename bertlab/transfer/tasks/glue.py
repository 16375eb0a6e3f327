"""GLUE (Wang et al. 2019), from its published files or from TFDS. Its test sets have no labels, so they are not read."""

import functools
from collections.abc import Iterator

from bertlab.data.tfds_datasets import read_records
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.table import table

_BOTH = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")


def _task(
    name: str,
    texts: tuple[str, ...],
    label: str,
    names: tuple[str, ...] = _BOTH,
    metrics: tuple[str, ...] = ("accuracy",),
    *,
    folder: str = "",
    dataset: str = "",
    features: tuple[str, ...] = (),
    dev: tuple[str, str] = ("dev.tsv", "validation"),
    **options,
) -> Task:
    """One of GLUE's tasks.

    Args:
        name, texts, label, names, metrics: its columns, classes and metrics.
        folder: its folder in GLUE; "" for the name in capitals.
        dataset, features: TFDS's names of the data set (without "glue/") and of the texts, if they are not `name`, `texts`.
        dev: the development set's file and its split in TFDS.
        options: of `table`.
    """

    def stored(split: str) -> Iterator[tuple[str, dict[str, str]]]:
        columns = dict(zip(features or texts, texts)) | {"label": label}
        for where, record in read_records(
            f"glue/{dataset or name}", {"train": "train", "valid": dev[1]}[split], tuple(columns)
        ):
            row = {columns[feature]: value for feature, value in record.items()}
            # The files have names or 0 and 1. TFDS has names: the same ones, or in the order of 0 and 1.
            class_name, number = row[label] if names else (row[label], 0)
            row[label] = class_name if not names or class_name in names else names[number]
            yield where, row

    return table(
        name,
        train="train.tsv",
        valid=dev[0],
        text=texts[0],
        pair="".join(texts[1:]),
        label=label,
        label_names=names,
        metrics=metrics,
        folder=folder or name.upper(),
        stored=stored,
        **options,
    )


_SENTENCES = ("sentence1", "sentence2")
_mnli = functools.partial(
    _task,
    texts=_SENTENCES,
    label="gold_label",
    names=("contradiction", "entailment", "neutral"),
    folder="MNLI",
    dataset="mnli",
    features=("premise", "hypothesis"),
)

TASKS = (
    _task(
        "cola",
        ("sentence",),
        "label",
        metrics=("matthews", "accuracy"),
        folder="CoLA",
        columns=("source", "label", "star", "sentence"),
    ),
    _task("sst2", ("sentence",), "label", folder="SST-2"),
    _task("mrpc", ("#1 String", "#2 String"), "Quality", metrics=("accuracy", "f1"), features=_SENTENCES, symmetric=True),
    # The published train file has a few truncated rows; other readers skip them too.
    _task(
        "qqp",
        ("question1", "question2"),
        "is_duplicate",
        metrics=("accuracy", "f1"),
        skip_short_rows=True,
        symmetric=True,
    ),
    _task("stsb", _SENTENCES, "score", (), ("pearson", "spearman"), folder="STS-B", kind="regression", symmetric=True),
    _mnli("mnli", dev=("dev_matched.tsv", "validation_matched")),
    _mnli("mnli_mismatched", dev=("dev_mismatched.tsv", "validation_mismatched")),
    _task("qnli", ("question", "sentence"), "label", _ENTAILMENT),
    _task("rte", _SENTENCES, "label", _ENTAILMENT),
    _task("wnli", _SENTENCES, "label"),
)
