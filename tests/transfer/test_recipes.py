"""Every recipe learns a planted signal, from a tiny run, through the command."""

import pytest

from tests.transfer.planted import finetune, predictions, pretrained, write_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def runs(folder):
    """Family -> run, made when a test asks for it."""
    found = {}

    def run(family):
        if family not in found:
            found[family] = pretrained(folder, family)
        return found[family]

    return run


PROBE = {"train.steps": 100, "optimizer.learning_rate": 0.05}
SLOW = pytest.mark.slow
GRADUAL = {"data.buckets": "(8,)", "optimizer.thaw_steps": 20, "train.steps": 160}
TAGS = {"head.hidden": 16, "train.steps": 80}
CASES = [
    ("small", "bert", "text", {}),
    pytest.param("probe", "bert", "text", PROBE, marks=SLOW),
    pytest.param("bert", "bert", "text", {"transfer.warmup": 0.1}, marks=SLOW),
    pytest.param("electra_paper", "bert", "text", {"transfer.warmup": 0.1}, marks=SLOW),
    pytest.param("stored", "bert", "text", PROBE, marks=SLOW),
    pytest.param("small", "bert", "text", {"lora.rank": 2, "train.steps": 60}, marks=SLOW),
    pytest.param("gpt", "gpt", "text", {"transfer.warmup": 0.1}, marks=SLOW),
    pytest.param("ulmfit", "awd_lstm", "text", {**GRADUAL, "head.chunk": 4}, marks=SLOW),
    pytest.param("ulmfit_paper", "awd_lstm", "text", GRADUAL, marks=SLOW),
    pytest.param("fitlam", "awd_lstm", "text", GRADUAL, marks=SLOW),
    pytest.param("elmo", "elmo", "text", {"head.hidden": 16}, marks=SLOW),
    pytest.param("elmo", "elmo", "tags", TAGS, marks=SLOW),
    pytest.param("taglm", "elmo", "tags", TAGS, marks=SLOW),
    pytest.param(
        "bert_features", "bert", "tags", {**TAGS, "head.layers": "concat_last_2"}, marks=SLOW
    ),
]


@pytest.mark.parametrize(("recipe", "family", "kind", "settings"), CASES)
def test_a_recipe_learns(recipe, family, kind, settings, runs, folder, tmp_path):
    task = write_task(folder / kind, "half", kind=kind)
    if "transfer.warmup" in settings or recipe.startswith(("ulmfit", "fitlam")):
        settings = {"optimizer.warmup_steps": 0, **settings}
    result = finetune(runs(family), task, tmp_path / "out", recipe, **settings)
    assert result["metrics"]["test"]["half/accuracy"] > 0.8
    assert 0.3 < result["most_frequent"]["test"]["half/accuracy"] < 0.7
    assert result["linear"]["test"]["half/accuracy"] > 0.8
    right = [line["predicted"] == line["gold"] for line in predictions(tmp_path / "out")]
    assert len(right) == 40
