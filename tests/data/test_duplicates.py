import numpy as np
import pytest

from bertlab.data import duplicates
from bertlab.data.duplicates import HashFiles


@pytest.mark.parametrize("at_once", [7, 1000])
def test_counts_do_not_depend_on_how_many_are_held_at_once(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(duplicates, "_HASHES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    # Values beyond 2⁶³ too: hashes are unsigned.
    pool = rng.integers(2**64, size=300, dtype=np.uint64)
    train, valid = rng.choice(pool, 200), rng.choice(pool, 90)
    with HashFiles(tmp_path, ["train", "valid", "test"]) as files:
        for part in np.split(train, [3, 3, 150]):
            files.add("train", {"sentences": part, "documents": part[:1]})
        files.add("valid", {"sentences": valid, "documents": valid[:1]})
        of_train, of_valid, of_test = map(files.counts, ("train", "valid", "test"))
    assert of_train == {"duplicate_sentences": 200 - len(set(train.tolist())), "duplicate_documents": 0}
    in_train = sum(value in set(train.tolist()) for value in valid.tolist())
    assert of_valid["duplicate_sentences"] == 90 - len(set(valid.tolist())) > 0
    assert of_valid["sentences_in_train"] == in_train and 0 < in_train < 90
    assert set(of_test.values()) == {0} and len(of_test) == 4
    assert list(tmp_path.iterdir()) == []
