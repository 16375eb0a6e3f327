"""Downstream tasks with real labels from real text: what they ask, and their examples split by document."""

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from bertlab.data.prepare import cache_directory, split_of
from bertlab.data.prose import paragraphs
from bertlab.data.pydocs import PydocsCorpus, modules
from bertlab.errors import UserError

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True)
class Task:
    """A labelled task.

    Attributes:
        kind: "sentence" (one label an example) or "token" (one a word).
        labels: class names; for "token", class 1 is the one whose F1 is reported.
        examples: by split; an example is (words, label or labels).
        metric: the one that is reported.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    examples: dict[str, list[tuple[list[str], int | list[int]]]]
    metric: str


PACKAGES = 8
EXAMPLES_PER_PACKAGE = 600
CODE_SENTENCES = 6000
_CODE = re.compile(r"(``?)(.+?)\1")


def load_task(name: str, data) -> Task:
    """A task's examples, made once and kept beside the prepared corpora.

    Args:
        name: a key of TASKS.
        data: `config.data` of the pretraining run: cache directory and split fractions. A document is in the same split
            as in pretraining, so that test examples were never read.

    Raises:
        UserError: unknown task, or a split without examples.
    """
    if name not in TASKS:
        raise UserError(f"task '{name}' is not known; choose one of {', '.join(TASKS)}")
    fractions = (data.valid_fraction, data.test_fraction)
    key = f"{PydocsCorpus().fingerprint()[:16]}-{fractions[0]}-{fractions[1]}"
    path = cache_directory(data.directory) / "tasks" / f"{name}-{key}.json"
    if not path.exists():
        task = TASKS[name](fractions)
        empty = [split for split in SPLITS if not task.examples[split]]
        if empty:
            raise UserError(f"task '{name}' has no {empty[0]} examples in this Python's documentation; install more packages")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(dataclasses.asdict(task)))
        os.replace(partial, path)
    held = json.loads(path.read_text())
    return Task(**held | {"labels": tuple(held["labels"])})


def package_task(fractions: tuple[float, float]) -> Task:
    """Which package a docstring comes from, of the eight with most docstrings: the prose of its first paragraph."""
    found = {}  # package -> [(module, words)]
    for module in modules():
        for docstring in module.docstrings:
            first = next(iter(paragraphs(docstring)), ())
            words = " ".join(first).split()
            if 6 <= len(words) <= 60:
                found.setdefault(module.package, []).append((module.name, words))
    labels = sorted(package for package, _ in Counter({k: len(v) for k, v in found.items()}).most_common(PACKAGES))
    examples = {split: [] for split in SPLITS}
    for label, package in enumerate(labels):
        # Every n-th docstring, so that large packages neither drown the others nor give one corner of themselves.
        stride = max(1, len(found[package]) // EXAMPLES_PER_PACKAGE)
        for module, words in found[package][::stride][:EXAMPLES_PER_PACKAGE]:
            examples[split_of(module, *fractions)].append((words, label))
    return Task("package", "sentence", tuple(labels), examples, "accuracy")


def code_spans_task(fractions: tuple[float, float]) -> Task:
    """Which words of a sentence its author set as code (`x` or ``x``), the marks removed."""
    found = list(_marked_sentences())
    examples = {split: [] for split in SPLITS}
    stride = max(1, len(found) // CODE_SENTENCES)
    for module, words, labels in found[::stride][:CODE_SENTENCES]:
        examples[split_of(module, *fractions)].append((words, labels))
    return Task("code_spans", "token", ("prose", "code"), examples, "f1")


def _marked_sentences() -> Iterator[tuple[str, list[str], list[int]]]:
    seen = set()
    for module in modules():
        for docstring in module.docstrings:
            for sentence in (s for paragraph in paragraphs(docstring) for s in paragraph):
                words, labels = unmark(sentence)
                if 1 in labels and 0 in labels and 5 <= len(words) <= 60 and sentence not in seen:
                    seen.add(sentence)
                    yield module.name, words, labels


def unmark(sentence: str) -> tuple[list[str], list[int]]:
    """Words without their code marks, and 1 for each word that has a character inside marks."""
    words, labels = [], []
    characters, inside, last = "", [], 0
    for match in _CODE.finditer(sentence):
        plain = sentence[last : match.start()]
        characters += plain + match.group(2)
        inside += [0] * len(plain) + [1] * len(match.group(2))
        last = match.end()
    characters += sentence[last:]
    inside += [0] * (len(sentence) - last)
    for word in re.finditer(r"\S+", characters):
        words.append(word.group())
        labels.append(max(inside[word.start() : word.end()]))
    return words, labels


TASKS: dict[str, Callable[[tuple[float, float]], Task]] = {"package": package_task, "code_spans": code_spans_task}


