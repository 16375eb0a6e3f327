"""What each released version left on disk still opens and gives what it gave; what a newer version writes is refused."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from bertlab.config import load_config
from bertlab.data.prepared import load_prepared
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import load
from bertlab.train import loop, sources
from bertlab.transfer.load import load as load_model
from tests.faults.old_versions import CONFIG, FIXTURES, SMALL, TEXT, facts

RUN, PUBLISHED = Path("study/a"), Path("published")


@pytest.fixture(params=sorted(path.name for path in FIXTURES.iterdir()))
def expected(request, tmp_path, monkeypatch):
    """What a version's files must give; they lie in the working directory."""
    for archive in (FIXTURES / request.param).glob("*.tar.xz"):
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return json.loads((FIXTURES / request.param / "expected.json").read_text())


def test_what_a_version_left_gives_what_it_gave(expected):
    found = json.loads(json.dumps(facts(RUN, PUBLISHED)))
    for name in ("states", "score"):  # compiled anew, perhaps for another processor
        np.testing.assert_allclose(found.pop(name), expected.pop(name), rtol=1e-4, atol=1e-5)
    assert found == expected and found["measurements"] and sum(map(len, found["documents"])) > 100
    assert loop.train(load_config(CONFIG, SMALL), RUN) == expected["result"], "with the same config it is finished"


@pytest.mark.slow
def test_a_run_of_a_version_goes_on(expected):
    Path("text.txt").write_text(TEXT)
    (checkpoint,) = Run(RUN).steps()
    identity = sources.of_pretrained(Run(RUN))
    Run(RUN).result.delete()
    result = loop.train(load_config(CONFIG, SMALL), RUN)
    assert (result["step"], result["data_hash"]) == (checkpoint, expected["result"]["data_hash"])
    for name, value in result["metrics"]["test"].items():
        assert value == pytest.approx(expected["result"]["metrics"]["test"][name], rel=1e-4), name
    assert sources.of_pretrained(Run(RUN)) == identity, "runs that began with it go on"


def test_a_newer_version_is_refused_and_files_without_a_version_are_read(expected):
    (corpus,) = Path("cache").glob("text-*")
    openings = {
        RUN / "config.json": lambda: load_model(RUN),
        Path("study/study.json"): lambda: load("study"),
        corpus / "prepared.json": lambda: load_prepared(corpus),
    }
    for file, use in openings.items():
        file.with_name("files.json").unlink()
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"format": 1000}))
        with pytest.raises(UserError, match=rf"^{file} has format 1000, and this version of bertlab reads format"):
            use()
        del content["format"]
        file.write_text(json.dumps(content))
        assert use()
