"""Two processes at one place: the second waits or refuses, names the first, and takes over from one that was killed."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertlab import cli, locks
from bertlab.errors import UserError
from bertlab.locks import alone
from bertlab.run import Run, StudyDirectory
from bertlab.studies.study import Study
from bertlab.studies.sweep import sweep
from bertlab.studies.worker import execute_job, write_job
from bertlab.train import processes
from bertlab.transfer import evaluate
from tests.conftest import ROOT
from tests.studies.conftest import objectives_study, write_run, write_study

CONFIG = f"{ROOT}/experiments/pretrain/bert.py"
STUDY = Study(name="s", title="", question="", config=CONFIG, axes={"seed": [1]}, overrides={"mesh.data": 1})
# Holds a place until its input closes, under the name of a command.
HOLD = """
import sys
from pathlib import Path
from bertlab.locks import alone
place, lock = sys.argv[1:]
sys.argv[:] = ["/usr/bin/bertlab", "something", "x y"]
with alone(place, Path(lock) if lock else None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold():
    """A function (place, its lock file) -> a process that holds it."""
    begun = []

    def begin(place, lock: Path | None = None):
        command = [sys.executable, "-c", HOLD, str(place), str(lock or "")]
        begun.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        assert begun[-1].stdout.readline() == "held\n"
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def killed_meanwhile(monkeypatch):
    """A function (process): it is killed once this process waits."""

    def begin(process):
        def sleep(seconds):
            process.kill()
            process.wait()

        monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))

    return begin


@pytest.fixture
def run(small_config, tmp_path):
    """A run's directory with a config only: what is refused looks no further."""
    run = Run(tmp_path / "run")
    run.config.write(small_config().to_dict())
    return run.directory


def files(directory: Path) -> dict[str, str]:
    return {str(path): path.read_text() if path.is_file() else "" for path in sorted(directory.rglob("*"))}


# Command -> what it writes to. A run's directory has its lock inside; all others beside.
REFUSING = {
    "train --config={config} --config.mesh.data=1 --config.data.corpus=pydocs --workdir={place}/x": "x",
    "finetune --run={run} --task={task} --workdir={place}/x": "x",
    "adapt --run={run} --task={task} --workdir={place}/x": "x",
    "tokenizer train --corpus=pydocs --out={place}/x": "x",
    "embed --run={run} --text={place}/text --out={place}/x.npz": "x.npz",
    "export {run} --to=huggingface {place}/x": "x",
    "import --from=huggingface {run} --workdir={place}/x": "x",
    "publish {place}/study {place}/x": "x",
}


@pytest.mark.parametrize("command", REFUSING, ids=lambda command: command.split()[0])
def test_the_second_is_refused_in_one_sentence_that_names_the_first(command, hold, run, words_task, tmp_path, capsys):
    (tmp_path / "text").write_text("a parser\n")
    StudyDirectory(tmp_path / "study").study.write({"name": "s", "runs": []})
    place = tmp_path / REFUSING[command]
    first = hold(place, Run(place).lock if command.split()[0] in ("train", "finetune", "adapt") else None)
    before = files(tmp_path)
    words = command.format(config=CONFIG, run=run, task=words_task, place=tmp_path).split()
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith(f"bertlab {words[0]}: {place} is in use by process {first.pid} on ")
    assert f"on {socket.gethostname()} (bertlab something 'x y', since {time.strftime('%Y-')}" in said
    assert files(tmp_path) == before


def test_a_second_sweep_is_refused_at_once(hold, tmp_path):
    first = hold(tmp_path, StudyDirectory(tmp_path).lock)
    with pytest.raises(UserError, match=rf"{tmp_path} is in use by process {first.pid} on .*bertlab"):
        sweep(STUDY, tmp_path, runner="nobody:starts")
    assert not StudyDirectory(tmp_path).study.exists()


def reported(place):
    write_run(place / "run", "MLM", 1, steps=3)
    return ["report", f"{place}/run"], place / "run" / "report", place / "run" / "report.html"


def prepared(place):
    (place / "text.txt").write_text("\n\n".join(f"the parser reads file {i}" for i in range(40)))
    tokenizer = ["--config.data.tokenizer.kind=words", "--config.data.tokenizer.vocab_size=20", "--config.data.workers=1"]
    command = ["prepare", f"--corpus=text:{place}/text.txt", *tokenizer, f"--config.data.directory={place}/cache"]
    assert cli.main(command) == 0
    [corpus] = (place / "cache").iterdir()  # no lock is left
    corpus.rename(place / "expected")
    return command, corpus, corpus / "prepared.json"


