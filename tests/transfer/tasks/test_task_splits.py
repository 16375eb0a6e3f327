"""The registry, a user's own task, options, finding files, and which examples select and which are reported."""

import collections
import itertools

import pytest

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.kinds import KINDS, Classification
from bertlab.transfer.tasks import OPTIONS, TASKS, find_task, load_task, table
from bertlab.transfer.tasks.assemble import MOST_VALID, divide, draw, hold_out


def examples(texts, **fields):
    return [Example(id=str(i), where=f"f:{i}", texts=(text,), label=0, **fields) for i, text in enumerate(texts)]


def test_published_splits_are_used_and_missing_ones_are_held_out_of_train():
    train, dev, test = examples(f"{i}" for i in range(100)), examples("xyz"), examples("f")
    for select in ("test", "valid"):
        whole = {"train": train, "valid": dev, "test": test}
        assert divide(whole, {**OPTIONS, "dev": select}) == whole
    # A development set without a test set is reported, and does not select unless it is told to.
    divided = divide({"train": train, "valid": dev}, OPTIONS)
    assert divided["test"] == dev and [len(divided[split]) for split in ("train", "valid")] == [90, 10]
    assert divide({"train": train, "valid": dev}, {**OPTIONS, "dev": "valid"}) == {"train": train, "valid": dev, "test": dev}
    divided = divide({"train": train, "test": test}, {**OPTIONS, "valid_fraction": 0.2})
    assert divided["test"] == test and len(divided["valid"]) == 20
    options = {**OPTIONS, "valid_fraction": 0.2, "test_fraction": 0.3}
    divided = divide({"train": train}, options)
    assert [len(divided[split]) for split in ("train", "valid", "test")] == [50, 20, 30]
    assert sorted(itertools.chain(*divided.values()), key=lambda e: int(e.id)) == train
    assert divide({"train": train}, options) == divided
    assert divide({"train": train}, {**options, "seed": 1})["test"] != divided["test"]
    assert divide({"train": train}, {**options, "valid_fraction": 0.1})["test"] == divided["test"], "test is drawn first"


def test_every_task_goes_by_its_name_and_every_kind_has_one():
    assert all(find_task(name).name == name for name in TASKS)
    assert {type(task.kind) for task in TASKS.values()} == set(KINDS.values())


def test_held_out_examples_are_one_at_least_and_2000_at_most():
    rest, held = hold_out(examples("abc"), 0, (0, 0))
    assert len(rest) == 2 and len(held) == 1
    divided = divide({"train": examples(str(i) for i in range(30_000)), "test": examples("x")}, OPTIONS)
    assert len(divided["valid"]) == MOST_VALID == 2000 and len(divided["train"]) == 28_000


def sides(train, key, **options):
    """How many splits each key is in."""
    found = collections.defaultdict(set)
    divided = divide({"train": train}, {**OPTIONS, "valid_fraction": 0.3, "test_fraction": 0.3, **options})
    for split, part in divided.items():
        assert part
        for example in part:
            found[key(example)].add(split)
    return {len(splits) for splits in found.values()}


