"""Questions about texts in SQuAD's JSON: articles of paragraphs of questions."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import rows_task

# Devlin et al. 2019, section 4.3
PAPER_2 = {"bert_paper": {"data.batch_size": 48, "transfer.epochs": 2.0}}


def squad(name: str, *, may_lack_answer: bool = False, **task) -> Task:
    """A span task in SQuAD's JSON; `may_lack_answer` as in 2.0, `task` of `file_task`."""
    parse = functools.partial(parse_article, may_lack_answer=may_lack_answer)
    recipes = PAPER_2 if may_lack_answer else {}
    return rows_task(name, "span", read_articles, parse, recipes=recipes, **task)


def read_articles(path: Path) -> Iterator[tuple[str, dict]]:
    """("FILE: article NUMBER", article) of a file."""
    articles = json.loads(path.read_bytes())["data"]
    return ((f"{path}: article {i}", article) for i, article in enumerate(articles, 1))


def parse_article(article: dict, where: str, may_lack_answer: bool = False) -> Iterator[Example]:
    """The questions of an article."""
    for paragraph in article["paragraphs"]:
        context = paragraph["context"]
        for question in paragraph["qas"]:
            name, answers = question["id"], question["answers"]
            impossible = question.get("is_impossible", False)
            if bool(answers) == impossible or (impossible and not may_lack_answer):
                raise ValueError(
                    f"question {name} has {len(answers)} answers and is_impossible={impossible}"
                )
            answers = tuple(Answer(one["text"], one["answer_start"]) for one in answers)
            for answer in answers:
                at, text = answer.start, answer.text
                if at < 0 or not text.strip() or not context.startswith(text, at):
                    raise ValueError(
                        f"question {name} has an answer that is not at its answer_start"
                    )
            texts = (question["question"], context)
            yield Example(name, f"{where}: question {name}", texts, answers=answers)
