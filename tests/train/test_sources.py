"""A training goes on only with the text, the run and the examples that it began with, wherever they are now."""

import json
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from bertlab.data.tokenizers import train_tokenizer
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import load
from bertlab.studies.same_data import compare_sources, compare_texts
from bertlab.train import loop
from bertlab.train.sources import changed, of_pretrained
from bertlab.transfer.composition import sources_of
from bertlab.transfer.finetune import finetune
from tests.references import broken_at

pytestmark = pytest.mark.usefixtures("quick_compilation")

CADENCE = {"train__steps": 4, "train__checkpoint_every": 2, "train__eval_every": 0, "train__eval_batches": 1}


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".lock"}


def test_a_pretraining_does_not_go_on_over_another_text(small_config, tmp_path):
    text = tmp_path / "there" / "text.txt"
    text.parent.mkdir()
    text.write_text("\n\n".join(" ".join(topics[name].split()) for name in sorted(topics)[:30]))
    config = small_config("skip_gram", data__corpus=f"text:{text}", **CADENCE)
    with broken_at(3):
        loop.train(config, tmp_path / "run")
    before, content = files_of(tmp_path / "run"), text.read_text()
    text.write_text(content.replace("module", "modulo"))
    with pytest.raises(
        UserError, match=r"^the text or the tokenizer of config.data changed since .*run was trained with it; put"
    ):
        loop.train(config, tmp_path / "run")
    assert files_of(tmp_path / "run") == before, "the tokenizer that it was trained with stays"
    text.unlink()
    moved = tmp_path / "here" / "text.txt"
    moved.parent.mkdir()
    moved.write_text(content)
    config.data.corpus = f"text:{moved}"
    assert loop.train(config, tmp_path / "run")["step"] == 4, "the same text elsewhere"
    config.data.corpus = f"text:{text}"
    with pytest.raises(UserError, match="holds a run with a different config"):  # a finished run reads none
        loop.train(config, tmp_path / "run")


@pytest.mark.slow
def test_a_warm_start_does_not_go_on_from_another_run(small_config, tmp_path):
    base = small_config("skip_gram", **CADENCE)
    begun = tmp_path / "base"
    with broken_at(3):
        loop.train(base, begun)
    config = small_config("skip_gram", init_from=str(begun), **CADENCE)
    with broken_at(3):
        loop.train(config, tmp_path / "run")
    first = of_pretrained(Run(begun))
    loop.train(base, begun)
    assert of_pretrained(Run(begun)) == first, "it has trained further"
    kept = shutil.move(begun, tmp_path / "kept")
    other = base.copy_and_resolve_references()
    other.seed = 5
    loop.train(other, begun)
    with pytest.raises(UserError, match=r"^the run that config.init_from names changed since"):
        loop.train(config, tmp_path / "run")
    shutil.rmtree(begun)
    shutil.move(kept, begun)
    assert loop.train(config, tmp_path / "run")["step"] == 4
    assert Run(tmp_path / "run").result.read()["sources"]["init_step"] == "2", "of the base while it still trained"
    shutil.rmtree(begun)
    loop.train(other, begun)
    with pytest.raises(UserError, match=r"^the run that config.init_from names changed since"):
        loop.train(config, tmp_path / "run")  # finished


@pytest.mark.slow
def test_a_fine_tuning_does_not_go_on_with_other_examples(bert_run, words_task, tmp_path, capsys):
    settings = {"data.seq_len": 16, "data.batch_size": 16, "mesh.data": 1, "optimizer.warmup_steps": 0}
    settings |= {name.replace("__", "."): value for name, value in CADENCE.items()}
    table = tmp_path / "table.tsv"
    content = table.read_text()
    with broken_at(3):
        finetune(bert_run, words_task, tmp_path / "run", settings)
    table.write_text(content.replace("object 1 is here\tgood", "object 1 is here\tbad"))
    changed = r"^the (train|valid|test) examples of task words changed since"
    with pytest.raises(UserError, match=changed):
        finetune(bert_run, words_task, tmp_path / "run", settings)
    table.write_text(content)
    result = finetune(bert_run, words_task, tmp_path / "run", settings)
    assert result["step"] == 4
    table.write_text(content.replace("good", "bad", 1).replace("bad", "good", 2))
    with pytest.raises(UserError, match=changed):  # it would give the scores of other labels
        finetune(bert_run, words_task, tmp_path / "run", settings)
    assert "not finished" not in capsys.readouterr().out
    half = shutil.copytree(bert_run, tmp_path / "half")
    (half / "result.json").unlink()
    (half / "files.json").unlink()
    table.write_text(content)
    finetune(half, words_task, tmp_path / "of_half", settings | {"train.steps": 0})
    assert "half is not finished; its step 2 is used" in capsys.readouterr().out


