"""Every recipe and every run of every study is a config that can be; what a docstring tells to type is not refused."""

import dataclasses
import itertools
import re

import pytest

from bertlab import papers
from bertlab.config import base_config, flatten, load_config
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import FAMILIES, model_direction, model_shape
from bertlab.models.transformer import TransformerConfig
from bertlab.studies.checks import load_checked
from bertlab.studies.settings import read_setting
from bertlab.studies.study import load_study
from bertlab.studies.sweep import check_configs
from bertlab.transfer.recipes import find_recipe
from bertlab.transfer.tasks import find_task
from tests.conftest import RECIPES, ROOT
from tests.studies.golden import (
    GOLDEN,
    GOLDEN_RECIPES,
    STUDIES,
    described,
    label,
    of_finetuning,
    recipes_described,
    runs_of,
    scales,
)

ABLATIONS = ROOT / "experiments/ablations"
PRETRAIN = sorted((ROOT / "experiments/pretrain").glob("*.py"))
COMMANDS = [
    command
    for path in PRETRAIN
    if path.stem != "continued"  # begins with a run: test_init_from
    for command in re.findall(r"--config=(\S+)", path.read_text().replace("\\\n", "").replace("'", ""))
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Recipes and studies are found from any working directory."""
    monkeypatch.chdir(tmp_path)


def study_of(name, arguments):
    return load_study(f"{ABLATIONS}/{name}.py:{arguments}")


def test_every_recipe_is_among_those_that_the_tests_train():
    trained = {re.search(r"(\w+\.py)", recipe).group(1) for recipe in RECIPES.values()}
    assert {path.name for path in PRETRAIN} == {*trained, "continued.py"}


@pytest.mark.parametrize("recipe", RECIPES.values())
def test_a_recipe_can_be_in_every_size(recipe):
    path, _, arguments = recipe.partition(":")
    family = load_config(recipe).model.family
    for size in FAMILIES[family].sizes:
        load_checked(f"{path}:{','.join(filter(None, [arguments, f'size={size}']))}", {"mesh.data": 1})


@pytest.mark.parametrize("spec", COMMANDS)
def test_a_command_of_a_recipes_docstring_can_be(spec):
    load_checked(spec, {"mesh.data": 1})


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_every_run_of_a_study_can_be(study):
    for scale in scales(study.stem):
        pieces = set()
        for run in (run for run in runs_of(study, scale) if not run.averages):
            config = load_checked(run.config, run.overrides | {"mesh.data": 1})
            assert scale != "paper" or config.data.tokenizer.vocab_size != base_config().data.tokenizer.vocab_size
            for task, settings in run.downstream.items():
                kind, settings = find_task(settings.get("task", task)).kind, of_finetuning(run, task)
                kind.head(**{key.removeprefix("head."): value for key, value in settings.items() if key.startswith("head.")})
                if kind.name == "tagging":
                    pieces.add(piece_of(config.model, settings))
        assert len(pieces) <= 1, "all rows read words at the same piece"
    if study.stem != "floors":
        assert {run.labels["seed"] for run in load_study(f"{study}:seeds=3").runs()} == {"1", "2", "3"}


def piece_of(model, settings):
    """The piece at which a tagger reads a word: of "auto" the last one where a model does not see both sides."""
    direction = settings.get("model.direction") or model_direction(model)
    auto = "first" if "both" in sides_of(model.family, direction) else "last"
    asked = settings.get("transfer.word_piece", "auto")
    return auto if asked == "auto" else asked


@pytest.mark.parametrize(("study", "scale"), [("bert_table5", "demo"), ("floors", "mini"), ("objectives", "huge")])
def test_a_scale_that_a_study_does_not_have_is_refused(study, scale):
    with pytest.raises(UserError, match=f"scale={scale}: choose one of"):
        study_of(study, f"scale={scale}")


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_what_a_study_trains_with_is_written_down(study):
    """A change of settings is to be seen in review."""
    assert {path.stem for path in GOLDEN.iterdir()} == {path.stem for path in STUDIES}
    assert described(study) == (GOLDEN / f"{study.stem}.txt").read_text(encoding="utf-8"), "python -m tests.studies.golden"


def test_what_a_recipe_sets_is_written_down():
    assert recipes_described() == GOLDEN_RECIPES.read_text(encoding="utf-8"), "python -m tests.studies.golden"


@pytest.mark.parametrize(
    "study", [path for path in STUDIES if path.stem not in ("floors", "objectives")], ids=lambda path: path.stem
)
def test_a_study_says_what_it_stands_on_and_how_to_run_it(study):
    text = study.read_text()
    assert re.search(r"(19|20)\d\d|on the same text", text.split("\n")[0]), "a paper in its first line"
    command = rf"--study=experiments/ablations/{re.escape(study.name)}:scale=tiny,(\w+=[\w+]+,)?corpus=pydocs "
    assert re.search(command, text) and "bertlab report runs/" in text
    published = load_study(str(study)).published
    if published:
        assert published.source and all(len(row) == len(published.columns) for row in published.rows.values())
        ours = {label(run) for run in runs_of(study, "paper")}
        assert [row for row in published.rows if row not in ours and row not in published.note] == []


# Studies without claims, and why.
UNCLAIMED = {
    "awd_lstm_table4": "perplexities; claims are about scores of tasks",
    "fitlam": "nothing published compares the two versions",
    "floors": "synthetic language",
    "words_from_context": "correlations and shares of answers; claims are about scores of tasks",
    "one_scale": "code lengths; claims are about scores of tasks",
    "modern_body": "no published table at equal data",
    "repetition": "losses and bits per byte; claims are about scores of tasks",
    "scaling": "fits of losses; claims are about scores of tasks",
}


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_claims_are_about_a_study_s_variants_and_have_the_table_s_numbers(study):
    for scale in {"tiny", "paper"} & set(scales(study.stem)):
        of = load_study(f"{study}:scale={scale},seeds=1")
        assert bool(of.claims) != (study.stem in UNCLAIMED)
        pairs = [(claim.higher, claim.lower) for claim in of.claims]
        assert {name for pair in pairs for name in pair} <= {label(run) for run in runs_of(study, scale)}
        assert all(a != b for a, b in pairs)
        for a, b in itertools.combinations(
            of.claims, 2
        ):  # a pair may have two findings, if they are about other kinds of tasks
            if {a.higher, a.lower} == {b.higher, b.lower}:
                assert a.kinds and b.kinds and not {*a.kinds} & {*b.kinds}
        rows = of.published.rows if of.published else {}
        for claim in (claim for claim in of.claims if {claim.higher, claim.lower} <= set(rows)):
            cells = zip(rows[claim.higher], rows[claim.lower], strict=True)
            printed = {pair for higher, lower in cells for pair in zip(numbers(higher), numbers(lower))}
            said = re.findall(r"([\d.]+) and ([\d.]+)", claim.published)
            assert said and {(float(a), float(b)) for a, b in said} <= printed, claim


def numbers(cell):
    """The numbers of a table's cell: "89.3/82.3"."""
    return [float(number) for number in re.findall(r"[\d.]+", str(cell))]


def test_steps_are_those_given_or_the_studys_or_the_recipes():
    given, published, unpublished = (
        read_setting(arguments, paper=paper)
        for arguments, paper in [("scale=paper,steps=70", papers.BERT), ("scale=paper", papers.BERT), ("scale=paper", {})]
    )
    found = [setting.steps(setting.recipe("gpt")) for setting in (given, published, unpublished)]
    assert found == [70, 1_000_000, 2_441_406]
    for name in ("gpt_table5", "gpt_layers"):
        run = study_of(name, "scale=paper").runs()[0]
        config = load_config(run.config, run.overrides)
        passes = config.train.steps * config.data.batch_size * config.data.seq_len / 800e6  # words of BooksCorpus
        assert passes == pytest.approx(100, rel=1e-6)


def test_a_preset_stands_for_arguments_below_those_given():
    of_demo = lambda arguments: (len(runs := study_of("objectives", arguments).runs()), runs[0].overrides["train.steps"])
    assert of_demo("scale=demo") == (12, 250)
    assert of_demo("seeds=2,steps=20,scale=demo") == (6, 20)
    assert of_demo("scale=tiny") == (25, 6000)


def test_a_study_may_have_no_tasks_but_for_those_asked_for():
    assert study_of("awd_lstm_table4", "scale=tiny").tasks == {}
    assert list(study_of("awd_lstm_table4", "tasks=code_spans").tasks) == ["code_spans"]
    assert study_of("bert_table5", "tasks=").tasks == {}
    with pytest.raises(UserError, match=r"tasks=: this study needs a task of tagging; name one"):
        study_of("taglm_placement", "tasks=")


@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_left_to_right_models_are_fine_tuned_as_masked_ones(scale):
    by_label = {
        label(run): {key: of for key, of in of_finetuning(run, "package").items() if key != "init_step"}
        for name in ("bert_table5", "bert_figure5")
        for run in runs_of(ABLATIONS / f"{name}.py", scale)
    }
    bilstm = by_label.pop("+ BiLSTM")
    assert by_label.pop("No pretraining + BiLSTM") == bilstm
    assert [settings for settings in by_label.values() if settings != by_label["BERT"]] == []
    assert {key for key in bilstm if bilstm[key] != by_label["BERT"].get(key)} <= {"head.bilstm", "head.pooling"}


# Of each row of modern_body what it has otherwise than the row above.
SWITCHES = [
    {"position_encoding"},
    {"norm_placement", "final_norm"},
    {"scaled_residual_init"},
    {"gated", "hidden"},
    {"norm"},
    {"use_bias"},
    {"local_window", "global_every"},
    {"rotary_base", "activation", "epsilon", "segments", "max_positions"},
]


@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_neighbours_in_modern_body_differ_in_one_switch(scale):
    shapes = [
        dataclasses.asdict(model_shape(load_config(run.config, run.overrides).model, 100))
        for run in runs_of(ABLATIONS / "modern_body.py", scale)
    ]
    differences = [{key for key in a if a[key] != b[key]} for a, b in itertools.pairwise(shapes)]
    assert differences == SWITCHES
    alone = study_of("modern_body", f"scale={scale},seeds=1,alone=true").runs()
    for run, switch in zip(alone[1:-1], SWITCHES):
        shape = dataclasses.asdict(model_shape(load_checked(run.config, run.overrides | {"mesh.data": 1}).model, 100))
        assert {key for key in shape if shape[key] != shapes[0][key]} == switch, run.name


def test_every_value_of_a_transformer_is_a_key_of_the_config():
    """Between any two published shapes there is a way of switches."""
    derived = {"vocab_size", "output"}
    names = {field.name for field in dataclasses.fields(TransformerConfig)} - derived
    assert names | {"output_transform", "tied", "output_bias"} <= set(base_config().model)


@pytest.mark.parametrize(("start", "goal"), [("bert", "modern"), ("gpt", "bert"), ("bert", "gpt")])
def test_switches_lead_from_one_transformer_to_another(start, goal):
    config, expected = base_config().model, base_config().model
    expected.update(family=goal, size="tiny")
    wanted = {**dataclasses.asdict(model_shape(expected, 100))}
    wanted |= {key: value for key, value in zip(("output_transform", "tied", "output_bias"), wanted.pop("output").values())}
    config.update(family=start, size="tiny")
    for key, value in wanted.items():
        if key in config and key not in ("dtype", *INERT[goal]):
            config[key] = value
    assert dataclasses.replace(model_shape(config, 100), **inert_of(expected, goal)) == model_shape(expected, 100)


# Keys that have no effect in a shape may not be set there.
INERT = {
    "bert": ("position_buckets", "rotary_base", "rotary_base_local", "global_every", "first_norm"),
    "gpt": ("position_buckets", "rotary_base", "rotary_base_local", "global_every", "first_norm"),
    "modern": ("max_positions", "position_buckets", "position_offset"),
}


def inert_of(model, family) -> dict:
    return {key: getattr(model_shape(model, 100), key) for key in INERT[family]}


def test_a_study_selects_rates_at_small_scales_and_five_seeds_are_the_default():
    factors = {scale: study_of("bert_table5", f"scale={scale}").rates for scale in ("tiny", "small", "base", "paper")}
    assert [bool(of) for of in factors.values()] == [True, True, False, False]
    assert study_of("bert_table5", "scale=paper,select=on").rates == factors["tiny"] and 1.0 in factors["tiny"]
    assert study_of("bert_table5", "select=1/4+1").rates == [0.25, 1.0]
    assert study_of("bert_table5", "select=off").rates == () == study_of("objectives", "scale=demo").rates
    assert {run.labels["seed"] for run in study_of("bert_table5", "scale=tiny").runs()} == set("12345")
    pretraining = [path.stem for path in STUDIES if path.stem != "floors"]
    assert [name for name in pretraining if not study_of(name, "scale=tiny").rates] == []


def test_tasks_have_few_labels_and_probes_of_them_in_every_study():
    tasks = study_of("bert_table5", "tasks=package,labels=100+all,use=study+probe").tasks
    assert list(tasks) == ["package_100", "package_100_probe", "package_all", "package_all_probe"]
    assert {of["task"] for of in tasks.values()} == {"package"}
    assert [of.get("task_data.limit") for of in tasks.values()] == [100, 100, None, None]
    assert [of.get("recipe") for of in tasks.values()] == [None, "probe"] * 2
    [few] = study_of("bert_table5", "scale=paper,tasks=package,labels=100").tasks.values()
    assert few["train.steps"] == 1000, "three passes over 100 examples are no training"
    for study in ("ulmfit_low_shot", "elmo_sample_efficiency"):
        runs = study_of(study, "seeds=1,tasks=package,labels=50+all").runs()
        assert list(dict.fromkeys(run.labels["examples"] for run in runs)) == ["50", "all"]
        assert {task for run in runs for task in run.downstream} == {"package"}


def test_rates_of_fine_tuning_are_an_axis_that_valid_selects_and_share_the_pretraining():
    study = study_of("bert_table5", "seeds=2,select=off,tasks=package,task_rates=3e-4+1e-3")
    assert study.selected == ["finetune.rate"] and study_of("bert_table5", "seeds=1").selected == []
    assert study.axis_names == ["pretraining", "finetune.rate", "seed"]
    of = lambda run: (run.labels["pretraining"] in ("LTR & No NSP", "+ BiLSTM")) and run.labels["seed"] == "1"
    runs = [run for run in study.runs() if of(run)]
    assert [run.downstream["package"]["optimizer.learning_rate"] for run in runs] == [3e-4, 1e-3] * 2
    assert [run.shares.get("pretrain") for run in runs] == [None, *[runs[0].name] * 3]
    trajectory = study_of("bert_figure5", "seeds=1,task_rates=3e-4+1e-3")
    assert trajectory.axis_names == ["pretraining", "steps", "finetune.rate", "seed"] and len(trajectory.runs()) == 26


@pytest.mark.parametrize("path", [path for path in STUDIES if path.stem != "floors"], ids=lambda path: path.stem)
def test_every_study_with_tasks_takes_rates_of_fine_tuning(path):
    if not any(run.downstream for run in load_study(f"{path}:seeds=1").runs()):
        with pytest.raises(UserError, match="task_rates has no effect without tasks"):
            load_study(f"{path}:seeds=1,task_rates=3e-4+1e-3").runs()
        return
    runs = load_study(f"{path}:seeds=1,task_rates=3e-4+1e-3").runs()
    assert {run.labels["finetune.rate"] for run in runs} == {"0.0003", "0.001"}
    rates = {run.overrides.get("finetune.optimizer.learning_rate") for run in runs}
    rates |= {
        of["optimizer.learning_rate"] for run in runs for of in run.downstream.values() if "optimizer.learning_rate" in of
    }
    assert rates - {None} == {3e-4, 1e-3}, "no variant keeps a rate of its own"


@pytest.mark.parametrize(
    "arguments", ["task_rates=3e-4", "task_rates=1e-3+1e-3", "task_rates=fast+slow", "task_rates=0+1e-3", "task_rates=nan+1e-3"]
)
def test_rates_of_fine_tuning_that_cannot_be_are_refused(arguments):
    with pytest.raises(UserError, match=f"^{re.escape(arguments)}"):
        study_of("bert_table5", arguments)


@pytest.mark.parametrize(
    "arguments",
    ["labels=ten", "labels=²", "labels=0", "labels=5+5", "use=tuned", "use=probe+probe", "select=yes", "select=1+1/0"],
)
def test_arguments_of_tasks_that_cannot_be_are_refused(arguments):
    with pytest.raises(UserError, match=f"^{re.escape(arguments)}"):
        study_of("bert_table5", arguments)


@pytest.mark.parametrize("study", ["bert_table5", "elmo_placement", "gpt_table5", "ulmfit_table4"])
def test_a_probe_is_of_frozen_states_whatever_the_study_s_recipe_is(study, small_overrides, words_task, monkeypatch):
    """An axis of a study may still set its heads."""
    monkeypatch.chdir(ROOT)
    spec = study_of(study, "seeds=1,use=probe,labels=20")
    runs = [dataclasses.replace(run, overrides=run.overrides | small_overrides) for run in spec.runs()[:1]]
    task = {"task": words_task, "mesh.data": 1}
    runs = [dataclasses.replace(run, downstream={name: of | task for name, of in run.downstream.items()}) for run in runs]
    _, transfers = check_configs(runs)
    for (stage, task), config in transfers[runs[0].name].items():
        if stage == "finetune":
            assert task.endswith("_20_probe") and config.task_data.limit == 20
            assert config.optimizer.frozen and config.optimizer.thaw == "all"
            assert (config.optimizer.learning_rate, config.optimizer.decay) == (1e-3, "linear")
            assert not config.objectives[next(iter(config.objectives))].get("bilstm")


def test_transformers_of_a_study_have_todays_body_at_small_scales_and_the_papers_on_request():
    def of(arguments):
        runs = study_of("bert_table5", f"seeds=1,select=off,{arguments}").runs()
        configs = [load_config(run.config, run.overrides) for run in runs]
        bodies = {str({k: v for k, v in config.model.items() if k != "direction"}) for config in configs}
        rates = {config.objectives.mlm.rate for config in configs if "mlm" in config.objectives}
        return len(bodies), configs[0].model.position_encoding, configs[0].optimizer.b2, rates

    assert of("scale=tiny") == (1, "rotary", 0.98, {0.3})
    assert of("scale=tiny,body=paper") == (1, None, 0.999, {0.15})
    assert of("scale=small,body=today") == (1, None, 0.999, {0.15})
    with pytest.raises(UserError, match="body=huge"):
        of("body=huge")


def test_a_trial_differs_from_its_scale_in_what_its_name_says():
    runs = load_study(f"{ROOT}/experiments/trials.py:select=off").runs()
    configs = {run.labels["trial"]: flatten(load_checked(run.config, dict(run.overrides))) for run in runs}
    base = configs.pop("scale=tiny")
    changed = {name: {key for key in base | of if base.get(key) != of.get(key)} for name, of in configs.items()}
    assert changed.pop("the papers' body") >= {"model.norm", "model.position_encoding"}
    assert changed == {
        "15 % masked": {"objectives.mlm.rate"},
        "45 % masked": {"objectives.mlm.rate"},
        "β2 of 0.999": {"optimizer.b2"},
        "rows half as long": {"data.seq_len", "data.batch_size"},
        "four times the pieces": {"data.tokenizer.vocab_size"},
        "no pretraining": {"train.steps"},
    }


def test_bert_s_studies_select_fine_tuning_s_rate_as_its_paper_does():
    rates = {"5e-05", "4e-05", "3e-05", "2e-05"}
    for name in ("bert_table5", "bert_table6", "bert_figure5", "bert_table7", "bert_table8"):
        study = study_of(name, "scale=paper,seeds=2,tasks=code_spans")
        assert study.selected == ["finetune.rate"] and study_of(name, "scale=base").selected == []
        of = {run.labels["finetune.rate"]: run.downstream["code_spans"] for run in study.runs()}
        assert {*of} - {""} == rates and of["2e-05"]["optimizer.learning_rate"] == 2e-5
        features = {
            run.labels["finetune.rate"] for run in study.runs() if run.downstream["code_spans"]["recipe"] == "bert_features"
        }
        assert features == ({""} if name in ("bert_table7", "bert_table8") else set()), "theirs are not the paper's"
        assert study_of(name, "scale=paper,seeds=1,task_rates=1e-5+1e-4").selected == ["finetune.rate"]


@pytest.mark.parametrize("name", ["bert_table6", "bert_table7"])
def test_restarts_of_fine_tuning_share_a_pretraining(name):
    runs = study_of(name, "scale=paper,seeds=3").runs()
    assert (
        {run.labels["finetune.seed"] for run in runs}
        == {"1", "2", "3"}
        == {f"{run.downstream[task]['seed']}" for run in runs for task in run.downstream}
    )
    assert sum("pretrain" not in run.shares for run in runs) == (6 if name == "bert_table6" else 1)


def test_squad_is_trained_as_in_bert_s_paper_or_as_in_its_script():
    keys = ("data.batch_size", "optimizer.learning_rate", "transfer.epochs")
    of = lambda recipe, task: tuple(find_recipe(recipe, find_task(task).kind)[key] for key in keys)
    assert of("bert", "squad1") == of("bert", "squad2") == (12, 3e-5, 2.0)
    assert (of("bert_paper", "squad1"), of("bert_paper", "squad2")) == ((32, 5e-5, 3.0), (48, 5e-5, 2.0))
    assert of("bert_paper", "swag") == (16, 2e-5, 3.0) and of("bert_paper", "mnli") == (32, 5e-5, 3.0)
    assert study_of("bert_table5", "scale=paper,tasks=squad2,data=x").runs()[0].downstream["squad2"]["recipe"] == "bert_paper"


def test_gpt_reads_as_many_positions_in_fine_tuning_as_in_pretraining():
    for scale in ("base", "paper"):
        tasks = study_of("gpt_table5", f"scale={scale},seeds=1").runs()[0].downstream
        assert {of_finetuning(runs_of(ABLATIONS / "gpt_table5.py", scale)[0], task)["data.seq_len"] for task in tasks} == {512}


def test_electra_is_fine_tuned_as_its_code_does():
    keys = ("optimizer.learning_rate", "optimizer.layer_decay", "transfer.epochs", "data.seq_len", "head.pooling")
    of = lambda task: tuple(find_recipe("electra_paper", find_task(task).kind).get(key) for key in keys)
    assert of("mnli") == (1e-4, 0.8, 3.0, 128, "first") and of("stsb")[2] == 10.0 and of("squad2")[2:4] == (2.0, 512)
    tasks = study_of("electra_small", "scale=paper,seeds=1,tasks=rte+mnli,data=x").runs()[0].downstream
    assert [(of["recipe"], of.get("transfer.epochs")) for of in tasks.values()] == [
        ("electra_paper", 10.0),
        ("electra_paper", None),
    ]


def test_clm_then_mlm_has_the_papers_budgets_and_continued_pretraining():
    def steps_of(arguments):
        runs = study_of("clm_then_mlm", f"seeds=1,{arguments}").runs()
        return {label(run): run.overrides["train.steps"] for run in runs}, {
            label(run): run.overrides.get("train.phases") for run in runs
        }

    steps, phases = steps_of("scale=paper")
    assert len(steps) == 20 and {*steps.values()} == {12_000, 22_000, 42_000, 62_000}
    assert steps["MLM"] == 42_000 and steps["CLM, 12,000 steps"] == 12_000
    assert phases["25% CLM then MLM, 12,000 steps"].startswith("0.25 objectives.mlm.weight=0; 0.75")
    assert float(phases["CLM, continued as MLM"].split()[0]) * 62_000 == pytest.approx(40_000)
    assert phases["MLM, continued"] is None and len(steps_of("scale=tiny")[0]) == 6
    assert {*steps_of("scale=tiny,whole=on")[0].values()} == {1714, 3143, 6000, 8857}


def test_every_study_and_recipe_is_in_the_table_of_papers():
    linked = re.findall(r"\(\.\./(experiments/\w+/\w+\.py)\)", (ROOT / "docs/papers.md").read_text())
    assert {ROOT / path for path in linked} == {*STUDIES, *PRETRAIN}
