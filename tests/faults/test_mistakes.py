"""A mistake of the user is one sentence and status 2, a failure of the machine one sentence and status 1; nothing is left."""

import errno
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertlab import cli
from bertlab.data import vocabularies
from bertlab.errors import UserError, failure_of_machine
from bertlab.files import write_text
from bertlab.own_project import write_project
from bertlab.train import sharding
from bertlab.train.sharding import build_mesh, check_memory, replicated
from tests.conftest import ROOT

CONFIG = f"--config={ROOT}/experiments/pretrain/bert.py"


@pytest.fixture(autouse=True)
def own_path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("BERTLAB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--config.train.steps=many"], ("config.train.steps=many", "whole number", "1000")),
        (["--config.seed=1.5"], ("config.seed=1.5", "whole number")),
        (["--config.model.width=1000000000"], ("config.model.width=1000000000", "1000000")),
        (["--config.model.layers=1000000000"], ("config.model.layers=1000000000", "10000")),
        (["--workdir={root}/file/run"], ("{root}/file/run", "{root}/file is a file")),
        (["--workdir=/proc/run"], ("/proc/run",)),
    ],
)
def test_one_sentence_and_status_2_before_anything_is_made(arguments, named, tmp_path, capsys):
    (tmp_path / "file").touch()
    arguments = [argument.format(root=tmp_path) for argument in arguments]
    workdir = [] if arguments[0].startswith("--workdir") else [f"--workdir={tmp_path / 'run'}"]
    assert cli.main(["train", CONFIG, "--config.mesh.data=1", *workdir, *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("bertlab train: ")
    assert all(one.format(root=tmp_path) in said for one in named)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_line_ends_and_codes_for_terminals_that_a_file_holds_are_shown_as_text():
    assert str(UserError("the label 'a\nb', é, \x1b[31m and \ud800")) == r"the label 'a\nb', é, \x1b[31m and \ud800"


def test_an_empty_config_of_a_run_is_named(tmp_path, capsys):
    (tmp_path / "config.json").touch()
    assert cli.main(["train", CONFIG, "--config.mesh.data=1", f"--workdir={tmp_path}"]) == 2
    assert f"{tmp_path / 'config.json'} is empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
def test_a_corpus_of_one_huge_line_is_refused_in_seconds(kind, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a" * 2_000_000)
    held_out = ["--config.data.valid_fraction=0", "--config.data.test_fraction=0", f"--config.data.tokenizer.kind={kind}"]
    assert cli.main(["prepare", f"--corpus=text:{tmp_path}/text.txt", "--config.data.workers=1", *held_out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ("vocab_size=4096" if kind == "wordpiece" else "65536 bytes") in said
    assert list((tmp_path / "cache").iterdir()) == []


def test_short_sentences_among_huge_ones_train_a_tokenizer():
    sample = ["a" * (vocabularies._LONGEST_SENTENCE + 1), "a parser reads a file"]
    assert vocabularies.train_sentencepiece("bpe", sample, 290)


def test_a_state_larger_than_the_memory_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(sharding.os, "sysconf", lambda name: 1024)  # a machine of 1 MiB
    mesh = build_mesh({"data": 2, "fsdp": 1, "tensor": 1})  # two devices of this machine, with a copy each
    check = lambda rows: check_memory([jax.ShapeDtypeStruct((rows, 256), np.float32)], [replicated(mesh)], mesh)
    check(512)
    with pytest.raises(UserError, match=r"config\.model\.width.*config\.mesh\.fsdp"):
        check(513)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.ENOSPC, "full", "runs/x"), ("runs/x", "free space")),
        (RuntimeError("DATA_LOSS: file 3: No space left on device [os_error_code='28']"), ("elsewhere", "free space")),
        (OSError(errno.EROFS, "read-only"), ("elsewhere", "writable")),
    ],
)
def test_a_failure_of_the_machine_is_one_sentence_and_status_1(error, named, monkeypatch, capsys, tmp_path):
    def fails(path):
        raise ValueError("behind another") from error

    monkeypatch.setattr("bertlab.studies.report.report", fails)
    assert cli.main(["report", "runs/x"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("bertlab report: ") and named[1] in said
    assert all(one in failure_of_machine(error, "elsewhere") for one in named)
    assert failure_of_machine(FileNotFoundError(errno.ENOENT, "missing", "x")) is None, "a mistake of ours keeps its traceback"


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    write_text(file, "before")
    write = type(file).write_bytes

    def half(path, content):
        write(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(type(file), "write_bytes", half)
    with pytest.raises(OSError) as end:
        write_text(file, "afterwards")
    assert end.value.filename == str(file) and file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("seconds", ["x", "nan", "-1", "inf"])
def test_a_patience_that_is_no_time_is_one_sentence(seconds):
    environment = os.environ | {"BERTLAB_PATIENCE": seconds}
    ended = subprocess.run([sys.executable, "-c", "import bertlab.alive"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.splitlines()[-1].startswith(f"bertlab: BERTLAB_PATIENCE={seconds}: expected")


def test_an_interrupted_init_can_be_tried_again(tmp_path, monkeypatch):
    def interrupted(source, target):
        target.touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bertlab.own_project.shutil.copyfile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_project(tmp_path / "new")
    assert write_project(tmp_path / "new")
