import dataclasses
import io
import itertools
import random

import matplotlib
import numpy as np
import pandas as pd
import pytest
from conftest import objectives_study, write_study
from matplotlib.figure import Figure
from matplotlib.text import Text

from bertlab.studies.curves import mean_curves
from bertlab.studies.measurements import COLUMNS, X_AXES, Measure, Results, cost, load
from bertlab.studies.plots import (
    COLOURS,
    REFERENCE_COLOUR,
    STYLE,
    add_legend,
    code_lengths,
    downstream_bars,
    has_code_lengths,
    heat_map,
    known_lengths,
    learning_curves,
    line_handle,
    line_styles,
    loss_metrics,
    metric_label,
    score_number,
    text_width,
    wrapped,
    x_scale,
)
from bertlab.studies.report import figure_svg
from bertlab.transfer.scorers import METRICS
from tests.conftest import ROOT
from tests.studies.golden import STUDIES, label
from tests.studies.golden import runs_of as runs_of_study

LONG_NAMES = [f"a name of many words that says every_key_of_its_own=0.{number}/and more" for number in range(12)]
PACKAGE, CODE_SPANS = Measure("finetune", "package", "test", "accuracy"), Measure("finetune", "code_spans", "test", "f1")
AWKWARD_NAMES = ["x" * 70, "cost $5 and $6", "_hidden", "50% #1 {a} ~ ^ \\n", "<b>bold</b>", *LONG_NAMES[:3]]


@pytest.fixture
def results(study_directory):
    return load(study_directory)


def runs_of(variants):
    """The runs of a study: a finished one of each variant."""
    names = list(variants)
    return pd.DataFrame({"run": [f"{i}" for i in range(len(names))], "variant": names, "status": "finished"})


def results_of(variants, **scores):
    """A study with a finished run of each variant and these scores: {"task/metric": a score per variant}."""
    runs = runs_of(variants)
    measured = {cost("step"): [10.0] * len(runs)}
    measured |= {Measure("finetune", *name.split("/", 1)[:1], "test", name.split("/", 1)[1]): of for name, of in scores.items()}
    rows = [(run, *measure, value, np.nan) for measure, of in measured.items() for run, value in zip(runs["run"], of)]
    study = {"axes": {}, "downstream": [name.split("/")[0] for name in scores]}
    return Results(ROOT, study, runs, pd.DataFrame(rows, columns=COLUMNS))


def scores_of(results):
    return results.measures(stage="finetune")


def metrics_of(variants):
    """A short validation curve of each variant."""
    point = lambda variant, step: (
        {"run": variant, "variant": variant, "split": "valid", "metric": "mlm/loss", "value": 2.0}
        | {axis: step for axis in X_AXES}
    )
    return pd.DataFrame([point(variant, step) for variant in variants for step in (0, 10)])


def test_styles_stay_distinct_with_many_variants():
    styles = line_styles(runs_of(f"v{i}" for i in range(36))).values()
    assert len({(style.dashes, style.marker) for style in styles}) == 36
    assert len({(style.colour, style.hatch) for style in styles}) == 36
    assert not any(style.hatch for style in list(styles)[: len(COLOURS)]) and all(style.hatch for style in list(styles)[6:])


def test_a_style_does_not_change_while_a_sweep_runs():
    runs = runs_of(["x", "MLM", "no pretraining", "y"])
    styles = line_styles(runs)
    for status in itertools.product(("finished", "unfinished", "failed"), repeat=4):
        assert line_styles(runs.assign(status=status)) == styles


def test_well_known_variants_look_the_same_in_all_studies():
    names = ["MLM", "LTR", "biLM", "NSP", "ELECTRA", "SOP", "no pretraining"]
    others = [f"other {i}" for i in range(5)]
    alone = {name: line_styles(runs_of([name]))[name] for name in names}
    assert len({style.colour for style in alone.values()}) == 7
    rng = random.Random(1)
    for _ in range(20):
        present = rng.sample(names, 3) + others[: rng.randrange(4)]
        rng.shuffle(present)
        styles = line_styles(runs_of(present))
        assert list(styles) == present
        assert {name: styles[name] for name in names if name in styles} == {n: alone[n] for n in names if n in styles}
        assert len({style.colour for style in styles.values()}) == len(styles)  # unknown ones take other colours
    for first, second in (
        ("MLM", "mlm"),
        ("MLM + NSP", "MLM+NSP"),
        ("no pre-training", "Not pretrained"),
        ("BERT", "MLM+NSP"),
        ("No NSP", "MLM"),
    ):
        assert line_styles(runs_of([first]))[first] == line_styles(runs_of([second]))[second]
    assert line_styles(runs_of(["MLM, 40 % masked", "MLM"]))["MLM"] == line_styles(runs_of(["MLM"]))["MLM"]


