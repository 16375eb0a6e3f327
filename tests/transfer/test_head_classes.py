"""A head of another run goes on with the classes that it has learned, whatever their order in the new task."""

import json

import numpy as np
import pytest

from bertlab.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")

WORDS = {"animal": ["dog", "cow"], "colour": ["red", "blue"], "number": ["two", "nine"]}  # by the class of each
ORDER, ROTATED = ("animal", "colour", "number"), ("number", "animal", "colour")  # not each other's inverse


def lines(count):
    """(word, class) of each word of a sentence."""
    for i in range(count):
        yield [(WORDS[of][(i + at) % 2], of) for at, of in enumerate(np.roll(ORDER, i)[: 1 + i % 3].tolist())]


def write_task(folder, name, classes, tags=False):
    """A task whose texts have the class of their first word, or whose words have their own; returns its file."""
    folder.mkdir(exist_ok=True)
    for split, count in {"train": 40, "valid": 6, "test": 12}.items():
        if tags:
            text = "\n".join("".join(f"{word} {of}\n" for word, of in line) for line in lines(count))
        else:
            rows = (f"{' '.join(word for word, _ in line)}\t{line[0][1]}\n" for line in lines(count))
            text = "text\tlabel\n" + "".join(rows)
        (folder / f"{split}.txt").write_text(text)
    files = ", ".join(f'{split}="{split}.txt"' for split in ("train", "valid", "test"))
    if tags:
        made = f"conll({name!r}, {files}, label_names={classes}, metrics=('accuracy',))"
    else:
        made = f"table({name!r}, {files}, text='text', label='label', label_names={classes})"
    (folder / f"{name}.py").write_text(f"from bertlab.transfer.tasks import conll, table\n\nTASK = {made}\n")
    return folder / f"{name}.py"


def finetune(run, task, workdir, *more, rate=0.05, steps=12):
    """The test predictions of a fine-tuning; None if it is refused."""
    settings = {"data.seq_len": 16, "mesh.data": 1, "optimizer.learning_rate": rate, "optimizer.warmup_steps": 0}
    settings |= {"train.steps": steps, "train.eval_every": 0}
    given = [f"--config.{name}={value}" for name, value in settings.items()]
    if main(["finetune", f"--run={run}", f"--task={task}", f"--workdir={workdir}", *given, *more]):
        return None
    return [json.loads(line) for line in (workdir / "predictions" / "test.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "setting"), [("first", "dropout=0.0"), ("again", "blocks=8"), ("again", "crf=True")])
def test_a_head_says_the_same_of_classes_in_another_order(name, setting, bert_run, tmp_path):
    tags = setting == "crf=True"
    task = write_task(tmp_path / "data", "first", ORDER, tags)
    before = finetune(bert_run, task, tmp_path / "run", f"--config.objectives.first.{setting}")
    again = write_task(tmp_path / "rotated", name, ROTATED, tags)
    more = [f"--config.objectives.{name}.{setting}", *(["--config.transfer.head=first"] if name != "first" else [])]
    after = finetune(tmp_path / "run", again, tmp_path / "again", *more, rate=1e-9, steps=1)
    assert [line["predicted"] for line in after] == [line["predicted"] for line in before]
    for one, other in zip(before, after, strict=True):
        by_name = np.array(other["probabilities"])[..., [ROTATED.index(of) for of in ORDER]]
        np.testing.assert_allclose(by_name, one["probabilities"], atol=2e-4)
    flat = np.concatenate([np.reshape(line["probabilities"], (-1, 3)) for line in before])
    assert np.ptp(flat, axis=1).max() > 0.05, "the classes differ"


def test_a_head_of_other_classes_is_refused_where_it_is_named_and_else_replaced(bert_run, tmp_path, capsys):
    task = write_task(tmp_path / "data", "first", ORDER)
    before = finetune(bert_run, task, tmp_path / "run")
    other = write_task(tmp_path / "other", "first", ("animal", "colour", "verb"))
    for file in other.parent.glob("*.txt"):
        file.write_text(file.read_text().replace("number", "verb"))
    capsys.readouterr()
    after = finetune(tmp_path / "run", other, tmp_path / "again", steps=1, rate=1e-9)
    by_number = [line["predicted"].replace("number", "verb") for line in before]
    assert [line["predicted"] for line in after] != by_number, "a new head does not begin with the old one's draws"
    differ, said = "are animal, colour, number, and those of task 'first' are animal, colour, verb", capsys.readouterr().out
    assert f"{differ}; the task begins with a new head" in said and "newly initialized: heads_first/" in said
    named = "--config.transfer.head=first"
    assert finetune(tmp_path / "run", other, tmp_path / "named", named, steps=1) is None
    assert differ in capsys.readouterr().err
    # A run of an earlier version does not say which classes it has.
    for name in ("classes.json", "files.json"):
        (tmp_path / "run" / name).unlink()
    assert finetune(tmp_path / "run", task, tmp_path / "named", named, steps=1) is None
    assert "are unknown (an older version wrote it)" in capsys.readouterr().err
