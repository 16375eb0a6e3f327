"""Multiple choice: tables in the form of SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019); RACE's folders."""

from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Choice
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import field, read_value
from bertlab.transfer.tasks.table import read_rows


def multiple_choice(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    text: str | tuple[str, ...],
    choices: tuple[str, ...],
    label: str,
    stem: str = "",
    first: int = 0,
    columns: tuple[str, ...] = (),
    metrics: tuple[str, ...] = ("accuracy",),
    encoding: str = "utf-8",
) -> Task:
    """A task that asks for the correct one of a row's choices.

    Args:
        name, train, valid, test, columns, metrics, encoding: as in `bertlab.transfer.tasks.table`.
        text: the column with the text before each choice, or several that are joined by a space.
        choices: the choices' columns.
        label: the column with the correct choice's number.
        stem: a column that begins each choice, like SWAG's `sent2`.
        first: the number of the first choice.

    Raises:
        UserError: fewer than two choices; when loading: as in `table`, or a label is not the number of a choice.
    """
    if len(choices) < 2:
        raise UserError(f"task '{name}': {len(choices)} choices; name the columns of two or more")
    before = (text,) if isinstance(text, str) else text
    numbers = [str(first + i) for i in range(len(choices))]

    def read(path: Path, split: str) -> Iterator[Example]:
        needed = (*before, *choices, stem, "" if split == "test" else label)
        rows = read_rows(path, needed, columns, encoding=encoding)
        for number, (where, row) in enumerate(rows):
            begins, answer = f"{row[stem]} " if stem else "", row.get(label)
            if answer is not None and answer.strip() not in numbers:
                raise UserError(
                    f"{where}: '{answer}' is not a choice's number; the label must be from {numbers[0]} to {numbers[-1]}"
                )
            yield Example(
                id=str(number),
                where=where,
                texts=(" ".join(row[column] for column in before),),
                choices=tuple(begins + row[choice] for choice in choices),
                label=None if answer is None else numbers.index(answer.strip()),
            )

    return file_task(name, Choice(), metrics, read, (train, valid, test))


def race(name: str, *, train: str | tuple[str, ...], valid: str | tuple[str, ...], test: str | tuple[str, ...]) -> Task:
    """RACE (Lai et al. 2017): a folder per split, below it (middle, high) a .txt file of JSON per article.

    Each choice begins with its question, so that a long article is cut and the question is not.

    Args:
        name: the task's name.
        train, valid, test: the folders' names, with "/" at the end. test/middle/ is the middle schools' part.

    Raises:
        UserError: when loading: a file is not JSON, a field is missing, its lists differ in length, a question does not have
            four options, or an answer is not among A to D.
    """
    return file_task(name, Choice(), (), _read_race, (train, valid, test))


def _read_race(folder: Path, split: str) -> Iterator[Example]:
    for path in sorted(folder.rglob("*.txt")):
        record = read_value(path)
        article = field(record, "article", str, f"{path}:1")
        questions, options, answers = (field(record, key, list, f"{path}:1") for key in ("questions", "options", "answers"))
        if not len(questions) == len(options) == len(answers):
            counts = f"{len(questions)} questions, {len(options)} lists of options and {len(answers)} answers"
            raise UserError(f"{path}:1: {counts}; give each question one of each")
        for number, (question, choices, answer) in enumerate(zip(questions, options, answers)):
            where = f"{path}:1: question {number + 1}"
            if not isinstance(choices, list) or len(choices) != 4 or not all(isinstance(x, str) for x in (question, *choices)):
                raise UserError(f"{where}: expected a text and a list of four texts as its options; correct them")
            if answer not in ("A", "B", "C", "D"):
                raise UserError(f"{where}: its answer is {answer!r}, but must be A, B, C or D; correct it")
            yield Example(
                id=f"{path.relative_to(folder).as_posix()}-{number}",
                where=where,
                texts=(article,),
                choices=tuple(f"{question} {choice}" for choice in choices),
                label="ABCD".index(answer),
            )
