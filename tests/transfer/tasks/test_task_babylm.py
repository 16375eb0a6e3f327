"""BabyLM's JSON lines: the texts that its pipeline shows, its splits and metrics, and the place that an error names."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.tasks import TASKS, find_task, load_task

PAIR = {"sentence1": "A {b}.", "sentence2": "C."}
RECORDS = {
    "boolq": ({"question": "is it", "passage": "It is."}, ("is it", "It is.")),
    "mnli": ({"premise": "A.", "hypothesis": "B."}, ("A.", "B.")),
    "mrpc": (PAIR, ("A {b}.", "C.")),
    "multirc": ({"paragraph": "P.", "question": "Q?", "answer": "A"}, ("Question: Q? Answer: A", "P.")),
    "qqp": ({"question1": "A?", "question2": "B?"}, ("A?", "B?")),
    "rte": (PAIR, ("A {b}.", "C.")),
    "wsc": (
        {"text": "Ann saw Eve. She left.", "span1_text": "Ann", "span2_text": "She"},
        ('Does "She" refer to "Ann" in this passage?', "Ann saw Eve. She left."),
    ),
}


def publish(folder, name, *labels, **more):
    lines = [json.dumps(RECORDS[name][0] | {"idx": i, "label": label} | more) for i, label in enumerate(labels)]
    for split in ("train", "valid"):
        (folder / f"{name}.{split}.jsonl").write_text("\n".join(lines) + "\n")
    return {"directory": str(folder), "dev": "valid"}


@pytest.mark.parametrize("name", RECORDS)
def test_texts_labels_and_metrics_are_the_pipelines(name, tmp_path):
    task = find_task(f"babylm_{name}")
    data = load_task(task, publish(tmp_path, name, 1, 0, True))
    assert data.labels == (("0", "1", "2") if name == "mnli" else ("0", "1"))
    assert [(example.texts, example.label) for example in data.examples["valid"]] == [
        (RECORDS[name][1], label) for label in (1, 0, 1)
    ]
    assert task.metrics[0] == ("f1" if name in ("mrpc", "qqp") else "accuracy")
    assert {name for name in TASKS if name.startswith("babylm_")} == {f"babylm_{name}" for name in RECORDS}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", "label": 1}', r"boolq\.train\.jsonl:1: .*'passage'"),
        ('{"question": "a", "passage": "b"}', r"boolq\.train\.jsonl:1: .*'label'"),
        ('{"question": "a", "passage": "b", "label": "x"}', r"boolq\.train\.jsonl:1: .*label"),
        ('{"question": "a", "passage": "b", "label": 2}', r"boolq\.train\.jsonl:1: .*'2'"),
        ("[1]", r"boolq\.train\.jsonl:1: "),
        ("{", r"boolq\.train\.jsonl:1: "),
    ],
)
def test_what_is_no_record_is_refused_with_file_and_line(line, message, tmp_path):
    options = publish(tmp_path, "boolq", 0, 1)
    (tmp_path / "boolq.train.jsonl").write_text(line)
    with pytest.raises(UserError, match=message):
        load_task(find_task("babylm_boolq"), options)
