"""Results go to a folder without checkpoints, and a sweep elsewhere goes on from them as if it had trained them."""

import itertools
import json

import pytest
from conftest import run_sweep

from bertlab import checksums
from bertlab.errors import UserError
from bertlab.run import Run, StudyDirectory
from bertlab.studies.comparisons import looks_of
from bertlab.studies.measurements import load
from bertlab.studies.published import LINES, adopt, own_files, publish, thinned
from bertlab.studies.study import Study

pytestmark = pytest.mark.usefixtures("fake_runs")


def study(seeds=(1,), tasks=("x",), rates=(), name="s", **overrides):
    """Two variants that share one pretraining, and one with its own."""
    uses = {"top": {"finetune.head.layers": "last"}, "all": {"finetune.head.layers": "scalar_mix"}, "other": {"which": "other"}}
    overrides = {"train.steps": 10, "score": 0.5} | overrides
    axes = {"use": uses, "seed": list(seeds)}
    return Study(name, "", "?", "base.py", axes, overrides=overrides, downstream=tasks, rates=rates)


def called(workdir):
    """The runs that a worker executed here."""
    return sorted(path.parent.name for path in workdir.glob("*/calls.txt"))


def test_a_sweep_elsewhere_takes_published_runs_as_finished_and_trains_only_new_ones(tmp_path):
    here, folder, there = tmp_path / "here", tmp_path / "folder", tmp_path / "there"
    assert run_sweep(study(), here)[0] == 0
    (here / "top-seed=1" / "finetune" / "x" / "config.json").write_text(json.dumps({"init_from": str(here / "top-seed=1")}))
    added = publish(here, folder)
    assert set(added) == {f"{run}-seed=1{part}" for run in ("top", "all", "other") for part in ("", "/finetune/x")} - {
        "all-seed=1"
    }
    assert not list(folder.rglob("checkpoints")) and not list(folder.rglob("log.txt"))
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert load(folder).measurements.equals(load(here).measurements)

    assert run_sweep(study(), there, published=folder)[0] == 0
    assert called(there) == []
    assert run_sweep(study((1, 2)), there, published=folder)[0] == 0
    assert called(there) == ["all-seed=2", "other-seed=2", "top-seed=2"]
    assert len(publish(there, folder)) == 5 and publish(there, folder) == []
    assert load(folder).measurements.equals(load(there).measurements)


def test_files_that_others_need_too_are_named(tmp_path):
    described = {"name": "s", "axes": {}, "command": "bertlab sweep --study=mine/study.py:size=tiny --workdir runs"}
    shipped = "experiments/pretrain/bert.py:objectives=rarity:Rarity+mlm"
    runs = [
        {"name": "a", "config": "my_config.py", "downstream": {"x": {"task": "sst2+mine/task.py"}, "sst2": {}}},
        {"name": "b", "config": shipped, "downstream": {}},
        {"name": "c", "config": "run:runs/x.py", "downstream": {"x": {"task": "mine/other.py"}}},
        {"name": "d", "downstream": ["sst2"]},
        {"name": "e"},
    ]
    StudyDirectory(tmp_path).study.write({**described, "runs": runs})
    entries = {"Rarity": {"weight": 1.0, "implementation": "package.rarity:Rarity"}, "mlm": {"weight": 1.0}}
    StudyDirectory(tmp_path).run("b").config.write({"objectives": entries})
    needed = ["mine/study.py", "my_config.py", "mine/task.py", "package/rarity.py", "mine/other.py"]
    assert own_files(tmp_path) == needed
    StudyDirectory(tmp_path).study.write({**described, "command": "bertlab sweep --study experiments/x.py", "runs": runs[1:2]})
    assert own_files(tmp_path) == ["package/rarity.py"], "bertlab brings its own studies along"


def test_a_rule_for_stopping_early_is_published_with_what_it_stopped(tmp_path):
    here, folder, there = tmp_path / "here", tmp_path / "folder", tmp_path / "there"
    assert run_sweep(study((1, 2, 3)), here)[0] == 0
    StudyDirectory(here).rule.write({"max_seeds": 40})
    StudyDirectory(here).settled.write({"sentence": "It is settled"})
    publish(here, folder)
    assert looks_of(load(folder)) == looks_of(load(here)) > 30 and StudyDirectory(folder).settled.exists()
    StudyDirectory(here).settled.delete()
    publish(here, folder)
    assert not StudyDirectory(folder).settled.exists()
    assert run_sweep(study((1, 2, 3)), there, published=folder)[0] == 0
    assert looks_of(load(there)) == looks_of(load(here))


