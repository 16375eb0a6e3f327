"""BabyLM's fine-tuning tasks: its filtered subset of GLUE and SuperGLUE, in the JSON lines of its evaluation data.

Names, fields, templates and order of the texts are those of babylm/evaluation-pipeline-2025 (finetune/dataset.py); the files
themselves: not verified. There is no test set: `task_data.dev=valid` selects and reports on valid, as the pipeline does.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Classification
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.files import read_records

# Name -> what the two texts are, in a record's fields.
_TEXTS = {
    "boolq": ("{question}", "{passage}"),
    "mnli": ("{premise}", "{hypothesis}"),
    "mrpc": ("{sentence1}", "{sentence2}"),
    "multirc": ("Question: {question} Answer: {answer}", "{paragraph}"),
    "qqp": ("{question1}", "{question2}"),
    "rte": ("{sentence1}", "{sentence2}"),
    "wsc": ('Does "{span2_text}" refer to "{span1_text}" in this passage?', "{text}"),
}


def _read(templates: tuple[str, str], path: Path, split: str) -> Iterator[Example]:
    for number, (where, record) in enumerate(read_records(path)):
        try:
            texts = tuple(template.format_map(record) for template in templates)
            label = None if split == "test" and "label" not in record else str(int(record["label"]))
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"{where}: the label must be a number ({error}); correct it") from None
        except KeyError as error:
            raise UserError(f"{where}: the field {error} is missing; each line needs the pipeline's fields") from None
        yield Example(str(number), where, texts, label)


TASKS = tuple(
    file_task(
        f"babylm_{name}",
        Classification(symmetric=name in ("mrpc", "qqp")),
        ("f1", "accuracy") if name in ("mrpc", "qqp") else ("accuracy",),
        functools.partial(_read, texts),
        (f"{name}.train.jsonl", f"{name}.valid.jsonl", ()),
        label_names=("0", "1", "2") if name == "mnli" else ("0", "1"),
    )
    for name, texts in _TEXTS.items()
)
