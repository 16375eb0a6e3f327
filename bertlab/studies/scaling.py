"""Loss against parameters and tokens: Hoffmann et al. 2022 (Chinchilla), section 3.3, for each objective of a study.

    bertlab scaling runs/scaling

A model with N parameters that has read D tokens has the loss L(N, D) = E + A / N^α + B / D^β in nats. All five numbers are
fitted by least squares of log L with Huber's loss (δ = 10⁻³, equation 3 there). Intervals are bootstraps over runs. The best
size for a budget of FLOPs grows as FLOPs^a, with a = β / (α + β) (equation 4).

Losses are those of the test split; they do not compare between objectives. `--measure=bits_per_byte` fits each variant's bits
per byte instead, code length or bound (`bertlab.transfer.likelihood`), which do. N counts all parameters, embeddings too. Each
run counts once, at its end: during a run the learning rate has not fallen yet, so a loss on the way is higher than that of a
shorter run. Two assumptions: FLOPs grow as N · D (the curves follow the runs' own FLOPs a token), and D counts new text. If
runs read their text more than a few times, D means less than it says, and a notice tells you so.
"""

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import scipy.optimize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bertlab.console import Console
from bertlab.data.facts import unique_tokens
from bertlab.errors import UserError
from bertlab.files import write_text
from bertlab.locks import alone
from bertlab.run import Run
from bertlab.studies import plots
from bertlab.studies.measurements import Results, bits_per_byte, cost, load, variant_name
from bertlab.studies.report import write_figure
from bertlab.studies.text import count_text
from bertlab.transfer.evaluations import CODE_LENGTHS

DELTA = 1e-3  # Huber's, of log L
LEAST = 3  # different sizes and budgets
SAMPLES = 200  # of the bootstrap
LEVELS = 5  # isoFLOP curves
MEASURES = {"loss": "nats", "bits_per_byte": "bits per byte"}  # what is fitted, and its unit
STEEPEST = 3.0  # of alpha and beta
READINGS = 4  # Muennighoff et al. 2023: up to four are nearly as good as new text
NAMES = ("E", "A", "alpha", "B", "beta", "exponent")


@dataclass(frozen=True)
class Fit:
    """L(N, D) = E + A / N^α + B / D^β, N in parameters and D in tokens; `exponent` is that of the best N."""

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
        return self.E + self.A / np.asarray(parameters, float) ** self.alpha + self.B / np.asarray(tokens, float) ** self.beta


def scaling(
    path: str | os.PathLike,
    along: Sequence[str] = ("size", "budget"),
    measure: str = "loss",
    *,
    console: Console | None = None,
) -> Path:
    """Fits every objective of a study; writes `scaling/runs.csv`, `fits.csv` and `isoflop.{svg,png}` into its directory.

    Args:
        path: The study's directory.
        along: Its axes that change parameters or tokens. Runs with the same labels of all other axes but the seeds are one
            variant, with a fit of its own for each of its objectives or kinds of score.
        measure: One of MEASURES: each objective's test loss, or bits per byte of the test split.
        console: Where to print; default the terminal.

    Returns:
        The folder that was written.

    Raises:
        UserError: The study has no such axis, or a variant has too few runs, sizes or budgets.
    """
    console = console or Console()
    if measure not in MEASURES:
        raise UserError(f"--measure={measure} is not known; choose one of {', '.join(MEASURES)}")
    results = load(path)
    if missing := [axis for axis in along if axis not in results.axes]:
        named = ", ".join(results.axes) or "none"
        raise UserError(f"--along={','.join(along)}: the study in {path} has no axis {missing[0]}; its axes are {named}")
    runs = run_table(results, along, measure)
    fits = {name: fitted(name, of) for name, of in runs.groupby("variant", sort=False)}
    folder = results.path / "scaling"
    rows = [{"variant": name, **{key: value for key, value in of.items() if key != "fit"}} for name, of in fits.items()]
    with alone(folder, wait=True), matplotlib.rc_context(plots.STYLE):
        folder.mkdir(exist_ok=True)
        write_text(folder / "runs.csv", runs.to_csv(index=False))
        write_text(folder / "fits.csv", pd.DataFrame(rows).to_csv(index=False))
        figure = isoflop(runs, {name: of["fit"] for name, of in fits.items()}, measure)
        write_figure(figure, folder / "isoflop", background="white")
    if repeated := repeated_text(results):
        console.print(repeated, markup=False, highlight=False)
    for row in rows:
        console.print(sentence(row, MEASURES[measure]), markup=False, highlight=False)
    console.print(f"scaling: {folder}", markup=False, highlight=False, soft_wrap=True)
    return folder


