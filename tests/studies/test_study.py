import dataclasses
import itertools
import math
import sys

import pytest
from conftest import objectives_study

from bertlab.config import load_config
from bertlab.data.batches import BatchHash
from bertlab.errors import UserError
from bertlab.studies.axes import axis, where
from bertlab.studies.checks import check_claims, load_checked
from bertlab.studies.study import Claim, Study, load_study
from bertlab.studies.sweep import check_configs
from bertlab.train.build import build_pretraining
from tests.conftest import ROOT


def study(axes, **options):
    return Study(name="s", title="S", question="?", config="base.py:size=tiny", axes=axes, **options)


def test_runs_are_the_product_of_the_axes_in_order():
    runs = objectives_study(seeds=(1, 2), variants=("MLM+NSP", "biLM")).runs()
    assert [run.name for run in runs] == ["mlm+nsp-seed=1", "mlm+nsp-seed=2", "bilm-seed=1", "bilm-seed=2"]
    assert runs[1].labels == {"objective": "MLM+NSP", "seed": "2"}
    seeds = {"seed": 2, "data.seed": 2}
    assert runs[1].overrides == {"train.steps": 1500, "objectives.mlm.weight": 1.0, "objectives.nsp.weight": 1.0, **seeds}
    assert runs[1].config == "experiments/pretrain/bert.py:size=tiny,corpus=pydocs"
    assert runs[1].downstream == {"package": {}, "code_spans": {}}


def test_config_in_a_label_replaces_the_base_config_and_is_no_override():
    bert, elmo = study({"model": {"BERT": {}, "ELMo": {"config": "elmo.py"}}}).runs()
    assert (bert.config, elmo.config) == ("base.py:size=tiny", "elmo.py")
    assert elmo.overrides == {}


def test_an_axis_overrides_the_shared_overrides():
    full, none = study({"budget": {"full": {}, "none": {"train.steps": 0}}}, overrides={"train.steps": 9}).runs()
    assert (full.overrides["train.steps"], none.overrides["train.steps"]) == (9, 0)


def test_a_shared_override_without_effect_at_a_point_is_left_out_there():
    formats = {"pairs": {}, "text": {"data.format": "doc_sentences"}}
    optimizers = {"adam": {}, "sgd": {"optimizer.name": "sgd"}}
    shared = {"data.segment_pair.short_probability": 0.0, "optimizer.b2": 0.98, "optimizer.clip_norm": 5.0}
    runs = study({"format": formats, "optimizer": optimizers}, overrides=shared).runs()
    assert [shared.keys() - run.overrides.keys() for run in runs] == [
        set(),
        {"optimizer.b2"},
        {"data.segment_pair.short_probability"},
        {"optimizer.b2", "data.segment_pair.short_probability"},
    ]


def test_study_without_axes_is_one_run():
    (run,) = study({}).runs()
    assert run.name == "s"


@pytest.mark.parametrize(
    "axes, message",
    [
        ({"a": {"x": {"train.steps": 1}}, "b": {"y": {"train.steps": 1}}}, 'axis "b" \\(y\\) sets train.steps'),
        ({"a": {"x": {"model": {}}}, "b": {"y": {"model.size": "tiny"}}}, "model.size"),
        ({"a": {"x": {"config": "a.py"}}, "b": {"y": {"config": "b.py"}}}, "sets config"),
        ({"a": {"MLM": {}, "mlm": {}}}, 'run name "mlm"'),
        ({"a": {"Report": {}}}, '"report", but that name is taken'),
        ({"a": {"Report.html": {}}}, '"report.html", but that name is taken'),
        ({"a": {"Explore.html": {}}}, '"explore.html", but that name is taken'),
        ({"seed": []}, "list of values"),
        ({"seed": 3}, 'axis "seed" is 3; give it a dict of label -> overrides or a list of values'),
        ({"tokens": [1]}, "rename the axis"),
        ({"a": {"x": 3}}, 'label "x" of axis "a" is 3'),
        ({"a": {"x": {"f": print}}}, "not plain data"),
        ([], "axes has no points"),
        (where(axis("a", [1, 2]), lambda given: False), "axes has no points"),
        ({"a": {"": {}, "x": {"b": 1}}, "seed": [1]}, 'label "" of axis "a" needs a letter or digit'),
        ({"a": {"study.json": {}}}, '"study.json", but that name is taken'),
        ({"a": {"Sweep.lock": {}}}, '"sweep.lock", but that name is taken'),
        ({"a": {"x": {}, "y": {"config": "average:x"}}}, "run y is average:x; give at least two labels, each once"),
        ({"a": {"x": {}, "y": {"config": "average:x,x"}}}, "run y is average:x,x; give at least two labels, each once"),
    ],
)
def test_axes_that_cannot_be_are_refused(axes, message):
    with pytest.raises(UserError, match=message):
        study(axes).runs()


