from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from bertlab import results
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.studies import comparisons, report, tables
from bertlab.studies.doctor import examine
from bertlab.studies.records import correctness, pack, read, read_stage, unpack
from tests.studies.made_study import edit, write_study

# Mean test scores in %, as the earlier version's pages printed them.
OLD_PAGES = {
    "bert_table7_tiny_wikipedia": {
        ("ud_1000", "Fine-tuning"): 78.3,
        ("ud_1000", "Embeddings"): 71.0,
        ("trec_1000", "Last"): 67.1,
        ("trec_1000", "Weighted sum of last 2"): 72.8,
    },
    "elmo_layers_tiny_wikipedia": {("ud_1000", "baseline"): 69.4},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("made"))


def test_a_row_has_the_scores_and_costs_of_its_directories(study):
    frame = results.load(study)
    tuned = frame[(frame["stage"] == "finetune") & (frame["metric"] == "accuracy")]
    assert len(tuned) == 2 * 2 * 3 * 2
    row = tuned[(tuned["run"] == "mlm-0.1-seed=2") & (tuned["split"] == "test")].iloc[0]
    assert (row["variant"], row["finetune.rate"], row["seed"]) == ("MLM", "0.1", "2")
    assert (row["value"], row["data_hash"]) == (0.9, "t")
    assert (row["parameters"], row["step"], row["tokens"], row["flops"]) == (1000, 100, 1000, 1e5)
    assert (row["transfer_flops"], row["transfer_seconds"]) == (5e3, 0.5)
    frequent = frame[frame["stage"] == "most_frequent"]
    assert set(frequent["metric"]) == {"accuracy"} and set(frequent["value"]) == {0.4}
    shared = frame[(frame["metric"] == "mlm/loss") & (frame["split"] == "valid")]
    np.testing.assert_allclose(shared["value"], [3.1, 3.2, 3.3] * 2)
    assert shared["data_hash"].tolist() == ["data-1", "data-2", "data-3"] * 2
    bits = frame[frame["metric"] == "bits_per_byte/left-to-right"]
    np.testing.assert_allclose(bits["value"].iloc[:3], [1.55, 1.6, 1.65])


def test_curves_list_a_shared_pretraining_under_each_run(study):
    frame = results.curves(study)
    points = frame[(frame["run"] == "ltr-0.1-seed=1") & (frame["metric"] == "ltr/loss")]
    assert points["value"].tolist() == [7.0, 5.0, 4.1]
    assert points["tokens"].tolist() == [0, 500, 1000]
    assert set(points["trained_in"]) == {"ltr-0.001-seed=1"}


def test_an_earlier_step_has_its_own_costs_and_no_last_loss(tmp_path):
    folder = write_study(tmp_path)

    def begin_early(value):
        for run in value["runs"]:
            run["downstream"]["colours"]["init_step"] = 75

    edit(folder / "study.json", begin_early)
    frame = results.load(folder)
    assert not {"pretrain", "evaluate"} & set(frame["stage"])
    assert set(frame["step"]) == {75} and set(frame["tokens"]) == {750}

    def begin_at_random(value):
        for run in value["runs"]:
            run["downstream"]["colours"] = {"task": "colours.py", "transfer.random": True}

    edit(folder / "study.json", begin_at_random)
    assert set(results.load(folder)["flops"]) == {0}


def test_published_files_give_the_same_tables(study, tmp_path):
    report.publish(read(study), tmp_path / "made")
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {"README.md", "made.jsonl.zst", "made.png"}
    for table in (results.load, results.curves, results.examples):
        pd.testing.assert_frame_equal(table(tmp_path / "made"), table(study))
    published, whole = read(tmp_path / "made"), read(study)
    assert [of["config"] for of in published.records] == [of["config"] for of in whole.records]


def test_published_files_do_not_name_the_machines_directories(tmp_path):
    folder = write_study(tmp_path / "study")
    for path in folder.glob("*/finetune/colours"):
        edit(path / "config.json", lambda of: of.update(init_from=f"{tmp_path}/study/mlm"))
        (path / "environment.json").write_text(json_line({"command": f"{tmp_path}/study/mlm"}))
    report.publish(read(folder), tmp_path / "made")
    published = read(tmp_path / "made").records
    assert {of["config"].get("init_from") for of in published} == {None, "mlm"}
    assert str(tmp_path) not in json_line(published)


def test_answers_are_right_as_squads_script_has_it_and_labels_are_part_of_the_items(tmp_path):
    lines = [
        {"id": "1", "gold": ["Denver Broncos"], "predicted": "the Denver Broncos."},
        {"id": "2", "gold": ["Denver Broncos"], "predicted": "Denver"},
        {"id": "3", "gold": [], "predicted": ""},
        {"id": "4", "gold": "yes", "predicted": "yes"},
    ]
    found = []
    for label in ("yes", "no"):
        lines[-1]["gold"] = label
        (tmp_path / "test.jsonl").write_text("".join(map(json_line, lines)))
        found.append(correctness(tmp_path)["test"])
    assert unpack(found[0]).tolist() == [True, False, True, True]
    assert found[0]["hash"] != found[1]["hash"]


