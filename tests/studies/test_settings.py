"""Every task of the catalogue is within reach of the studies."""

import pytest

from bertlab.studies import settings
from bertlab.studies.settings import read_setting
from bertlab.transfer.tasks import TASKS


def test_every_task_of_the_catalogue_is_there():
    assert set(settings.TASKS) | set(settings.OWN_TASKS) == set(TASKS)
    assert not set(settings.TASKS) & set(settings.OWN_TASKS)


@pytest.mark.parametrize("scale", ["tiny", "mini"])
def test_a_task_is_read_from_its_folder_in_rows_that_a_small_body_has_positions_for(scale):
    setting = read_setting(f"scale={scale},tasks={'+'.join(TASKS)},data=here")
    found = setting.downstream()
    assert list(found) == list(TASKS)
    longest = settings.PRETRAINING[scale]["data.seq_len"]
    for name, (folder, length, _) in settings.TASKS.items():
        assert found[name]["task_data.directory"] == f"here/{folder}"
        assert 16 <= found[name]["data.seq_len"] == length <= longest
    assert set(TASKS) - {name for name, of in found.items() if "task_data.directory" in of} == set(settings.OWN_TASKS)


def test_at_published_sizes_rows_are_the_recipes():
    found = read_setting(f"scale=paper,tasks={'+'.join(settings.TASKS)},data=here").downstream()
    assert {key for of in found.values() for key in of} == {"task_data.directory"}