def test_what_begins_with_finetune_is_every_task_s_and_what_begins_with_adapt_the_stage_before():
    axes = {"use": {"frozen": {"finetune.optimizer.frozen": "^body/"}, "adapted": {"adapt.epochs": 2.0, "a": 1}}}
    tasks = {"x": {"data.seq_len": 8, "task": "sst2"}, "y": {}}
    shared = {"finetune.recipe": "bert", "finetune.data.seq_len": 32, "b": 2}
    frozen, adapted = study(axes, overrides=shared, downstream=tasks).runs()
    assert frozen.overrides == {"b": 2} and adapted.overrides == {"b": 2, "a": 1}
    both = {"recipe": "bert", "optimizer.frozen": "^body/"}
    assert frozen.downstream == {"x": {**both, "data.seq_len": 8, "task": "sst2"}, "y": {**both, "data.seq_len": 32}}
    assert (frozen.adapt, adapted.adapt) == ({}, {"epochs": 2.0})


def test_an_axis_stands_over_a_task_s_own_setting():
    (run,) = study({"length": {"long": {"finetune.data.seq_len": 64}}}, downstream={"x": {"data.seq_len": 8}}).runs()
    assert run.downstream == {"x": {"data.seq_len": 64}}


def test_runs_that_pretrain_alike_share_it_seed_by_seed():
    axes = {
        "head": {
            "none": {},
            "bilstm": {"finetune.head.bilstm": 2},
            "other": {"train.steps": 3},
            "again": {"train.steps": 3, "finetune.head.crf": True},
        },
        "seed": [1, 2],
    }
    runs = {run.name: run.shares for run in study(axes, downstream=["x"]).runs()}
    assert runs == {
        "none-seed=1": {},
        "none-seed=2": {},
        "bilstm-seed=1": {"pretrain": "none-seed=1"},
        "bilstm-seed=2": {"pretrain": "none-seed=2"},
        "other-seed=1": {},
        "other-seed=2": {},
        "again-seed=1": {"pretrain": "other-seed=1"},
        "again-seed=2": {"pretrain": "other-seed=2"},
    }


def test_an_adaptation_is_shared_where_model_settings_and_data_are_the_same():
    axes = {
        "way": {
            "full": {"adapt.epochs": 1.0},
            "last": {"adapt.epochs": 1.0, "finetune.optimizer.thaw": "last"},
            "longer": {"adapt.epochs": 2.0},
            "less": {"adapt.epochs": 1.0, "finetune.task_data.limit": 10},
            "none": {},
        }
    }
    shares = {run.name: run.shares for run in study(axes, downstream=["x"]).runs()}
    assert shares.pop("full") == {}
    assert all(share["pretrain"] == "full" for share in shares.values())
    assert {name: share.get("adapt") for name, share in shares.items()} == dict(last="full", longer=None, less=None, none=None)


