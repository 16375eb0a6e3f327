"""`bertlab scaling`: a known law is found again, with an interval that has it, whatever a few odd runs say."""

import io
import itertools
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.run import Run, StudyDirectory
from bertlab.studies.scaling import Fit, fit, fitted, isoflop, scaling, sentence
from bertlab.studies.study import load_study

LAWS = {"MLM": Fit(1.69, 406.4, 0.34, 410.7, 0.28), "LTR": Fit(2.5, 60.0, 0.25, 900.0, 0.40)}  # the first: Hoffmann et al. 2022
SIZES, TOKENS = (3e5, 7e5, 2e6, 5e6), (2e6, 8e6, 4e7)


def write_study(directory, noise=0.0, odd=(), sizes=SIZES, tokens=TOKENS):
    """Finished runs of LTR and MLM whose losses are the laws', times 1 ± noise, and half as high again for the `odd` ones."""
    random, runs = np.random.default_rng(0), []
    for number, (name, size, budget) in enumerate(itertools.product(LAWS, sizes, tokens)):
        labels = {"objective": name, "size": f"{size:g}", "budget": f"{budget:g}", "seed": "1"}
        run = f"r{number}"
        runs.append({"name": run, "labels": labels, "config": "", "overrides": {}, "downstream": {}})
        loss = float(LAWS[name].loss(size, budget)) * math.exp(noise * random.normal()) * (1.5 if number in odd else 1)
        costs = {"step": 9, "parameters": size, "tokens": budget, "flops": 6 * size * budget, "seconds": 1.0, "supervised": 1}
        Run(directory / run).result.write(costs | {"metrics": {"test": {"loss": loss, f"{name.lower()}/loss": loss}}})
    axes = {axis: list(dict.fromkeys(run["labels"][axis] for run in runs)) for axis in ("objective", "size", "budget", "seed")}
    described = {"name": "s", "title": "S", "question": "?", "command": "", "axes": axes, "downstream": [], "select": []}
    StudyDirectory(directory).study.write(described | {"runs": runs})
    return directory


def test_exact_losses_give_the_law_back_from_any_units():
    sizes, tokens = (np.array(x) for x in zip(*itertools.product((1e8, 4e8, 2e9), (1e9, 1e10, 1e11))))
    law = LAWS["MLM"]
    found = fit(sizes, tokens, law.loss(sizes, tokens))
    for name in ("E", "A", "alpha", "B", "beta"):
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=1e-4)
    assert found.exponent == pytest.approx(0.28 / 0.62, rel=1e-4)
    thousands = fit(sizes / 1e3, tokens / 1e3, law.loss(sizes, tokens))
    assert (thousands.alpha, thousands.beta) == pytest.approx((0.34, 0.28), rel=1e-4)


@pytest.mark.nightly
def test_odd_runs_do_not_move_the_fit(tmp_path):
    """Least squares without Huber's loss would be off by more than a tenth in β."""
    out = io.StringIO()
    folder = scaling(write_study(tmp_path, noise=5e-4, odd=(2, 17)), console=Console(file=out, width=500))
    fits = pd.read_csv(folder / "fits.csv").set_index("variant")
    assert list(fits.index) == ["MLM: mlm", "LTR: ltr"] and set(fits["runs"]) == {len(SIZES) * len(TOKENS)}
    for name, law in LAWS.items():
        row = fits.loc[f"{name}: {name.lower()}"]
        for key in ("E", "alpha", "beta", "exponent"):
            assert row[key] == pytest.approx(getattr(law, key), rel=0.1), (name, key)
            assert row[f"{key}_low"] <= row[key] <= row[f"{key}_high"]
            assert row[f"{key}_low"] <= getattr(law, key) <= row[f"{key}_high"], (name, key)
    assert f"FLOPs^{fits.loc['LTR: ltr', 'exponent']:.2f}" in out.getvalue()
    runs = pd.read_csv(folder / "runs.csv")
    assert len(runs) == 24 and set(runs.columns) == {"variant", "run", "parameters", "tokens", "flops", "loss"}
    assert {path.name for path in folder.iterdir()} == {"runs.csv", "fits.csv", "isoflop.svg", "isoflop.png"}


def test_every_file_of_scaling_appears_in_one_move(tmp_path, monkeypatch):
    replace, moved = os.replace, set()
    monkeypatch.setattr("os.replace", lambda source, target: moved.add(Path(target)) or replace(source, target))
    monkeypatch.setattr("bertlab.studies.scaling.SAMPLES", 2)
    files = {*scaling(write_study(tmp_path), console=Console(quiet=True)).iterdir()}
    assert {path.name for path in files} == {"runs.csv", "fits.csv", "isoflop.svg", "isoflop.png"} and files <= moved


def test_a_curve_of_equal_flops_has_its_lowest_point_where_the_law_has_it(tmp_path):
    law = LAWS["LTR"]
    folder = scaling(write_study(tmp_path), console=Console(quiet=True))
    figure = isoflop(pd.read_csv(folder / "runs.csv"), {"LTR: ltr": law})
    (panel,) = figure.axes
    assert panel.get_title() == "LTR: ltr" and len(panel.lines) == 5
    line, flops = panel.lines[2], np.geomspace(6 * SIZES[0] * TOKENS[0], 6 * SIZES[-1] * TOKENS[-1], 5)[2]
    # The derivative of A / N^α + B / (C / 6 N)^β is 0.
    best = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta)) * (flops / 6) ** law.exponent
    sizes, losses = line.get_data()
    assert sizes[np.argmin(losses)] == pytest.approx(best, rel=0.05)


