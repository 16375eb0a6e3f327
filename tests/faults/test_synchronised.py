"""What appears in one move is on the disk before it gets its name, and the name after it; its files have an ordinary mode."""

import errno
import json
import os
import stat

import fsspec
import pytest

from bertlab.config import base_config
from bertlab.data.formats.cooccurrence import entries
from bertlab.data.prepare import prepare
from bertlab.files import is_temporary, write_text
from bertlab.interop import export_weights, import_weights
from bertlab.mirror import Mirror
from bertlab.run import Run
from bertlab.studies.store import Store
from bertlab.transfer.features import extract
from bertlab.transfer.load import embed_file, load
from tests.interop import published


class Disk:
    """Follows the calls of this process.

    Attributes:
        early: files that were moved to a final name though their content had changed since it was brought to the disk.
        moved: names that were given.
        late: folders in which names were given that are not on the disk.
    """

    def __init__(self, monkeypatch):
        self.early, self.moved, self.late, self.kept = [], [], set(), {}
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: fsync(file) or self._keep(os.fstat(file)))
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._moving(getattr(os, name)))

    def _keep(self, of):
        self.kept[of.st_ino] = (of.st_size, of.st_mtime_ns)
        self.late -= {of.st_ino}

    def _moving(self, move):
        def moving(source, target):
            below = [os.path.join(place, name) for place, _, names in os.walk(source) for name in names] or [source]
            states = {path: os.lstat(path) for path in map(os.fspath, below)}
            move(source, target)
            parts = os.path.abspath(target).split(os.sep)
            if any(is_temporary(part) or part.startswith(".") or part.endswith(".partial") for part in parts):
                return
            self.moved.append(parts[-1])
            self.early += [
                path
                for path, of in states.items()
                if stat.S_ISREG(of.st_mode) and self.kept.get(of.st_ino) != (of.st_size, of.st_mtime_ns)
            ]
            self.late.add(os.stat(os.path.dirname(os.path.abspath(target))).st_ino)

        return moving


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def mask():
    """Of the files that are made: their group may write them, others not even read them."""
    before = os.umask(0o007)
    yield
    os.umask(before)


def modes(folder):
    """Those of the files and of the folders below a folder and of itself."""
    found = [stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")] if path.is_dir()]
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}, {*found}


def assert_safe(disk, *names):
    assert {*names} <= {*disk.moved} and not disk.early and not disk.late


def test_a_file_and_where_a_folder_cannot_be_brought_to_the_disk(tmp_path, disk, monkeypatch):
    write_text(tmp_path / "new" / "a.json", "text")
    assert_safe(disk, "a.json")
    fsync = os.fsync

    def refuse(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(file)

    monkeypatch.setattr(os, "fsync", refuse)
    number = errno.EINVAL
    write_text(tmp_path / "b.json", "text")
    number = errno.EIO
    with pytest.raises(OSError):
        write_text(tmp_path / "c.json", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json", "c.json", "new"]


@pytest.mark.usefixtures("mask")
def test_a_prepared_corpus_and_its_cooccurrences(tmp_path, disk):
    (tmp_path / "text.txt").write_text("\n\n".join(f"one word and another {i % 7}" for i in range(40)))
    data = base_config().data
    data.update(corpus=f"text:{tmp_path}/text.txt", directory=str(tmp_path / "cache"), workers=1, valid_fraction=0.2)
    data.tokenizer.update({"kind": "words", "vocab_size": 16})
    prepared = prepare(data)
    assert_safe(disk, prepared.directory.name)
    assert len(entries(prepared, "train", 2))
    assert_safe(disk, "cooccurrence-2-train-2")
    assert modes(prepared.directory) == ({0o660}, {0o770})


@pytest.mark.usefixtures("mask")
def test_imported_and_exported_weights(tmp_path, disk):
    source = published.write_directory("bert", tmp_path / "source")
    import_weights("huggingface", source, tmp_path / "run")
    export_weights("huggingface", tmp_path / "run", tmp_path / "out")
    assert_safe(disk, "run", "out")
    assert modes(tmp_path / "out") == ({0o660}, {0o770})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    import_weights("huggingface", published.write_directory("bert", folder / "source"), folder / "run")
    return folder / "run"


@pytest.mark.usefixtures("mask")
def test_embeddings_and_stored_states(run, tmp_path, disk):
    (tmp_path / "lines.txt").write_text("a\n")
    embed_file(run, tmp_path / "lines.txt", tmp_path / "x.safetensors", [-1], False, False)
    extract(load(run), ["a"], tmp_path / "states", [-1])
    assert_safe(disk, "x.safetensors", "shard-00000.safetensors")
    assert modes(tmp_path) == ({0o660}, {0o770, 0o700})


def test_a_stored_pretraining_and_what_is_taken_of_a_mirror(tmp_path, disk):
    run = Run(tmp_path / "run")
    for name in ("checkpoints/2/state", "tokenizer"):
        (run.directory / name).mkdir(parents=True)
        (run.directory / name / "x.bin").write_bytes(b"x")
    files = {"config.json": {"objectives": {}}, "result.json": {"step": 2}, "measured.json": {}}
    for name, content in files.items():
        (run.directory / name).write_text(json.dumps(content))
    run.store_key.write("key\n")
    store = Store(tmp_path / "store")
    assert store.put(run.directory)
    assert_safe(disk, "key")
    (run.directory / "checkpoints" / "3").mkdir()
    (run.directory / "checkpoints" / "3" / "x.bin").write_bytes(b"y")
    assert store.put(run.directory)
    assert_safe(disk, "3", "result.json", "measured.json")
    mirror = Mirror("memory://bucket/synchronised")
    mirror.claim()
    mirror.save(run.directory)
    assert mirror.take(tmp_path / "taken")
    assert_safe(disk, "taken")
    fsspec.filesystem("memory").rm("/bucket/synchronised", recursive=True)
