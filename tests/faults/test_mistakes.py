"""A mistake of the user is one sentence and status 2, a failure of the machine one sentence and status 1; nothing is left."""

import argparse
import errno
import io
import os
import re
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bertlab import cli
from bertlab.console import Console
from bertlab.data import vocabularies
from bertlab.data.text_corpus import TextCorpus
from bertlab.errors import RunFailed, UserError, failure_of_machine
from bertlab.files import write_bytes, write_text
from bertlab.interop.words import read_words
from bertlab.own_project import write_project
from bertlab.train.checkpoint import Checkpoints
from bertlab.train.metrics import JsonlWriter
from bertlab.train.sharding import build_mesh, check_memory, replicated
from bertlab.transfer.evaluate import read_pairs
from bertlab.transfer.load import read_lines
from bertlab.transfer.similarity import read_ratings
from tests.conftest import ROOT

SPEEDRUN = ROOT / "experiments" / "speedrun"
FULL = "I/O error: No space left on device (os error 28)"  # as safetensors says it
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
        (["--workdir=gs://bucket/run"], ("--workdir=gs://bucket/run", "bertlab mirror")),
        (["--config.data.directory=gs://bucket/x"], ("config.data.directory=gs://bucket/x", "folder")),
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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["export", "x", "--to=huggingface", "gs://bucket/x"], "gs://bucket/x cannot be written"),
        (["plan", "--config=x.py", "--topology=cpu:1", "--out=az://c/plan.json"], "--out=az://c/plan.json cannot be written"),
        (["embed", "--run=x", "--text=s3://b/lines.txt", "--out=x.npz"], "s3://b/lines.txt is read by"),
        (["prepare", "--corpus=pydocs"], "BERTLAB_CACHE=s3://b/cache"),
    ],
)
def test_a_url_is_no_folder(arguments, named, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("BERTLAB_CACHE", "s3://b/cache")
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert named in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("own.py", "def get_config(:", "own.py:1: the config cannot be read (SyntaxError"),
        ("own.py", "def other(): pass", "does not define get_config"),
        ("own.py", "def get_config():\n    return 1 / 0", "own.py:2: the config cannot be read (ZeroDivisionError"),
        ("own.py", "import no_such_module", "own.py:1: the config cannot be read (ModuleNotFoundError"),
        ("own.py", "def get_config():\n    return 5", "returned int"),
        ("own.py", b"\xff\x00", "own.py"),
        ("own.txt", "a text", "not a Python file"),
    ],
)
def test_a_config_that_cannot_be_run_is_one_sentence(name, content, named, tmp_path, capsys):
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert cli.main(["train", f"--config={tmp_path / name}", f"--workdir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and named in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("embed --run=run --text=text --out=file/x.npz", "file is a file"),
        ("evaluate --run=run --out=file/x.json", "file is a file"),
        ("evaluate --run=run --out=folder", "folder is a directory"),
        ("evaluate --run=run --out=loop", "leads nowhere"),
        ("publish run file", "file is a file"),
        ("publish run file/x", "file is a file"),
        ("tokenizer train --corpus=pydocs --out=file", "file is a file"),
        ("tokenizer train --corpus=pydocs --out=loop/x", "leads nowhere"),
        ("train --config=own.py --workdir=loop", "leads nowhere"),
        ("train --config=own.py --workdir=dangling", "leads nowhere"),
        ("init dangling", "leads nowhere"),
        ("export run --to=huggingface file/x", "file is a file"),
        ("embed --run=run --text=pipe --out=x.npz", "pipe is a pipe"),
        ("evaluate --run=run --minimal_pairs=pipe", "pipe is a pipe"),
        ("embed --run=run --text=/dev/null --out=x.npz", "/dev/null is a device"),
        ("evaluate --run=run --out=/dev/null", "/dev/null is a device"),
        ("doctor s3://b/x", "s3://b/x is read by `text:` corpora, --store and `bertlab mirror` only; copy it here"),
        ("compare run s3://b/x", "s3://b/x is read by `text:` corpora, --store and `bertlab mirror` only; copy it here"),
        ("embed --run=run --text=text --out=own/config.csv", "config.csv belongs to the run own"),
        ("embed --run=run --text=text --out=own/tokenizer/x.npz", "tokenizer belongs to the run own"),
        ("evaluate --run=run --out=own/similarity.json", "similarity.json belongs to the run own"),
        ("tokenizer train --corpus=pydocs --out=own/tokenizer", "tokenizer belongs to the run own"),
        ("embed --run=run --text=text --out=own/checkpoints/4/state/x.npz", "checkpoints belongs to the run own"),
        ("train --config=own.py --workdir=own/checkpoints", "checkpoints belongs to the run own"),
        ("import --from=glove file --workdir=own/checkpoints/4/x", "checkpoints belongs to the run own"),
        ("bench --out=x.txt", "--out=x.txt: the output is JSON"),
        ("sample --run=run --prompt=a\udcff", r"a\udcff is not UTF-8"),
        ("sample --run=run --steps=0", "--steps=0 must be"),
        ("embed --run=run --text=text --layers= --out=x.npz", "--layers= is empty"),
        ("bench --only=", "--only= is empty"),
        ("sweep --study=own.py --workdir=new --store=memory://a/b", "memory://a/b is lost when this process ends"),
        ("speedrun", "name an entry"),
        ("speedrun nope", "nope.py is missing"),
        ("speedrun bert --folder=nothing", "nothing/entries/bert.py is missing"),
        (f"speedrun bert --folder={SPEEDRUN}", "--corpus is missing"),
        (f"speedrun bert --folder={SPEEDRUN} --seeds=a", "--seeds=a"),
    ],
)
def test_places_that_cannot_be_written_or_read_are_refused_first(words, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "own").mkdir()
    for name in ("config.json", "environment.json"):
        (tmp_path / "own" / name).touch()
    there = sorted(tmp_path.rglob("*"))
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and named in said and sorted(tmp_path.rglob("*")) == there


