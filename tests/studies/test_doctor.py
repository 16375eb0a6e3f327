import pytest

from bertlab.files import json_line, write_json
from bertlab.studies.doctor import examine
from bertlab.studies.records import read
from tests.studies.made_study import costs, edit, write_study

RUN = "mlm-0.001-seed=1"


def found(folder) -> set[str]:
    return {check for check, _ in examine(read(folder))}


@pytest.fixture
def study(tmp_path):
    """Clean: rates are selected inside their grid."""
    folder = write_study(tmp_path)

    def add_rates(value):
        value["axes"]["finetune.rate"] = ["0.0001", "0.001", "0.1", "1"]

    edit(folder / "study.json", add_rates)
    return folder


def test_a_clean_study_has_no_findings(study):
    assert found(study) == set()


def test_an_objective_of_an_earlier_phase_may_be_forgotten(study):
    stay_on_the_plateau(study)
    phases = "0.5 objectives.ltr.weight=0; 0.5 objectives.mlm.weight=0"
    edit(study / RUN / "config.json", lambda of: of.update(train={"phases": phases}))
    edit(study / RUN / "result.json", lambda of: of.update(data_hash=["data-1", "data-1"]))
    assert found(study) == set()


def remove_result(folder):
    (folder / RUN / "result.json").unlink()


def stay_on_the_plateau(folder):
    edit(folder / RUN / "result.json", lambda of: of["metrics"]["valid"].update({"mlm/loss": 5.9}))


def rise(folder):
    lines = [
        {"step": step, "split": "valid", "loss": loss, **costs(step)}
        for step, loss in ((0, 7.0), (50, 3.0), (100, 3.2))
    ]
    (folder / RUN / "metrics.jsonl").write_text("".join(map(json_line, lines)))


def narrow_grid(folder):
    rates = ["0.001", "0.1", "1"]
    edit(folder / "study.json", lambda of: of["axes"].update({"finetune.rate": rates}))


def search_rates(folder):
    candidates = {RUN: 1e-3, "mlm-0.001-seed=2": 2e-3, "mlm-0.001-seed=3": 3e-3}
    search = {"variant": "MLM", "own": 1e-3, "candidates": candidates, "runs": [RUN]}
    edit(folder / "study.json", lambda of: of.update(searches=[search]))


def cut_words(folder):
    counts = {"examples": 2, "of_examples": 50, "words": 9, "of_words": 400}
    path = folder / RUN / "finetune" / "colours" / "result.json"
    edit(path, lambda of: of["cut"]["test"].update(colours=counts))


def read_other_data(folder):
    edit(folder / RUN / "result.json", lambda of: of.update(data_hash=["other"]))


def drop_an_example(folder):
    path = folder / RUN / "finetune" / "colours" / "predictions" / "test.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def drop_predictions(folder):
    for path in folder.glob("*/finetune/colours/predictions/test.jsonl"):
        path.unlink()


def test_runs_that_failed_and_those_to_come_are_named(study):
    for seed in (1, 2):
        (study / f"mlm-0.001-seed={seed}" / "result.json").unlink()
    failed = {"status": "diverged", "reason": "mlm/loss is not finite"}
    write_json(study / RUN / "failed.json", failed)
    first, second = (text for _, text in examine(read(study)))
    # Their fine-tunings at two rates share a pretraining.
    assert first == f"1 of 12 runs failed: {RUN} (mlm/loss is not finite)."
    assert second.startswith("3 of 12 runs have not finished: mlm-0.001-seed=2; ")


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (remove_result, "unfinished"),
        (stay_on_the_plateau, "plateau"),
        (rise, "diverged"),
        (narrow_grid, "edges"),
        (search_rates, "edges"),
        (cut_words, "cut"),
        (read_other_data, "other data"),
        (drop_an_example, "other items"),
        (drop_predictions, "seeds only"),
    ],
)
def test_each_planted_condition_is_found(study, plant, check):
    plant(study)
    assert found(study) == {check}