def test_test_scores_of_other_examples_are_not_compared(tmp_path):
    runs = [{"name": name, "labels": {"use": name}, "downstream": {"words": {}}} for name in ("a", "b", "c")]
    named = dict.fromkeys(("name", "title", "question", "command"), "s")
    study = {**named, "axes": {"use": ["a", "b", "c"]}, "downstream": ["words"], "runs": runs}
    (tmp_path / "study.json").write_text(json.dumps(study))
    for name, tested in (("a", "12"), ("b", "12"), ("c", "34")):
        Run(tmp_path / name).result.write({"step": 1, "metrics": {}})
        sources = {"examples/words/train": name, "examples/words/test": tested}
        Run(tmp_path / name).stage("finetune", "words").result.write(
            {"metrics": {"test": {"words/f1": 0.5}}, "sources": sources}
        )
    [said] = compare_texts(load(tmp_path))
    assert said == ("Test scores of words were measured on different texts and are not comparable: 12… in a, b; 34… in c.")


def test_seeds_of_one_variant_that_read_different_things_are_named(tmp_path):
    runs = [
        {"name": name, "labels": {"use": name[0], "seed": name[1]}, "downstream": {"words": {}}} for name in ("a1", "a2", "b1")
    ]
    named = dict.fromkeys(("name", "title", "question", "command"), "s")
    study = {**named, "axes": {"use": ["a", "b"], "seed": ["1", "2"]}, "downstream": ["words"], "runs": runs}

    def said(change, runs=runs):
        (tmp_path / "study.json").write_text(json.dumps({**study, "runs": runs}))
        for name, limit in (("a1", 0), ("a2", 0), ("b1", 50)):
            run = Run(tmp_path / name)
            run.config.write({"seed": int(name[1]), "data": {"corpus": "pydocs", "seed": int(name[1])}})
            run.result.write({"step": 1, "metrics": {}, "sources": {"corpus": "11"} | change.get((name, ""), {})})
            tuned = run.stage("finetune", "words")
            begun = {"init_from": "base" if "config" in runs[0] else str(run), "seed": int(name[1])}
            tuned.config.write({**begun, "task_data": {"limit": limit}, "transfer": {"random": False}})
            sources = {"init_from": name, "examples/words/train": str(limit), "examples/words/test": "33"}
            metrics = {"test": {"words/f1": 0.5}}
            tuned.result.write({"metrics": metrics, "sources": sources | change.get((name, "words"), {})})
        return compare_sources(load(tmp_path))

    assert said({}) == [], "each its own pretraining, and another limit on another variant"
    differ = "Runs that differ in seeds only do not have the same here: "
    [text] = said({("a2", ""): {"corpus": "22"}})
    assert text.startswith(f"{differ}the text or the tokenizer of config.data (11… in a1, b1; 22… in a2). So their mean")
    [examples] = said({("a2", "words"): {"examples/words/train": "44"}})
    assert examples.startswith(f"{differ}the train examples of task words (0… in a1; 44… in a2).")
    standing = [{**run, "config": "run:base"} for run in runs]
    [step] = said({("a1", "words"): {"init_step": "40"}, ("a2", "words"): {"init_step": "60"}})
    assert step.startswith(f"{differ}the step of the unfinished run that config.init_from names (40… in a1; 60… in a2).")
    [base] = said({}, standing)
    assert base.startswith(f"{differ}the run that config.init_from names (a1… in a1; a2… in a2).")


