"""Heads on stored states: a batch holds the run's own states of its examples, which are extracted once for all runs."""

import shutil

import numpy as np
import pytest
from ml_collections import ConfigDict

import bertlab
from bertlab.errors import UserError
from bertlab.interop import export_weights
from bertlab.run import Run
from bertlab.train import checkpoint, loop
from bertlab.train.build import begun_from
from bertlab.train.checkpoint import load_params
from bertlab.transfer import composition, stored
from bertlab.transfer.composition import build_finetuning
from bertlab.transfer.finetune import finetune, finetune_config, overridden, resolved
from bertlab.transfer.inputs import Layout
from tests.references import broken_at

pytestmark = pytest.mark.usefixtures("quick_compilation")

SETTINGS = {"data.seq_len": 32, "data.batch_size": 8, "mesh.data": 1, "train.steps": 4, "optimizer.warmup_steps": 1}
TAGS = 'from bertlab.transfer.tasks import conll\n\nTASK = conll("tags", train="tags.conll", metrics=("accuracy",))\n'

PAIRS = (
    'from bertlab.transfer.tasks import table\n\nTASK = table("pairs", train="pairs.tsv", text="a", pair="b", label="label")\n'
)


@pytest.fixture
def tags_task(tmp_path) -> str:
    """A task of one's own that tags words: which are "not"."""
    lines = [["the O", "value O", "not B", *(["objects O"] * (i % 9))] for i in range(60)]
    (tmp_path / "tags.conll").write_text("\n\n".join("\n".join(words) for words in lines) + "\n")
    (tmp_path / "tags.py").write_text(TAGS)
    return str(tmp_path / "tags.py")


def build(run, task, **changes):
    """A fine-tuning by the recipe `stored`, with the examples it is of."""
    config, tasks = resolved(overridden(finetune_config(run, task, "stored"), SETTINGS | changes))
    [(_, data)] = tasks.values()
    return build_finetuning(config, tasks), data


@pytest.mark.parametrize("kind", ["words", "tags"])
def test_batches_hold_the_states_of_their_examples(kind, bert_run, request):
    experiment, data = build(bert_run, request.getfixturevalue(f"{kind}_task"))
    model = bertlab.load(bert_run)
    for split, batch in (("valid", experiment.evaluations["valid"][0]), ("train", next(iter(experiment.phases[0].train)))):
        asked = [row for row in range(8) if batch["documents"][row].any()]
        assert len(asked) > 3
        for row in asked:
            number = batch["example_id"][row, 0]
            example = data.examples[split][number]
            [expected] = model.encode([example.words or example.texts[0]], pretokenized=bool(example.words))
            found, size = batch["features"][row], expected.states.shape[1]
            np.testing.assert_allclose(found[:size], expected.states.swapaxes(0, 1), atol=4e-3)  # half precision
            assert not found[size:].any()
            if kind == "tags":
                assert batch["labels"][row, :size].tolist() == list(example.label)


def test_what_is_too_long_is_cut_before_it_is_encoded(bert_run, words_task):
    experiment, data = build(bert_run, words_task, **{"data.seq_len": 8})
    batch = experiment.evaluations["valid"][0]
    assert batch["features"].shape[1] == 8
    model, example = bertlab.load(bert_run), data.examples["valid"][batch["example_id"][0, 0]]
    text, _ = stored.shown(model, example, Layout("pair", 8, True, False, False))
    assert example.texts[0].startswith(text) and len(text) < len(example.texts[0])
    [expected] = model.encode([text])
    assert expected.states.shape[1] == 6, "eight places, two of them for [CLS] and [SEP]"
    np.testing.assert_allclose(batch["features"][0, :6], expected.states.swapaxes(0, 1), atol=4e-3)


def test_the_body_is_not_trained_and_not_run_again(bert_run, words_task, tmp_path, monkeypatch):
    first = finetune(bert_run, words_task, tmp_path / "1", SETTINGS, "stored")
    monkeypatch.setattr("bertlab.transfer.features._write_shard", lambda *_: pytest.fail("the states are on disk"))
    again = finetune(bert_run, words_task, tmp_path / "again", SETTINGS, "stored")
    assert again["metrics"] == first["metrics"]
    finetune(bert_run, words_task, tmp_path / "2", SETTINGS | {"seed": 2, "head.layers": "last"}, "stored")
    assert set(load_params(tmp_path / "2")) == {"heads_words"}, "nothing but a head is trained"


