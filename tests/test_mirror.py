"""A folder's snapshots at a URL: whole, of one moment, never mixed; and a command whose machine is taken away at any moment."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import fsspec
import pytest

from bertlab import mirror as mirror_module
from bertlab.cli import main
from bertlab.errors import RunFailed, UserError
from bertlab.files import host, whole_directory, whole_file
from bertlab.locks import alone
from bertlab.mirror import MARK, Mirror, Superseded, attended, freeze
from tests.conftest import ROOT


@pytest.fixture
def url():
    """An empty place in the memory of this process."""
    system = fsspec.filesystem("memory")
    yield "memory://bucket/run"
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{host()}-{os.getpid()}.partial")
        part.write_text(text)
        part.rename(path)
    return folder


def read(folder):
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    found.pop(MARK, None)
    return found


def saved(url, folder, **how):
    mirror = Mirror(url)
    mirror.claim()
    mirror.save(folder, **how)
    return mirror


def objects(url):
    return sorted(path.removeprefix("/bucket/run/") for path in fsspec.filesystem("memory").find("/bucket/run"))


def test_what_is_saved_is_taken_elsewhere_with_all_but_what_belongs_to_one_machine(url, tmp_path):
    here = write(tmp_path / "here", a="1", checkpoints__2__state="two", metrics="lines")
    (here / "empty" / "inner").mkdir(parents=True)
    write(here, **{"run.lock": "", "sweep.lock": "", "alive.txt": "1 on this host", "a.other-host-12.partial": "half"})
    (here / "checkpoints" / "4.orbax-checkpoint-tmp").mkdir()
    kept = {"a": "1", "checkpoints/2/state": "two", "metrics": "lines", "uv.lock": "u", "v.partial": "v"}
    write(here, **{name: kept[name] for name in ("uv.lock", "v.partial")})
    with alone(here / "a", say=print), whole_file(here / "b") as half, whole_directory(here / "c") as part:
        half.write_text("half")
        (part / "half").write_text("half")
        assert len(os.listdir(here)) == len({"a", "checkpoints", "empty", "metrics", "uv.lock", "v.partial"}) + 4 + 3
        saved(url, here, status=3)
    there = tmp_path / "there"
    assert Mirror(url).take(there).status == 3
    assert read(there) == kept
    assert (there / "empty" / "inner").is_dir() and sorted(os.listdir(there / "checkpoints")) == ["2"]
    assert sorted(os.listdir(tmp_path)) == ["here", "there"], "nothing temporary is left"


def test_a_snapshot_uploads_what_is_new_and_removes_what_it_no_longer_names(url, tmp_path):
    here = write(tmp_path / "here", a="1", b="same", c="same")
    mirror = saved(url, here)
    first = objects(url)
    assert len(first) == 2 + 2, "two contents, the claim and the list"
    put = []
    upload = mirror._bucket.put
    mirror._bucket.put = lambda file, name: put.append(name) or upload(file, name)
    mirror.save(here)
    assert put == [] and objects(url) == first, "nothing has changed"
    write(here, a="2")
    mirror.save(here)
    assert len(put) == 1 and len(objects(url)) == 4
    other = saved(url, write(tmp_path / "other", a="3"))
    other.tidy()
    assert len(objects(url)) == 3 and all(name.startswith("000002/") for name in objects(url)), "of the first nothing is left"


def test_an_older_attempt_that_is_alive_ends_and_damages_nothing(url, tmp_path):
    old = saved(url, write(tmp_path / "old", a="old", shared="both"))
    new = Mirror(url)
    new.claim()
    new.take(tmp_path / "new")
    with pytest.raises(Superseded, match=f"was taken over by process {os.getpid()} on "):
        old.save(write(tmp_path / "old", a="older still"))
    new.save(write(tmp_path / "new", a="new"))
    with pytest.raises(Superseded):
        old.tidy()
    assert Mirror(url).take(tmp_path / "third") and read(tmp_path / "third") == {"a": "new", "shared": "both"}


def test_a_folder_and_a_list_that_are_refused_end_no_other_attempt(tmp_path, capsys):
    url, wrong = f"file://{tmp_path}/bucket", write(tmp_path / "wrong", b="2")
    alive = saved(url, write(tmp_path / "here", a="1"))
    assert main(["mirror", str(wrong), url, "--", "touch", f"{wrong}/ran"]) == 2
    assert "holds files that are not from" in capsys.readouterr().err and read(wrong) == {"b": "2"}
    listed = tmp_path / "bucket" / "000001" / "list.json"
    whole = listed.read_text()
    listed.write_text("{")
    new = tmp_path / "new"
    assert main(["mirror", str(new), url, "--", "touch", f"{new}/ran"]) == 2
    assert "is damaged" in capsys.readouterr().err and not new.exists()
    listed.write_text(whole)
    alive.save(write(tmp_path / "here", a="3"))
    assert os.listdir(tmp_path / "bucket") == ["000001"]
    other = Mirror(url)
    claim = other.claim
    other.claim = lambda: (claim(), write(wrong.parent / "late", b="2"))
    with pytest.raises(UserError, match="holds files that are not from"):  # they came meanwhile
        other.begin(tmp_path / "late")
    assert read(tmp_path / "late") == {"b": "2"}


def test_an_attempt_that_is_taken_over_between_its_list_and_its_clearing_removes_nothing(url, tmp_path, monkeypatch):
    """The newer one has read the list before, whose contents the older one would now remove."""
    old, new = saved(url, write(tmp_path / "old", a="1")), Mirror(url)
    replace = old._bucket.replace

    def be_taken_over(name, content):
        new.claim()
        new.newest()
        replace(name, content)

    monkeypatch.setattr(old._bucket, "replace", be_taken_over)
    with pytest.raises(Superseded):
        old.save(write(tmp_path / "old", a="2"))
    new.save(write(tmp_path / "new", a="1"))
    assert Mirror(url).take(tmp_path / "third") and read(tmp_path / "third") == {"a": "1"}


def test_attempts_that_begin_at_once_have_different_numbers(tmp_path):
    mirrors = [Mirror(f"file://{tmp_path}/run") for _ in range(8)]
    threads = [threading.Thread(target=mirror.claim) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(mirror._number for mirror in mirrors) == list(range(1, 9))


def test_a_store_that_creates_one_object_twice_is_refused(url, monkeypatch):
    mirror = Mirror(url)
    monkeypatch.setattr(mirror._bucket, "create", lambda name, content: True)
    with pytest.raises(UserError, match="creates one object twice"):
        mirror.claim()


def test_a_folder_that_went_on_from_the_newest_snapshot_stays_and_one_that_is_something_else_is_refused(url, tmp_path):
    here = write(tmp_path / "here", a="1")
    saved(url, here)
    write(here, a="2")
    assert Mirror(url).take(here) and read(here) == {"a": "2"}, "it is further than the snapshot"
    there = tmp_path / "there"
    Mirror(url).take(there)
    saved(url, write(there, a="3"))
    assert Mirror(url).take(here, keep=["b"]) and read(here) == {"a": "3"}, "the snapshot is further"
    other = write(tmp_path / "other", a="4")
    with pytest.raises(UserError, match="holds files that are not from memory://bucket/run; give another folder"):
        Mirror(url).take(other)
    write(other, b="5")
    assert Mirror(url).take(other, keep=["b"], begun=lambda _: False) and read(other) == {"a": "3", "b": "5"}
    assert Mirror("memory://bucket/none").take(other) is None


def test_damage_to_any_object_is_noticed_and_the_folder_stays(url, tmp_path):
    system = fsspec.filesystem("memory")
    saved(url, write(tmp_path / "here", a="1"))
    [content] = [name for name in objects(url) if "." not in name and "claim" not in name]
    good = {name: system.cat_file(f"/bucket/run/{name}") for name in objects(url)}
    listed = json.loads(good["000001/list.json"])
    bad = [(content, b"x"), (content, None), ("000001/list.json", b"{"), ("000001/list.json", b"\xff")]
    for name in ("../../a", "/a", "a/../b", ""):
        bad.append(("000001/list.json", json.dumps(listed | {"files": {name: listed["files"]["a"]}}).encode()))
    bad.append(("000001/list.json", json.dumps(listed | {"folders": [".."]}).encode()))
    bad.append(("000001/list.json", json.dumps(listed | {"files": {"a": {"bytes": 1, "blake2b": "x", "at": "../x"}}}).encode()))
    there = tmp_path / "there"
    for name, value in bad:
        system.rm_file(f"/bucket/run/{name}") if value is None else system.pipe_file(f"/bucket/run/{name}", value)
        with pytest.raises(UserError, match=r"memory://bucket/run/.* is damaged") as error:
            Mirror(url).take(there)
        assert "\n" not in str(error.value) and not there.exists() and os.listdir(tmp_path) == ["here"]
        system.pipe_file(f"/bucket/run/{name}", good[name])
    assert Mirror(url).take(there)


def test_a_snapshot_is_of_one_moment_while_others_write(tmp_path, monkeypatch):
    """Between the copies of two files both are replaced, three times; then others rest."""
    folder, copied, copy = write(tmp_path / "run", first="0", second="0"), [], mirror_module.shutil.copy2

    def copy_while_others_write(source, target):
        copy(source, target)
        copied.append(target.name)
        if copied[-1] == "first" and len(copied) < 6:
            write(folder, first=str(len(copied)), second=str(len(copied)))

    monkeypatch.setattr(mirror_module.shutil, "copy2", copy_while_others_write)
    monkeypatch.setattr(mirror_module.time, "sleep", lambda _: None)
    freeze(folder, tmp_path / "frozen")
    assert copied == 4 * ["first", "second"], "each pair that was of two moments was copied again"
    assert read(tmp_path / "frozen") == read(folder) == {"first": "5", "second": "5"}


def test_a_folder_that_is_never_at_rest_is_said(tmp_path, monkeypatch):
    folder = write(tmp_path / "run", a="1")
    entries, number = mirror_module._entries, iter(range(1000))
    monkeypatch.setattr(mirror_module, "_entries", lambda of: [*entries(of), (f"new-{next(number)}/", 0)])
    monkeypatch.setattr(mirror_module.time, "sleep", lambda _: None)
    with pytest.raises(RunFailed, match="changes all the time"):
        freeze(folder, tmp_path / "frozen")


def test_links_are_saved_as_what_they_lead_to_or_left_out(url, tmp_path):
    disk = write(tmp_path / "disk", state="three")
    here = write(tmp_path / "here", a="1", checkpoints__2__state="two")
    (here / "file").symlink_to("a")
    (here / "checkpoints" / "3").symlink_to(disk)
    (disk / "back").symlink_to(here)
    for name, target in {"loop": "loop", "up": "..", "self": ".", "none": "nothing"}.items():
        (here / name).symlink_to(target)
    os.mkfifo(here / "pipe")
    mirror = saved(url, here)
    assert mirror.left_out == ["checkpoints/3/back", "loop", "none", "pipe", "self", "up"]
    assert Mirror(url).take(tmp_path / "there").folders == ["checkpoints", "checkpoints/2", "checkpoints/3"]
    content = {"a": "1", "file": "1", "checkpoints/2/state": "two", "checkpoints/3/state": "three"}
    assert read(tmp_path / "there") == content
    (tmp_path / "linked").symlink_to("here")
    assert saved("memory://bucket/run/linked", tmp_path / "linked").newest().files.keys() == content.keys()
    (here / "file").unlink()
    (here / "file").symlink_to("checkpoints/2/state")
    mirror.save(here)
    assert Mirror(url).take(tmp_path / "there") and read(tmp_path / "there")["file"] == "two"


@pytest.mark.parametrize("name", [b"bad-\xff", b"folder-\xff/a"])
def test_a_name_that_is_not_utf8_is_refused_and_the_snapshot_before_it_stays(url, tmp_path, name, capsys):
    here = write(tmp_path / "here", a="1")
    mirror = saved(url, here)
    path = here / os.fsdecode(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("2")
    shown = re.escape(rf"{here} holds the name b'{name.decode('ascii', 'backslashreplace').removesuffix('/a')}")
    with pytest.raises(RunFailed, match=shown + "/?', which is not UTF-8"):
        mirror.save(here)
    assert Mirror(url).take(tmp_path / "there") and read(tmp_path / "there") == {"a": "1"}
    assert sorted(os.listdir(tmp_path)) == ["here", "there"]
    bucket = tmp_path / "bucket"
    assert main(["mirror", str(here), f"file://{bucket}", "--", "touch", f"{here}/ran"]) == 2 and not bucket.exists()
    assert re.search(shown, capsys.readouterr().err) and not (here / "ran").exists()
    mirror.save(write(tmp_path / "here too", a="3"))  # no other attempt has begun


def test_a_place_where_no_snapshot_can_stay_is_refused(tmp_path, capsys):
    folder, text = write(tmp_path / "run", a="1"), write(tmp_path, text="t") / "text"
    (tmp_path / "link").symlink_to(folder)
    other = write(tmp_path / "other", b="2")
    (folder / "led").symlink_to(other)
    for url, message in (
        (f"file://{folder}/in/it", f"is in {folder}, so each snapshot would hold"),
        (f"file://{tmp_path}/link", f"is in {folder}, so each"),
        (f"file://{other}/deep/it", f"is in {folder}/led, so each"),
        (f"file://{text}", f"{text} is a file; give a folder"),
        (f"file://{text}/x", f"{text} is a file; give a folder"),
        ("memory://bucket/lost", "is lost when this process ends"),
    ):
        for command in ([], ["--", "touch", f"{folder}/ran"]):
            assert main(["mirror", str(folder), url, *command]) == 2
            said = capsys.readouterr().err
            assert said.startswith(f"bertlab mirror: {url}") and message in said and said.count("\n") == 1
    assert read(folder) == {"a": "1"} and read(other) == {"b": "2"} and text.read_text() == "t"


def test_a_file_that_may_be_executed_comes_back_so_and_lists_without_that_can_be_read(url, tmp_path):
    here = write(tmp_path / "here", run="#!/bin/sh", a="1")
    (here / "run").chmod(0o755)
    mirror = saved(url, here)
    Mirror(url).take(tmp_path / "there")
    executable = lambda folder: {path.name for path in folder.iterdir() if os.access(path, os.X_OK)}
    assert executable(tmp_path / "there") == {"run"}
    assert {name: of.get("executable") for name, of in mirror.newest().files.items()} == {"run": True, "a": None}
    (here / "run").chmod(0o644)
    mirror.save(here)  # a list as those of earlier versions
    assert Mirror(url).take(tmp_path / "there") and executable(tmp_path / "there") == set()


def test_a_relative_path_is_refused_as_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("file://relative/x", "file://x"):
        with pytest.raises(UserError, match=f"^{url}: the path is relative; give an absolute one, as in file:///"):
            Mirror(url)
    assert Mirror(f"file://{tmp_path}/x").newest() is None


COUNTER = """
import sys, time
from pathlib import Path
path, last = Path(sys.argv[1]) / "number", int(sys.argv[2])
part = path.with_name("number.here-1.partial")
number = int(path.read_text()) if path.exists() else 0
while number < last:
    number += 1
    part.write_text(str(number))
    part.rename(path)
    time.sleep(0.02)
