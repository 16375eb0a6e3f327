"""The door to results: `load` a study's or a run's directory into pandas tables, and plot them.

    from bertlab import results

    study = results.load("runs/table5")
    study.runs                         # a row a run: labels, status, costs, scores
    study.metrics                      # a row a number of every metrics.jsonl
    results.summarise(study.runs)      # mean, standard deviation and seeds by variant
    results.difference(study, "package/accuracy", "MLM", "LTR")
    results.plot_curves(study)
    results.plot_scores(study)

A variant has the same colour in every figure of a study. Figures are matplotlib's: notebooks show them, `savefig` writes them.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from bertlab.errors import UserError
from bertlab.studies import plots
from bertlab.studies.plots import LineStyle
from bertlab.studies.results import (
    X_AXES,
    Difference,
    Results,
    compare_data,
    curves,
    difference,
    load,
    primary_metric,
    summarise,
)

__all__ = [
    "Difference",
    "LineStyle",
    "Results",
    "compare_data",
    "difference",
    "load",
    "plot_curves",
    "plot_heat_map",
    "plot_scores",
    "styles",
    "summarise",
]


def styles(results: Results) -> dict[str, LineStyle]:
    """Variant -> how all figures draw it (`colour`, `dashes`, `marker`, `hatch`), for figures of your own."""
    return plots.line_styles(results.runs)


def plot_curves(results: Results, metrics: Sequence[str] = (), x_axes: Sequence[str] = ("tokens",)) -> Figure:
    """Validation curves: a row of panels a metric, a column a horizontal axis; means over seeds, bands of one deviation.

    Variants that share their pretrainings are drawn once, as the first of them.

    Args:
        results: From `load`.
        metrics: Such as "mlm/loss" (nats); () for the validation loss of each objective.
        x_axes: Of "step", "tokens", "supervised", "flops", "seconds".

    Raises:
        UserError: There is no such axis, or no run has logged such a metric on `valid`.
    """
    if unknown := [axis for axis in x_axes if axis not in X_AXES]:
        raise UserError(f"x_axes: '{unknown[0]}' is not known; choose of {', '.join(X_AXES)}")
    known = dict.fromkeys(results.metrics.loc[results.metrics["split"] == "valid", "metric"])
    names = list(metrics) or plots.loss_metrics(results.metrics)
    if not names or (unknown := [name for name in names if name not in known]):
        raise UserError(
            f"metrics: no run in {results.path} has '{(unknown or ['loss'])[0]}'; it has {', '.join(known) or 'none'}"
        )
    return plots.learning_curves(curves(results), names, x_axes, plots.line_styles(results.runs))


def plot_scores(results: Results, metrics: Sequence[str] = ()) -> Figure:
    """Test scores after fine-tuning: a panel a metric, a bar a variant; dots are seeds, whiskers one standard deviation.

    Args:
        results: From `load`.
        metrics: Columns of `results.runs`; () for the first metric of each task.

    Raises:
        UserError: There is no such column, or no finished run.
    """
    return plots.downstream_bars(results.runs, _scores(results, metrics), plots.line_styles(results.runs))


def plot_heat_map(results: Results, metrics: Sequence[str] = ()) -> Figure:
    """Test scores as a map, variants downwards and metrics across; every metric has a scale of its own.

    Args, Raises: as for `plot_scores`.
    """
    return plots.heat_map(results.runs, _scores(results, metrics))


def _scores(results: Results, metrics: Sequence[str]) -> list[str]:
    if "finished" not in set(results.runs["status"]):
        raise UserError(f"{results.path}: no run is finished yet, so there are no scores; run the sweep again")
    first = [primary_metric(results, task) for task in results.study["downstream"]]
    names = list(metrics) or [name for name in first if name]
    if not names:
        raise UserError(f"{results.path}: its runs were not fine-tuned; name columns of results.runs in `metrics`")
    if unknown := [name for name in names if name not in results.runs]:
        scores = [column for column in results.runs if "/" in column]
        raise UserError(f"metrics: results.runs has no column '{unknown[0]}'; it has {', '.join(scores)}")
    return names