def test_a_measurement_may_be_written_under_its_own_name_or_another(tmp_path):
    for name in ("config.json", "environment.json"):
        (tmp_path / name).touch()
    for command, name in (("evaluate", "evaluation.json"), ("similarity", "similarity.json"), ("embed", "lines.csv")):
        cli._check_places(argparse.Namespace(command=command, out=tmp_path / name))


@pytest.mark.parametrize(
    "words",
    [
        *(
            "train --config=own.py --workdir=LONG",
            "init LONG",
            "report LONG",
            "doctor LONG",
            "compare LONG x",
            "average LONG x",
        ),
        *("publish LONG x/y", "evidence LONG --studies=.", "evaluate --run=LONG", "evaluate --run=x --text=LONG"),
        *(
            "import --from=glove LONG --workdir=x",
            "import --from=huggingface LONG --workdir=x",
            "export x --to=huggingface LONG",
        ),
        *("tokenizer train --corpus=text:own.txt --out=LONG", "tokenizer encode --tokenizer=LONG"),
        *("prepare --corpus=text:own.txt --config.data.directory=LONG", "prepare --corpus=splits:LONG"),
        "prepare --corpus=text:own.txt --config.data.tokenizer.path=LONG",
        "embed --run=x --text=own.txt --out=LONG.npz",
    ],
)
def test_a_name_that_no_file_can_have_is_a_mistake(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("from bertlab.config import base_config as get_config\n")
    (tmp_path / "own.txt").write_text("A sentence. Another one.\n" * 20)
    try:
        status = cli.main(words.replace("LONG", 300 * "w").split())
    except SystemExit as ended:
        pytest.fail(f"{ended}: {capsys.readouterr().err}")
    said = capsys.readouterr().err
    assert status == 2 and said.count("\n") == 1 and len(said) < 700, said
    assert "too long" in said, said


def numbers_of(parser, words=()):
    """(Words of a command, option, type) of every option that takes a number."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from numbers_of(command, (*words, name))
        elif action.type in (int, float):
            yield words, action.option_strings[0], action.type


NUMBERS = list(numbers_of(cli.build_parser()))


@pytest.mark.parametrize(("words", "option", "kind"), NUMBERS, ids=str)
def test_a_number_that_an_option_cannot_have_is_refused(words, option, kind):
    wrong = [-5, 10**20] if kind is int else [-5.0, float("nan"), float("inf"), 1e20]
    for value in wrong:
        given = argparse.Namespace(command=words[0], **{option.removeprefix("--"): value})
        with pytest.raises(UserError, match=rf"{option}={re.escape(repr(value))} must be"):
            cli._check_numbers(given)


def test_numbers_of_options_are_checked(capsys):
    assert cli.main(["sample", "--run=run", "--number=100000000000"]) == 2
    assert "--number=100000000000 must be" in capsys.readouterr().err


def test_line_ends_and_codes_for_terminals_that_a_file_holds_are_shown_as_text():
    assert str(UserError("the label 'a\nb', é, \x1b[31m and \ud800")) == r"the label 'a\nb', é, \x1b[31m and \ud800"


def test_an_empty_config_of_a_run_is_named(tmp_path, capsys):
    (tmp_path / "config.json").touch()
    assert cli.main(["train", CONFIG, "--config.mesh.data=1", f"--workdir={tmp_path}"]) == 2
    assert f"{tmp_path / 'config.json'} is empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("unfinished", [b"", b'{"step": 4, "spl', b'{"step": 4, "split": "\xff'])
def test_a_resumed_run_passes_over_blank_lines_and_an_unfinished_last_one(unfinished, tmp_path):
    log = tmp_path / "metrics.jsonl"
    lines = [b'{"step": 2, "split": "train"}\n', b'{"step": 2, "split": "valid"}\n', b'{"step": 3, "split": "train"}\n']
    log.write_bytes(b"\n" + lines[0] + b"  \n" + b"".join(lines[1:]) + unfinished)
    writer = JsonlWriter(log, resumed_step=2, last_step=9)
    writer.close()
    assert log.read_bytes() == lines[0] + lines[1] and writer.dropped == {(3, "train")}
    log.write_bytes(b"\n{}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2"):
        JsonlWriter(log, resumed_step=2, last_step=9)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
def test_a_corpus_of_one_huge_line_is_refused_in_seconds(kind, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a" * 2_000_000)
    held_out = ["--config.data.valid_fraction=0", "--config.data.test_fraction=0", f"--config.data.tokenizer.kind={kind}"]
    assert cli.main(["prepare", f"--corpus=text:{tmp_path}/text.txt", "--config.data.workers=1", *held_out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ("vocab_size=4096" if kind == "wordpiece" else "65536 bytes") in said
    assert not (tmp_path / "cache").exists()


def test_short_sentences_among_huge_ones_train_a_tokenizer():
    sample = ["a" * (vocabularies._LONGEST_SENTENCE + 1), "a parser reads a file"]
    assert vocabularies.train_sentencepiece("bpe", sample, 290)


def test_a_state_larger_than_the_memory_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 1024)  # a machine of 1 MiB
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
        (MemoryError(), ("MemoryError", "config.data.batch_size")),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"),
            ("allocating 9 bytes", "config.data.batch_size"),
        ),
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


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "raise the number of open files (ulimit -n)"),
        (RuntimeError(FULL), "free space"),
        (ValueError("an array is not whole"), "make room or repair the disk"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_says_what_to_do(error, remedy, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "run/checkpoints", keep=1)

    def fails(manager):
        raise RuntimeError("Orbax's own") from error

    with monkeypatch.context() as patched, pytest.raises(RunFailed) as end:
        patched.setattr(ocp.CheckpointManager, "close", fails)
        checkpoints.close()
    assert f"; {remedy}, then run the same command again: it starts over" in str(end.value)
    checkpoints.close()


@pytest.mark.parametrize(
    ("words", "function", "error", "place"),
    [
        ("init new", "pathlib.Path.write_bytes", OSError(errno.ENOSPC, "full"), "new/README.md"),
        ("embed --run=run --text=text --out=x.npz", "bertlab.transfer.load.embed_file", RuntimeError(FULL), "x.npz"),
        ("export run --to=huggingface new", "bertlab.interop.export_weights", RuntimeError(FULL), "new"),
    ],
)
def test_what_could_not_be_written_is_named(words, function, error, place, tmp_path, monkeypatch, capsys):
    """An error of a library, such as safetensors', names no file; one of copying, bertlab's own."""

    def fails(*given, **more):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, fails)
    assert cli.main(words.split()) == 1
    assert capsys.readouterr().err.startswith(f"bertlab {words.split()[0]}: {place}: No space left on device")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("words", ["--version", "--help", "sample --help"])
def test_a_help_text_that_cannot_be_written_is_a_failure(words):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(["python", "-m", "bertlab", *words.split()], executable=sys.executable, stdout=full, stderr=-1)
    assert ended.returncode == 1 and ended.stderr.count(b"\n") == 1 and b"No space left on device" in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"train {CONFIG}:objectives=mlm,objectives=nsp --workdir=x", "objectives is given twice"),
        ("sweep --study={root}/x.py:seeds=1,seeds=2 --workdir=x --dry_run", "seeds is given twice"),
        ("sweep --study={root}/x.py --workdir=x --launcher_options=devices=0,devices=1", "devices is given twice"),
        ("evaluate --run=x --kinds=,", "--kinds=,: expected kinds joined by commas"),
        ("evaluate --run=x --kinds=pseudo,pseudo", "--kinds=pseudo,pseudo: pseudo is given twice"),
        ("embed --run=x --text=x --out=x.npz --layers=0,0", "--layers=0,0: 0 is given twice"),
        ("probe --run=x --task=ud --layers=0,0", "--layers=0,0: 0 is given twice"),
        ("similarity --run=x --words=a.txt,a.txt", "--words=a.txt,a.txt: a.txt is given twice"),
        ("scaling x --along=size,size", "--along=size,size: size is given twice"),
        ("bench --only=small-mlm,small-mlm", "--only=small-mlm,small-mlm: small-mlm is given twice"),
    ],
)
def test_what_is_given_twice_or_as_nothing_is_refused(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    study = (
        "from bertlab.config import parse_arguments\ndef get_study(arguments=None):\n    parse_arguments(arguments, seeds=1)\n"
    )
    (tmp_path / "x.py").write_text(study)
    assert cli.main(words.format(root=tmp_path).split()) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(TextCorpus(f"text:{path}").documents()),
        lambda path: read_lines(path, "--text"),
        lambda path: read_pairs(path),
        lambda path: read_ratings(path, "--words"),
        read_words,
    ],
)
@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("a\nb".encode("utf-16"), r"byte 0 \(line 1\)"),
        (b"\n\r\n\xc3", r"byte 3 \(line 3\)"),
        (b"\xef\xbb\xbf\n\n\xe9", r"byte 5 \(line 3\)"),
        (b"\xef\xbb\xbf\xe9\n", r"byte 3 \(line 1\)"),
    ],
)
def test_text_that_is_not_utf8_is_named_by_byte_and_line(content, place, read, tmp_path):
    (tmp_path / "lines.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"lines\.txt: {place} is not UTF-8 text; convert the file, for example with iconv"):
        read(tmp_path / "lines.txt")


@pytest.mark.parametrize("words", ["keys --markdown", "--help", "doctor nowhere 2>&1"])
def test_a_reader_that_ends_first_ends_a_command_silently(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = ["sh", "-c", f'exec "{sys.executable}" -m bertlab {words}']
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_table_whose_reader_ends_first_is_an_error_as_of_print(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(file, "write", lambda _: os.write(writer, b"row"))
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        Console(file=file).print("row")
    os.close(writer)


def test_another_broken_pipe_than_that_of_the_output_has_its_traceback(monkeypatch):
    def fails():
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr(cli, "main", fails)
    monkeypatch.setattr(cli, "begin_with_huge_pages", lambda: None)
    with pytest.raises(BrokenPipeError, match="of a worker"):
        cli.command()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("tokenizer encode --tokenizer={tokenizer} <&-", 2, b"bertlab tokenizer: standard input is closed; give it lines"),
        ("doctor nowhere 2>&-", 2, b""),
        ("doctor nowhere >&-", 2, b"bertlab doctor: nowhere is not a run"),
        ("keys model.width >&-", 0, b""),
    ],
)
def test_a_standard_file_that_is_closed(words, status, said, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    command = ["sh", "-c", f'exec "{sys.executable}" -m bertlab {words.format(tokenizer=vocabulary)}']
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == status and ended.stderr.startswith(said) and ended.stderr.count(b"\n") == bool(said)


@pytest.mark.parametrize("seconds", ["x", "nan", "-1", "inf"])
def test_a_patience_that_is_no_time_is_one_sentence(seconds):
    environment = os.environ | {"BERTLAB_PATIENCE": seconds}
    ended = subprocess.run([sys.executable, "-c", "import bertlab.alive"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.splitlines()[-1].startswith(f"bertlab: BERTLAB_PATIENCE={seconds}: expected")


def test_an_interrupted_init_can_be_tried_again(tmp_path, monkeypatch):
    written = []

    def interrupted(target, content):
        if written:
            raise KeyboardInterrupt
        write_bytes(target, content)
        written.append(target)

    with monkeypatch.context() as patch:
        patch.setattr("bertlab.own_project.write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_project(tmp_path / "new")
    files = write_project(tmp_path / "new")
    # Killed after some files, in the middle of another.
    files[-1].rename(files[-1].with_name(f"{files[-1].name}.12.partial"))
    assert write_project(tmp_path / "new") == files == sorted((tmp_path / "new").iterdir())
    with pytest.raises(UserError, match="is not an empty directory"):
        write_project(tmp_path / "new")
    files[0].unlink()
    files[1].write_text("mine")
    with pytest.raises(UserError, match="is not an empty directory"):
        write_project(tmp_path / "new")