def test_what_a_known_name_trains_decides_its_colour():
    colour = lambda name, trained: line_styles(runs_of([name]).assign(trained=trained))[name].colour
    assert colour("BERT", "mlm") == colour("MLM", "mlm") != colour("BERT", "mlm+nsp") == colour("MLM+NSP", "mlm+nsp")
    assert colour("full", "ltr") == colour("GPT", "ltr") == colour("LTR", "")
    assert colour("No pretraining", "mlm") == REFERENCE_COLOUR
    begun = line_styles(runs_of(["BERT", "BERT"]).assign(trained=["mlm", ""]))
    assert begun["BERT"].colour == colour("BERT", "mlm"), "a seed that has not begun changes nothing"
    assert colour("+ BiLSTM", "ltr") == colour("LTR", "ltr")
    assert colour("ELMo", "ltr+rtl") == colour("biLM", "something else")


def test_what_differs_after_the_comma_alone_shares_a_colour():
    styles = line_styles(
        runs_of(["LTR, layer 1", "LTR, layer 2", "not pretrained, layer 1", "not pretrained, layer 2", "x, y"])
    )
    assert [style.colour for style in styles.values()] == [COLOURS[1]] * 2 + [REFERENCE_COLOUR] * 2 + [COLOURS[0]]
    assert len({style.hatch for style in styles.values()}) == 4
    many = line_styles(runs_of(f"MLM, {i}" for i in range(6)))
    assert len({style.colour for style in many.values()}) == 6


def test_curves_show_means_over_seeds_in_the_panel_of_their_loss(results):
    figure = learning_curves(mean_curves(results.metrics), ["mlm/loss", "ltr/loss"], X_AXES, line_styles(results.runs))
    panels = np.array(figure.axes).reshape(2, 5)
    assert [len(panel.lines) for panel in panels[:, 0]] == [2, 2]  # MLM, MLM+NSP; LTR, biLM; no pretraining is a point
    assert [panel.get_xlabel() for panel in panels[0]] == [
        "steps",
        "tokens (M)",
        "supervised positions (k)",
        "compute (TFLOP)",
        "training time (s)",
    ]
    assert [panel.get_ylabel() for panel in panels[:, 0]] == ["mlm/loss (nats)", "ltr/loss (nats)"]
    runs = results.metrics[
        (results.metrics["variant"] == "MLM")
        & (results.metrics["split"] == "valid")
        & (results.metrics["metric"] == "mlm/loss")
        & (results.metrics["step"] == 600)
    ]
    x, y = panels[0, 1].lines[0].get_data()
    assert y[4] == pytest.approx(runs["value"].mean())
    assert x[4] == pytest.approx(runs["tokens"].iloc[0] / 1e6)


def test_a_curve_stops_at_its_shortest_run(tmp_path):
    study = objectives_study((1, 2), ("MLM",))
    results = load(write_study(tmp_path / "s", study, per_run={"mlm-seed=1": {"steps": 600}}))
    figure = learning_curves(mean_curves(results.metrics), ["mlm/loss"], ["step"], line_styles(results.runs))
    assert max(figure.axes[0].lines[0].get_xdata()) == 600


