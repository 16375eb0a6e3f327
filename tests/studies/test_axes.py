"""Grids as pure data: how axes are combined, what is refused, and the runs that come of them."""

import pytest

from bertlab.errors import UserError
from bertlab.studies.axes import axis, chain, product, settings, where, zipped
from bertlab.studies.study import Study

WIDTHS = axis("model.width", [128, 256, 384])
HEADS = axis("model.heads", [2, 4, 5])


def study(axes, **options):
    return Study(name="s", title="S", question="?", config="base.py", axes=axes, **options)


def test_a_product_has_every_pair_and_zipped_only_the_fellows():
    both = [settings(point) for point in product(WIDTHS, HEADS)]
    assert len(both) == 9 and both[:2] == [
        {"model.width": 128, "model.heads": 2},
        {"model.width": 128, "model.heads": 4},
    ]
    assert [tuple(settings(point).values()) for point in zipped(WIDTHS, HEADS)] == [(128, 2), (256, 4), (384, 5)]


def test_where_filters_by_settings_over_all_axes():
    kept = where(product(WIDTHS, HEADS), lambda given: given["model.width"] % given["model.heads"] == 0)
    assert {tuple(settings(point).values()) for point in kept} == {(w, h) for w in (128, 256, 384) for h in (2, 4)}


def test_a_chain_joins_grids_of_different_axes_and_the_study_knows_where_a_run_has_no_place():
    grid = chain(
        product(axis("rate", {"low": {"a": 1}, "high": {"a": 2}}), axis("seed", [1, 2])), axis("other", {"none": {"b": 0}})
    )
    runs = study(grid).runs()
    assert [run.name for run in runs] == ["low-seed=1", "low-seed=2", "high-seed=1", "high-seed=2", "none"]
    assert runs[0].labels == {"rate": "low", "seed": "1", "other": ""}
    assert runs[-1].labels == {"rate": "", "seed": "", "other": "none"} and runs[-1].overrides == {"b": 0}


def test_a_mapping_is_the_product_of_its_axes():
    axes = {"rate": {"low": {"a": 1}, "high": {"a": 2}}, "seed": [1, 2]}
    assert study(axes).runs() == study(product(*(axis(name, values) for name, values in axes.items()))).runs()


@pytest.mark.parametrize(
    "combine, message",
    [
        (lambda: zipped(WIDTHS, HEADS[:2]), "zipped grids have 3, 2 points"),
        (lambda: product(WIDTHS, WIDTHS), 'axis "model.width" is in two'),
    ],
)
def test_what_cannot_be_combined_is_refused(combine, message):
    with pytest.raises(UserError, match=message):
        combine()