def test_an_average_is_of_the_runs_beside_it():
    directions = {"forward": {}, "backward": {"d": "b"}, "both": {"config": "average:forward,backward"}}
    runs = {run.name: run for run in study({"direction": directions, "seed": [1, 2]}, downstream=["x"]).runs()}
    assert runs["both-seed=2"].averages == ["forward-seed=2", "backward-seed=2"]
    assert not runs["both-seed=2"].overrides and not runs["both-seed=2"].shares
    for labels in ("forward,sideways", "forward,both"):
        wrong = directions | {"both": {"config": f"average:{labels}"}}
        with pytest.raises(
            UserError, match=f'averages "{labels.partition(",")[2]}", and the other labels .* forward, backward'
        ):
            study({"direction": wrong}, downstream=["x"]).runs()


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            {"x": ["a", "b"]},
            r"run x=a: x: the config has no key 'x'; its keys are data.\*, .* \(name an axis",
        ),
        ({"finetune.x": [1]}, r"run finetune.x=1: finetune.x: .* \(name an axis"),
        ({"a": {"A": {"finetune.optimizer.lr": 1.0}}}, r"finetune.optimizer.lr: .* mean finetune.optimizer.learning_rate\?$"),
        ({"a": {"A": {"adapt.foo": 1}}}, r"run a: adapt.foo: the config has no key 'foo'; "),
        ({"a": {"A": {"finetune.train.steps": -5}}}, r"run a: finetune on words: config.train.steps=-5"),
    ],
)
def test_what_is_wrong_is_named_as_the_study_has_it(axes, message, small_overrides, words_task):
    config = f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm"
    options = dict(overrides=small_overrides, downstream={"words": {"task": words_task}})
    runs = Study(name="s", title="", question="", config=config, axes=axes, **options).runs()
    with pytest.raises(UserError, match=message) as error:
        check_configs(runs)
    assert len(str(error.value)) < 350


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("ulmfit_table7", "task_steps=1", "task_steps=1: give at least 2"),
        ("bert_table5", "task_steps=-5", "task_steps=-5: give at least 1"),
        ("clm_then_mlm", "steps=1", "steps=1: give at least 2"),
        ("bert_table5", "steps=-1", "steps=-1: give at least 1"),
        ("floors", "seeds=0", "seeds=0: give at least 1"),
    ],
)
def test_a_setting_that_a_study_cannot_have_is_named(study, arguments, message):
    with pytest.raises(UserError, match=f"^{message}"):
        load_study(f"{ROOT}/experiments/ablations/{study}.py:{arguments}")


def test_a_study_takes_several_globs_as_its_corpus():
    run, *_ = load_study(f"{ROOT}/experiments/ablations/bert_table5.py:corpus=text:a.txt,b.txt,seeds=1").runs()
    assert load_config(run.config).data.corpus == "text:a.txt,b.txt"


def test_names_that_only_begin_alike_do_not_overlap():
    short, long = {"x": {"train.steps": 1}}, {"y": {"train.steps_per_eval": 1}}
    assert len(study({"a": short, "b": long}).runs()) == len(study({"a": long, "b": short}).runs()) == 1


def test_load_study_hands_over_the_text_after_the_colon(tmp_path):
    path = tmp_path / "s.py"
    path.write_text(
        "from bertlab.studies.study import Study\n"
        "def get_study(arguments):\n"
        "    return Study(name=repr(arguments), title='', question='', config='c.py', axes={})\n"
    )
    assert load_study(f"{path}:seeds=2,scale=tiny").name == "'seeds=2,scale=tiny'"
    assert load_study(str(path)).name == "None"


def test_a_seed_is_of_the_order_of_the_text_too_unless_that_has_one_of_its_own():
    of = lambda axes, **options: [
        (run.overrides["seed"], run.overrides.get("data.seed")) for run in study(axes, **options).runs()
    ]
    assert of({"seed": [1, 2]}) == [(1, 1), (2, 2)]
    assert of({"seed": [1, 2]}, overrides={"data.seed": 7}) == [(1, 7), (2, 7)]
    assert of({"seed": [1, 2], "data.seed": [3, 4]}) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert of({"order": {"A": {"data.seed": 5}, "B": {}}, "seed": [1]}) == [(1, 5), (1, 1)]
    assert of({"seed": {"one": {"seed": 1}}}) == [(1, None)], "labels say themselves what they set"


