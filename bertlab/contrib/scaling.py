"""Loss against parameters and tokens: Hoffmann et al. 2022 (Chinchilla), section 3.3.

    python -m bertlab.contrib.scaling runs/scaling [--measure=bits_per_byte] [--along=size,budget]

fits each objective of a study (experiments/ablations/scaling.py), and writes `scaling/runs.csv`,
`fits.csv` and `isoflop.svg` into its directory.

A model with N parameters that has read D tokens has the loss L(N, D) = E + A / N^α + B / D^β in
nats. All five numbers are fitted by least squares of log L with Huber's loss (δ = 10⁻³, equation 3
there). Intervals are bootstraps over runs. The best size for a budget of FLOPs grows as FLOPs^a,
with a = β / (α + β) (equation 4).

Losses are those of the test split; they are not comparable between objectives, bits per byte are. N
counts all parameters, embeddings too. Each run counts once, at its end: on the way the learning
rate has not fallen yet, so a loss there is higher than that of a shorter run. Two assumptions:
FLOPs grow as N · D (the curves follow the runs' own FLOPs per token), and D counts new text; a line
is printed if runs read their text more than a few times.

Checked: known laws, the paper's among them, are recovered within their intervals
(tests/contrib/test_scaling.py).
"""

import argparse
import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import scipy.optimize
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

import bertlab.results
from bertlab.errors import UserError
from bertlab.studies.records import read
from bertlab.train.run_directory import RunDirectory

DELTA = 1e-3  # Huber's, of log L
LEAST = 3  # different sizes and budgets
SAMPLES = 200  # bootstrap samples
LEVELS = 5  # isoFLOP curves
STEEPEST = 3.0  # limit of alpha and beta
READINGS = 4  # Muennighoff et al. 2023: up to four are nearly as good as new text
MEASURES = {"loss": "nats", "bits_per_byte": "bits per byte"}
"""What is fitted, and its unit."""

NAMES = ("E", "A", "alpha", "B", "beta", "exponent")
COSTS = ["parameters", "tokens", "flops"]
Runs = Float[np.ndarray, "runs"]


