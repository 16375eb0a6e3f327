"""The interactive page of a study or a run: one file with its numbers and a script that draws, filters and sorts them.

The page has the static report's numbers, as JSON: `page_data` collects them with the functions that the report uses. The script
(`explore.js`) is part of the package and the same for every study. The page's Content-Security-Policy names the script and the
style by their hashes, so nothing else can run, whatever a run directory contains, and nothing can be fetched.
"""

import base64
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import scipy.stats

from bertlab.studies import plots
from bertlab.studies.curves import (
    along_trajectories,
    curves,
    examples_axis,
    mean_curves,
    score_curves,
    scores_by_examples,
    shared_curves,
)
from bertlab.studies.measurements import TRANSFER_COSTS, X_AXES, Measure, Results, bounds, cost, scores, variant_name
from bertlab.studies.same_data import unlike_losses
from bertlab.studies.seeds import pretraining_seeds, summarise
from bertlab.studies.selection import at_selected_labels
from bertlab.studies.statistics import RESOLUTION
from bertlab.studies.tables import COST, COST_LABELS, losses

NUMBERS = 400_000  # in a page: about 4 MB
POINTS = 120  # of a curve
FEWEST_POINTS = 10  # a curve of fewer would say little, so it is left out
DIGITS = 7  # of a curve's numbers; a table's are exact
FIRST_GROUPS = ("Learning curves (held-out)", "Scores along pretraining", "Scores by labelled examples")
EFFORT = dict(zip(X_AXES, ("steps", "tokens", "supervised positions", "FLOPs", "training time"), strict=True))


def explore_page(results: Results) -> str:
    """The interactive page as HTML; it loads nothing.

    Args:
        results: From `load`.
    """
    place = resources.files("bertlab.studies")
    read = lambda name: place.joinpath(name).read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    script, style = read("explore.js"), read("explore.css")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'"
    policy += "; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    return environment.from_string(read("explore.html.j2")).render(
        study=results.study, data=page_data(results), script=script, style=style, policy=policy
    )


def _hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_data(results: Results) -> dict[str, Any]:
    """All numbers of the page, as JSON has them (None for a number that is missing or not finite).

    Returns:
        `axes`: name, whether it is one of seeds, labels. `runs`: name, index of its variant, an index of a label for each axis,
        status. `variants`: how many; they are the first `series`. `series`: name, indices of its variants, style. `x`: what can
        stand on the horizontal axis. `arrays`: lists of numbers that curves name by index. `measures`: of the kinds

        - "curve": a mean for each point with `sd`, `low` and `high` (Student's 95 % interval of the mean), and `seeds`, the
          curves of single pretraining seeds. `x` has an index of `arrays` for each of `X_AXES`, or only one if there are
          `labels`. The scores along pretraining and by labelled examples have no `sd`.
        - "result": `mean`, `sd`, `low`, `high`, `seeds` for each variant, and `values` for each run.

        `first`: the measure to open on. `left_out`: the names of what would make the page too large.
    """
    results = at_selected_labels(results)
    page = _Page(results)
    metrics = curves(results)
    held_out, trained = (metrics[metrics["split"] == split].assign(split="valid") for split in ("valid", "train"))
    of_losses = plots.loss_metrics(metrics)
    is_loss = held_out["metric"].isin(of_losses)
    costs = [*map(cost, ("parameters", *X_AXES)), *(cost(name, "transfer") for name in TRANSFER_COSTS)]
    main = dict.fromkeys([*scores(results), *losses(results), *results.measures(stage="evaluate"), *costs])
    summary = summarise(results)
    page.results(summary, list(main), True)
    page.learning_curves(held_out[is_loss], of_losses, FIRST_GROUPS[0], "")
    page.score_curves()
    page.results(summary, [measure for measure in results.measures() if measure not in main], False)
    page.learning_curves(held_out[~is_loss], held_out["metric"][~is_loss].unique(), "Other curves (held-out)", "")
    page.learning_curves(trained, trained["metric"].unique(), "Curves of training", ", train")
    groups = dict.fromkeys([*FIRST_GROUPS, *(measure["group"] for measure in page.measures)])
    order = sorted(groups, key=lambda group: group == COST)
    measures = sorted(page.measures, key=lambda measure: order.index(measure["group"]))
    return {
        "axes": page.axes,
        "runs": page.runs,
        "variants": len(results.variants),
        "series": page.series,
        "x": [{"id": axis, "label": EFFORT[axis]} for axis in X_AXES],
        "measures": measures,
        "first": first_shown(measures, page.series, unlike_losses(results)),
        "arrays": list(map(list, page.arrays)),
        "left_out": page.left_out,
    }