sys.exit(5)
"""


def test_a_command_is_attended_and_its_status_is_kept(url, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    mirror, moments = Mirror(url), []
    mirror.claim()
    save = mirror.save
    mirror.save = lambda folder, status=None: (save(folder, status), moments.append(Mirror(url).newest().status))
    start = lambda: subprocess.Popen([sys.executable, "-c", COUNTER, str(folder), "30"])
    assert attended(mirror, folder, start, 0.1, print) == 5
    assert moments[-1] == 5 and len(moments) > 2 and set(moments[:-1]) == {None}
    assert Mirror(url).take(tmp_path / "there").status == 5 and read(tmp_path / "there") == {"number": "30"}


NAMES = """
import os, sys, time
folder = os.fsencode(sys.argv[1])
open(folder + b"/\\xff", "w").close()
os.symlink("loop", folder + b"/loop")
os.symlink("..", folder + b"/up")
while not os.path.exists(sys.argv[1] + "/said"):
    time.sleep(0.02)
if sys.argv[2] == "mend":
    os.rename(folder + b"/\\xff", folder + b"/mended")
"""


def test_a_command_that_makes_links_and_a_name_that_is_not_utf8_is_told_so(url, tmp_path):
    folder, lines = tmp_path / "run", []
    folder.mkdir()

    def say(line):
        lines.append(line)
        if "not UTF-8" in line:
            (folder / "said").write_text("")

    mirror = Mirror(url)
    mirror.claim()
    start = lambda how: lambda: subprocess.Popen([sys.executable, "-c", NAMES, str(folder), how])
    assert attended(mirror, folder, start("mend"), 0.1, say) == 0
    assert Mirror(url).take(tmp_path / "there") and read(tmp_path / "there") == {"mended": "", "said": ""}
    assert attended(mirror, folder, lambda: subprocess.Popen(["true"]), 0.1, say) == 0, "and is not told again"
    of = f"left out of the snapshots of {folder}: 'loop' and 1 more (links to nothing or in a circle, pipes, sockets)"
    assert lines.count(of) == 1 and sum("left out" in line for line in lines) == 1
    assert any(line.startswith("no snapshot was saved (") and "b'\\xff'" in line for line in lines)
    for name in ("loop", "up", "said"):
        (folder / name).unlink()
    with pytest.raises(RunFailed, match="not UTF-8"):
        attended(mirror, folder, start("leave"), 0.1, say)
    assert "mended" in Mirror(url).newest().files, "the list before it can be read"


SAVES = """
import signal, sys
from pathlib import Path
def save(*_):
    (Path(sys.argv[1]) / "saved").write_text("1")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