def test_correctness_is_packed_and_read_again(study):
    frame = results.examples(study)
    shares = frame.groupby("run", sort=False)["correct"].mean()
    assert shares["mlm-0.001-seed=1"] == 0.6 and shares["ltr-0.1-seed=3"] == 0.58
    assert frame["items_hash"].nunique() == 1
    bits = np.random.default_rng(0).integers(0, 2, 1001).astype(bool)
    np.testing.assert_array_equal(unpack(pack(bits, "")), bits)


def test_each_kind_of_prediction_is_marked(tmp_path):
    (tmp_path / "predictions").mkdir()
    lines = [
        '{"id": "tags", "gold": ["A", "B"], "predicted": ["A", "C"]}',
        '{"id": "span", "gold": ["the cat", "cat"], "predicted": "cat"}',
        '{"id": "no answer", "gold": [], "predicted": ""}',
        '{"id": "number", "gold": 1.5, "predicted": 1.5}',
        '{"id": "hidden", "gold": null, "predicted": "A"}',
    ]
    (tmp_path / "predictions" / "test.jsonl").write_text("\n".join(lines) + "\n")
    record = read_stage(tmp_path, "run", "finetune", "task")
    assert unpack(record["correct"]["test"]).tolist() == [True, False, True, True]


def test_the_report_prints_what_the_table_holds(study, tmp_path):
    found = tables.differences(read(study)).iloc[0]
    # Selected on valid: MLM at 0.001 (test 0.60, 0.62, 0.64), LTR at 0.1 (0.58 three times). So
    # LTR is wrong and MLM right in one, two and three of 50 items.
    np.testing.assert_allclose([found["mean"], found["sentences"]], [4.0, 50])
    right = pd.DataFrame([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=float)
    table = pd.concat([right, pd.DataFrame(np.zeros((3, 47)))], axis=1, ignore_index=True)
    melted = table.reset_index().melt("index").rename(columns={"index": "seed", "variable": "item"})
    anova = anova_lm(ols("value ~ C(seed) + C(item)", melted).fit())
    shares = anova["mean_sq"].to_numpy() * [1, 1, -1] / 150
    freedom = shares.sum() ** 2 / (shares**2 / anova["df"]).sum()
    half = 100 * np.sqrt(shares.sum()) * scipy.stats.t.ppf(0.975, freedom)
    np.testing.assert_allclose([found["low"], found["high"]], [4 - half, 4 + half])
    report.write_report(read(study), tmp_path)
    for name in ("report.html", "report.md"):
        text = (tmp_path / name).read_text()
        assert "+4.0 (\N{MINUS SIGN}1.2 to 9.2)" in text and "and test sentences" in text
        assert "62.0 ± 2.0" in text and "58.0 ± 0.0" in text and "84.0" in text
        assert "3.200" in text  # MLM's held-out loss


def test_code_lengths_have_an_interval_over_documents_and_baselines(tmp_path):
    folder, rng = write_study(tmp_path), np.random.default_rng(0)
    sizes = rng.integers(50, 500, 12).astype(float)
    text = sizes * rng.normal(1.4, 0.3, 12)
    for variant, factor in (("mlm", 1.0), ("ltr", 1.1)):
        for seed, spread in zip("123", (0.0, 0.0, 0.0) if variant == "mlm" else (-0.1, 0.0, 0.1)):
            nats = text * (factor + spread)
            bits = nats.sum() / sizes.sum() / np.log(2)
            sums = {"bytes": sizes.tolist(), "nats": nats.tolist()}
            found = {"bits_per_byte/left-to-right": bits, "baseline/gzip": 3.25}
            found["by_document"] = {"left-to-right": sums}
            path = folder / f"{variant}-0.001-seed={seed}" / "evaluation.json"
            path.write_text(json_line({"test": found}))
    table = tables.code_lengths(read(folder)).set_index("variant")
    # Without a spread between seeds, Student's interval of the jackknife over documents.
    others = (text.sum() - text) / (sizes.sum() - sizes) / np.log(2)
    half = scipy.stats.t.ppf(0.975, 11) * np.sqrt(11 * others.var())
    mlm, ltr = table.loc["MLM"], table.loc["LTR"]
    assert mlm["mean"] == pytest.approx(text.sum() / sizes.sum() / np.log(2))
    np.testing.assert_allclose([mlm["mean"] - mlm["low"], mlm["high"] - mlm["mean"]], half, 0.05)
    assert ltr["mean"] == pytest.approx(1.1 * mlm["mean"])
    assert ltr["high"] - ltr["mean"] > 1.2 * half
    assert table.loc["gzip", "mean"] == 3.25 and len(table) == 3
    page = report.bits_table(read(folder)).set_index("Variant")["left-to-right"]
    assert page["gzip"] == "3.250" and page["MLM"].startswith(f"{mlm['mean']:.3f} (")


def test_equal_differences_have_no_interval(tmp_path):
    folder = write_study(tmp_path)
    for run in ("mlm-0.001-seed=1", "mlm-0.001-seed=2", "mlm-0.001-seed=3"):
        path = folder / run / "finetune" / "colours" / "result.json"
        edit(path, lambda of: of["metrics"]["test"].update({"colours/accuracy": 0.58}))
    assert tables.differences(read(folder))["interval"].tolist() == [
        "+0.0 (no spread between seeds)"
    ]


def test_a_single_run_is_a_study_of_one(study):
    frame = results.load(study / "mlm-0.001-seed=1")
    assert set(frame["variant"]) == {"mlm-0.001-seed=1"}
    assert (
        frame.set_index(["stage", "split", "metric"])["value"]["finetune", "test", "accuracy"]
        == 0.6
    )
    tuned = read(study / "mlm-0.001-seed=1" / "finetune" / "colours")
    assert results.scores(tuned)["task"].unique() == ["colours"] and not examine(tuned)
    with pytest.raises(UserError):
        results.load(study / "nowhere")


def test_committed_studies_have_the_means_of_the_pages_that_they_replace():
    folder = Path(__file__).parents[2] / "experiments" / "results"
    for name, means in OLD_PAGES.items():
        study = read(folder / name)
        scored = {of.task: comparisons.score_table(study, of) for of in comparisons.measures(study)}
        for (task, variant), mean in means.items():
            assert round(100 * scored[task][variant].mean(), 1) == mean, (name, task, variant)
    points = tables.by_steps(read(folder / "crossover_tiny_wikipedia")).set_index(["task", "line"])
    ltr = points.loc[("ud_1000_probe", "LTR")].set_index("step")["mean"].round(1)
    assert ltr.to_dict() == {1000: 82.7, 100: 76.9, 200: 80.2, 500: 81.7}
    assert points.loc[("ud_1000_tuned", "no pretraining"), "step"] == 0
    assert tables.by_steps(read(folder / "bert_table7_tiny_wikipedia")).empty
    assert tables.by_steps(read(folder / "four_systems_tiny_wikipedia")).empty  # other budgets
    assert tables.crossings(read(folder / "crossover_tiny_wikipedia")).empty  # `valid` selects
    frame = results.load(folder / "one_scale_tiny_wikipedia")
    bits = frame[frame["metric"] == "bits_per_byte/left-to-right"].groupby("variant")["value"]
    assert round(bits.mean()["left to right"], 3) == 2.003


def test_lines_cross_where_differences_that_are_linear_in_log_steps_are_zero():
    folder = Path(__file__).parents[2] / "experiments" / "results"
    study = read(folder / "crossover_tasks_tiny_wikipedia")
    found = tables.differences(study).set_index(["task", "variant", "other"])
    crossings = tables.crossings(study).set_index(["task", "line", "other"])
    early, late = (found.loc[("trec_1000_tuned", f"MLM, {n}", f"LTR, {n}")] for n in (100, 200))
    crossing = crossings.loc[("trec_1000_tuned", "MLM", "LTR")]
    assert list(crossing["differences"]) == [100, 200, 500, 1000]
    expected = 100 * 2 ** (early["mean"] / (early["mean"] - late["mean"]))
    assert crossing["crosses"] == pytest.approx([expected], rel=0.003)
    expected = 100 * 2 ** (early["high"] / (early["high"] - late["high"]))
    assert crossing["undecided"] == [pytest.approx((100, expected), rel=0.003)]
    apart = crossings.loc[("ud_1000_probe", "MLM", "LTR")]
    assert apart["crosses"] == apart["undecided"] == []


def test_a_page_says_first_that_a_linear_model_is_better(tmp_path):
    folder = write_study(tmp_path)
    assert tables.below_linear(read(folder)) == []
    for path in folder.glob("*/finetune/colours/result.json"):
        edit(path, lambda of: of["linear"]["test"].update({"colours/accuracy": 0.95}))
    assert tables.below_linear(read(folder)) == ["colours"]
    report.write_report(read(folder), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| a linear model on n-grams, as many labels | – | 95.0 |" in text
    assert text.index("On every task, a linear model") < text.index("differences.png")


def test_models_with_other_numbers_of_labels_have_linear_models_of_their_own(tmp_path):
    folder, better = write_study(tmp_path), {"test": {"colours/accuracy": 0.9}}
    for path in folder.glob("mlm*/finetune/colours"):
        edit(path / "result.json", lambda of: of.update(linear=better))
        edit(path / "config.json", lambda of: of.update({"task_data": {"limit": 100}}))
    study = read(folder)
    (measure,) = comparisons.measures(study)
    linear = "a linear model on n-grams, as many labels"
    means = tables.baselines(study, measure)
    assert means[f"{linear}: 100"] == pytest.approx(0.9)
    assert means[f"{linear}: all"] == pytest.approx(0.5)
    assert tables.below_linear(study) == []  # LTR, with all labels, is above it
