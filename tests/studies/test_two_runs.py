"""`bertlab compare`: what differs between two runs in config, environment and result, and whether they read the same."""

import io
import json

import pytest
from rich.console import Console

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import Measure, load
from bertlab.studies.two_runs import ABSENT, compare, differences, environment, other_texts, outcomes, same_data


def write_run(directory, steps, rate, loss, data_hash, **more):
    config = {"optimizer": {"learning_rate": rate}, "data": {"seq_len": 64}, **more}
    run = Run(directory)
    run.config.write(config)
    run.environment.write({"packages": {"jax": "0.10.2"}, "command": str(directory)})
    metrics = {"valid": {"mlm/loss": loss}}
    run.result.write({"step": steps, "seconds": 10.0, "data_hash": data_hash, "metrics": metrics})
    return directory


@pytest.fixture
def runs(tmp_path):
    ours = write_run(tmp_path / "a", 100, 1e-3, 5.0, "f0")
    theirs = write_run(tmp_path / "b", 100, 5e-4, 4.75, "f0", lora={"rank": 4})
    Run(theirs).stage("finetune", "sst2").result.write({"metrics": {"test": {"sst2/accuracy": 0.8}}})
    return ours, theirs


def test_only_what_differs_is_named_and_results_stand_side_by_side(runs):
    assert differences(*runs) == [("optimizer.learning_rate", 0.001, 0.0005), ("lora.rank", ABSENT, 4)]
    assert differences(runs[0], runs[0]) == []
    older = [
        write_run(runs[0].parent / f"ratio{ratio}", 9, 0, 0, "", optimizer={"decay": "linear", "ratio": ratio})
        for ratio in (9, 20)
    ]
    assert differences(*older) == [], "a linear decay has no ratio"
    frame = outcomes(*runs)
    assert frame.loc["mlm/loss, valid"].tolist() == [5.0, 4.75]
    assert frame.loc["sst2/accuracy"].isna().tolist() == [True, False]


def test_other_code_of_an_outside_objective_is_a_difference(runs):
    for run, digest in zip(runs, ("ab", "cd")):
        Run(run).environment.write({"code": {"rarity:Rarity": digest, "other:Own": "12"}})
    assert environment(*runs) == [("code.rarity:Rarity", "ab", "cd")]


def test_the_same_text_is_told_from_another(runs, tmp_path):
    assert same_data(*runs) == ["Pretraining: they read the same batches in the same order."]
    other = write_run(tmp_path / "c", 100, 1e-3, 5.0, "00")
    assert "did not read the same batches in the same order" in same_data(runs[0], other)[0]
    assert "100 and 50 steps" in same_data(runs[0], write_run(tmp_path / "d", 50, 1e-3, 5.0, "f0"))[0]
    (other / "result.json").unlink()
    assert "not known" in same_data(runs[0], other)[0]


def write_stage(run, stage, rate, accuracy, data_hash="11", jax="0.10.2"):
    """A fine-tuning or an adaptation."""
    of_stage = Run(run / stage)
    of_stage.config.write({"optimizer": {"learning_rate": rate}, "init_from": str(run), "seed": 1})
    of_stage.environment.write({"packages": {"jax": jax}, "command": stage})
    metrics = {"test": {f"{of_stage.directory.name}/accuracy": accuracy}}
    of_stage.result.write({"step": 9, "data_hash": data_hash, "metrics": metrics})


def write_sharing_run(directory, **job):
    """A run of a study that has no pretraining of its own."""
    run = {"name": directory.name, "labels": {}, "config": "c.py", "overrides": {}, "downstream": {"package": {}}, **job}
    Run(directory).job.write({"runner": "x:y", "run": run})
    return directory


def test_fine_tunings_and_adaptations_that_both_have_are_compared(tmp_path):
    ours, theirs = (write_run(tmp_path / name, 100, 1e-3, 5.0, "f0") for name in "ab")
    write_stage(ours, "finetune/package", 5e-4, 0.7)
    write_stage(theirs, "finetune/package", 123, 0.6, data_hash="22", jax="0.11")
    write_stage(ours, "adapt/package", 1e-4, 0.7)
    write_stage(theirs, "adapt/package", 2e-4, 0.7)
    write_stage(theirs, "finetune/code_spans", 7, 0.6)
    assert differences(ours, theirs) == [
        ("adapt.package: optimizer.learning_rate", 0.0001, 0.0002),
        ("finetune.package: optimizer.learning_rate", 0.0005, 123),
    ]
    assert environment(ours, theirs) == [("finetune.package: packages.jax", "0.10.2", "0.11")]
    assert same_data(ours, theirs) == [
        "Pretraining: they read the same batches in the same order.",
        "adapt.package: they read the same batches in the same order.",
        "finetune.package: they did not read the same batches in the same order.",
    ]


