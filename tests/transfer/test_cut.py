"""What did not fit into rows: it has no part in a score but as wrong, and is counted, in result.json and on the terminal."""

import json

import pytest
from sklearn.metrics import accuracy_score, f1_score

import bertlab
from bertlab.cli import main
from tests.transfer.runs import fresh_run

pytestmark = pytest.mark.usefixtures("quick_compilation")

FEW = "--config.train.steps=0", "--config.data.batch_size=8", "--config.mesh.data=1"


def task(folder, name, function, files, **arguments):
    """The FILE.py of a task of one's own, after its data files are written."""
    for file, content in files.items():
        (folder / file).write_text(content)
    given = "".join(f", {key}={value!r}" for key, value in arguments.items())
    own = f'from bertlab.transfer.tasks import {function}\n\nTASK = {function}("{name}"{given})\n'
    (folder / f"{name}.py").write_text(own)
    return f"{folder / name}.py"


def rows(header, *lines):
    return "\n".join("\t".join(line) for line in (header, *lines)) + "\n"


def finetuned(run, tasks, workdir, *options):
    assert main(["finetune", f"--run={run}", f"--task={tasks}", f"--workdir={workdir}", *FEW, *options]) == 0
    return json.loads((workdir / "result.json").read_text())


def tagged(size, most, other):
    """A sentence and its tags: words of one piece each, of which every third has the other tag."""
    is_other = [i % 3 == 2 for i in range(size)]
    return " ".join("of" if one else "the" for one in is_other), " ".join(other if one else most for one in is_other)


def tagging(folder, name, most, other, *metrics):
    """A task of 12 sentences that do not fit into 16 positions, and 6 that do."""
    short, fits, long = ([tagged(size, most, other)] for size in (9, 14, 30))
    sentences = {"train": short * 16, "valid": short * 2, "test": [*fits * 6, *long * 12]}
    files = {f"{name}-{split}.tsv": rows(("words", "tags"), *of) for split, of in sentences.items()}
    where = {split: f"{name}-{split}.tsv" for split in sentences}
    return task(folder, name, "table", files, **where, text="words", label="tags", kind="tagging", metrics=metrics)


def test_a_word_that_did_not_fit_is_wrong_and_of_no_class(bert_run, tmp_path, capsys):
    names = {"pos": ("NOUN", "VERB"), "ner": ("O", "B-X")}
    pos = tagging(tmp_path, "pos", *names["pos"], "macro_f1")
    ner = tagging(tmp_path, "ner", *names["ner"], "macro_f1", "entity_f1")
    result = finetuned(bert_run, f"{pos}+{ner}", tmp_path / "out", "--config.data.seq_len=16")
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions" / "test.jsonl").read_text().splitlines()]
    scores = result["metrics"]["test"]
    for name, tags in names.items():
        of_task = [line for line in lines if line["task"] == name]
        gold = [tag for line in of_task for tag in line["gold"]]
        # [CLS], 14 words and [SEP].
        read = [[*line["predicted"][:14], *["not read"] * (len(line["gold"]) - 14)] for line in of_task]
        predicted = [tag for line in read for tag in line]
        assert {*predicted} <= {*tags, "not read"}
        assert scores[f"{name}/accuracy"] == pytest.approx(accuracy_score(gold, predicted)), "of all words"
        of_classes = f1_score(gold, predicted, labels=tags, average="macro", zero_division=0)
        assert scores[f"{name}/macro_f1"] == pytest.approx(of_classes)
        assert result["cut"]["test"][name] == {"examples": 12, "of_examples": 18, "words": 192, "of_words": 444}
        assert result["cut"]["train"][name] == {"examples": 0, "of_examples": 16, "words": 0, "of_words": 144}
    # Each B-X is an entity.
    assert scores["ner/entity_f1"] == pytest.approx(f1_score(gold, predicted, labels=["B-X"], average="micro", zero_division=0))
    said = capsys.readouterr().out
    assert said.count("test: 12 of 18 examples (67%), 192 of 444 words (43%)") == 2 and "train: " not in said


def the(size):
    return " ".join(["the"] * size)


def every_split(folder, name, function, suffix, content, **arguments):
    """A task with the same examples in every split."""
    splits = {split: f"{name}-{split}.{suffix}" for split in ("train", "valid", "test")}
    return task(folder, name, function, dict.fromkeys(splits.values(), content), **splits, **arguments)


