"""Labelled examples of downstream tasks, and counts of what of them did not fit into rows."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer in a context: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Example:
    """One example; the fields that its kind of task does not use are empty."""

    id: str  # from the file, or its number; unique within its split
    where: str  # "FILE:LINE", for messages
    # A text or a pair. choice: the text before each choice. span: (question, context).
    texts: tuple[str, ...] = ()
    # The number of the class or choice, or a number (regression); for words or spans one each.
    # None: span, or a hidden test set.
    label: int | float | tuple[int | str | tuple[int, ...], ...] | None = None
    words: tuple[str, ...] = ()  # for tagging and other kinds that read a sentence by words
    choices: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()  # for span; () if the question has none (SQuAD 2.0)
    # [start, end) in characters of words that are asked about, or with which choices begin.
    targets: tuple[tuple[int, int], ...] = ()
    spans: tuple[tuple[tuple[int, int], ...], ...] = ()  # of words, [first, end), for each target
    group: str = ""  # examples of a group are also scored together, as MultiRC's answers
    document: tuple[str, ...] = ()  # tagging: all words of the sentence's document, its own too
    document_at: int = 0  # the number in `document` of the sentence's first word


Cut = Mapping[str, tuple[int, int]]
"""One example's counts by unit (pieces of its texts, words of a sentence that is given as words,
targets, answers): how many are in no row, and how many it has."""


def total_cut(examples: Iterable[Cut]) -> dict[str, int]:
    """{"examples": 12, "of_examples": 18, ...}: an example is cut if any part is in no row."""
    counts: Counter[str] = Counter()
    for example in examples:
        any_cut = int(any(lost for lost, _ in example.values()))
        for unit, (lost, total) in {"examples": (any_cut, 1), **example}.items():
            counts[unit] += lost
            counts[f"of_{unit}"] += total
    return dict(counts)


def cut_lines(cut: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[str]:
    """One sentence for each split of a task with examples that were cut: `cut` by split, task."""
    for split, tasks in cut.items():
        for task, counts in tasks.items():
            shares = [
                f"{count:,} of {total:,} {unit} ({100 * count / total:.2g} %)"
                for unit, count in counts.items()
                if count and (total := counts.get(f"of_{unit}"))
            ]
            if shares:
                yield f"{task}, what did not fit into rows of {split}: {', '.join(shares)}"
