"""Multiple choice from tables: SWAG's (Zellers et al. 2018) and CODAH's (Chen et al. 2019) form."""

from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Choice
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.table import read_rows


def multiple_choice(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    text: str,
    choices: tuple[str, ...],
    label: str,
    stem: str = "",
    columns: tuple[str, ...] = (),
    metrics: tuple[str, ...] = ("accuracy",),
    encoding: str = "utf-8",
) -> Task:
    """A task that asks for the correct one of a row's choices.

    Args:
        name, train, valid, test, columns, metrics, encoding: as in `bertlab.transfer.tasks.table`.
        text: the column with the text before each choice.
        choices: the choices' columns.
        label: the column with the correct choice's number, from 0.
        stem: a column that begins each choice, like SWAG's `sent2`.

    Raises:
        UserError: fewer than two choices; when loading: as in `table`, or a label is not the number of a choice.
    """
    if len(choices) < 2:
        raise UserError(f"task '{name}': {len(choices)} choices; name the columns of two or more")

    def read(path: Path, split: str) -> Iterator[Example]:
        needed = (text, *choices, stem, "" if split == "test" else label)
        rows = read_rows(path, needed, columns, encoding=encoding)
        for number, (where, row) in enumerate(rows):
            begins, answer = f"{row[stem]} " if stem else "", row.get(label)
            if answer is not None and answer.strip() not in map(str, range(len(choices))):
                raise UserError(f"{where}: '{answer}' is not a choice's number; the label must be from 0 to {len(choices) - 1}")
            yield Example(
                id=str(number),
                where=where,
                texts=(row[text],),
                choices=tuple(begins + row[choice] for choice in choices),
                label=None if answer is None else int(answer),
            )

    return file_task(name, Choice(), metrics, read, (train, valid, test))