def evidenced(place):
    write_study(place / "results" / "s", objectives_study((1, 2), ("MLM", "LTR")))
    (place / "studies").mkdir()
    own = "def get_study(arguments):\n    return Study(name='s', title='', question='', config='x', axes={'seed': [1]})\n"
    (place / "studies" / "s.py").write_text(f"from bertlab.studies.study import Study\n{own}")
    page = place / "results" / "README.md"
    return ["evidence", f"{place}/results", f"--studies={place}/studies"], page, page


@pytest.mark.parametrize("kind", [prepared, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (reported, evidenced))])
def test_the_second_waits_for_the_first_by_name_and_takes_over_when_it_is_killed(
    kind, hold, killed_meanwhile, tmp_path, capsys
):
    command, place, made = kind(tmp_path)
    first = hold(place)
    killed_meanwhile(first)
    capsys.readouterr()
    assert cli.main(command) == 0 and made.exists()
    said = capsys.readouterr().out
    assert f"waiting for process {first.pid} on {socket.gethostname()} (bertlab something" in said
    assert not list(tmp_path.rglob("*.lock"))


def test_a_worker_waits_for_whoever_trains_its_run(hold, killed_meanwhile, tmp_path, capsys):
    first = hold(tmp_path / "seed=1", Run(tmp_path / "seed=1").lock)
    killed_meanwhile(first)
    job = write_job(STUDY.runs()[0], tmp_path / "seed=1", "builtins:print")
    assert execute_job(job) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"waiting for process {first.pid}") and "name='seed=1'" in said


def test_what_another_process_measured_meanwhile_stays(run, hold, killed_meanwhile, monkeypatch, tmp_path, capsys):
    """Another evaluation of the run writes to the file while this one loads the model, and holds it as this one ends."""
    text, out = tmp_path / "text", tmp_path / "evaluation.json"
    text.write_text("a parser\n")

    def load(run, step, together):
        out.write_text('{"bits_per_byte": {"other": {"pseudo": {}}}}')
        killed_meanwhile(hold(out))
        return SimpleNamespace(kinds=["pseudo"], check_kind=str, lengths=lambda texts: [3], longest=8)

    monkeypatch.setattr(evaluate, "load", load)
    monkeypatch.setattr(evaluate, "_bits_per_byte", lambda *_: {"pseudo": {}})
    evaluate.evaluate(run, text=text, out=out)
    assert json.loads(out.read_text())["bits_per_byte"].keys() == {"other", str(text)}
    assert "waiting for process" in capsys.readouterr().out


