"""`bertlab.results`: figures of a loaded study, with one colour per variant, and errors that name what is missing."""

import dataclasses

import pytest
from matplotlib.colors import to_rgb

from bertlab import results
from bertlab.errors import UserError
from bertlab.studies.plots import line_styles
from bertlab.studies.report import score_maps


@pytest.fixture(scope="module")
def study(study_directory):
    return results.load(study_directory)


def test_a_variant_has_one_colour_in_all_figures(study):
    styles = line_styles(study.runs)
    curves = results.plot_curves(study, ["mlm/loss"]).axes[0].lines
    assert [line.get_color() for line in curves] == [styles[name].colour for name in ("MLM", "MLM+NSP")]
    bars = results.plot_scores(study, ["package/accuracy"]).axes[0].patches
    assert [bar.get_facecolor()[:3] for bar in bars] == [to_rgb(styles[name].colour) for name in study.variants]


def test_all_losses_and_all_tasks_are_plotted_unless_some_are_named(study):
    labels = [panel.get_ylabel() for panel in results.plot_curves(study).axes]
    assert sorted(labels) == [f"{name}/loss (nats)" for name in ("ltr", "mlm", "nsp", "rtl")]
    panels = results.plot_curves(study, ["nsp/loss"], x_axes=["tokens", "seconds"]).axes
    assert [panel.get_xlabel().split(" (")[0] for panel in panels] == ["tokens", "training time"]
    assert [panel.get_xlabel() for panel in results.plot_scores(study).axes] == [
        "package/accuracy (%), test",
        "code_spans/f1 (%), test",
    ]


def test_a_heat_map_has_the_means_over_seeds(study):
    panel = results.plot_heat_map(study).axes[0]
    mean = study.wide("package/accuracy").groupby("variant")["package/accuracy"].mean()
    assert [text.get_text() for text in panel.texts][::2] == [f"{100 * mean[name]:.1f}" for name in study.variants]


def test_a_report_has_a_heat_map_of_three_variants_with_scores_and_not_of_two(study):
    of_two = study.runs.loc[study.runs["variant"].isin(study.variants[:2]), "run"]
    few = study.measurements[study.measurements["run"].isin(of_two)]
    assert len(study.variants) > 2 and score_maps(study) and not score_maps(dataclasses.replace(study, measurements=few))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda study: results.plot_curves(study, x_axes=["hours"]), "x_axes: .*'hours'.* step, tokens"),
        (lambda study: results.plot_curves(study, ["mlm/los"]), "no run in .* has 'mlm/los'; it has .*mlm/loss"),
        (lambda study: results.plot_scores(study, ["package/f1"]), "'package/f1' .*package/accuracy"),
        (lambda study: results.plot_heat_map(study, ["package"]), "'package' .*package/accuracy"),
    ],
)
def test_what_is_not_there_is_named(study, call, message):
    with pytest.raises(UserError, match=message):
        call(study)


def test_nothing_finished_and_nothing_fine_tuned_is_said(tmp_path, study):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no run is finished yet"):
        results.plot_scores(results.load(tmp_path / "run"))
    with pytest.raises(UserError, match=r"no run in .* has 'loss'; it has none"):
        results.plot_curves(results.load(tmp_path / "run"))
