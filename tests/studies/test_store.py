"""A pretraining that one study made is used by another; it is known by its config and its text."""

import dataclasses
import os
import sys
from types import SimpleNamespace

import fsspec
import pytest
from conftest import InThisProcess, run_sweep
from rich.console import Console

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies import store as store_module
from bertlab.studies.store import Store
from bertlab.studies.study import Study
from bertlab.studies.sweep import sweep, tried_to
from tests.conftest import RECIPES, ROOT


@pytest.fixture
def study(small_overrides, words_task):
    """A study of one pretraining of four steps, with a task."""
    small = {"model.width": 16, "model.layers": 1, "train.steps": 4, "train.eval_batches": 1, "evaluate.sentences": 0}
    small |= {"model.hidden": 24, "optimizer.warmup_steps": None, "train.keep": "2"}
    tuning = {"train.steps": 2, "data.batch_size": 8, "data.seq_len": 16, "mesh.data": 1, "optimizer.warmup_steps": 0}
    overrides = small_overrides | small | {f"finetune.{key}": value for key, value in tuning.items()}
    axes, downstream = {"seed": [1]}, {"words": {"task": words_task}}
    return Study("first", "", "?", str(ROOT / RECIPES["gpt"]), axes, overrides=overrides, downstream=downstream)


def changed(study, name="second", axes=None, **overrides):
    return dataclasses.replace(study, name=name, axes=axes or study.axes, overrides=study.overrides | overrides)


def swept(study, workdir, store):
    assert sweep(study, workdir, InThisProcess(), store=store, console=Console(quiet=True)) == 0
    return Run(workdir / study.runs()[0].name)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_a_study_takes_the_pretraining_of_another_and_fine_tunes_to_the_same_scores(study, tmp_path, monkeypatch):
    shelf = tmp_path / "store"
    trained = swept(study, tmp_path / "first", shelf)
    assert trained.steps() == [2, 4] and len(list(shelf.iterdir())) == 1
    monkeypatch.setattr("bertlab.transfer.pretrain.pretrain", lambda *_: pytest.fail("trained again"))
    other = changed(study, axes={"use": {"it": {}}, "seed": [1]}, **{"train.keep": ""})  # what is kept decides nothing
    taken = swept(other, tmp_path / "second", shelf)
    assert taken.result.read() == trained.result.read() and taken.steps() == [2, 4]
    scores = [run.stage("finetune", "words").result.read()["metrics"] for run in (taken, trained)]
    assert scores[0] == scores[1]
    inode = lambda run: next((run.checkpoints / "4" / "state").rglob("manifest.ocdbt")).stat().st_ino
    assert inode(taken) == inode(trained), "checkpoints take no more room"
    assert not list((tmp_path / "second").rglob("taken*")) and len(list(shelf.iterdir())) == 1


def of(study):
    [run] = study.runs()
    return run


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_only_the_same_config_and_text_with_the_wanted_checkpoints_are_taken(study, tmp_path, monkeypatch):
    store, trained = Store(tmp_path / "store"), swept(study, tmp_path / "first", tmp_path / "store")
    run, place = of(study), tmp_path / "run"
    others = [{"optimizer.learning_rate": 1e-4}, {"seed": 7}, {"evaluate.sentences": 3}, {"train.keep": "log,3"}]
    others.append({"train.micro_batches": 2})  # other dropout
    for number, other in enumerate(others):
        other = of(changed(study, axes={"which": {"it": {}}}, **{"seed": 1, "data.seed": 1} | other))
        assert not store.begin(other, tmp_path / f"other-{number}")
    assert not store.begin(dataclasses.replace(run, shares={"pretrain": "other"}), place) and not place.exists()
    assert store.begin(of(changed(study, **{"train.keep": "log"})), tmp_path / "log"), "of log it may lack some"
    monkeypatch.setattr(store_module, "prepare", lambda data: pytest.fail("a fingerprint is computed once a text"))
    assert store.begin(run, place) and not store.begin(run, place), "then something has begun there"
    assert Run(place).result.read() == trained.result.read()
    [stored] = map(Run, store.folder.iterdir())
    config = stored.config.read()
    del config["model"]["first_norm"]  # as in a run from before there was this key
    stored.config.write(config)
    assert store.begin(run, tmp_path / "before_the_key")
    config["optimizer"]["b1"] = 0.8  # as in a run from when the default was another
    stored.config.write(config)
    assert not store.begin(run, tmp_path / "another_default") and not store.put(trained.directory)
    (trained.checkpoints / "3").mkdir()
    assert not store.put(trained.directory) and not (stored.checkpoints / "3").exists()
    monkeypatch.setattr(store_module, "prepare", lambda data: SimpleNamespace(fingerprint="another text"))
    assert not Store(tmp_path / "store").begin(run, tmp_path / "elsewhere")


OWN = """
import dataclasses
from bertlab.objectives import LeftToRight

@dataclasses.dataclass(frozen=True)
class Mine(LeftToRight):
    \"\"\"Left to right.\"\"\"
"""


