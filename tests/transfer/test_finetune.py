"""Fine-tuning: that it starts from the pretrained parameters, trains what it says and writes what it found."""

import itertools
import json
import re
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.cli import main
from bertlab.data.rows import make_row
from bertlab.errors import UserError
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from bertlab.studies.launchers import Local
from bertlab.studies.study import Study
from bertlab.studies.sweep import sweep
from bertlab.train.build import grafted
from bertlab.train.checkpoint import load_params
from bertlab.transfer.average import average
from bertlab.transfer.composition import build_finetuning
from bertlab.transfer.finetune import finetune, finetune_config, overridden, resolved
from tests.references import hidden_states, initial


def test_grafted_replaces_what_both_have_and_nothing_else():
    fresh = {"body": {"table": np.zeros(3), "pooler": {"kernel": np.zeros(2)}}, "heads_stub": {"kernel": np.zeros(4)}}
    pretrained = {"body": {"table": np.ones(3), "unused": np.ones(9)}, "heads_other": {"kernel": np.ones(4)}}
    params, kept_fresh = grafted(fresh, pretrained, "runs/x")
    np.testing.assert_array_equal(params["body"]["table"], np.ones(3))
    np.testing.assert_array_equal(params["body"]["pooler"]["kernel"], np.zeros(2))
    np.testing.assert_array_equal(params["heads_stub"]["kernel"], np.zeros(4))
    assert kept_fresh == ["body/pooler/kernel", "heads_stub/kernel"]
    with pytest.raises(UserError, match=r"body/table is \(5,\) in runs/x and \(3,\) here"):
        grafted(fresh, {"body": {"table": np.ones(5)}}, "runs/x")


pytestmark = pytest.mark.usefixtures("quick_compilation")


def settings(**changes):
    return {"data.seq_len": 16, "data.batch_size": 16, "mesh.data": 1, "optimizer.learning_rate": 0.01} | changes


def test_finetuning_learns_and_writes_a_run_directory(bert_run, words_task, tmp_path, capsys):
    overrides = settings(**{"train.steps": 60, "optimizer.warmup_steps": 5})
    result = finetune(bert_run, words_task, tmp_path / "words", overrides)
    assert json.loads((tmp_path / "words" / "result.json").read_text()) == result
    assert result["step"] == 60
    assert set(result["metrics"]) == {"valid", "test"}
    assert result["metrics"]["test"]["words/accuracy"] > 0.9
    lines = [json.loads(line) for line in (tmp_path / "words" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["split"] == "valid" and lines[0]["step"] == 0
    assert lines[0]["words/loss"] > 2 * result["metrics"]["valid"]["words/loss"]
    said = capsys.readouterr().out
    assert re.match(r"words: \d+ train, \d+ valid, \d+ test examples\n", said)
    (fresh,) = re.findall(r"not in .*: (heads_.*)", said)
    assert all(name.startswith("heads_words/") for name in fresh.split(", ")), "mlm+nsp trained all else that the tasks use"
    assert finetune(bert_run, words_task, tmp_path / "words", overrides) == result
    before = json.loads((tmp_path / "words" / "config.json").read_text())
    # A run from before these settings existed.
    del before["objectives"]["words"]["cell"], before["transfer"]["document_context"], before["transfer"]["head"]
    (tmp_path / "words" / "config.json").write_text(json.dumps(before))
    (tmp_path / "words" / "files.json").unlink()
    assert finetune(bert_run, words_task, tmp_path / "words", overrides) == result


@pytest.mark.nightly
def test_rows_in_parts_are_learned_as_whole_ones(bert_run, words_task, tmp_path):
    losses = []
    for parts in (1, 2):
        overrides = settings(**{"train.steps": 6, "train.log_every": 1, "optimizer.warmup_steps": 1, "mesh.sequence": parts})
        finetune(bert_run, words_task, tmp_path / str(parts), overrides)
        lines = (tmp_path / str(parts) / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["words/loss"] for line in lines])
    np.testing.assert_allclose(*losses, rtol=1e-4)  # sums in another order
    assert losses[0] != losses[1], "it was computed otherwise"


def test_finetuning_starts_from_the_pretrained_parameters(bert_run, words_task, tmp_path):
    finetune(bert_run, words_task, tmp_path / "start", settings(**{"train.steps": 0}))
    pretrained, start = load_params(bert_run), load_params(tmp_path / "start")
    names = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(pretrained["body"])}
    begun = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(start["body"])}
    assert len(begun) > 10 and begun.keys() <= names.keys()
    for name, leaf in begun.items():
        np.testing.assert_array_equal(leaf, names[name], err_msg=name)

    # The same parameters in the same body: the pretraining's own program gives the same states.
    program = build_finetuning(*resolved(overridden(finetune_config(bert_run, words_task), settings()))).program
    recorded = ConfigDict(json.loads((bert_run / "config.json").read_text()))
    body = build_body(model_shape(recorded.model, program.vocabulary.size))
    original = Program(body, objectives.build(recorded.objectives), program.vocabulary)
    tokens = np.array([2, 20, 30, 40, 3])
    row = make_row(8, 0, tokens, 0 * tokens, np.ones_like(tokens), -1, (0, 0))
    view = {name: value[None] for name, value in row.items() if name != "example_id"}
    ours, theirs = hidden_states(program, start, view), hidden_states(original, pretrained, view)
    np.testing.assert_array_equal(ours.both[-1], theirs.both[-1])
    fresh = initial(original, view, seed=recorded.seed)
    assert np.abs(hidden_states(original, fresh, view).both[-1] - theirs.both[-1]).max() > 1e-3, "two steps do move it"


