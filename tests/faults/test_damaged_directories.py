"""Each file of a run, a study and a prepared corpus is cut, emptied, flipped in one bit, or gone: the next use says so.

Every use either names what is damaged in one sentence, or gives exactly what it gave before.
"""

import contextlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import bertlab
from bertlab import checksums, results
from bertlab.config import load_config
from bertlab.data.formats.cooccurrence import entries
from bertlab.data.prepare import prepare
from bertlab.data.prepared import load_prepared
from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import RunFailed, UserError, failure_of_machine
from bertlab.interop.base import load_run, save_imported
from bertlab.run import Run, StudyDirectory
from bertlab.studies.doctor import examine, read_facts
from bertlab.studies.published import adopt, publish
from bertlab.studies.sweep import describe
from bertlab.studies.two_runs import compare
from bertlab.train import loop
from bertlab.train.build import begun_from
from bertlab.train.checkpoint import Checkpoints, load_params
from bertlab.transfer.evaluate import write_merged
from tests.conftest import ROOT
from tests.faults.readers import EVALUATION, FLOOR, TEXTS
from tests.interop import published
from tests.references import broken_at
from tests.studies.conftest import objectives_study, write_run, write_study


def flipped(content: bytes) -> bytes:
    """With one bit of the middle half the other way round, always the same one."""
    at = random.Random(len(content)).randrange(len(content) // 4, max(1, 3 * len(content) // 4) + 1) if content else 0
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] if at < len(content) else content


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "flipped": flipped,
    "missing": lambda content: None,
}