def test_equal_texts_are_on_one_side():
    for fields, key in (
        (lambda i: {"texts": (f"{('text', 'Text ', ' text')[i % 3]} {i // 6}",), "label": 0}, lambda e: e.texts[0].split()[-1]),
        (lambda i: {"words": ("w", str(i // 6)), "label": (0, 0)}, lambda e: e.words),
        (lambda i: {"texts": (f"q {i}", f"c {i // 6}"), "answers": (Answer("c", 0),)}, lambda e: e.texts[1]),
        (lambda i: {"texts": (f"premise {i // 6}", f"{i}"), "label": 0}, lambda e: e.texts[0]),
        (lambda i: {"texts": ("",), "choices": (f"{i // 6}", "b"), "label": 0}, lambda e: e.choices),
        # Equal first texts cannot tell pairs apart where they are nearly all of train.
        (lambda i: {"texts": (f"{'Is' if i % 2 else 'Why'}?", f"{i // 6}"), "label": 0}, lambda e: e.texts),
    ):
        train = [Example(str(i), "f:1", **fields(i)) for i in range(120)]
        assert sides(train, key) == {1}
    assert [len(part) for part in divide({"train": train}, OPTIONS).values()] == [96, 12, 12]


def test_too_few_different_texts_to_hold_out():
    with pytest.raises(UserError, match=r"f:0: train has too few different texts \(1\) to hold out any; give more"):
        divide({"train": examples(["a", "A "]), "test": examples("x")}, OPTIONS)
    with pytest.raises(UserError, match=r"f:0: train has too few different texts \(2\) to hold out both valid and test"):
        divide({"train": examples("aabb")}, OPTIONS)
    # What is held out first leaves something for the second: two of the three may be drawn here.
    for seed in range(20):
        options = {**OPTIONS, "test_fraction": 0.4, "seed": seed}
        assert all(divide({"train": examples("aaaaaaaabc")}, options).values())


def test_low_shot_examples_are_nested_in_file_order_and_drawn_as_the_classes_are():
    train = [Example(str(i), "f:1", label=int(i < 800)) for i in range(1000)]
    drawn = {limit: draw(train, limit, 5) for limit in (10, 100, 200, 1000, 0)}
    assert [len(part) for part in drawn.values()] == [10, 100, 200, 1000, 1000]
    for part in drawn.values():
        numbers = [int(example.id) for example in part]
        assert numbers == sorted(set(numbers))
    assert {e.id for e in drawn[10]} < {e.id for e in drawn[100]} < {e.id for e in drawn[200]}
    # 200 of 1000 without replacement: mean 160, standard deviation 5.
    assert 140 < sum(example.label for example in drawn[200]) < 180
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


def test_a_users_own_task_finds_its_files_beside_it(own, monkeypatch):
    task = find_task(str(own / "own.py"))
    assert (task.name, task.kind, task.metrics) == ("reviews", Classification(), ("accuracy", "macro_f1"))
    data = load_task(task, {})
    assert [len(data.examples[split]) for split in ("train", "valid", "test")] == [18, 2, 2]
    monkeypatch.chdir(own)
    assert load_task(find_task("own.py"), {}) == data
    assert len(load_task(task, {"limit": 5}).examples["train"]) == 5
    for split in ("valid", "test"):
        assert load_task(task, {"limit": 5}).examples[split] == data.examples[split]
    # Another folder with such files is read instead.
    (own / "other").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        (own / "other" / file).write_text((own / "dev.tsv").read_text())
    assert len(load_task(task, {"directory": str(own / "other"), "dev": "valid"}).examples["train"]) == 2


def test_tasks_that_are_not_there(own):
    (own / "own.py").write_text("TASKS = ()\n")
    for name, message in (
        ("sst-2", "task 'sst-2' is not known; .*sst2"),
        ("zzzzz", r"task 'zzzzz' is not known; .*cola, .*sentence_order; .*\.py"),
        (str(own / "none.py"), r"none\.py: "),
        (str(own / "own.py"), r"own\.py: .*TASK"),
    ):
        with pytest.raises(UserError, match=message):
            find_task(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN + "x = (\n", r"own\.py:3: running the file failed \(SyntaxError: '\(' was never closed\); correct it"),
        (OWN.replace("stars", 'stars", colour="blue'), r"own\.py:2: .*\(TypeError: table\(\) got .* argument 'colour'\)"),
        ("\nimport no_such_module\n", r"own\.py:2: .*\(ModuleNotFoundError: No module named 'no_such_module'\)"),
        (OWN.replace('"reviews"', '"my task"'), r"own\.py:2: task 'my task': the name must also serve as a directory"),
        (
            "from bertlab.transfer.kinds import Span\nfrom bertlab.transfer.tasks import *\n"
            "TASK = Task('x', Span(), ('f1',), None)\n",
            r"own\.py: task 'x': metric 'f1' does not fit kind 'span'",
        ),
    ],
)
def test_a_users_own_file_that_cannot_be_run(own, text, message):
    (own / "own.py").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        find_task(str(own / "own.py"))
    assert str(error.value).startswith(str(own)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: own_table(metrics=("acuracy",)), r"task 'own': metric 'acuracy' is not known; the nearest is accuracy"),
        (lambda: own_table(metrics="rouge"), r"metric 'rouge' is not known; choose from accuracy, f1, macro_f1, matthews"),
        (lambda: own_table(metrics=("accuracy", "entity_f1")), r"'entity_f1' does not fit kind 'classification'; choose"),
        (lambda: own_table(kind="pictures"), r"task 'own': .*'pictures'.*classification, regression, tagging"),
        (lambda: own_table(kind="span"), r"task 'own': .*'span'"),
        (lambda: own_table(label_names=("a", "b", "a")), r"task 'own': label_names has 'a' twice; name each class once"),
        (lambda: own_table("my.task"), r"task 'my\.task': the name must also serve as a directory and a config key"),
        (lambda: own_table("language_model"), r"task 'language_model': config.objectives uses this name"),
        (lambda: own_table(text="y"), r"task 'own': column 'y' is both a text and the label; name two columns"),
        (lambda: own_table(pair="y"), r"task 'own': column 'y' is both a text and the label"),
        (lambda: own_table(delimiter="||", quoted=True), r"task 'own': delimiter '\|\|' must be one character"),
        (lambda: own_table(delimiter='"', quoted=True), r"delimiter '\"' must be one character, but not a quote"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_when_it_is_made(make, message):
    with pytest.raises(UserError, match=message):
        make()


def own_table(name="own", **changes):
    return table(name, **{"train": "a.tsv", "text": "t", "label": "y", **changes})


def test_f1_is_of_two_classes(tmp_path):
    (tmp_path / "a.tsv").write_text("t\ty\n" + "".join(f"text {i}\t{'pqr'[i % 3]}\n" for i in range(9)))
    with pytest.raises(UserError, match=r"task 'own': metric 'f1' scores class 1 of two.* 3 \(p, q, r\); use macro_f1"):
        load_task(own_table(metrics="f1"), {"directory": str(tmp_path)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": 3}, r"config\.task_data\.limits is not known; choose one of directory, "),
        ({"limit": -1}, r"config\.task_data\.limit=-1 must be at least 0"),
        ({"seed": -1}, r"config\.task_data\.seed=-1 must be at least 0"),
        ({"valid_fraction": 0.0}, r"config\.task_data\.valid_fraction=0\.0 must be above 0 and below 0\.5"),
        ({"test_fraction": 1}, r"config\.task_data\.test_fraction=1 must be above 0"),
        ({"dev": "train"}, r"config\.task_data\.dev='train' .*test, valid"),
        ({"directory": "/none/such"}, r"config\.task_data\.directory=/none/such "),
        ({}, r"config\.task_data\.directory is empty; give the folder that holds task 'mr' \(rt-polarity\.all\)"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(UserError, match=message):
        load_task(find_task("mr"), options)


def test_files_are_found_by_name_or_pattern_or_as_an_option_says(own):
    several = table("own", train=("one.tsv", "tr*.tsv"), text="review", label="stars")
    options = {"directory": str(own)}
    assert "train.tsv:" in load_task(several, options).examples["train"][0].where
    (own / "trial.tsv").write_text((own / "dev.tsv").read_text())
    with pytest.raises(UserError, match=r"several files match tr\*\.tsv \(train\.tsv, trial\.tsv\); set one with .*train_file"):
        load_task(several, options)
    assert "train.tsv:" in load_task(several, options | {"train_file": "train.tsv"}).examples["train"][0].where
    assert "train.tsv:" in load_task(several, options | {"train_file": str(own / "train.tsv")}).examples["train"][0].where
    # A name that is exact comes before patterns, and an option adds a split that the task did not name.
    (own / "one.tsv").write_text((own / "train.tsv").read_text())
    found = load_task(several, options | {"test_file": "dev.tsv"}).examples
    assert "one.tsv:" in found["train"][0].where and [e.texts for e in found["test"]] == [("a",), ("b",)]
    (own / "one.tsv").unlink()
    (own / "train.tsv").unlink()
    (own / "trial.tsv").unlink()
    with pytest.raises(UserError, match=r"task 'own' found no file one\.tsv or tr\*\.tsv; .*train_file"):
        load_task(several, options)
    with pytest.raises(UserError, match=r"found no file /none"):
        load_task(several, options | {"train_file": "/none"})


def test_a_pair_without_an_order_is_on_the_side_of_the_same_pair_swapped():
    pairs = [(f"s{i}", f"t{i}") for i in range(100)]
    examples = [Example(str(i), "f:1", texts=texts, label=0) for i, texts in enumerate([*pairs, *(p[::-1] for p in pairs)])]
    train, held = hold_out(examples, 20, (0, 1), symmetric=True)
    sides = [{frozenset(example.texts) for example in side} for side in (train, held)]
    assert not sides[0] & sides[1] and 20 <= len(held) <= 40


def test_a_text_that_most_examples_have_is_not_held_out():
    examples = [Example(str(i), "f:1", texts=(f"s{min(i, 10)}",), label=0) for i in range(100)]
    for seed in range(10):
        train, held = hold_out(examples, 5, (seed, 1))
        assert len(held) == 5 and {"s10"} == {example.texts[0] for example in train} & {"s10"}
    # Where none is small enough, the smallest.
    examples = [Example(str(i), "f:1", texts=(f"s{i // 50}",), label=0) for i in range(90)]
    assert all(len(hold_out(examples, 5, (seed, 1))[1]) == 40 for seed in range(10))