def test_what_pretraining_and_fine_tunings_ran_on_is_named_once(tmp_path):
    ours, theirs = (write_run(tmp_path / name, 100, 1e-3, 5.0, "f0") for name in "ab")
    (theirs / "environment.json").write_text(json.dumps({"packages": {"jax": "0.11"}}))
    write_stage(ours, "finetune/package", 1, 0.7)
    write_stage(theirs, "finetune/package", 1, 0.7, jax="0.11")
    assert environment(ours, theirs) == [("packages.jax", "0.10.2", "0.11")]


def test_a_run_that_shares_its_pretraining_is_compared_with_it(runs, tmp_path):
    shared = write_sharing_run(tmp_path / "s", shares={"pretrain": "a", "adapt": "a"})
    write_stage(shared, "finetune/package", 5e-4, 0.75)
    write_stage(runs[0], "finetune/package", 5e-4, 0.5)
    write_stage(runs[0], "adapt/package", 1, 0.5)
    write_stage(runs[1], "adapt/package", 2, 0.5)
    assert differences(shared, runs[1]) == [*differences(*runs)]
    assert differences(shared, runs[1])[-1] == ("adapt.package: optimizer.learning_rate", 1, 2)
    frame = outcomes(shared, runs[0])
    assert frame.loc["mlm/loss, valid"].tolist() == [5.0, 5.0]
    assert frame.loc["package/accuracy"].tolist() == [0.75, 0.5]
    out = io.StringIO()
    compare(shared, runs[1], console=Console(file=out, width=300))
    assert f"{shared} uses the pretraining of {runs[0]}." in out.getvalue()
    assert f"{runs[1]} uses the" not in out.getvalue()


def test_a_run_from_random_values_has_nothing_of_the_pretraining_that_it_shares(runs, tmp_path):
    random = {"package": {"transfer.random": True}}
    scratch = write_sharing_run(tmp_path / "s", shares={"pretrain": "a"}, downstream=random)
    write_stage(scratch, "finetune/package", 5e-4, 0.75)
    (scratch / "finetune" / "package" / "config.json").write_text(json.dumps({"transfer": {"random": True}}))
    frame = outcomes(scratch, runs[0])
    assert frame.loc["seconds"].tolist() == [0.0, 10.0]
    assert frame.loc["mlm/loss, valid"].isna().tolist() == [True, False]
    assert frame.loc["package/accuracy", "first"] == 0.75
    assert same_data(scratch, runs[0]) == []
    out = io.StringIO()
    compare(scratch, runs[0], console=Console(file=out, width=300))
    assert f"{scratch} starts from random values, with the model shape of {runs[0]}." in out.getvalue()
    assert "uses the pretraining" not in out.getvalue()


def test_a_run_on_a_model_that_was_there_already_is_compared_with_that(runs, tmp_path):
    standing = write_sharing_run(tmp_path / "study", config=f"run:{runs[0]}")
    costs = {"step": 0, "seconds": 0, "data_hash": "00", "metrics": {}}
    (standing / "result.json").write_text(json.dumps(costs))
    assert differences(standing, runs[1]) == differences(*runs)
    assert outcomes(standing, runs[0]).loc["mlm/loss, valid"].tolist() == [5.0, 5.0]
    assert outcomes(standing, runs[0]).loc["seconds"].tolist() == [0.0, 10.0], "nothing of it counts"


def test_a_pretraining_that_is_gone_and_an_average_are_refused(runs, tmp_path):
    gone = write_sharing_run(tmp_path / "s", shares={"pretrain": "nowhere"})
    with pytest.raises(UserError, match=r"/s uses the pretraining in \S+/nowhere, but it has no config\.json"):
        compare(runs[0], gone)
    with pytest.raises(UserError, match="averages the predictions of a, b"):
        compare(runs[0], write_sharing_run(tmp_path / "m", averages=["a", "b"]))


def test_evaluations_and_floors_are_results(runs):
    for run, bits, accuracy, text_hash in ((runs[0], 2.5, 0.75, "a0"), (runs[1], 2.25, 0.5, "b1")):
        common = {"standard_error": 0.1, "text_hash": "00"}
        tokens = {"tokens": 9, "pieces": 9, "unknown": 0.0, "lowercase": False}
        by_kind = {"pseudo": {"value": bits, **common, **tokens}}
        pairs = {"pseudo": {"accuracy": accuracy, "pairs": 7, **common, "text_hash": text_hash}}
        found = {"bits_per_byte": {"test split": by_kind, "b.txt": by_kind}, "minimal_pairs": {"blimp.jsonl": pairs}}
        Run(run).evaluation.write(found)
        floor = {"value": 1.5, "above": bits - 1.5, "above_standard_error": 0.1, "exact": True, "note": ""}
        Run(run).floor.write({"mlm": floor})
    frame = outcomes(*runs)
    assert frame.loc["bits_per_byte/pseudo"].tolist() == [2.5, 2.25]
    assert frame.loc["b.txt/bits_per_byte/pseudo"].tolist() == [2.5, 2.25]
    assert frame.loc["blimp.jsonl/minimal_pairs/pseudo"].tolist() == [0.75, 0.5]
    assert frame.loc["mlm/floor"].tolist() == [1.5, 1.5] and frame.loc["mlm/above"].tolist() == [1.0, 0.75]
    [different] = other_texts(*runs)
    assert different.startswith("blimp.jsonl/minimal_pairs/pseudo was measured on different texts")
    out = io.StringIO()
    compare(*runs, console=Console(file=out, width=200))
    assert "measured on different texts" in out.getvalue()


