"""Runs of a study from its axes: names, overrides, shared stages, averages; what is refused."""

import pytest

from bertlab.errors import UserError
from bertlab.studies.runs import finetuning
from bertlab.studies.study import Claim, Study, axis, chain, load_study, overlap, product, rate_axis

OBJECTIVES = {"MLM": {}, "LTR": {"config": "ltr.py"}}


def make(axes, **settings):
    return Study("s", "Title", "Why?", "mlm.py", axes, **settings)


def test_runs_are_the_product_of_the_axes_and_seeds_order_the_text_too():
    runs = make({"objective": OBJECTIVES, "seed": [1, 2]}, overrides={"train.steps": 5}).runs()
    assert [run.name for run in runs] == ["mlm-seed=1", "mlm-seed=2", "ltr-seed=1", "ltr-seed=2"]
    assert [run.config for run in runs] == ["mlm.py", "mlm.py", "ltr.py", "ltr.py"]
    assert runs[3].overrides == {"train.steps": 5, "seed": 2, "data.seed": 2}
    assert [run.variant for run in runs] == ["MLM", "MLM", "LTR", "LTR"]
    (one, _) = make({"seed": [1, 2]}, overrides={"data.seed": 7}).runs()
    assert one.overrides["data.seed"] == 7


def test_axes_take_precedence_over_tasks_and_tasks_over_shared_overrides():
    study = make(
        {"rate": {"high": {"finetune.optimizer.learning_rate": 1.0}, "own": {}}},
        overrides={"finetune.optimizer.learning_rate": 3.0, "finetune.recipe": "bert"},
        downstream={"sst2_100": {"task": "sst2", "optimizer.learning_rate": 2.0}},
    )
    high, own = (run.downstream["sst2_100"] for run in study.runs())
    assert (high["optimizer.learning_rate"], own["optimizer.learning_rate"]) == (1.0, 2.0)
    assert own["recipe"] == "bert" and not study.runs()[0].overrides


def test_runs_that_pretrain_alike_share_it_and_keep_the_steps_that_others_begin_with():
    steps = {"10": {"finetune.init_step": 10}, "20": {"finetune.init_step": 20}}
    runs = make({"steps": steps, "seed": [1, 2]}, downstream=["package"]).runs()
    assert [run.shares for run in runs[:2]] == [{}, {}]
    assert [run.shares["pretrain"] for run in runs[2:]] == ["10-seed=1", "10-seed=2"]
    assert {run.overrides["train.keep"] for run in runs} == {"10,20"}


def test_an_adaptation_is_shared_where_model_settings_and_data_are_equal():
    study = make(
        {"head": {"a": {"finetune.head.pooling": "mean"}, "b": {"finetune.recipe": "bert"}}},
        overrides={"adapt.epochs": 2.0},
        downstream={"few": {"task": "sst2", "task_data.limit": 5}},
    )
    first, second = study.runs()
    assert not first.shares and second.shares == {"pretrain": "a", "adapt": "a"}
    data = {"few": {}, "all": {}}
    for limit, name in ((5, "few"), (0, "all")):
        data[name] = {"finetune.task_data.limit": limit}
    first, second = make({"data": data}, overrides={"adapt.epochs": 2.0}, downstream=["x"]).runs()
    assert second.shares == {"pretrain": "few"}


def test_task_rates_are_an_axis_before_the_seed_that_is_selected():
    grid = product(axis("objective", OBJECTIVES), rate_axis([1e-3, 3e-3]), axis("seed", [1]))
    study = make(grid, downstream=["x"])
    assert study.axis_names == ["objective", "finetune.rate", "seed"]
    assert study.describe(study.runs())["select"] == ["finetune.rate"]
    first, second, *_ = study.runs()
    assert (first.variant, second.name) == ("MLM", "mlm-0.003-seed=1")
    assert second.downstream["x"] == {"optimizer.learning_rate": 3e-3}


def test_an_average_is_over_the_runs_of_its_seed():
    systems = {"forward": {}, "backward": {"model.direction": "right-to-left"}}
    systems["both"] = {"config": "average:forward,backward"}
    *_, last = make({"system": systems, "seed": [1, 2]}, downstream=["x"]).runs()
    assert last.averages == ["forward-seed=2", "backward-seed=2"]
    assert last.overrides == {} and last.shares == {}


def test_grids():
    widths, heads = axis("model.width", [128, 256]), axis("model.heads", [2, 4])
    assert len(product(widths, heads)) == 4
    study = make(chain(product(widths, heads), axis("baseline", {"none": {"train.steps": 0}})))
    assert study.runs()[-1].labels == {"model.width": "", "model.heads": "", "baseline": "none"}


def test_dotted_names_overlap_by_their_parts():
    assert overlap("train", "train.steps") and overlap("train.steps", "train.steps")
    assert not overlap("train.step", "train.steps")


def test_a_study_file_imports_what_lies_beside_it(tmp_path):
    (tmp_path / "sizes_of_mine.py").write_text("SEEDS = [4]\n")
    (tmp_path / "study.py").write_text(
        "from sizes_of_mine import SEEDS\nfrom bertlab.studies.study import Study\n"
        "def get_study(arguments):\n"
        "    return Study('s', arguments or 'none', '', 'c.py', {'seed': SEEDS})\n"
    )
    study = load_study(f"{tmp_path}/study.py:steps=3,seeds=2")
    assert study.title == "steps=3,seeds=2" and study.runs()[0].name == "seed=4"


def test_a_rate_factor_multiplies_the_tasks_rate_or_its_recipes():
    own, recipe = {"task": "ud", "optimizer.learning_rate": 2e-3}, {"task": "ud", "recipe": "probe"}
    kinds = {"task": "codah", "recipe": "bert"}  # whose rate for choices is 2e-5
    tasks = {"own": own, "recipe": recipe, "kind": kinds}
    (run,) = make({"a": {"x": {"finetune.rate_factor": 3}}}, downstream=tasks).runs()
    found = [finetuning(run, task)["overrides"] for task in tasks]
    assert [of["optimizer.learning_rate"] for of in found] == [6e-3, 3e-3, 6e-5]


TWICE = {"a": {"x": {"train.steps": 1}}, "b": {"y": {"train": {}}}}


@pytest.mark.parametrize(
    ("axes", "settings", "message"),
    [
        (TWICE, {}, "let only one"),
        ({"tokens": {"x": {}}}, {}, "a column of results"),
        ({"a": {"x": {}, "X": {}}}, {}, "two runs"),
        ({"a": {"x": {}}}, {"claims": [Claim("x", "y", "", "")]}, '"y"'),
        ({"a": {"x": {}}}, {"contrasts": [("z", "x")]}, '"z"'),
        ({"a": {"x": {"config": "average:y,z"}}}, {}, "averages"),
    ],
)
def test_what_a_study_cannot_have_is_refused(axes, settings, message):
    with pytest.raises(UserError, match=message):
        make(axes, **settings).runs()