@dataclasses.dataclass(frozen=True)
class Fit:
    """L(N, D) = E + A / N^α + B / D^β, N in parameters and D in tokens."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    @property
    def exponent(self) -> float:
        """a of N ∝ FLOPs^a; NaN if neither size nor text changes the loss."""
        powers = self.alpha + self.beta
        return self.beta / powers if powers else math.nan

    def loss(self, parameters, tokens):
        """L(N, D) of numbers or arrays."""
        size = np.asarray(parameters, float) ** self.alpha
        return self.E + self.A / size + self.B / np.asarray(tokens, float) ** self.beta


def run_table(path: str | Path, along: Sequence[str], measure: str = "loss") -> pd.DataFrame:
    """One row per finished run and objective (or kind of score), `loss` in the measure's unit.

    Columns: `variant` ("MLM: mlm", labels except those of `along` and seeds, and the objective),
    `run`, `parameters`, `tokens`, `flops`, `loss`.
    """
    study, frame = read(path).study, bertlab.results.load(path)
    if missing := [axis for axis in along if axis not in study["axes"]]:
        axes = ", ".join(study["axes"])
        raise UserError(f"--along: {path} has no axis {missing[0]}; its axes are {axes}")
    if measure == "loss":
        rows = frame[(frame["stage"] == "pretrain") & frame["metric"].str.endswith("/loss")]
        names = rows["metric"].str.removesuffix("/loss")
    else:
        rows = frame[(frame["stage"] == "evaluate") & (frame["task"] == "")]
        rows = rows[rows["metric"].str.startswith("bits_per_byte/")]
        rows = rows[~rows["metric"].str.contains("pseudo")]  # not a code length
        names = rows["metric"].str.removeprefix("bits_per_byte/")
    chosen = (rows["split"] == "test") & rows["value"].notna() & (rows["tokens"] > 0)
    rows = rows[chosen]
    if rows.empty:
        raise UserError(f"{path} has no finished pretraining with {measure} of its test split")
    others = [axis for axis in study["axes"] if axis not in (*along, *study["seed_axes"])]
    labels = rows[others].agg(", ".join, axis=1) + ": " if others else ""
    found = rows[["run", *COSTS]].assign(loss=rows["value"], variant=labels + names[chosen])
    return found[["variant", "run", *COSTS, "loss"]].reset_index(drop=True)


def fit(parameters: Runs, tokens: Runs, losses: Runs, begin: Fit | None = None) -> Fit:
    """The five numbers, from the best of several starts, or from one.

    Args:
        parameters, tokens, losses: Those of each run.
        begin: Where to start; None: a grid.
    """
    # Relative to their means: the coefficients are then excess losses there, of like magnitude.
    means = [np.log(x).mean() for x in (parameters, tokens)]
    n, d = (np.log(x) - mean for x, mean in zip((parameters, tokens), means))
    lowest = losses.min()

    def residuals(x):
        e, a, alpha, b, beta = x
        terms = [np.full_like(n, e), a - alpha * n, b - beta * d]
        return np.logaddexp.reduce(terms) - np.log(losses)

    # A power below 0 would mean that size or text harms; above 3 nothing determines it.
    bounds = ([-np.inf, -np.inf, 0, -np.inf, 0], [np.inf, np.inf, STEEPEST, np.inf, STEEPEST])
    settings = dict(loss="huber", f_scale=DELTA, bounds=bounds, x_scale="jac")
    solved = [
        scipy.optimize.least_squares(residuals, start, **settings)
        for start in _starts(begin, means, lowest)
    ]
    e, a, alpha, b, beta = min(solved, key=lambda found: found.cost).x
    # A term that vanishes leaves its power to chance.
    alpha = alpha if np.exp(a) > 1e-6 * lowest else 0.0
    beta = beta if np.exp(b) > 1e-6 * lowest else 0.0
    a, b = np.exp(a + alpha * means[0]), np.exp(b + beta * means[1])
    return Fit(*map(float, (np.exp(e), a, alpha, b, beta)))


def _starts(begin: Fit | None, means: Sequence[float], lowest: float) -> list[tuple[float, ...]]:
    """Logarithms of E, A and B, with the powers, where the search starts."""
    if begin:
        a = np.log(begin.A) - begin.alpha * means[0]
        b = np.log(begin.B) - begin.beta * means[1]
        return [(np.log(begin.E), a, begin.alpha, b, begin.beta)]
    starts = []
    for share, alpha, beta in itertools.product((0.3, 0.6, 0.9), *[(0.1, 0.3, 1.0)] * 2):
        excess = np.log((1 - share) * lowest / 2)
        starts.append((np.log(share * lowest), excess, alpha, excess, beta))
    return starts


def fitted(name: str, runs: pd.DataFrame) -> dict:
    """`variant`, number of `runs`, "fit", its numbers (`NAMES`), and each with "_low" and "_high"
    of its 95 % interval.

    Raises:
        UserError: There are too few runs, sizes or budgets.
    """
    # Seeds read the same budget with a little more or less padding.
    gaps = np.diff(np.sort(np.log(runs["tokens"])))
    sizes, budgets = runs["parameters"].nunique(), 1 + int((gaps > 0.05).sum())
    if min(sizes, budgets) < LEAST or len(runs) < 2 * LEAST:
        raise UserError(
            f"{name}: {len(runs)} runs with {sizes} sizes and {budgets} numbers of tokens; a fit"
            f" needs {2 * LEAST} runs, with {LEAST} of each"
        )
    columns = [runs[key].to_numpy() for key in ("parameters", "tokens", "loss")]
    found, fits, rng = fit(*columns), [], np.random.default_rng(0)
    for _ in range(SAMPLES):
        drawn = rng.integers(len(runs), size=len(runs))
        fits.append(fit(*(column[drawn] for column in columns), begin=found))
    row = {"variant": name, "runs": len(runs), "fit": found}
    for key in NAMES:
        values = [getattr(one, key) for one in (found, *fits)]
        low, high = np.nanquantile(values, (0.025, 0.975))
        row |= {key: getattr(found, key), f"{key}_low": low, f"{key}_high": high}
    return row


def undetermined(row: dict) -> list[str]:
    """Which powers of a fit lie at an end of what was searched, 0 to `STEEPEST`."""
    return [key for key in ("alpha", "beta") if min(row[key], STEEPEST - row[key]) < 1e-3]


def sentence(row: dict, unit: str = "nats") -> str:
    """A fit in words."""
    alpha, beta, exponent = (
        f"{row[key]:.2f} ({row[f'{key}_low']:.2f} to {row[f'{key}_high']:.2f})"
        for key in ("alpha", "beta", "exponent")
    )
    text = (
        f"{row['variant']}, {row['runs']} runs: the loss is {row['E']:.2f} {unit}"
        f" ({row['E_low']:.2f} to {row['E_high']:.2f}) + {row['A']:.3g} / parameters^{alpha}"
        f" + {row['B']:.3g} / tokens^{beta}. The best size for a budget grows as FLOPs^{exponent}."
    )
    for key in undetermined(row):
        text += f" {key} is at an end of 0 to {STEEPEST:g}: these runs do not determine it."
    return text


def repeated_text(path: str | Path, runs: pd.DataFrame) -> str:
    """A sentence if runs read their text more than `READINGS` times; else ""."""
    readings = []
    for run, tokens in runs.groupby("run")["tokens"].first().items():
        directory = RunDirectory(Path(path) / run)
        train = directory.read("data", {}).get("statistics", {}).get("train", {})
        if unique := train.get("tokens"):
            limit = directory.config()["data"].get("unique_tokens") or unique
            readings.append(tokens / min(unique, limit))
    often = [number for number in readings if number > READINGS]
    if not often:
        return ""
    return (
        f"{len(often)} of {len(readings)} runs read their text more than {READINGS} times, at most"
        f" {max(often):.0f} times. The fit treats repeated text as new text; use a larger corpus."
    )


def isoflop(runs: pd.DataFrame, fits: dict[str, Fit], unit: str = "nats") -> Figure:
    """One panel per variant: loss by parameters, one curve per FLOPs budget, and runs as dots."""
    figure = Figure(figsize=(4.2 * len(fits), 3.6), layout="constrained")
    colours = matplotlib.colormaps["viridis"]
    norm = matplotlib.colors.LogNorm(runs["flops"].min(), runs["flops"].max())
    panels = figure.subplots(1, len(fits), squeeze=False)[0]
    for panel, (name, found) in zip(panels, fits.items(), strict=True):
        own = runs[runs["variant"] == name]
        sizes = np.log(own["parameters"])
        per_token = np.polyfit(sizes, np.log(own["flops"] / own["tokens"]), 1)
        sizes = np.geomspace(own["parameters"].min() / 1.5, own["parameters"].max() * 1.5, 100)
        cost = np.exp(np.polyval(per_token, np.log(sizes)))
        for flops in np.geomspace(own["flops"].min(), own["flops"].max(), LEVELS):
            curve = found.loss(sizes, flops / cost)
            panel.plot(sizes, curve, color=colours(norm(flops)), label=f"{flops:.1e} FLOPs")
        panel.scatter(own["parameters"], own["loss"], c=colours(norm(own["flops"])), zorder=3)
        panel.set(title=name, xscale="log", xlabel="parameters", ylabel=f"test ({unit})")
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.legend(fontsize=7)
    return figure


def scaling(path: str | Path, along: Sequence[str], measure: str = "loss") -> Path:
    """Fits every objective of a study, prints the fits and writes the folder `scaling`."""
    runs = run_table(path, along, measure)
    rows = [fitted(name, own) for name, own in runs.groupby("variant", sort=False)]
    folder = Path(path).expanduser() / "scaling"
    folder.mkdir(exist_ok=True)
    runs.to_csv(folder / "runs.csv", index=False)
    pd.DataFrame(rows).drop(columns="fit").to_csv(folder / "fits.csv", index=False)
    fits = {row["variant"]: row["fit"] for row in rows}
    isoflop(runs, fits, MEASURES[measure]).savefig(folder / "isoflop.svg")
    if text := repeated_text(path, runs):
        print(text)
    for row in rows:
        print(sentence(row, MEASURES[measure]))
    print(folder)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", help="directory of a study")
    parser.add_argument("--along", default="size,budget", help="axes of parameters and tokens")
    parser.add_argument("--measure", choices=MEASURES, default="loss")
    given = parser.parse_args(arguments)
    try:
        scaling(given.study, given.along.split(","), given.measure)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