def test_it_is_printed(runs, capsys):
    out = io.StringIO()
    compare(*runs, console=Console(file=out, width=120))
    printed = out.getvalue()
    assert "optimizer.learning_rate" in printed and "data.seq_len" not in printed
    assert "environments are the same" in printed, "the command is no difference"
    assert any(line.split()[-5:] == ["mlm/loss,", "valid", "5.0000", "4.7500", "-0.2500"] for line in printed.splitlines())
    [rank] = [line.split() for line in printed.splitlines() if "lora.rank" in line]
    assert rank == ["lora.rank", "–", "4"]
    assert main(["compare", *map(str, runs)]) == 0
    assert "lora.rank" in capsys.readouterr().out


def test_as_json_it_has_the_files_values(runs, capsys):
    for run, epsilon in zip(runs, (None, 1)):
        config = Run(run).config.read()
        Run(run).config.write(config | {"optimizer": config["optimizer"] | {"epsilon": epsilon}})
    assert main(["compare", *map(str, runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"] == {
        "optimizer.learning_rate": [0.001, 0.0005],
        "optimizer.epsilon": [None, 1],
        "lora.rank": [None, 4],
    }
    assert found["results"]["sst2/accuracy"] == {"first": None, "second": 0.8, "difference": None}


def printed_results(ours, theirs):
    """Row -> first, second and difference as printed."""
    out = io.StringIO()
    compare(ours, theirs, console=Console(file=out, width=300))
    rows = (line.rsplit(maxsplit=3) for line in out.getvalue().splitlines())
    return {row[0].strip(): row[1:] for row in rows if len(row) == 4}


def write_objectives(run, **weights):
    """Gives a run, or a fine-tuning, objectives of these weights."""
    entries = {name: {"weight": weight, "final_weight": None} for name, weight in weights.items()}
    Run(run).config.write(Run(run).config.read() | {"objectives": entries})


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ({"mlm": 1.0, "nsp": 1.0}, {"ltr": 1.0}, "–"),
        ({"mlm": 1.0, "nsp": 1.0}, {"mlm": 1.0, "nsp": 0.5}, "–"),
        ({"mlm": 1.0, "nsp": 0.0}, {"mlm": 1.0}, "-2.3000"),
    ],
)
def test_total_losses_of_other_objectives_are_not_subtracted(runs, first, second, shown):
    for run, loss, weights in zip(runs, (6.13, 3.83), (first, second), strict=True):
        metrics = {"valid": {"loss": loss, "mlm/loss": loss}, "test": {"loss": loss}}
        Run(run).result.write(Run(run).result.read() | {"metrics": metrics})
        write_objectives(run, **weights)
    printed = printed_results(*runs)
    assert printed["loss, valid"] == printed["loss"] == ["6.1300", "3.8300", shown]
    assert printed["mlm/loss, valid"] == ["6.1300", "3.8300", "-2.3000"], "an objective's own loss is one question"


def test_a_task_s_own_loss_is_compared_and_not_its_total(tmp_path):
    runs = [write_run(tmp_path / name, 100, 1e-3, 5.0, "f0") for name in "ab"]
    for run, loss, auxiliary in zip(runs, (2.5, 0.5), (0.5, 0.0), strict=True):
        write_stage(run, "finetune/package", 1, 0.7)
        metrics = {"test": {"loss": loss + 1, "package/loss": loss}}
        Run(run).stage("finetune", "package").result.write({"metrics": metrics})
        write_objectives(run / "finetune" / "package", language_model=auxiliary)
    assert printed_results(*runs)["package/loss"] == ["2.5000", "0.5000", "-2.0000"]


def test_names_are_those_of_the_long_table(runs):
    Run(runs[1]).stage("finetune", "sst2").most_frequent.write({"test": {"sst2/accuracy": 0.5}})
    table = load(runs[1]).measurements
    named = {
        Measure(*row).name + (", valid" if row.split == "valid" else "")
        for row in table[list(Measure._fields)].itertuples(index=False)
    }
    assert set(outcomes(*runs)["second"].dropna().index) == named - {"most_frequent/sst2/accuracy"}


def test_a_directory_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        compare(runs[0], tmp_path)