def test_only_the_first_process_of_a_training_takes_the_lock(hold, monkeypatch, tmp_path):
    lock = Run(tmp_path).lock
    with processes.alone(tmp_path), processes.alone(tmp_path):
        assert json.loads(lock.read_text())["process"] == os.getpid()
    hold(tmp_path, lock)
    monkeypatch.setattr(processes, "is_first", lambda: False)
    with processes.alone(tmp_path):
        pass
    monkeypatch.setattr(processes, "gather", lambda refusal: ["x is in use", refusal])
    with pytest.raises(UserError, match="x is in use"), processes.alone(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_said_and_one_writer_goes_on(code, monkeypatch, tmp_path, capsys):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with alone(tmp_path / "x"), alone(tmp_path / "y", Run(tmp_path / "y").lock):
        said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and all(f"cannot be locked ({os.strerror(code)})" in line for line in said)
    assert not (tmp_path / "y").exists(), "nothing was written"
    with pytest.raises(UserError, match="file system with flock"), alone(tmp_path / "x", required=True):
        pass
    assert not list(tmp_path.rglob("*.lock"))


def test_a_place_that_cannot_be_written_needs_no_lock(monkeypatch, tmp_path):
    """A finished run on a read-only disk."""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(locks, "_open", refuse)
    with pytest.raises(OSError, match="Read-only"), alone(tmp_path, Run(tmp_path).lock):
        pass
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with alone(tmp_path, Run(tmp_path).lock) as descriptor:
        assert descriptor is None


def test_a_mistake_under_a_lock_leaves_nothing(tmp_path):
    place = tmp_path / "new" / "run"
    with pytest.raises(UserError, match="no"), alone(place, Run(place).lock):
        raise UserError("no")
    assert not list(tmp_path.iterdir())


COUNT = """
import os, sys, time
from pathlib import Path
from bertlab import locks

place, number = Path(sys.argv[1]), int(sys.argv[2])
locks.POLL_SECONDS = 0.0005
(place / "count").write_text("0")
for child in range(4):
    if os.fork() == 0:
        for _ in range(number):
            with locks.alone(place / "count", wait=True, say=lambda line: None):
                count = int((place / "count").read_text())
                time.sleep(0.0005)
                (place / "count").write_text(str(count + 1))
        os._exit(0)
print([os.waitstatus_to_exitcode(os.wait()[1]) for child in range(4)], (place / "count").read_text())
"""


def test_no_two_of_four_processes_hold_a_lock_that_each_removes(tmp_path):
    """A process that locked a file just removed would count beside one that locked its successor."""
    done = subprocess.run([sys.executable, "-c", COUNT, str(tmp_path), "25"], capture_output=True, text=True, cwd=ROOT)
    print(done.stdout)
    assert done.stdout == "[0, 0, 0, 0] 100\n", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


PREPARE = """
import hashlib, json, os, sys
from pathlib import Path
from bertlab.data import prepare
from bertlab.files import write_json

place, build = Path(sys.argv[1]), prepare._build

def counted(*arguments):
    with open(place / "built", "a") as file:
        file.write(f"{os.getpid()}\\n")
    build(*arguments)

prepare._build = counted
settings = {"corpus": f"text:{place}/text.txt", "directory": str(place / "cache"), "workers": 1, "valid_fraction": 0.2}
settings |= {"test_fraction": 0.2, "tokenizer": {"kind": "words", "vocab_size": 20}}
gate, opened = os.pipe()
for child in range(4):
    if os.fork() == 0:
        os.close(opened)
        os.read(gate, 1)  # until all have begun
        found = prepare.prepare(settings)
        digest = hashlib.sha256()
        for split in found.statistics:
            source = found.source(split)
            for record in map(source.__getitem__, range(len(source))):
                digest.update(f"{split} {record['id']} {record['document']}".encode() + record["tokens"].tobytes())
        write_json(place / f"{child}.json", [str(found.directory), found.statistics, digest.hexdigest()])
        os._exit(0)
os.close(opened)
print([os.waitstatus_to_exitcode(os.wait()[1]) for child in range(4)])
"""


def test_four_processes_that_prepare_one_corpus_make_it_once_and_read_the_same(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"the parser reads file {i}" for i in range(40)))
    done = subprocess.run([sys.executable, "-c", PREPARE, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0]", done.stdout + done.stderr
    read = [json.loads((tmp_path / f"{child}.json").read_text()) for child in range(4)]
    built = (tmp_path / "built").read_text().split()
    print(f"{len(built)} prepared, {done.stdout.count('waiting for')} waited, {len(read)} read the same")
    assert len(built) == 1 and read == [read[0]] * 4
    assert sum(split["documents"] for split in read[0][1].values()) == 40
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == [read[0][0]]


def a_link_to(file, other):
    other.write_text("important")
    file.symlink_to(other)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(a_link_to, id="a link"),
        pytest.param(lambda file, other: file.symlink_to(other), id="a link to nothing"),
        pytest.param(lambda file, other: file.mkdir(), id="a directory"),
        pytest.param(lambda file, other: os.mkfifo(file), id="a pipe"),
        pytest.param(lambda file, other: file.write_text("important"), id="another file"),
    ],
)
@pytest.mark.parametrize("lock", ["", "run.lock"])
def test_what_is_no_lock_is_named_and_not_touched(make, lock, tmp_path):
    """Such as what comes with a stranger's archive of a run."""
    place, other = tmp_path / "run", tmp_path / "other.txt"
    place.mkdir()
    file = place / lock if lock else tmp_path / ".run.lock"
    make(file, other)
    kind, words = os.lstat(file).st_mode, other.read_text() if other.exists() else None
    with pytest.raises(UserError, match=f"^{file} is not a lock that bertlab made; "), alone(place, lock and file):
        pass
    assert os.lstat(file).st_mode == kind and (other.read_text() if other.exists() else None) == words
    assert not file.is_file() or file.read_text() == "important"


def test_the_lock_of_a_process_that_was_killed_while_it_signed_is_taken_over(tmp_path):
    for left in ("", '{"proc', '{"process": 3, "ho'):
        (tmp_path / ".x.lock").write_text(left)
        with alone(tmp_path / "x"):
            assert json.loads((tmp_path / ".x.lock").read_text())["process"] == os.getpid()