def test_only_paths_of_the_study_and_of_the_store_are_shortened(tmp_path):
    here, folder = tmp_path / "t", tmp_path / "folder"
    assert run_sweep(study(), here)[0] == 0
    config = {"a": f"{here}/top-seed=1", "b": [f"--run={here}"], "c": f"{here}able5/mlm", "d": 1.5}
    (here / "top-seed=1" / "config.json").write_text(json.dumps(config))
    recorded = StudyDirectory(here).study.read()
    StudyDirectory(here).study.write(
        recorded | {"command": f"bertlab sweep --study=a.py --workdir={here} '--store=/a b/c' --jobs=2"}
    )
    publish(here, folder)
    assert StudyDirectory(folder).study.read()["command"] == "bertlab sweep --study=a.py --workdir=t --store=c --jobs=2"
    for published in ("--published=results/t", "--published results/t"):  # a reader is to train all runs anew
        command = f"bertlab sweep {published} --store /a/c --study=a.py"
        StudyDirectory(tmp_path / "t").study.write(recorded | {"command": command})
        publish(tmp_path / "t", folder)
        assert StudyDirectory(folder).study.read()["command"] == "bertlab sweep --store c --study=a.py"
    found = json.loads((folder / "top-seed=1" / "config.json").read_text())
    assert found == {"a": "t/top-seed=1", "b": ["--run=t"], "c": f"{here}able5/mlm", "d": 1.5}


def test_a_published_pretraining_is_trained_again_only_where_something_new_begins_with_it(tmp_path):
    here, folder, there = tmp_path / "here", tmp_path / "folder", tmp_path / "there"
    rates = {"rates": (0.5, 1.0), "best_rate": 5e-5}
    assert run_sweep(study(**rates), here)[0] == 0
    publish(here, folder)
    wider = study(**rates)
    wider.axes["use"]["mix"] = {"finetune.head.layers": "concat_last_4"}
    for _ in range(2):
        assert run_sweep(wider, there, published=folder)[0] == 0
        assert called(there) == ["mix-seed=1"], "the candidate that was selected has no checkpoint, and keeps its result"
        assert (there / "mix-seed=1" / "result.json").exists()
        (there / "mix-seed=1" / "finetune" / "x" / "result.json").unlink()  # as if it had been killed


def test_a_new_task_of_published_runs_trains_their_pretraining_once(tmp_path):
    here, folder, there = tmp_path / "here", tmp_path / "folder", tmp_path / "there"
    assert run_sweep(study(), here)[0] == 0
    publish(here, folder)
    status, printed = run_sweep(study(tasks=("x", "y")), there, published=folder)
    assert status == 0 and called(there) == ["all-seed=1", "other-seed=1", "top-seed=1"]
    assert printed.partition("pretrained again")[2].split("\n")[0].endswith(": top-seed=1, other-seed=1")
    assert [(there / f"{name}-seed=1" / "checkpoints").exists() for name in ("top", "all", "other")] == [True, False, True]


@pytest.mark.parametrize(
    "change",
    [
        lambda study: study["runs"][0].update(name="../victim"),
        lambda study: study["runs"][0].update(name=".."),
        lambda study: study["runs"][0].update(name="/victim"),
        lambda study: study["runs"][0].update(shares={"pretrain": "../victim"}),
        lambda study: study["runs"][0].update(averages=["../victim"]),
        lambda study: study["runs"][0].update(downstream={"../victim": {}}),
        lambda study: study.update(searches=[{"candidates": {"../victim": 0.1}}]),
    ],
)
def test_a_name_that_leads_out_of_a_study_is_refused_and_nothing_written_there(tmp_path, change):
    (tmp_path / "victim").mkdir()
    own = {"name": "s", "axes": {}, "searches": [], "runs": [{"name": "a", "downstream": {}, "shares": {}, "averages": []}]}
    change(own)
    archive = tmp_path / "archives" / "study"
    archive.mkdir(parents=True)
    (archive / "study.json").write_text(json.dumps(own))
    (archive.parent / "victim").mkdir()
    (archive.parent / "victim" / "job.json").write_text("{}")
    for use in (adopt, publish):
        with pytest.raises(UserError, match=r"study\.json is damaged: '(/|\.\.)(victim|/victim)?' is not the name of a run"):
            use(archive, tmp_path / "workdir")
    assert not [*(tmp_path / "victim").iterdir()] and not (tmp_path / "workdir").exists()


def test_a_dry_run_and_a_refused_sweep_copy_nothing(tmp_path, monkeypatch):
    places = []
    monkeypatch.setattr("bertlab.studies.sweep.print_plan", lambda *given: places.append((given[5], given[-1])))
    here, folder, there = tmp_path / "here", tmp_path / "folder", tmp_path / "there"
    assert run_sweep(study(), here)[0] == 0
    publish(here, folder)
    status, printed = run_sweep(study((1, 2)), there, published=folder, dry_run=True)
    assert status == 0 and "nothing is copied in a dry run; it counts as finished" in printed
    assert places == [(folder, there)], "finished runs are in the folder, and the study would be in its own directory"
    for other in (study(name="t"), study(**{"train.steps": 20})):
        with pytest.raises(UserError, match=r"folder.*holds another study"):
            run_sweep(other, there, published=folder)
    assert not there.exists(), "so another study may still use it"
    assert run_sweep(study(name="t"), there)[0] == 0


