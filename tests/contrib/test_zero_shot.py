import pytest

from tests.transfer.planted import finetune, predictions, pretrained, write_task

pytestmark = pytest.mark.nightly


def test_a_language_model_answers_without_training(tmp_path):
    run, task = pretrained(tmp_path, "gpt", 40), write_task(tmp_path / "text", "half")
    settings = {"transfer.answers": "bertlab.contrib.zero_shot:zero_shot", "train.steps": 0}
    result = finetune(run, task, tmp_path / "out", **settings)
    assert result["metrics"]["test"]["half/accuracy"] > 0.85
    assert result["metrics"]["test"]["half/relative"] > 0.7
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert len(predictions(tmp_path / "out")) == 40
