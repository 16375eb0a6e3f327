"""A training goes on only with the text, the run and the examples that it began with, wherever they are now."""

import json
import shutil
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import load
from bertlab.studies.same_data import compare_texts
from bertlab.train import loop
from bertlab.train.sources import of_pretrained
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