def test_a_run_is_known_by_what_decides_its_parameters_and_not_by_where_that_is(tmp_path):
    def digest_of(
        seed=1,
        corpus="text:here/a.txt",
        fingerprint="ff",
        code="aa",
        weights="ww",
        source="w.bin",
        last=4,
        result=False,
        base="cc",
        tokenizer=None,
    ):
        run = Run(tmp_path / "run")
        shutil.rmtree(run.directory, ignore_errors=True)
        run.config.write({"seed": seed, "data": {"corpus": corpus, "tokenizer": {"path": f"{corpus}/tokenizer"}}})
        run.data.write({"corpus": {"fingerprint": fingerprint}})
        run.environment.write({"code": {"my:Own": code}})
        run.imported.write({"source": source, "blake2b": weights})
        read = {"sources": {"corpus": fingerprint, "init_from": base}}
        run.at_step(last).write(read if last else {})
        if result:
            run.result.write(read)
        for name, content in ({"vocab.txt": "a"} | (tokenizer or {})).items():
            path = run.tokenizer / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return of_pretrained(run)

    first = digest_of()
    same = ({"corpus": "text:there/a.txt"}, {"source": "moved.bin"}, {"last": 8}, {"last": 0, "result": True})
    same += ({"tokenizer": {".DS_Store": "x"}}, {"tokenizer": {"more/file": "x"}})
    assert all(digest_of(**change) == first for change in same)
    others = [digest_of(**change) for change in ({"seed": 2}, {"fingerprint": "fe"}, {"code": "ab"}, {"weights": "wx"})]
    others += [digest_of(base="ca"), digest_of(tokenizer={"vocab.txt": "b"})]
    assert len({first, *others}) == 7


def test_a_run_is_known_by_its_tokenizer(tmp_path):
    run, digests = Run(tmp_path / "run"), []
    run.config.write({"seed": 1})
    for text in ("the value of the other values", "an object has another name", "the value of the other values"):
        shutil.rmtree(run.tokenizer, ignore_errors=True)
        train_tokenizer("bpe", [text] * 20, 300, seed=0).save(run.tokenizer)
        digests.append(of_pretrained(run))
    assert digests[0] == digests[2] != digests[1]


def test_a_fine_tuning_knows_its_run_and_the_word_vectors_of_each_task(tmp_path):
    def found(base=1, vectors=2):
        for name, seed in (("base", base), ("vectors", vectors)):
            Run(tmp_path / name).config.write({"seed": seed})
        config = ConfigDict(
            {
                "init_from": str(tmp_path / "base"),
                "init_step": None,
                "objectives": {"a": {"word_vectors": str(tmp_path / "vectors")}},
            }
        )
        data = SimpleNamespace(labels=(), examples={})
        return sources_of(config, {"a": (None, data), "b": (None, data)})

    first = found()
    assert first == {
        name: of_pretrained(Run(tmp_path / of)) for name, of in (("init_from", "base"), ("word_vectors/a", "vectors"))
    }
    assert changed(first, found(vectors=3)) == "the run of word vectors of a"
    assert changed(first, found(base=3)) == "the run that config.init_from names"
    assert changed(first, found()) is None


def test_processes_that_read_different_texts_are_refused_in_all_of_them(monkeypatch, tmp_path):
    session = loop.Session.__new__(loop.Session)
    session.workdir = tmp_path
    session.experiment = SimpleNamespace(sources={"corpus": "aa"}, config=None)
    for sources, refused, said in (
        ({"corpus": "bb"}, "", "^process 1 does not have the same as process 0: the text or the tokenizer of config.data$"),
        ({"corpus": "aa"}, "what the first process found", "^what the first process found$"),
    ):
        monkeypatch.setattr(
            loop, "gather", lambda own, other=sources, first=refused: [own | {"refused": first}, {"sources": other}]
        )
        with pytest.raises(loop.Refused, match=said):
            session._require_same({})
    monkeypatch.setattr(loop, "gather", lambda own: [own, own])
    session._require_same({})
