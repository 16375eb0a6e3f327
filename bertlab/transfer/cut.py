"""What of a task's examples did not fit into rows, in result.json and in words.

    {"cut": {SPLIT: {TASK: {"examples": 12, "of_examples": 18, "words": 783, "of_words": 1080}}}}

An example is cut if anything of it is in no row. What is counted besides depends on the kind of task:

    pieces      of a text, a pair, a text with its choices, or a question with its context
    words       of a sentence that is given as words
    targets     the words or spans that are asked about
    answers     of questions, if no window holds them whole
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

Lost = Mapping[str, tuple[int, int]]
"""Of one example: by unit, how many of its units are in no row, and how many it has."""


def counted(examples: Iterable[Lost]) -> dict[str, int]:
    """The counts of a split's examples."""
    counts: Counter[str] = Counter()
    for example in examples:
        lost = {"examples": (int(any(cut for cut, _ in example.values())), 1)} | dict(example)
        for unit, (cut, of) in lost.items():
            counts[unit] += cut
            counts[f"of_{unit}"] += of
    return dict(counts)


def in_words(cut: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Iterator[str]:
    """A line for each task of whose examples some were cut."""
    for task in next(iter(cut.values()), {}):
        splits = []
        for split, of_tasks in cut.items():
            counts = of_tasks[task]
            shares = [
                f"{counts[unit]:,} of {counts[f'of_{unit}']:,} {unit} ({counts[unit] / counts[f'of_{unit}']:.0%})"
                for unit in counts
                if not unit.startswith("of_") and counts[unit]
            ]
            if shares:
                splits.append(f"{split}: {', '.join(shares)}")
        if splits:
            yield f"{task}, what did not fit into rows: {'; '.join(splits)}"
