"""Questions about texts in SQuAD's JSON: articles of paragraphs of questions."""

import json
from collections.abc import Iterator
from pathlib import Path

from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import rows_task


def squad(name: str, **task) -> Task:
    """A span task in SQuAD's JSON; questions may be impossible (2.0). `task`: see `file_task`."""
    return rows_task(name, "span", read_articles, parse_article, **task)


def read_articles(path: Path) -> Iterator[tuple[str, dict]]:
    """("FILE: article NUMBER", article) of a file."""
    articles = json.loads(path.read_bytes())["data"]
    return ((f"{path}: article {i}", article) for i, article in enumerate(articles, 1))


def parse_article(article: dict, where: str) -> Iterator[Example]:
    """The questions of an article."""
    for paragraph in article["paragraphs"]:
        context = paragraph["context"]
        for question in paragraph["qas"]:
            name, answers = question["id"], question["answers"]
            if bool(answers) == question.get("is_impossible", False):
                raise ValueError(f"question {name} has {len(answers)} answers")
            answers = tuple(Answer(one["text"], one["answer_start"]) for one in answers)
            for answer in answers:
                at, text = answer.start, answer.text
                if at < 0 or not text.strip() or not context.startswith(text, at):
                    raise ValueError(
                        f"question {name} has an answer that is not at its answer_start"
                    )
            texts = (question["question"], context)
            yield Example(name, f"{where}: question {name}", texts, answers=answers)
