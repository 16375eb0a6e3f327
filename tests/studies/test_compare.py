"""`bertlab compare`: what differs between two runs in config, environment and result, and whether they read the same."""

import io
import json

import pytest
from rich.console import Console

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.studies.compare import compare, differences, outcomes, same_data


def write_run(directory, steps, rate, loss, data_hash, **more):
    directory.mkdir()
    config = {"optimizer": {"learning_rate": rate}, "data": {"seq_len": 64}, **more}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "environment.json").write_text(json.dumps({"packages": {"jax": "0.10.2"}, "command": str(directory)}))
    metrics = {"valid": {"mlm/loss": loss}}
    (directory / "result.json").write_text(
        json.dumps({"step": steps, "seconds": 10.0, "data_hash": data_hash, "metrics": metrics})
    )
    return directory


@pytest.fixture
def runs(tmp_path):
    ours = write_run(tmp_path / "a", 100, 1e-3, 5.0, "f0")
    theirs = write_run(tmp_path / "b", 100, 5e-4, 4.75, "f0", lora={"rank": 4})
    (theirs / "finetune" / "sst2").mkdir(parents=True)
    (theirs / "finetune" / "sst2" / "result.json").write_text(json.dumps({"metrics": {"test": {"sst2/accuracy": 0.8}}}))
    return ours, theirs


def test_only_what_differs_is_named(runs):
    assert differences(*runs) == [("optimizer.learning_rate", "0.001", "0.0005"), ("lora.rank", "–", "4")]
    assert differences(runs[0], runs[0]) == []


def test_results_stand_side_by_side_and_what_one_has_not_is_missing(runs):
    frame = outcomes(*runs)
    assert frame.loc["valid/mlm/loss"].tolist() == [5.0, 4.75]
    assert frame.loc["sst2: test/sst2/accuracy"].isna().tolist() == [True, False]


def test_the_same_text_is_told_from_another(runs, tmp_path):
    assert same_data(*runs) == "They read the same batches in the same order."
    other = write_run(tmp_path / "c", 100, 1e-3, 5.0, "00")
    assert "did not read the same batches in the same order" in same_data(runs[0], other)
    assert "100 and 50 steps" in same_data(runs[0], write_run(tmp_path / "d", 50, 1e-3, 5.0, "f0"))
    (other / "result.json").unlink()
    assert "not known" in same_data(runs[0], other)


def test_it_is_printed(runs, capsys):
    out = io.StringIO()
    compare(*runs, console=Console(file=out, width=120))
    printed = out.getvalue()
    assert "optimizer.learning_rate" in printed and "data.seq_len" not in printed
    assert "environments are the same" in printed, "the command is no difference"
    assert any(line.split()[-4:] == ["valid/mlm/loss", "5.0000", "4.7500", "-0.2500"] for line in printed.splitlines())
    assert main(["compare", *map(str, runs)]) == 0
    assert "lora.rank" in capsys.readouterr().out


def test_a_directory_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        compare(runs[0], tmp_path)