@pytest.mark.parametrize("counts, width", [((3, 1), 2 * 2**0.5), ((3,), None), ((), None)])
def test_a_pretraining_counts_once_however_often_it_was_fine_tuned(counts, width):
    """Losses are 2 and 4 by pretraining seed; `counts` are their fine-tunings, () three of one without a pretraining seed."""
    seeds = [(str(seed), str(nested)) for seed, of in enumerate(counts, 1) for nested in range(of)]
    runs = [
        {"run": f"{seed}-{nested}", "seed": seed, "finetune.seed": nested, "value": 2.0 * int(seed)} for seed, nested in seeds
    ]
    runs = runs or [{"run": str(nested), "finetune.seed": str(nested), "value": 2.0} for nested in range(3)]
    metrics = pd.DataFrame([metrics_of("A").assign(**run).iloc[at] for run in runs for at in (0, 1)])
    [panel] = learning_curves(mean_curves(metrics), ["mlm/loss"], ["step"], line_styles(runs_of("A"))).axes
    assert list(panel.lines[0].get_ydata()) == [3.0 if width else 2.0] * 2
    bands = [path.get_extents().height for band in panel.collections for path in band.get_paths()]
    assert bands == ([pytest.approx(width)] if width else [])


def test_losses_are_those_of_objectives_and_else_the_total(results):
    assert loss_metrics(results.metrics) == ["mlm/loss", "nsp/loss", "ltr/loss", "rtl/loss"]
    assert loss_metrics(results.metrics[results.metrics["metric"] == "loss"]) == ["loss"]


def test_bars_are_means_in_percent_from_zero_with_the_reference_line(results):
    figure = downstream_bars(results, [PACKAGE], line_styles(results.runs))
    (panel,) = figure.axes
    means = results.wide("package/accuracy").groupby("variant", sort=False)["package/accuracy"].mean() * 100
    assert [bar.get_width() for bar in panel.patches] == pytest.approx(list(means))
    assert panel.get_xlim()[0] == 0
    assert any(
        list(line.get_xdata()) == pytest.approx([means["No pretraining"]] * 2) and len(line.get_xdata()) == 2
        for line in panel.lines
        if line.get_linestyle() == "--"
    )
    assert [label.get_text() for label in panel.get_yticklabels()] == results.variants
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mean of No pretraining"]
    assert all(text.get_bbox_patch().get_facecolor()[3] == 1 for text in panel.texts), "lines end before numbers"


@pytest.mark.parametrize("accuracy", [1.0, 0.999])
def test_an_axis_of_shares_ends_at_all_of_them(accuracy):
    """Right of 100 % there is room for the numbers, but no tick: nothing can be there."""
    results = results_of(["a", "b"], **{"package/accuracy": [accuracy, 0.5], "package/points": [7.0, 3.0]})
    shares, others = downstream_bars(results, scores_of(results), line_styles(results.runs)).axes
    assert max(shares.get_xticks()) == 100 < shares.get_xlim()[1]
    assert shares.spines["bottom"].get_bounds() == (0, 100)
    assert others.spines["bottom"].get_bounds() == others.get_xlim()


def visible_texts(figure):
    """The texts of a drawn figure, without the labels of ticks beyond the ends of their axis."""
    beyond = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            beyond |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in beyond]


