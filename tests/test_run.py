import json
import math

import pytest

from bertlab.errors import UserError
from bertlab.run import MetricsFile, Run, StudyDirectory, named

FILES = [name for name, value in named(Run("x")).items() if name != "metrics" and hasattr(value, "read")]
# Of those that must have a form.
VALUES = {
    "classes": {"words": ["bad", "ü"]},
    "costs": {"10": {"tokens": 5, "seconds": 1.5}},
    "floor": {"ltr": {"value": 2.5, "exact": True, "above": 0.5, "above_standard_error": None}},
    "measured": {"evaluation": None, "floor": "ü"},
    "most_frequent": {"test": {"ü/accuracy": 0.5}},
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_is_written_whole_and_read_back_and_may_be_missing(tmp_path, name):
    file = getattr(Run(tmp_path / "new"), name)
    assert not file.exists()
    value = VALUES.get(name, {"a": [1, None, "ü"]}) if hasattr(file, "get") else "ü\n"
    file.write(value)
    assert file.exists() and file.read() == value and [path.name for path in (tmp_path / "new").iterdir()] == [file.path.name]
    file.delete()
    file.delete()
    assert not file.exists() and (not hasattr(file, "get") or (file.get() is None and file.get({}) == {}))


@pytest.mark.parametrize("content", [None, b"", b" \n", b'{"a": ', b"[1]", b"\xff", "directory"])
def test_a_json_file_that_cannot_be_read_is_named_in_one_line(tmp_path, content):
    path = Run(tmp_path).config.path
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json") as error:
        Run(tmp_path).config.read()
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_keeps_its_content_if_the_new_one_cannot_be_written(tmp_path):
    Run(tmp_path).result.write({"loss": 1.0})
    with pytest.raises(TypeError, match="JSON"):
        Run(tmp_path).result.write({"loss": object()})
    assert Run(tmp_path).result.read() == {"loss": 1.0}


def test_a_number_that_is_not_finite_is_null_in_a_file_and_a_measurement_that_a_log_lacks(tmp_path):
    run, lost = Run(tmp_path), {"loss": math.nan, "a/pearson": 0.5, "b": [-math.inf, (math.inf, 1)]}
    run.result.write({"metrics": {"test": lost}})
    read = json.loads(run.result.path.read_text(), parse_constant=pytest.fail)
    assert read == {"metrics": {"test": {"loss": None, "a/pearson": 0.5, "b": [None, [None, 1]]}}}
    run.metrics.write('{"step": 1, "split": "train", "loss": null, "nsp/loss": 0.5}\n')
    assert run.metrics.read() == [{"step": 1, "split": "train", "nsp/loss": 0.5}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"step": 1, "split": "train"}\n{"step": 2, "split": "tr', [1]),
        (b'{"step": 1, "split": "train"}\n{"step": 2, "note": "\xc3', [1]),
        (b'{"step": 1, "split": "train"}\n{"step": 2, "spl\n', None),
        *(
            (b'{"step": 1, "split": "train"}\n%s\n{"step": 3, "split": "train"}\n' % bad, None)
            for bad in (b'{"step": 2, "split": "tr', b"[1]", b'{"step": 2}', b"\xff")
        ),
    ],
)
def test_a_metrics_line_cut_off_by_a_kill_is_left_out_and_any_other_bad_line_named(tmp_path, text, expected):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.read() == [] and metrics.last_step() == 0
    metrics.path.write_bytes(text)
    if expected:
        assert [line["step"] for line in metrics.read()] == expected and metrics.last_step() == expected[-1]
        return
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: "):
        metrics.read()


def test_steps_logged_again_after_a_resume_count_once(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.write("".join(f'{{"step": {s}, "split": "train", "loss": {v}}}\n' for s, v in [(1, 1), (2, 2), (1, 9)]))
    assert [(line["step"], line["loss"]) for line in metrics.read()] == [(1, 9), (2, 2)]


def test_stages_and_checkpoints_are_found_and_the_pretraining_is_deleted_without_them(tmp_path):
    run = StudyDirectory(tmp_path).run("a")
    for step in ("10", "9", "11.orbax-checkpoint-tmp"):
        (run.checkpoints / step).mkdir(parents=True)
    for written in (run.config, run.job, run.result, run.stage("finetune", "b").config, run.stage("finetune", "a").result):
        written.write({})
    run.metrics.write(json.dumps({"step": 3, "split": "train"}) + "\n")
    run.log.touch()
    assert run.steps() == [9, 10] and run.tasks("finetune") == ["a", "b"] and run.tasks("adapt") == [] and run.begun()
    assert run.stage("pretrain") is run and run.beside("b").directory == tmp_path / "b"
    run.delete_pretraining()
    assert {path.name for path in run.directory.iterdir()} == {run.job.path.name, run.log.name, "finetune"}
    assert not run.begun() and run.steps() == []
