"""Labels of the downstream tasks, and their split by document."""

import pytest

from bertlab.config import base_config
from bertlab.data.prepare import split_of
from bertlab.errors import UserError
from bertlab.transfer import tasks
from bertlab.transfer.tasks import TASKS, Task, find_task, load_task, spread, unmark


@pytest.mark.parametrize(
    ("sentence", "words", "labels"),
    [
        ("Return ``None`` now.", ["Return", "None", "now."], [0, 1, 0]),
        ("Call `f(x, y)`, then stop.", ["Call", "f(x,", "y),", "then", "stop."], [0, 1, 1, 0, 0]),
        ("No marks at all.", ["No", "marks", "at", "all."], [0, 0, 0, 0]),
        ("``a`` and `b`", ["a", "and", "b"], [1, 0, 1]),
        ("the (`x`)-axis", ["the", "(x)-axis"], [0, 1]),
        ("one `mark is open", ["one", "`mark", "is", "open"], [0, 0, 0, 0]),
        ("``a`b`` ends", ["a`b", "ends"], [1, 0]),
    ],
)
def test_unmark(sentence, words, labels):
    assert unmark(sentence) == (words, labels)


def test_spread_takes_evenly():
    assert spread(list(range(10)), 5) == [0, 2, 4, 6, 8]
    assert spread([1, 2], 5) == [1, 2]
    assert len(set(spread(list(range(1003)), 1000))) == 1000


@pytest.fixture
def stub_task(monkeypatch):
    """A task whose words are the document's id, and the number of times it was collected."""
    monkeypatch.setattr(tasks.PydocsCorpus, "fingerprint", lambda self: "stub")
    collected = []

    def collect():
        collected.append(1)
        return ["even", "odd"], [(f"document {i}", ["document", str(i)], i % 2) for i in range(300)]

    return Task("stub", "sentence", "accuracy", collect), collected


def data_config(directory, **changes):
    data = base_config().data
    data.update({"directory": str(directory), "valid_fraction": 0.2, "test_fraction": 0.1, **changes})
    return data


def test_a_document_is_in_the_split_that_pretraining_gave_it(stub_task, tmp_path):
    task, collected = stub_task
    loaded = load_task(task, data_config(tmp_path))
    assert loaded.labels == ("even", "odd")
    assert sum(map(len, loaded.examples.values())) == 300
    for split, examples in loaded.examples.items():
        assert examples
        for words, label in examples:
            assert split_of(" ".join(words), 0.2, 0.1) == split
            assert label == int(words[1]) % 2
    assert load_task(task, data_config(tmp_path)).examples == loaded.examples and len(collected) == 1, "kept"
    other = load_task(task, data_config(tmp_path, test_fraction=0.4))
    assert len(other.examples["test"]) > len(loaded.examples["test"]) and len(collected) == 2


def test_a_split_without_examples_is_refused_and_nothing_is_kept(stub_task, tmp_path):
    for _ in range(2):
        with pytest.raises(UserError, match=r"task 'stub' has no test examples; raise config.data.test_fraction"):
            load_task(stub_task[0], data_config(tmp_path, test_fraction=0.0))


def test_tasks_have_names_that_find_them():
    assert all(find_task(name).name == name for name in TASKS)
    assert {task.kind for task in TASKS.values()} == {"sentence", "token"}
    with pytest.raises(UserError, match=r"task 'glue' is not known; choose one of package, code_spans"):
        find_task("glue")