def test_seeds_read_the_text_in_their_own_order_and_variants_of_one_seed_in_the_same(small_overrides):
    overrides = small_overrides | {"train.steps": 5, "optimizer.warmup_steps": 1}
    hashes = {}
    spec = Study(
        name="s",
        title="",
        question="",
        config=f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm",
        axes={"rate": {"low": {}, "high": {"objectives.mlm.rate": 0.4}}, "seed": [1, 2]},
        overrides=overrides,
    )
    for run in spec.runs():
        [phase] = build_pretraining(load_checked(run.config, run.overrides)).phases
        read = BatchHash("")
        for batch in itertools.islice(phase.train, 3):
            read.update(batch)
        hashes[run.name] = read.value
    assert hashes["low-seed=1"] == hashes["high-seed=1"] != hashes["low-seed=2"] == hashes["high-seed=2"]


def test_names_keep_the_letters_of_every_script():
    assert [run.name for run in study({"rate": {"α": {}, "β": {"b": 1}, "Δx/2": {"b": 2}}}).runs()] == ["α", "β", "δx-2"]


@pytest.mark.parametrize("given", ["package", 3, {"package": 5}])
def test_tasks_are_names_or_names_with_settings(given):
    with pytest.raises(UserError, match=r"study s: downstream .*give a (list of tasks|dict)"):
        study({}, downstream=given).runs()


def test_a_study_may_have_dataclasses_with_future_annotations_and_import_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_the_study.py").write_text("NAME = 'found'\n")
    (tmp_path / "own.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from bertlab.studies.study import Study\n"
        "import beside_the_study\n"
        "@dataclass\n"
        "class Settings:\n"
        "    many: ClassVar[int] = 3\n"
        "    rate: float = 0.5\n"
        "def get_study(arguments):\n"
        "    return Study(name=beside_the_study.NAME, title='', question='', config='c.py', axes={})\n"
    )
    before = list(sys.path)
    assert load_study(str(tmp_path / "own.py")).name == "found"
    assert sys.path == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def get_study(arguments):\n    return (\n",
            r"study.py:2: the study cannot be read \(SyntaxError: '\(' was never closed",
        ),
        ("x = 1\nimport nowhere_to_be_found\n", r"study.py:2: .*ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        (
            "def get_study():\n    return 3\n",
            r"study.py: .*TypeError: get_study\(\) takes 0 positional arguments but 1 was given",
        ),
        ("def get_study(arguments):\n    a = {}\n    return a['b']\n", r"study.py:3: .*KeyError: 'b'"),
    ],
)
def test_a_mistake_in_a_study_is_said_with_its_line(tmp_path, text, message):
    (tmp_path / "study.py").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_study(str(tmp_path / "study.py"))
    assert "\n" not in str(error.value)


def test_load_study_names_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match=r"is missing here and in .*; give the path"):
        load_study(str(tmp_path / "missing.py"))
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(UserError, match="does not define get_study"):
        load_study(str(empty))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def get_study(arguments):\n    return 3\n")
    with pytest.raises(UserError, match="returned int"):
        load_study(str(wrong))


def test_claims_and_rates_that_cannot_be_are_refused(tmp_path):
    axes = {"model": {"a": {}, "b": {"model.width": 8}}, "finetune.rate": [1e-3, 1e-4], "seed": [1, 2]}
    study = Study("s", "S", "?", "base.py", axes, select=["finetune.rate"], claims=[Claim("a", "b", "1 and 2", "P")])
    check_claims(study)
    with pytest.raises(UserError, match='a claim is about "c", and the variants are a; b'):
        check_claims(dataclasses.replace(study, claims=[Claim("c", "b", "1 and 2", "P")]))
    for rates in (["1e-3"], [0.0], [math.nan]):
        with pytest.raises(UserError, match="task_rates has"):
            dataclasses.replace(study, axes={"seed": [1]}, select=[], task_rates=rates).runs()