def questions(*answers):
    """Questions of 6 words on a context of 20, with answers from one word to another."""
    context = the(20)
    asked = [
        {"id": str(i), "question": the(6), "answers": [{"text": the(end - first), "answer_start": 4 * first}]}
        for i, (first, end) in enumerate(answers)
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]})


def counts(**of):
    return {f"{prefix}{unit}": count for unit, both in of.items() for prefix, count in zip(("", "of_"), both)}


def test_every_kind_counts_what_did_not_fit(bert_run, tmp_path, capsys):
    """16 positions: 14 words of a text, 13 of a pair."""
    texts = [(the(14), the(10), the(3), "0"), (the(20), the(10), the(3), "1")] * 4
    table = rows(("text", "first", "second", "label"), *texts)
    targets = [{"span1": span, "label": label} for span, label in (([0, 1], "a"), ([13, 15], "b"), ([14, 15], "a"))]
    sentence, choices = {"text": the(20), "targets": targets}, ("text", "second")
    tasks = (
        every_split(tmp_path, "text", "table", "tsv", table, text="text", label="label"),
        every_split(tmp_path, "pair", "table", "tsv", table, text="first", pair="text", label="label"),
        every_split(tmp_path, "number", "table", "tsv", table, text="text", label="label", kind="regression"),
        every_split(tmp_path, "choice", "multiple_choice", "tsv", table, text="first", choices=choices, label="label"),
        every_split(tmp_path, "word", "word_in_context", "data.txt", f"of\tN\t9-0\t{the(9)} of\tof {the(9)}\n" * 8),
        every_split(tmp_path, "spans", "edge_probing", "jsonl", f"{json.dumps(sentence)}\n" * 8, spans=1),
        every_split(tmp_path, "squad", "squad", "json", questions((8, 10), (12, 13), (0, 1))),
    )
    for split in ("train", "valid", "test"):
        (tmp_path / f"word-{split}.gold.txt").write_text("T\nF\n" * 4)
    result = finetuned(bert_run, "+".join(tasks), tmp_path / "out", "--config.data.seq_len=16", "--config.transfer.max_query=4")
    assert result["cut"]["train"] == result["cut"]["valid"] == result["cut"]["test"]
    assert result["cut"]["test"] == {
        "text": counts(examples=(4, 8), pieces=(4 * 6, 4 * (14 + 20))),
        "pair": counts(examples=(8, 8), pieces=(4 * (24 + 30) - 8 * 13, 4 * (24 + 30))),
        "number": counts(examples=(4, 8), pieces=(4 * 6, 4 * (14 + 20))),
        "choice": counts(examples=(8, 8), pieces=(4 * (24 + 30) - 8 * 13, 4 * (24 + 30 + 13 + 13))),
        "word": counts(examples=(8, 8), pieces=(8 * 7, 8 * 20), targets=(8, 16)),
        "spans": counts(examples=(8, 8), words=(8 * 6, 8 * 20), targets=(8, 8 * 3)),
        # Windows of 9 words do not overlap here: from 0 to 9, 9 to 18 and 18 to 20.
        "squad": counts(examples=(3, 3), pieces=(3 * 2, 3 * 26), answers=(1, 3)),
    }
    assert "squad, what did not fit into rows: train: 3 of 3 examples (100%), 6 of 78 pieces (8%), 1 of 3 answers (33%);" in (
        capsys.readouterr().out
    )


def test_stored_states_and_answers_without_training_count_it_too(bert_run, small_config, tmp_path, capsys):
    table = rows(("text", "label"), *[(the(14), "0"), (the(600), "1")] * 4)
    own = every_split(tmp_path, "text", "table", "tsv", table, text="text", label="label")
    stored = finetuned(bert_run, own, tmp_path / "stored", "--recipe=stored", "--config.data.seq_len=16")
    assert stored["cut"]["test"]["text"] == counts(examples=(4, 8), pieces=(4 * 586, 4 * 614))
    run = fresh_run(small_config("gpt"), tmp_path / "run")
    asked = finetuned(run, own, tmp_path / "asked", "--recipe=zero_shot")
    model = bertlab.load(run)
    [size] = model.lengths([the(600)])
    assert asked["cut"]["test"]["text"] == counts(examples=(4, 8), pieces=(4 * (size - model.longest), 4 * 614))
    assert capsys.readouterr().out.count("text, what did not fit into rows: ") == 2
