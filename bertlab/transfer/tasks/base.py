"""What a task is, apart from any model: its examples, what it asks, and by what it is scored."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

KINDS = ("classification", "regression", "tagging", "choice", "span", "word_pair")
SPLITS = ("train", "valid", "test")

_CLASSES = ("accuracy", "f1", "macro_f1", "matthews")
_ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
METRICS_OF = {
    "classification": _CLASSES,
    "regression": ("pearson", "spearman"),
    "tagging": ("accuracy", "f1", "macro_f1", *_ENTITIES),
    # f1 is of class 1, and the number of a choice is no class.
    "choice": ("accuracy", "macro_f1", "matthews"),
    "span": ("exact_match", "span_f1"),
    "word_pair": _CLASSES,
}
"""Which of `bertlab.transfer.scorers.METRICS` go with a task's kind: they take what its predictions are."""

OPTIONS = {
    # The folder of the task's files; "tfds": the prepared TFDS dataset (GLUE); "" for tasks that read none.
    # Of several tasks: one folder for all, or one for each, joined by + as the tasks are.
    "directory": "",
    # Names of files in the folder, where they are not those that the task looks for.
    "train_file": "",
    "valid_file": "",
    "test_file": "",
    # A published development set without a labelled test set is reported ("test"), and selection is by a part of train;
    # "valid": it selects and is reported too, as papers do.
    "dev": "test",
    # Shares of train that are held out where there is no published split.
    "valid_fraction": 0.1,
    "test_fraction": 0.1,
    # Of the shares held out, and of `limit`.
    "seed": 0,
    # At most so many training examples, drawn at random; a smaller limit takes a part of a larger one's. 0: all.
    "limit": 0,
    # Tasks from the documents of pretraining (those of Python's documentation): its cache and its split of documents.
    "pretraining": {"directory": "", "valid_fraction": 0.05, "test_fraction": 0.05},
}
"""`config.task_data` and its defaults; `bertlab.transfer.tasks.load_task` completes what it is given with them."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer in a context: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Example:
    """One example. What a kind does not use is left out.

    Attributes:
        id: as the file gives it, else its number; unique in its split.
        where: "FILE:LINE", for messages.
        texts: classification, regression: one text or a pair. choice: what stands before each choice. span: (question,
            context). word_pair: two sentences. tagging: ().
        label: classification, choice, word_pair: the class' or choice's number. regression: a number. tagging: one class'
            number a word. None: not known (a hidden test set). span: always None.
        words: tagging.
        choices: choice.
        answers: span; () where the question has none (SQuAD 2.0).
        targets: word_pair: (start, end) of the word in each sentence, in characters.
    """

    id: str
    where: str
    texts: tuple[str, ...] = ()
    label: int | float | tuple[int, ...] | None = None
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    targets: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task's examples.

    Attributes:
        labels: class names (tagging: the tags), by number; () for regression, choice and span.
        examples: by split; train and valid are labelled; test is labelled or not.
    """

    labels: tuple[str, ...]
    examples: Mapping[str, list[Example]]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task's description.

    Attributes:
        name: of its directory in results, and of its entry in `config.objectives`.
        kind: one of KINDS.
        metrics: names in `METRICS_OF[kind]`; the first is the one that selects and is reported.
        load: (directory or None, options) -> TaskData; the directory holds its files in their published layout. Options
            are `config.task_data`, all of `OPTIONS`' keys (`load_task` calls it so, and applies `limit`).
        symmetric: the order of a pair means nothing (similarity, paraphrase).
        may_lack_answer: span: whether questions may have no answer (SQuAD 2.0).
    """

    name: str
    kind: str
    metrics: tuple[str, ...]
    load: Callable[[Path | None, Mapping], TaskData]
    may_lack_answer: bool = False
    symmetric: bool = False