def layout_problems(figure):
    """The texts of a figure that overlap another, and those that are partly outside it."""
    with matplotlib.rc_context(STYLE):
        figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in visible_texts(figure)]
    overlaps = [(a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[i + 1 :] if box.overlaps(other)]
    width, height = figure.bbox.size
    outside = [a for a, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    return overlaps, outside


def test_labels_do_not_overlap(results):
    for figure in (
        learning_curves(mean_curves(results.metrics), ["mlm/loss", "nsp/loss"], X_AXES, line_styles(results.runs)),
        learning_curves(mean_curves(results.metrics), ["mlm/loss"], ["supervised"], line_styles(results.runs), legend=False),
        downstream_bars(results, [PACKAGE, CODE_SPANS], line_styles(results.runs)),
        heat_map(results, [PACKAGE, CODE_SPANS]),
    ):
        assert layout_problems(figure) == ([], [])


@pytest.mark.parametrize("variants", [LONG_NAMES, AWKWARD_NAMES])
def test_long_names_do_not_overlap_and_are_not_cut(variants):
    shares = np.linspace(0.5, 0.9, len(variants))
    tasks = ("a", "a_task_with_a_long_name", "third", "fourth")
    results = results_of(variants, **{f"{task}/accuracy": shares for task in tasks})
    scores, styles = scores_of(results), line_styles(results.runs)
    for figure in (
        learning_curves(mean_curves(metrics_of(variants)), ["mlm/loss"], ["tokens"], styles),
        downstream_bars(results, scores, styles),
        heat_map(results, scores),
    ):
        assert layout_problems(figure) == ([], [])


def test_every_shipped_study_has_a_legend_that_fits():
    of_studies = {}
    for path in STUDIES:
        of_studies.setdefault(tuple(dict.fromkeys(map(label, runs_of_study(path, "tiny")))), path.stem)
    for variants, study in of_studies.items():
        styles = line_styles(runs_of(variants))
        figure = Figure(figsize=(2.4 * len(X_AXES), 2.0), layout="constrained")
        add_legend(figure, {variant: line_handle(styles[variant]) for variant in variants}, "upper")
        figure.draw_without_rendering()
        box, canvas = figure.legends[0].get_window_extent(), figure.bbox
        assert canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1, study
        assert len(figure.legends[0].get_texts()) == len(variants)


def test_a_name_with_dollars_is_not_mathematics():
    results = results_of(["costs $x_1$ or $y$", r"\$5"], **{"task/accuracy": [0.5, 0.6]})
    file = io.StringIO()
    figure_svg(downstream_bars(results, scores_of(results), line_styles(results.runs)), file)
    assert "costs $x_1$ or $y$" in file.getvalue() and r"\$5" in file.getvalue()


def test_negative_scores_have_bars_from_a_visible_zero():
    results = results_of(["a", "b"], **{"cola/matthews": [-0.25, 0.1], "t/accuracy": [-0.0002, 0.0]})
    figure = downstream_bars(results, scores_of(results), line_styles(results.runs))
    panel, small = figure.axes
    assert [bar.get_width() for bar in panel.patches] == pytest.approx([-25, 10])
    low, high = panel.get_xlim()
    assert low < -25 and high > 10
    assert any(list(line.get_xdata()) == [0, 0] for line in panel.lines)
    assert [text.get_text() for text in panel.texts] == ["\N{MINUS SIGN}25.0", "10.0"]
    assert [text.get_text() for text in small.texts] == ["\N{MINUS SIGN}0.02", "0.0"]
    assert layout_problems(figure) == ([], [])


def test_numbers_stand_within_their_panel():
    results = results_of("abc", **{"t/count": [1.23456e12, 2e12, 3.3333e12], "t/accuracy": [0.2, 0.3, 0.9]})
    figure = downstream_bars(results, scores_of(results), line_styles(results.runs))
    figure.draw_without_rendering()
    for panel in figure.axes:
        assert all(text.get_window_extent().x1 <= panel.get_window_extent().x1 for text in panel.texts)


def test_scores_that_are_not_finite_are_left_out():
    results = results_of("abc", **{"task/accuracy": [0.5, np.inf, np.nan]})
    (panel,) = downstream_bars(results, scores_of(results), line_styles(results.runs)).axes
    assert [bar.get_width() for bar in panel.patches] == [50.0]
    assert [text.get_text() for text in heat_map(results, scores_of(results)).axes[0].texts] == ["50.0"]


def test_noise_about_one_score_has_one_colour():
    """Half a point is a tenth of the narrowest scale; ten points go from end to end."""
    results = results_of("ab", **{"chance/accuracy": [0.500, 0.505], "far/accuracy": [0.5, 0.6]})
    [image] = heat_map(results, scores_of(results)).axes[0].images
    np.testing.assert_allclose(image.get_array(), [[0.45, 0.0], [0.55, 1.0]], atol=1e-12)


def test_numbers_have_no_negative_zero():
    assert [score_number(value, "t/accuracy") for value in (-0.0, 0.7149, 1.0)] == ["0.0", "71.5", "100.0"]
    assert [score_number(value, "t/rank") for value in (-0.0, 12.3456, 2e-7, 1.5e12)] == [
        "0.000",
        "12.346",
        "2e\N{MINUS SIGN}07",
        "1.5e+12",
    ]


def test_many_tasks_stand_in_rows_of_three():
    results = results_of("ab", **{f"t{i}/accuracy": [0.5, 0.6] for i in range(9)})
    figure = downstream_bars(results, scores_of(results), line_styles(results.runs))
    assert figure.get_figwidth() < 12 and len(figure.axes) == 9
    assert len({round(panel.get_position().x0, 3) for panel in figure.axes}) == 3


def test_text_wraps_at_its_width():
    for text in (*AWKWARD_NAMES, "sentence_pair + NSP", "80/10/10, fine-tuned"):
        lines = wrapped(text, 1.0).split("\n")
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(text_width(line) <= 1.0 for line in lines)
    assert wrapped("all layers of all", 0.8) == "all layers of\nall" and wrapped("a b", 1) == "a b"


def test_figures_are_the_same_bytes_each_time():
    results = results_of([f"v{i}" for i in range(9)], **{"task/accuracy": np.linspace(0, 1, 9)})
    files = [io.StringIO(), io.StringIO()]
    for file in files:
        figure_svg(downstream_bars(results, scores_of(results), line_styles(results.runs)), file)
    assert files[0].getvalue() == files[1].getvalue() and "<pattern" in files[0].getvalue()


@pytest.mark.parametrize(
    "axis, largest, expected",
    [
        ("step", 1500, (1, "steps")),
        ("step", 40_000, (1e3, "steps (k)")),
        ("tokens", 1.5e9, (1e6, "tokens (M)")),
        ("flops", 1.1e14, (1e12, "compute (TFLOP)")),
        ("flops", 5.0, (1e9, "compute (GFLOP)")),
        ("seconds", 90, (1, "training time (s)")),
        ("seconds", 4000, (60, "training time (min)")),
        ("seconds", 90_000, (3600, "training time (h)")),
    ],
)
def test_axes_have_units(axis, largest, expected):
    assert x_scale(axis, largest) == expected


def test_metrics_have_units_and_those_of_tasks_are_shown_in_percent():
    assert [metric_label(m) for m in ("mlm/loss", "t/spearman_correlation", "t/rank")] == [
        "mlm/loss (nats)",
        "t/spearman_correlation (%)",
        "t/rank",
    ]
    assert {name: metric_label(f"task/{name}") for name in METRICS} == {name: f"task/{name} (%)" for name in METRICS}


def test_code_lengths_and_bounds_share_an_axis_and_bounds_are_marked(results):
    variants = list(dict.fromkeys(results.runs["variant"]))
    rows = []
    for number, run in enumerate(results.finished["run"]):
        variant = results.runs.set_index("run").loc[run, "variant"]
        kind = "any-order" if variant == variants[0] else "left-to-right"
        rows.append((run, "evaluate", "", "test", f"bits_per_byte/{kind}", 2 + variants.index(variant) + number % 2, np.nan))
    assert not has_code_lengths(results)
    table = pd.concat([results.measurements, pd.DataFrame(rows, columns=COLUMNS)], ignore_index=True)
    measured = dataclasses.replace(results, measurements=table)
    assert has_code_lengths(measured)
    [panel] = code_lengths(measured, line_styles(results.runs)).axes
    finished = [variant for variant in variants if variant in set(results.finished["variant"])]
    assert [label.get_text() for label in panel.get_yticklabels()] == finished
    means = [np.mean([value for run, *_, value, _ in rows if run in of]) for of in map(set, runs_by_variant(results, finished))]
    texts = [text.get_text() for text in panel.texts if text.get_text()]
    assert texts == [f"{'≤ ' * (variant == variants[0])}{mean:.3f}" for variant, mean in zip(finished, means, strict=True)]
    arrows = [text for text in panel.texts if text.arrow_patch]
    assert [arrow.xy[0] for arrow in arrows] == [pytest.approx(means[0])] and arrows[0].get_position()[0] < 0, "to the left"
    both = table.replace({"metric": {"bits_per_byte/any-order": "bits_per_byte/left-to-right"}})
    both = both[(both["run"] == rows[0][0]) & (both["metric"] == "bits_per_byte/left-to-right")]
    measured = dataclasses.replace(results, measurements=pd.concat([table, both], ignore_index=True))
    labels = [of.label for of in known_lengths(measured) if of.variant == variants[0]]
    assert labels == [f"{variants[0]}, left-to-right", f"{variants[0]}, any-order"]


def runs_by_variant(results, variants):
    return [results.finished.loc[results.finished["variant"] == variant, "run"] for variant in variants]
