"""One's own tasks, options, and which examples train, select and are reported."""

import collections
import itertools

import pytest

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.tasks import (
    TASK_DATA,
    find_task,
    labelled_folders,
    load_task,
    load_tasks,
    table,
)
from bertlab.transfer.tasks.base import MOST_VALID, control_task, divide, draw, hold_out


def examples(texts):
    return [Example(str(i), f"f:{i}", (text,), 0) for i, text in enumerate(texts)]


def sizes(divided):
    return {split: len(found) for split, found in divided.items()}


def test_published_splits_stay_and_others_are_held_out_of_train():
    train, dev, test = examples(map(str, range(100))), examples("xyz"), examples("f")
    for dev_is in ("test", "valid"):
        whole = {"train": train, "valid": dev, "test": test}
        assert divide(whole, {**TASK_DATA, "dev": dev_is}) == whole
    # A development set without a test set is reported, and selects only where that is asked for.
    divided = divide({"train": train, "valid": dev}, TASK_DATA)
    assert divided["test"] == dev and sizes(divided) == {"train": 90, "valid": 10, "test": 3}
    divided = divide({"train": train, "valid": dev}, {**TASK_DATA, "dev": "valid"})
    assert divided == {"train": train, "valid": dev, "test": dev}
    options = {**TASK_DATA, "valid_fraction": 0.2, "test_fraction": 0.3}
    divided = divide({"train": train}, options)
    assert sizes(divided) == {"train": 50, "valid": 20, "test": 30}
    assert sorted(itertools.chain(*divided.values()), key=lambda one: int(one.id)) == train
    redrawn = divide({"train": train}, {**options, "seed": 1})
    assert redrawn["test"] == divided["test"] and redrawn["valid"] != divided["valid"]
    other = divide({"train": train}, {**options, "valid_fraction": 0.1})
    assert other["test"] == divided["test"]
    many = {"train": examples(map(str, range(30_000))), "test": test}
    assert len(divide(many, TASK_DATA)["valid"]) == MOST_VALID


