"""A run that was moved knows the run that it starts from again, and no other one."""

import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.train.loop import finished


def test_a_run_that_moved_with_the_one_it_starts_from_goes_on(tmp_path):
    there, here = tmp_path / "there" / "study", tmp_path / "here" / "study"
    config = base_config()
    config.init_from, config.data.tokenizer.path = str(there / "a"), str(there / "a" / "tokenizer")
    Run(here / "b").begin(config.to_dict())
    config.init_from, config.data.tokenizer.path = str(here / "a"), str(here / "a" / "tokenizer")
    assert finished(config, here / "b") is None, "it may go on"
    for other in (here / "c", tmp_path / "here" / "another" / "a", ""):
        config.init_from = str(other)
        with pytest.raises(UserError, match="holds a run with a different config"):
            finished(config, here / "b")
    (there / "a").mkdir(parents=True)
    config.init_from = str(here / "a")
    with pytest.raises(UserError, match="holds a run with a different config"):
        finished(config, here / "b")


def test_what_has_a_digest_may_lie_anywhere(tmp_path):
    """Whether it is the same is seen when it is read."""
    config, run = base_config(), Run(tmp_path / "run")
    config.init_from, config.data.tokenizer.path = "a", "a/tokenizer"
    config.task_data = {"directory": "tables"}
    run.begin(config.to_dict())
    known = {"init_from": "11", "examples/words/train": "22"}
    for write, more in ((run.at_step(1).write, {}), (run.result.write, {"step": 1, "metrics": {}})):
        write({"sources": known, **more})
        for key, value in (("init_from", "b"), ("task_data.directory", "moved")):
            moved = config.copy_and_resolve_references()
            moved.update_from_flattened_dict({key: value} | ({"data.tokenizer.path": "b/tokenizer"} if value == "b" else {}))
            finished(moved, run.directory)
        for name, value in (("init_from", ""), ("data.tokenizer.path", "c/tokenizer"), ("seed", 5)):
            other = config.copy_and_resolve_references()
            other.update_from_flattened_dict({name: value})
            with pytest.raises(UserError, match="holds a run with a different config"):
                finished(other, run.directory)


def test_an_adaptation_knows_the_texts_of_its_task_anywhere(tmp_path):
    """`adapt` compares them with those in its directory before."""
    config, run = base_config(), Run(tmp_path / "run")
    config.task_data = {"directory": "tables"}
    run.begin(config.to_dict())
    config.task_data.directory = "moved"
    with pytest.raises(UserError, match=r"task_data\.directory"):
        finished(config, run.directory)
    run.task_text.write("")
    assert finished(config, run.directory) is None