def run_table(results: Results, along: Sequence[str], of: str = "loss") -> pd.DataFrame:
    """One row per finished run and objective: `variant` ("MLM: mlm"), `run`, `parameters`, `tokens`, `flops`, `loss` (nats).

    With bits per byte, one row per run and kind ("MLM: any-order"), and `loss` is in bits per byte.
    """
    others = [axis for axis in results.axes if axis not in (*along, *results.seed_axes)]
    finished, rows = results.finished.set_index("run"), []
    costs = {name: results.values(cost(name)) for name in ("parameters", "tokens", "flops")}
    if of == "loss":
        named = ((m, *m.metric.rpartition("/")[::2]) for m in results.measures(stage="pretrain", split="test"))
        asked = [(m, objective) for m, objective, metric in named if metric == "loss" and objective]
    else:
        known = results.measures(stage="evaluate")
        asked = [(bits_per_byte(kind), kind) for kind in CODE_LENGTHS if bits_per_byte(kind) in known]
    for measure, objective in asked:
        for run, loss in results.values(measure).dropna().items():
            if run in finished.index and costs["tokens"][run] > 0:
                labels = variant_name(finished.loc[run, others])
                name = f"{labels}: {objective}" if labels else objective
                spent = {key: float(values[run]) for key, values in costs.items()}
                rows.append({"variant": name, "run": run, **spent, "loss": float(loss)})
    if not rows:
        what = "a loss" if of == "loss" else "bits per byte (config.evaluate.sentences)"
        raise UserError(f"{results.path} has no finished pretraining with {what} on its test split")
    return pd.DataFrame(rows)


def repeated_text(results: Results) -> str:
    """A notice if runs read their text more than `READINGS` times; "" otherwise, or if data.json does not say."""
    read, tokens = {}, results.values(cost("tokens"))
    for run in results.finished["run"]:
        if unique := unique_tokens(Run(results.path / run).data.get({})):
            read[run] = tokens[run] / unique
    often = [readings for readings in read.values() if readings > READINGS]
    if not often:
        return ""
    return (
        f"{len(often)} of {len(read)} runs read their text more than {READINGS} times, at most {max(often):.0f} times. The fit"
        " takes repeated text for new text; use a larger corpus for laws of new text."
    )


def fitted(name: str, runs: pd.DataFrame) -> dict:
    """`runs`, "fit", its numbers (`NAMES`), and each with "_low" and "_high" of its 95 % interval."""
    # Seeds read the same budget with a little more or less padding.
    sizes, budgets = runs["parameters"].nunique(), 1 + int((np.diff(np.sort(np.log(runs["tokens"]))) > 0.05).sum())
    if min(sizes, budgets) < LEAST or len(runs) < 2 * LEAST:
        raise UserError(
            f"{name}: {len(runs)} runs with {sizes} sizes and {budgets} numbers of tokens; a fit needs {2 * LEAST} runs, with"
            f" {LEAST} of each"
        )
    columns = [runs[key].to_numpy() for key in ("parameters", "tokens", "loss")]
    found, random = fit(*columns), np.random.default_rng(0)
    chosen = (random.integers(len(runs), size=len(runs)) for _ in range(SAMPLES))
    again = [fit(*(column[of] for column in columns), begin=found) for of in chosen]
    row = {"runs": len(runs), "fit": found}
    for key in NAMES:
        low, high = np.nanquantile([getattr(of, key) for of in (found, *again)], (0.025, 0.975))
        row |= {key: getattr(found, key), f"{key}_low": low, f"{key}_high": high}
    return row


