"""Calls that fail: the layer's own, and a few of the points that `make soak` goes through."""

import os
import re
import subprocess
import sys

import pytest

from bertlab.checksums import write_list
from tests.conftest import ROOT
from tests.faults.soak import contents, listed_wrongly, not_whole

OWN = """
import shutil
from pathlib import Path
from bertlab.files import write_text
from tests.faults.layer import FAULTS, Layer

def work():
    try:
        write_text(root / "new" / "a.json", "text" * 9)
    except OSError:
        return 1
    return 0

root = Path(sys.argv[1])
layer = Layer([root])
assert layer.run(work) == 0 and not layer.unsynchronised
for point in layer.points:
    for fault in FAULTS[point.operation]:
        shutil.rmtree(root / "new", ignore_errors=True)
        layer = Layer([root], point, fault)
        status = layer.run(work)
        file = root / "new" / "a.json"
        print(point, fault, status, layer.met, file.read_text() == "text" * 9 if file.exists() else None)
"""


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_each_call_of_a_write_fails_once_and_leaves_no_half_of_a_file(tmp_path):
    lines = [line.split() for line in run("-c", "import sys" + OWN, str(tmp_path)).splitlines()]
    points = [point.partition(":")[0] for point, *_ in lines]
    assert sorted(set(points)) == ["mkdir", "open", "rename", "sync", "write"]
    assert len(lines) == 3 + 4 + 4 + 3 + 5 + 3
    for point, fault, status, met, whole in lines:
        expected = {"short": ("0", "True"), "killed": ("-9", "None"), "torn": ("-9", "None")}.get(fault, ("1", "None"))
        if point.startswith("sync:") and point.endswith("/new#1"):  # of the folder, when the file has its name
            expected = expected[0], "True"
        assert met == "True" and (status, whole) == expected, (point, fault)


NAMED = """
import os
import sys
from pathlib import Path
from bertlab.files import move
from tests.faults.layer import Layer

def work():
    for name, give in {"early": os.rename, "late": move}.items():
        (root / f".{name}.part-1" / "below").mkdir(parents=True)
        for file in ("a", "below/b"):
            (root / f".{name}.part-1" / file).write_text("half")
            (root / f".{name}.part-1" / f"{file}.partial").write_text("text")
            os.replace(root / f".{name}.part-1" / f"{file}.partial", root / f".{name}.part-1" / file)
        give(root / f".{name}.part-1", root / name)
    return 0

root = Path(sys.argv[1])
layer = Layer([root])
assert layer.run(work) == 0
print(*layer.unsynchronised)
"""


def test_what_gets_its_name_before_it_is_on_the_disk_is_seen(tmp_path):
    assert run("-c", NAMED, str(tmp_path)).split() == [f"{tmp_path}/early/a", f"{tmp_path}/early/below/b"]


TWO = """
import os
import sys
from pathlib import Path
from bertlab.files import write_text
from tests.faults.layer import LOST, Layer

def work():
    children = []
    for name in ("a", "b"):
        children.append(os.fork())
        if children[-1] == 0:
            write_text(root / name, "text")
            os._exit(0)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return [[0, 0], [-9, 0], [0, -9]].index(statuses)

root = Path(sys.argv[1])
layer = Layer([root])
assert layer.run(work) == 0
for point in [point for point in layer.points if not point.path.endswith("/.")]:  # of the directory, which both name
    for file in root.iterdir():
        file.unlink()
    layer = Layer([root], point, LOST)
    status = layer.run(work)
    print(point.operation, point.path.partition("/")[2][0], status, layer.met, *sorted(path.name[0] for path in root.iterdir()))
"""


def test_of_two_processes_only_the_one_that_makes_the_call_is_lost(tmp_path):
    found = [line.split() for line in run("-c", TWO, str(tmp_path)).splitlines()]
    assert sorted(row[:2] for row in found) == sorted(
        [call, name] for call in ("open", "rename", "sync", "write") for name in "ab"
    )
    for call, name, status, met, *left in found:
        half = [name] if call != "open" else []  # its file under another name
        assert (status, met, left) == (str(1 + (name == "b")), "True", sorted([*half, {"a": "b", "b": "a"}[name]]))


