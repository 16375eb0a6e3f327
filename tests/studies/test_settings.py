"""Every task of the catalogue is within reach of the studies."""

import json

import pytest

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.studies import settings, worker
from bertlab.studies.settings import read_setting
from bertlab.studies.study import load_study
from bertlab.transfer.finetune import finetune_config, overridden
from bertlab.transfer.recipes import find_recipe
from bertlab.transfer.tasks import TASKS, find_task
from tests.conftest import ROOT


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


@pytest.mark.parametrize("scale", ["base", "paper"])
def test_at_published_sizes_rows_are_the_recipes_but_for_long_texts(scale):
    setting = read_setting(f"scale={scale},tasks={'+'.join(settings.TASKS)},data=here")
    found = setting.downstream()
    assert {key for of in found.values() for key in of} == {"task_data.directory", "data.seq_len"}
    long = {name: of["data.seq_len"] for name, of in found.items() if "data.seq_len" in of}
    assert long == dict.fromkeys(settings.LONG, 512) and {"race", "imdb", "boolq", "multirc", "record"} <= {*long}
    assert not any("data.seq_len" in of for of in setting.downstream(long_rows=0).values())


@pytest.mark.parametrize(
    ("study", "task", "rows"),
    [
        ("xlnet_table6", "race", 512),
        ("albert_sop", "race", 512),
        ("roberta_formats", "race", 512),
        ("ulmfit_table4", "imdb", 1400),
    ],
)
def test_articles_are_read_in_rows_as_long_as_the_papers(study, task, rows):
    of = load_study(f"{ROOT}/experiments/ablations/{study}.py:scale=paper,seeds=1,tasks={task},data=here")
    for arguments in (worker.finetuning(run, task) for run in of.runs() if not run.averages):
        recipe = find_recipe(arguments["recipe"], find_task(task).kind)
        assert {**recipe, **arguments["overrides"]}["data.seq_len"] == rows


@pytest.mark.parametrize("study", ["bert_table7", "bert_table8"])
def test_names_are_read_in_their_documents_at_published_sizes_alone(study):
    path = ROOT / f"experiments/ablations/{study}.py"
    for scale in ("tiny", "base", "paper"):
        runs = load_study(f"{path}:scale={scale},seeds=1,tasks=mnli+ner,labels=100+all,data=here").runs()
        for task, settings_of in (pair for run in runs for pair in run.downstream.items()):
            in_documents = scale == "paper" and task.startswith("ner")
            assert settings_of.get("transfer.document_context", False) is in_documents
            assert not in_documents or settings_of["data.seq_len"] == 512
    pretrained = load_config(str(ROOT / "experiments/pretrain/bert.py")).to_dict()
    given = {"data.buckets": json.loads(json.dumps(settings_of["data.buckets"]))}
    assert overridden(finetune_config(ROOT, "ner", pretrained=pretrained), given).data.buckets == (128, 256)


def test_a_task_of_ones_own_is_named_by_its_file(tmp_path):
    file = tmp_path / "agreement.py"
    file.write_text(
        'from bertlab.transfer.tasks import table\n\nTASK = table("agreement", train="a.tsv", text="text", label="label")\n'
    )
    for scale in ("tiny", "paper"):
        found = read_setting(f"scale={scale},tasks=package+{file},labels=40+all").downstream()
        assert list(found) == ["package_40", "package_all", "agreement_40", "agreement_all"]
        assert found["agreement_40"]["task"] == str(file) and "data.seq_len" not in found["agreement_40"]
    assert read_setting(f"tasks={file}").downstream()["agreement"]["task"] == str(file)
    with pytest.raises(UserError, match=r"nowhere\.py"):
        read_setting("tasks=nowhere.py")
    with pytest.raises(UserError, match=r"'mine' is neither the file of a task \(mine.py\) nor one of package"):
        read_setting("tasks=mine")