def unnoticed(directory: Path, use: Callable[[], Any], damage: str, mends: str) -> tuple[list[str], int]:
    """What goes wrong as each file of a directory is damaged, and how many there are; the directory is as before afterwards.

    Args:
        directory: its files are damaged one after the other.
        use: what is done with it; its result is compared.
        damage: a key of DAMAGES.
        mends: what the sentence must contain: the remedy.
    """
    expected, wrong = use(), []
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
    for file in files:
        content, name = file.read_bytes(), file.relative_to(directory).as_posix()
        damaged = DAMAGES[damage](content)
        file.unlink() if damaged is None else file.write_bytes(damaged)
        try:
            found = use()
            if found != expected:
                wrong.append(f"{name}: nothing is said, and the result is another one")
        except UserError as error:
            said = str(error)
            if str(directory) not in said or "\n" in said or mends not in said:
                wrong.append(f"{name}: {said}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        file.write_bytes(content)
    return wrong, len(files)


@pytest.fixture(scope="module")
def corpus_settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("\n\n".join(f"{text} Once more, {text}" for text in TEXTS))
    settings = {"corpus": f"text:{folder}/a.txt", "directory": str(folder / "cache"), "workers": 1}
    return settings | {"tokenizer": {"kind": "words", "vocab_size": 20}, "valid_fraction": 0.2, "test_fraction": 0.2}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_prepared_corpus_is_named_and_can_be_prepared_again(damage, corpus_settings):
    prepared = prepare(corpus_settings)
    entries(prepared, "train", 2)

    def use():
        again = load_prepared(prepared.directory)
        pairs = entries(again, "train", 2).tolist()
        documents = {split: [again.source(split)[i] for i in range(len(again.source(split)))] for split in again.statistics}
        arrays = jax.tree.map(lambda value: value.tolist() if isinstance(value, np.ndarray) else value, documents)
        return arrays, pairs, again.counts.tolist(), again.tokenizer.pieces(), again.statistics, again.fingerprint

    wrong, number = unnoticed(prepared.directory, use, damage, f"delete {prepared.directory}")
    print(f"{damage}: {number} files of a prepared corpus")
    # A folder without its list is one of an earlier version.
    assert wrong == [] and number >= 3 + 2 + 2 + 3 + 2
    expected = use()
    shutil.rmtree(prepared.directory)
    assert prepare(corpus_settings).directory == prepared.directory and use() == expected


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    """A finished run's directory with each kind of file that it may have, and no other checkpoint than its last."""
    place = tmp_path_factory.mktemp("run")
    run = Run(place / "run")
    save_imported(published.random_run(place / "source"), run.directory, "huggingface", "source")
    config = run.config.read()
    write_run(run.directory, "MLM", 1, steps=300)
    run.config.write(config)
    run.result.write(run.result.read() | {"step": 0})
    run.evaluation.write(EVALUATION)
    run.floor.write(FLOOR)
    run.costs.write({"300": {"tokens": 5, "supervised": 1, "flops": 2.0, "seconds": 3.0}})
    run.data.write({"corpus": {"splits": {}}, "batches": {}, "objectives": {"mlm": {"asks": "tokens"}}})
    run.measured.write({"evaluation": None, "floor": None})
    for part in (run, *(run.stage(*stage) for stage in run.stages())):
        part.list_files()
    return run


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # TensorStore's threads, after the first error
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named(damage, run_directory):
    run = run_directory

    def use():
        tables = results.load(run.directory)
        params = jax.tree.map(lambda array: array.tolist(), load_params(run.directory))
        files = (run.costs, run.data, run.imported, run.measured, run.environment)
        known = [run.config.read(), *(file.get() for file in files)]
        tokenizer = load_tokenizer(run.tokenizer)
        return json.dumps([tables.measurements.to_json(), tables.metrics.to_json(), params, known, tokenizer.pieces()])

    wrong, number = unnoticed(run.directory, use, damage, "")
    print(f"{damage}: {number} files of a run")
    assert not wrong and number > 25, "\n".join(wrong)


def begins_from(run):
    config = load_config(f"{ROOT}/experiments/pretrain/bert.py:objectives=mlm", {"init_from": str(run)})
    return json.dumps(begun_from(config).model.to_dict())


def opens(run):
    opened = bertlab.load(run)
    return [opened.tokenizer.pieces(), jax.tree.map(lambda array: array.tolist(), opened.params)]


# What opens a run looks at all its files first, even those that it does not read itself.
READERS = {"load": opens, "export": lambda run: load_run(run).params.keys(), "init_from": begins_from}


@pytest.mark.parametrize("reads", READERS)
def test_whoever_opens_a_run_notices_one_bit_of_each_of_its_files(reads, run_directory):
    for file in json.loads(run_directory.files.read_text()):
        path = run_directory.directory / file
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises(UserError, match=f"^{re.escape(str(path))} is damaged "):
            READERS[reads](run_directory.directory)
        path.write_bytes(content)
    READERS[reads](run_directory.directory)


@pytest.mark.parametrize("change", [{"heads": 1}, {"width": 24}, {"layers": 1}, {"max_positions": 7}])
@pytest.mark.parametrize("reads", ["load", "export"])
def test_a_config_that_does_not_fit_its_checkpoint_is_named(reads, change, run_directory, tmp_path):
    """One that somebody changed, and deleted files.json as he was told."""
    run = Run(shutil.copytree(run_directory.directory, tmp_path / "run"))
    run.files.unlink()
    config = run.config.read()
    run.config.write(config | {"model": config["model"] | change})
    with pytest.raises(UserError, match=f"^{run.config} does not fit the run's checkpoint: body/.* restore the file$"):
        READERS[reads](run.directory)


def test_a_file_that_is_renewed_while_it_is_checked_is_not_damaged(tmp_path, monkeypatch):
    file = tmp_path / "evaluation.json"
    file.write_text("1")
    checksums.write_list(tmp_path, [file])
    read = checksums.digest_of_file

    def renewed_meanwhile(path):
        monkeypatch.setattr(checksums, "digest_of_file", read)
        with checksums.renewed(file):
            file.write_text("2")
        return read(path)

    monkeypatch.setattr(checksums, "digest_of_file", renewed_meanwhile)
    assert checksums.find_damage(tmp_path) is None
    file.write_text("3")
    assert checksums.find_damage(tmp_path) == (file, "its content does not match files.json")


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), UserError("it cannot be read; remove it")])
def test_a_run_that_trains_is_read_at_its_newest_checkpoint(error, tmp_path, monkeypatch):
    """The training saves step 2, and removes step 1 while that is read."""
    with contextlib.closing(Checkpoints(tmp_path / "checkpoints", keep=1)) as checkpoints:
        checkpoints.save(1, {"params": {"w": jnp.ones(1)}}, {}, {})
        checkpoints.latest_path()  # waits
        restore = ocp.CheckpointManager.restore

        def removed(*given, **more):
            monkeypatch.setattr(ocp.CheckpointManager, "restore", restore)
            checkpoints.save(2, {"params": {"w": jnp.full(1, 2.0)}}, {}, {})
            checkpoints.latest_path()
            raise error

        monkeypatch.setattr(ocp.CheckpointManager, "restore", removed)
        assert load_params(tmp_path)["w"] == 2
        with pytest.raises(UserError, match="2 cannot be read"):
            monkeypatch.setattr(ocp.CheckpointManager, "restore", lambda *given, **more: 1 / 0)
            load_params(tmp_path)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study of two runs."""
    place = tmp_path_factory.mktemp("study") / "study"
    described = objectives_study((1,), ("MLM", "LTR"))
    write_study(place, described)
    StudyDirectory(place).study.write(describe(described, described.runs()))
    for run in StudyDirectory(place).runs():
        run.job.write({})
        run.measured.write({})
        for part in (run, *(run.stage(*stage) for stage in run.stages())):
            part.list_files()
    return place


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_study_is_named_and_so_is_a_damaged_published_one(damage, study, tmp_path):
    publish(study, tmp_path / "published")
    for place in (study, tmp_path / "published"):

        def use(place=place):
            tables = results.load(place)
            return [table.to_json() for table in (tables.runs, tables.measurements, tables.metrics)], tables.environments

        wrong, number = unnoticed(place, use, damage, "restore it, or")
        print(f"{damage}: {number} files of a study")
        assert not wrong and number > 15, "\n".join(wrong)


def test_publishing_passes_no_damage_on(study, tmp_path):
    place, file = shutil.copytree(study, tmp_path / "study"), tmp_path / "study" / "mlm-seed=1" / "result.json"
    file.write_text(file.read_text().replace("4", "5", 1))
    with pytest.raises(UserError, match=f"^{file} is damaged .*; delete .*/files.json if you changed it yourself$"):
        publish(place, tmp_path / "published")
    assert examine(read_facts(file.parent))["files are as they were written"].seen.startswith(f"{file} is damaged")
    # What another command measures later belongs to the run.
    file.write_text((study / "mlm-seed=1" / "result.json").read_text())
    write_merged(file.with_name("evaluation.json"), EVALUATION)
    assert "evaluation.json" in Run(file.parent).files.read_text()
    with pytest.raises(TypeError, match="JSON"):  # killed between the removal of an entry and its return
        Run(file.parent).evaluation.write({"value": object()})
    assert publish(place, tmp_path / "published") and results.load(tmp_path / "published")
    (tmp_path / "published" / "mlm-seed=1" / "evaluation.json").unlink()
    with pytest.raises(UserError, match=r"evaluation.json is damaged \(it is missing\)"):
        adopt(tmp_path / "published", tmp_path / "again")


def flip(file: Path) -> None:
    file.write_bytes(flipped(file.read_bytes()))


def test_the_remedy_is_that_of_a_run_or_a_study_or_what_was_published(run_directory, study, tmp_path):
    run, swept = shutil.copytree(run_directory.directory, tmp_path / "run"), shutil.copytree(study, tmp_path / "swept")
    publish(study, tmp_path / "published")
    flip(run / "data.json")
    for place in (swept, tmp_path / "published"):
        flip(place / "study.json")
    again = f"restore it, or delete {run} and run the command that made it again; delete {run}/files.json if"
    for use in (results.load, lambda place: compare(place, place)):
        with pytest.raises(UserError, match=rf"data\.json is damaged .*; {again}"):
            use(run)
    with pytest.raises(UserError, match=r"study\.json is damaged .*; restore it, or delete it and run the same sweep again; "):
        results.load(swept)
    with pytest.raises(
        UserError, match=r"study\.json is damaged .*; restore it, or publish the study again, into a new folder"
    ):
        results.load(tmp_path / "published")
    for place in (run, swept, tmp_path / "published"):
        (place / "files.json").write_text("{")
        with pytest.raises(UserError, match=r"files\.json is damaged") as refused:
            results.load(place)
        assert ("sweep" in str(refused.value)) == ("publish" in str(refused.value)) == (place != run)


def test_each_damage_to_the_newest_checkpoint_sets_it_aside(tmp_path, capsys):
    """Or leaves what is restored as it was, if the file says nothing about the state."""
    state = {"params": {"w": jnp.arange(999.0), "b": jnp.ones(3)}}
    with contextlib.closing(Checkpoints(tmp_path / "checkpoints", keep=0)) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, jax.tree.map(lambda leaf: leaf + step, state), {"rows": step}, {"tokens": step})  # noqa: B023
        checkpoints.latest_path()  # waits
        newest, tried = tmp_path / "checkpoints" / "2", 0
        whole = load_params(tmp_path)
        for file in sorted(path for path in newest.rglob("*") if path.is_file()):
            content = file.read_bytes()
            for name, damage in DAMAGES.items():
                damaged = damage(content)
                file.unlink() if damaged is None else file.write_bytes(damaged)
                step, said = checkpoints.latest_whole(), capsys.readouterr().out
                aside = newest.with_name("damaged-2")
                tried += 1
                if step == 1:
                    named = (
                        newest if file.name == "files.json" else f"{file} is damaged ("
                    )  # a digest there may be the wrong one
                    assert said.startswith(f"warning: {named}") and said.count("\n") == 1, (file, name)
                    assert said.endswith(f"; training goes on from step 1, and {aside} may be deleted\n")
                    aside.rename(newest)
                else:
                    assert step == 2 and file.parent == newest, (file, name)
                    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), whole)
                file.write_bytes(content)
    print(f"{tried} damages to a checkpoint")
    assert tried > 40


@pytest.fixture(scope="module")
def unfinished(small_config, tmp_path_factory):
    """(config, directory, files of its end) of a run that broke at step 5 of 6, after checkpoints at 2 and 4.

    The log has a line after the last checkpoint too.
    """
    cadence = {"steps": 6, "log_every": 1, "checkpoint_every": 2, "eval_every": 2, "eval_batches": 1, "keep_checkpoints": 0}
    settings = {f"train__{name}": value for name, value in cadence.items()}
    config = small_config("skip_gram", **settings)
    config.optimizer.warmup_steps = None  # the run computes it
    run = tmp_path_factory.mktemp("unfinished") / "run"
    with broken_at(5):
        loop.train(config, run)
    whole = shutil.copytree(run, run.with_name("whole"))
    loop.train(config, whole)
    assert Run(run).steps() == [2, 4] and Run(run).metrics.last_step() == 5
    return config, run, timeless(whole)


def timeless(directory: Path) -> dict[str, Any]:
    """The content of a run's files without times, but for its checkpoints, whose arrays are compared in test_resume.py."""
    files = [path for path in directory.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    left_out = ("files.json", "environment.json")  # of digests of times; of this moment
    found = {}
    for file in files:
        content: Any = file.read_bytes()
        if file.suffix in (".json", ".jsonl") and file.name not in left_out:
            lines = content.splitlines() if file.suffix == ".jsonl" else [content]
            without = lambda pairs: {key: value for key, value in pairs if key not in ("seconds", "tokens_per_second")}
            content = [json.loads(line, object_pairs_hook=without) for line in lines]
        found[file.relative_to(directory).as_posix()] = None if file.name in left_out else content
    return found


def line_removed(content: bytes) -> bytes:
    """Without the second line."""
    first, _, *rest = [*content.splitlines(keepends=True), b""]
    return b"".join([first, *rest])


def test_a_finished_run_of_whose_files_one_is_damaged_does_not_give_its_result(unfinished, tmp_path):
    run = shutil.copytree(unfinished[1].with_name("whole"), tmp_path / "run")
    assert loop.train(unfinished[0], run)
    file = run / "result.json"
    file.write_text(re.sub(r'"loss": \d', '"loss": 9', file.read_text(), count=1))
    with pytest.raises(UserError, match=f"^{file} is damaged .* or delete {run} and run "):
        loop.train(unfinished[0], run)


def goes_on(unfinished, run: Path, capsys) -> tuple[str, list[str]]:
    """Trains a damaged copy on; how that ended, and its warnings. What it ends with must be as without the damage."""
    config, _, whole = unfinished
    capsys.readouterr()
    try:
        loop.train(config, run)
    except UserError as error:
        return str(error), []
    assert timeless(run) == whole
    checksums.require_whole(run, "")
    return "", [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]


OF_A_RUN = {**DAMAGES, "line removed": line_removed}


@pytest.mark.slow
@pytest.mark.parametrize("damage", OF_A_RUN)
def test_what_an_unfinished_run_makes_anew_cannot_be_damaged(damage, unfinished, tmp_path, capsys):
    """Costs come from the checkpoint, all else from the config and the corpus."""
    run = shutil.copytree(unfinished[1], tmp_path / "run")
    files = [run / f"{name}.json" for name in ("costs", "data", "environment")]
    for file in [*files, *(run / "tokenizer").iterdir()]:
        damaged = OF_A_RUN[damage](file.read_bytes())
        file.unlink() if damaged is None else file.write_bytes(damaged)
    assert goes_on(unfinished, run, capsys) == ("", [])


@pytest.mark.slow
@pytest.mark.parametrize("damage", OF_A_RUN)
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_a_damaged_file_of_an_unfinished_run_is_named(name, damage, unfinished, tmp_path, capsys):
    run = shutil.copytree(unfinished[1], tmp_path / "run")
    content = (run / name).read_bytes()
    damaged = OF_A_RUN[damage](content)
    (run / name).unlink() if damaged is None else (run / name).write_bytes(damaged)
    before = all_of(run)
    refused, warned = goes_on(unfinished, run, capsys)
    if not refused and name == "config.json":
        assert damage in ("line removed", "flipped")
    if warned:
        assert name == "metrics.jsonl" and warned[0].startswith(f"warning: {run / name} is damaged (")
    elif refused.startswith(f"{run} holds a run with a different config ("):  # its keys are named
        assert name == "config.json" and damage == "flipped" and all_of(run) == before
    elif refused or name != "config.json":  # else the format's number or the text's path, which are written anew
        assert refused.startswith(f"{run / name}") and "\n" not in refused and all_of(run) == before


def all_of(directory: Path) -> dict[str, bytes]:
    """The content of all files."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def parts_of_log(directory: Path) -> tuple[bytes, dict[int, int]]:
    """The log, and step of a checkpoint -> how many bytes of it there were."""
    content = (directory / "metrics.jsonl").read_bytes()
    up_to = {step: json.loads((directory / f"checkpoints/{step}/run.json").read_text())["metrics"]["bytes"] for step in (2, 4)}
    assert 0 < up_to[2] < up_to[4] < len(content)
    return content, up_to


def test_a_log_that_no_checkpoint_knows_is_refused_before_any_compute(unfinished, tmp_path, capsys):
    content, up_to = parts_of_log(unfinished[1])
    run = shutil.copytree(unfinished[1], tmp_path / "run")
    log = run / "metrics.jsonl"
    for damaged in (b"", content[: up_to[2] - 1], content[:9] + b"7" + content[10:], line_removed(content), None):
        log.unlink() if damaged is None else log.write_bytes(damaged)
        refused, _ = goes_on(unfinished, run, capsys)
        assert refused.startswith(f"{log} is damaged (") and "no whole checkpoint before it; restore the file, or" in refused
        assert Run(run).steps() == [2, 4] and log.exists() == (damaged is not None)


@pytest.mark.slow
def test_a_run_goes_on_from_the_last_checkpoint_up_to_which_its_log_is_whole(unfinished, tmp_path, capsys):
    content, up_to = parts_of_log(unfinished[1])
    run = shutil.copytree(unfinished[1], tmp_path / "run")
    log = run / "metrics.jsonl"
    log.write_bytes(content[: up_to[2] + 5])
    refused, warned = goes_on(unfinished, run, capsys)
    aside = run / "checkpoints" / "damaged-4"
    assert not refused and aside.is_dir()
    assert warned == [
        f"warning: {log} is damaged (it has {up_to[2] + 5} bytes instead of {up_to[4]} or more);"
        f" training goes on from step 2, and {aside} may be deleted"
    ]
    # What is damaged after it is as after a kill.
    again = shutil.copytree(unfinished[1], tmp_path / "again")
    (again / "metrics.jsonl").write_bytes(
        content[: up_to[4]] + b'{"step": 4, "splot": 1}\n{"step": 4, "split": "train", "loss": 1.0}\n{"st'
    )
    assert goes_on(unfinished, again, capsys) == ("", [])
    third = shutil.copytree(unfinished[1], tmp_path / "third")
    (third / "checkpoints" / "4" / "run.json").write_bytes(b'{"metr')  # has the digests of what the run reads, too
    refused, warned = goes_on(unfinished, third, capsys)
    assert not refused and warned[0].startswith(f"warning: {third / 'checkpoints' / '4' / 'run.json'} is damaged (")


def test_a_number_that_the_run_computed_for_its_config_is_not_changed_by_damage(unfinished, tmp_path, capsys):
    run = shutil.copytree(unfinished[1], tmp_path / "run")
    settings = json.loads((run / "config.json").read_text())
    settings["optimizer"]["warmup_steps"] += 1
    (run / "config.json").write_text(json.dumps(settings))
    refused, _ = goes_on(unfinished, run, capsys)
    assert refused.startswith(f"{run}/config.json is damaged (config.optimizer.warmup_steps is ") and Run(run).steps() == [2, 4]
    (run / "config.json").unlink()
    refused, _ = goes_on(unfinished, run, capsys)
    assert refused.startswith(f"{run}/config.json is missing, and ") and not (run / "config.json").exists()


def moved(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


MEANWHILE: dict[str, tuple[Callable[[Path], Any], str]] = {  # what is done, and the file that is named
    "log emptied": (lambda run: (run / "metrics.jsonl").write_bytes(b""), "metrics.jsonl"),
    "log changed": (lambda run: flip(run / "metrics.jsonl"), "metrics.jsonl"),
    "log removed": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl"),
    "config changed": (lambda run: flip(run / "config.json"), "config.json"),
    "config removed": (lambda run: (run / "config.json").unlink(), "config.json"),
    "facts changed": (lambda run: flip(run / "data.json"), "data.json"),
    "tokenizer removed": (lambda run: shutil.rmtree(run / "tokenizer"), "tokenizer/"),
    "run removed": (shutil.rmtree, ""),
    "run moved": (moved, ""),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_run_whose_files_are_not_as_its_process_wrote_them_is_not_signed(what, run_directory, tmp_path):
    run, (act, named) = Run(shutil.copytree(run_directory.directory, tmp_path / "run")), MEANWHILE[what]
    result = run.result.read()
    run.result.delete()
    run.files.unlink()
    known = run.described() | checksums.entries_of([run.metrics.path])
    act(run.directory)
    with pytest.raises(RunFailed, match=rf"^{run}/?{named}.* was .* the same command again") as failed:
        run.finish(result, known)
    assert failure_of_machine(failed.value).count("\n") == 0
    assert not run.result.exists() and not run.files.exists()


def test_a_training_whose_files_are_changed_meanwhile_fails(unfinished, tmp_path, monkeypatch):
    """The log at the end, by its digest; a directory that is gone at the next checkpoint, and nothing is left in its place."""
    config, advance = unfinished[0].copy_and_resolve_references(), loop.Session.advance

    def train(place: Path, step: int, act: Callable[[Path], Any]) -> str:
        def meanwhile(session, steps):
            if session.step == step:
                session.checkpoints.latest_path()  # waits for what is written in the background
                act(place)
            advance(session, steps)

        monkeypatch.setattr(loop.Session, "advance", meanwhile)
        with pytest.raises(RunFailed) as failed:
            loop.train(config, place)
        monkeypatch.undo()
        return str(failed.value)

    log, gone = tmp_path / "log", tmp_path / "gone"
    assert train(log, 5, lambda place: flip(place / "metrics.jsonl")).startswith(f"{log}/metrics.jsonl was changed")
    assert Run(log).steps()[-1] == 6 and not Run(log).result.exists()
    assert train(gone, 3, moved).startswith(f"{gone} was removed or moved") and not gone.exists()
    (tmp_path / "elsewhere").rename(gone)
    assert loop.train(config, gone)["step"] == 6 and timeless(gone) == unfinished[2]


def test_every_flipped_bit_of_a_cached_value_is_noticed(tmp_path):
    file, value = tmp_path / "a.json", {"sentences": ["a ü", 'b "c"'], "sample": 12, "share": 0.1}
    checksums.write_cached(file, value)
    content, noticed = file.read_bytes(), 0
    assert checksums.read_cached(file) == value
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            found = checksums.read_cached(file)
        except UserError as error:
            assert str(file) in str(error)
            noticed += 1
            continue
        # White space, the case of an escape's digits, or the name of the digest, whose absence every reader notices.
        assert found == value or (found["value"] == value and "blake2b" not in found), bytes(damaged)
    assert noticed > 0.9 * 8 * len(content)
    file.write_text('{"sample": 12}')  # of an earlier version
    assert checksums.read_cached(file) == {"sample": 12}
