"""What belongs to a run, a study or a prepared corpus is not written over, and no run goes into a study's directory."""

import json
import sys

import pytest

from bertlab import checksums, cli
from bertlab.errors import UserError
from bertlab.interop.base import save_imported
from bertlab.places import require_free
from bertlab.run import Run, StudyDirectory
from bertlab.transfer.adapt import adapt
from bertlab.transfer.finetune import finetune
from bertlab.transfer.pretrain import pretrain
from tests.conftest import ROOT
from tests.interop import published

STUDY = {"name": "s", "axes": {}, "runs": [{"name": "a", "downstream": {}, "shares": {}}]}
MANIFEST = "manifest --name=x --topology=v5e:4x4 --image=I --claim=c"


def contents(folder):
    """The content of all files."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder with a run, a study of one run that shares its pretraining, and a prepared corpus; it is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run, corpus = Run("run"), tmp_path / "cache" / "corpus"
    run.config.write({})
    run.metrics.write("")
    run.checkpoints.joinpath("4", "state").mkdir(parents=True)
    StudyDirectory("study").study.write(STUDY)
    Run("study/a").job.write({})
    corpus.joinpath("dataset").mkdir(parents=True)
    corpus.joinpath("dataset", "info.json").write_text("{}")
    checksums.write_list(corpus, [corpus / "dataset" / "info.json"])
    return tmp_path


@pytest.mark.parametrize(
    ("out", "owner"),
    [
        ("study/study.json", "the study study"),
        ("study/files.json", "the study study"),
        ("study/report/x.json", "the study study"),
        ("study/a/job.json", "the run study/a"),
        ("run/files.json", "the run run"),
        ("run/checkpoints/4/files.json", "the run run"),
        ("run/checkpoints/4/state/x.json", "the run run"),
        ("link/checkpoints/4/x.json", "the run link"),
        ("run/study/../tokenizer/x.json", "the run run/study/.."),
        ("cache/corpus/files.json", "the folder cache/corpus"),
        ("cache/corpus/dataset/info.json", "the folder cache/corpus"),
    ],
)
def test_out_is_nobody_s_at_any_depth(out, owner, places, capsys):
    (places / "link").symlink_to("run")
    before = contents(places)
    assert cli.main([*MANIFEST.split(), f"--out={out}", "--", "bertlab", "train", "--workdir=/runs/x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bertlab manifest: --out={out}: ") and f" belongs to {owner}; " in said and said.count("\n") == 1
    assert contents(places) == before


def test_what_lies_beside_is_free(places):
    for name in ("run/mine.json", "run/finetune/x/y.json", "study/a/mine.json", "checkpoints/x.json", "cache/corpus/x.json"):
        require_free(places / name, "", folder=False)
    (places / "config.json").touch()  # of another tool
    require_free(places / "checkpoints" / "new", "", folder=True)


def test_a_manifest_replaces_only_a_manifest(tmp_path, capsys):
    words = ["--", "bertlab", "train", "--workdir=/runs/x"]
    mine, text = tmp_path / "mine.json", tmp_path / "lines.txt"
    for file, content in ((mine, '{"mine": 1}'), (mine, "[]"), (mine, "no JSON"), (text, "a line")):
        file.write_text(content)
        assert cli.main([*MANIFEST.split(), f"--out={file}", *words]) == 2
        assert str(file) in capsys.readouterr().err and file.read_text() == content
    for _ in range(2):
        assert cli.main([*MANIFEST.split(), f"--out={tmp_path}/new.json", *words]) == 0
    assert json.loads((tmp_path / "new.json").read_text())["kind"] == "JobSet"


def test_no_single_run_goes_into_a_study_and_no_run_into_a_run_s_own_folders(places, small_config, words_task, capsys):
    save_imported(published.random_run(places / "source"), places / "pretrained", "huggingface", "source")
    before = contents(places)
    lost = places / "lost"
    lost.mkdir()
    (lost / "files.json").write_text((places / "study" / "files.json").read_text())  # its study.json is not there any more
    of_task = {"run": places / "pretrained", "task": words_task}
    for workdir, said in (
        (places / "study", "holds a study"),
        (lost, "holds a study"),
        (places / "run" / "checkpoints", "checkpoints belongs to the run"),
        (places / "run" / "tokenizer" / "x", "tokenizer belongs to the run"),
    ):
        for begin in (
            lambda workdir=workdir: pretrain(small_config("bert"), workdir),
            lambda workdir=workdir: finetune(workdir=workdir, **of_task),
            lambda workdir=workdir: adapt(workdir=workdir, overrides={"objectives.mlm.weight": 1.0}, **of_task),
        ):
            with pytest.raises(UserError, match=f"{workdir}.*{said}"):
                begin()
    config = f"--config={ROOT}/experiments/pretrain/bert.py"
    assert cli.main(["train", config, "--config.mesh.data=1", "--workdir=study"]) == 2
    said = capsys.readouterr().err
    assert said == "bertlab train: study holds a study, so no single run can be written there; choose another --workdir\n"
    (lost / "files.json").unlink()
    assert contents(places) == before