def test_what_has_no_states_of_its_own_is_refused(bert_run, tmp_path, words_task):
    lines = [f"the value {i}\tof it\t{'good' if i % 2 else 'bad'}" for i in range(60)]
    (tmp_path / "pairs.tsv").write_text("a\tb\tlabel\n" + "\n".join(lines) + "\n")
    (tmp_path / "pairs.py").write_text(PAIRS)
    for task, changes, message in (
        (str(tmp_path / "pairs.py"), {}, r"config\.transfer\.features=True .*'pairs' .*config\.optimizer\.frozen"),
        (words_task, {"head.pooling": "pooler"}, r"pooling='pooler' .*config\.transfer\.features"),
        (
            words_task,
            {"transfer.random": True},
            r"trains one task's head on the run's own states; omit other tasks, random",
        ),
    ):
        with pytest.raises(UserError, match=message):
            finetune(bert_run, task, tmp_path / "out", SETTINGS | changes, "stored")


def test_a_head_over_stored_states_has_no_body_to_open_or_to_tune(bert_run, words_task, tmp_path):
    finetune(bert_run, words_task, tmp_path / "head", SETTINGS | {"train.steps": 0}, "stored")
    for use in (
        lambda: bertlab.load(tmp_path / "head"),
        lambda: export_weights("huggingface", tmp_path / "head", tmp_path / "out"),
        lambda: finetune_config(tmp_path / "head", words_task),
        lambda: begun_from(ConfigDict({"init_from": str(tmp_path / "head"), "init_step": None})),
    ):
        with pytest.raises(UserError, match=r"head has a head only .*; give the run that it fine-tuned, .*"):
            use()


@pytest.fixture
def half(small_config, tmp_path):
    """A BERT that still trains: the directory, and a function that lets it save its second step."""
    run = Run(tmp_path / "half")
    config = {"model__layers": 1, "optimizer__warmup_steps": 0, "optimizer__learning_rate": 0.01, "train__steps": 2}
    loop.train(small_config("bert", **config, train__checkpoint_every=1, train__keep_checkpoints=0), run.directory)
    run.result.delete()
    (run.directory / "files.json").unlink()
    second = run.checkpoints / "2"
    second.rename(tmp_path / "2")
    return run.directory, lambda: (tmp_path / "2").exists() and (tmp_path / "2").rename(second)


def losses(result):
    return {split: of["words/loss"] for split, of in result["metrics"].items()}


@pytest.mark.slow
def test_a_head_that_goes_on_reads_the_states_of_the_step_that_it_began_with(half, words_task, tmp_path, monkeypatch, capsys):
    base, save = half
    store = composition.store
    monkeypatch.setattr(composition, "store", lambda *given: (store(*given), save())[0])  # it saves while states are computed
    settings = SETTINGS | {"train.checkpoint_every": 1, "train.eval_every": 0}
    tune = lambda name, **more: finetune(base, words_task, tmp_path / name, settings | more, "stored")
    with broken_at(3):
        tune("run")
    assert "half is not finished; its step 1 is used" in capsys.readouterr().out and Run(base).steps() == [1, 2]
    found = tune("run")
    assert (found["step"], found["sources"]["init_step"]) == (4, "1")
    assert losses(found) == losses(tune("undisturbed", init_step=1)) != losses(tune("of the second", init_step=2))


def test_a_head_whose_states_are_of_a_step_that_is_gone_says_so(half, words_task, tmp_path):
    base, save = half
    with broken_at(3):
        finetune(base, words_task, tmp_path / "run", SETTINGS | {"train.checkpoint_every": 1}, "stored")
    save()
    shutil.rmtree(base / "checkpoints" / "1")
    with pytest.raises(
        UserError, match=r"half has removed the checkpoint of step 1, with whose states .*run began; give another"
    ):
        finetune(base, words_task, tmp_path / "run", SETTINGS | {"train.checkpoint_every": 1}, "stored")


def test_a_step_that_is_removed_while_it_is_read_is_not_asked_for_again(half, words_task, tmp_path, monkeypatch):
    base, save = half
    read = checkpoint._load_params

    def late(run, step):
        if (base / "checkpoints" / "1").exists():
            save()
            shutil.rmtree(base / "checkpoints" / "1")
        return read(run, step)

    monkeypatch.setattr(checkpoint, "_load_params", late)
    found = finetune(base, words_task, tmp_path / "run", SETTINGS | {"train.steps": 0})
    assert found["sources"]["init_step"] == "2"


def test_a_fine_tuning_names_the_step_whose_parameters_it_read(half, words_task, tmp_path):
    base, save = half
    settings = SETTINGS | {"train.steps": 0}
    experiment = build_finetuning(*resolved(overridden(finetune_config(base, words_task), settings)))
    save()
    found = loop.run(experiment, tmp_path / "run")
    assert found["sources"]["init_step"] == "2"
    assert losses(found) == losses(finetune(base, words_task, tmp_path / "second", settings | {"init_step": 2}))