def first_shown(
    measures: Sequence[Mapping[str, Any]], series: Sequence[Mapping[str, Any]], unlike: Collection[str] = ()
) -> int:
    """The index of the first curve or score of those that the most variants have: a loss may be of few of them.

    Losses of the objectives in `unlike` do not compare, so another measure comes first.
    """

    def variants(measure: Mapping[str, Any]) -> int:
        if measure["kind"] == "curve":
            return len({variant for curve in measure["curves"] for variant in series[curve["series"]]["variants"]})
        return sum(mean is not None for mean in measure["mean"])

    groups = (*FIRST_GROUPS, group_of(Measure("finetune", "", "test", "")))
    offered = [i for i, measure in enumerate(measures) if measure["group"] in groups]
    compares = lambda measure: measure["id"].removeprefix("curve/").partition("/")[0] not in unlike
    return max(offered, key=lambda i: (compares(measures[i]), variants(measures[i])), default=0)


class _Page:
    """The parts of `page_data` while they are collected, the most important first, until there is no more room."""

    def __init__(self, of: Results):
        self.of, self.room = of, NUMBERS
        self.measures: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.arrays: dict[tuple, int] = {}
        self.axes = [
            {"name": axis, "seed": axis in of.seed_axes, "labels": list(dict.fromkeys(of.runs[axis]))} for axis in of.axes
        ]
        self.variants = {variant: i for i, variant in enumerate(of.variants)}
        self.run_index = {name: i for i, name in enumerate(of.runs["run"])}
        self.runs = [
            {
                "name": run["run"],
                "variant": self.variants[run["variant"]],
                "labels": [axis["labels"].index(run[axis["name"]]) for axis in self.axes],
                "status": run["status"],
            }
            for run in of.runs.to_dict("records")
        ]
        self.styles = plots.styles_of(of)
        self.series: list[dict[str, Any]] = []
        self._known: dict[tuple[str, str], int] = {}
        for name in self.variants:
            self.series_of("variant", name, self.styles[name], [name])
        self.shared: dict[str, list[str]] = {}  # a line -> itself and those that share its pretrainings
        for other, drawn in shared_curves(of).items():
            self.shared.setdefault(drawn, [drawn]).append(other)
        self.lines = along_trajectories(of).runs
        names = zip(self.lines["variant"], of.runs["variant"], strict=True)
        self.variants_of: dict[str, set[str]] = {}  # a line -> its variants
        for line, variant in names:
            self.variants_of.setdefault(line, set()).add(variant)

    def series_of(self, kind: str, name: str, style: plots.LineStyle, variants: Iterable[str]) -> int:
        """The index of a line that stands for these variants."""
        if (kind, name) not in self._known:
            self._known[kind, name] = len(self.series)
            looks = {"colour": style.colour, "dashes": list(style.dashes[1]), "marker": style.marker}
            self.series.append({"name": name, "variants": sorted({self.variants[variant] for variant in variants}), **looks})
        return self._known[kind, name]

    def in_order(self, curve: pd.DataFrame) -> list[str]:
        """The lines of a table of curves, in the study's order."""
        there = set(curve["variant"])
        return [line for line in self.styles if line in there]

    def array(self, values: Iterable[float]) -> int:
        """The index of a list of numbers in `arrays`; equal lists are there once."""
        return self.arrays.setdefault(tuple(_numbers(values, DIGITS)), len(self.arrays))

    def results(self, summary: pd.DataFrame, measures: Sequence[Measure], main: bool) -> None:
        """Adds what was measured once for each run; `main` for columns that the table has at first."""
        frames = dict(list(summary.groupby(list(Measure._fields), sort=False)))
        for measure in measures:
            if tuple(measure) not in frames:
                continue  # of unfinished runs only
            found = frames[tuple(measure)].set_index("variant").reindex(list(self.variants))
            low, high = intervals(found["mean"], found["sd"], found["seeds"], measure.metric)
            label = result_label(measure)
            if not self.take(5 * len(found) + len(self.runs), label):
                continue
            self.measures.append(
                {
                    "id": "/".join(filter(None, ("result", measure.stage, measure.task, measure.split, measure.metric))),
                    "label": label,
                    "group": group_of(measure),
                    "kind": "result",
                    "main": main,
                    **_scale(measure.metric, measure.is_cost),
                    "mean": _numbers(found["mean"]),
                    "sd": _numbers(found["sd"]),
                    "low": _numbers(low),
                    "high": _numbers(high),
                    "seeds": _numbers(found["seeds"]),
                    "values": _numbers(self.of.values(measure)),
                }
            )

    def learning_curves(self, metrics: pd.DataFrame, names: Iterable[str], group: str, suffix: str) -> None:
        """Adds metrics along pretraining, from rows of `curves` whose split is "valid"."""
        means = mean_curves(metrics)
        single = _by_seed(metrics[metrics["variant"].isin(means["variant"])])
        counts = single.groupby(["variant", "metric", "step"])["value"].count().rename("seeds").reset_index()
        means = means.merge(counts, on=["variant", "metric", "step"])
        for name in names:
            of = means[means["metric"] == name]
            low, high = intervals(of["mean"], of["sd"], of["seeds"], name)
            of = of.assign(low=low, high=high)
            lines = {
                line: self.series_of(
                    "learning",
                    line,
                    self.styles[line],
                    [variant for one in self.shared.get(line, [line]) for variant in self.variants_of[one]],
                )
                for line in self.in_order(of)
            }
            for line, others in self.shared.items():
                if line in lines:
                    self.series[lines[line]]["name"] = f"{line} (also {', '.join(others[1:])})"
            described = {"id": f"curve{suffix.replace(', ', '/')}/{name}", "label": f"{plots.metric_label(name)}{suffix}"}
            self.curve({**described, "group": group, **_scale(name, False)}, of, single[single["metric"] == name], lines)

    def score_curves(self) -> None:
        """Adds the scores along pretraining and by the number of labelled examples."""
        measures = scores(self.of)
        along = score_curves(self.of, measures)
        costs = {axis: self.of.values(cost(axis)) for axis in X_AXES}
        for measure in [measure for measure in measures if measure.name in set(along["metric"])]:
            of = along[along["metric"] == measure.name]
            series = {
                line: self.series_of("score", line, self.styles[line], self.variants_of[line]) for line in self.in_order(of)
            }
            self.curve(
                {
                    "id": f"along/{measure.name}",
                    "label": plots.metric_label(measure.name),
                    "group": FIRST_GROUPS[1],
                    **_scale(measure.metric, False),
                },
                of,
                self._points(self.lines, measure, costs),
                series,
            )
        by_examples = scores_by_examples(self.of, measures)
        if by_examples.empty:
            return
        axis, labels = examples_axis(self.of), list(dict.fromkeys(by_examples["examples"]))
        others = [name for name in self.of.axes if name not in (axis, *self.of.seed_axes)]
        runs = self.of.runs.assign(
            line=[variant_name(of) or self.of.study["title"] for of in self.of.runs[others].itertuples(index=False)]
        )
        places = runs[axis].map({label: i for i, label in enumerate(labels)}).set_axis(runs["run"])
        styles = plots.line_styles(by_examples.assign(trained=""))
        for measure in [measure for measure in measures if measure.name in set(by_examples["metric"])]:
            of = by_examples[by_examples["metric"] == measure.name]
            series = {
                line: self.series_of("examples", line, styles[line], runs.loc[runs["line"] == line, "variant"])
                for line in of["variant"].unique()
            }
            self.curve(
                {
                    "id": f"examples/{measure.name}",
                    "label": plots.metric_label(measure.name),
                    "group": FIRST_GROUPS[2],
                    "labels": labels,
                    **_scale(measure.metric, False),
                },
                of.assign(step=of["examples"].map(labels.index)),
                self._points(runs.assign(variant=runs["line"]), measure, {"step": places}),
                series,
            )

    def curve(self, described: dict[str, Any], means: pd.DataFrame, single: pd.DataFrame, series: Mapping[str, int]) -> None:
        """Adds a measure with a curve for each series.

        Args:
            described: Its other entries.
            means: `variant`, some of `X_AXES` ("step" among them), `mean`, `low`, `high`, perhaps `sd`.
            single: From `_by_seed`.
            series: Variant -> index.
        """
        axes = [axis for axis in X_AXES if axis in means and axis in single]
        lengths = means.groupby("variant").size()
        if not (points := self.points(int(lengths.max()) if len(lengths) else 0, 4 * len(lengths), described["label"])):
            return
        columns = [name for name in ("mean", "sd", "low", "high") if name in means]
        drawn = {}
        for line, of in _parts(means, ["variant"], [*axes, *columns], points):
            x, numbers = [self.array(of[axis]) for axis in axes], {name: _numbers(of[name], DIGITS) for name in columns}
            drawn[line] = {"series": series[line], "x": x, **numbers, "seeds": []}
        single = single[single["variant"].isin(list(series))]
        lengths = single.groupby(["variant", "run"]).size()
        longest = int(lengths.max()) if len(lengths) else 0
        if points := self.points(longest, 2 * len(lengths), f"{described['label']}, single seeds"):
            for (line, run), of in _parts(single, ["variant", "run"], [*axes, "value"], points):
                x, y = [self.array(of[axis]) for axis in axes], _numbers(of["value"], DIGITS)
                drawn[line]["seeds"].append({"run": self.run_index[run], "x": x, "y": y})
        self.measures.append({**described, "kind": "curve", "curves": [drawn[line] for line in series]})

    def points(self, longest: int, numbers: int, label: str) -> int:
        """How many points there is room for in each curve of a measure, for so many numbers a point; 0 without room."""
        points = min(longest, POINTS, self.room // max(1, numbers))
        if not longest or points < min(longest, FEWEST_POINTS):
            self.left_out += [label] if longest else []
            return 0
        self.room -= points * numbers
        return points

    def take(self, numbers: int, label: str) -> bool:
        """Whether there is room for so many numbers."""
        if numbers > self.room:
            self.left_out.append(label)
            return False
        self.room -= numbers
        return True

    def _points(self, runs: pd.DataFrame, measure: Measure, axes: Mapping[str, pd.Series]) -> pd.DataFrame:
        """`_by_seed` of the scores of finished runs; `axes` are by run name."""
        runs = runs[runs["status"] == "finished"]
        columns = {axis: of.loc[runs["run"]].to_numpy() for axis, of in axes.items()}
        value = self.of.values(measure).loc[runs["run"]].to_numpy()
        of_seeds = _by_seed(runs.assign(metric=measure.name, value=value, **columns).dropna(subset=["value", "step"]))
        # Each point is of another run; a curve belongs to the first of its seed.
        seeds = pretraining_seeds(runs.columns)
        return of_seeds.assign(run=of_seeds.groupby(["variant", *seeds])["run"].transform("first"))


def _by_seed(metrics: pd.DataFrame) -> pd.DataFrame:
    """The curves of single pretrainings, whose mean is `mean_curves`: runs that differ only in fine-tuning are one."""
    axes = [axis for axis in X_AXES[1:] if axis in metrics]
    groups = metrics.groupby(["variant", "metric", *pretraining_seeds(metrics.columns), "step"], sort=False)
    return groups[[*axes, "value"]].mean().assign(run=groups["run"].first()).reset_index()


def intervals(mean: pd.Series, sd: pd.Series, seeds: pd.Series, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """`statistics.mean_interval` of many means at once, cut where scores end; NaN for one seed, and where nothing varies."""
    mean, sd, seeds = (np.asarray(of, float) for of in (mean, sd, seeds))
    known = (seeds > 1) & (sd > RESOLUTION * np.abs(mean))
    error = np.where(known, sd, np.nan) / np.sqrt(np.where(known, seeds, np.nan))
    half = error * scipy.stats.t.ppf(0.975, np.where(known, seeds - 1, np.nan))
    low, high = (np.clip(mean + sign * half, *bounds(metric)) for sign in (-1, 1))
    return low, high


def result_label(measure: Measure) -> str:
    """ "package/accuracy (%)", "mlm/loss (nats), valid", "tokens"."""
    if measure in COST_LABELS:
        return COST_LABELS[measure]
    name = plots.metric_label(measure.name)
    return name if measure.split in ("test", "") else f"{name}, {measure.split}"


def group_of(measure: Measure) -> str:
    """The heading in the list of measures."""
    if measure.is_cost:
        return COST
    names = {
        "finetune": "Scores after fine-tuning",
        "evaluate": "Evaluations",
        "floor": "Compared with the exact floors",
        "most_frequent": "The most frequent answer",
        "pretrain": "At the end of pretraining",
    }
    return f"{names[measure.stage]} ({measure.split})"


def _scale(metric: str, is_cost: bool) -> dict[str, Any]:
    """How the script prints a number: the factor, the decimals, and of a cost its unit."""
    factor, digits = plots.score_scale(metric)
    return {"factor": factor, "digits": digits, "unit": ("seconds" if metric == "seconds" else "count") if is_cost else ""}


def _parts(table: pd.DataFrame, keys: list[str], columns: Sequence[str], most: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(keys, column -> numbers by step) of each curve; at most so many points, the first and the last among them."""
    table = table.sort_values("step", kind="stable")
    arrays = {name: table[name].to_numpy() for name in columns}
    for key, places in table.groupby(keys if len(keys) > 1 else keys[0], sort=False).indices.items():
        kept = places[np.unique(np.linspace(0, len(places) - 1, min(len(places), most)).round().astype(int))]
        yield key, {name: of[kept] for name, of in arrays.items()}


def _numbers(values: Iterable[float], digits: int | None = None) -> list[float | None]:
    """Numbers as JSON has them: None if not finite, whole ones without a point, rounded to so many digits if given."""
    found: list[float | None] = []
    for value in map(float, values):
        if not math.isfinite(value):
            found.append(None)
        elif value.is_integer() and abs(value) < 2**53:
            found.append(int(value))
        else:
            found.append(float(f"{value:.{digits}g}") if digits else value)
    return found