def test_a_control_task_gives_each_word_type_a_tag_of_train():
    words = [(str(i % 500), str(i * i % 500)) for i in range(2000)]
    train = [
        Example(str(i), "f:1", words=some, label=("N", "VNNN"[i % 4]))
        for i, some in enumerate(words)
    ]
    published = {"train": train, "test": train[:5]}
    tags = collections.defaultdict(set)
    for one in itertools.chain(*control_task(published, seed=1).values()):
        for word, tag in zip(one.words, one.label, strict=True):
            tags[word].add(tag)
    assert all(len(found) == 1 for found in tags.values())
    share = sum(found == {"V"} for found in tags.values()) / len(tags)
    assert abs(share - 1 / 8) < 0.06
    assert control_task(published, seed=2) != control_task(published, seed=1)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        (lambda i: {"texts": (f"{('a', 'A ', ' a')[i % 3]} {i // 6}",)}, lambda e: e.texts[0][-3:]),
        (lambda i: {"words": ("w", str(i // 6)), "label": (0, 0)}, lambda e: e.words),
        (
            lambda i: {"texts": (f"q {i}", f"c {i // 6}"), "answers": (Answer("c", 0),)},
            lambda e: e.texts[1],
        ),
        (lambda i: {"texts": (f"premise {i // 6}", f"{i}"), "label": 0}, lambda e: e.texts[0]),
        (lambda i: {"texts": ("",), "choices": (f"{i // 6}", "b")}, lambda e: e.choices),
        # First texts cannot separate pairs where each has nearly half of train.
        (
            lambda i: {"texts": (f"{'Is' if i % 2 else 'Why'}?", f"{i // 6}"), "label": 0},
            lambda e: e.texts,
        ),
    ],
)
def test_equal_texts_are_in_one_split(fields, key):
    train = [Example(str(i), "f:1", **fields(i)) for i in range(120)]
    options = {**TASK_DATA, "valid_fraction": 0.3, "test_fraction": 0.3}
    found = collections.defaultdict(set)
    for split, part in divide({"train": train}, options).items():
        assert part
        for example in part:
            found[key(example)].add(split)
    assert all(len(splits) == 1 for splits in found.values())


def test_a_swapped_pair_is_in_the_split_of_its_pair():
    pairs = [(f"s{i}", f"t{i}") for i in range(100)]
    both = [*pairs, *(pair[::-1] for pair in pairs)]
    train = [Example(str(i), "f:1", texts, 0) for i, texts in enumerate(both)]
    rest, held_out = hold_out(train, 20, (0, 1), symmetric=True)
    found = [{frozenset(example.texts) for example in side} for side in (rest, held_out)]
    assert not found[0] & found[1] and 20 <= len(held_out) <= 40


def test_few_different_texts():
    with pytest.raises(UserError, match="f:0: train has only one text"):
        divide({"train": examples(["a", "A "]), "test": examples("x")}, TASK_DATA)
    # A text that most examples have stays in train.
    for seed in range(10):
        train = examples(f"s{min(i, 10)}" for i in range(100))
        assert len(hold_out(train, 5, (seed, 1))[1]) == 5


def test_smaller_limits_draw_subsets_in_the_order_of_the_file():
    train = [Example(str(i), "f:1", label=int(i < 800)) for i in range(1000)]
    drawn = {limit: draw(train, limit, 5) for limit in (10, 100, 200, 1000, 0)}
    assert [len(part) for part in drawn.values()] == [10, 100, 200, 1000, 1000]
    numbers = {limit: [int(example.id) for example in part] for limit, part in drawn.items()}
    assert all(found == sorted(set(found)) for found in numbers.values())
    assert set(numbers[10]) < set(numbers[100]) < set(numbers[200])
    assert 140 < sum(example.label for example in drawn[200]) < 180  # mean 160, deviation 5
    assert draw(train, 10, 6) != drawn[10]


OWN = """from bertlab.transfer.tasks import table
TASK = table("reviews", train="train.tsv", valid="dev.tsv", text="review", label="stars")
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    rows = "".join(f"text {i}\t{i % 2}\n" for i in range(20))
    (tmp_path / "train.tsv").write_text("review\tstars\n" + rows)
    (tmp_path / "dev.tsv").write_text("review\tstars\na\t0\nb\t1\n")
    return tmp_path


def test_ones_own_task_finds_its_files_beside_it(own):
    task = find_task(str(own / "own.py"))
    assert (task.name, task.kind) == ("reviews", "classification")
    assert task.metrics == ("accuracy", "macro_f1")
    data = load_task(task, {})
    assert sizes(data.examples) == {"train": 18, "valid": 2, "test": 2}
    limited = load_task(task, {"limit": 5}).examples
    assert sizes(limited) == {"train": 5, "valid": 2, "test": 2}
    (own / "second.py").write_text(OWN.replace("reviews", "second"))
    names = f"{own}/own.py+{own}/second.py"
    assert list(load_tasks(names, {"directory": f"+{own}"})) == ["reviews", "second"]
    with pytest.raises(UserError, match="names 3 folders for "):
        load_tasks(names, {"directory": "a+b+c"})


def test_ones_own_tables_and_folders(tmp_path):
    options = {"directory": str(tmp_path), "dev": "valid"}
    (tmp_path / "b.jsonl").write_text('{"t": "text", "u": 1, "y": true, "more": [1]}\n')
    json_lines = table("own", ("u", "t"), "y", train="b.jsonl", valid="b.jsonl")
    data = load_task(json_lines, options)
    assert data.examples["test"][0].texts == ("1 text",) and data.labels == ("true",)
    for split, label, i in itertools.product("cd", ("no", "yes"), range(3)):
        path = tmp_path / split / label / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{label} {i}")
    folders = labelled_folders("own", ("no", "yes"), train="c/", test="d/")
    found = load_task(folders, options).examples["test"]
    assert [(one.texts[0], one.label) for one in found[2:4]] == [("no 2", 0), ("yes 0", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dev": "train"}, "config.task_data.dev='train'"),
        ({"directory": "/none/such"}, "/none/such: task 'mr' looks for"),
        ({}, "config.task_data.directory must be the folder of task 'mr'"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        load_task(find_task("mr"), options)


def test_tasks_that_are_refused(own):
    (own / "none.py").write_text("TASKS = ()\n")
    for name in ("sst-2", str(own / "none.py"), str(own / "missing.py")):
        with pytest.raises(
            UserError,
            match=r"config.task='sst-2' .*sst2|none\.py: .*no TASK|missing\.py is neither here",
        ):
            find_task(name)
    for changes, message in (
        ({"metrics": "acuracy"}, "metric='acuracy' is not one of accuracy"),
        ({"kind": "own:KIND", "metrics": ()}, "has no metrics: kind='own:KIND'"),
    ):
        with pytest.raises(UserError, match=message):
            table(**{"name": "own", "train": "a.tsv", "text": "t", "label": "y", **changes})
    (own / "train.tsv").write_text("t\ty\n" + "".join(f"t {i}\t{'pqr'[i % 3]}\n" for i in range(9)))
    options = {"directory": str(own)}
    with pytest.raises(UserError, match="f1 is for two classes, found 3"):
        load_task(table("own", "t", "y", train="train.tsv", metrics="f1"), options)
    with pytest.raises(UserError, match=r"looks for \*\.tsv and finds dev.tsv, train.tsv"):
        load_task(table("own", "t", "y", train="*.tsv"), options)
