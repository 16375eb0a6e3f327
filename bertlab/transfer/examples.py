"""One labelled example of a downstream task."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer in a context: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Example:
    """One example. Fields that its kind of task does not use are empty.

    Attributes:
        id: from the file, or its number; unique in its split.
        where: "FILE:LINE", for error messages.
        texts: classification, regression: one text or a pair. choice: the text before each choice. span: (question,
            context). word_pair: two sentences. candidate: a text, and the question with the candidate in it. tagging: ().
        label: classification, choice, word_pair, candidate: the number of the class or choice. regression: a number. tagging:
            one class number per word. span_pair: the class numbers of each target, a tuple of tuples. sense: keys of the right
            senses. None: unknown (a hidden test set). span: always None.
        words: only for tagging, span_pair and sense.
        choices: of choice. candidate: the candidate alone. sense: the word's first sense, the answer if training lacks the
            word; () if unknown.
        answers: only for span and candidate; () if the question has none (SQuAD 2.0).
        targets: word_pair: (start, end) of the word in each sentence, in characters. sense: of the word, in words.
            choice: where a task's choices begin with its candidates, of the candidate in each, in characters.
        spans: only for span_pair: of each target, its one or two spans [first, end) of words.
        group: sense: the word's lemma and part of speech, whose senses are compared. candidate: the question. Otherwise:
            examples of one group are also scored together, like the answers to one question; "": alone.
        document: only for tagging: all words of the document that the sentence is from, its own included; (): not known.
        document_at: the place of the sentence's first word in `document`.
        lines: only for tagging: the line of each word; (): all are on that of the example.
    """

    id: str
    where: str
    texts: tuple[str, ...] = ()
    label: int | float | tuple[int, ...] | tuple[tuple[int, ...], ...] | tuple[str, ...] | None = None
    words: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    targets: tuple[tuple[int, int], ...] = ()
    spans: tuple[tuple[tuple[int, int], ...], ...] = ()
    group: str = ""
    document: tuple[str, ...] = ()
    document_at: int = 0
    lines: tuple[int, ...] = ()

    def where_of(self, word: int) -> str:
        """Where a word stands, "FILE:LINE"."""
        return f"{self.where.rpartition(':')[0]}:{self.lines[word]}" if self.lines else self.where