def test_the_curves_follow_the_runs_own_flops_a_token(tmp_path):
    """A table of embeddings costs no FLOPs, so they do not grow as parameters do."""
    runs = pd.DataFrame(itertools.product(SIZES, TOKENS), columns=["parameters", "tokens"])
    runs["flops"], runs["variant"] = 90 * runs["parameters"] ** 0.8 * runs["tokens"], "LTR: ltr"
    law = LAWS["LTR"]
    runs["loss"] = law.loss(runs["parameters"], runs["tokens"])
    line = isoflop(runs, {"LTR: ltr": law}).axes[0].lines[1]
    flops = np.geomspace(runs["flops"].min(), runs["flops"].max(), 5)[1]
    sizes, losses = line.get_data()
    np.testing.assert_allclose(losses, law.loss(sizes, flops / (90 * sizes**0.8)), rtol=1e-6)


def test_text_that_is_read_again_and_again_is_noticed(tmp_path):
    directory, said = write_study(tmp_path), io.StringIO()
    for number in range(24):
        part = {"unique": {"documents": 3, "tokens": 2_000_000}} if number % 2 else {}
        facts = {"corpus": {"splits": {"train": {"documents": 9, "tokens": 40_000_000}}} | part}
        Run(directory / f"r{number}").data.write(facts)
    scaling(directory, console=Console(file=said, width=500))
    assert "4 of 24 runs read their text more than 4 times, at most 20 times." in said.getvalue()


@pytest.mark.parametrize(
    ("given", "along", "message"),
    [
        ({}, ("size", "steps"), "no axis steps; its axes are objective, size, budget, seed"),
        ({"sizes": SIZES[:2]}, ("size", "budget"), "MLM: mlm: 6 runs with 2 sizes and 3 numbers of tokens; a fit needs"),
        ({"tokens": TOKENS[:1]}, ("size", "budget"), "4 runs with 4 sizes and 1 numbers of tokens"),
        ({"tokens": (2e6, 2.01e6, 2.03e6)}, ("size", "budget"), "12 runs with 4 sizes and 1 numbers of tokens"),  # seeds
    ],
)
def test_what_cannot_be_fitted_is_refused(given, along, message, tmp_path):
    with pytest.raises(UserError, match=message):
        scaling(write_study(tmp_path, **given), along, console=Console(quiet=True))


def test_bits_per_byte_are_fitted_by_kind(tmp_path):
    """LTR's code lengths and MLM's bounds, whose laws are not those of their losses."""
    directory, laws = write_study(tmp_path), {"MLM": Fit(1.2, 90.0, 0.3, 80.0, 0.35), "LTR": Fit(0.9, 30.0, 0.2, 50.0, 0.3)}
    for described in StudyDirectory(directory).study.read()["runs"]:
        name, run = described["labels"]["objective"], Run(directory / described["name"])
        costs = run.result.read()
        entry = {"value": float(laws[name].loss(costs["parameters"], costs["tokens"])), "standard_error": 0.1}
        entry |= {"text_hash": "x", "tokens": 9, "pieces": 9, "unknown": 0.0, "lowercase": False}
        run.evaluation.write({"bits_per_byte": {"test split": {{"MLM": "any-order", "LTR": "left-to-right"}[name]: entry}}})
    folder = scaling(directory, measure="bits_per_byte", console=Console(quiet=True))
    fits = pd.read_csv(folder / "fits.csv").set_index("variant")
    assert set(fits.index) == {"MLM: any-order", "LTR: left-to-right"}
    for name, kind in (("MLM", "any-order"), ("LTR", "left-to-right")):
        found = fits.loc[f"{name}: {kind}"]
        assert (found["E"], found["alpha"]) == pytest.approx((laws[name].E, laws[name].alpha), rel=1e-2)
    with pytest.raises(UserError, match="--measure=nats is not known"):
        scaling(directory, measure="nats")


def test_a_power_that_the_runs_do_not_determine_is_said(tmp_path):
    """Losses that do not fall with size or text: no power, and no division by zero."""
    assert math.isnan(Fit(1.0, 1.0, 0.0, 1.0, 0.0).exponent)
    runs = pd.DataFrame(itertools.product(SIZES, TOKENS), columns=["parameters", "tokens"])
    for loss, named in ((lambda of: 2 + 60 / of["parameters"] ** 0.3 + of["tokens"] * 1e-9, ["beta"]), (LAWS["LTR"].loss, [])):
        given = loss(runs) if named else loss(runs["parameters"], runs["tokens"])
        said = sentence({"variant": "x", **fitted("x", runs.assign(loss=given))})
        assert [key for key in ("alpha", "beta") if f" {key} lies at an end" in said] == named


def test_without_a_search_for_rates_the_study_carries_one_over_to_all_widths():
    """A search finds each width's own rate, and then nothing is scaled."""
    for select, base in (("off", 128), ("1/3+1", None)):
        runs = load_study(f"experiments/ablations/scaling.py:scale=tiny,corpus=pydocs,select={select}").runs()
        models = [load_config(run.config, run.overrides).model for run in runs]
        assert {model.base_width for model in models} == {base} and {model.width for model in models} == {64, 128, 192, 256}
