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
        id: from the file, or its number; unique in its split.
        where: "FILE:LINE", for messages.
        texts: classification, regression: a text or a pair. choice: the text before each choice.
            span: (question, context). word_pair: two sentences. candidate: a text, and the question
            with the candidate in it.
        label: classification, choice, word_pair, candidate: the number of the class or choice.
            regression: a number. tagging: a class number per word. span_pair: the class numbers of
            each target. sense: keys of the right senses. span, or a hidden test set: None.
        words: of tagging, span_pair and sense.
        choices: of choice. candidate: the candidate itself. sense: the word's first sense, the
            answer if train lacks the word; () if there is none.
        answers: of span and candidate; () if the question has none (SQuAD 2.0).
        targets: word_pair: [start, end) of the word in each sentence, in characters. sense: of the
            word, in words. choice: where choices begin with a candidate, of it, in characters.
        spans: span_pair: the one or two spans [first, end) of words of each target.
        group: sense: lemma and part of speech, whose senses are compared. candidate: the question.
            Else: examples with one group are also scored together, as MultiRC's answers; "": none.
        document: tagging: all words of the sentence's document, its own too; () without documents.
        document_at: the number in `document` of the sentence's first word.
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
