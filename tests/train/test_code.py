"""The code of objectives from outside is part of a run: its digest is recorded, and training does not go on with other code."""

import importlib
import sys

import pytest

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.train import loop
from bertlab.train.code import code_of, other_code, require_same_code
from tests.conftest import ROOT
from tests.objectives.test_own_objective import SOURCE

NAME = "code_mine:Own"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A function: file contents by name -> the config that uses code_mine.py, imported anew, as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.modules.pop("code_mine", None)
        return load_config(f"{ROOT}/experiments/pretrain/bert.py:objectives={NAME}")

    yield write
    for name in ("code_mine", "code_helper", "code_deeper"):
        sys.modules.pop(name, None)


def test_the_digest_is_of_the_file_and_of_what_it_imports_from_its_folder(mine):
    helped = "from code_helper import RATE\n" + SOURCE
    first = code_of(mine(code_mine=helped, code_helper="import code_deeper\nRATE = 1\n", code_deeper="", code_other="A = 1\n"))
    assert [*first] == [NAME]
    assert code_of(mine()) == first and code_of(mine(code_other="A = 2\n")) == first
    digests = {first[NAME]}
    for change in ({"code_mine": helped + "\n"}, {"code_helper": "import code_deeper\nRATE = 2\n"}, {"code_deeper": "B = 1\n"}):
        digests |= set(code_of(mine(**change)).values())
    assert len(digests) == 4
    assert code_of(load_config(f"{ROOT}/experiments/pretrain/bert.py")) == {}, "bertlab's own are known by its version"


def test_a_process_that_goes_on_with_old_code_records_the_old(mine, tmp_path):
    config = mine(code_mine=SOURCE)
    first = code_of(config)
    (tmp_path / "code_mine.py").write_text(SOURCE + "\n")
    assert code_of(config) == first, "the class is still the one that was imported"


def test_only_a_run_that_has_trained_something_needs_the_same_code(mine, tmp_path):
    run, config = Run(tmp_path / "run"), mine(code_mine=SOURCE)
    run.begin(config.to_dict())
    run.environment.write({"code": code_of(config)})
    (run.checkpoints / "2").mkdir(parents=True)
    assert loop.finished(config, run.directory) is None
    changed = mine(code_mine=SOURCE + "\n")
    assert other_code(run, code_of(changed)) == [NAME]
    with pytest.raises(UserError) as refused:
        loop.finished(changed, run.directory)
    assert str(tmp_path / "code_mine.py") in str(refused.value) and str(run) in str(refused.value)
    run.environment.write({"python": "3.12"})  # of an earlier version
    assert loop.finished(changed, run.directory) is None
    run.environment.write({"code": code_of(config) | {NAME: "other"}})
    (run.checkpoints / "2").rmdir()
    assert loop.finished(changed, run.directory) is None, "it failed before it trained, so its mistake may be corrected"


def test_the_code_of_an_own_task_is_its_file(tmp_path):
    config = load_config(f"{ROOT}/experiments/pretrain/bert.py")
    with config.unlocked():
        config.task = f"sst2+{tmp_path / 'task.py'}"
    (tmp_path / "task.py").write_text("TASK = 1\n")
    before = code_of(config)
    assert [*before] == [str(tmp_path / "task.py")]
    (tmp_path / "task.py").write_text("TASK = 2\n")
    run = Run(tmp_path / "run")
    run.environment.write({"code": before})
    with pytest.raises(UserError, match=r"task\.py"):
        require_same_code(run, config)
