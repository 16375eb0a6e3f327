"""One labelled example of a downstream task."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer in a context: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Example:
    """One example; the fields that its kind of task does not use are empty.

    Attributes:
        id: From the file, or its number; unique within its split.
        where: "FILE:LINE", for messages.
        texts: A text or a pair. choice: the text before each choice. span: (question, context).
        label: The number of the class or choice, or a number (regression); for words or spans one
            each. None: span, or a hidden test set.
        words: For tagging and other kinds that read a sentence by words.
        choices: For choice.
        answers: For span; () if the question has none (SQuAD 2.0).
        targets: [start, end) of words that are asked about, in characters. choice: of the
            candidate with which choices begin, if they do.
        spans: One or two spans [first, end) of words for each target.
        group: Examples of a group are also scored together, as MultiRC's answers; "": none.
        document: tagging: all words of the sentence's document, including its own; () without any.
        document_at: The number in `document` of the sentence's first word.
    """

    id: str
    where: str
    texts: tuple[str, ...] = ()
    label: int | float | tuple[int | str | tuple[int, ...], ...] | None = None
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    targets: tuple[tuple[int, int], ...] = ()
    spans: tuple[tuple[tuple[int, int], ...], ...] = ()
    group: str = ""
    document: tuple[str, ...] = ()
    document_at: int = 0
