"""Edge probing's JSON lines: spans of words, labels single, several or none, and what errors name; a probe learns them."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.finetune import finetune
from bertlab.transfer.tasks import edge_probing, find_task, load_task

TEXT = "Ian  ate ice cream ."
ROLES = [
    {"span1": [1, 2], "span2": [0, 1], "label": "A0", "info": {"height": 1}},
    {"span1": [1, 2], "span2": [2, 4], "label": "A1"},
]


def publish(folder, targets=ROLES, file="train.edges.json", text=TEXT, more=()):
    lines = [{"text": text, "targets": targets, "info": {}}, *more]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"directory": str(folder)}


def publish_all(folder, train, valid, test):
    for split, targets in (("train", train), ("dev", valid), ("test", test)):
        options = publish(folder, targets, f"{split}.edges.json")
    return options


def test_targets_are_spans_of_words_with_their_labels(tmp_path):
    rare = [{"span1": [1, 2], "span2": [4, 5], "label": "R-A0"}]
    folder = tmp_path / "srl_conll2012"
    publish(folder, more=[{"text": "No verb .", "targets": []}, {"text": "Go !", "targets": [{**ROLES[0], "label": "A0"}]}])
    publish(folder, ROLES[1:], "dev.edges.json")
    publish(folder, rare, "test.edges.json")
    data = load_task(task := find_task("edges_srl"), {"directory": str(tmp_path)})
    assert data.labels == ("A0", "A1", "R-A0"), "of all files: a rare label may be in one alone"
    first, second = data.examples["train"]
    assert first.words == ("Ian", "ate", "ice", "cream", ".") and first.texts == ()
    assert first.spans == (((1, 2), (0, 1)), ((1, 2), (2, 4))) and first.label == ((0,), (1,))
    assert (first.id, second.id, second.where) == ("0", "2", f"{folder}/train.edges.json:3")
    assert data.examples["valid"][0].label == ((1,),) and data.examples["test"][0].label == ((2,),)
    assert task.metrics[0] == "core_role_f1" and find_task("edges_coref").metrics[0] == "positive_f1"
    assert find_task("edges_relations").metrics == ("relation_f1", "micro_f1")
    assert {find_task(f"edges_{name}").metrics for name in ("pos", "entities", "dpr", "spr2")} == {("micro_f1",)}


def test_a_target_may_have_one_span_several_labels_or_none(tmp_path):
    several = [{"span1": [0, 1], "label": ["aware", "moved", "aware"]}, {"span1": [0, 4], "label": []}]
    publish_all(tmp_path, several, several, [{"span1": [0, 1]}])
    data = load_task(edge_probing("own", **FILES, spans=1), {"directory": str(tmp_path)})
    (train,), (test,) = data.examples["train"], data.examples["test"]
    assert data.labels == ("aware", "moved") and train.label == ((0, 1), ()) and train.spans == (((0, 1),), ((0, 4),))
    assert test.label is None, "a test file may hide its labels"


FILES = {split: f"{short}.edges.json" for split, short in (("train", "train"), ("valid", "dev"), ("test", "test"))}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"span1": [1, 2], "label": "A"}, r":2: target 1: 'span2' is missing, or its type is not list"),
        ({"span1": [1, 1], "span2": [0, 1], "label": "A"}, r":2: target 1: span1 is \[1, 1\], but must be \[i, j\] .* <= 5"),
        ({"span1": [0, 6], "span2": [0, 1], "label": "A"}, r":2: target 1: span1 is \[0, 6\]"),
        ({"span1": [-1, 1], "span2": [0, 1], "label": "A"}, r":2: target 1: span1 is \[-1, 1\]"),
        ({"span1": [0, 1, 2], "span2": [0, 1], "label": "A"}, r":2: target 1: span1 is"),
        ({"span1": [0, 1], "span2": [0, "1"], "label": "A"}, r":2: target 1: span2 is"),
        ({"span1": [0, 1], "span2": [0, 1]}, r":2: target 1: 'label' must be a text or a list of texts"),
        ({"span1": [0, 1], "span2": [0, 1], "label": [1]}, r":2: target 1: 'label' must be a text or a list of texts"),
        ("A", r":2: target 1: 'span1' is missing"),
    ],
)
def test_what_is_wrong_is_said_with_its_target(tmp_path, target, message):
    options = publish(tmp_path, more=[{"text": TEXT, "targets": [target]}])
    with pytest.raises(UserError, match=message):
        load_task(edge_probing("own", train="train.edges.json"), options)


def test_a_label_that_was_not_named_is_said_with_its_target(tmp_path):
    publish_all(tmp_path, ROLES, ROLES, ROLES)
    (tmp_path / "dev.edges.json").write_text("{")
    with pytest.raises(UserError, match=r"dev\.edges\.json:1: not valid JSON"):
        load_task(find_task("edges_srl"), {"directory": str(tmp_path)})


@pytest.mark.usefixtures("quick_compilation")
def test_a_probe_learns_which_word_a_span_holds_and_scores_each_target_once(bert_run, tmp_path):
    colours, lines = ("red", "green", "blue"), []
    for number in range(60):
        words = [colours[(number + k) % 3] for k in range(3)]
        targets = [{"span1": [2 * k, 2 * k + 2], "span2": [0, 6], "label": words[k]} for k in range(3)]
        lines.append({"text": " ".join(f"{word} x" for word in words), "targets": targets[: 1 + number % 3]})
    for split, part in (("train", lines), ("dev", lines[:12]), ("test", lines[12:24])):
        text = "".join(json.dumps(line) + "\n" for line in part)
        (tmp_path / f"{split}.edges.json").write_text(text)
    settings = {"task_data.directory": str(tmp_path), "train.steps": 60, "data.seq_len": 24, "train.eval_every": 60}
    settings |= {"data.batch_size": 12, "mesh.data": 1, "head.projection": 24, "optimizer.learning_rate": 0.01}
    result = finetune(bert_run, "edges_dpr", tmp_path / "run", settings, recipe="probe")
    assert result["metrics"]["test"]["edges_dpr/micro_f1"] > 0.9
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["objectives"]["edges_dpr"]["layers"] == "scalar_mix" and config["optimizer"]["frozen"] == "^body/"
    predicted = [json.loads(line) for line in (tmp_path / "run/predictions/test.jsonl").read_text().splitlines()]
    assert [len(line["predicted"]) for line in predicted] == [len(line["targets"]) for line in lines[12:24]]
    assert [line["gold"] for line in predicted] == [[[of["label"]] for of in line["targets"]] for line in lines[12:24]]
