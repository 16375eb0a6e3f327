"""Damaged files: each reader gives a result, or one sentence that names the file; it neither hangs nor takes more memory.

`make damage ROUNDS=1000` tries more of them. A failure is repeated by the test's name alone: damages are the same every time.
"""

import pytest

from tests.faults.damage import try_damages
from tests.faults.readers import READERS


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_gives_a_result_or_a_sentence(reader, tmp_path, record_property):
    folder = tmp_path / "files"
    folder.mkdir()
    tried, wrong = try_damages(reader, folder)
    record_property("damages", tried)
    print(f"{reader.name}: {tried} damaged files")
    assert not wrong, "\n".join(f"{what}: {said}" for said, what in wrong.items())
