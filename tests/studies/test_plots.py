import io

import matplotlib
import numpy as np
import pandas as pd
import pytest
from conftest import objectives_study, write_study
from matplotlib.text import Text

from bertlab.studies.plots import (
    STYLE,
    downstream_bars,
    learning_curves,
    line_styles,
    loss_metrics,
    metric_label,
    untrained,
    x_scale,
)
from bertlab.studies.results import X_AXES, load


@pytest.fixture
def results(study_directory):
    return load(study_directory)


def test_each_variant_has_its_own_colour_dashes_and_marker(results):
    styles = line_styles(results.runs)
    assert set(styles) == set(results.variants)
    for part in ("colour", "dashes", "marker"):
        assert len({getattr(style, part) for style in styles.values()}) == 5
    assert untrained(results.runs) == ["No pretraining"]


def test_styles_stay_distinct_with_many_variants():
    runs = pd.DataFrame({"variant": [f"v{i}" for i in range(24)], "status": "finished", "step": 1})
    assert len(set(line_styles(runs).values())) == 24


def test_curves_show_means_over_seeds_in_the_panel_of_their_loss(results):
    figure = learning_curves(results.metrics, ["mlm/loss", "ltr/loss"], X_AXES, line_styles(results.runs))
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
    figure = learning_curves(results.metrics, ["mlm/loss"], ["step"], line_styles(results.runs))
    assert max(figure.axes[0].lines[0].get_xdata()) == 600


def test_losses_are_those_of_objectives_and_else_the_total(results):
    assert loss_metrics(results.metrics) == ["mlm/loss", "nsp/loss", "ltr/loss", "rtl/loss"]
    assert loss_metrics(results.metrics[results.metrics["metric"] == "loss"]) == ["loss"]


def test_bars_are_means_in_percent_from_zero_with_the_reference_line(results):
    figure = downstream_bars(results.runs, ["package/accuracy"], line_styles(results.runs))
    (panel,) = figure.axes
    means = results.runs.groupby("variant", sort=False)["package/accuracy"].mean() * 100
    assert [bar.get_width() for bar in panel.patches] == pytest.approx(list(means))
    assert panel.get_xlim()[0] == 0
    assert any(
        list(line.get_xdata()) == pytest.approx([means["No pretraining"]] * 2) and len(line.get_xdata()) == 2
        for line in panel.lines
        if line.get_linestyle() == "--"
    )
    assert [label.get_text() for label in panel.get_yticklabels()] == results.variants


def visible_texts(figure):
    """The texts of a drawn figure, without the labels of ticks beyond the ends of their axis."""
    beyond = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            beyond |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in beyond]


def test_labels_do_not_overlap(results):
    figures = [
        learning_curves(results.metrics, loss_metrics(results.metrics), X_AXES, line_styles(results.runs)),
        learning_curves(results.metrics, ["mlm/loss"], ["supervised"], line_styles(results.runs), legend=False),
        downstream_bars(results.runs, ["package/accuracy", "code_spans/f1"], line_styles(results.runs)),
    ]
    for figure in figures:
        with matplotlib.rc_context(STYLE):
            figure.savefig(io.BytesIO(), format="png")
        boxes = [(text.get_text(), text.get_window_extent()) for text in visible_texts(figure)]
        overlaps = [(a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[i + 1 :] if box.overlaps(other)]
        assert overlaps == []
        width, height = figure.bbox.size
        outside = [a for a, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
        assert outside == []


@pytest.mark.parametrize(
    "axis, largest, expected",
    [
        ("step", 1500, (1, "steps")),
        ("step", 40_000, (1e3, "steps (k)")),
        ("tokens", 5.8e6, (1e6, "tokens (M)")),
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


def test_metric_labels_have_units():
    assert [metric_label(m) for m in ("mlm/loss", "package/accuracy", "t/f1", "t/spearman_correlation", "t/rank")] == [
        "mlm/loss (nats)",
        "package/accuracy (%)",
        "t/f1 (%)",
        "t/spearman_correlation (%)",
        "t/rank",
    ]