(Path(sys.argv[1]) / "begun").write_text("1")
signal.pause()
"""


def test_a_command_may_have_empty_arguments(tmp_path):
    folder = tmp_path / "run"
    words = ["sh", "-c", 'test $# = 2 -a -z "$1$2" && touch "$0/ran"', str(folder), "", ""]
    assert main(["mirror", str(folder), f"file://{tmp_path}/bucket", "--", *words, "--x="]) == 1, "three"
    assert main(["mirror", str(folder), f"file://{tmp_path}/bucket", "--", *words]) == 0 and (folder / "ran").exists()


def test_a_command_that_is_told_to_save_has_not_finished(tmp_path):
    """As where a machine is taken away: whoever starts it again must not see status 0."""
    folder, url = tmp_path / "run", f"file://{tmp_path}/bucket"
    words = [sys.executable, "-m", "bertlab.cli", "mirror", "--seconds=60", str(folder), url, "--"]
    words += [sys.executable, "-c", SAVES, str(folder)]
    process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "begun").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 143
    first, last = process.communicate()[0].splitlines()
    assert first.startswith(f"{url} has no snapshot") and last == f"the last snapshot of {folder} is in {url}"
    assert Mirror(url).take(tmp_path / "there").status is None and "saved" in read(tmp_path / "there")
    again = subprocess.run([*words[:-4], "true", str(folder)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines()[0] == f"{folder} goes on from the newest snapshot in {url}"


def test_a_command_whose_attempt_was_taken_over_is_ended(url, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    mirror = Mirror(url)
    mirror.claim()
    Mirror(url).claim()
    started = []
    start = lambda: started.append(subprocess.Popen([sys.executable, "-c", COUNTER, str(folder), "100000"])) or started[0]
    with pytest.raises(Superseded):
        attended(mirror, folder, start, 0.1, print)
    assert started[0].poll() is not None


def test_a_store_that_is_away_for_a_while_is_said_and_nothing_is_lost(url, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    mirror, lines = Mirror(url), []
    mirror.claim()
    system, failures = fsspec.filesystem("memory"), iter([ValueError("away")])
    listing = system.ls

    def ls(*given, **more):
        for failure in failures:
            raise failure
        return listing(*given, **more)

    monkeypatch.setattr(system, "ls", ls)
    start = lambda: subprocess.Popen([sys.executable, "-c", COUNTER, str(folder), "30"])
    assert attended(mirror, folder, start, 0.1, lines.append) == 5
    away, last = lines
    assert "ValueError: away" in away and url in last, "and where the last one is"
    assert Mirror(url).take(tmp_path / "there") and read(tmp_path / "there") == {"number": "30"}