def test_what_a_run_predicts_is_json_even_of_a_context_without_an_answer(bert_run, tmp_path):
    """Neither Infinity nor NaN is JSON: other readers refuse the file."""
    full = [f"the value of object {i}" for i in range(20)]
    for part, contexts in {"train": full + [" "] * 5, "dev": [" ", full[0]]}.items():
        answers = [[{"text": "the value", "answer_start": 0}] * (context in full) for context in contexts]
        paragraphs = [
            {"context": context, "qas": [{"id": f"{i}", "question": "what?", "answers": of, "is_impossible": not of}]}
            for i, (context, of) in enumerate(zip(contexts, answers))
        ]
        (tmp_path / f"{part}-v2.0.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    shape = settings(**{"task_data.directory": str(tmp_path), "data.seq_len": 24, "transfer.max_query": 4, "train.steps": 1})
    finetune(bert_run, "squad2", tmp_path / "run", shape | {"optimizer.warmup_steps": 0})
    written = (tmp_path / "run/predictions/test.jsonl").read_text().splitlines()
    without, answered = [json.loads(line, parse_constant=pytest.fail) for line in written]
    assert (without["null_odds"], without["predicted"]) == (None, "") and isinstance(answered["null_odds"], float)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    scores = average([tmp_path / "run", tmp_path / "other"], "test")
    assert scores["average"] == scores[str(tmp_path / "run")]


def unanswered(context):
    return {"context": context, "qas": [{"id": context, "question": "who?", "answers": [], "is_impossible": True}]}


MADE = {
    "table": 'table("t", train="train", text="text", label="label")',
    "regression": 'table("t", train="train", text="text", label="label", kind="regression")',
    "conll": 'conll("t", train="train", metrics=("accuracy",))',
    "squad": 'squad("t", train="train", may_lack_answer=True)',
}
WORDS = [f"word {i}" for i in range(20)]


@pytest.mark.parametrize(
    ("kind", "text", "same"),
    [
        ("table", "\n".join(["text\tlabel", *(f"{words}\tgood" for words in WORDS)]), "'good'"),
        (
            "table",
            "\n".join(["text\tlabel", *(f"{words}\tgood" for words in WORDS), *(f"{words}\tbad" for words in WORDS)]),
            "",
        ),
        ("regression", "\n".join(["text\tlabel", *(f"{words}\t3" for words in WORDS)]), "3.0"),
        ("conll", "\n\n".join(f"{words.replace(' ', ' O' + chr(10))} O" for words in WORDS), "'O'"),
        ("squad", json.dumps({"data": [{"title": "t", "paragraphs": [unanswered(words) for words in WORDS]}]}), "'no answer'"),
    ],
)
def test_a_label_that_never_varies_is_said_before_anything_is_trained(kind, text, same, bert_run, tmp_path, capsys):
    (tmp_path / "train").write_text(text)
    (tmp_path / "t.py").write_text(f"from bertlab.transfer.tasks import *\n\nTASK = {MADE[kind]}\n")
    with pytest.raises(UserError, match=r"config.transfer.layers=99"):
        finetune(bert_run, str(tmp_path / "t.py"), tmp_path / "run", settings(**{"transfer.layers": 99}))
    line = f"t's label never varies: it is {same} in all training examples\n" if same else ""
    assert capsys.readouterr().out.partition(" test examples\n")[2] == line


def test_a_word_is_read_at_the_piece_that_is_asked_for_else_at_its_last_where_one_side_is_seen(bert_run, tmp_path):
    (tmp_path / "tags.conll").write_text("".join(f"the O\nunforeseeable{i} B-X\nword O\n\n" for i in range(60)))
    (tmp_path / "tags.py").write_text('from bertlab.transfer.tasks import conll\n\nTASK = conll("tags", train="tags.conll")\n')

    def places(piece, direction):
        changes = settings(**{"transfer.word_piece": piece, "model.direction": direction})
        experiment = build_finetuning(*resolved(overridden(finetune_config(bert_run, str(tmp_path / "tags.py")), changes)))
        return experiment.evaluations["valid"][0]["word_at"].tolist()

    first, last = places("first", "bidirectional"), places("last", "bidirectional")
    assert first != last, "some word has two pieces"
    assert places("auto", "bidirectional") == places("first", "left-to-right") == first
    assert places("auto", "left-to-right") == places("last", "left-to-right") == last


def test_wrong_requests_are_refused(bert_run, words_task, tmp_path):
    for overrides, message in [
        ({"train.step": "5"}, r"no key 'train.step'; did you mean train.steps"),
        ({"train.steps": "5", "optimizer.warmup_steps": "5"}, r"config.optimizer.warmup_steps=5"),
        ({"transfer.warmup": "0.1", "optimizer.warmup_steps": "5"}, r"warmup_steps=5 and config.transfer.warmup=0.1 both"),
        ({"objectives.words.pooling": "most"}, r"config.objectives.words.pooling='most' .*mean, pooler"),
        ({"data.batch_size": "0"}, r"config.data.batch_size=0 must be at least 1"),
        ({"train.steps": "0", "transfer.epochs": "nan"}, r"config.transfer.epochs=nan is not finite"),
        ({"transfer.epochs": "-1"}, r"config.transfer.epochs=-1.0 must be at least 0"),
        ({"optimizer.learning_rate": "inf"}, r"config.optimizer.learning_rate=inf is not finite"),
        ({"head.mix_penalty": "nan"}, r"config.objectives.words.mix_penalty=nan is not finite"),
        ({"head.bilstm": "1", "head.hidden": "0"}, r"config.objectives.words.hidden=0 must be at least 1"),
        ({"head.blocks": "-5"}, r"config.objectives.words.blocks=-5 must be at least 0"),
        ({"metrics.words": "foo"}, r"config.metrics.words='foo' .*accuracy"),
        ({"transfer.word_piece": "middle"}, r"config.transfer.word_piece='middle' .*auto, first, last"),
        ({"transfer.word_piece": "last", "transfer.features": True}, r"word_piece='auto' .*'last'"),
        ({"model.family": "gpt"}, r"'bert'.*config.model.family is 'gpt'"),
        ({"data.seq_len": "600"}, r"config.data.seq_len=600 .* 512 positions"),
    ]:
        with pytest.raises(UserError, match=message):
            finetune(bert_run, words_task, tmp_path / "out", {"mesh.data": 1} | overrides)
    with pytest.raises(UserError, match=r"has no config.json; give the --workdir of"):
        finetune(tmp_path, words_task, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_short_texts_are_trained_in_short_batches(bert_run, words_task, tmp_path):
    overrides = {"data.seq_len": 48, "data.buckets": (32,), "mesh.data": 1, "train.steps": 30, "optimizer.warmup_steps": 2}
    experiment = build_finetuning(*resolved(overridden(finetune_config(bert_run, words_task), overrides)))
    batches = itertools.islice(iter(experiment.phases[0].train), 5)
    assert {batch["tokens"].shape[1] for batch in batches} == {32}
    assert experiment.evaluations["valid"][0]["tokens"].shape[1] == 48, "rows of an evaluation stay whole"
    for wrong, message in (
        ({"data.buckets": (64,)}, r"config.data.buckets=\(64,\) must be increasing lengths .*seq_len=48"),
        ({"transfer.features": True}, r"config.data.buckets=\(32,\)"),
    ):
        with pytest.raises(UserError, match=message):
            finetune(bert_run, words_task, tmp_path / "wrong", overrides | wrong)


def test_passes_that_steps_make_idle_are_refused_before_anything_is_computed(bert_run, words_task, tmp_path, capsys):
    command = ["finetune", f"--run={bert_run}", f"--task={words_task}", f"--workdir={tmp_path / 'x'}"]
    for more in ([], ["--seeds=1,2"]):  # the steps are the recipe's
        assert main([*command, "--config.transfer.epochs=1", *more]) == 2
        said = capsys.readouterr().err
        assert "config.transfer.epochs=1.0" in said and "config.train.steps=400" in said
    assert main([*command, "--config.transfer.epochs=1", "--config.train.steps=3"]) == 2
    said = capsys.readouterr().err
    assert "config.transfer.epochs=1" in said and "config.train.steps=3" in said
    assert not (tmp_path / "x").exists()
    settings_of = lambda **given: overridden(finetune_config(bert_run, words_task), given).to_dict()
    counted = settings_of(**{"transfer.epochs": "2", "train.steps": "0"})
    assert counted["transfer"]["epochs"] == 2.0 and settings_of(**{"transfer.epochs": 0.0})["train"]["steps"] == 400
    assert settings_of(**{"transfer.epochs": 3.0, "train.steps": 9})["train"]["steps"] == 9, "a study's steps for one task"


def test_a_study_whose_passes_are_idle_is_refused(bert_run, words_task, tmp_path):
    study = Study(
        name="idle", title="Idle", question="?", config=f"run:{bert_run}", axes={"finetune.seed": [1, 2]},
        overrides={"finetune.transfer.epochs": 2.0}, downstream={"words": {"task": words_task}},
    )  # fmt: skip
    with pytest.raises(UserError, match=r"transfer\.epochs=2\.0.*train\.steps=400"):
        sweep(study, tmp_path / "study", Local(1))
    assert not (tmp_path / "study").exists()