def test_nothing_is_copied_to_a_study_at_which_another_sweep_is_at_work(tmp_path, monkeypatch):
    assert run_sweep(study(), tmp_path / "here")[0] == 0
    publish(tmp_path / "here", tmp_path / "folder")
    locked = []
    copied = lambda folder, workdir: locked.append(StudyDirectory(workdir).lock.exists()) or adopt(folder, workdir)
    monkeypatch.setattr("bertlab.studies.sweep.adopt", copied)
    assert run_sweep(study(), tmp_path / "there", published=tmp_path / "folder")[0] == 0
    assert locked == [True]


def test_what_cannot_be_published_or_adopted_is_refused(tmp_path):
    assert run_sweep(study(), tmp_path / "here")[0] == 0
    publish(tmp_path / "here", tmp_path / "folder")
    assert run_sweep(study(name="t"), tmp_path / "t")[0] == 0
    for own in ("here", "here/published"):
        with pytest.raises(UserError, match=r"lies in the study's own directory"):
            publish(tmp_path / "here", tmp_path / own)
    with pytest.raises(UserError, match='"s", not "t"'):
        publish(tmp_path / "t", tmp_path / "folder")
    with pytest.raises(UserError, match=r"study\.json"):
        publish(tmp_path, tmp_path / "other")
    with pytest.raises(UserError, match=r"study\.json"):
        run_sweep(study(), tmp_path / "new", published=tmp_path / "nothing")
    with pytest.raises(UserError, match=r"holds another study.*train\.steps"):
        run_sweep(study(**{"train.steps": 20}), tmp_path / "new", published=tmp_path / "folder")


def test_a_sweep_s_damaged_study_can_be_made_anew(tmp_path):
    assert run_sweep(study(), tmp_path)[0] == 0
    before, file = load(tmp_path).measurements, tmp_path / "study.json"
    file.write_text(file.read_text().replace("top", "tip", 1))
    with pytest.raises(UserError, match="delete it and run the same sweep again"):
        load(tmp_path)
    file.unlink()
    assert run_sweep(study(), tmp_path)[0] == 0 and load(tmp_path).measurements.equals(before)


def contents(folder):
    """The content of all files."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_holds_anything_else_is_refused_and_stays_as_it_is(tmp_path):
    for name in ("here", "sweep"):
        assert run_sweep(study(), tmp_path / name)[0] == 0
    run = Run(tmp_path / "run")
    run.config.write({})
    run.finish({"step": 1})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.md").write_text("mine")
    (tmp_path / "file").touch()
    before = contents(tmp_path)
    for folder, said in (
        ("run", "run holds a single run"),
        ("run/checkpoints", "checkpoints belongs to the run"),
        ("notes", r"notes holds notes\.md"),
        ("sweep", "sweep is the directory of a sweep"),
    ):
        with pytest.raises(UserError, match=said):
            publish(tmp_path / "here", tmp_path / folder)
    with pytest.raises(UserError, match="run holds a single run; publish takes the directory of a study"):
        publish(run.directory, tmp_path / "new")
    assert contents(tmp_path) == before and not (tmp_path / "new").exists()


def test_publishing_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    assert run_sweep(study(), tmp_path / "here")[0] == 0
    whole = publish(tmp_path / "here", tmp_path / "whole")
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr("bertlab.run.StudyFile.write", broken_off)
        publish(tmp_path / "here", tmp_path / "folder")
    assert not (tmp_path / "folder" / "study.json").exists()
    assert publish(tmp_path / "here", tmp_path / "folder") == [] != whole
    (tmp_path / "folder" / "study.json.host-1.partial").unlink()
    assert contents(tmp_path / "folder") == contents(tmp_path / "whole")


def broken_off(file, value):
    """Writes a study.json as one that is killed: a part of it, under another name."""
    checksums.write_list(file.path.parent, ())
    file.path.with_name("study.json.host-1.partial").write_text("{")
    raise KeyboardInterrupt


@pytest.mark.parametrize("count", [1, LINES, LINES + 1, 5 * LINES + 3])
def test_a_thinned_log_is_even_and_has_the_last_line_of_each_split(count):
    lines = [{"step": step, "split": split} for step in range(1, count + 1) for split in ("train", "valid")]
    kept = thinned(lines)
    for split in ("train", "valid"):
        steps = [line["step"] for line in kept if line["split"] == split]
        assert count / 2 / max(1, count // LINES) <= len(steps) <= LINES and steps[-1] == count
        assert len({b - a for a, b in itertools.pairwise(steps)}) <= 1
    assert json.dumps(kept) == json.dumps(sorted(kept, key=lambda line: line["step"]))