def test_whatever_is_half_written_under_a_final_name_is_noticed(tmp_path):
    files = {"e/x.safetensors": b"weights", "report/table.csv": b"a,b\n1,2\n", "predictions/test.jsonl": b'{"a": 1}\n'}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)
    (tmp_path / "result.json").write_text("{}")
    write_list(tmp_path, [tmp_path / "result.json"])
    known = [{}, contents(tmp_path)]
    left = lambda cleans_up=True: not_whole(tmp_path, known, cleans_up).removeprefix(f"{tmp_path}/")
    assert left() == ""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content[:4])
        assert left() == f"{name} is {'not whole' if name.endswith('.jsonl') else 'neither as before nor as in the end'}"
        (tmp_path / name).unlink()
        assert left() == ""
        (tmp_path / name).write_bytes(content)
    evaluated = tmp_path / "predictions" / "valid.jsonl"
    for content, expected in (('{"score": 1}\n', ""), ('{"score": 1}\n{"sc', "predictions/valid.jsonl is not whole")):
        evaluated.write_text(content)
        assert left() == expected, "of an earlier evaluation, and whole"
    evaluated.unlink()
    unnamed = tmp_path / ".x.part-host-12" / "weights"
    unnamed.parent.mkdir()
    unnamed.write_text("half")
    assert left() == "", "of a process that was killed; the next one removes it"
    partial = tmp_path / "e" / "x.safetensors.12.partial"
    partial.touch()
    assert (left(), left(cleans_up=False)) == ("e/x.safetensors.12.partial is left over", "")
    partial.unlink()
    (tmp_path / "result.json").write_text('{"a": 1}')
    assert (
        left()
        == "result.json is damaged (it has 8 bytes instead of 2)"
        == listed_wrongly(tmp_path).partition(f"{tmp_path}/")[2]
    )
    (tmp_path / "result.json").write_text('{"a"')
    assert left() == "result.json is not whole"


# The disk is full in the middle of a checkpoint; the removal of an old one stops half-way; one has no costs; the process is
# killed after half of a checkpoint's file, and before a checkpoint gets its name.
FULL = {r"train/write:a/checkpoints/4[^=]*state[^/]*/d/\*#1=ENOSPC": "write"}
OTHERS = {r"train/remove:a/checkpoints/2/state#1=EIO": "remove", r"train/rename:a/costs.json#2=EIO": "rename"}
KILLED = {r"train/write:a/checkpoints/4[^=]*state[^/]*/d/\*#1=torn": "write", "train/rename:a/checkpoints/4#1=killed": "rename"}


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(FULL, marks=pytest.mark.slow),
        *(pytest.param(points, marks=pytest.mark.nightly) for points in (OTHERS, KILLED)),
    ],
)
def test_a_run_that_meets_a_fault_ends_as_an_undisturbed_one(points):
    said = run("-m", "tests.faults.soak", f"--only={'|'.join(points)}", "--stages=prepare,train")
    rows = dict(re.findall(r"^(\w+) +\w+ +(\d+ +\d+ +\d+)$", said, re.MULTILINE))
    assert {operation: numbers.split() for operation, numbers in rows.items()} == {
        of: ["1", "0", "0"] for of in points.values()
    }


@pytest.mark.nightly
def test_one_of_two_processes_that_cannot_write_does_not_hold_the_other():
    """Each waits for the other before a checkpoint gets its name; a command that takes ten minutes counts as failed."""
    point = "processes/mkdir:several/x/checkpoints/6.orbax-checkpoint-tmp#2=EROFS"
    said = run("-m", "tests.faults.soak", f"--only={point}", "--stages=prepare,processes")
    assert re.search(r"^mkdir +EROFS +1 +0 +0$", said, re.MULTILINE)
