"""What did not fit into rows.

    {"cut": {SPLIT: {TASK: {"examples": 12, "of_examples": 18, "words": 783, "of_words": 1080}}}}

An example is cut if any part of it is in no row. What else is counted depends on the kind of task:

    pieces      of a text, a pair, a text with its choices, or a question with its context
    words       of a sentence that is given as words
    targets     words or spans that are asked about
    answers     of questions, if no window holds all of one
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

Cut = Mapping[str, tuple[int, int]]
"""One example's counts by unit: how many are in no row, and how many it has."""


def total_cut(examples: Iterable[Cut]) -> dict[str, int]:
    """The counts of a split's examples."""
    counts: Counter[str] = Counter()
    for example in examples:
        any_cut = int(any(lost for lost, _ in example.values()))
        for unit, (lost, total) in {"examples": (any_cut, 1), **example}.items():
            counts[unit] += lost
            counts[f"of_{unit}"] += total
    return dict(counts)


def cut_lines(cut: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[str]:
    """One sentence for each split of a task with examples that were cut."""
    for split, tasks in cut.items():
        for task, counts in tasks.items():
            shares = [
                f"{count:,} of {counts[f'of_{unit}']:,} {unit}"
                f" ({100 * count / counts[f'of_{unit}']:.2g} %)"
                for unit, count in counts.items()
                if count and not unit.startswith("of_")
            ]
            if shares:
                yield f"{task}, what did not fit into rows of {split}: {', '.join(shares)}"
