"""Results: `load` the directory of a study or a run into pandas tables, and plot them.

    from bertlab import results

    study = results.load("runs/table5")
    study.runs                         # a row per run: labels, status
    study.measurements                 # a row per number: run, stage, task, split, metric, value, standard_error
    study.metrics                      # a row per number of every metrics.jsonl
    study.wide("tokens", "package/accuracy")   # `runs`, with a column for each of these
    results.summarise(study)           # mean, standard deviation and seeds by variant
    results.difference(study, "package/accuracy", "MLM", "LTR")
    results.plot_curves(study)
    results.plot_scores(study)

A variant has the same colour in every figure of a study. Figures are matplotlib's: notebooks show them, `savefig` writes them.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from bertlab.errors import UserError
from bertlab.studies import plots
from bertlab.studies.comparisons import Comparison, difference
from bertlab.studies.curves import curves, mean_curves, score_curves
from bertlab.studies.measurements import X_AXES, Measure, Results, load, scores
from bertlab.studies.plots import LineStyle
from bertlab.studies.same_data import compare_data
from bertlab.studies.seeds import summarise

__all__ = [
    "Comparison",
    "LineStyle",
    "Measure",
    "Results",
    "compare_data",
    "difference",
    "load",
    "plot_curves",
    "plot_heat_map",
    "plot_score_curves",
    "plot_scores",
    "styles",
    "summarise",
]


def styles(results: Results) -> dict[str, LineStyle]:
    """Variant -> how all figures draw it (`colour`, `dashes`, `marker`, `hatch`), for your own figures."""
    return plots.styles_of(results)


def plot_curves(results: Results, metrics: Sequence[str] = (), x_axes: Sequence[str] = ("tokens",)) -> Figure:
    """Validation curves: a row of panels per metric, a column per horizontal axis; means over seeds, bands of one deviation.

    Variants that share their pretrainings are drawn once, as the first of them.

    Args:
        results: From `load`.
        metrics: Such as "mlm/loss" (nats); () for the validation loss of each objective.
        x_axes: Of "step", "tokens", "supervised", "flops", "seconds".

    Raises:
        UserError: The axis is unknown, or no run has logged the metric on `valid`.
    """
    _check_axes(x_axes)
    known = dict.fromkeys(results.metrics.loc[results.metrics["split"] == "valid", "metric"])
    names = list(metrics) or plots.loss_metrics(results.metrics)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"metrics: no run in {results.path} has '{(unknown or ['loss'])[0]}'; it has {', '.join(known) or 'none'}"
        )
    return plots.learning_curves(mean_curves(curves(results)), names, x_axes, plots.styles_of(results))


def plot_scores(results: Results, metrics: Sequence[str] = ()) -> Figure:
    """Test scores after fine-tuning: a panel per score, a bar per variant; dots are seeds, whiskers one standard deviation.

    Args:
        results: From `load`.
        metrics: Such as "package/accuracy"; () for the first metric of each task.

    Raises:
        UserError: The score is unknown, or no run is finished.
    """
    return plots.downstream_bars(results, _scores(results, metrics), plots.styles_of(results))


def plot_score_curves(results: Results, metrics: Sequence[str] = (), x_axes: Sequence[str] = ("tokens",)) -> Figure:
    """Test scores along pretrainings: a row of panels per score, a column per horizontal axis; bands are 95 % intervals.

    Args:
        results: From `load`; of a study with an axis of steps (`finetune.init_step`).
        metrics: Such as "package/accuracy"; () for the first metric of each task.
        x_axes: Of "step", "tokens", "supervised", "flops", "seconds".

    Raises:
        UserError: There is no such score or axis, or no axis of steps.
    """
    _check_axes(x_axes)
    curve = score_curves(results, _scores(results, metrics))
    if curve.empty:
        raise UserError(f"{results.path} has no axis of steps, such as 'finetune.init_step': [100, 1000]; use plot_scores")
    return plots.score_curves(curve, list(dict.fromkeys(curve["metric"])), x_axes, plots.styles_of(results))


def _check_axes(x_axes: Sequence[str]) -> None:
    if unknown := [axis for axis in x_axes if axis not in X_AXES]:
        raise UserError(f"x_axes: unknown axis '{unknown[0]}'; choose from {', '.join(X_AXES)}")


def plot_heat_map(results: Results, metrics: Sequence[str] = ()) -> Figure:
    """Test scores as a map, variants downwards and scores across, each score on its own scale.

    Args, Raises: as for `plot_scores`.
    """
    return plots.heat_map(results, _scores(results, metrics))


def _scores(results: Results, metrics: Sequence[str]) -> list[Measure]:
    if results.finished.empty:
        raise UserError(f"{results.path}: no run is finished yet, so there are no scores; run the sweep again")
    measures = [results.find(name) for name in metrics] if metrics else scores(results)
    if not measures:
        raise UserError(f"{results.path}: its runs were not fine-tuned; choose other measurements in `metrics`")
    return measures
