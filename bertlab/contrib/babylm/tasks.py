"""BabyLM's fine-tuning tasks, from GLUE and SuperGLUE: --task=bertlab.contrib.babylm.tasks:BOOLQ.

Fields and templates are those of babylm/evaluation-pipeline-2025 (finetune/dataset.py); the files
are in its folder glue_filtered. There is no test set: the pipeline reports on valid, so set
config.task_data.dev=valid.
"""

from collections.abc import Iterator

from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.readers import json_task


def _babylm(name: str, first: str, second: str) -> Task:
    def parse(record: dict, where: str) -> Iterator[Example]:
        texts = first.format_map(record), second.format_map(record)
        yield Example("", where, texts, str(int(record["label"])))

    paraphrase = name in ("mrpc", "qqp")
    return json_task(
        f"babylm_{name}",
        "classification",
        parse,
        train=f"{name}.train.jsonl",
        valid=f"{name}.valid.jsonl",
        label_names=("0", "1", "2") if name == "mnli" else ("0", "1"),
        metrics=("f1", "accuracy") if paraphrase else "accuracy",
        symmetric=paraphrase,
    )


BOOLQ = _babylm("boolq", "{question}", "{passage}")
MNLI = _babylm("mnli", "{premise}", "{hypothesis}")
MRPC = _babylm("mrpc", "{sentence1}", "{sentence2}")
MULTIRC = _babylm("multirc", "Question: {question} Answer: {answer}", "{paragraph}")
QQP = _babylm("qqp", "{question1}", "{question2}")
RTE = _babylm("rte", "{sentence1}", "{sentence2}")
WSC = _babylm("wsc", 'Does "{span2_text}" refer to "{span1_text}" in this passage?', "{text}")
