"""A recipe's argument brings what it needs, a warm-up of any length included; what is set by hand stays."""

import pytest

from bertlab import papers
from bertlab.cli import main
from bertlab.config import brought, load_config
from bertlab.data.formats import FORMATS
from bertlab.data.tokenizers import WordsTokenizer
from bertlab.errors import UserError
from bertlab.models.base import sides_of
from bertlab.models.presets import model_direction
from bertlab.objectives import find
from bertlab.run import Run
from bertlab.train.checks import check_config
from tests.conftest import ROOT
from tests.contracts.test_models_and_objectives import REGISTRY

PRETRAIN = ROOT / "experiments/pretrain"
RECIPES = ("bert", "gpt", "modern", "elmo", "static")  # those with an argument `objectives`
SHORT = {"train.steps": 12, "train.log_every": 6}


def spec(recipe: str, arguments: str = "") -> str:
    return f"{PRETRAIN}/{recipe}.py" + (f":{arguments}" if arguments else "")


@pytest.mark.parametrize("corpus", ["synthetic", "text:x"])
@pytest.mark.parametrize("objective", [*REGISTRY, "mlm+nsp", "mlm+sop", "mlm+sbo"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_objective_can_be_named_in_every_recipe(recipe, objective, corpus):
    config = load_config(spec(recipe, f"objectives={objective},corpus={corpus}"), SHORT)
    kinds = [find(name) for name in config.objectives]
    if any(recipe not in kind.families for kind in kinds if kind.families):
        with pytest.raises(UserError, match=r"config\.model\.family="):
            check_config(config)
        return
    assert {*objective.split("+")} <= check_config(config).keys()
    sides, made = sides_of(recipe, model_direction(config.model)), FORMATS[config.data.format]
    assert all(kind.reads in ("any", *sides) and {*kind.needs} <= {*made.makes} for kind in kinds)
    if corpus == "synthetic":
        assert (config.data.tokenizer.kind, config.data.tokenizer.vocab_size) == ("words", 69)
        assert not made.gathers_sentences, "has floors"


WORDS = {"data.tokenizer.kind": "words", "data.tokenizer.vocab_size": 69}
SWAPPED = {"data.segment_pair.negatives": "swapped"}


@pytest.mark.parametrize(
    ("recipe", "arguments", "expected"),
    [
        ("bert", "", {}),
        ("bert", "size=mini,objectives=mlm,corpus=text:x,steps=30", {}),
        ("bert", "objectives=ltr", {"model.direction": "left-to-right"}),
        ("bert", "objectives=rtl", {"model.direction": "right-to-left"}),
        ("bert", "objectives=sop", SWAPPED),
        ("bert", "objectives=sbo", {"objectives.mlm.unit": "span"}),
        ("bert", "corpus=synthetic", WORDS | {"data.format": "sentence_pair"}),
        ("bert", "corpus=synthetic,objectives=mlm", WORDS | {"data.format": "full_sentences"}),
        ("gpt", "objectives=prefix", {"model.direction": "bidirectional"}),
        ("modern", "objectives=mlm+sop", SWAPPED | {"data.format": "segment_pair"}),
        ("elmo", "corpus=synthetic,objectives=ltr", WORDS),
        ("awd_lstm", "corpus=synthetic", WORDS),
        ("awd_lstm", "direction=backward", {"model.direction": "right-to-left", "data.stream.backward": True}),
        ("static", "objectives=glove", {"data.format": "cooccurrence", "model.output_init": "uniform"}),
    ],
)
def test_what_arguments_bring_is_known(recipe, arguments, expected):
    assert brought(spec(recipe, arguments), load_config(spec(recipe, arguments))) == expected


def test_what_is_set_by_hand_stays():
    given = spec("bert", "objectives=ltr,corpus=synthetic")
    argv = ["--config.model.direction=bidirectional", "--config.data.format=stream", "--config.data.tokenizer.kind=unigram"]
    config = load_config(given, argv=argv)
    assert (config.model.direction, config.data.format, config.data.tokenizer.kind) == ("bidirectional", "stream", "unigram")
    assert brought(given, config, argv) == {"data.tokenizer.vocab_size": 69}
    with pytest.raises(UserError, match=r"objective ltr .*config.model.direction='left-to-right'"):
        check_config(config)
    # The size of the vocabulary follows the language's, whichever way that is set.
    argv = ["--config.data.synthetic.vocab_size=16"]
    assert load_config(given, argv=argv).data.tokenizer.vocab_size == 21
    assert (
        load_config(given, {"data.synthetic.vocab_size": 16, "data.tokenizer.vocab_size": 30}).data.tokenizer.vocab_size == 30
    )


def test_a_first_run_takes_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTLAB_CACHE", str(tmp_path / "cache"))
    small = ["model.layers=1", "model.width=16", "model.heads=2", "model.hidden=16", "data.seq_len=32", "data.batch_size=4"]
    small += ["mesh.data=1", "data.synthetic.documents=200", "data.workers=1", "train.steps=30", "evaluate.sentences=4"]
    small += ["train.eval_batches=2"]
    config = "--config=experiments/pretrain/bert.py:objectives=ltr,corpus=synthetic"
    assert main(["train", config, "--workdir=run", *(f"--config.{setting}" for setting in small)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if " sets " in line]
    assert len(said) == 1 and "model.direction=left-to-right" in said[0] and "data.tokenizer.vocab_size=69" in said[0]
    run = Run(tmp_path / "run")
    assert run.config.read()["optimizer"]["warmup_steps"] == 3
    assert run.floor.read().keys() == {"ltr"} and not any(run.measured.read().values())


@pytest.mark.parametrize(
    ("recipe", "kind", "pieces", "positions", "rows", "steps", "rate"),
    [
        ("bert.py:size=base", "wordpiece", 30_522, 512, 256, 1_000_000, 1e-4),
        ("bert.py:size=large", "wordpiece", 30_522, 512, 256, 1_000_000, 1e-4),
        ("gpt.py:size=gpt1", "bpe", 40_478, 512, 64, 2_441_406, 2.5e-4),
        ("gpt.py:size=gpt2,steps=1000", "bpe", 50_257, 1024, 512, 1000, 1e-3),
        ("elmo.py:size=original,tokens=characters", "words", 793_471, 20, 384, 1_000_840, 0.2),
        ("awd_lstm.py:size=original", "words", 33_283, 70, 80, 280_000, 30.0),
    ],
)
def test_a_published_size_is_trained_as_its_paper_says(recipe, kind, pieces, positions, rows, steps, rate):
    config = load_config(f"{PRETRAIN}/{recipe}")
    data = config.data
    assert (data.tokenizer.kind, data.tokenizer.vocab_size, data.seq_len, data.batch_size) == (kind, pieces, positions, rows)
    assert (config.train.steps, config.optimizer.learning_rate) == (steps, rate)
    assert papers.differences(config) == {}


@pytest.mark.parametrize("recipe", ["elmo.py:size=original,tokens=characters", "awd_lstm.py:size=original"])
def test_words_of_published_tokens_stay_whole(recipe):
    """Both papers' programs read what spaces separate."""
    data, text = load_config(f"{PRETRAIN}/{recipe}").data, "did n't U.S. 3.5 <unk> @-@"
    tokenizer = WordsTokenizer.train([text], 11, data.tokenizer.lowercase, data.tokenizer.split)
    assert tokenizer.words(text) == text.split()
    assert data.stream.wrap == ("sentence" if "elmo" in recipe else "none")


def test_what_differs_from_a_size_s_paper_is_said():
    short = papers.differences(load_config(spec("bert", "size=base,steps=50"), {"data.batch_size": 8}))
    assert short.pop("train.phases")[1] == ""
    assert short == {"data.batch_size": (256, 8), "train.steps": (1_000_000, 50), "optimizer.warmup_steps": (10_000, 5)}
    assert papers.differences(load_config(spec("elmo", "size=original")))["optimizer.learning_rate"] == (0.2, 1e-3)
    remarked = {
        name: bool(papers.remark(load_config(spec(*name.split()))))
        for name in ("gpt", "bert size=base", "static size=original")
    }
    assert remarked == {"gpt": False, "bert size=base": False, "static size=original": True}
    synthetic = load_config(spec("bert", "size=tiny,corpus=synthetic"))
    assert "tokenizer.kind (wordpiece there, words here)" in papers.remark(synthetic)
    assert papers.remark(synthetic, {"data.tokenizer.kind"}) == "", "what was said is not said again"
    synthetic.data.tokenizer.path = "own"
    assert papers.remark(synthetic) == "", "a tokenizer that is there has a kind of its own"
    begun = load_config(spec("bert"), {"init_from": "runs/x"})
    assert papers.remark(begun) == "", "its model and tokenizer are another run's"
