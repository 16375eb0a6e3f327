"""Comparisons of made-up results: scores by hand, refused variants, claims."""

import numpy as np
import pytest
import scipy.stats

from bertlab.studies import comparisons
from bertlab.studies.comparisons import Measure
from bertlab.studies.records import Results, pack
from bertlab.studies.study import Claim, Study

ACCURACY = Measure("finetune", "package", "accuracy")
SCORES = {
    "A": (0.5, 0.6, 0.8, 0.6, 0.7),
    "B": (0.4, 0.6, 0.6, 0.5, 0.7),
    "C": (0.1, 0.1, 0.3, 0.2, 0.1),
}


def record(run, stage, **values):
    record = {"run": run, "stage": stage, "task": "", "config": {}, "step": 10, "curve": []}
    record |= {"finished": True, "data_hash": ""}
    costs = dict.fromkeys(("parameters", "tokens", "supervised", "flops", "seconds"), 1.0)
    return record | costs | {"scores": {}, "correct": {}} | values


def results(select=False, items=lambda variant: 2, seeds=5, draws=1, rates=("0.1", "0.2")):
    """Three variants, five seeds; the fine-tuning rate 0.1 is best on valid, and not on test."""
    axes = {"variant": {name: {} for name in SCORES}}
    if select:
        axes["finetune.rate"] = {rate: {"finetune.optimizer.b1": rate} for rate in rates}
    if draws > 1:
        axes["finetune.seed"] = range(1, draws + 1)
    study = Study(
        "s",
        "T",
        "?",
        "c.py",
        axes | {"seed": range(1, seeds + 1)},
        downstream=["package"],
        claims=(
            Claim("A", "C", "", ""),
            Claim("C", "A", "", "", ("classification",)),
            Claim("A", "B", "", "", ("span",)),
        ),
        contrasts=[("B", "A")],
    )
    runs, records = study.runs(), []
    for run in runs:
        value = SCORES[run.variant][int(run.labels["seed"]) - 1]
        rate = run.labels.get("finetune.rate")
        test = {"accuracy": value if rate in (None, "0.1") else 0.9, "loss": 1.0}
        valid = {"accuracy": {None: 0.0, "0.1": 0.7}.get(rate, 0.6), "loss": 1.0}
        if "pretrain" not in run.shares:
            records.append(record(run.name, "pretrain"))
        tuned = {
            "config": {"metrics.package": "accuracy"},
            "scores": {"test": test, "valid": valid},
        }
        count = items(run.variant)
        tuned["correct"] = {"test": pack([True] * count, f"hash-{count}")}
        records.append(record(run.name, "finetune", task="package", **tuned))
    return Results(study.describe(runs), records)


def test_pairs_are_compared_seed_by_seed():
    found = results()
    assert comparisons.measures(found) == [ACCURACY]
    assert comparisons.variants(found) == ["A", "B", "C"]
    table = comparisons.score_table(found, ACCURACY)
    assert table.to_dict("list") == {name: list(of) for name, of in SCORES.items()}
    frame = comparisons.differences(found, ACCURACY).set_index(["variant", "other"])
    assert list(frame.index) == [("A", "C"), ("C", "A"), ("B", "A")] and set(frame["seeds"]) == {5}
    np.testing.assert_allclose(frame["mean"], [0.48, -0.48, -0.08])


def test_holms_correction_is_over_the_claims_and_over_the_contrasts():
    frame = comparisons.differences(results(), ACCURACY).set_index(["variant", "other"])
    tests = {pair: scipy.stats.ttest_rel(SCORES[pair[0]], SCORES[pair[1]]) for pair in frame.index}
    assert frame["p"]["A", "C"] == pytest.approx(2 * tests["A", "C"].pvalue)
    assert frame["p"]["B", "A"] == pytest.approx(tests["B", "A"].pvalue)


def test_without_claims_and_contrasts_variants_are_compared_with_the_first():
    found = results()
    found = Results({**found.study, "claims": [], "contrasts": []}, found.records)
    frame = comparisons.differences(found, ACCURACY)
    assert list(zip(frame["variant"], frame["other"])) == [("B", "A"), ("C", "A")]


def verdicts(**settings):
    return list(comparisons.differences(results(**settings), ACCURACY)["verdict"])


def test_a_verdict_takes_five_seeds_with_three_fine_tunings_each():
    """The claims are those about this kind of task; the contrast is not beyond chance."""
    rates = {"select": True, "rates": ("0.01", "0.1", "0.2")}
    assert verdicts(**rates, draws=3) == ["agrees", "contradicts", "undecided"]
    assert set(verdicts(**rates, draws=2)) == {"too few fine-tunings"}
    assert set(verdicts(**rates, draws=3, seeds=4)) == {"too few seeds"}


@pytest.mark.parametrize("select", [False, True])
def test_nothing_is_decided_at_the_edge_of_the_rates_that_were_tried(select):
    """The only rate is an edge, and so are both of two."""
    found = verdicts(select=select, draws=3)
    assert found == [comparisons.EDGE, comparisons.EDGE, "undecided"]


def test_selected_labels_are_compared():
    assert comparisons.score_table(results(select=True), ACCURACY)["A"].tolist() == list(
        SCORES["A"]
    )


def test_a_variant_that_misses_examples_is_refused():
    found = results(items=lambda variant: 1 if variant == "B" else 2)
    assert set(comparisons.incomparable(found, ACCURACY)) == {"B"}
    assert list(comparisons.score_table(found, ACCURACY)) == ["A", "C"]
