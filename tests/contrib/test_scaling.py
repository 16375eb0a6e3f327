"""A law that is known is found again, with an interval that has it, whatever a few odd runs say."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from bertlab.contrib import scaling as module
from bertlab.contrib.scaling import Fit, fit, scaling
from bertlab.errors import UserError
from bertlab.files import write_json

pytestmark = pytest.mark.nightly

# The first: Hoffmann et al. 2022.
LAWS = {"MLM": Fit(1.69, 406.4, 0.34, 410.7, 0.28), "LTR": Fit(2.5, 60.0, 0.25, 900.0, 0.40)}
SIZES, TOKENS = (3e5, 7e5, 2e6, 5e6), (2e6, 8e6, 4e7)
ALONG = ("size", "budget")


def write_study(folder, noise=0.0, odd=(), sizes=SIZES, tokens=TOKENS):
    """Finished runs whose losses are the laws', times 1 ± noise; the `odd` ones' half as high
    again."""
    rng, runs = np.random.default_rng(0), []
    for number, (name, size, budget) in enumerate(itertools.product(LAWS, sizes, tokens)):
        labels = {"objective": name, "size": f"{size:g}", "budget": f"{budget:g}", "seed": "1"}
        run = {"name": f"r{number}", "variant": name, "labels": labels, "config": ""}
        runs.append(run | {"overrides": {}, "downstream": {}})
        loss = float(LAWS[name].loss(size, budget)) * math.exp(noise * rng.normal())
        loss *= 1.5 if number in odd else 1
        directory = folder / f"r{number}"
        directory.mkdir(parents=True)
        metrics = {"test": {"loss": loss, f"{name.lower()}/loss": loss}}
        costs = {"step": 9, "parameters": size, "tokens": budget, "flops": 6 * size * budget}
        costs |= {"seconds": 1.0, "supervised": 1, "metrics": metrics}
        write_json(directory / "result.json", costs)
        write_json(directory / "config.json", {"data": {"unique_tokens": 2_000_000 * (number % 2)}})
        write_json(directory / "data.json", {"statistics": {"train": {"tokens": 40_000_000}}})
        kind = {"MLM": "any-order", "LTR": "left-to-right"}[name]
        bits = {f"bits_per_byte/{kind}": loss / 2, "bits_per_byte/pseudo": 0.1}
        write_json(directory / "evaluation.json", {"test": bits})
    axes = {axis: sorted({run["labels"][axis] for run in runs}) for axis in runs[0]["labels"]}
    study = {"name": "s", "axes": axes, "seed_axes": ["seed"], "searches": [], "runs": runs}
    write_json(folder / "study.json", study)
    return folder


def test_exact_losses_give_the_law_back():
    pairs = itertools.product((1e8, 4e8, 2e9), (1e9, 1e10, 1e11))
    sizes, tokens = (np.array(x) for x in zip(*pairs))
    law = LAWS["MLM"]
    found = fit(sizes, tokens, law.loss(sizes, tokens))
    for name in ("E", "A", "alpha", "B", "beta"):
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=1e-4)
    assert found.exponent == pytest.approx(0.28 / 0.62, rel=1e-4)


def test_odd_runs_do_not_move_the_fit(tmp_path, capsys):
    """Least squares without Huber's loss would be off by more than a tenth in β."""
    folder = scaling(write_study(tmp_path, noise=5e-4, odd=(2, 17)), ALONG)
    fits = pd.read_csv(folder / "fits.csv").set_index("variant")
    assert list(fits.index) == ["MLM: mlm", "LTR: ltr"] and set(fits["runs"]) == {12}
    for name, law in LAWS.items():
        row = fits.loc[f"{name}: {name.lower()}"]
        for key in ("E", "alpha", "beta", "exponent"):
            assert row[key] == pytest.approx(getattr(law, key), rel=0.1), (name, key)
            assert row[f"{key}_low"] <= getattr(law, key) <= row[f"{key}_high"], (name, key)
    printed = capsys.readouterr().out
    assert f"FLOPs^{fits.loc['LTR: ltr', 'exponent']:.2f}" in printed
    # A half of the runs may read two million tokens: those of forty read them twenty times.
    assert "4 of 24 runs read their text more than 4 times, at most 20 times." in printed
    assert {path.name for path in folder.iterdir()} == {"runs.csv", "fits.csv", "isoflop.svg"}


def test_bits_per_byte_are_fitted_by_kind_of_code_length(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLES", 2)
    folder = scaling(write_study(tmp_path), ALONG, "bits_per_byte")
    fits = pd.read_csv(folder / "fits.csv").set_index("variant")
    assert set(fits.index) == {"MLM: any-order", "LTR: left-to-right"}
    assert fits.loc["LTR: left-to-right", "E"] == pytest.approx(2.5 / 2, rel=1e-2)


@pytest.mark.parametrize(
    ("given", "along", "message"),
    [
        ({}, ("size", "steps"), "no axis steps; its axes are objective, size, budget, seed"),
        ({"sizes": SIZES[:2]}, ALONG, "MLM: mlm: 6 runs with 2 sizes and 3 numbers of tokens"),
        ({"tokens": TOKENS[:1]}, ALONG, "4 runs with 4 sizes and 1 numbers of tokens"),
        # Seeds of one budget.
        ({"tokens": (2e6, 2.01e6, 2.03e6)}, ALONG, "12 runs with 4 sizes and 1 numbers of tokens"),
    ],
)
def test_what_cannot_be_fitted_is_refused(given, along, message, tmp_path):
    with pytest.raises(UserError, match=message):
        scaling(write_study(tmp_path, **given), along)