def fit(parameters: np.ndarray, tokens: np.ndarray, losses: np.ndarray, begin: Fit | None = None) -> Fit:
    """The five numbers of L(N, D), from the best of several starts, or from one start.

    Args:
        parameters, tokens, losses: Of each run.
        begin: Where to start; default a grid.
    """
    # Sizes and tokens relative to their means: the coefficients are then excess losses there, of like magnitude.
    n, d = (np.log(x) - np.log(x).mean() for x in (parameters, tokens))
    means, lowest = [np.log(x).mean() for x in (parameters, tokens)], losses.min()

    def residuals(x):
        e, a, alpha, b, beta = x
        return np.logaddexp.reduce([np.full_like(n, e), a - alpha * n, b - beta * d]) - np.log(losses)

    if begin:
        coefficients = [np.log(of) - power * mean for of, power, mean in
                        zip((begin.A, begin.B), (begin.alpha, begin.beta), means)]  # fmt: skip
        starts = [(np.log(begin.E), coefficients[0], begin.alpha, coefficients[1], begin.beta)]
    else:
        grid = itertools.product((0.3, 0.6, 0.9), (0.1, 0.3, 1.0), (0.1, 0.3, 1.0))
        excess = lambda share: np.log((1 - share) * lowest / 2)
        starts = [(np.log(share * lowest), excess(share), alpha, excess(share), beta) for share, alpha, beta in grid]
    # Powers below 0 would say that size or text harms, and above 3 nothing could be told of so steep a fall.
    bounds = ([-np.inf, -np.inf, 0.0, -np.inf, 0.0], [np.inf, np.inf, STEEPEST, np.inf, STEEPEST])
    solve = lambda x: scipy.optimize.least_squares(residuals, x, loss="huber", f_scale=DELTA, bounds=bounds, x_scale="jac")
    best = min((solve(start) for start in starts), key=lambda found: found.cost)
    e, a, alpha, b, beta = best.x
    # A term that vanishes leaves its power to chance.
    alpha, beta = (power if np.exp(term) > 1e-6 * lowest else 0.0 for term, power in ((a, alpha), (b, beta)))
    return Fit(np.exp(e), np.exp(a + alpha * means[0]), alpha, np.exp(b + beta * means[1]), beta)


def at_bounds(row: dict) -> list[str]:
    """Which powers of a fit lie at an end of what was searched, 0 to `STEEPEST`."""
    return [key for key in ("alpha", "beta") if min(row[key], STEEPEST - row[key]) < 1e-3]


def sentence(row: dict, unit: str = "nats") -> str:
    """A fit in words."""
    span = lambda key: f"{row[key]:.2f} ({row[f'{key}_low']:.2f} to {row[f'{key}_high']:.2f})"
    return (
        f"{row['variant']}, {row['runs']} runs: the loss is {row['E']:.2f} {unit} ({row['E_low']:.2f} to {row['E_high']:.2f})"
        f" + {row['A']:.3g} / parameters^{span('alpha')} + {row['B']:.3g} / tokens^{span('beta')}. The best size for a budget"
        f" grows as FLOPs^{span('exponent')}."
        + "".join(
            f" {key} lies at an end of what was searched, 0 to {STEEPEST:g}: these runs do not determine it."
            for key in at_bounds(row)
        )
    )


def isoflop(runs: pd.DataFrame, fits: dict[str, Fit], measure: str = "loss") -> Figure:
    """A panel for each variant: loss against parameters, a curve for each budget of FLOPs, and the runs as dots."""
    figure = Figure(figsize=(4.2 * len(fits), 3.6), layout="constrained")
    colours = matplotlib.colormaps["viridis"]
    norm = matplotlib.colors.LogNorm(runs["flops"].min(), runs["flops"].max())
    panels = np.atleast_1d(figure.subplots(1, len(fits)))
    for panel, (name, found) in zip(panels, fits.items(), strict=True):
        of = runs[runs["variant"] == name]
        per_token = np.polyfit(np.log(of["parameters"]), np.log(of["flops"] / of["tokens"]), 1)
        sizes = np.geomspace(of["parameters"].min() / 1.5, of["parameters"].max() * 1.5, 100)
        for flops in np.geomspace(of["flops"].min(), of["flops"].max(), LEVELS):
            curve = found.loss(sizes, flops / np.exp(np.polyval(per_token, np.log(sizes))))
            panel.plot(sizes, curve, color=colours(norm(flops)), linewidth=1.4, label=f"{count_text(flops)} FLOPs")
        dots = {"c": colours(norm(of["flops"])), "s": 18, "edgecolors": plots.INK, "linewidths": 0.5, "zorder": 3}
        panel.scatter(of["parameters"], of["loss"], **dots)
        label = f"{'loss' if measure == 'loss' else 'code length'} on test ({MEASURES[measure]})"
        panel.set(title=name, xscale="log", xlabel="parameters", ylabel=label)
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: count_text(size)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.legend(fontsize=7)
    return figure