@pytest.mark.usefixtures("quick_compilation")
def test_a_run_is_stored_under_what_it_began_with_and_an_outside_objective_under_its_code(study, tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine_stored.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "code")
    recipe = str(ROOT / "experiments/pretrain/bert.py:objectives=mine_stored:Mine")
    own = dataclasses.replace(changed(study, **{"model.direction": "left-to-right"}), config=recipe)
    store = Store(tmp_path / "store")
    assert not store.begin(of(own), tmp_path / "before")
    (tmp_path / "code" / "mine_stored.py").write_text(OWN + "    weight = 100\n")
    del sys.modules["mine_stored"]  # as a new sweep imports it
    assert not store.begin(of(own), tmp_path / "after")
    keys = [Run(tmp_path / name).store_key.read() for name in ("before", "after")]
    assert keys[0] != keys[1]
    # The recipe may have changed since the run began: what it is stored under does not.
    trained = swept(study, tmp_path / "first", None)
    assert not store.put(trained.directory), "nobody knows what it began with"
    trained.store_key.write("abc\n")
    assert store.put(trained.directory) and (store.folder / "abc" / "result.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_a_store_gains_checkpoints_heals_and_survives_a_kill_between_two_files(study, tmp_path, monkeypatch):
    store, run = Store(tmp_path / "store"), of(study)
    assert not store.begin(run, tmp_path / "first" / run.name)
    trained = swept(study, tmp_path / "first", None)
    assert store.put(trained.directory) and not store.put(trained.directory)
    [stored] = map(Run, store.folder.iterdir())
    (trained.checkpoints / "3").mkdir()
    assert store.put(trained.directory) and stored.steps() == [2, 3, 4]
    (trained.checkpoints / "3").rmdir()
    assert not store.put(trained.directory) and stored.steps() == [2, 3, 4], "it loses none"
    stored.result.delete()
    assert not store.begin(run, tmp_path / "broken") and store.put(trained.directory) and stored.result.exists()

    def killed(source, target, replace=store_module.os.replace):
        if target.name == "checkpoints":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(store_module.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.begin(run, tmp_path / "again" / "seed=1")
    monkeypatch.undo()
    again = swept(study, tmp_path / "again", None)
    assert again.result.read()["metrics"] == trained.result.read()["metrics"] and again.steps() == [2, 4]


@pytest.fixture
def url():
    system = fsspec.filesystem("memory")
    yield "memory://bucket/store"
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.mark.usefixtures("quick_compilation")
def test_a_store_in_a_bucket_gives_what_one_in_a_folder_gives(study, url, tmp_path, monkeypatch):
    system, run = fsspec.filesystem("memory"), of(study)
    trained = swept(study, tmp_path / "first", url)
    there = sorted(system.find("/bucket/store"))
    assert swept(study, tmp_path / "first", url) and sorted(system.find("/bucket/store")) == there, "nothing is written twice"
    store = Store(url)
    taken = Run(tmp_path / "second" / run.name)
    assert store.begin(run, taken.directory) and not store.begin(run, taken.directory)
    assert taken.result.read() == trained.result.read() and taken.steps() == [2, 4] and not taken.failed.exists()
    assert {path.name for path in taken.directory.iterdir()} >= {"config.json", "result.json", "checkpoints", "tokenizer"}
    assert not (taken.directory / "mirror.json").exists() and os.listdir(tmp_path / "second") == [run.name]
    other = of(changed(study, **{"optimizer.learning_rate": 1e-4}))
    assert not store.begin(other, tmp_path / "other") and os.listdir(tmp_path / "other") == ["store_key.txt"]
    (trained.checkpoints / "3").mkdir()
    assert store.put(trained.directory) and not store.put(trained.directory)
    assert store.begin(run, tmp_path / "third") and Run(tmp_path / "third").steps() == [2, 3, 4]
    [number] = {path.split("/")[-2] for path in system.find("/bucket/store") if path.endswith("list.json")}
    assert not [path for path in system.find("/bucket/store") if path.endswith("claim") and f"/{number}/" not in path]
    monkeypatch.setattr(system, "ls", lambda *_, **__: (_ for _ in ()).throw(ValueError("away")))
    assert not tried_to(store.begin, run, tmp_path / "fourth", console=Console(quiet=True)), "the sweep goes on without it"


@pytest.mark.usefixtures("fake_runs")
def test_a_store_that_cannot_be_used_is_refused_at_once_or_left_alone(study, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^--store=.*file"):
        run_sweep(study, tmp_path / "none", store=tmp_path / "file")
    with pytest.raises(UserError, match=r"az:// is not known; use gs://BUCKET/PATH or s3://BUCKET/PATH"):
        run_sweep(study, tmp_path / "none", store="az://bucket/store")
    assert not (tmp_path / "none").exists()

    def full(*_):
        raise OSError(28, "No space left on device")

    for method in ("begin", "put"):
        monkeypatch.setattr(Store, method, full)
    status, printed = run_sweep(study, tmp_path / "run", store=tmp_path / "store")
    assert status == 0 and printed.count("No space left on device") == 3, "before, at the start and at the end"
